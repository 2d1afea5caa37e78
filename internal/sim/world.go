package sim

import (
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	runtimesim "carob/internal/runtime/sim"
)

const uidLabel = "io.kubernetes.pod.uid"

// world is one node, its API server, its users, and the faults.
type world struct {
	opts               Options
	loop               *Loop
	rand               *rand.Rand
	digest             hash.Hash64
	result             Result
	decisions          int // steps that did more than begin probes
	runtime            *runtimesim.Runtime
	turn               turn       // Step, or a broken version of it
	only               *Invariant // the only invariant to check
	whims              int        // random actions of a broken Step
	lastWhim, nextWhim time.Time

	fault       float64 // probability that an action fails; 0 in half of the seeds
	clean       bool    // no faults: the invariants about time are checked
	faultsEnded bool
	addresses   []string      // addresses of the node, sometimes of both families
	backoffMax  time.Duration // longest crash back-off; 0: the default
	capacity    int64         // allocatable cpu in thousandths

	skew    time.Duration // offset of the wall clock from the loop
	slept   time.Duration // total time that the machine was suspended
	apiUp   time.Time     // the API server does not answer until then
	slow    time.Time     // the registry is slow until then
	full    time.Time     // the disk is full until then
	silent  time.Time     // the runtime does not answer until then
	network string        // why the pod network is not ready
	joined  *Machine      // set for a node of a cluster; nil: the node has its own API server
	healed  bool          // the damaged image can be read again

	versions int       // resource version of the API server
	mounts   uint64    // counts changes of volumes and cgroups
	late     time.Time // calls of an agent that ended by then have no effect
	pods     []*object // including those that this run leaves out
	agent    agent
	volumes  map[types.UID]podlife.VolumeState // used for lookups, never ranged over
	groups   map[types.UID]group               // likewise
}

// object is a pod in the API server and its actual state.
type object struct {
	pod       *corev1.Pod // newest version; replaced, never changed
	number    int         // of that version
	exists    bool
	static    bool // from a file: only the agent has its status
	finalizer bool
	refused   *podlife.Rejection // the next agent rejects it
	held      *podlife.Hold      // it waits for room
	served    bool               // Services select it
	routes    bool               // the data plane should open new connections to it
	routed    bool               // the data plane opens new connections to it
	granted   []*corev1.Pod      // versions whose resources the node has allocated
	stored    corev1.PodStatus   // last one
	truth     map[string]*truth  // by container name; used for lookups, never ranged over
	updated   bool               // the spec was changed, or has restart rules
	upset     bool               // an accident damaged its sandbox or a container
	collected bool               // another writer set its phase to Failed
	vanished  bool               // one of its containers vanished from the runtime
	requested time.Time          // when its end was first requested
	grace     time.Duration
}

func (w *world) chance(p float64) bool { return p > 0 && w.rand.Float64() < p }

// upTo returns a random duration below d, in milliseconds.
func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rand.Int64N(int64(d/time.Millisecond)+1)) * time.Millisecond
}

func (w *world) after(d time.Duration, do func()) func() { return w.loop.AfterFunc(d, do) }

// logf writes a line of the log; the digest covers all lines.
func (w *world) logf(format string, args ...any) {
	if w.opts.Log == nil && !w.opts.Digest {
		return
	}
	line := fmt.Sprintf("+%v %s\n", w.loop.now.Sub(epoch), fmt.Sprintf(format, args...))
	w.digest.Write([]byte(line))
	if w.opts.Log != nil {
		fmt.Fprint(w.opts.Log, line)
	}
}

