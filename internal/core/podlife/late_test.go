package podlife

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podlife/pull"
	"carob/internal/core/podstatus"
)

// A probe result of an earlier instance does not count for the running one (L5.12).
func TestProbeOfAnotherInstance(t *testing.T) {
	s, in := steady()
	in.Pod.Spec.Containers[0].LivenessProbe.FailureThreshold = 1
	in.Now = in.Now.Add(time.Second)
	in.Probes = []ProbeResult{{Key: "probe/a/Liveness/7", Container: "a", ContainerID: "a-before", Type: Liveness,
		At: in.Now, Verdict: ProbeFailure}}
	if _, out := Step(s, in); len(out.Begin)+len(out.Events) > 0 {
		t.Errorf("it is acted on: %v %v", out.Begin, out.Events)
	}
}

// If two sandboxes are ready, both are stopped. When one is gone, the other seems usable again:
// nothing may start in it while it is being stopped (L3.57).
func TestSandboxThatIsBeingStopped(t *testing.T) {
	_, in := steady()
	in.Observed.Containers = nil
	in.Observed.Sandboxes = []Sandbox{{ID: "sb1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.6"}},
		{ID: "sb0", Ready: true, IPs: []string{"10.0.0.5"}}}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	s, out := Step(State{}, in)
	if len(out.Begin) != 2 {
		t.Fatalf("begins %v", out.Begin)
	}
	in.Now = in.Now.Add(time.Second)
	in.Observed.Sandboxes = []Sandbox{in.Observed.Sandboxes[0], {ID: "sb0"}}
	in.Done = []Outcome{{Key: StopSandbox{SandboxID: "sb0"}.Key(), At: in.Now}}
	s, out = Step(s, in)
	if begins(out, "start/a/0") {
		t.Errorf("begins %v while the sandbox is stopped", out.Begin)
	}
	in.Observed.Sandboxes = []Sandbox{{ID: "sb1", Attempt: 1}, {ID: "sb0"}}
	in.Done = []Outcome{{Key: StopSandbox{SandboxID: "sb1"}.Key(), At: in.Now}}
	if _, out = Step(s, in); !begins(out, CreateSandbox{Attempt: 2}.Key()) {
		t.Errorf("begins %v", out.Begin)
	}
}

// One container has the pull policy Never, another one pulls the same image: it does not wait for
// the first one's back-off, because both would wait forever (L3.100, L3.109).
func TestPullIgnoresBackOffOfPolicyNever(t *testing.T) {
	_, in := steady()
	in.Observed.Containers = nil
	in.Pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
	in.Observed.Images = []ImageState{{Image: "nginx"}}
	_, out := Step(State{}, in)
	if !begins(out, "pull/b") || begins(out, "pull/a") {
		t.Errorf("begins %v", out.Begin)
	}
}

// The runtime cannot inspect an image, which a container has with the policy IfNotPresent; another one with the policy
// Always pulls it all the same: seed 507439 (L3.101).
func TestPullIgnoresFailedInspection(t *testing.T) {
	_, in := steady()
	in.Observed.Containers = nil
	in.Pod.Spec.Containers[0].ImagePullPolicy = corev1.PullIfNotPresent
	in.Pod.Spec.Containers[1].ImagePullPolicy = corev1.PullAlways
	in.Observed.Images = []ImageState{{Image: "nginx", Err: "input/output error"}}
	s, out := Step(State{}, in)
	if !begins(out, "pull/b") || begins(out, "pull/a") {
		t.Fatalf("begins %v", out.Begin)
	}
	// The pull fails: now its back-off counts, also where inspections fail in between.
	pulls := 0
	for range 600 {
		in.Now, in.Done = in.Now.Add(time.Second), nil
		if begins(out, "pull/b") {
			pulls++
			in.Done = []Outcome{{Key: "pull/b", At: in.Now, Err: &Failure{Message: "no such image"}}}
		}
		s, out = Step(s, in)
	}
	if pulls < 3 || pulls > 12 {
		t.Errorf("%d pulls in ten minutes", pulls)
	}
}

