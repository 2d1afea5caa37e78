package cluster

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/nodehealth"
	"carob/internal/core/workload"
	"carob/internal/sim/fakeapi"
)

// quarantine is how long a node must be missing before its pods are removed (L7.166).
const quarantine = 40 * time.Second

// lifecycle simulates the controllers nodelifecycle, tainteviction and podgc.
type lifecycle struct {
	c           *process
	nodes, pods *fakeapi.Watch
	pacer       *nodehealth.Pacer
	observed    map[string]*corev1.Node
	seen        map[string]time.Time              // last heartbeat
	ready       map[string]corev1.ConditionStatus // last verdict
	mark        map[string]bool                   // pods of the node are to be marked
	lost        map[string]time.Time              // since when a node with pods is missing
	dirty       bool
	due         time.Time
}

func (c *process) newLifecycle() *lifecycle {
	l := &lifecycle{c: c, pacer: nodehealth.NewPacer(nodehealth.DefaultRates()), observed: map[string]*corev1.Node{},
		seen: map[string]time.Time{}, ready: map[string]corev1.ConditionStatus{}, mark: map[string]bool{},
		lost: map[string]time.Time{}, dirty: true}
	changed := func() { l.dirty = true }
	l.nodes, l.pods = fakeapi.Shared[*corev1.Node](c.caches, changed), fakeapi.Shared[*corev1.Pod](c.caches, changed)
	return l
}

// Due implements part.
func (l *lifecycle) Due() (now bool, at time.Time) { return l.dirty, l.due }

// heartbeat is a renewed lease of a node.
func (l *lifecycle) heartbeat(node string) {
	l.seen[node] = l.c.w.Now
	if l.ready[node] == corev1.ConditionUnknown {
		l.dirty = true
		l.c.soon()
	}
}

// Turn implements part.
func (l *lifecycle) Turn() bool {
	w := l.c.w
	if !l.dirty && (l.due.IsZero() || w.Now.Before(l.due)) {
		return true
	}
	l.dirty, l.due = false, time.Time{}
	l.observe()
	for _, n := range fakeapi.Seen[*corev1.Node](l.nodes) {
		if err := l.updateNode(n); failed(err) {
			return false
		} else if err != nil && !fakeapi.Stale(err) {
			l.dirty = true
		}
	}
	for _, p := range fakeapi.Seen[*corev1.Pod](l.pods) {
		if err := l.pod(p); failed(err) {
			return false
		} else if err != nil && !fakeapi.Stale(err) {
			l.dirty = true
		}
	}
	return true
}

// observe passes the nodes of the watch to the pacer.
func (l *lifecycle) observe() {
	there := map[string]bool{}
	took := func(out nodehealth.Outcome) {
		if out.AllDownChanged && !l.pacer.AllDown() {
			for name := range l.seen { // any order: all become the same (L7.164)
				l.seen[name] = l.c.w.Now
			}
		}
		l.dirty = l.dirty || out.AllDownChanged || len(out.Again) > 0
	}
	for _, n := range fakeapi.Seen[*corev1.Node](l.nodes) {
		there[n.Name] = true
		if l.observed[n.Name] == n {
			continue
		}
		if _, known := l.seen[n.Name]; !known {
			l.seen[n.Name] = l.c.w.Now
		}
		l.observed[n.Name] = n
		took(l.pacer.Observe(l.c.w.Now, n))
	}
	for _, name := range sorted(l.observed) {
		if !there[name] {
			delete(l.observed, name)
			delete(l.seen, name)
			delete(l.ready, name)
			took(l.pacer.Remove(l.c.w.Now, name))
		}
	}
}

// updateNode writes the conditions and taints that nodehealth decides for a node.
func (l *lifecycle) updateNode(n *corev1.Node) error {
	in := nodehealth.Input{Now: l.c.w.Now, Node: n, LastSeen: l.seen[n.Name], AllDown: l.pacer.AllDown()}
	out := nodehealth.Decide(in)
	switch {
	case !out.Waiting:
		l.dirty = l.dirty || len(l.pacer.Forget(n.Name)) > 0
	case len(out.Conditions) > 0: // the pacer counts stored conditions
	default:
		var next time.Time
		if in.Evict, next = l.pacer.Allow(in.Now, n.Name); in.Evict {
			out = nodehealth.Decide(in)
		} else {
			out.Wake = workload.Earlier(out.Wake, next)
		}
	}
	l.due = workload.Earlier(l.due, out.Wake)
	if len(out.Conditions) > 0 {
		if _, err := l.c.client.Patch(n.UID, func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.Node); ok {
				for _, c := range out.Conditions {
					setNodeCondition(stored, c)
				}
			}
		}); err != nil {
			return err
		}
	}
	if out.Tainting {
		if _, err := l.c.client.Update(n, func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.Node); ok {
				stored.Spec.Taints = out.Taints
			}
		}); err != nil && !fakeapi.Stale(err) {
			return err
		}
	}
	if out.Ready != l.ready[n.Name] {
		l.mark[n.Name] = out.Ready != corev1.ConditionTrue && out.Ready != ""
	}
	l.ready[n.Name] = out.Ready
	if l.mark[n.Name] {
		if err := l.markPods(n.Name); err != nil {
			return err
		}
		l.mark[n.Name] = false
	}
	return nil
}

