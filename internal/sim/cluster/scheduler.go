package cluster

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/workload"
	"carob/internal/sim/fakeapi"
)

// scheduler simulates internal/scheduler: it has its own watches, counts a pod on its node before
// the binding is written, and removes it when that fails.
type scheduler struct {
	c           *process
	nodes, pods *fakeapi.Watch
	snapshot    *placement.Cluster
	seenNodes   map[string]string         // resource versions of the objects in the snapshot
	seenPods    map[types.UID]string      // likewise, of pods
	waiting     map[types.UID]*corev1.Pod // without a node
	assumed     map[types.UID]bool        // bound by a write that the watch has not shown
	notBefore   map[types.UID]time.Time   // after an error
	victims     map[types.UID][]types.UID // of a pod that preempts: their deletions were not all shown yet
	volumes     *volumes                  // nil in worlds without claims
	devices     *deviceClaims             // nil in worlds without devices
	dirty       bool
	next        int
}

func (c *process) newScheduler() *scheduler {
	s := &scheduler{c: c, snapshot: placement.NewCluster(), seenNodes: map[string]string{},
		seenPods: map[types.UID]string{}, waiting: map[types.UID]*corev1.Pod{}, assumed: map[types.UID]bool{},
		notBefore: map[types.UID]time.Time{}, victims: map[types.UID][]types.UID{}, dirty: true}
	s.nodes, s.pods = fakeapi.NewWatch[*corev1.Node](c.w.API), fakeapi.NewWatch[*corev1.Pod](c.w.API)
	s.nodes.OnEvent = func() { s.dirty = true }
	s.pods.OnEvent = func() { s.dirty = true }
	s.snapshot.SetNamespace(namespace, nil)
	c.watches = append(c.watches, s.nodes, s.pods)
	if c.w.storage != nil {
		s.volumes = s.newVolumes()
	}
	if c.w.devices != nil {
		s.devices = s.newDeviceClaims()
	}
	return s
}

// Due implements part.
func (s *scheduler) Due() (now bool, at time.Time) {
	for uid := range s.waiting { // any order: the earliest
		at = workload.Earlier(at, s.notBefore[uid])
	}
	if s.volumes != nil {
		for _, w := range s.volumes.waits { // any order: the earliest
			at = workload.Earlier(at, w.until)
		}
	}
	if s.devices != nil && len(s.devices.waits) > 0 {
		return true, time.Time{}
	}
	if at.After(s.c.w.Now) {
		return s.dirty, at
	}
	return s.dirty, time.Time{}
}

// Turn implements part.
func (s *scheduler) Turn() bool {
	s.dirty = false
	s.takeNodes()
	s.takePods()
	if s.devices.observe(); !s.volumes.bindReady() || !s.devices.bindReady() {
		return false
	}
	for _, uid := range slices.Sorted(maps.Keys(s.waiting)) {
		if s.c.w.Now.Before(s.notBefore[uid]) || s.preempting(uid) || s.assumed[uid] {
			continue
		}
		if !s.schedule(s.waiting[uid]) {
			return false
		}
	}
	return true
}