// A start that was aborted has made a container all the same: the image was pulled for it, and is pulled again for the
// next one, whether the container is seen with the end of the start or later: seed 800247 (L3.100).
func TestAbortedStartUsesThePull(t *testing.T) {
	for _, later := range []int{0, 1} {
		_, in := steady()
		in.Observed.Containers = nil
		in.Pod.Spec.Containers = in.Pod.Spec.Containers[:1]
		in.Pod.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		s, out := Step(State{}, in)
		if !begins(out, "pull/a") {
			t.Fatalf("begins %v", out.Begin)
		}
		in.Done = []Outcome{{Key: "pull/a", At: in.Now, Pulled: &Pulled{Ref: "sha256:nginx"}}}
		if s, out = Step(s, in); !begins(out, "start/a/0") {
			t.Fatalf("begins %v", out.Begin)
		}
		in.Done = []Outcome{{Key: "start/a/0", At: in.Now, Err: &Failure{Reason: "Aborted", Message: "aborted"}}}
		for i := range 600 {
			if i == later {
				in.Observed.Containers = []Container{{Name: "a", ID: "a0", SandboxID: in.Observed.Sandboxes[0].ID,
					State: ContainerExited, ExitCode: 137, FinishedAt: in.Now}}
			}
			s, out = Step(s, in)
			if begins(out, "start/a/1") {
				t.Errorf("seen %d s later: started without a pull", later)
			}
			if begins(out, "pull/a") || begins(out, "start/a/1") {
				break
			}
			in.Now, in.Done = in.Now.Add(time.Second), nil
		}
		if !begins(out, "pull/a") {
			t.Errorf("seen %d s later: begins %v", later, out.Begin)
		}
	}
}

// A snapshot from before the pod named an image has no state of it: Step requests a new snapshot at
// once, before it pulls or refuses the image (L3.101).
func TestImageMissingInSnapshot(t *testing.T) {
	_, in := steady()
	in.Observed.Containers, in.Observed.Images = nil, nil
	s, out := Step(State{}, in)
	if len(out.Begin)+len(out.Events) > 0 || !out.Look.Equal(in.Now) {
		t.Errorf("begins %v, reports %v, looks at %v", out.Begin, out.Events, out.Look)
	}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	if _, out = Step(s, in); !begins(out, "start/a/0") || !out.Look.IsZero() {
		t.Errorf("begins %v, looks at %v", out.Begin, out.Look)
	}
}

// While a pod waits for an image, the snapshot may be at most ten seconds old, whatever the
// back-off, because the image may arrive without an event. This does not apply to pull policy
// Always (L3.104, L3.113).
func TestSnapshotAgeWhileWaitingForImage(t *testing.T) {
	for _, tt := range []struct {
		policy corev1.PullPolicy
		old    time.Duration // age of the snapshot
		want   time.Duration // from now; negative: none
	}{
		{corev1.PullNever, 0, 10 * time.Second}, {corev1.PullNever, 7 * time.Second, 3 * time.Second},
		{corev1.PullNever, time.Hour, 0},
		{corev1.PullIfNotPresent, 0, 10 * time.Second}, {corev1.PullAlways, 0, -1},
	} {
		s, in := steady()
		in.Observed.Containers = nil
		in.Pod.Spec.Containers = in.Pod.Spec.Containers[:1]
		in.Pod.Spec.Containers[0].ImagePullPolicy = tt.policy
		in.Observed.Images = []ImageState{{Image: "nginx"}}
		s.Images = pull.Backoffs{{Image: "nginx", Delay: 5 * time.Minute, At: in.Now, Reason: reasonErrImagePull}}
		in.Observed.Taken = in.Now.Add(-tt.old)
		_, out := Step(s, in)
		if want := in.Now.Add(tt.want); tt.want >= 0 && !out.Look.Equal(want) || tt.want < 0 && !out.Look.IsZero() {
			t.Errorf("%s, a snapshot of %v ago: looks at %v, now is %v", tt.policy, tt.old, out.Look, in.Now)
		}
	}
}

