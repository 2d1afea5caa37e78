package pods

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// owner drives one pod. Its goroutine runs run; other goroutines only post to its mailbox and read its view.
//
//	            ┌────────── mail, deadline ───────────┐
//	            ▼                                     │
//	collect ──stale──▶ look ──▶ Step ──▶ publish, begin, cancel ──▶ sleep
//	                     │fails                       │
//	                     └──▶ sleep, look again       └──Finished, all actions ended──▶ end
//
// A snapshot of the runtime is never older than the newest outcome that is passed to Step: an outcome marks the
// snapshot stale, and only a new snapshot clears that.
type owner struct {
	cfg  *Config
	room nodeRoom
	box  mailbox

	// Used by the goroutine only.
	pod       *corev1.Pod
	gone      bool
	hold      *podlife.Hold
	rejected  *podlife.Rejection
	stop      *podlife.Stop
	state     podlife.State
	started   bool        // Recover was called
	runs      *corev1.Pod // with the resources it may use: Output.Allocated
	resizes   bool        // a resize is in progress
	observed  podlife.Observed
	arrivals  int64 // podlife.Input.Arrivals
	stale     bool
	look      time.Time // when the snapshot becomes too old; zero: never
	probes    []podlife.ProbeResult
	done      []podlife.Outcome
	flights   map[podlife.Key]context.CancelFunc // actions begun and not ended
	life      podlife.Life
	sent      bool // the status in state was given to the writer
	lookErr   lookRetry
	log       timeline
	published *published
}

// mailbox holds what happened since the owner last emptied it. Bursts merge: only the newest pod is kept, results are
// queued.
type mailbox struct {
	mu   sync.Mutex
	wake chan struct{} // capacity 1: the box holds something

	waits time.Time // since when something is in the box that the owner must be woken for; zero: nothing is
	alarm time.Time // when the sleeping owner wakes by itself; zero: never, or it is awake
	works time.Time // since when the owner works on its mail; zero: it sleeps

	pod      *corev1.Pod
	gone     bool
	hold     *podlife.Hold
	rejected *podlife.Rejection
	stop     *podlife.Stop
	stale    bool
	arrivals int64
	probes   []podlife.ProbeResult
	done     []podlife.Outcome

	awaitsImage bool // the owner must be woken for changes of images
	images      bool // images changed since its last snapshot
}

// nodeRoom is the manager's interface for owners about the resources of the node, which all pods share.
type nodeRoom interface {
	// admitResize decides whether the pod may have the resources that its spec requests.
	admitResize(pod *corev1.Pod) Result
	// timesFreed counts how often resources of the node were freed.
	timesFreed() int64
	// freed announces that the pod freed resources.
	freed()
}

func newOwner(cfg *Config, room nodeRoom, e *entry) *owner {
	return &owner{
		cfg: cfg, room: room, pod: e.pod, runs: podlife.RecoverAllocated(e.pod), gone: e.gone, stale: true,
		flights: map[podlife.Key]context.CancelFunc{},
		box:     mailbox{wake: make(chan struct{}, 1), pod: e.pod, gone: e.gone, hold: e.hold, rejected: e.rejected},
		log:     newTimeline(cfg.Journal), published: e.published,
	}
}

// post changes the mailbox and wakes the owner.
func (o *owner) post(change func(*mailbox)) {
	o.box.mu.Lock()
	change(&o.box)
	if o.box.waits.IsZero() {
		o.box.waits = time.Now()
	}
	o.box.mu.Unlock()
	select {
	case o.box.wake <- struct{}{}:
	default:
	}
}

// imagesChanged wakes an owner that waits for an image.
func (o *owner) imagesChanged() {
	o.box.mu.Lock()
	o.box.images = true
	awaited := o.box.awaitsImage
	o.box.mu.Unlock()
	if awaited {
		o.post(func(*mailbox) {})
	}
}

// collect empties the mailbox into the owner.
func (o *owner) collect() {
	b := &o.box
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits, b.alarm, b.works = time.Time{}, time.Time{}, time.Now()
	o.pod, o.gone, o.hold, o.rejected, o.arrivals = b.pod, b.gone, b.hold, b.rejected, b.arrivals
	if b.stop != nil {
		o.stop, b.stop = b.stop, nil
	}
	if b.stale || len(b.done) > 0 || b.images && b.awaitsImage || !o.look.IsZero() && !time.Now().Before(o.look) {
		o.stale, b.stale = true, false
	}
	if o.stale {
		b.images = false // the snapshot may miss what arrives from here on
	}
	o.probes = append(o.probes, b.probes...)
	o.done = append(o.done, b.done...)
	b.probes, b.done = nil, nil
}

