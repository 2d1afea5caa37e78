package storagemigration

import (
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of storagemigration.k8s.io.
func Kinds() []*registry.Resource {
	return []*registry.Resource{registry.Of[storagemigrationv1.StorageVersionMigration,
		storagemigrationv1.StorageVersionMigrationList](registry.Resource{
		Kind:   storagemigrationv1.SchemeGroupVersion.WithKind("StorageVersionMigration"),
		Plural: "storageversionmigrations", Cluster: true, Status: true,
		NoGeneration: true, RequireResourceVersion: true,
		Table: table.Kind{Columns: []table.Column{{Name: "Name"},
			{Name: "Resource", Description: "GroupResource to migrate"},
			{Name: "Status", Description: "Status of the migration"}},
			Row: func(o runtime.Object, _ time.Time) []any {
				m, state := o.(*storagemigrationv1.StorageVersionMigration), "Unknown"
				for _, c := range m.Status.Conditions {
					if c.Status != metav1.ConditionTrue {
						continue
					}
					switch c.Type {
					case string(storagemigrationv1.MigrationRunning), string(storagemigrationv1.MigrationSucceeded),
						string(storagemigrationv1.MigrationFailed):
						state = c.Type
					}
				}
				return []any{m.Name,
					schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}.String(),
					state}
			}},
	})}
}
