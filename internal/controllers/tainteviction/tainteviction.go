// Package tainteviction deletes pods that do not tolerate a NoExecute taint of their node, at once
// or when their tolerationSeconds are over. core/nodehealth decides when; the controller manager
// runs it.
//
// Contract: L7.160–L7.163 in docs/spec/pod-lifecycle.md.
package tainteviction

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/nodehealth"
	"carob/internal/core/workload"
)

// Controller evicts pods. Its key is namespace/name of a pod.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	nodes  cache.Store
	pods   cache.Indexer

	mu     sync.Mutex
	marked map[string]marked // pods that will be evicted
}

// New returns a controller; pods is indexed by source.ByNode.
func New(client kubernetes.Interface, events record.EventRecorder, nodes, pods *source.Watch) (*Controller, error) {
	c := &Controller{client: client, events: events, nodes: nodes.Objects(), pods: pods.Objects(),
		marked: map[string]marked{}}
	c.Reconciler = reconciler.New("noexec_taint_pod", 8, c.reconcile)
	err := nodes.OnChange(func(before, after metav1.Object) {
		b, _ := before.(*corev1.Node)
		a, ok := after.(*corev1.Node)
		if ok && (evicts(a) || b != nil && evicts(b)) {
			c.addPodsOf(a.Name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("tainteviction: watch nodes: %w", err)
	}
	err = reconciler.OnChange(pods, func(o metav1.Object) {
		if pod, ok := o.(*corev1.Pod); ok && (c.isMarked(key(pod)) || evicts(c.nodeOf(pod))) {
			c.Add(key(pod))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("tainteviction: watch pods: %w", err)
	}
	return c, nil
}

// answers is how long a node has for the refusal of a new pod; times of creation are whole seconds.
const answers = 2 * time.Second

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (c *Controller) nodeOf(pod *corev1.Pod) *corev1.Node {
	obj, exists, _ := c.nodes.GetByKey(pod.Spec.NodeName)
	if !exists {
		return nil
	}
	n, _ := obj.(*corev1.Node)
	return n
}

// evicts reports whether the node has a NoExecute taint.
func evicts(n *corev1.Node) bool {
	if n == nil {
		return false
	}
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Effect == corev1.TaintEffectNoExecute {
			return true
		}
	}
	return false
}

func (c *Controller) addPodsOf(node string) {
	objects, err := c.pods.ByIndex(source.ByNode, node)
	if err != nil {
		panic("tainteviction: pods are not indexed by node: " + err.Error())
	}
	for _, obj := range objects {
		c.Add(key(obj.(*corev1.Pod)))
	}
}

func (c *Controller) isMarked(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.marked[key]
	return ok
}

// marked is a pod, and the start of its tolerationSeconds.
type marked struct {
	uid   types.UID
	since time.Time
}

// mark marks a pod, and returns since when it is marked; another pod of the same name is marked anew.
func (c *Controller) mark(pod *corev1.Pod, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.marked[key(pod)]
	if m.uid != pod.UID {
		m = marked{pod.UID, now}
		c.marked[key(pod)] = m
	}
	return m.since
}

func (c *Controller) unmark(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.marked[key]
	delete(c.marked, key)
	return ok
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	obj, exists, _ := c.pods.GetByKey(key)
	if !exists {
		c.unmark(key)
		return 0, nil
	}
	pod := obj.(*corev1.Pod)
	node := c.nodeOf(pod)
	// What a node has refused uses nothing there; its controller needs it to see that the next one waits.
	if pod.DeletionTimestamp != nil || node == nil || workload.Refused(pod) {
		c.unmark(key)
		return 0, nil
	}
	now := time.Now()
	since := now
	if evicts(node) {
		since = c.mark(pod, now)
	}
	at, evict := nodehealth.EvictAt(node.Spec.Taints, pod, since)
	if !evict {
		if c.unmark(key) && !evicts(node) {
			c.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
		}
		return 0, nil
	}
	if wait := latest(at, untilRefused(pod)).Sub(now); wait > 0 {
		return wait, nil
	}
	c.events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", key)
	err := c.evict(ctx, pod)
	if err == nil {
		metrics.PodsEvicted.WithLabelValues().Inc()
		metrics.EvictionSeconds.WithLabelValues().Observe(time.Since(at).Seconds())
	}
	return 0, err
}

// untilRefused returns the time until which the node of a pod may refuse it. A pod that was created for a node with the
// taint is refused by the node itself, and its controller waits longer with each refusal. If the pod was deleted before
// that, the controller would make the next one at once.
func untilRefused(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil || pod.Status.Phase != corev1.PodPending {
		return time.Time{}
	}
	return pod.CreationTimestamp.Add(answers)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// evict sets a condition with the reason and deletes the pod with its own grace period (L7.163).
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod) error {
	pods := c.client.CoreV1().Pods(pod.Namespace)
	full, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err == nil && full.UID == pod.UID {
		setCondition(&full.Status, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
			Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.Now(),
			ObservedGeneration: full.Generation,
		})
		if _, err = pods.UpdateStatus(ctx, full, metav1.UpdateOptions{}); err == nil {
			err = pods.Delete(ctx, pod.Name,
				metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		}
	}
	err = confirm.Ended(ctx, pod.UID, err, confirm.By(pods.Get, pod.Name))
	if err == nil {
		return nil
	}
	return fmt.Errorf("evict pod %s: %w", key(pod), err)
}

func setCondition(status *corev1.PodStatus, c corev1.PodCondition) {
	for i := range status.Conditions {
		if old := &status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	status.Conditions = append(status.Conditions, c)
}
