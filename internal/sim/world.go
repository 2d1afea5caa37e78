package sim

import (
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	runtimesim "carob/internal/runtime/sim"
)

const uidLabel = "io.kubernetes.pod.uid"

// world is one node, its API server, its users and what goes wrong.
type world struct {
	opts    Options
	loop    loop
	rand    *rand.Rand
	digest  hash.Hash64
	result  Result
	runtime *runtimesim.Runtime

	fault   float64 // chance that an action fails; 0 in half of the seeds
	clean   bool    // nothing ever goes wrong: the promises about time hold
	calmed  bool
	skew    time.Duration // of the wall clock against the loop
	boot    int           // counts restarts of the machine
	apiUp   time.Time     // the API server is away until then
	slow    time.Time     // the registry is slow until then
	mounts  uint64        // counts changes of volumes
	late    time.Time     // calls of an agent that ended then or before are lost
	pods    []*object     // with those that this run has
	agent   agent
	volumes map[types.UID]podlife.VolumeState // looked up, never ranged over
}

// object is a pod in the API server and what the world knows of it.
type object struct {
	pod     *corev1.Pod
	exists  bool
	final   corev1.PodPhase
	truth   map[string]*truth // by container; looked up, never ranged over
	updated bool              // the spec was changed at some time, or has rules
	upset   bool              // its sandbox or a container was harmed from outside
	asked   time.Time         // when its end was asked for first
	grace   time.Duration
}

func (w *world) chance(p float64) bool { return p > 0 && w.rand.Float64() < p }

// upTo draws a duration below d, in milliseconds.
func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rand.Int64N(int64(d/time.Millisecond)+1)) * time.Millisecond
}

func (w *world) after(d time.Duration, do func()) func() { return w.loop.AfterFunc(d, do) }

// logf writes a line of the log; the digest is over all of them.
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

// now is the wall clock of the machine, which may jump; time in the loop does not.
func (w *world) now() time.Time { return w.loop.now.Add(w.skew) }

// clock is the machine's as its runtime sees it.
type clock struct{ w *world }

func (c clock) Now() time.Time { return c.w.now() }

func (c clock) AfterFunc(d time.Duration, do func()) func() { return c.w.after(d, do) }

