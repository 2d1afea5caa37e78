package kinds

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	"carob/internal/kinds/rules"
	"carob/internal/kinds/scheduling"
	"carob/internal/kinds/services"
	"carob/internal/kinds/storage"
	"carob/internal/kinds/storagemigration"
	"carob/internal/kinds/volumes"
)

// allRules lists the validation by kind, group by group. It is read only.
var allRules = []map[schema.GroupKind]func() rules.Rules{
	core.Rules,
	services.Rules,
	volumes.Rules,
	apps.Rules,
	batch.Rules,
	discovery.Rules,
	coordination.Rules,
	policy.Rules,
	scheduling.Rules,
	node.Rules,
	networking.Rules,
	storage.Rules,
	certificates.Rules,
	autoscaling.Rules,
	storagemigration.Rules,
	devices.Rules,
	rbac.Rules,
}

// RulesOf returns the validation of a kind; the version does not matter. A kind without validation
// of its own gets the zero value and false.
func RulesOf(gk schema.GroupKind) (rules.Rules, bool) {
	for _, group := range allRules {
		if make, ok := group[gk]; ok {
			return make(), true
		}
	}
	return rules.Rules{}, false
}
