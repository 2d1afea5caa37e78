// Package reconciler is the engine of a controller: it calls a reconcile function for keys, each key at
// most once at a time, merged while it waits, again after an error or when the function requests
// it. Controllers add keys from their watches. The meaning of a key is up to the controller.
//
// Goroutines: one dispatcher, and one worker for each key being reconciled. It has
// no ticker: with nothing to do, nothing runs.
//
// Contract: W0.10 and W0.11 in docs/spec/workloads.md.
package reconciler

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"carob/internal/base/backoff"
	"carob/internal/base/delayq"
	"carob/internal/base/slowkeys"
	"carob/internal/controllers/metrics"
)

// Func brings the object of a key closer to its desired state. It handles the whole object, not
// only the change. again is when to call it again without a change; zero for never. An error is
// logged and tried again after a growing wait: of up to a minute, or longer if the API refuses what many keys request.
type Func func(ctx context.Context, key string) (again time.Duration, err error)

// retry is the wait after errors.
var retry = backoff.Exponential{Initial: 20 * time.Millisecond, Max: time.Minute}

// Reconciler reconciles keys. Make it with New and Run it once; Add works before Run.
type Reconciler struct {
	name      string
	reconcile Func
	wake      chan struct{}

	mu       sync.Mutex
	ready    []string        // to be reconciled, oldest first
	queued   map[string]bool // in ready
	busy     map[string]bool // being reconciled; the value is whether it was added again meanwhile
	failures map[string]failure
	refusals refusals
	running  *slowkeys.Limit[string]
	later    delayq.Queue[string]

	metrics metrics.Queue
	since   map[string]time.Time // when a key of ready was added; only if it is measured
}

// New returns a Reconciler of up to workers keys in parallel, and more when some are slow: then up to four of a
// namespace do not count. With one worker, all keys run one after the other. The name is the label of its metrics:
// that of upstream's queue if there is one.
func New(name string, workers int, reconcile Func) *Reconciler {
	l := &Reconciler{
		name: name, reconcile: reconcile,
		wake:   make(chan struct{}, 1),
		queued: map[string]bool{}, busy: map[string]bool{}, failures: map[string]failure{},
		refusals: refusals{keys: map[string]map[string]bool{}},
		running:  slowkeys.New[string](workers),
		metrics:  metrics.NewQueue(name), since: map[string]time.Time{},
	}
	if l.metrics.Measured() {
		metrics.OnRead(l.measure)
	}
	return l
}

// measure sets the metrics that change without events.
func (l *Reconciler) measure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum, first time.Duration
	for at := range l.running.Began() {
		took := time.Since(at)
		sum, first = sum+took, max(first, took)
	}
	l.metrics.Running(sum, first)
}

// failure is what Add needs of the failures of a key since the last success.
type failure struct {
	count int
	last  time.Time
}

// logged reports whether a failure is written to the log: the first, the second, the fourth, and so on. Users can make
// objects that fail for ever, and must not fill the disk with the log.
func (f failure) logged() bool { return bits.OnesCount(uint(f.count)) == 1 }

// patience is the number of consecutive failures up to which a change ends the wait at once. Beyond it, a change ends
// the wait a second after the last failure, so that a key that changes often does not flood the API, and a user who
// corrects what failed, or a pod that needs a replacement, does not wait for a minute.
const (
	patience     = 5
	afterFailure = time.Second
)

// Add requests a reconciliation of key.
func (l *Reconciler) Add(key string) {
	l.mu.Lock()
	if f := l.failures[key]; f.count < patience || !l.later.Has(key) {
		l.add(key)
	} else {
		l.later.SetEarlier(key, f.last.Add(afterFailure))
	}
	l.mu.Unlock()
	l.poke()
}

// AddAfter requests one after a delay, or earlier if that is requested, too.
func (l *Reconciler) AddAfter(key string, wait time.Duration) {
	if wait <= 0 {
		l.Add(key)
		return
	}
	l.metrics.Later()
	l.mu.Lock()
	l.later.SetEarlier(key, time.Now().Add(wait))
	l.mu.Unlock()
	l.poke()
}

func (l *Reconciler) add(key string) {
	if _, ok := l.busy[key]; ok {
		l.busy[key] = true
	} else if !l.queued[key] {
		l.queued[key] = true
		l.ready = append(l.ready, key)
		if l.metrics.Measured() {
			l.metrics.Added()
			l.since[key] = time.Now()
		}
	}
}

func (l *Reconciler) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run reconciles until ctx ends, and returns when no worker runs any more.
func (l *Reconciler) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(l.name))
	timer := time.NewTimer(0)
	defer timer.Stop()
	var workers sync.WaitGroup
	defer workers.Wait()
	for ctx.Err() == nil {
		next := l.dispatch(func(key string) { workers.Go(func() { l.work(ctx, key) }) })
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// dispatch starts workers for ready keys and returns when the next key is due.
func (l *Reconciler) dispatch(start func(key string)) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for key, ok := l.later.Due(now); ok; key, ok = l.later.Due(now) {
		l.add(key)
	}
	var slower time.Time // when a running key makes room for one of ready
	for len(l.ready) > 0 {
		var ok bool
		if ok, slower = l.running.Free(now); !ok {
			break
		}
		key := l.ready[0]
		l.ready = l.ready[1:]
		if !l.running.Start(key, namespaceOrKey(key), now) {
			continue
		}
		delete(l.queued, key)
		l.later.Remove(key)
		l.busy[key] = false
		if l.metrics.Measured() {
			l.metrics.Taken(now.Sub(l.since[key]))
			delete(l.since, key)
		}
		start(key)
	}
	next, _ := l.later.Next()
	if len(l.ready) > 0 && !slower.IsZero() && (next.IsZero() || slower.Before(next)) {
		next = slower
	}
	return next
}

func (l *Reconciler) work(ctx context.Context, key string) {
	again, err := l.reconcile(ctx, key)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.poke()
	readded := l.busy[key]
	delete(l.busy, key)
	began, waited := l.running.End(key)
	l.ready = append(l.ready, waited...)
	if l.metrics.Measured() {
		l.metrics.Done(time.Since(began))
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		f := failure{l.failures[key].count + 1, time.Now()}
		l.failures[key] = f
		l.metrics.Later()
		wait := retry.Delay(f.count)
		if f.count >= patience && refused(err) {
			l.refusals.add(key)
			wait = max(wait, l.refusals.wait(key))
		} else {
			l.refusals.remove(key)
		}
		if f.logged() {
			klog.FromContext(ctx).Error(err, "Reconciling failed; trying again", "key", key, "wait", wait, "failures",
				f.count)
		}
		l.later.SetEarlier(key, f.last.Add(wait))
		if readded && f.count >= patience {
			l.later.SetEarlier(key, f.last.Add(afterFailure)) // the change came during the attempt
		}
	default:
		delete(l.failures, key)
		if l.refusals.remove(key) {
			l.follow(key)
		}
		if again > 0 {
			l.metrics.Later()
			l.later.SetEarlier(key, time.Now().Add(again))
		}
	}
	if readded && err == nil {
		l.add(key)
	}
}
