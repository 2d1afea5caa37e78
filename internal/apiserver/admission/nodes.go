package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// taintNodes keeps pods off a node until it is ready (L1.28).
type taintNodes struct{}

func (taintNodes) Handles(op admission.Operation) bool { return op == admission.Create }

func (taintNodes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	n, ok := a.GetObject().(*corev1.Node)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	return nil
}

// defaultTolerations lets a pod stay on an unhealthy node for five minutes (L1.31).
type defaultTolerations struct{}

const toleratedSeconds int64 = 300

func (defaultTolerations) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (defaultTolerations) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := podOf(a)
	if p == nil || isMirror(p) {
		return nil
	}
	for _, key := range [...]string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerated := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			seconds := toleratedSeconds
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

// topologyLabels copies zone and region of the node to the pod, for the downward API (L1.33).
type topologyLabels struct{ reader Reader }

func (topologyLabels) Handles(op admission.Operation) bool { return op == admission.Create }

func (t topologyLabels) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch o := a.GetObject().(type) {
	case *corev1.Binding:
		return t.copy(ctx, o.Target.Name, &o.Labels)
	case *corev1.Pod:
		if a.GetSubresource() == "" && o.Spec.NodeName != "" && !isMirror(o) {
			return t.copy(ctx, o.Spec.NodeName, &o.Labels)
		}
	}
	return nil
}

func (t topologyLabels) copy(ctx context.Context, nodeName string, labels *map[string]string) error {
	if nodeName == "" {
		return nil
	}
	obj, err := t.reader.Get(ctx, nodeResource, "", nodeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	for _, key := range [...]string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		value, ok := node.Labels[key]
		if !ok {
			continue
		}
		if *labels == nil {
			*labels = map[string]string{}
		}
		(*labels)[key] = value
	}
	return nil
}
