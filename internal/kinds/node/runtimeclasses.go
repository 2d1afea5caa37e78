package node

import (
	"time"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of node.k8s.io.
func Kinds() []*registry.Resource { return []*registry.Resource{runtimeClasses()} }

func runtimeClasses() *registry.Resource {
	return registry.Of[nodev1.RuntimeClass, nodev1.RuntimeClassList](registry.Resource{
		Kind: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), Plural: "runtimeclasses", Cluster: true,
		NoGeneration: true, CreateOnUpdate: true, RequireResourceVersion: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Handler"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				r := o.(*nodev1.RuntimeClass)
				return []any{r.Name, r.Handler, table.Age(r.CreationTimestamp, now)}
			}},
	})
}
