package observe

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/node/spec"
)

// Periods of the re-list: a safeguard in addition to the events, or the only source.
const (
	relistWithEvents    = 60 * time.Second
	relistWithoutEvents = time.Second // L8.1
	eventsRetry         = 2 * time.Second
	// HealthyFor is how old the last list may be before the node is not ready (L8.5).
	HealthyFor = 3 * time.Minute
)

// Watcher reports which pods changed in the runtime, from its events and, as a safeguard, from periodic lists of
// everything.
//
//	events stream up ──▶ list every 60 s
//	      ▲  └─breaks─▶ list at once, then every second ─┐
//	      └───────────── stream up again ────────────────┘
type Watcher struct {
	Observer *Observer
	// Owner is the annotation that this agent's sandboxes carry; pods of others
	// are never called orphans.
	OwnerKey, OwnerValue string
	Changed              func(uid types.UID)  // the pod has changed
	Known                func(types.UID) bool // the agent has the pod
	Orphan               func(pod *corev1.Pod)
	Relisted             func(began time.Time, took time.Duration) // nil: not counted

	// listed is when the last list succeeded. Its age is measured by the monotonic clock: on a computer without a clock
	// of its own, NTP sets the time years ahead after the start.
	listed atomic.Pointer[time.Time]
}

// Run watches until ctx ends. It must begin after the agent has all pods of its sources: other pods in the runtime are
// orphans (L7.17).
func (w *Watcher) Run(ctx context.Context) {
	streams := make(chan bool) // true: the stream runs, false: it broke
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.follow(ctx, streams)
	}()
	defer func() { <-done }()

	timer := time.NewTimer(0)
	defer timer.Stop()
	period := relistWithoutEvents
	settle := false // the stream was just opened: a list finds the events that it may have missed
	for {
		select {
		case <-ctx.Done():
			return
		case up := <-streams:
			period = relistWithoutEvents
			if settle = up; up {
				period = relistWithEvents
			}
			timer.Reset(0)
			continue
		case <-timer.C:
		}
		if err := w.relist(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Listing the runtime failed", "err", err)
			timer.Reset(relistWithoutEvents)
			continue
		}
		if settle {
			settle = false
			timer.Reset(relistWithoutEvents)
			continue
		}
		timer.Reset(period)
	}
}

// follow keeps an event stream open.
func (w *Watcher) follow(ctx context.Context, streams chan<- bool) {
	report := func(up bool) {
		select {
		case streams <- up:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		report(true)
		err := w.Observer.cfg.Runtime.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) {
			if uid := e.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
				w.Changed(types.UID(uid))
			}
		})
		if ctx.Err() != nil {
			return
		}
		report(false)
		if status.Code(err) == codes.Unimplemented {
			klog.FromContext(ctx).V(1).Info("The runtime has no events, listing it every second")
			return
		}
		klog.FromContext(ctx).V(2).Info("The event stream of the runtime ended", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(eventsRetry):
		}
	}
}

// relist lists everything and compares it with the last snapshots.
func (w *Watcher) relist(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if w.Relisted != nil {
		began := time.Now()
		defer func() { w.Relisted(began, time.Since(began)) }()
	}
	sandboxes, err := w.Observer.cfg.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := w.Observer.cfg.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	w.listed.Store(new(time.Now()))
	pods := group(sandboxes.Items, containers.Containers)
	for uid, p := range pods {
		switch {
		case !w.Known(uid):
			if pod := p.orphan(w.OwnerKey, w.OwnerValue); pod != nil {
				w.Orphan(pod)
			}
		case !w.Observer.sameOutline(uid, outline(p.sandboxes, p.containers)):
			w.Changed(uid)
		}
	}
	for _, uid := range w.Observer.populated() {
		if pods[uid] == nil { // everything of it vanished
			w.Changed(uid)
		}
	}
	return nil
}

// Listed are the pods that have objects in the runtime; empty if the runtime does not respond.
func (w *Watcher) Listed(ctx context.Context) map[types.UID]bool {
	here := map[types.UID]bool{}
	for uid := range w.grouped(ctx) {
		here[uid] = true
	}
	return here
}

// grouped lists the objects of the runtime by their pods; none if it does not respond.
func (w *Watcher) grouped(ctx context.Context) map[types.UID]*inRuntime {
	sandboxes, err := w.Observer.cfg.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil
	}
	containers, err := w.Observer.cfg.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil
	}
	w.listed.Store(new(time.Now()))
	return group(sandboxes.Items, containers.Containers)
}

// Found returns the pods of this agent that have objects in the runtime, as far as its labels describe them; none if
// the runtime does not respond.
func (w *Watcher) Found(ctx context.Context) []*corev1.Pod {
	var found []*corev1.Pod
	for _, p := range w.grouped(ctx) {
		if pod := p.orphan(w.OwnerKey, w.OwnerValue); pod != nil {
			found = append(found, pod)
		}
	}
	return found
}

// ListedAt is when the last list succeeded; zero: never.
func (w *Watcher) ListedAt() time.Time {
	if at := w.listed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Err returns why the runtime can't be watched (L8.5); nil if it can.
func (w *Watcher) Err(now time.Time) error {
	last := w.ListedAt()
	if last.IsZero() {
		return errNeverListed
	}
	if age := now.Sub(last); age > HealthyFor {
		return staleError(age)
	}
	return nil
}

var errNeverListed = errors.New("PLEG is not healthy: pleg has yet to be successful")

func staleError(age time.Duration) error {
	return fmt.Errorf("PLEG is not healthy: pleg was last seen active %v ago; threshold is %v",
		age.Truncate(time.Millisecond), HealthyFor)
}

// inRuntime are the objects of one pod in the runtime.
type inRuntime struct {
	sandboxes  []*cri.PodSandbox
	containers []*cri.Container
}

func group(sandboxes []*cri.PodSandbox, containers []*cri.Container) map[types.UID]*inRuntime {
	pods := map[types.UID]*inRuntime{}
	of := func(labels map[string]string) *inRuntime {
		uid := types.UID(labels[uidLabel])
		if uid == "" {
			return &inRuntime{} // not created by the agent, for example with crictl
		}
		if pods[uid] == nil {
			pods[uid] = &inRuntime{}
		}
		return pods[uid]
	}
	for _, sb := range sandboxes {
		p := of(sb.Labels)
		p.sandboxes = append(p.sandboxes, sb)
	}
	for _, c := range containers {
		p := of(c.Labels)
		p.containers = append(p.containers, c)
	}
	return pods
}

// orphan is the pod as far as the runtime's labels describe it; nil if another agent owns it.
// Its grace is 1 s and it has no hooks (L7.17). What it occupies on the node is its overhead: which containers
// requested it does not matter any more.
func (p *inRuntime) orphan(ownerKey, ownerValue string) *corev1.Pod {
	if len(p.sandboxes) == 0 || p.sandboxes[0].Annotations[ownerKey] != ownerValue {
		return nil
	}
	meta := spec.Restore(p.sandboxes[0].Labels, p.sandboxes[0].Annotations)
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: meta.PodNamespace, Name: meta.PodName, UID: types.UID(meta.PodUID)},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
			Overhead: meta.Requests},
	}
	seen := map[string]bool{}
	for _, c := range p.containers {
		name := spec.Restore(c.Labels, c.Annotations).Name
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: c.GetImage().GetImage()})
	}
	return pod
}
