package scheduling

import (
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

func defaultPriorityClass(c *schedulingv1.PriorityClass) {
	defaulting.OrNew(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, defaultPriorityClass)
}
