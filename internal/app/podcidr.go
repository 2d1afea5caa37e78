package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/atomicfile"
)

// replacedNode is the file of a Node object that is created again, below the data directory.
const replacedNode = "node/replaced-node.json"

// texts are ranges as the API writes them.
func texts(ranges []netip.Prefix) (out []string) {
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return out
}

// followPodCIDR replaces the Node object if its pod address ranges differ from those of this start.
// The API does not allow changing them, so it creates an object with another UID and the same
// labels, annotations, and taints. Pods stay bound to it, because they are bound by name. While there is
// none, the new object is in a file: a start that ends then, or fails, loses nothing.
func followPodCIDR(ctx context.Context, client kubernetes.Interface, name string, ranges []string, file string) error {
	nodes := client.CoreV1().Nodes()
	old, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return recreate(ctx, client, name, ranges, file)
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	if len(old.Spec.PodCIDRs) == 0 || slices.Equal(old.Spec.PodCIDRs, ranges) {
		return forget(file) // the agent sets them if they are missing
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
	text, err := json.Marshal(fresh)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), atomicfile.Write(file, text, 0o600))
	}
	if err != nil {
		return fmt.Errorf("keep node %s while its pod address ranges change: %w", name, err)
	}
	err = nodes.Delete(ctx, name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID,
			ResourceVersion: &old.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change the pod address ranges of node %s: %w", name, err)
	}
	klog.FromContext(ctx).Info("Replacing the Node object because the pod address ranges changed", "were",
		old.Spec.PodCIDRs, "are", ranges)
	return recreate(ctx, client, name, ranges, file)
}

// recreate creates the Node object that is in the file, if there is one.
func recreate(ctx context.Context, client kubernetes.Interface, name string, ranges []string, file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the agent creates a new one
	}
	node := &corev1.Node{}
	if err == nil {
		err = json.Unmarshal(text, node)
	}
	if err != nil {
		return fmt.Errorf("read the node whose pod address ranges change: %w", err)
	}
	if node.Name == name {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = ranges[0], ranges
		_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("change the pod address ranges of node %s: %w", name, err)
		}
	}
	return forget(file)
}

// forget removes a file, if there is one.
func forget(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the node whose pod address ranges have changed: %w", err)
	}
	return nil
}
