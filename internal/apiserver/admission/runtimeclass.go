package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

var runtimeClasses = nodev1.Resource("runtimeclasses")

// runtimeClass applies the overhead and the scheduling rules of a pod's runtime class (L1.32).
type runtimeClass struct{ reader Reader }

func (runtimeClass) Handles(op admission.Operation) bool { return op == admission.Create }

// class returns the pod's class, nil if it names none.
func (r runtimeClass) class(ctx context.Context, a admission.Attributes, p *corev1.Pod) (*nodev1.RuntimeClass, error) {
	if p.Spec.RuntimeClassName == nil {
		return nil, nil
	}
	obj, err := r.reader.Get(ctx, runtimeClasses, "", *p.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return nil, admission.NewForbidden(a,
			fmt.Errorf("pod rejected: RuntimeClass %q not found", *p.Spec.RuntimeClassName))
	}
	if err != nil {
		return nil, err
	}
	class, _ := obj.(*nodev1.RuntimeClass)
	return class, nil
}

func (r runtimeClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	if p == nil || isMirror(p) {
		return nil
	}
	class, err := r.class(ctx, a, p)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if p.Spec.Overhead != nil && !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, p.Spec.Overhead) {
			return admission.NewForbidden(a,
				errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
		}
		p.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(class.Scheduling.NodeSelector)) {
		value := class.Scheduling.NodeSelector[key]
		if own, ok := p.Spec.NodeSelector[key]; ok && own != value {
			return admission.NewForbidden(a,
				fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s",
					key, value, key, own))
		}
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[key] = value
	}
	for _, t := range class.Scheduling.Tolerations {
		if !slices.ContainsFunc(p.Spec.Tolerations,
			func(o corev1.Toleration) bool { return apiequality.Semantic.DeepEqual(o, t) }) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, *t.DeepCopy())
		}
	}
	return nil
}

func (r runtimeClass) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p := newPod(a)
	if p == nil || p.Spec.Overhead == nil {
		return nil
	}
	class, err := r.class(ctx, a, p)
	if err != nil {
		return err
	}
	if class == nil || class.Overhead == nil {
		return admission.NewForbidden(a,
			errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	if !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, p.Spec.Overhead) {
		return admission.NewForbidden(a,
			errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
	}
	return nil
}

// resizeFits rejects a resize that the pod's node could never grant (L1.35).
type resizeFits struct{ reader Reader }

func (resizeFits) Handles(op admission.Operation) bool { return op == admission.Update }

func (r resizeFits) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	p, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetSubresource() != "resize" || p.Spec.NodeName == "" {
		return nil
	}
	obj, err := r.reader.Get(ctx, nodeResource, "", p.Spec.NodeName)
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
	return fits(a, p, node)
}