func setNodeCondition(n *corev1.Node, c corev1.NodeCondition) {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == c.Type {
			n.Status.Conditions[i] = c
			return
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, c)
}

// markPods sets the pods of a node to not ready (L7.161).
func (l *lifecycle) markPods(node string) error {
	for _, p := range fakeapi.Seen[*corev1.Pod](l.pods) {
		if p.Spec.NodeName != node || !workload.Ready(p) {
			continue
		}
		_, err := l.c.client.Patch(p.UID, func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.Pod); ok {
				setReady(&stored.Status, corev1.ConditionFalse, l.c.w.Now)
			}
		})
		if ignoreMissing(err) != nil {
			return err
		}
	}
	return nil
}

func setReady(s *corev1.PodStatus, status corev1.ConditionStatus, now time.Time) {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == corev1.PodReady && c.Status != status {
			c.Status, c.LastTransitionTime = status, metav1.NewTime(now)
		}
	}
}

// pod evicts a pod from a tainted node, and removes one whose node was deleted.
func (l *lifecycle) pod(p *corev1.Pod) error {
	if p.Spec.NodeName == "" {
		if p.DeletionTimestamp != nil { // a finalizer keeps it, and no node will report its end
			return l.end(p, "")
		}
		return nil
	}
	now, n := l.c.w.Now, l.observed[p.Spec.NodeName]
	if n == nil {
		return l.orphaned(p)
	}
	delete(l.lost, p.Spec.NodeName)
	if p.DeletionTimestamp != nil {
		return nil
	}
	at, evict := nodehealth.EvictAt(n.Spec.Taints, p, now)
	if !evict {
		return nil
	}
	if at.After(now) {
		l.due = workload.Earlier(l.due, at)
		return nil
	}
	if _, err := l.c.client.Patch(p.UID, func(o fakeapi.Object) {
		disrupt(o, "DeletionByTaintManager", now)
	}); err != nil {
		return err
	}
	grace := int64(podGrace)
	if l.c.w.options.Sabotage.Force {
		grace = 0
	}
	_, err := l.c.client.Delete(p.UID, grace)
	return err
}

// disrupt sets the condition DisruptionTarget.
func disrupt(o fakeapi.Object, reason string, now time.Time) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget,
		Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.NewTime(now)})
}

// orphaned removes a pod of a permanently deleted node.
func (l *lifecycle) orphaned(p *corev1.Pod) error {
	w, name := l.c.w, p.Spec.NodeName
	since, known := l.lost[name]
	if !known {
		since = w.Now
		l.lost[name] = since
	}
	if at := since.Add(quarantine); w.Now.Before(at) {
		l.due = workload.Earlier(l.due, at)
		return nil
	}
	for _, n := range fakeapi.All[*corev1.Node](w.API) { // the watch may not show a node that was added again
		if n.Name == name {
			return nil
		}
	}
	return l.end(p, "DeletionByPodGC")
}

// end removes a pod without grace. One that has not ended is marked first.
func (l *lifecycle) end(p *corev1.Pod, reason string) error {
	if !workload.Terminal(p) {
		if _, err := l.c.client.Patch(p.UID, func(o fakeapi.Object) {
			if stored, ok := o.(*corev1.Pod); ok && !workload.Terminal(stored) {
				stored.Status.Phase = corev1.PodFailed
			}
			if reason != "" {
				disrupt(o, reason, l.c.w.Now)
			}
		}); err != nil {
			return err
		}
	} else if g := p.DeletionGracePeriodSeconds; g != nil && *g == 0 {
		return nil // only a finalizer keeps it
	}
	_, err := l.c.client.Delete(p.UID, 0)
	return ignoreMissing(err)
}
