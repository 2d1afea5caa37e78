// Package nodelifecycle maintains the health of nodes: it detects nodes that have stopped
// reporting, sets taints that match the nodes' conditions, removes taints from nodes that are
// ready, and marks the pods of nodes that are not. core/nodehealth decides; the controller manager
// runs it.
//
// A renewed lease only moves a timestamp; a node is reconciled when its object changes or when its
// grace period would end.
//
// Contract: L7.160–L7.165 in docs/spec/pod-lifecycle.md.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	basemetrics "k8s.io/component-base/metrics"

	"carob/internal/base/confirm"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/nodehealth"
)

// Controller reconciles nodes. Its key is the node.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	events record.EventRecorder
	nodes  cache.Store
	pods   cache.Indexer

	mu      sync.Mutex
	seen    map[string]time.Time              // last heartbeat
	ready   map[string]corev1.ConditionStatus // last verdict
	unready map[string]bool                   // nodes that are not ready and have pods to mark
	pacer   *nodehealth.Pacer                 // of NoExecute taints
}

// New returns a controller; leases watches those of the nodes, pods is indexed by source.ByNode.
func New(client kubernetes.Interface, events record.EventRecorder, nodes, leases, pods *source.Watch) (*Controller,
	error) {
	c := &Controller{
		client: client, events: events, nodes: nodes.Objects(), pods: pods.Objects(),
		seen: map[string]time.Time{}, ready: map[string]corev1.ConditionStatus{}, unready: map[string]bool{},
		pacer: nodehealth.NewPacer(nodehealth.DefaultRates()),
	}
	c.Reconciler = reconciler.New("node_lifecycle_controller", 4, c.reconcile)
	err := nodes.OnChange(func(before, after metav1.Object) {
		b, _ := before.(*corev1.Node)
		a, _ := after.(*corev1.Node)
		c.observe(b, a)
		switch {
		case a == nil:
			c.event(b, corev1.EventTypeNormal, "RemovingNode", "Node %s event: Removing Node %s from Controller",
				b.Name, b.Name)
			c.Add(b.Name)
			return
		case b == nil:
			c.alive(a.Name)
			// L7.165
			c.event(a, corev1.EventTypeNormal, "RegisteredNode", "Node %s event: Registered Node %s in Controller",
				a.Name, a.Name)
		case heartbeat(b).Before(heartbeat(a)):
			c.alive(a.Name)
		}
		c.Add(a.Name)
	})
	if err != nil {
		return nil, fmt.Errorf("nodelifecycle: watch nodes: %w", err)
	}
	if err := reconciler.OnChange(leases, func(o metav1.Object) { c.renewed(o.GetName()) }); err != nil {
		return nil, fmt.Errorf("nodelifecycle: watch leases: %w", err)
	}
	metrics.OnRead(c.measure)
	return c, nil
}

// measure sets the metrics of zones.
func (c *Controller) measure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, family := range []*basemetrics.GaugeVec{metrics.ZoneHealth, metrics.ZoneSize, metrics.ZoneUnhealthy} {
		family.Reset()
	}
	for name, z := range c.pacer.Zones() {
		metrics.ZoneSize.WithLabelValues(name).Set(float64(z.Nodes))
		metrics.ZoneUnhealthy.WithLabelValues(name).Set(float64(z.Unhealthy))
		if z.Nodes > 0 {
			metrics.ZoneHealth.WithLabelValues(name).Set(float64(100*(z.Nodes-z.Unhealthy)) / float64(z.Nodes))
		}
		metrics.Evictions.WithLabelValues(name).Add(0)
	}
}

// heartbeat returns when the node last wrote its own Ready condition.
func heartbeat(n *corev1.Node) time.Time {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].LastHeartbeatTime.Time
		}
	}
	return time.Time{}
}

func (c *Controller) alive(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[node] = time.Now()
}

// renewed records a lease. It triggers a reconciliation only for a node without recent heartbeats. The lease of a node
// that does not exist is ignored: anybody may name a lease anything, and that of a deleted node may be deleted later.
func (c *Controller) renewed(node string) {
	c.mu.Lock()
	if _, exists, _ := c.nodes.GetByKey(node); exists {
		c.seen[node] = time.Now()
	}
	unknown := c.ready[node] == corev1.ConditionUnknown
	c.mu.Unlock()
	if unknown {
		c.Add(node)
	}
}

