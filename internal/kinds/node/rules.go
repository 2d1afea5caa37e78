package node

import (
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(nodev1.GroupName, "RuntimeClass"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validateRuntimeClass, validateRuntimeClassUpdate), runtimeClassWarnings)
	},
}
