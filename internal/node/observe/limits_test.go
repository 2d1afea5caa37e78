package observe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A container with CPUs of its own has no quota; its status shows their number as its limit, and the resources that
// others see are not changed (S10.7).
func TestLimitOfOwnCPUs(t *testing.T) {
	none := &corev1.ResourceRequirements{}
	if got := limitedBy(2, none); got.Limits.Cpu().Value() != 2 || none.Limits != nil {
		t.Errorf("without quota: %v, before: %v", got, none)
	}
	some := &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("3")}}
	if limitedBy(2, some) != some || limitedBy(0, none) != none || limitedBy(2, nil) != nil {
		t.Error("what has a quota, shares its CPUs, or says nothing was changed")
	}
}
