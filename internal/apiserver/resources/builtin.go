package resources

import (
	"slices"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// BuiltIn returns the kinds of all groups but pods and services. may answers what a request needs to be allowed
// beside the write itself, checks what a write of device claims needs.
func BuiltIn(may authorizer.UnconditionalAuthorizer, checks DeviceChecks) []*Resource {
	return slices.Concat(Core(), Volumes(), Apps(), Batch(), Coordination(), Discovery(), Node(), Policy(), Scheduling(), RBAC(), Networking(),
		Storage(), Autoscaling(), Migration(), Certificates(may), Dynamic(checks))
}
