package sim

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/core/podstatus"
)

// truth is the actual state of one container of a pod.
type truth struct {
	name        string
	running     string // instance
	obscure     bool   // the runtime reports an unknown state
	failsProbes bool   // most of them
	sandbox     string // sandbox of the last start or success
	started     bool   // in that sandbox
	done        bool   // exited with 0 in that sandbox
	pulled      bool   // since its last start
	wasStopped  bool   // the last instance was killed
	attempt     int
	due         time.Time // earliest time of a restart
	exits       int
	delay       time.Duration
	decided     time.Time
	vague       bool      // the model of the back-off has no exact time
	stopping    time.Time // since when; zero if not
	runs        int       // runs of the liveness probe
	fails       int       // consecutive
	lastProbe   time.Time
	lastStart   time.Time
	lastSeen    time.Time // started, or exited after it had run
	logs        []int     // restart counts of the log files on the disk
}

func (t *truth) stops(at time.Time) {
	if t.stopping.IsZero() {
		t.stopping = at
	}
}

func (o *object) container(name string) *truth {
	t := o.truth[name]
	if t == nil {
		t = &truth{name: name}
		o.truth[name] = t
	}
	return t
}

// containerStarts records a start.
func (w *world) containerStarts(own *owner, a podlife.StartContainer, id string) {
	o := own.object
	t := o.container(a.Container)
	if t.sandbox != a.SandboxID {
		t.done = false
	}
	t.running, t.sandbox, t.started, t.attempt, t.stopping, t.obscure = id, a.SandboxID, true, a.Attempt, time.Time{},
		false
	t.lastStart, t.lastSeen = w.loop.now, w.loop.now
	t.failsProbes, t.runs, t.fails = w.chance(0.15), 0, 0
	c, _, _ := containerOf(own.pod, a.Container)
	if c == nil {
		return // ephemeral
	}
	if p := c.LivenessProbe; p != nil && w.clean && c.StartupProbe == nil && c.Lifecycle == nil && !o.updated {
		period, delay := time.Duration(p.PeriodSeconds)*time.Second, time.Duration(p.InitialDelaySeconds)*time.Second
		w.after(delay+time.Minute, func() {
			if t.running == id && t.stopping.IsZero() && o.requested.IsZero() && !o.updated &&
				t.runs < int(time.Minute/period)-2 {
				w.broken(probedInTime, o.pod.Name, "%s was probed %d times in a minute", id, t.runs)
			}
		})
	}
}

// containerEnded records an exit, with a model of the crash back-off.
func (w *world) containerEnded(id string) {
	for _, o := range w.pods {
		for _, c := range containers(o.pod) {
			if t := o.truth[c.Name]; t != nil && t.running == id {
				w.ended(o, c, t)
			}
		}
		for i := range o.pod.Spec.EphemeralContainers {
			if t := o.truth[o.pod.Spec.EphemeralContainers[i].Name]; t != nil && t.running == id {
				t.running = ""
			}
		}
	}
}

func (w *world) ended(o *object, c *corev1.Container, t *truth) {
	now := w.loop.now
	st, err := w.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: t.running})
	code := int32(-1)
	if err == nil {
		code = st.Status.ExitCode
	}
	t.done = code == 0
	t.wasStopped = !t.stopping.IsZero()
	w.logf("%s %s (%s) ends with %d", o.pod.Name, c.Name, t.running, code)
	t.running, t.lastSeen, t.obscure = "", now, false
	t.exits++
	limit := w.backoffMax
	if limit == 0 {
		limit = 300 * time.Second
	}
	wait := t.delay
	if since := now.Sub(t.decided); t.delay > 0 && since > 2*limit-time.Second && since < 2*limit+time.Second {
		t.vague = true // too close to the limit to decide
	} else if since > 2*limit {
		wait = 0
	}
	t.due = now.Add(wait)
	t.decided = t.due
	t.delay = max(min(10*time.Second, limit), min(2*wait, limit))
	if !w.clean || o.upset || o.updated || strings.HasPrefix(c.Name, "init") ||
		o.pod.Spec.RestartPolicy != corev1.RestartPolicyAlways && !strings.HasPrefix(c.Name, "side") {
		return
	}
	exits := t.exits
	w.after(wait+40*time.Second, func() {
		own := w.agent.find(o)
		if own != nil && own.stage == podlife.Syncing && !o.updated && t.exits == exits && t.running == "" {
			w.broken(restartedInTime, o.pod.Name, "%s exited, and has not restarted 40 s after its back-off of %v", c.Name, wait)
		}
	})
}

// probed records a run of a probe.
func (w *world) probed(o *object, t *truth, a podlife.RunProbe, v podlife.ProbeVerdict) {
	t.lastProbe = w.loop.now
	if a.Type != podlife.Liveness {
		return
	}
	t.runs++
	switch v {
	case podlife.ProbeSuccess, podlife.ProbeWarning: // a warning is a success (L5.22)
		t.fails = 0
	case podlife.ProbeFailure:
		t.fails++
	case podlife.ProbeError: // counts as neither
	}
	if t.fails != int(a.Probe.FailureThreshold) || !w.clean {
		return
	}
	w.after(5*time.Second, func() {
		if t.running == a.ContainerID && t.stopping.IsZero() && o.requested.IsZero() {
			w.broken(livenessKills, o.pod.Name, "%s failed %d times and continues", a.ContainerID, t.fails)
		}
	})
}

// checkKilledInTime starts to check a pod that must end.
func (w *world) checkKilledInTime(o *object) {
	if !w.clean || o.requested.IsZero() {
		return
	}
	left := max(o.requested.Add(max(o.grace, 2*time.Second)+10*time.Second).Sub(w.loop.now), 10*time.Second)
	w.after(left, func() { w.checkNothing(o, "", killedInTime, "its grace is over") })
	w.after(left+30*time.Second, func() {
		if o.exists && o.pod.DeletionTimestamp != nil && !o.finalizer && !o.static {
			w.broken(deletedEnds, o.pod.Name, "was deleted at +%v with %v", o.requested.Sub(epoch), o.grace)
		}
		if own := w.agent.find(o); own != nil && own.stopped && !podstatus.Terminal(own.published.Phase) {
			w.broken(stoppedEnds, o.pod.Name, "stopped at +%v, is %s", o.requested.Sub(epoch), own.published.Phase)
		}
	})
}