// populate creates the node, its pods, and the schedule of all events.
func (w *world) populate() {
	w.clean = w.chance(0.5)
	if !w.clean {
		if w.fault = w.rand.Float64() * 0.4; !w.element() {
			w.fault = 0
		}
	}
	w.result.Seed, w.result.Faulty = w.opts.Seed, !w.clean
	w.volumes, w.groups = map[types.UID]podlife.VolumeState{}, map[types.UID]group{}
	dual := w.chance(0.2)
	if w.addresses = []string{"192.168.0.1"}; dual {
		w.addresses = append(w.addresses, "fd00::1")
	}
	if w.chance(0.2) {
		w.backoffMax = []time.Duration{time.Second, 30 * time.Second, 2 * time.Minute}[w.rand.IntN(3)]
	}
	w.capacity = 400 + 200*int64(w.rand.IntN(12))
	w.runtime = runtimesim.New(runtimesim.Config{
		Clock: clock{w}, Behaviour: w.behaviour, DualStack: dual,
		PullError: func(string) error {
			if w.chance(w.fault / 2) {
				return errors.New("the registry is unavailable")
			}
			return nil
		},
	})
	w.agent = agent{w: w, began: w.now()}
	w.runtime.Listen(w.agent.receive)
	for i := range 1 + w.rand.IntN(3) {
		w.newObject(i)
	}
	if w.chance(0.15) {
		at, d := w.upTo(time.Minute), w.upTo(10*time.Minute)
		if w.chance(0.5) {
			at = w.upTo(w.horizon())
		}
		if w.element() {
			w.after(at, func() { w.outage(d) })
		}
	}
	for range w.rand.IntN(4) {
		w.sometime(w.bring)
	}
	if !w.clean {
		w.planFaults()
	}
	w.after(time.Minute, w.agent.relist)
}

// newObject makes a pod and schedules its life.
func (w *world) newObject(i int) {
	o := &object{pod: w.newPod(i), number: 1, exists: true, truth: map[string]*truth{}}
	w.versions = max(w.versions, 1)
	o.static, o.finalizer = isStatic(o.pod), len(o.pod.Finalizers) > 0
	o.granted = []*corev1.Pod{o.pod}
	for _, c := range containers(o.pod) {
		o.updated = o.updated || c.RestartPolicyRules != nil // the model of the back-off has no restart rules
	}
	if w.chance(0.03) && !o.static {
		o.refused = &podlife.Rejection{Reason: "OutOfmemory", Message: "Node didn't have enough resource: memory"}
	}
	if w.chance(0.05) && !o.static {
		o.held = &podlife.Hold{For: "room", Object: "default/other", Why: "Node didn't have enough resource: cpu."}
		w.sometime(func() { w.free(o) })
		w.sometime(func() { w.free(o) })
	}
	o.served = w.chance(0.5) && !o.static
	begin := w.upTo(30 * time.Second)
	if w.element() {
		w.result.Pods++
		w.pods = append(w.pods, o)
		w.logf("%s: %s", o.pod.Name, describe(o.pod))
		w.after(begin, func() { w.agent.add(o) })
	} else {
		o.exists = false
	}
	w.plan(o)
}

func (w *world) horizon() time.Duration { return time.Duration(w.opts.Hours * float64(time.Hour)) }

// sometime schedules a function before the end, unless this run leaves it out.
func (w *world) sometime(do func()) {
	at := w.upTo(w.horizon())
	if w.element() {
		w.after(at, do)
	}
}

// requestDeletion records that the end of a pod was requested.
func (o *object) requestDeletion(at time.Time, grace time.Duration) {
	if o.requested.IsZero() {
		o.requested, o.grace = at, grace
	}
	o.grace = min(o.grace, grace)
}

func tgps(p *corev1.Pod) time.Duration {
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}

func isStatic(p *corev1.Pod) bool { return p.Annotations["kubernetes.io/config.source"] == "file" }

// behaviour is the behaviour of a container's process.
func (w *world) behaviour(c *cri.ContainerConfig) runtimesim.Behaviour {
	b := runtimesim.Behaviour{Code: int32(w.rand.IntN(2)), TermCode: 143, Linger: w.upTo(3 * time.Second)}
	name := c.GetMetadata().GetName()
	switch {
	case strings.HasPrefix(name, "debug"):
		b.Exit = w.upTo(time.Minute)
	case strings.HasPrefix(name, "init"):
		b.Exit = time.Second + w.upTo(5*time.Second)
		b.Code = 0
		if w.chance(0.2) {
			b.Code = 1
		}
	case w.chance(0.7):
		b.Exit = time.Millisecond + w.upTo([]time.Duration{time.Second, time.Minute, 20 * time.Minute}[w.rand.IntN(3)])
	}
	b.IgnoreTerm = w.chance(0.2)
	if w.chance(0.05) {
		b.Message = lastWords
	}
	if w.chance(0.1) {
		b.TermCode = 0
	}
	if w.chance(0.03) {
		b.StartErr = "exec: no such file"
	}
	return b
}

// lastWords is a termination message of the maximum length (L3.150).
var lastWords = strings.Repeat("alas ", 4096/5)
