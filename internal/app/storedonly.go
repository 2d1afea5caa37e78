package app

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/base/instance"
)

// storedOnly are the kinds that the API stores but on which no part of carob acts, each with
// what this means for the user. A kind leaves the list when it gets a controller.
func storedOnly(in instance.Instance) map[schema.GroupResource]string {
	const where = " (see docs/differences.md)"
	kinds := map[schema.GroupResource]string{
		{Group: "networking.k8s.io",
			Resource: "ingresses"}: "carob was started without --gateway-http: " +
			"this Ingress is stored, and served only by an Ingress controller that you install",
	}
	if in.CNIConfDir != "" || in.RuntimeEndpoint != "" {
		kinds[schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"}] = "carob enforces network " +
			"policies only on its own pod network: on this node, the CNI plugin enforces them"
	}
	if in.Routes.On() {
		delete(kinds, schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"})
	}
	for kind := range kinds {
		kinds[kind] += where
	}
	return kinds
}
