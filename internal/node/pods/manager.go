package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
)

// Manager keeps one owner for each pod that lives on the node.
//
// An entry stands for a pod from the first Update until it is gone from its
// source and ended here; its owner exists while there is work to do:
//
//	Update ──▶ owned ──life is Finished──▶ at rest ──deletion, removal──▶ owned again
//	  │ ▲        └──gone and Finished──▶ forgotten
//	  ▼ │
//	waiting, for pods that end to make room for it
type Manager struct {
	cfg Config

	mu      sync.Mutex
	entries map[types.UID]*entry
	pending []*owner      // made, to be started by Run
	wake    chan struct{} // pending is not empty
	closed  bool

	vacated atomic.Int64
}

// entry is one pod. Its fields are guarded by Manager.mu.
type entry struct {
	pod      *corev1.Pod
	source   string
	gone     bool // left its source
	rejected *podlife.Rejection
	victims  []types.UID // pods that end to make room for it; empty: it waits for none
	owner    *owner      // nil while at rest, and while it waits
	claim    *corev1.Pod // a resize that was granted; see claimed
	last     View        // of the last owner
}

// View is what is known of a pod at this moment.
type View struct {
	Pod    *corev1.Pod      // newest version seen; read only
	Status corev1.PodStatus // as computed here, possibly not written yet; read only
	Life   podlife.Life     // empty before the first Step
	Waits  []podlife.Wait

	runs *corev1.Pod // with the resources that it may use; nil before the first Step
}

// New returns a manager. Nothing happens before Run.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, entries: map[types.UID]*entry{}, wake: make(chan struct{}, 1)}
}

// Run drives the pods until ctx ends and every owner has stopped. Pods that came
// earlier are taken then.
func (m *Manager) Run(ctx context.Context) {
	var owners sync.WaitGroup
	defer owners.Wait()
	for {
		for _, o := range m.take() {
			ctx := klog.NewContext(ctx, klog.FromContext(ctx).WithValues("pod", klog.KObj(o.pod), "uid", o.pod.UID))
			owners.Go(func() {
				if o.run(ctx) {
					m.ended(o)
				}
			})
		}
		select {
		case <-ctx.Done():
			m.mu.Lock()
			m.closed = true
			m.mu.Unlock()
			return
		case <-m.wake:
		}
	}
}

func (m *Manager) take() []*owner {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.pending
	m.pending = nil
	return taken
}

// Update brings a pod of a source, new or changed.
func (m *Manager) Update(source string, pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update(source, pod)
}

// Sync brings all pods of a source; others that came from it are gone. Pods new
// to the manager are taken in the order of their creation (L3.4).
func (m *Manager) Sync(source string, all []*corev1.Pod) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	here := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		here[pod.UID] = true
	}
	for uid, e := range m.entries {
		if e.source == source && !here[uid] && !e.gone {
			m.remove(uid)
		}
	}
	for _, pod := range all {
		m.update(source, pod)
	}
}

// Remove says that the pod left its source: force deleted, or deleted after the
// agent itself asked for it.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(uid)
}

// Orphan brings a pod that only the runtime knows; it is ended (L7.17). A pod
// that the manager knows is left alone.
func (m *Manager) Orphan(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[pod.UID] != nil || m.closed {
		return
	}
	e := &entry{pod: pod, gone: true}
	m.entries[pod.UID] = e
	m.own(e)
}

// Changed says that the runtime or the disk holds something new about the pod.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil {
		e.owner.post(func(b *mailbox) { b.stale = true })
	}
}

// NodeChanged says that the facts of the machine changed.
func (m *Manager) NodeChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.owner != nil {
			e.owner.post(func(*mailbox) {})
		}
	}
}

// ErrUnknown is answered about pods that are not here.
var ErrUnknown = errors.New("pod is not known on this node")

// Stop asks for the end of a pod that nobody deleted (L7.150, L7.156, L3.40).
func (m *Manager) Stop(uid types.UID, stop podlife.Stop) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[uid]
	if e == nil || e.owner == nil {
		return ErrUnknown
	}
	e.owner.post(func(b *mailbox) { b.stop = &stop })
	return nil
}

