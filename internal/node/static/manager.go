package static

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/confirm"
	"carob/internal/core/resources"
	"carob/internal/node/pods"
)

// ManagerConfig is what a Manager works with. All fields but Client are required.
type ManagerConfig struct {
	Client corev1client.PodsGetter // nil: there is no API server, and static pods have no mirrors (S14.1)
	Node   func() *corev1.Node     // as registered; nil before
	Status pods.StatusWriter       // of the pods that the API server has
}

// Runner runs static pods.
type Runner interface {
	// Start makes the node agent run a static pod, or a newer version of it.
	Start(pod *corev1.Pod)
	// Stop ends a static pod whose manifest is gone.
	Stop(uid types.UID)
}

// Manager runs the static pods of the manifests and keeps a mirror of each in the API server. For the owners of pods it
// is the StatusWriter: the status of a static pod goes to its mirror, all others pass through.
//
//	wanted ──none of its name runs──▶ running ──not wanted──▶ ending ──Forget──▶ (gone, its mirror too)
//
// Its methods may be called from any goroutine; only Run acts.
type Manager struct {
	cfg     ManagerConfig
	wake    chan struct{} // capacity 1
	settled chan struct{} // closed when the pods of the first manifests were started

	mu      sync.Mutex
	read    bool // the manifests were read once
	listed  bool // the mirror pods in the API server are known
	statics map[types.UID]*static
	mirrors map[types.NamespacedName]*corev1.Pod // newest version seen
}

// static is one static pod; guarded by Manager.mu.
type static struct {
	pod      *corev1.Pod
	wanted   bool
	started  bool
	stopping bool
	status   *corev1.PodStatus // newest status; nil: none yet
	retry    retry             // of the work on its mirror
}

// retry is the back-off between tries.
type retry struct {
	tries int
	at    time.Time
}

const (
	retryFirst = 500 * time.Millisecond
	retryMax   = 10 * time.Second
	// patience is how long static pods wait for the API server: with the status of their mirrors, a restart of the
	// agent has no effect on them, but they must also run without an API server.
	patience = 10 * time.Second
)

var _ pods.StatusWriter = (*Manager)(nil)

// NewManager returns a Manager; nothing happens before Run.
func NewManager(cfg ManagerConfig) *Manager {
	return &Manager{
		cfg: cfg, wake: make(chan struct{}, 1), settled: make(chan struct{}),
		statics: map[types.UID]*static{}, mirrors: map[types.NamespacedName]*corev1.Pod{},
		listed: cfg.Client == nil,
	}
}

// Settled is closed when the pods of the first manifests were passed to the Runner.
func (k *Manager) Settled() <-chan struct{} { return k.settled }

// IsMirror reports whether a pod is the API server's copy of a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func (k *Manager) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Wanted passes the static pods that should run.
func (k *Manager) Wanted(all []*corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	here := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		here[pod.UID] = true
		s := k.statics[pod.UID]
		if s == nil {
			s = &static{pod: pod}
			k.statics[pod.UID] = s
		}
		s.wanted = true
	}
	for uid, s := range k.statics {
		if s.wanted = here[uid]; !s.wanted && !s.started {
			delete(k.statics, uid)
		}
	}
	k.read = true
	k.nudge()
}

// MirrorCount is how many mirrors the API server has.
func (k *Manager) MirrorCount() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.mirrors)
}

// Mirrors passes the mirror pods that the API server has.
func (k *Manager) Mirrors(all []*corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.mirrors
	k.mirrors = make(map[types.NamespacedName]*corev1.Pod, len(all))
	for _, mirror := range all {
		k.see(mirror)
	}
	for name, mirror := range was {
		if now := k.mirrors[name]; now == nil || now.UID != mirror.UID {
			k.cfg.Status.Forget(mirror.UID)
		}
	}
	k.listed = true
	k.nudge()
}

// SeenMirror passes a newer version of a mirror.
func (k *Manager) SeenMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.see(mirror)
	k.nudge()
}

