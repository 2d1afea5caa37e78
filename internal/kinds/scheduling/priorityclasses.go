package scheduling

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of scheduling.k8s.io.
func Kinds() []*registry.Resource { return []*registry.Resource{priorityClasses()} }

func priorityClasses() *registry.Resource {
	return registry.Of[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](registry.Resource{
		Kind: schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"), Plural: "priorityclasses",
		ShortNames: []string{"pc"}, Cluster: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Value", Type: "integer"},
			{Name: "Global-Default", Type: "boolean"}}, table.AgeColumn, table.Column{Name: "PreemptionPolicy"}),
			Row: func(o runtime.Object, now time.Time) []any {
				p := o.(*schedulingv1.PriorityClass)
				return []any{p.Name, int64(p.Value), p.GlobalDefault, table.Age(p.CreationTimestamp, now),
					string(ptr.Deref(p.PreemptionPolicy, corev1.PreemptLowerPriority))}
			}},
	})
}
