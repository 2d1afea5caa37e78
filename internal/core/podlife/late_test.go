package podlife

import (
	"testing"
	"time"
)

// A probe of an instance that is no more says nothing of the one that runs (L5.12).
func TestProbeOfAnotherInstance(t *testing.T) {
	s, in := steady()
	in.Pod.Spec.Containers[0].LivenessProbe.FailureThreshold = 1
	in.Now = in.Now.Add(time.Second)
	in.Probes = []ProbeResult{{Key: "probe/a/Liveness/7", Container: "a", ContainerID: "a-before", Type: Liveness, At: in.Now, Verdict: ProbeFailure}}
	if _, out := Step(s, in); len(out.Begin)+len(out.Events) > 0 {
		t.Errorf("it is acted on: %v %v", out.Begin, out.Events)
	}
}

// A runtime that says yes and does no is asked again after a while, not at once.
func TestEffectThatIsNotThere(t *testing.T) {
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

// A container that was created and could not be started has used its restart
// count, also when the runtime has removed it since (L3.88).
func TestCountOfAFailedStart(t *testing.T) {
	_, in := steady()
	in.Observed.Containers = in.Observed.Containers[1:]
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	s, _ := Step(State{}, in)
	in.Now = in.Now.Add(time.Second)
	in.Done = []Outcome{{Key: "start/a/0", At: in.Now, Err: &Failure{Reason: "RunContainerError", Message: "no", Created: true}}}
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
