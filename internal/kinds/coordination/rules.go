package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(coordinationv1.GroupName,
		"Lease"): func() rules.Rules { return rules.Of(nil, validateLease, validateLeaseUpdate) },
}