func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	obj, exists, _ := c.nodes.GetByKey(name)
	if !exists {
		c.mu.Lock()
		delete(c.seen, name)
		delete(c.ready, name)
		delete(c.unready, name)
		c.mu.Unlock()
		return 0, nil
	}
	node := obj.(*corev1.Node)
	began := time.Now()
	out, before := c.decide(node)
	defer func() { metrics.NodeSeconds.WithLabelValues().Observe(time.Since(began).Seconds()) }()
	if len(out.Conditions) > 0 {
		if err := c.writeConditions(ctx, node, out.Conditions); err != nil {
			return 0, err
		}
	}
	if out.Tainting {
		if err := c.writeTaints(ctx, node, out.Taints); err != nil {
			return 0, err
		}
		if out.Evicted {
			metrics.Evictions.WithLabelValues(nodehealth.ZoneOf(node)).Inc()
		}
	}
	changed := out.Ready != before
	notReady := out.Ready != corev1.ConditionTrue && out.Ready != ""
	if changed && notReady {
		c.event(node, corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", name)
	}
	c.mu.Lock()
	c.ready[name] = out.Ready
	if changed {
		c.unready[name] = notReady
	}
	mark := c.unready[name] // also after a failed attempt
	c.mu.Unlock()
	if mark {
		if err := c.markPods(ctx, name); err != nil {
			return 0, err
		}
		c.mu.Lock()
		c.unready[name] = false
		c.mu.Unlock()
	}
	if out.Wake.IsZero() {
		return 0, nil
	}
	return time.Until(out.Wake), nil
}

// decide decides about a node, and returns its last verdict.
func (c *Controller) decide(node *corev1.Node) (nodehealth.Output, corev1.ConditionStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := nodehealth.Input{Now: time.Now(), Node: node, LastSeen: c.seen[node.Name], AllDown: c.pacer.AllDown()}
	out := nodehealth.Decide(in)
	switch {
	case !out.Waiting:
		c.addAll(c.pacer.Forget(node.Name))
	case len(out.Conditions) > 0:
		// The pacer counts stored conditions, so it is called when the watch shows them.
	default:
		var next time.Time
		if in.Evict, next = c.pacer.Allow(in.Now, node.Name); in.Evict {
			out = nodehealth.Decide(in)
		} else if !next.IsZero() && (out.Wake.IsZero() || next.Before(out.Wake)) {
			out.Wake = next
		}
	}
	return out, c.ready[node.Name]
}

// observe passes a stored node to the pacer; after is nil when it was deleted.
func (c *Controller) observe(before, after *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out nodehealth.Outcome
	if after == nil {
		out = c.pacer.Remove(time.Now(), before.Name)
	} else {
		out = c.pacer.Observe(time.Now(), after)
	}
	c.addAll(out.Again)
	if !out.AllDownChanged {
		return
	}
	c.addAll(c.nodes.ListKeys())
	if !c.pacer.AllDown() {
		// While it was cut off, the control plane received no heartbeats of any node (L7.164).
		for name := range c.seen {
			c.seen[name] = time.Now()
		}
	}
}

func (c *Controller) addAll(nodes []string) {
	for _, name := range nodes {
		c.Add(name)
	}
}

func (c *Controller) writeConditions(ctx context.Context, node *corev1.Node, conditions []corev1.NodeCondition) error {
	return c.patch(ctx, node, types.StrategicMergePatchType,
		map[string]any{"status": map[string]any{"conditions": conditions}}, "status")
}

// writeTaints replaces the list of taints, unless the node has changed meanwhile.
func (c *Controller) writeTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	if taints == nil {
		taints = []corev1.Taint{}
	}
	return c.patch(ctx, node, types.MergePatchType, map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": taints},
	})
}

func (c *Controller) patch(ctx context.Context, node *corev1.Node, t types.PatchType, change any,
	subresources ...string) error {
	data, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode patch of node %q: %w", node.Name, err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, t, data, metav1.PatchOptions{}, subresources...)
	err = confirm.Overtaken(ctx, node, err, confirm.By(c.client.CoreV1().Nodes().Get, node.Name))
	if err == nil {
		return nil
	}
	return fmt.Errorf("patch node %q: %w", node.Name, err)
}

// markPods sets the pods of a node that is not ready to not ready (L7.161).
func (c *Controller) markPods(ctx context.Context, node string) error {
	objects, err := c.pods.ByIndex(source.ByNode, node)
	if err != nil {
		return fmt.Errorf("find pods of node %q: %w", node, err)
	}
	var errs []error
	for _, obj := range objects {
		pod := obj.(*corev1.Pod)
		if !isReady(pod) {
			continue
		}
		if err := c.markPod(ctx, pod); err != nil {
			// A webhook may refuse this pod for ever; the others are marked.
			errs = append(errs, fmt.Errorf("mark pod %s/%s not ready: %w", pod.Namespace, pod.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Controller) markPod(ctx context.Context, pod *corev1.Pod) error {
	client := c.client.CoreV1().Pods(pod.Namespace)
	full, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (full.UID != pod.UID || !isReady(full)) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range full.Status.Conditions {
		if cond := &full.Status.Conditions[i]; cond.Type == corev1.PodReady {
			cond.Status, cond.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		}
	}
	_, err = client.UpdateStatus(ctx, full, metav1.UpdateOptions{})
	if err == nil {
		c.events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		return nil
	}
	// A newer version that is ready is marked by the next attempt.
	return confirm.Ended(ctx, pod.UID, err, confirm.By(client.Get, pod.Name))
}

func isReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// event records an event about the node with its name in place of its UID, as kubectl describe
// expects (L10.2).
func (c *Controller) event(n *corev1.Node, eventType, reason, format string, args ...any) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}
	c.events.Eventf(ref, eventType, reason, format, args...)
}
