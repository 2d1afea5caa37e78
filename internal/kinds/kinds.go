package kinds

import (
	"slices"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"carob/internal/kinds/apps"
	"carob/internal/kinds/autoscaling"
	"carob/internal/kinds/batch"
	"carob/internal/kinds/certificates"
	"carob/internal/kinds/coordination"
	"carob/internal/kinds/core"
	"carob/internal/kinds/devices"
	"carob/internal/kinds/discovery"
	"carob/internal/kinds/networking"
	"carob/internal/kinds/node"
	"carob/internal/kinds/policy"
	"carob/internal/kinds/rbac"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/scheduling"
	"carob/internal/kinds/storage"
	"carob/internal/kinds/storagemigration"
	"carob/internal/kinds/volumes"
)

// BuiltIn returns the kinds of all groups except pods and services. may checks the permissions that
// a request needs besides the write itself, and checks has the dependencies of writes of device
// claims.
func BuiltIn(may authorizer.UnconditionalAuthorizer, checks devices.DeviceChecks) []*registry.Resource {
	return slices.Concat(core.Kinds(), volumes.Kinds(), apps.Kinds(), batch.Kinds(), coordination.Kinds(),
		discovery.Kinds(), node.Kinds(), policy.Kinds(), scheduling.Kinds(), rbac.Kinds(), networking.Kinds(),
		storage.Kinds(), autoscaling.Kinds(), storagemigration.Kinds(), certificates.Kinds(may), devices.Kinds(checks))
}
