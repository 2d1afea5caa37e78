package app

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// texts are ranges as the API writes them.
func texts(ranges []netip.Prefix) (out []string) {
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return out
}

// followPodCIDR replaces the Node object if its pod address ranges differ from those of this start.
// The API does not allow changing them, so it creates an object with another UID and the same
// labels, annotations, and taints. Pods stay bound to it, because they are bound by name.
func followPodCIDR(ctx context.Context, client kubernetes.Interface, name string, ranges []string) error {
	nodes := client.CoreV1().Nodes()
	old, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if len(old.Spec.PodCIDRs) == 0 || slices.Equal(old.Spec.PodCIDRs, ranges) {
		return nil // the agent sets them if they are missing
	}
	fresh := old.DeepCopy()
	fresh.ObjectMeta = metav1.ObjectMeta{Name: old.Name, Labels: old.Labels, Annotations: old.Annotations,
		OwnerReferences: old.OwnerReferences}
	fresh.Spec.PodCIDR, fresh.Spec.PodCIDRs = ranges[0], ranges
	if len(old.Finalizers) > 0 {
		return fmt.Errorf(
			"node %s has other pod address ranges (%v) than this start (%v), and finalizers prevent that it is created again: %v",
			name, old.Spec.PodCIDRs, ranges, old.Finalizers)
	}
	if _, err := nodes.Create(ctx, fresh, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("change the pod address ranges of node %s: %w", name, err)
	}
	err = nodes.Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID,
			ResourceVersion: &old.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change the pod address ranges of node %s: %w", name, err)
	}
	if _, err := nodes.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("change the pod address ranges of node %s: %w", name, err)
	}
	klog.FromContext(ctx).Info("Replaced the Node object because the pod address ranges changed", "were",
		old.Spec.PodCIDRs, "are", ranges)
	return nil
}
