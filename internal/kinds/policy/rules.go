package policy

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(policyv1.GroupName, "PodDisruptionBudget"): func() rules.Rules {
		return rules.WithStatus(rules.Of(rules.NoName, validateDisruptionBudget, validateDisruptionBudgetUpdate),
			validateDisruptionBudgetStatusUpdate)
	},
}
