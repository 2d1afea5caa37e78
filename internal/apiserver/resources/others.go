package resources

import (
	"context"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"carob/internal/apiserver/table"
)

// createdAt prints name and creation time, for kinds whose age says little.
var createdAt = table.Kind{
	Columns: []table.Column{table.NameColumn, {Name: "Created At", Type: "date"}},
	Row: func(o runtime.Object, _ time.Time) []any {
		m, err := meta.Accessor(o)
		if err != nil {
			return []any{"", ""}
		}
		return []any{m.GetName(), m.GetCreationTimestamp().UTC().Format(time.RFC3339)}
	},
}

func lower(s string) string { return strings.ToLower(s) }

func ageMicro(t, now time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(t))
}

// Coordination returns the kinds of coordination.k8s.io.
func Coordination() []*Resource { return []*Resource{leases()} }

// Discovery returns the kinds of discovery.k8s.io.
func Discovery() []*Resource { return []*Resource{endpointSlices()} }

// Node returns the kinds of node.k8s.io.
func Node() []*Resource { return []*Resource{runtimeClasses()} }

// Policy returns the kinds of policy.
func Policy() []*Resource { return []*Resource{podDisruptionBudgets()} }

// Scheduling returns the kinds of scheduling.k8s.io.
func Scheduling() []*Resource { return []*Resource{priorityClasses()} }

// RBAC returns the kinds of rbac.authorization.k8s.io.
func RBAC() []*Resource {
	segment := func(name string, _ bool) []string { return content.IsPathSegmentName(name) }
	roleRow := table.Kind{
		Columns: []table.Column{table.NameColumn, {Name: "Role"}, table.AgeColumn, {Name: "Users", Wide: true}, {Name: "Groups", Wide: true}, {Name: "ServiceAccounts", Wide: true}},
		Row: func(o runtime.Object, now time.Time) []any {
			switch b := o.(type) {
			case *rbacv1.RoleBinding:
				return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, table.Age(b.CreationTimestamp, now)}, subjectCells(b.Subjects)...)
			case *rbacv1.ClusterRoleBinding:
				return append([]any{b.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, table.Age(b.CreationTimestamp, now)}, subjectCells(b.Subjects)...)
			}
			return nil
		},
	}
	return []*Resource{
		Of[rbacv1.ClusterRole, rbacv1.ClusterRoleList](Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), Plural: "clusterroles", Cluster: true,
			NoGeneration: true, CreateOnUpdate: true, ValidateName: segment, Table: createdAt}),
		Of[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), Plural: "clusterrolebindings",
			Cluster: true, NoGeneration: true, CreateOnUpdate: true, ValidateName: segment, Table: roleRow}),
		Of[rbacv1.Role, rbacv1.RoleList](Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("Role"), Plural: "roles", NoGeneration: true, CreateOnUpdate: true,
			ValidateName: segment, Table: createdAt}),
		Of[rbacv1.RoleBinding, rbacv1.RoleBindingList](Resource{Kind: rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), Plural: "rolebindings", NoGeneration: true,
			CreateOnUpdate: true, ValidateName: segment, Table: roleRow}),
	}
}

func subjectCells(subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}

func leases() *Resource {
	return Of[coordinationv1.Lease, coordinationv1.LeaseList](Resource{
		Kind: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Plural: "leases", NoGeneration: true, CreateOnUpdate: true, RequireResourceVersion: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) { dropCoordination(obj.(*coordinationv1.Lease), nil) },
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			dropCoordination(obj.(*coordinationv1.Lease), old.(*coordinationv1.Lease))
		},
		Table: table.Kind{Columns: columns([]table.Column{{Name: "Holder"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				l := o.(*coordinationv1.Lease)
				return []any{l.Name, ptr.Deref(l.Spec.HolderIdentity, ""), table.Age(l.CreationTimestamp, now)}
			}},
	})
}

