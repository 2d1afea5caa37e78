package podlife

import (
	"testing"

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
