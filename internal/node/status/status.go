// Package status writes pod statuses to the API server, in the background: for each pod only the newest status is
// written, bursts merge into one write, and a status that the API server has already is not written. Conditions and
// fields of other writers stay as they are. The owner of a pod calls Set; the package must never modify its arguments
// and never decide what a status should be.
//
// Contract: docs/spec/pod-lifecycle.md.
package status

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/slowkeys"
	"carob/internal/core/podstatus"
)

// Writer is the only writer of pod statuses on this node.
//
//	clean ──Set──▶ settling ──20 ms–1 s, or something that matters──▶ queued ──a worker takes it──▶ busy
//	  ▲                                                                 ▲  ▲──────Set meanwhile──────┤
//	  │                                                                 └────────back-off─────failed─┤
//	  └──────────────────────────────written, or stored already──────────────────────────────────────┘
//	any ──NotFound, other UID──▶ gone
//
// A change of phase or readiness matters and is written at once. Other changes settle first: most steps of a start are
// over before a client could read them. When many pods start or end at once, their steps take longer, and so does
// settling, up to a second: each write would delay those that matter. A pod with many containers counts as several:
// each write encodes and stores all of it.
//
// A pod that is not ready because a container ended that starts again settles for 1 s, and no longer: most often the
// next instance runs long before, and 20 ms later the status is written. Upstream's kubelet does not show the moment in
// between, because it starts that instance before it looks again; its conformance test of a pod's life reads the status
// then and requires that the pod is ready.
//
// Writes that take longer than a second, because a webhook reviews statuses in a namespace and does not answer, do not
// count as workers; at most four of a namespace run then.
type Writer struct {
	client corev1client.PodsGetter

	mu      sync.Mutex
	pods    map[types.UID]*podStatus
	queue   []*podStatus
	running *slowkeys.Limit[*podStatus] // the writes
	// settling is how many pods' statuses settle.
	settling int
	wake     chan struct{} // capacity 1
}

// podStatus is one pod; its fields are guarded by Writer.mu.
type podStatus struct {
	base    *corev1.Pod       // newest version the API server is known to have held
	want    *corev1.PodStatus // newest status; nil: none yet
	dirty   bool              // want or base changed since the last comparison
	queued  bool              // in queue, or waiting for its back-off
	settle  *time.Timer       // runs while the status settles
	endBy   time.Time         // a container ended: the status settles until then, whatever changes; zero: none did
	busy    bool              // being written
	gone    bool
	tries   int
	refusal string          // the last error with which the API server refused the status, until it is stored
	waiters []chan struct{} // closed when the pod is clean or gone
}

const (
	workers    = 8
	settleTime = 20 * time.Millisecond
	settleMax  = time.Second // while seven or more do
	// containersPerPod is how many containers settle as long as a pod more.
	containersPerPod = 16

	endedTime  = time.Second // the kubelet's longest delay: its next look at the runtime
	retryFirst = 100 * time.Millisecond
	// logAfter is after how many tries, 3 s, a refused status is in the log: the authorizer refuses also that of a pod
	// that is gone, which is forgotten sooner.
	logAfter = 6
	retryMax = 10 * time.Second // L0.40
)

// ErrGone means that the API server has no such pod any more.
var ErrGone = errors.New("pod is gone from the API server")

// New returns a Writer; it writes from Run on.
func New(client corev1client.PodsGetter) *Writer {
	return &Writer{client: client, pods: map[types.UID]*podStatus{}, running: slowkeys.New[*podStatus](workers),
		wake: make(chan struct{}, 1)}
}

// Run writes until ctx ends. Statuses that are not written then are lost; the next agent computes them again.
func (w *Writer) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var writes sync.WaitGroup
	defer writes.Wait()
	for ctx.Err() == nil {
		next := w.dispatch(func(s *podStatus) { writes.Go(func() { w.write(ctx, s) }) })
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// dispatch starts the writes of queued statuses. It returns when a running one makes room for another; zero if one must
// end first.
func (w *Writer) dispatch(start func(*podStatus)) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for len(w.queue) > 0 {
		if ok, next := w.running.Free(now); !ok {
			return next
		}
		s := w.queue[0]
		w.queue = w.queue[1:]
		if s.gone || s.busy || !w.running.Start(s, s.base.Namespace, now) {
			continue
		}
		s.queued, s.busy = false, true
		start(s)
	}
	w.queue = nil
	return time.Time{}
}

func (w *Writer) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Set publishes status as the newest one of the pod. It never blocks. The caller
// does not touch status afterwards.
func (w *Writer) Set(pod *corev1.Pod, status *corev1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of(pod)
	s.want = status
	w.touch(s)
}

// Seen passes the status that the API server has now. If another writer changed the agent's
// part, it is written again (L8.30).
func (w *Writer) Seen(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.of(pod)
	if s.base == pod || !newer(pod, s.base) {
		return
	}
	s.base = pod
	if s.want != nil {
		w.touch(s)
	}
}

func (w *Writer) of(pod *corev1.Pod) *podStatus {
	s := w.pods[pod.UID]
	if s == nil {
		s = &podStatus{base: pod}
		w.pods[pod.UID] = s
	}
	return s
}