// If a runtime reports success without doing the work, the action is repeated after a while, not at once.
func TestSuccessWithoutEffect(t *testing.T) {
	_, in := steady()
	in.Observed = Observed{}
	s, _ := Step(State{}, in)
	in.Now = in.Now.Add(time.Second)
	in.Done = []Outcome{{Key: PrepareVolumes{}.Key(), At: in.Now}}
	s, out := Step(s, in)
	for _, b := range out.Begin {
		if b.Action.Key() == (PrepareVolumes{}).Key() {
			t.Error("the volumes are prepared again at once")
		}
	}
	if want := in.Now.Add(time.Second); !out.Wake.Equal(want) {
		t.Errorf("wakes at %v, not at %v", out.Wake, want)
	}
	in.Now, in.Done = out.Wake, nil
	if _, out = Step(s, in); len(out.Begin) == 0 {
		t.Error("the volumes are not prepared again")
	}
}

// A container that was created and could not be started uses up its restart count, also if the
// runtime has removed it since (L3.88).
func TestCountOfAFailedStart(t *testing.T) {
	_, in := steady()
	in.Observed.Containers = in.Observed.Containers[1:]
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	s, _ := Step(State{}, in)
	in.Now = in.Now.Add(time.Second)
	in.Done = []Outcome{{Key: "start/a/0", At: in.Now,
		Err: &Failure{Reason: "RunContainerError", Message: "no", Created: true}}}
	s, out := Step(s, in)
	in.Now, in.Done = out.Wake, nil
	_, out = Step(s, in)
	for _, b := range out.Begin {
		if a, ok := b.Action.(StartContainer); ok && a.Container == "a" {
			if a.Attempt != 1 {
				t.Errorf("the next start has number %d", a.Attempt)
			}
			return
		}
	}
	t.Errorf("it is not started again: %v", out.Begin)
}

// The node's admission of an outdated resize grants nothing (L3.120).
func TestAdmissionOfAnOlderResize(t *testing.T) {
	s, in := steady()
	want := func(cpu string) {
		p := in.Pod.DeepCopy()
		p.Generation++
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		in.Pod = p
	}
	want("200m")
	s, out := Step(s, in)
	if !begins(out, "resize/admit/1") {
		t.Fatalf("not requested: %v", out.Begin)
	}
	want("900m")
	in.Done = []Outcome{{Key: "resize/admit/1", At: in.Now}}
	_, out = Step(s, in)
	if begins(out, "resize/widen") || !begins(out, "resize/admit/2") {
		t.Errorf("begins %v", out.Begin)
	}
}

// Termination messages share a total limit (L3.152).
func TestTerminationMessagesAreTruncated(t *testing.T) {
	s, in := steady()
	for i := range in.Observed.Containers {
		c := &in.Observed.Containers[i]
		c.State, c.FinishedAt, c.Message = ContainerExited, in.Now, strings.Repeat("m", 4097-i)
	}
	_, out := Step(s, in)
	for i, c := range out.Status.ContainerStatuses {
		if n := len(c.State.Terminated.Message); n != min(4096, 4097-i) {
			t.Errorf("%s: %d bytes", c.Name, n)
		}
	}
}

// A message is not cut in the middle of a character: the rest of it would be no text (L3.152).
func TestTerminationMessagesStayText(t *testing.T) {
	s, in := steady()
	for i := range in.Observed.Containers {
		c := &in.Observed.Containers[i]
		c.State, c.FinishedAt, c.Message = ContainerExited, in.Now, "m"+strings.Repeat("é", 4096)
	}
	_, out := Step(s, in)
	for _, c := range out.Status.ContainerStatuses {
		if m := c.State.Terminated.Message; len(m) != 4095 || m != "m"+strings.Repeat("é", 2047) {
			t.Errorf("%s: %d bytes, which end with %q", c.Name, len(m), m[len(m)-3:])
		}
	}
}

