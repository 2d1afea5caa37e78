package scheduling

import (
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(schedulingv1.GroupName,
		"PriorityClass"): func() rules.Rules {
		return rules.Of(nil, validatePriorityClass, validatePriorityClassUpdate)
	},
}