// GoneMirror announces that a mirror pod left the API server.
func (k *Manager) GoneMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.mirrors[nameOf(mirror)]; now != nil && now.UID == mirror.UID {
		delete(k.mirrors, nameOf(mirror))
	}
	k.cfg.Status.Forget(mirror.UID)
	k.nudge()
}

// see records a mirror and has the status of its pod written to it, with k.mu held.
func (k *Manager) see(mirror *corev1.Pod) {
	old := k.mirrors[nameOf(mirror)]
	k.mirrors[nameOf(mirror)] = mirror
	k.cfg.Status.Seen(mirror)
	if old == nil || old.UID != mirror.UID {
		if s := k.statics[types.UID(mirror.Annotations[corev1.MirrorPodAnnotationKey])]; s != nil && s.status != nil {
			k.cfg.Status.Set(mirror, s.status)
		}
	}
}

// Set implements pods.StatusWriter.
func (k *Manager) Set(pod *corev1.Pod, status *corev1.PodStatus) {
	if !resources.IsStatic(pod) {
		k.cfg.Status.Set(pod, status)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.statics[pod.UID]
	if s == nil {
		return // of an earlier agent, and not wanted any more
	}
	s.status = status
	if mirror := k.mirrors[nameOf(pod)]; mirror != nil && mirrors(mirror, pod) {
		k.cfg.Status.Set(mirror, status)
	}
}

// Seen implements pods.StatusWriter.
func (k *Manager) Seen(pod *corev1.Pod) {
	if !resources.IsStatic(pod) {
		k.cfg.Status.Seen(pod)
	}
}

// Forget implements pods.StatusWriter: nothing of the pod is left on the node.
func (k *Manager) Forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.statics[uid]
	switch {
	case s == nil:
		k.cfg.Status.Forget(uid)
		return
	case s.wanted: // its manifest came back while it ended
		k.statics[uid] = &static{pod: s.pod, wanted: true}
	default:
		delete(k.statics, uid)
	}
	k.nudge()
}

// mirrors reports whether a mirror is a copy of exactly this pod.
func mirrors(mirror, pod *corev1.Pod) bool {
	return mirror.Annotations[corev1.MirrorPodAnnotationKey] == pod.Annotations[annotationHash]
}

// Run starts and stops static pods and makes and removes mirrors until ctx ends.
func (k *Manager) Run(ctx context.Context, runner Runner) {
	begin := time.Now()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	settled := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		now := time.Now()
		k.mu.Lock()
		ready := k.read && (k.listed || now.Sub(begin) >= patience)
		k.mu.Unlock()
		if !ready {
			timer.Reset(max(patience-now.Sub(begin), retryFirst))
			continue
		}
		k.run(runner)
		if !settled {
			settled = true
			close(k.settled)
		}
		if next := k.mirror(ctx, now); !next.IsZero() {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
	}
}

// run starts and stops static pods. Of two with one name the second waits until
// nothing of the first is left (L7.112).
func (k *Manager) run(runner Runner) {
	var start []*corev1.Pod
	var stop []types.UID
	k.mu.Lock()
	taken := map[types.NamespacedName]bool{}
	for _, s := range k.statics {
		if s.started {
			taken[nameOf(s.pod)] = true
		}
	}
	for _, s := range k.byName() {
		switch {
		case s.wanted && !s.started && !taken[nameOf(s.pod)]:
			s.started, taken[nameOf(s.pod)] = true, true
			start = append(start, k.known(s))
		case !s.wanted && s.started && !s.stopping:
			s.stopping = true
			stop = append(stop, s.pod.UID)
		}
	}
	k.mu.Unlock()
	for _, uid := range stop {
		runner.Stop(uid)
	}
	for _, pod := range start {
		runner.Start(pod)
	}
}

// byName is the static pods in the order of their names, with k.mu held.
func (k *Manager) byName() []*static {
	return slices.SortedFunc(maps.Values(k.statics), func(a, b *static) int {
		return cmp.Or(byName(nameOf(a.pod), nameOf(b.pod)), cmp.Compare(a.pod.UID, b.pod.UID))
	})
}

