package app

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/base/instance"
)

// storedOnly are the kinds that the API stores and no part of carob acts on, with what
// that means for who makes one. A kind goes from here when its controller is there.
func storedOnly(in instance.Instance) map[schema.GroupResource]string {
	const where = " (see docs/differences.md)"
	kinds := map[schema.GroupResource]string{
		{Group: "networking.k8s.io",
			Resource: "ingresses"}: "carob was started without --gateway-http: it is stored until a controller serves it",
	}
	if in.CNIConfDir != "" || in.RuntimeEndpoint != "" {
		kinds[schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"}] = "carob enforces network " +
			"policies on its own pod network only: here it is the work of the CNI plugin"
	}
	if in.Routes.On() {
		delete(kinds, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"})
	}
	for kind := range kinds {
		kinds[kind] += where
	}
	return kinds
}
