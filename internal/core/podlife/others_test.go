package podlife

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// What the scheduler and the controllers of claims write is published as it stands (L1.73).
func TestFieldsOfOthersStay(t *testing.T) {
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
