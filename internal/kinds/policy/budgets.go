package policy

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of policy.
func Kinds() []*registry.Resource { return []*registry.Resource{podDisruptionBudgets()} }

func podDisruptionBudgets() *registry.Resource {
	return registry.Of[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](registry.Resource{
		Kind: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), Plural: "poddisruptionbudgets",
		ShortNames: []string{"pdb"}, Status: true, StatusMetadata: true, RequireResourceVersion: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Min Available"}, {Name: "Max Unavailable"},
			{Name: "Allowed Disruptions", Type: "integer"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				p := o.(*policyv1.PodDisruptionBudget)
				least, most := "N/A", "N/A"
				if p.Spec.MinAvailable != nil {
					least = p.Spec.MinAvailable.String()
				}
				if p.Spec.MaxUnavailable != nil {
					most = p.Spec.MaxUnavailable.String()
				}
				return []any{p.Name, least, most, int64(p.Status.DisruptionsAllowed),
					table.Age(p.CreationTimestamp, now)}
			}},
	})
}
