package admission

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
)

// kubernetesVersion is the version whose features pods can require of a node.
var kubernetesVersion = version.MajorMinor(1, 37)

// nodeFeatures rejects changes of a running pod that its node does not support, by the node's
// declared features (L1.34).
type nodeFeatures struct{ reader Reader }

func (nodeFeatures) Handles(op admission.Operation) bool { return op == admission.Update }

func (n nodeFeatures) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != podResource || a.GetSubresource() != "" && a.GetSubresource() != "resize" {
		return nil
	}
	p, ok := a.GetObject().(*corev1.Pod)
	old, okOld := a.GetOldObject().(*corev1.Pod)
	if !ok || !okOld || p.Spec.NodeName == "" || p.Generation == old.Generation {
		// the generation counts changes of the spec
		return nil
	}
	f := features.DefaultFramework
	needs, err := f.InferForPodUpdate(&features.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&features.PodInfo{Spec: &p.Spec, Status: &p.Status}, kubernetesVersion)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to infer pod capability requirements: %w", err))
	}
	if needs.IsEmpty() {
		return nil
	}
	obj, err := n.reader.Get(ctx, nodeResource, "", p.Spec.NodeName)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to get node %q: %w", p.Spec.NodeName, err))
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return admission.NewForbidden(a, fmt.Errorf("unexpected type %T", obj))
	}
	match, err := f.MatchNode(needs, node)
	if err != nil {
		return admission.NewForbidden(a,
			fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err))
	}
	if !match.IsMatch {
		return admission.NewForbidden(a,
			fmt.Errorf("pod update requires features %s which are not available on node %q",
				strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}
