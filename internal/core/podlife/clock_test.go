package podlife

import (
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
)

// set returns the value of time.Now at t after the wall clock was set by d: package time offers no
// other way to make a time whose two readings differ.
func set(t time.Time, d time.Duration) time.Time {
	w := (*uint64)(unsafe.Pointer(&t)) // Time.wall: a flag, 33 bits of seconds, 30 of nanoseconds
	*w += uint64(d/time.Second) << 30
	return t
}

func TestSet(t *testing.T) {
	now := time.Now()
	back := set(now, -time.Hour)
	if back.Sub(now) != 0 || back.Round(0).Sub(now.Round(0)) != -time.Hour {
		t.Fatalf("%v is not %v an hour earlier on the wall alone", back, now)
	}
}

// The wall clock is set while the agent runs: no wait becomes longer or shorter. Times from the
// runtime then use the new clock, times in the State the old one.
func TestWallClockChanges(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Run("crash back-off (L3.75)", func(t *testing.T) { crashOverClock(t, by) })
			t.Run("probe period (L5.11)", func(t *testing.T) { probeOverClock(t, by) })
			t.Run("deadline (L4.6)", func(t *testing.T) { deadlineOverClock(t, by) })
		})
	}
	t.Run("a younger container is not taken for an older one (L4.42)", youngerOverClock)
}

func running(id string, at time.Time) Container {
	return Container{ID: id, Name: "a", SandboxID: "sb0", State: ContainerRunning, StartedAt: at.Round(0),
		Image: "nginx", ImageRef: "sha256:nginx", Hash: DefinitionHash("a", "nginx")}
}

// alone returns a pod with one container that was started at t.
func alone(t time.Time) Input {
	_, in := steady()
	in.Now, in.Node.AgentStarted = t, t.Add(-time.Hour)
	in.Pod.Spec.Containers = in.Pod.Spec.Containers[:1]
	in.Pod.Spec.Containers[0].LivenessProbe = nil
	in.Observed.Containers = []Container{running("a-0", t)}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	return in
}

func begins(out Output, k Key) bool {
	for _, b := range out.Begin {
		if b.Action.Key() == k {
			return true
		}
	}
	return false
}

func crashOverClock(t *testing.T, by time.Duration) {
	now := time.Now()
	in := alone(now)
	s, _ := Step(State{}, in)
	exit := func(id string, attempt int, at time.Time) {
		c := running(id, now)
		c.Attempt, c.State, c.ExitCode, c.FinishedAt = attempt, ContainerExited, 1, at.Round(0)
		in.Observed.Containers = []Container{c}
	}
	in.Now = now.Add(time.Second)
	exit("a-0", 0, in.Now)
	s, out := Step(s, in)
	if !begins(out, "start/a/1") {
		t.Fatalf("the first restart is not at once: %v", out.Begin)
	}
	in.Now = now.Add(2 * time.Second)
	in.Done = []Outcome{{Key: "start/a/1", At: in.Now}}
	exit("a-1", 1, in.Now)
	s, out = Step(s, in)
	in.Done = nil
	if out.Wake.IsZero() {
		t.Fatal("no wake")
	}
	for _, after := range []time.Duration{5, 11} { // an hour is set in between
		in.Now = set(now.Add(after*time.Second), by)
		s, out = Step(s, in)
		if begins(out, "start/a/2") {
			t.Fatalf("started %d s after the exit", after-2)
		}
	}
	in.Now = set(now.Add(12*time.Second), by)
	s, out = Step(s, in)
	if !begins(out, "start/a/2") {
		t.Fatalf("not started 10 s after the exit: wake in %v", out.Wake.Sub(in.Now))
	}
	in.Now = set(now.Add(13*time.Second), by)
	in.Done = []Outcome{{Key: "start/a/2", At: in.Now}}
	exit("a-2", 2, in.Now)
	s, _ = Step(s, in)
	in.Done = nil
	in.Now = set(now.Add(32*time.Second), by)
	if s, out = Step(s, in); begins(out, "start/a/3") {
		t.Fatal("the back-off of 20 s is not kept by times of the new clock")
	}
	in.Now = set(now.Add(33*time.Second), by)
	if _, out = Step(s, in); !begins(out, "start/a/3") {
		t.Fatal("the back-off of 20 s takes longer by times of the new clock")
	}
}

func probeOverClock(t *testing.T, by time.Duration) {
	now := time.Now()
	in := alone(now)
	in.Pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 10, InitialDelaySeconds: 5}
	s, out := Step(State{}, in)
	if want := now.Add(5 * time.Second); !out.Wake.Equal(want) {
		t.Fatalf("wakes at %v, not at %v", out.Wake, want)
	}
	in.Now = set(now.Add(5*time.Second), by)
	s, out = Step(s, in)
	if !begins(out, "probe/a/Readiness/1") {
		t.Fatalf("the first probe does not begin: wake in %v", out.Wake.Sub(in.Now))
	}
	in.Probes = []ProbeResult{{Key: "probe/a/Readiness/1", Container: "a", ContainerID: "a-0", Type: Readiness,
		At: in.Now, Verdict: ProbeSuccess}}
	s, out = Step(s, in)
	in.Probes = nil
	if wait := out.Wake.Sub(in.Now); wait != 10*time.Second {
		t.Fatalf("the next probe is in %v", wait)
	}
	in.Now = set(now.Add(15*time.Second), by)
	if _, out = Step(s, in); !begins(out, "probe/a/Readiness/2") {
		t.Fatal("the second probe does not begin")
	}
}

func deadlineOverClock(t *testing.T, by time.Duration) {
	now := time.Now()
	in := alone(now)
	limit := int64(60)
	in.Pod.Spec.ActiveDeadlineSeconds = &limit
	s, _ := Step(State{}, in)
	in.Now = set(now.Add(58*time.Second), by)
	s, out := Step(s, in)
	if out.Life != Syncing {
		t.Fatal("ends before its deadline")
	}
	in.Now = set(now.Add(60*time.Second), by)
	if _, out = Step(s, in); out.Life != Terminating {
		t.Fatalf("continues after its deadline: wake in %v", out.Wake.Sub(in.Now))
	}
}

func youngerOverClock(t *testing.T) {
	now := time.Now()
	in := alone(now)
	in.Node.AgentStarted = now
	in.Pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 10}
	in.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	in.Observed.Containers = nil
	s := Recover(in.Pod, in.Observed)
	s, _ = Step(s, in)
	in.Now = set(now.Add(time.Second), -time.Hour)
	in.Done = []Outcome{{Key: "start/a/0", At: in.Now}}
	in.Observed.Containers = []Container{running("a-0", in.Now)}
	if _, out := Step(s, in); out.Status.ContainerStatuses[0].Ready {
		t.Error("ready before its probe succeeded")
	}
}