// A late older version of the pod does not lower the observed generation (L1.74).
func TestObservedGenerationNeverFalls(t *testing.T) {
	s, in := steady()
	newer := in.Pod.DeepCopy()
	newer.Generation = 3
	older := in.Pod
	in.Pod = newer
	s, _ = Step(s, in)
	in.Pod = older
	_, out := Step(s, in)
	if g := out.Status.ObservedGeneration; g != 3 {
		t.Errorf("the status observes generation %d", g)
	}
	for _, c := range out.Status.Conditions {
		if c.ObservedGeneration != 3 {
			t.Errorf("%s observes generation %d", c.Type, c.ObservedGeneration)
		}
	}
}

// Of two ready sandboxes, one cannot be stopped and becomes the pod's sandbox. Init starts over in
// it, also for containers that are not restarted after success (L3.62).
func TestInitStartsOverInRemainingSandbox(t *testing.T) {
	_, in := steady()
	in.Pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	in.Pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "nginx"}}
	in.Observed.Containers = []Container{{ID: "init-0", Name: "init", SandboxID: "sb0", State: ContainerExited,
		FinishedAt: in.Now}}
	in.Observed.Sandboxes = []Sandbox{{ID: "sb1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.6"}}, {ID: "sb0"}}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	if _, out := Step(State{}, in); !begins(out, "start/init/1") {
		t.Errorf("begins %v, waits for %v", out.Begin, out.Waits)
	}
}

// The sandbox of a pod that never restarts has ended, and a late call has created a second one: no container starts in
// it, neither an init container that has succeeded nor a regular one that never ran; the pod ends (L3.63, L4.34).
func TestSecondSandboxOfPodThatNeverRestarts(t *testing.T) {
	_, in := steady()
	in.Pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	in.Pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "nginx"}}
	in.Observed.Containers = []Container{{ID: "init-0", Name: "init", SandboxID: "sb0", State: ContainerExited,
		Reason: reasonCompleted, FinishedAt: in.Now}}
	in.Observed.Sandboxes = []Sandbox{{ID: "sb1", Attempt: 1, Ready: true, IPs: []string{"10.0.0.6"}}, {ID: "sb0"}}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	var s State
	var out Output
	for range 20 {
		s, out = Step(s, in)
		in.Now, in.Done = in.Now.Add(time.Second), nil
		for _, b := range out.Begin {
			switch a := b.Action.(type) {
			case StartContainer:
				t.Fatalf("%s starts in the second sandbox", a.Container)
			case StopSandbox:
				for i := range in.Observed.Sandboxes {
					if in.Observed.Sandboxes[i].ID == a.SandboxID {
						in.Observed.Sandboxes[i].Ready = false
					}
				}
			}
			in.Done = append(in.Done, Outcome{Key: b.Action.Key(), At: in.Now})
		}
	}
	if out.Status.Phase != corev1.PodFailed {
		t.Errorf("the pod is %s and waits for %v", out.Status.Phase, out.Waits)
	}
}

// A postStart hook is aborted when its container ends, even while the aborted hook of the instance
// before has not been reported yet (L6.2).
func TestSecondPostStartIsAborted(t *testing.T) {
	s, in := steady()
	in.Pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	a := &in.Observed.Containers[0]
	exit := func() (out Output) {
		in.Now = in.Now.Add(time.Hour) // no back-off
		a.State, a.FinishedAt, in.Done = ContainerExited, in.Now, nil
		s, out = Step(s, in)
		return out
	}
	exit()
	for _, id := range []string{"a-1", "a-2"} {
		started := StartContainer{Container: "a", Attempt: a.Attempt + 1}.Key()
		a.ID, a.State, a.StartedAt, a.Attempt = id, ContainerRunning, in.Now, a.Attempt+1
		in.Done = []Outcome{{Key: started, At: in.Now}}
		var out Output
		hook := RunHook{Kind: PostStart, ContainerID: id}.Key()
		if s, out = Step(s, in); !begins(out, hook) {
			t.Fatalf("begins %v", out.Begin)
		}
		if out = exit(); len(out.Cancel) == 0 || out.Cancel[len(out.Cancel)-1] != hook {
			t.Errorf("%s ended, cancelled is %v", id, out.Cancel)
		}
	}
}