func byName(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// known is the pod with the status of its mirror, which an earlier agent published. A pod that ended starts again
// unless its restart policy forbids it: the node may have been shut down.
func (k *Manager) known(s *static) *corev1.Pod {
	mirror := k.mirrors[nameOf(s.pod)]
	if mirror == nil || !mirrors(mirror, s.pod) || mirror.Status.Phase == corev1.PodFailed ||
		mirror.Status.Phase == corev1.PodSucceeded {
		return s.pod
	}
	pod := *s.pod
	pod.Status = *mirror.Status.DeepCopy()
	return &pod
}

// task is one call about a mirror.
type task struct {
	of     *static // nil: the mirror of a pod that is not wanted
	create *corev1.Pod
	remove *corev1.Pod
}

// mirror creates missing mirrors and removes wrong ones (L7.113, L7.114). It returns when to try
// again; zero: after a change.
func (k *Manager) mirror(ctx context.Context, now time.Time) (next time.Time) {
	for _, t := range k.tasks(now, &next) {
		err := k.do(ctx, t)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return time.Time{}
		default:
			klog.FromContext(ctx).Info("The mirror of a static pod cannot be updated; it is tried again",
				"err", err)
		}
		k.mu.Lock()
		at := now.Add(retryMax)
		if t.of != nil {
			if t.of.retry.tries++; err == nil {
				t.of.retry = retry{tries: 1}
			}
			// A successful call is repeated, too, in case the watch never delivers its effect.
			t.of.retry.at = now.Add(min(retryFirst<<min(t.of.retry.tries, 8), retryMax))
			at = t.of.retry.at
		}
		k.mu.Unlock()
		next = earlier(next, at)
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// tasks are the calls that are due now; next is moved to the earliest later one.
func (k *Manager) tasks(now time.Time, next *time.Time) []task {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.listed || k.cfg.Client == nil {
		return nil
	}
	var due []task
	owned := map[types.NamespacedName]bool{}
	for _, s := range k.byName() {
		if !s.started {
			continue
		}
		owned[nameOf(s.pod)] = true
		mirror := k.mirrors[nameOf(s.pod)]
		fits := mirror != nil && mirror.DeletionTimestamp == nil && mirrors(mirror, s.pod)
		switch {
		case !s.wanted || s.stopping:
			continue
		case fits:
			s.retry = retry{}
			continue
		case now.Before(s.retry.at):
			*next = earlier(*next, s.retry.at)
			continue
		}
		if mirror != nil {
			due = append(due, task{of: s, remove: mirror})
			continue
		}
		if node := k.cfg.Node(); node != nil && node.DeletionTimestamp == nil {
			due = append(due, task{of: s, create: mirrorOf(s.pod, node)})
		} else {
			*next = earlier(*next, now.Add(retryMax))
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(k.mirrors), byName) {
		if !owned[name] {
			due = append(due, task{remove: k.mirrors[name]})
		}
	}
	return due
}

// mirrorOf is the copy for the API server.
func mirrorOf(pod *corev1.Pod, node *corev1.Node) *corev1.Pod {
	m := pod.DeepCopy()
	m.UID, m.Generation = "", 0
	m.Annotations[corev1.MirrorPodAnnotationKey] = pod.Annotations[annotationHash]
	yes := true
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		Controller: &yes}}
	return m
}

func (k *Manager) do(ctx context.Context, t task) error {
	if t.create != nil {
		_, err := k.cfg.Client.Pods(t.create.Namespace).Create(ctx, t.create, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the mirror of static pod %s: the name belongs to another pod", nameOf(t.create))
		}
		if err != nil {
			return fmt.Errorf("create the mirror of static pod %s: %w", nameOf(t.create), err)
		}
		return nil
	}
	now, pods := int64(0), k.cfg.Client.Pods(t.remove.Namespace)
	err := pods.Delete(ctx, t.remove.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(t.remove.UID)),
	})
	if err = confirm.Removed(ctx, t.remove.UID, err, confirm.By(pods.Get, t.remove.Name)); err != nil {
		return fmt.Errorf("delete the mirror %s: %w", nameOf(t.remove), err)
	}
	return nil
}
