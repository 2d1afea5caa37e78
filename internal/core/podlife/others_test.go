package podlife

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Status fields of the scheduler and of the controllers of claims are published unchanged (L1.73).
func TestStatusFieldsOfOtherWritersStay(t *testing.T) {
	s, in := steady()
	claim := "claim"
	theirs := corev1.PodStatus{
		NominatedNodeName:                    "n",
		ResourceClaimStatuses:                []corev1.PodResourceClaimStatus{{Name: "a", ResourceClaimName: &claim}},
		ExtendedResourceClaimStatus:          &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim},
		NodeAllocatableResourceClaimStatuses: []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: claim}},
	}
	in.Pod = in.Pod.DeepCopy()
	in.Pod.Status = theirs
	_, out := Step(s, in)
	got := corev1.PodStatus{
		NominatedNodeName: out.Status.NominatedNodeName, ResourceClaimStatuses: out.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          out.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: out.Status.NodeAllocatableResourceClaimStatuses,
	}
	if diff := cmp.Diff(theirs, got); diff != "" {
		t.Error(diff)
	}
}

// The newest instance of a container, which backs off, vanishes before an older one whose start was lost: the status
// does not go back to that one, and the back-off goes on (L4.62). Seed 823218 of the simulator.
func TestOlderInstanceThatNeverStarted(t *testing.T) {
	s, in := steadyOf("c")
	created := in.Observed.Containers[0]
	created.ID, created.Attempt, created.State = "c-1", 1, ContainerCreated
	ended := in.Observed.Containers[0]
	ended.ID, ended.Attempt, ended.State, ended.ExitCode, ended.Reason = "c-2", 2, ContainerExited, 1, "Error"
	ended.FinishedAt = in.Now
	in.Observed.Containers = []Container{created, ended}
	for i := range 8 {
		in.Now = in.Now.Add(time.Second)
		if i == 3 {
			in.Observed.Containers = in.Observed.Containers[:1]
		}
		var out Output
		s, out = Step(s, in)
		c := &out.Status.ContainerStatuses[0]
		if id := c.ContainerID; id != "carob://c-2" && (i < 3 || id != "") {
			t.Errorf("after %d s it is %q", i+1, id)
		}
		if i > 2 && (c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff") {
			t.Errorf("after %d s: %+v", i+1, c.State)
		}
		for _, b := range out.Begin {
			if a, starts := b.Action.(StartContainer); starts {
				t.Errorf("after %d s begins %v", i+1, a.Key())
			}
		}
	}
}