// run owns the pod until its life is Finished and every action has ended (true),
// or ctx ends (false). It ends the actions in flight and waits for them.
func (o *owner) run(ctx context.Context) bool {
	var actions sync.WaitGroup
	defer actions.Wait()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-o.box.wake:
		case <-timer.C:
		}
		o.collect()
		var alarm time.Time
		if o.ready(ctx) {
			wake := o.step(ctx, &actions)
			if o.life == podlife.Finished && len(o.flights) == 0 {
				return true
			}
			alarm = earlier(wake, o.look)
		} else {
			alarm = o.lookErr.next
		}
		schedule(timer, alarm)
		o.rests(alarm)
	}
}

// alarmGrid is what alarms are rounded up to: probes of all pods that are due within it run together. To wake for each
// of them costs more than most probes do, and each finds cold caches.
const alarmGrid = 10 * time.Millisecond

// schedule sets the timer to ring at the given time or a little later; zero: never.
func schedule(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	now := time.Now()
	timer.Reset(untilGrid(now, at.Sub(now)))
}

// untilGrid is how long to wait for the first time on the grid that is not before a wait has ended. It is never zero:
// a deadline in the past must not make a busy loop. The grid is the same for all owners, as long as the clock is not
// set.
func untilGrid(now time.Time, wait time.Duration) time.Duration {
	wait = max(wait, time.Millisecond)
	if over := time.Duration(now.Add(wait).UnixNano()) % alarmGrid; over > 0 {
		wait += alarmGrid - over
	}
	return wait
}

// earlier is the first of two times; zero is not a time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ready updates the snapshot of the runtime; it returns false if the runtime does not respond.
func (o *owner) ready(ctx context.Context) bool {
	if !o.stale {
		return true
	}
	now := time.Now()
	if now.Before(o.lookErr.next) {
		return false
	}
	lookCtx, cancel := context.WithTimeout(ctx, lookTimeout)
	observed, err := o.cfg.Observer.Look(lookCtx, o.pod)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			o.lookErr.failed(time.Now())
			klog.FromContext(ctx).V(2).Info("Cannot read the state of a pod from the runtime",
				"err", err, "tries", o.lookErr.tries)
			if o.lookErr.tries == lookTriesUntilEvent {
				o.cfg.Event(o.pod, podlife.Event{
					// L8.33
					Type: corev1.EventTypeWarning, Reason: "FailedSync",
					Message: "error determining status: " + err.Error(),
				})
			}
		}
		return false
	}
	o.observed, o.stale, o.lookErr = observed, false, lookRetry{}
	return true
}

const (
	lookTimeout         = 2 * time.Minute // L0.46
	lookTriesUntilEvent = 3
	lookRetryFirst      = 100 * time.Millisecond
	lookRetryMax        = 10 * time.Second
)

// lookRetry is the back-off between snapshots while the runtime does not respond.
type lookRetry struct {
	tries int
	next  time.Time
}

func (r *lookRetry) failed(now time.Time) {
	wait := lookRetryFirst << min(r.tries, 10)
	r.tries++
	r.next = now.Add(min(wait, lookRetryMax))
}

// step calls the decision and begins its actions; it returns when to decide again.
func (o *owner) step(ctx context.Context, actions *sync.WaitGroup) time.Time {
	if !o.started {
		// The node admitted the pod as it was when its owner was created. If it was resized
		// before the first snapshot of the runtime, the resize still has to be admitted
		// (L3.120).
		admitted := *o.runs
		admitted.Status = o.pod.Status
		o.state, o.started = o.cfg.Machine.Recover(&admitted, o.observed), true
	}
	in := podlife.Input{
		Now: time.Now(), Pod: o.pod, Gone: o.gone, Hold: o.hold, Stop: o.stop, Reject: o.rejected,
		Node: o.cfg.Node(), Observed: o.observed, Arrivals: o.arrivals, Probes: o.probes, Done: o.done,
	}
	in.Node.Vacated = o.room.timesFreed()
	if o.cfg.Routed != nil && o.pod.DeletionTimestamp != nil { // for others it is unused; it may block
		in.Routed = o.cfg.Routed(o.pod.UID)
	}
	if o.cfg.DrainTimeout != nil && o.pod.DeletionTimestamp != nil {
		in.DrainTimeout = o.cfg.DrainTimeout(o.pod.UID)
	}
	before := &o.state.Last
	next, out := o.cfg.Machine.Step(o.state, in)
	changed := !o.sent || !podstatus.Equal(before, &out.Status)
	o.state = next
	for _, d := range in.Done {
		o.land(d.Key)
	}
	for _, p := range in.Probes {
		o.land(p.Key)
	}
	o.probes, o.done = nil, nil

	o.log.ended(in)
	o.log.decided(in, out)
	o.life = out.Life
	if o.runs = out.Allocated; o.runs == nil {
		o.runs = o.pod
	}
	if !o.gone && changed {
		// Published before anything begins: an action such as DeletePod relies on it.
		o.cfg.Status.Set(o.pod, &out.Status)
	}
	o.sent = !o.gone
	for _, e := range out.Events {
		o.cfg.Event(o.pod, e)
	}
	room := podstatus.Terminal(out.Status.Phase) && !podstatus.Terminal(o.published.view().Status.Phase)
	if resizes := resizing(&out.Status); resizes != o.resizes {
		room = room || o.resizes
		o.resizes = resizes
	}
	o.look = out.Look
	o.listen(!out.Look.IsZero())
	o.published.show(View{Status: out.Status, Life: out.Life, Waits: out.Waits, runs: o.occupies(&out.Status)})
	if room {
		o.room.freed()
	}
	for _, key := range out.Cancel {
		if cancel := o.flights[key]; cancel != nil {
			cancel()
		}
	}
	for _, b := range out.Begin {
		o.begin(ctx, actions, b)
	}
	return out.Wake
}

