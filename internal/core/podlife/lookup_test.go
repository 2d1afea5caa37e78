package podlife

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod is rejected while its containers run, and somebody has removed their entries from its status.
func TestRejectedWithoutStatuses(t *testing.T) {
	s, in := steady()
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Status = s.Last
	in.Pod.Status.ContainerStatuses = nil
	in.Reject = &Rejection{Reason: "OutOfcpu"}
	_, out := Step(Recover(in.Pod, in.Observed), in)
	for i := range out.Status.Conditions {
		if c := &out.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse {
			t.Errorf("%+v", c)
		}
	}
}

// In a pod of many containers, whose lists are looked up in maps, each gets its own status, probe, start and stop.
func TestLongLists(t *testing.T) {
	names := manyNames(4 * short)
	s, in := steadyOf(names...)
	if len(s.InFlight) <= short {
		t.Fatal("only", len(s.InFlight), "probes")
	}
	for i := range in.Observed.Containers { // every second one ends, and comes back
		if c := &in.Observed.Containers[i]; i%2 == 0 {
			c.State, c.FinishedAt = ContainerExited, in.Now
		}
	}
	in.Observed.Images = []ImageState{{Image: "nginx", Ref: "sha256:nginx"}}
	in.Now = in.Now.Add(time.Minute)
	probes := len(s.InFlight)
	s, out := Step(s, in)
	if len(out.Cancel) != probes/2 || len(s.InFlight) != probes+1 || len(out.Begin) != 1 {
		t.Errorf("%d of %d probes are cancelled, %d begun, %d in flight", len(out.Cancel), probes, len(out.Begin),
			len(s.InFlight))
	}
	for i := range out.Status.ContainerStatuses {
		c := &out.Status.ContainerStatuses[i]
		if want := in.Observed.Containers[i].ID; c.Name != names[i] || c.ContainerID != "carob://"+want ||
			(c.State.Running != nil) != (i%2 == 1) {
			t.Errorf("%s: %s, %+v", c.Name, c.ContainerID, c.State)
		}
	}
	in.Pod = in.Pod.DeepCopy()
	in.Pod.DeletionTimestamp, in.Pod.DeletionGracePeriodSeconds = &metav1.Time{Time: in.Now}, new(int64(5))
	if s, out = Step(s, in); len(s.Stops) != len(names)/2 || len(out.Begin) != len(names)/2 {
		t.Errorf("%d containers are stopped with %d actions, %d run", len(s.Stops), len(out.Begin), len(names)/2)
	}
}