// dropCoordination clears what belongs to CoordinatedLeaderElection, which v1.37 has off, unless the stored lease has it.
func dropCoordination(l, old *coordinationv1.Lease) {
	if old == nil || old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old == nil || old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}

// prepareEndpoints counts a change of anything but metadata, and of labels, and drops the topology of older versions. A node
// that was only named there moves to its field.
func prepareEndpoints(s, old *discoveryv1.EndpointSlice) {
	known := sets.New[string]()
	if old != nil {
		same := s.AddressType == old.AddressType && equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints)
		if !same || !equality.Semantic.DeepEqual(s.Ports, old.Ports) || !equality.Semantic.DeepEqual(s.Labels, old.Labels) {
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
		if node, ok := e.DeprecatedTopology[corev1.LabelHostname]; ok && e.NodeName == nil && known.Has(node) && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

func endpointSlices() *Resource {
	return Of[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](Resource{
		Kind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Plural: "endpointslices",
		PrepareCreate: func(_ context.Context, obj runtime.Object) { prepareEndpoints(obj.(*discoveryv1.EndpointSlice), nil) },
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			prepareEndpoints(obj.(*discoveryv1.EndpointSlice), old.(*discoveryv1.EndpointSlice))
		},
		Table: table.Kind{Columns: columns([]table.Column{{Name: "AddressType"}, {Name: "Ports"}, {Name: "Endpoints"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				const most = 3
				s := o.(*discoveryv1.EndpointSlice)
				ports := unset
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
					ports = more(shown, len(s.Ports))
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
				addresses := unset
				if total > 0 {
					addresses = more(shown, total)
				}
				return []any{s.Name, string(s.AddressType), ports, addresses, table.Age(s.CreationTimestamp, now)}
			}},
	})
}

func runtimeClasses() *Resource {
	return Of[nodev1.RuntimeClass, nodev1.RuntimeClassList](Resource{
		Kind: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), Plural: "runtimeclasses", Cluster: true, NoGeneration: true, CreateOnUpdate: true, RequireResourceVersion: true,
		Table: table.Kind{Columns: columns([]table.Column{{Name: "Handler"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				r := o.(*nodev1.RuntimeClass)
				return []any{r.Name, r.Handler, table.Age(r.CreationTimestamp, now)}
			}},
	})
}

func podDisruptionBudgets() *Resource {
	return Of[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](Resource{
		Kind: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"), Plural: "poddisruptionbudgets", ShortNames: []string{"pdb"}, Status: true, StatusMetadata: true, RequireResourceVersion: true,
		Table: table.Kind{Columns: columns([]table.Column{{Name: "Min Available"}, {Name: "Max Unavailable"}, {Name: "Allowed Disruptions", Type: "integer"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				p := o.(*policyv1.PodDisruptionBudget)
				least, most := "N/A", "N/A"
				if p.Spec.MinAvailable != nil {
					least = p.Spec.MinAvailable.String()
				}
				if p.Spec.MaxUnavailable != nil {
					most = p.Spec.MaxUnavailable.String()
				}
				return []any{p.Name, least, most, int64(p.Status.DisruptionsAllowed), table.Age(p.CreationTimestamp, now)}
			}},
	})
}

func priorityClasses() *Resource {
	return Of[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](Resource{
		Kind: schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"), Plural: "priorityclasses", ShortNames: []string{"pc"}, Cluster: true,
		Table: table.Kind{Columns: columns([]table.Column{{Name: "Value", Type: "integer"}, {Name: "Global-Default", Type: "boolean"}}, table.AgeColumn, table.Column{Name: "PreemptionPolicy"}),
			Row: func(o runtime.Object, now time.Time) []any {
				p := o.(*schedulingv1.PriorityClass)
				return []any{p.Name, int64(p.Value), p.GlobalDefault, table.Age(p.CreationTimestamp, now), string(ptr.Deref(p.PreemptionPolicy, corev1.PreemptLowerPriority))}
			}},
	})
}
