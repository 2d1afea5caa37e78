package discovery

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(discoveryv1.GroupName, "EndpointSlice"): func() rules.Rules {
		r := rules.Of(nil, validateEndpointSlice, validateEndpointSliceUpdate)
		r.Warnings = endpointSliceWarnings
		return r
	},
}
