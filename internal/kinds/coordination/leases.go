package coordination

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of coordination.k8s.io.
func Kinds() []*registry.Resource { return []*registry.Resource{leases()} }

func leases() *registry.Resource {
	return registry.Of[coordinationv1.Lease, coordinationv1.LeaseList](registry.Resource{
		Kind: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Plural: "leases", NoGeneration: true,
		CreateOnUpdate: true, RequireResourceVersion: true,
		PrepareCreate: func(_ context.Context,
			obj runtime.Object) {
			dropCoordination(obj.(*coordinationv1.Lease), nil)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			dropCoordination(obj.(*coordinationv1.Lease), old.(*coordinationv1.Lease))
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Holder"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				l := o.(*coordinationv1.Lease)
				return []any{l.Name, ptr.Deref(l.Spec.HolderIdentity, ""), table.Age(l.CreationTimestamp, now)}
			}},
	})
}

// dropCoordination clears fields of CoordinatedLeaderElection, which is off in v1.37, unless the
// stored lease has them.
func dropCoordination(l, old *coordinationv1.Lease) {
	if old == nil || old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old == nil || old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}