// occupies is the pod with what it occupies of the node. Once it was resized, the status of this moment counts, not the
// one that the API server will show later (L3.127a): what a smaller pod frees is given away at once.
func (o *owner) occupies(newest *corev1.PodStatus) *corev1.Pod {
	if o.runs.Generation <= 1 {
		return o.runs
	}
	pod := *o.runs
	pod.Status = *newest
	return &pod
}

// listen sets whether the owner is woken for changes of images. A change during the decision wakes it now.
func (o *owner) listen(awaitsImage bool) {
	o.box.mu.Lock()
	o.box.awaitsImage = awaitsImage
	missed := awaitsImage && o.box.images
	o.box.mu.Unlock()
	if missed {
		o.post(func(*mailbox) {})
	}
}

// begin starts an action, unless one with its key is in flight.
func (o *owner) begin(ctx context.Context, actions *sync.WaitGroup, b podlife.Begin) {
	key := b.Action.Key()
	if o.flights[key] != nil {
		return
	}
	ctx, cancel := actionContext(ctx, b.Action)
	o.flights[key] = cancel
	o.log.begun(o.pod, b, time.Now())
	if _, ok := b.Action.(podlife.AdmitResize); ok {
		pod := o.pod
		actions.Go(func() { o.finish(ctx, b.Action, o.room.admitResize(pod)) })
		return
	}
	pod := o.runs
	actions.Go(func() {
		defer cancel() // a stopped owner does not empty its mailbox
		o.finish(ctx, b.Action, o.cfg.Executor.Do(ctx, pod, b.Action))
	})
}

// startTime is how long a container start may continue when the agent stops.
const startTime = 2 * time.Second

// actionContext ends with ctx. A container start gets a little longer: it is quick, and an
// aborted start would end a container for no reason.
func actionContext(ctx context.Context, action podlife.Action) (context.Context, context.CancelFunc) {
	if _, ok := action.(podlife.StartContainer); !ok {
		return context.WithCancel(ctx)
	}
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(startTime, cancel)
		context.AfterFunc(long, func() { timer.Stop() })
	})
	return long, func() { stop(); cancel() }
}

// resizing reports whether a status shows a resize in progress.
func resizing(st *corev1.PodStatus) bool {
	for i := range st.Conditions {
		if st.Conditions[i].Type == corev1.PodResizeInProgress {
			return true
		}
	}
	return false
}

// finish reports the end of an action; ctx is the action's own.
func (o *owner) finish(ctx context.Context, action podlife.Action, r Result) {
	now := time.Now()
	key := action.Key()
	if r.Err != nil && ctx.Err() != nil {
		aborted := *r.Err
		aborted.Reason = podlife.Aborted
		r.Err = &aborted
	}
	if probe, ok := action.(podlife.RunProbe); ok && r.Err == nil {
		o.probed(ctx, probe, podlife.ProbeResult{
			Key: key, Container: probe.Container, ContainerID: probe.ContainerID, Type: probe.Type,
			At: now, Verdict: r.Verdict, Output: r.Output,
		})
		return
	}
	o.post(func(b *mailbox) {
		b.done = append(b.done, podlife.Outcome{Key: key, At: now, Err: r.Err, Pulled: r.Pulled})
	})
}

// probed reports the result of a probe. One that changes nothing does not wake an owner that wakes in time by itself. A
// Step may wait for the end of a probe that it cancelled, whatever the result is. It cancels before it sets the alarm.
func (o *owner) probed(ctx context.Context, probe podlife.RunProbe, r podlife.ProbeResult) {
	deliver := func(b *mailbox) { b.probes = append(b.probes, r) }
	o.box.mu.Lock()
	if r.Verdict == podlife.ProbeSuccess && ctx.Err() == nil && !o.box.alarm.IsZero() &&
		!o.box.alarm.After(probe.Steady) {
		deliver(&o.box)
		o.box.mu.Unlock()
		return
	}
	o.box.mu.Unlock()
	o.post(deliver)
}

// land removes an action that ended, with its context.
func (o *owner) land(key podlife.Key) {
	if cancel := o.flights[key]; cancel != nil {
		cancel()
		delete(o.flights, key)
	}
}
