package storagemigration

import (
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(storagemigrationv1.GroupName, "StorageVersionMigration"): func() rules.Rules {
		r := rules.Of(nil, validateMigration, validateMigrationUpdate)
		r.StatusUpdate = rules.TypedUpdate(validateMigrationStatusUpdate)
		return r
	},
}
