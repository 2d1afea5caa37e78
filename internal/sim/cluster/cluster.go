// Package cluster runs the parts of a cluster together, in virtual time and from one seed: the decisions about
// Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, garbage collection, disruption budgets, claims
// and volumes, node health and taint eviction, placement and preemption as the scheduler, and on each of several nodes
// podlife with a simulated runtime. Watches deliver events late, twice, or only with a new list; there are conflicts
// and lost responses; carob ends between any two writes; nodes are added, drained, disconnected, and removed;
// containers die. The invariants are about the containers that run, not about what the API shows. Tests and the command
// "carob sim" run it; it must never touch a real cluster.
//
// Contract: docs/spec/pod-lifecycle.md and docs/spec/storage-and-node.md and docs/spec/workloads.md.
package cluster

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/sim"
	"carob/internal/sim/devices"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/quotas"
	"carob/internal/sim/storage"
)

// Kind is what happens in a world.
type Kind int

// The kinds of worlds. In each of them, events and responses are lost, and processes of carob end.
const (
	Rollouts Kind = iota // users change workloads; machines do not fail
	Drains               // users drain, remove and add nodes; machines do not fail
	Trouble              // everything, and machines and containers that fail
	Crowded              // likewise, with DaemonSets, CronJobs, and pods that preempt others
	Stateful             // like Trouble, with claims of StatefulSets, whose pods preempt others
	Elastic              // like Trouble, with an autoscaler, a quota, and claims of devices
)

func (k Kind) String() string {
	return [...]string{"rollouts", "drains", "trouble", "crowded", "stateful", "elastic"}[k]
}

// kindOfSeed returns the kind of a seed: a quarter is stateful, an eighth elastic; of the others, two of five are
// crowded, and the rest is one of the first three.
func kindOfSeed(seed uint64) Kind {
	if seed/15%4 == 3 {
		return Stateful
	}
	if seed/15%8 == 5 {
		return Elastic
	}
	if seed/3%5 < 2 {
		return Crowded
	}
	return Kind(seed % 3)
}

// fails reports whether machines and containers fail.
func (k Kind) fails() bool { return k >= Trouble }

// preempts reports whether pods have priorities.
func (k Kind) preempts() bool { return k == Crowded || k == Stateful }

// Options select a run.
type Options struct {
	Seed     uint64
	Hours    float64 // virtual hours before the faults stop; 0 means 1
	Sabotage Sabotage
	Log      io.Writer // receives the log, one line per event; nil for none
}

// Result is what a run did.
type Result struct {
	Kind    Kind
	Pods    int
	Starts  int // of containers
	Writes  int // stored changes
	Crashes int // of carob
	// Settled is the time from the last fault or change by a user until the cluster had its desired state.
	Settled time.Duration
	Virtual time.Duration // simulated time
}

// mostWrites of a run, about 20 times as many as any that ends: the writes of a part that never ends fill the memory.
const mostWrites = 200_000

// process is one life of carob: its controllers and its scheduler, which end together.
type process struct {
	w       *world
	client  *fakeapi.Client
	caches  *fakeapi.Caches // of the controllers
	watches []*fakeapi.Watch
	parts   []part
	ended   bool
	planned time.Time // when run is called; zero for never
	unplan  func()
	refused bool // admission refused an object since the last run
}

// part is a controller, or the scheduler.
type part interface {
	// Turn handles what has changed; false means that the process has ended.
	Turn() bool
	// Due returns whether there is something to do now, and when to call it again; zero for never.
	Due() (now bool, at time.Time)
}

type world struct {
	*fakeapi.API
	loop       *sim.Loop
	options    Options
	kind       Kind
	carob      *process // nil while it is down
	crashes    int
	machines   []*machine // of all nodes that ever were
	pods       map[types.UID]*pod
	invariants invariants
	storage    *storage.Storage // nil in worlds without claims
	devices    *devices.Node    // nil in worlds without devices
	load       float64          // of the target of the autoscaler, in thousandths
}

// Run executes one run. The error is the first broken invariant, a *fakeapi.Broken.
func Run(o Options) (r Result, err error) {
	if o.Hours <= 0 {
		o.Hours = 1
	}
	w := &world{API: fakeapi.New(o.Seed, time.Time{}), loop: sim.NewLoop(), options: o,
		kind: kindOfSeed(o.Seed),
		pods: map[types.UID]*pod{}, invariants: newInvariants()}
	w.Now = w.loop.Now()
	begin := w.Now
	w.Ended, w.Grace, w.API.Stored = ended, grace, w.stored
	if w.kind == Stateful {
		w.Admit, w.storage = storage.Admit, storage.New(w.API, o.Sabotage.Storage, w.runs)
	}
	if w.kind == Elastic {
		w.devices = devices.NewNode(w.API)
	}
	err = fakeapi.Catch(func() {
		defer func() {
			switch v := recover().(type) {
			case nil:
			case *sim.Violation:
				fakeapi.Break(fakeapi.Invariant(v.Invariant.String()), "%s", v.Where())
			default:
				panic(v)
			}
		}()
		w.populate()
		w.run(begin.Add(time.Duration(o.Hours * float64(time.Hour))))
		w.rest()
	})
	r = Result{Kind: w.kind, Pods: len(w.pods), Writes: w.Writes(), Crashes: w.crashes,
		Virtual: w.loop.Now().Sub(begin),
		Settled: w.invariants.settled}
	for _, m := range w.machines {
		r.Starts += m.Starts()
	}
	return r, err
}

func (w *world) run(end time.Time) { w.loop.Run(end) }

// after runs a function later. Everything that happens in the world begins in such a function, or in a machine.
func (w *world) after(d time.Duration, do func()) (stop func()) {
	return w.loop.AfterFunc(d, func() {
		w.Now = w.loop.Now()
		do()
	})
}