// Next returns a channel that is closed when something about the pod is decided
// next, at once when the pod has no owner.
func (m *Manager) Next(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil {
		return e.owner.next()
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// Known tells whether the manager has the pod, in whatever state.
func (m *Manager) Known(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[uid] != nil
}

// Get returns the pod of this name that is not gone.
func (m *Manager) Get(namespace, name string) (View, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.pod.Name == name && e.pod.Namespace == namespace && !e.gone {
			return e.view(), true
		}
	}
	return View{}, false
}

// ByUID returns a pod, gone or not.
func (m *Manager) ByUID(uid types.UID) (View, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil {
		return e.view(), true
	}
	return View{}, false
}

// List returns all pods, also those that are gone but not ended, ordered by namespace and name.
func (m *Manager) List() []View {
	m.mu.Lock()
	defer m.mu.Unlock()
	views := make([]View, 0, len(m.entries))
	for _, e := range m.entries {
		views = append(views, e.view())
	}
	slices.SortFunc(views, func(a, b View) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return views
}

func (e *entry) view() View {
	v := e.last
	if e.owner != nil {
		v = e.owner.view()
	}
	if v.Life == "" {
		v.Status = e.pod.Status
	}
	if len(e.victims) > 0 {
		v.Waits = []podlife.Wait{{For: "preemption", Object: fmt.Sprintf("%d pods", len(e.victims))}}
	}
	v.Pod = e.pod
	return v
}

// update is Update with m.mu held.
func (m *Manager) update(source string, pod *corev1.Pod) {
	if m.closed {
		return
	}
	m.cfg.Status.Seen(pod)
	e := m.entries[pod.UID]
	if e == nil {
		e = &entry{pod: pod, source: source}
		m.entries[pod.UID] = e
		m.admit(e)
		return
	}
	deleting := pod.DeletionTimestamp != nil && e.pod.DeletionTimestamp == nil
	e.pod = pod
	e.source, e.gone = source, false
	switch {
	case e.owner != nil:
		e.owner.post(func(b *mailbox) { b.pod, b.gone = pod, false })
	case len(e.victims) > 0:
		m.admit(e)
	case deleting: // a pod at rest that somebody deletes must be deleted to the end (L7.42)
		m.own(e)
	}
}

func (m *Manager) remove(uid types.UID) {
	e := m.entries[uid]
	if e == nil || e.gone {
		return
	}
	e.gone = true
	e.victims = nil
	if e.owner != nil {
		e.owner.post(func(b *mailbox) { b.gone = true })
		return
	}
	m.own(e) // at rest: its containers, logs and directories are left to remove
}

// admit asks the node about a pod that has no owner yet, with m.mu held. Where
// others must end first they are told to, once, and the pod waits for them.
func (m *Manager) admit(e *entry) {
	if mayRun(e.pod) {
		others := m.active(e.pod.UID)
		if slices.ContainsFunc(others, func(p *corev1.Pod) bool { return slices.Contains(e.victims, p.UID) }) {
			return // not all have ended; others would be picked now
		}
		v := m.cfg.Admit(e.pod, others)
		if v.Rejection != nil && len(v.Victims) > 0 {
			e.victims = nil
			for _, victim := range v.Victims {
				e.victims = append(e.victims, victim.UID)
				m.preempt(victim)
			}
			return
		}
		e.rejected = v.Rejection
	}
	e.victims = nil
	m.own(e)
}

// preempt ends a pod for a critical one (L3.40), with m.mu held.
func (m *Manager) preempt(victim *corev1.Pod) {
	e := m.entries[victim.UID]
	if e == nil || e.owner == nil {
		return
	}
	const message = "Preempted in order to admit critical pod"
	stop := podlife.Stop{Reason: "Preempting", Message: message, Condition: &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
		Message: "Pod was preempted by Kubelet to accommodate a critical pod.",
	}}
	e.owner.post(func(b *mailbox) { b.stop = &stop })
	m.cfg.Event(e.pod, podlife.Event{Type: corev1.EventTypeWarning, Reason: "Preempting", Message: message}) // L10.14
}

// active are the pods that hold resources of the node, but for one (L3.10). What
// waits for others to end holds them already: nobody else may take its place.
func (m *Manager) active(but types.UID) []*corev1.Pod {
	var pods []*corev1.Pod
	for uid, e := range m.entries {
		switch {
		case uid == but || e.rejected != nil || e.gone && e.owner == nil:
		case len(e.victims) > 0, e.owner != nil && !terminal(e.view().Status.Phase):
			pods = append(pods, e.runs())
		}
	}
	return pods
}

// runs is the pod with the resources that it may use.
func (e *entry) runs() *corev1.Pod {
	var runs *corev1.Pod
	if e.owner != nil {
		runs = e.owner.view().runs
	}
	if c := e.claimed(runs); c != nil {
		return c
	}
	if runs != nil {
		return runs
	}
	return e.pod
}

// own gives the entry an owner, with m.mu held.
func (m *Manager) own(e *entry) {
	if m.closed {
		return
	}
	e.owner = newOwner(&m.cfg, m, e.pod, e.gone, e.rejected)
	m.pending = append(m.pending, e.owner)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// ended takes the owner of a Finished pod out. What came too late for it starts a
// new one.
func (m *Manager) ended(o *owner) {
	if m.rest(o) {
		m.cfg.Observer.Forget(o.pod.UID)
		m.cfg.Status.Forget(o.pod.UID)
		m.cfg.Executor.Forget(o.pod)
		o.log.gone(o.pod, time.Now())
	}
}

// rest takes the owner of a pod out of its entry; true: the pod is forgotten.
func (m *Manager) rest(o *owner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[o.pod.UID]
	if e == nil || e.owner != o {
		return false
	}
	e.last = o.view()
	e.owner = nil
	switch {
	case e.gone && o.gone:
		delete(m.entries, o.pod.UID)
		m.makeRoom()
		return true
	case e.gone, e.pod.DeletionTimestamp != nil && o.pod.DeletionTimestamp == nil:
		m.own(e)
	}
	return false
}

// mayRun says whether admission concerns the pod (L3.10).
func mayRun(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !terminal(pod.Status.Phase)
}

func terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}