// populate makes the node, its pods and everything that will happen to them.
func (w *world) populate() {
	w.clean = w.chance(0.5)
	if !w.clean {
		if w.fault = w.rand.Float64() * 0.4; !w.element() {
			w.fault = 0
		}
	}
	w.result.Seed, w.result.Faulty = w.opts.Seed, !w.clean
	w.volumes = map[types.UID]podlife.VolumeState{}
	w.boot = 1
	w.runtime = runtimesim.New(runtimesim.Config{
		Clock: clock{w}, Behaviour: w.behaviour,
		PullError: func(string) error {
			if w.chance(w.fault / 2) {
				return errors.New("the registry is unavailable")
			}
			return nil
		},
	})
	w.agent = agent{w: w, began: epoch}
	w.runtime.Listen(w.agent.hear)
	n := 1 + w.rand.IntN(3)
	for i := range n {
		o := &object{pod: w.newPod(i), exists: true, truth: map[string]*truth{}}
		for _, list := range [][]corev1.Container{o.pod.Spec.InitContainers, o.pod.Spec.Containers} {
			for _, c := range list {
				o.updated = o.updated || c.RestartPolicyRules != nil // the model of back-off knows no rules
			}
		}
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
	if !w.clean {
		w.planFaults()
	}
	w.after(time.Minute, w.agent.relist)
}

func (w *world) horizon() time.Duration { return time.Duration(w.opts.Hours * float64(time.Hour)) }

// sometime does something before the horizon, unless this run leaves it out.
func (w *world) sometime(do func()) {
	at := w.upTo(w.horizon())
	if w.element() {
		w.after(at, do)
	}
}

// plan decides what users and accidents do to a pod.
func (w *world) plan(o *object) {
	if w.chance(0.6) {
		w.sometime(func() { w.delete(o, int64(w.rand.IntN(40))) })
		if w.chance(0.3) {
			w.sometime(func() { w.delete(o, int64(w.rand.IntN(5))) })
		}
	}
	if w.chance(0.15) {
		w.sometime(func() { w.forceDelete(o) })
	}
	if w.chance(0.15) {
		w.sometime(func() { w.stop(o) })
	}
	if w.chance(0.25) {
		w.sometime(func() { w.update(o) })
	}
	if w.chance(0.1) {
		w.sometime(func() { w.debug(o) })
	}
	if w.clean {
		return
	}
	for range w.rand.IntN(4) {
		w.sometime(func() { w.accident(o) })
	}
}

// ask notes that the end of a pod was asked for.
func (o *object) ask(at time.Time, grace time.Duration) {
	if o.asked.IsZero() {
		o.asked, o.grace = at, grace
	}
	o.grace = min(o.grace, grace)
}

func tgps(p *corev1.Pod) time.Duration {
	return time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
}

// delete is a DELETE of the API (L1.90–L1.93).
func (w *world) delete(o *object, grace int64) {
	if !o.exists {
		return
	}
	if w.loop.now.Before(w.apiUp) {
		w.after(w.apiUp.Sub(w.loop.now), func() { w.delete(o, grace) })
		return
	}
	p := o.pod.DeepCopy()
	if ended(p.Status.Phase) {
		grace = 0
	}
	if g := p.DeletionGracePeriodSeconds; g != nil && grace >= *g {
		return
	}
	w.logf("%s delete grace=%d", p.Name, grace)
	at := metav1.NewTime(w.loop.now.Add(time.Duration(grace) * time.Second))
	if p.DeletionTimestamp == nil {
		p.Generation++
	}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	o.pod = p
	if grace == 0 {
		o.exists = false
	}
	w.agent.notify(o)
}

// forceDelete removes the object at once; the agent may only see that it is gone.
func (w *world) forceDelete(o *object) {
	if o.exists && !w.loop.now.Before(w.apiUp) {
		w.delete(o, 0)
		o.exists = false
		w.logf("%s is gone", o.pod.Name)
		w.agent.notify(o)
	}
}

// stop is eviction, preemption or the shutdown of the node (L3.40, L7.150, L7.156).
func (w *world) stop(o *object) {
	own := w.agent.find(o)
	if own == nil || own.stop != nil {
		return
	}
	grace := time.Duration(w.rand.IntN(20)) * time.Second
	own.stop = &podlife.Stop{Reason: []string{"Evicted", "Preempting", "Terminated"}[w.rand.IntN(3)], Message: "The node is under pressure.", Grace: &grace}
	if w.chance(0.3) {
		own.stop.Grace, grace = nil, tgps(o.pod)
	}
	w.logf("%s stop %s grace=%v", o.pod.Name, own.stop.Reason, grace)
	o.ask(w.loop.now, min(grace, tgps(o.pod)))
	own.step()
}

// debug adds an ephemeral container.
func (w *world) debug(o *object) {
	if !o.exists || o.pod.DeletionTimestamp != nil {
		return
	}
	p := o.pod.DeepCopy()
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: fmt.Sprintf("debug%d", len(p.Spec.EphemeralContainers)), Image: "image0", ImagePullPolicy: corev1.PullIfNotPresent}})
	p.Generation++
	o.pod = p
	w.logf("%s has an ephemeral container", p.Name)
	w.agent.notify(o)
}

// update changes the image of a container (L3.68).
func (w *world) update(o *object) {
	if !o.exists {
		return
	}
	p := o.pod.DeepCopy()
	c := &p.Spec.Containers[w.rand.IntN(len(p.Spec.Containers))]
	c.Image += "+"
	p.Generation++
	o.pod, o.updated = p, true
	w.logf("%s image of %s is %s", p.Name, c.Name, c.Image)
	w.agent.notify(o)
}

// behaviour is what the process of a container does.
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
	if w.chance(0.1) {
		b.TermCode = 0
	}
	if w.chance(0.03) {
		b.StartErr = "exec: no such file"
	}
	return b
}

func ended(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