// An init container without an instance and without a status counts as done when a regular
// container exists (L4.33): the agent restarted, and the instance had been removed.
func TestInitContainerWithoutInstanceAndStatus(t *testing.T) {
	_, in := steady()
	in.Pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "nginx"}}
	in.Pod.Status = corev1.PodStatus{}
	_, out := Step(Recover(in.Pod, in.Observed), in)
	if s := out.Status.InitContainerStatuses[0]; s.State.Terminated == nil || !s.Ready || begins(out, "start/init/0") {
		t.Errorf("%+v, begins %v", s, out.Begin)
	}
}

// The runtime has lost all containers of a pod that never restarts: the pod is not run again, and
// its init containers keep their terminated states (L3.63, L7.81, L4.34).
func TestLostPodWithRestartPolicyNever(t *testing.T) {
	_, in := steady()
	in.Pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	in.Observed.Sandboxes, in.Observed.Containers = nil, nil
	in.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "a", ContainerID: "carob://a-0",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "carob://a-0",
				Reason: "Completed"}}}}}
	_, out := Step(Recover(in.Pod, in.Observed), in)
	if out.Life == Syncing || begins(out, CreateSandbox{}.Key()) {
		t.Errorf("%s, begins %v", out.Life, out.Begin)
	}
}

// A grace period that is longer than a duration can be is as good as none: it is not a short one (L7.15).
func TestEndlessGrace(t *testing.T) {
	for _, grace := range []int64{math.MaxInt64, math.MaxInt64 / int64(time.Second), 10e9} {
		s, in := steady()
		in.Pod.Spec.TerminationGracePeriodSeconds = &grace
		in.Pod.DeletionTimestamp = &metav1.Time{Time: in.Now}
		in.Pod.DeletionGracePeriodSeconds = &grace
		in.Now = in.Now.Add(time.Second)
		_, out := Step(s, in)
		stops := 0
		for _, b := range out.Begin {
			if stop, ok := b.Action.(StopContainer); ok {
				stops++
				if stop.Grace < 99*365*24*time.Hour {
					t.Errorf("grace of %d seconds: a container is killed after %s", grace, stop.Grace)
				}
			}
		}
		if stops == 0 {
			t.Errorf("grace of %d seconds: nothing is stopped: %v", grace, out.Begin)
		}
	}
}

// After a restart of all containers, a container vanishes that must not run again: no later Step takes the end that
// the restart made up, which is still shown, for its end (L7.73).
func TestLostAfterRestartOfAll(t *testing.T) {
	s, in := steady()
	never, first := corev1.ContainerRestartPolicyNever, &in.Pod.Spec.Containers[0]
	first.RestartPolicy, first.LivenessProbe = &never, nil
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	s.Last.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
		ExitCode: unknownExitCode, Reason: reasonRestartingAll}
	in.Observed.Containers = in.Observed.Containers[1:]
	for range 3 {
		in.Now = in.Now.Add(time.Minute)
		var out Output
		if s, out = Step(s, in); begins(out, "start/a/1") || begins(out, "start/a/0") {
			t.Errorf("begins %v", out.Begin)
		}
	}
}

// A pod that the node refuses after a restart of the agent keeps its status until its containers have ended. Its
// readiness gate, which was closed meanwhile, counts all the same: seed 508355 (L4.54, L7.70).
func TestGateOfRefusedPod(t *testing.T) {
	s, in := steady()
	const gate = "example.com/in-rotation"
	in.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	in.Pod.Status.Conditions = []corev1.PodCondition{{Type: gate, Status: corev1.ConditionTrue}}
	_, out := Step(s, in)
	if c := podstatus.Condition(out.Status.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
		t.Fatalf("before the restart: %v", c)
	}
	in.Pod.Status = out.Status
	for i := range in.Pod.Status.Conditions {
		if c := &in.Pod.Status.Conditions[i]; c.Type == gate {
			c.Status = corev1.ConditionFalse
		}
	}
	in.Reject = &Rejection{Reason: "OutOfcpu", Message: "too much"}
	_, out = Step(State{}, in)
	if out.Status.Phase != corev1.PodRunning {
		t.Fatalf("the pod is %s", out.Status.Phase)
	}
	if c := podstatus.Condition(out.Status.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("its gate is closed: %v", c)
	}
}
