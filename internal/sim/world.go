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
	pods    []*object
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
	line := fmt.Sprintf("+%v %s\n", w.loop.now.Sub(epoch), fmt.Sprintf(format, args...))
	w.digest.Write([]byte(line))
	if w.opts.Log != nil {
		fmt.Fprint(w.opts.Log, line)
	}
}

// populate makes the node, its pods and everything that will happen to them.
func (w *world) populate() {
	w.clean = w.chance(0.5)
	if !w.clean {
		w.fault = w.rand.Float64() * 0.4
	}
	w.result.Seed, w.result.Faulty = w.opts.Seed, !w.clean
	w.volumes = map[types.UID]podlife.VolumeState{}
	w.runtime = runtimesim.New(runtimesim.Config{
		Clock: &w.loop, Behaviour: w.behaviour,
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
		for _, c := range o.pod.Spec.Containers {
			o.updated = o.updated || c.RestartPolicyRules != nil // the model of back-off knows no rules
		}
		w.pods = append(w.pods, o)
		w.after(w.upTo(30*time.Second), func() { w.agent.add(o) })
		w.plan(o)
	}
	w.result.Pods = n
	if !w.clean {
		for range w.rand.IntN(5) {
			w.after(w.upTo(w.horizon()), w.agent.crash)
		}
	}
	w.after(time.Minute, w.agent.relist)
}

func (w *world) horizon() time.Duration { return time.Duration(w.opts.Hours * float64(time.Hour)) }

// plan decides what users and accidents do to a pod.
func (w *world) plan(o *object) {
	if w.chance(0.6) {
		w.after(w.upTo(w.horizon()), func() { w.delete(o, int64(w.rand.IntN(40))) })
		if w.chance(0.3) {
			w.after(w.upTo(w.horizon()), func() { w.delete(o, int64(w.rand.IntN(5))) })
		}
	}
	if w.chance(0.15) {
		w.after(w.upTo(w.horizon()), func() { w.forceDelete(o) })
	}
	if w.chance(0.1) {
		w.after(w.upTo(w.horizon()), func() {
			if own := w.agent.find(o); own != nil && own.stop == nil {
				grace := time.Duration(w.rand.IntN(20)) * time.Second
				own.stop = &podlife.Stop{Reason: "Evicted", Message: "The node was low on resource: memory. ", Grace: &grace}
				w.logf("%s evict grace=%v", o.pod.Name, grace)
				o.ask(w.loop.now, min(grace, tgps(o.pod)))
				own.step()
			}
		})
	}
	if w.chance(0.25) {
		w.after(w.upTo(w.horizon()), func() { w.update(o) })
	}
	if w.clean {
		return
	}
	for range w.rand.IntN(3) {
		w.after(w.upTo(w.horizon()), func() { w.accident(o) })
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
	if o.exists {
		w.delete(o, 0)
		o.exists = false
		w.logf("%s is gone", o.pod.Name)
		w.agent.notify(o)
	}
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

// accident harms a pod from outside its agent.
func (w *world) accident(o *object) {
	o.upset = true
	sandboxes, containers := w.list(o.pod.UID)
	switch w.rand.IntN(3) {
	case 0:
		if len(sandboxes) > 0 {
			id := sandboxes[len(sandboxes)-1].Id
			w.logf("%s sandbox %s dies", o.pod.Name, id)
			w.runtime.KillSandbox(id)
		}
	case 1:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			w.logf("%s container %s is killed", o.pod.Name, id)
			w.runtime.End(id, 137, "")
		}
	case 2:
		if len(containers) > 0 {
			id := containers[w.rand.IntN(len(containers))].Id
			w.logf("%s container %s vanishes", o.pod.Name, id)
			_, _ = w.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		}
	}
}

// calm ends all faults and deletes what is left.
func (w *world) calm() {
	w.calmed, w.fault = true, 0
	w.logf("calm")
	for _, o := range w.pods {
		w.delete(o, 30)
	}
}

// behaviour is what the process of a container does.
func (w *world) behaviour(c *cri.ContainerConfig) runtimesim.Behaviour {
	b := runtimesim.Behaviour{Code: int32(w.rand.IntN(2)), TermCode: 143, Linger: w.upTo(3 * time.Second)}
	name := c.GetMetadata().GetName()
	switch {
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

// newPod draws a pod.
func (w *world) newPod(i int) *corev1.Pod {
	grace := int64(w.rand.IntN(40))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: "default", UID: types.UID(fmt.Sprintf("uid-%d", i)), Generation: 1},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace,
			RestartPolicy: []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}[w.rand.IntN(4)]},
	}
	always := corev1.ContainerRestartPolicyAlways
	for k := range max(0, w.rand.IntN(5)-1) {
		c := w.newContainer(fmt.Sprintf("init%d", k))
		if w.chance(0.5) {
			c.Name = fmt.Sprintf("side%d", k)
			c.RestartPolicy = &always
			w.probes(&c)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for k := range 1 + w.rand.IntN(3) {
		c := w.newContainer(fmt.Sprintf("app%d", k))
		w.probes(&c)
		if w.chance(0.08) {
			never := corev1.ContainerRestartPolicyNever
			c.RestartPolicy = &never
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action:    []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers}[w.rand.IntN(2)],
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
			}}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	if w.chance(0.1) {
		d := int64(1 + w.rand.IntN(3600))
		p.Spec.ActiveDeadlineSeconds = &d
	}
	return p
}

func (w *world) newContainer(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: fmt.Sprintf("image%d", w.rand.IntN(3)),
		ImagePullPolicy: []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullIfNotPresent, corev1.PullAlways}[w.rand.IntN(3)]}
	handler := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"hook"}}}
	if w.chance(0.2) && !strings.HasPrefix(name, "init") {
		c.Lifecycle = &corev1.Lifecycle{PreStop: handler}
		if w.chance(0.5) {
			c.Lifecycle.PostStart = handler
		}
	}
	return c
}

func (w *world) probes(c *corev1.Container) {
	probe := func() *corev1.Probe {
		return &corev1.Probe{PeriodSeconds: int32(1 + w.rand.IntN(15)), FailureThreshold: int32(1 + w.rand.IntN(3)), SuccessThreshold: 1,
			InitialDelaySeconds: int32(w.rand.IntN(2) * w.rand.IntN(20)), TimeoutSeconds: 1}
	}
	if w.chance(0.3) {
		c.LivenessProbe = probe()
	}
	if w.chance(0.3) {
		c.ReadinessProbe = probe()
	}
	if w.chance(0.2) {
		c.StartupProbe = probe()
	}
}

func ended(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
