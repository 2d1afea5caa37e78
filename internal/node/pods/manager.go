package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// Manager keeps one owner for each pod that lives on the node.
//
// An entry stands for a pod from the first Update until it is gone from its source and has ended here; its owner exists
// while there is work to do:
//
//	Update ──▶ owned ──life is Finished──▶ at rest ──deletion, removal──▶ owned again
//	  │ ▲        └──gone and Finished──▶ forgotten
//
// A pod that must wait for the resources of others that end is held: its owner publishes what it waits for and starts
// nothing.
type Manager struct {
	cfg Config

	mu      sync.Mutex
	entries map[types.UID]*entry
	found   map[types.UID]*corev1.Pod // see Found
	adopted bool                      // Adopt was called
	pending []*owner                  // made, to be started by Run
	wake    chan struct{}             // pending is not empty
	closed  bool

	unreadable []types.NamespacedName // see Unreadable

	vacated atomic.Int64
	turns   int64 // of entries
}

// entry is one pod. Its fields are guarded by Manager.mu.
type entry struct {
	pod       *corev1.Pod
	source    string
	published *published
	found     bool // the runtime had it before: it is admitted before those that wait
	gone      bool // left its source
	rejected  *podlife.Rejection
	victims   []types.UID   // pods that must end to make room for it
	hold      *podlife.Hold // it waits for resources; nil: it has them
	turn      int64         // the order in which pods came to wait
	owner     *owner        // nil while at rest
	claim     *corev1.Pod   // a resize that was granted; see claimed
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

// Update passes a new or changed pod of a source.
func (m *Manager) Update(source string, pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update(source, pod)
}

// Sync passes all pods of a source; other pods of this source are gone. Pods new
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
		if e.source == source && !here[uid] && !e.gone && !m.cannotRead(e.pod) {
			m.remove(uid)
		}
	}
	late := func(pod *corev1.Pod) int {
		if m.found[pod.UID] == nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *corev1.Pod) int { return late(a) - late(b) }) // found ones were here before
	for _, pod := range all {
		m.update(source, pod)
	}
	if m.adopted {
		m.adopt() // pods that could not be read before, and are gone now
	}
}

// Unreadable announces the pods of the API server that exist, but cannot be read; Sync with the others follows. Those
// that run are not ended (L7.17). If the manager never had such a pod, its containers are not restarted either.
func (m *Manager) Unreadable(names []types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadable = names
}

// cannotRead reports whether a pod may be one of Unreadable; all pods may if their names are unknown.
func (m *Manager) cannotRead(pod *corev1.Pod) bool {
	return slices.ContainsFunc(m.unreadable, func(n types.NamespacedName) bool {
		return pod.Name == "" || n.Namespace == pod.Namespace && n.Name == pod.Name
	})
}

// Found brings the pods that the runtime has when the agent starts. Until a source brings such a pod, or Adopt ends
// it, it uses resources of the node like a pod that is gone from its source: others wait for it.
func (m *Manager) Found(pods []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found = make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		if m.entries[pod.UID] == nil {
			m.found[pod.UID] = pod
		}
	}
}

// Adopt announces that all sources have brought their pods: those of Found that none has brought are ended (L7.17).
func (m *Manager) Adopt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.adopted = true
	m.adopt()
}

// adopt is Adopt with m.mu held.
func (m *Manager) adopt() {
	for _, pod := range m.found {
		m.orphan(pod)
	}
}

// Remove announces that the pod left its source: force deleted, or deleted after the agent
// requested it.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(uid)
}

// Orphan passes a pod that only the runtime has; it is ended (L7.17). A pod that the manager has is not changed.
func (m *Manager) Orphan(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.orphan(pod)
}

func (m *Manager) orphan(pod *corev1.Pod) {
	if m.cannotRead(pod) {
		return
	}
	delete(m.found, pod.UID)
	if m.entries[pod.UID] != nil || m.closed {
		return
	}
	e := &entry{pod: pod, gone: true, published: &published{}}
	m.entries[pod.UID] = e
	m.startOwner(e)
}

// Changed announces that the state of the pod in the runtime or on disk has changed.
func (m *Manager) Changed(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil {
		e.owner.post(func(b *mailbox) { b.stale = true })
	}
}

