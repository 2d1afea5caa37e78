// Package nodehealth decides whether a node is healthy, which taints match its state, and when its
// pods are evicted. The node lifecycle and taint eviction controllers drive it. It is a function of
// its arguments and has no clock.
//
//	Ready True ──no heartbeat for 50 s──▶ Ready Unknown ──heartbeat──▶ the node's own status
//
// Contract: docs/spec/pod-lifecycle.md.
package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Grace periods without a heartbeat (L7.160).
const (
	Grace      = 50 * time.Second
	FirstGrace = 60 * time.Second // of a node that has never reported
)

// Input is the observed state of a node.
type Input struct {
	Now      time.Time
	Node     *corev1.Node // read only
	LastSeen time.Time    // last heartbeat: a renewed lease or a status update
	AllDown  bool         // no node is ready: then the control plane is probably cut off, and no pod is evicted
	Evict    bool         // the node may get a NoExecute taint now (Pacer.Ask)
}

// Output is the decision.
type Output struct {
	Conditions []corev1.NodeCondition // changed conditions, to be written
	Taints     []corev1.Taint         // all taints that the node should have
	Tainting   bool                   // Taints differ from the node's
	Ready      corev1.ConditionStatus // after Conditions are applied; empty if the node has never reported
	Evicted    bool                   // Taints evict the node's pods, and the node's did not
	Waiting    bool                   // a NoExecute taint is missing because Evict is not set
	Wake       time.Time              // when a missing heartbeat would change the decision; zero if it cannot
}

// Decide decides about one node.
func Decide(in Input) Output {
	out := Output{}
	conditions := in.Node.Status.Conditions
	ready := find(conditions, corev1.NodeReady)
	grace := Grace
	if ready == nil {
		grace = FirstGrace
	}
	deadline := in.LastSeen.Add(grace)
	if in.Now.Before(deadline) {
		out.Wake = deadline
	} else {
		out.Conditions = silence(in.Node, in.Now)
		conditions = replace(conditions, out.Conditions)
		ready = find(conditions, corev1.NodeReady)
	}
	if ready != nil {
		out.Ready = ready.Status
	}
	down := out.Ready == corev1.ConditionFalse || out.Ready == corev1.ConditionUnknown
	// A node that already has an evicting taint only changes its key, without a second permission.
	evict := down && !in.AllDown && (in.Evict || slices.ContainsFunc(in.Node.Spec.Taints, evicting))
	out.Evicted = evict && !slices.ContainsFunc(in.Node.Spec.Taints, evicting)
	out.Waiting = down && !in.AllDown && !evict
	out.Taints = taints(in.Node, conditions, evict, in.Now)
	out.Tainting = !slices.EqualFunc(out.Taints, in.Node.Spec.Taints,
		func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value })
	return out
}

// watched are the conditions that become Unknown without heartbeats.
func watched() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
		corev1.NodePIDPressure}
}

// silence returns the conditions to write for a node without heartbeats (L7.160).
func silence(node *corev1.Node, now time.Time) []corev1.NodeCondition {
	var news []corev1.NodeCondition
	for _, t := range watched() {
		old := find(node.Status.Conditions, t)
		switch {
		case old == nil:
			news = append(news, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: metav1.NewTime(now),
			})
		case old.Status != corev1.ConditionUnknown:
			c := *old
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown",
				"Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(now)
			news = append(news, c)
		}
	}
	return news
}

// taintOf returns the taint for the state of a condition, if any (L7.162).
func taintOf(c *corev1.NodeCondition) string {
	switch {
	case c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	case c.Status != corev1.ConditionTrue:
		return ""
	}
	switch c.Type {
	case corev1.NodeMemoryPressure:
		return corev1.TaintNodeMemoryPressure
	case corev1.NodeDiskPressure:
		return corev1.TaintNodeDiskPressure
	case corev1.NodePIDPressure:
		return corev1.TaintNodePIDPressure
	case corev1.NodeNetworkUnavailable:
		return corev1.TaintNodeNetworkUnavailable
	default:
		return ""
	}
}

// ours reports whether this package manages a taint, which depends on the node's state only.
func ours(t *corev1.Taint) bool {
	switch t.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	case corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure,
		corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeUnschedulable:
		return t.Effect == corev1.TaintEffectNoSchedule
	default:
		return false
	}
}

// evicting reports whether a taint is one that Decide sets to evict the pods of a node.
func evicting(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute &&
		(t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
}

// taints keeps the taints that others manage and those that still apply, in their order, and
// appends new ones.
func taints(node *corev1.Node, conditions []corev1.NodeCondition, evict bool, now time.Time) []corev1.Taint {
	var want []corev1.Taint
	if node.Spec.Unschedulable {
		want = append(want, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
			TimeAdded: at(now)})
	}
	for i := range conditions {
		key := taintOf(&conditions[i])
		if key == "" {
			continue
		}
		want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule, TimeAdded: at(now)})
		if conditions[i].Type == corev1.NodeReady && evict {
			want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: at(now)})
		}
	}
	var result []corev1.Taint
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		matches := func(w corev1.Taint) bool { return w.MatchTaint(t) }
		// A node that has never reported keeps the taint it was created with.
		newborn := find(conditions, corev1.NodeReady) == nil && t.Key == corev1.TaintNodeNotReady
		if !ours(t) || newborn || slices.ContainsFunc(want, matches) {
			result = append(result, *t)
			want = slices.DeleteFunc(want, matches)
		}
	}
	return append(result, want...)
}

func at(now time.Time) *metav1.Time {
	t := metav1.NewTime(now)
	return &t
}

func find(conditions []corev1.NodeCondition, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

// replace returns the conditions with updates for those of the same type.
func replace(conditions, news []corev1.NodeCondition) []corev1.NodeCondition {
	merged := slices.Clone(conditions)
	for _, c := range news {
		if old := find(merged, c.Type); old != nil {
			*old = c
		} else {
			merged = append(merged, c)
		}
	}
	return merged
}