// upTo returns a random duration below d.
func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.Int64N(int64(d/time.Millisecond)+1)) * time.Millisecond
}

func (w *world) logf(format string, args ...any) {
	if w.options.Log != nil {
		_, _ = fmt.Fprintf(w.options.Log, "+%v %s\n", w.loop.Now().Sub(start), fmt.Sprintf(format, args...))
	}
}

var start = sim.NewLoop().Now()

// ended reports whether an object that is being deleted is removed: a pod when its node confirms it, or at
// once if it has no node.
func ended(o fakeapi.Object) bool {
	p, ok := o.(*corev1.Pod)
	return !ok || *p.DeletionGracePeriodSeconds == 0
}

// grace returns the grace period of a deletion: zero for a pod without a node or one that has ended (L1.90 to
// L1.93).
func grace(o fakeapi.Object, requested int64) int64 {
	p, ok := o.(*corev1.Pod)
	switch {
	case !ok || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return 0
	case p.Spec.TerminationGracePeriodSeconds != nil:
		return min(requested, *p.Spec.TerminationGracePeriodSeconds)
	}
	return requested
}

// stored is called for each change of the API.
func (w *world) stored(before fakeapi.Object, after fakeapi.Entry) {
	if w.options.Log != nil {
		w.logf("stored %s", describe(after))
	}
	switch o := after.Object.(type) {
	case *corev1.Pod:
		w.note(o, after.Gone)
		if m := w.machine(o.Spec.NodeName); m != nil {
			m.Stored(o, after.Gone)
		}
		w.checkBound(before, o)
	case *corev1.Node:
		if m := w.machine(o.Name); m != nil && !after.Gone {
			m.SetNode(o)
		}
	}
	if w.Writes() > mostWrites {
		fakeapi.Break(Ends, "%d writes", w.Writes())
	}
	w.checkStored(after)
	if w.storage != nil {
		w.storage.Stored(before, after)
	}
	if w.kind == Elastic {
		quotas.Stored(w.API, before, after)
		devices.Stored(w.API, after)
	}
	if w.carob != nil {
		w.carob.soon()
	}
}

func describe(e fakeapi.Entry) string {
	o := e.Object
	text := strings.TrimPrefix(fmt.Sprintf("%T %s", o, o.GetName()), "*")
	if c, ok := o.(*resourcev1.ResourceClaim); ok {
		text += fmt.Sprintf(" with %v, reserved for %d", devices.Of(c), len(c.Status.ReservedFor))
	}
	if o.GetDeletionTimestamp() != nil {
		text += " deleting"
	}
	if e.Gone {
		text += " gone"
	}
	switch o := o.(type) {
	case *corev1.Pod:
		text += fmt.Sprintf(" %s on %q", o.Status.Phase, o.Spec.NodeName)
	case *appsv1.ReplicaSet:
		text += fmt.Sprintf(" of %d: %d pods, %d available, observed %d of %d", *o.Spec.Replicas, o.Status.Replicas,
			o.Status.AvailableReplicas, o.Status.ObservedGeneration, o.Generation)
	}
	return text
}

// start starts a process of carob: it lists, and has no record of earlier writes.
func (w *world) start() {
	w.logf("carob starts")
	c := &process{w: w, client: w.Client(), caches: fakeapi.NewCaches(w.API)}
	w.carob = c
	c.parts = c.newParts()
	c.soon()
}

// crash ends carob, and with it the agent of the node that it runs on.
func (w *world) crash() {
	if w.carob == nil || w.Faultless {
		return
	}
	w.logf("carob ends")
	w.crashes++
	w.carob.ended = true
	if w.carob.unplan != nil {
		w.carob.unplan()
	}
	w.carob = nil
	if len(w.machines) > 0 {
		w.machines[0].Crash()
	}
	w.after(w.upTo(20*time.Second), w.start)
}

// soon calls run a moment later, sometimes much later.
func (c *process) soon() {
	delay := c.w.upTo(200 * time.Millisecond)
	if c.w.One(50) {
		delay = c.w.upTo(20 * time.Second)
	}
	c.plan(c.w.Now.Add(delay))
}

// plan calls run at a time, unless an earlier call is planned.
func (c *process) plan(at time.Time) {
	if c.ended || !c.planned.IsZero() && !at.Before(c.planned) {
		return
	}
	if c.unplan != nil {
		c.unplan()
	}
	c.planned = at
	c.unplan = c.w.after(at.Sub(c.w.Now), c.run)
}

// run delivers events of some watches, and then gives each part a turn, in random order.
func (c *process) run() {
	w := c.w
	c.planned = time.Time{}
	if c.ended {
		return
	}
	all := append(c.watches, c.caches.Watches()...)
	for _, watch := range all {
		switch {
		case w.Faultless:
			watch.CatchUp()
		case !w.One(3):
			watch.Deliver()
		}
	}
	for _, i := range w.Perm(len(c.parts)) {
		if !c.parts[i].Turn() {
			w.crash()
			return
		}
	}
	soon := false
	for _, watch := range all {
		soon = soon || watch.Behind()
	}
	for _, p := range c.parts {
		now, at := p.Due()
		soon = soon || now
		if !at.IsZero() {
			c.plan(later(at, w.Now.Add(time.Millisecond)))
		}
	}
	switch {
	case soon && c.refused: // controllers try again after a back-off
		c.plan(w.Now.Add(w.upTo(10 * time.Second)))
	case soon:
		c.soon()
	}
	c.refused = false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// failed reports whether an error means that the process has ended.
func failed(err error) bool { return errors.Is(err, fakeapi.ErrCrash) }