// Arrived announces that an object that a container of the pod lacks may have come.
func (m *Manager) Arrived(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil {
		e.owner.post(func(b *mailbox) { b.arrivals++ })
	}
}

// Released announces that the data plane opens no new connections to the pod any more.
func (m *Manager) Released(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil && e.pod.DeletionTimestamp != nil {
		e.owner.post(func(*mailbox) {})
	}
}

// NodeChanged announces a change of the facts about the machine.
func (m *Manager) NodeChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.owner != nil {
			e.owner.post(func(*mailbox) {})
		}
	}
}

// ImagesChanged announces that images were added or removed: pods that wait for one check again
// at once.
func (m *Manager) ImagesChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.entries {
		if e.owner != nil {
			e.owner.imagesChanged()
		}
	}
}

// ErrUnknown is returned for pods that the manager does not have.
var ErrUnknown = errors.New("pod is not known on this node")

// Stop requests the end of a pod that was not deleted (L7.150, L7.156, L3.40).
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

// Next returns a channel that is closed at the next decision about the pod, at once if the pod has no owner.
func (m *Manager) Next(uid types.UID) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil && e.owner != nil {
		return e.published.next()
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// Known reports whether the manager has the pod, in any state.
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
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return views
}

func (e *entry) view() View {
	v := e.published.view()
	if v.Life == "" {
		v.Status = e.pod.Status
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
		e = &entry{pod: pod, source: source, published: &published{}, found: m.found[pod.UID] != nil}
		m.entries[pod.UID] = e
		delete(m.found, pod.UID)
		m.admit(e)
		if e.found {
			m.makeRoom() // what waited for it has to share with it
		}
		return
	}
	deleting := pod.DeletionTimestamp != nil && e.pod.DeletionTimestamp == nil
	e.pod = pod
	e.source, e.gone = source, false
	switch {
	case e.owner != nil:
		e.owner.post(func(b *mailbox) { b.pod, b.gone = pod, false })
		if e.hold != nil && !needsAdmission(pod) {
			m.release(e)
			m.makeRoom() // pods that wait after it may get its resources
		}
	case deleting: // a pod at rest that is deleted must be removed completely (L7.42)
		m.startOwner(e)
	}
}

func (m *Manager) remove(uid types.UID) {
	e := m.entries[uid]
	if e == nil || e.gone {
		return
	}
	e.gone = true
	if e.owner != nil {
		e.owner.post(func(b *mailbox) { b.gone = true })
		if e.hold != nil {
			m.release(e)
			m.makeRoom()
		}
		return
	}
	m.startOwner(e) // at rest: its containers, logs and directories are still to be removed
}

// admit decides about the admission of a new pod, with m.mu held, and gives it an owner. A pod that fits beside the
// other pods, but not beside those that are gone from their source and still end here, waits until these have ended:
// the scheduler does not count them any more. If others must end for it, their end is requested once (L3.40).
func (m *Manager) admit(e *entry) {
	var hold *podlife.Hold
	if needsAdmission(e.pod) {
		hold, e.rejected = m.place(e)
	}
	switch {
	case hold == nil:
		e.victims = nil
	case e.hold == nil:
		m.turns++
		e.turn = m.turns
	case *e.hold == *hold:
		return
	}
	e.hold = hold
	if e.owner == nil {
		m.startOwner(e)
		return
	}
	rejected := e.rejected
	e.owner.post(func(b *mailbox) { b.hold, b.rejected = hold, rejected })
}

// release ends the hold of a pod that need not wait any more because it ends.
func (m *Manager) release(e *entry) {
	e.hold, e.victims = nil, nil
	e.owner.post(func(b *mailbox) { b.hold = nil })
}