func (s *scheduler) takeNodes() {
	there := map[string]bool{}
	for _, n := range fakeapi.Seen[*corev1.Node](s.nodes) {
		there[n.Name] = true
		if s.seenNodes[n.Name] != n.ResourceVersion {
			s.seenNodes[n.Name] = n.ResourceVersion
			s.snapshot.SetNode(n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.seenNodes)) {
		if !there[name] {
			delete(s.seenNodes, name)
			s.snapshot.RemoveNode(name)
		}
	}
}

func (s *scheduler) takePods() {
	there := map[types.UID]bool{}
	for _, p := range fakeapi.Seen[*corev1.Pod](s.pods) {
		there[p.UID] = true
		if s.seenPods[p.UID] != p.ResourceVersion {
			s.seenPods[p.UID] = p.ResourceVersion
			s.seen(p)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.seenPods)) {
		if !there[uid] {
			delete(s.seenPods, uid)
			s.gone(uid)
		}
	}
}

func (s *scheduler) gone(uid types.UID) {
	delete(s.waiting, uid)
	delete(s.assumed, uid)
	delete(s.notBefore, uid)
	delete(s.victims, uid)
	s.volumes.forget(uid)
	s.devices.forget(uid)
	s.snapshot.RemoveNomination(uid)
	s.snapshot.RemovePod(uid)
}

func (s *scheduler) seen(p *corev1.Pod) {
	switch {
	case workload.Terminal(p):
		s.gone(p.UID)
	case p.Spec.NodeName != "":
		delete(s.waiting, p.UID)
		delete(s.assumed, p.UID)
		s.snapshot.RemoveNomination(p.UID)
		s.snapshot.SetPod(s.prepared(p), p.Spec.NodeName)
		if s.c.w.options.Sabotage.Rebind && s.c.w.One(10) {
			s.waiting[p.UID] = p
		}
	case s.assumed[p.UID]: // its binding is stored, and its event will follow
	case p.DeletionTimestamp != nil:
		delete(s.waiting, p.UID)
		s.snapshot.RemoveNomination(p.UID)
	case s.c.w.options.Sabotage.Forget && strings.HasSuffix(string(p.UID), "7"):
	default:
		s.waiting[p.UID] = p
		if n := p.Status.NominatedNodeName; n != "" {
			s.snapshot.Nominate(s.prepared(p), n)
		}
	}
}

func (s *scheduler) prepared(p *corev1.Pod) *placement.Pod {
	if s.c.w.options.Sabotage.Overcommit {
		p = p.DeepCopy()
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	}
	if s.c.w.options.Sabotage.Rebind {
		p = p.DeepCopy()
		p.Spec.NodeName = ""
	}
	return placement.Prepare(p)
}

// schedule decides about one pod, and binds it. It returns false if the process has ended.
func (s *scheduler) schedule(p *corev1.Pod) bool {
	prepared := s.prepared(p)
	var d placement.Decision
	if needsDevices(p) {
		return s.devices.schedule(p, prepared)
	}
	if s.volumes.needs(prepared) {
		var again bool
		if d, again = s.volumes.decide(prepared); again {
			s.notBefore[p.UID] = s.c.w.Now.Add(time.Second)
			return true
		}
	} else {
		d = s.snapshot.Decide(prepared, s.next)
	}
	s.next = d.Next
	if d.Node == "" {
		return s.preempt(p, prepared, d)
	}
	s.snapshot.RemoveNomination(p.UID)
	s.snapshot.SetPod(prepared, d.Node)
	s.assumed[p.UID] = true
	if s.volumes.needs(prepared) {
		ready, err := s.volumes.reserve(prepared, d.Node)
		if err != nil {
			s.undo(p)
		}
		if !ready || err != nil {
			return !failed(err)
		}
	}
	return s.bind(p, d.Node)
}

// bind writes the binding of a pod that is counted on its node. It returns false if the process has ended.
func (s *scheduler) bind(p *corev1.Pod, node string) bool {
	w := s.c.w
	s.c.client.Done = func(_ fakeapi.Entry, answered bool) {
		if !answered {
			w.invariants.unanswered[node] = w.Now
		}
	}
	_, err := s.c.client.PatchIf(p.UID, func(o fakeapi.Object) bool {
		stored, ok := o.(*corev1.Pod)
		return ok && (stored.Spec.NodeName == "" || w.options.Sabotage.Rebind) && stored.DeletionTimestamp == nil
	}, func(o fakeapi.Object) {
		if stored, ok := o.(*corev1.Pod); ok {
			stored.Spec.NodeName = node
			stored.Status.Conditions = append(stored.Status.Conditions, corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.Now)})
		}
	})
	s.c.client.Done = func(fakeapi.Entry, bool) {}
	switch {
	case err == nil:
		delete(s.waiting, p.UID)
		return true
	case failed(err):
		return false
	}
	s.undo(p)
	if errors.Is(err, fakeapi.ErrMissing) {
		delete(s.waiting, p.UID)
	}
	return true
}

// undo releases what is reserved for a pod that could not be bound; it is tried again later.
func (s *scheduler) undo(p *corev1.Pod) {
	delete(s.assumed, p.UID)
	s.volumes.forget(p.UID)
	s.devices.forget(p.UID)
	s.snapshot.RemovePod(p.UID)
	s.notBefore[p.UID] = s.c.w.Now.Add(time.Second)
}
