package discovery

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of discovery.k8s.io.
func Kinds() []*registry.Resource { return []*registry.Resource{endpointSlices()} }

// prepareEndpoints increments the generation for a change of anything but metadata, and of labels,
// and drops the topology of older versions. A node named only there is moved to its field.
func prepareEndpoints(s, old *discoveryv1.EndpointSlice) {
	known := sets.New[string]()
	if old != nil {
		same := s.AddressType == old.AddressType && equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints)
		if !same || !equality.Semantic.DeepEqual(s.Ports, old.Ports) ||
			!equality.Semantic.DeepEqual(s.Labels, old.Labels) {
			s.Generation++
		}
		if same {
			return
		}
		for _, e := range old.Endpoints {
			known.Insert(e.DeprecatedTopology[corev1.LabelHostname])
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if node, ok := e.DeprecatedTopology[corev1.LabelHostname]; ok && e.NodeName == nil && known.Has(node) &&
			len(apivalidation.NameIsDNSSubdomain(node, false)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

func endpointSlices() *registry.Resource {
	return registry.Of[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](registry.Resource{
		Kind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Plural: "endpointslices",
		PrepareCreate: func(_ context.Context,
			obj runtime.Object) {
			prepareEndpoints(obj.(*discoveryv1.EndpointSlice), nil)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			prepareEndpoints(obj.(*discoveryv1.EndpointSlice), old.(*discoveryv1.EndpointSlice))
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "AddressType"}, {Name: "Ports"},
			{Name: "Endpoints"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				const most = 3
				s := o.(*discoveryv1.EndpointSlice)
				ports := table.Unset
				if len(s.Ports) > 0 {
					var shown []string
					for _, p := range s.Ports {
						if len(shown) == most {
							break
						}
						n := "*"
						if p.Port != nil {
							n = strconv.Itoa(int(*p.Port))
						}
						shown = append(shown, n)
					}
					ports = table.More(shown, len(s.Ports))
				}
				var shown []string
				total := 0
				for _, e := range s.Endpoints {
					for _, a := range e.Addresses {
						if total++; len(shown) < most {
							shown = append(shown, a)
						}
					}
				}
				addresses := table.Unset
				if total > 0 {
					addresses = table.More(shown, total)
				}
				return []any{s.Name, string(s.AddressType), ports, addresses, table.Age(s.CreationTimestamp, now)}
			}},
	})
}