// place reserves resources for a pod: it returns what the pod must wait for, or why it is refused; neither if the pod
// has its resources.
func (m *Manager) place(e *entry) (*podlife.Hold, *podlife.Rejection) {
	staying, leaving := m.holders(e)
	if waits := among(staying, e.victims); len(waits) > 0 {
		return holdFor("preemption", waits, e.hold.Why), nil // not all have ended; a new decision could choose others
	}
	pod := podlife.RecoverAllocated(e.pod) // a pod that runs already is admitted with what it has
	v := m.cfg.Admit(pod, staying)
	switch {
	case v.Rejection != nil && len(v.Victims) > 0:
		e.victims = nil
		for _, victim := range v.Victims {
			e.victims = append(e.victims, victim.UID)
			m.preempt(victim)
		}
		return holdFor("preemption", v.Victims, v.Rejection.Message), nil
	case v.Rejection != nil:
		return nil, v.Rejection
	}
	if len(leaving) > 0 {
		if v = m.cfg.Admit(pod, append(staying, leaving...)); v.Rejection != nil {
			return holdFor("room", leaving, v.Rejection.Message), nil
		}
	}
	if m.cfg.Pin == nil {
		return nil, nil
	}
	r := m.cfg.Pin(pod)
	if r != nil && len(leaving) > 0 {
		return holdFor("room", leaving, r.Message), nil
	}
	return nil, r
}

func holdFor(what string, others []*corev1.Pod, why string) *podlife.Hold {
	names := make([]string, 0, len(others))
	for _, p := range others {
		names = append(names, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.UID))
	}
	slices.Sort(names)
	return &podlife.Hold{For: what, Object: strings.Join(names, ", "), Why: why}
}

// among are the pods that have one of the UIDs.
func among(pods []*corev1.Pod, uids []types.UID) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !slices.Contains(uids, p.UID) })
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

// active are the pods that use resources of the node, except one (L3.10).
func (m *Manager) active(but types.UID) []*corev1.Pod {
	var pods []*corev1.Pod
	for uid, e := range m.entries {
		if uid != but && e.holds() {
			pods = append(pods, e.runs())
		}
	}
	return slices.AppendSeq(pods, maps.Values(m.found))
}

// holders are the pods that use resources of the node when another pod requests some: those that stay, including those
// that wait before it, and those that are gone from their source but have not ended here.
func (m *Manager) holders(of *entry) (staying, leaving []*corev1.Pod) {
	for _, e := range m.entries {
		switch {
		case e == of || !e.holds() || e.hold != nil && (of.found || of.hold != nil && e.turn > of.turn):
		case e.gone:
			leaving = append(leaving, e.runs())
		default:
			staying = append(staying, e.runs())
		}
	}
	return staying, slices.AppendSeq(leaving, maps.Values(m.found))
}

// holds reports whether the pod holds resources of the node. A pod that waits for others to end
// does already: no other pod may take them.
func (e *entry) holds() bool {
	return e.rejected == nil && e.owner != nil && !podstatus.Terminal(e.view().Status.Phase)
}

// runs is the pod with the resources that it may use.
func (e *entry) runs() *corev1.Pod {
	var runs *corev1.Pod
	if e.owner != nil {
		runs = e.published.view().runs
	}
	if c := e.claimed(runs); c != nil {
		return c
	}
	if runs != nil {
		return runs
	}
	return podlife.RecoverAllocated(e.pod)
}

// startOwner gives the entry an owner, with m.mu held.
func (m *Manager) startOwner(e *entry) {
	if m.closed {
		return
	}
	e.owner = newOwner(&m.cfg, m, e)
	m.pending = append(m.pending, e.owner)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// ended removes the owner of a Finished pod. Messages that arrived too late for it start a new one.
func (m *Manager) ended(o *owner) {
	if m.rest(o) {
		m.cfg.Observer.Forget(o.pod.UID)
		m.cfg.Status.Forget(o.pod.UID)
		m.cfg.Executor.Forget(o.pod)
		o.log.gone(o.pod, time.Now())
	}
}

// rest removes the owner of a pod from its entry; it returns true if the entry was removed, too.
func (m *Manager) rest(o *owner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[o.pod.UID]
	if e == nil || e.owner != o {
		return false
	}
	e.owner = nil
	switch {
	case e.gone && o.gone:
		delete(m.entries, o.pod.UID)
		m.makeRoom()
		return true
	case e.gone, e.pod.DeletionTimestamp != nil && o.pod.DeletionTimestamp == nil:
		m.startOwner(e)
	}
	return false
}

// needsAdmission reports whether admission applies to the pod (L3.10).
func needsAdmission(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !podstatus.Terminal(pod.Status.Phase)
}