// newer reports whether a is a later version than b.
func newer(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// touch queues the pod, with w.mu held.
func (w *Writer) touch(s *podStatus) {
	s.dirty = true
	if s.queued || s.busy || s.gone {
		return
	}
	switch podstatus.UrgencyOf(s.base, s.want) {
	case podstatus.Major:
		w.enqueue(s)
	case podstatus.Ended:
		by := s.endBy
		if by.IsZero() {
			by = time.Now().Add(endedTime)
		}
		w.settleBy(s, by, endedTime)
	case podstatus.Minor:
		switch {
		case !s.endBy.IsZero():
			w.settleBy(s, s.endBy, settleTime)
		case s.settle == nil:
			n := time.Duration(w.settling + 1 + len(s.want.ContainerStatuses)/containersPerPod)
			w.wait(s, min(settleTime*n*n, settleMax))
		}
	}
}

// settleBy lets the status of a pod whose container ended settle for d, but not longer than to endBy, with w.mu held.
func (w *Writer) settleBy(s *podStatus, endBy time.Time, d time.Duration) {
	w.settled(s)
	s.endBy = endBy
	w.wait(s, min(d, time.Until(endBy)))
}

// wait lets a status settle, with w.mu held.
func (w *Writer) wait(s *podStatus, d time.Duration) {
	w.settling++
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.settle == timer && !s.gone {
			w.enqueue(s)
		}
	})
	s.settle = timer
}

// settled ends the settling of a status, with w.mu held.
func (w *Writer) settled(s *podStatus) {
	if s.settle != nil {
		w.settling--
		s.settle.Stop()
		s.settle, s.endBy = nil, time.Time{}
	}
}

func (w *Writer) enqueue(s *podStatus) {
	w.settled(s)
	s.queued = true
	w.queue = append(w.queue, s)
	w.poke()
}

// Forget drops the pod; what was not written yet is lost.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.pods[uid]; s != nil {
		w.end(s)
		delete(w.pods, uid)
	}
}

// end marks the pod as gone and wakes its waiters, with w.mu held.
func (w *Writer) end(s *podStatus) {
	s.gone = true
	w.settled(s)
	s.release()
}

func (s *podStatus) release() {
	for _, c := range s.waiters {
		close(c)
	}
	s.waiters = nil
}

// Flush returns when the newest status of the pod is stored: nil, ErrGone when
// the pod is gone, or the context's error.
func (w *Writer) Flush(ctx context.Context, uid types.UID) error {
	for {
		w.mu.Lock()
		s := w.pods[uid]
		switch {
		case s == nil || s.gone:
			w.mu.Unlock()
			return ErrGone
		case !s.dirty && !s.busy:
			w.mu.Unlock()
			return nil
		}
		if s.settle != nil {
			w.enqueue(s)
		}
		clean := make(chan struct{})
		s.waiters = append(s.waiters, clean)
		w.mu.Unlock()
		select {
		case <-clean:
		case <-ctx.Done():
			return fmt.Errorf("wait for the last status to be stored: %w", ctx.Err())
		}
	}
}

// write brings the status of one pod to the API server.
func (w *Writer) write(ctx context.Context, s *podStatus) {
	w.mu.Lock()
	base, want := s.base, s.want
	s.dirty = false
	w.mu.Unlock()

	stored, err := w.put(ctx, base, want)

	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.poke()
	s.busy = false
	_, waited := w.running.End(s)
	w.queue = append(w.queue, waited...)
	if stored != nil && newer(stored, s.base) {
		s.base = stored
	}
	switch {
	case errors.Is(err, ErrGone):
		w.end(s)
	case err != nil:
		s.dirty = true
		wait := min(retryFirst<<min(s.tries, 10), retryMax)
		s.tries++
		if ctx.Err() != nil {
			return
		}
		log := klog.FromContext(ctx)
		log.V(2).Info("Writing a pod status failed", "pod", klog.KObj(base), "err", err, "retryIn", wait)
		if refused(err) && s.tries >= logAfter && s.refusal != err.Error() {
			s.refusal = err.Error()
			log.Error(err, "The API server refuses the status of a pod; clients see the previous one", "pod",
				klog.KObj(base))
		}
		s.queued = true
		time.AfterFunc(wait, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !s.gone {
				w.enqueue(s)
			}
		})
	case s.dirty:
		s.tries = 0
		w.enqueue(s)
	default:
		s.tries, s.refusal = 0, ""
		s.release()
	}
}

// refused reports whether the API server, or a webhook, does not accept what was written: it may never do so.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// conflictTries is how often a write that lost a race is repeated at once.
const conflictTries = 5

// put stores want on top of base and returns the resulting status in the API server; nil if nothing had to be written.
func (w *Writer) put(ctx context.Context, base *corev1.Pod, want *corev1.PodStatus) (*corev1.Pod, error) {
	pods := w.client.Pods(base.Namespace)
	var fetched *corev1.Pod
	for range conflictTries {
		merged := merge(&base.Status, want)
		if equality.Semantic.DeepEqual(&merged, &base.Status) {
			return fetched, nil
		}
		// The write requires the resource version of base, so it never overwrites later writes of others.
		pod := &corev1.Pod{ObjectMeta: base.ObjectMeta, Spec: base.Spec, Status: merged}
		stored, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		switch {
		case err == nil:
			return stored, nil
		case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
			return fetched, err
		}
		refused := err
		fetched, err = pods.Get(ctx, base.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, ErrGone
		case err != nil:
			return nil, err
		case fetched.UID != base.UID:
			return nil, ErrGone // L8.31: another pod has the name now
		case apierrors.IsNotFound(refused): // by a webhook that cannot find something itself
			return fetched, refused
		}
		base = fetched
	}
	return fetched, fmt.Errorf("status of pod %s/%s: others changed the pod %d times in a row", base.Namespace,
		base.Name, conflictTries)
}
