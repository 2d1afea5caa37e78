// Package podgc removes pod objects that no other part removes: terminated pods when there are too
// many, pods of deleted nodes, deleted pods of nodes that are out of service, pods that are deleted
// before they were scheduled (L7.166). The controller manager runs it; it must never delete a pod
// that a node agent is still responsible for.
//
// Contract: L7.166 in docs/spec/pod-lifecycle.md.
package podgc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/nodehealth"
	"carob/internal/core/workload"
)

// The limits of L7.166.
const (
	maxFinished = 12500
	period      = 20 * time.Second // between two checks of the terminated pods, if pods terminate
	quarantine  = 40 * time.Second // how long a node must be missing
	// The API server removes a pod without a node with a second write, right after the one that
	// sets its deletionTimestamp. Without this delay, the controller would add two useless writes
	// for each such pod.
	grace = time.Second
)

// Controller removes pods. The keys "finished" and "node/NAME" find pods. Each is removed under a key of its own,
// "finished/NAMESPACE/NAME", "orphan/NAMESPACE/NAME", or "pod/NAMESPACE/NAME", so that slow writes of one namespace do
// not delay those of others.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	nodes  cache.Store
	pods   cache.Indexer
	max    int
	excess atomic.Pointer[map[types.UID]bool] // the terminated pods above the limit, as last counted
}

// New returns a controller; pods is indexed by source.ByNode.
func New(client kubernetes.Interface, nodes, pods *source.Watch) (*Controller, error) {
	c := &Controller{client: client, nodes: nodes.Objects(), pods: pods.Objects(), max: maxFinished}
	c.Reconciler = reconciler.New("orphaned_pods_nodes", 4, c.reconcile)
	err := reconciler.OnChange(pods, func(o metav1.Object) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		switch {
		case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
			c.AddAfter("pod/"+pod.Namespace+"/"+pod.Name, grace)
		case pod.Spec.NodeName != "" && !c.has(pod.Spec.NodeName):
			c.AddAfter("node/"+pod.Spec.NodeName, quarantine)
		}
		if workload.Terminal(pod) {
			c.AddAfter("finished", period)
		}
		if pod.DeletionTimestamp != nil && c.outOfService(pod.Spec.NodeName) {
			c.Add("pod/" + pod.Namespace + "/" + pod.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("podgc: watch pods: %w", err)
	}
	err = nodes.OnChange(func(before, after metav1.Object) {
		if after == nil {
			c.AddAfter("node/"+before.GetName(), quarantine)
		} else if node, ok := after.(*corev1.Node); ok && nodehealth.OutOfService(node) {
			for _, pod := range source.OnNode(pods, node.Name) {
				if pod.DeletionTimestamp != nil {
					c.Add("pod/" + pod.Namespace + "/" + pod.Name)
				}
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("podgc: watch nodes: %w", err)
	}
	return c, nil
}

func (c *Controller) has(node string) bool {
	_, exists, _ := c.nodes.GetByKey(node)
	return exists
}

// outOfService reports whether an administrator has marked the node as out of service: no
// containers run on it.
func (c *Controller) outOfService(node string) bool {
	obj, exists, _ := c.nodes.GetByKey(node)
	n, ok := obj.(*corev1.Node)
	return exists && ok && nodehealth.OutOfService(n)
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	what, name, _ := strings.Cut(key, "/")
	if key == "finished" {
		c.findFinished()
		return 0, nil
	}
	if what == "node" {
		return 0, c.findOrphans(name)
	}
	obj, exists, _ := c.pods.GetByKey(name)
	pod, ok := obj.(*corev1.Pod)
	if !exists || !ok {
		return 0, nil
	}
	switch {
	case what == "finished":
		if excess := c.excess.Load(); excess != nil && (*excess)[pod.UID] {
			return 0, c.remove(ctx, pod, "terminated", nil)
		}
	case what == "orphan":
		return 0, c.removeOrphan(ctx, pod)
	case pod.DeletionTimestamp == nil:
	case pod.Spec.NodeName == "":
		return 0, c.remove(ctx, pod, "unscheduled", nil)
	case c.outOfService(pod.Spec.NodeName):
		return 0, c.remove(ctx, pod, "out-of-service", nil)
	}
	return 0, nil
}

// findFinished requests the removal of the pods above the limit, evicted pods first, then the oldest. A removal that
// failed before is not repeated once there are fewer.
func (c *Controller) findFinished() {
	var pods []*corev1.Pod
	for _, obj := range c.pods.List() {
		if pod, ok := obj.(*corev1.Pod); ok && workload.Terminal(pod) && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	above := max(0, len(pods)-c.max)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if ea, eb := a.Status.Reason == "Evicted", b.Status.Reason == "Evicted"; ea != eb {
			if ea {
				return -1
			}
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	excess := make(map[types.UID]bool, above)
	for _, pod := range pods[:above] {
		excess[pod.UID] = true
	}
	c.excess.Store(&excess)
	for _, pod := range pods[:above] {
		c.Add("finished/" + pod.Namespace + "/" + pod.Name)
	}
}

// findOrphans requests the removal of the pods of a node that is permanently deleted.
func (c *Controller) findOrphans(node string) error {
	if c.has(node) {
		return nil
	}
	objects, err := c.pods.ByIndex(source.ByNode, node)
	if err != nil {
		return fmt.Errorf("find pods of node %q: %w", node, err)
	}
	for _, obj := range objects {
		pod := obj.(*corev1.Pod)
		c.Add("orphan/" + pod.Namespace + "/" + pod.Name)
	}
	return nil
}

// removeOrphan removes the pod if its node does not exist.
func (c *Controller) removeOrphan(ctx context.Context, pod *corev1.Pod) error {
	node := pod.Spec.NodeName
	if node == "" || c.has(node) {
		return nil
	}
	// The watch may lag behind a node that was just created again.
	if _, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	return c.remove(ctx, pod, "orphaned", &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
		Message: "PodGC: node no longer exists", LastTransitionTime: metav1.Now(),
	})
}

// remove deletes the object at once. A pod that has not terminated is marked Failed first, so that
// its owner replaces it.
func (c *Controller) remove(ctx context.Context, pod *corev1.Pod, reason string,
	condition *corev1.PodCondition) error {
	metrics.PodsRemoved.WithLabelValues(pod.Namespace, reason).Inc()
	pods := c.client.CoreV1().Pods(pod.Namespace)
	var err error
	if !workload.Terminal(pod) {
		err = c.fail(ctx, pod, condition)
	}
	if err == nil {
		now := int64(0)
		err = pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	}
	// A pod that is being deleted is not removed yet.
	err = confirm.Removed(ctx, pod.UID, err, children.PodNamed(c.client, pod.Namespace, pod.Name))
	if err == nil {
		return nil
	}
	metrics.PodsNotRemoved.WithLabelValues(pod.Namespace, reason).Inc()
	return fmt.Errorf("remove pod %s/%s: %w", pod.Namespace, pod.Name, err)
}
