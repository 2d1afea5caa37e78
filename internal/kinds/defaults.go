package kinds

import (
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/apps"
	"carob/internal/kinds/autoscaling"
	"carob/internal/kinds/batch"
	"carob/internal/kinds/certificates"
	"carob/internal/kinds/core"
	"carob/internal/kinds/devices"
	"carob/internal/kinds/discovery"
	"carob/internal/kinds/networking"
	"carob/internal/kinds/rbac"
	"carob/internal/kinds/scheduling"
	"carob/internal/kinds/services"
	"carob/internal/kinds/storage"
	"carob/internal/kinds/volumes"
)

// RegisterDefaults adds the defaulting functions of all built-in kinds to s. The external types are
// the hub types, so one registration serves every version.
func RegisterDefaults(s *runtime.Scheme) error {
	core.RegisterDefaults(s)
	services.RegisterDefaults(s)
	volumes.RegisterDefaults(s)
	apps.RegisterDefaults(s)
	batch.RegisterDefaults(s)
	rbac.RegisterDefaults(s)
	discovery.RegisterDefaults(s)
	networking.RegisterDefaults(s)
	scheduling.RegisterDefaults(s)
	storage.RegisterDefaults(s)
	autoscaling.RegisterDefaults(s)
	certificates.RegisterDefaults(s)
	devices.RegisterDefaults(s)
	return nil
}
