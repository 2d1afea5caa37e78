package networking

import (
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of networking.k8s.io.
func Kinds() []*registry.Resource {
	return []*registry.Resource{ingresses(), ingressClasses(), networkPolicies(), serviceCIDRs(), ipAddresses()}
}

func networking(kind string) schema.GroupVersionKind {
	return networkingv1.SchemeGroupVersion.WithKind(kind)
}

func ingresses() *registry.Resource {
	return registry.Of[networkingv1.Ingress, networkingv1.IngressList](registry.Resource{
		Kind: networking("Ingress"), Plural: "ingresses", ShortNames: []string{"ing"}, Status: true,
		StatusMetadata: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Class"}, {Name: "Hosts"}, {Name: "Address"},
			{Name: "Ports"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				i := o.(*networkingv1.Ingress)
				ports := "80"
				if len(i.Spec.TLS) > 0 {
					ports = "80, 443"
				}
				return []any{i.Name, ptr.Deref(i.Spec.IngressClassName, table.None), ingressHosts(i.Spec.Rules),
					ingressAddresses(i), ports, table.Age(i.CreationTimestamp, now)}
			}},
	})
}

// ingressHosts prints the first hosts and the number of other rules.
func ingressHosts(rules []networkingv1.IngressRule) string {
	const most = 3
	var shown []string
	for _, r := range rules {
		if r.Host != "" && len(shown) < most {
			shown = append(shown, r.Host)
		}
	}
	switch {
	case len(shown) == 0:
		return "*"
	case len(shown) == most:
		return table.More(shown, len(rules))
	}
	return strings.Join(shown, ",")
}

func ingressAddresses(i *networkingv1.Ingress) string {
	var out []string
	for _, in := range i.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out = append(out, in.IP)
		} else if in.Hostname != "" {
			out = append(out, in.Hostname)
		}
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ",")
}

func ingressClasses() *registry.Resource {
	return registry.Of[networkingv1.IngressClass, networkingv1.IngressClassList](registry.Resource{
		Kind: networking("IngressClass"), Plural: "ingressclasses", Cluster: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Controller"}, {Name: "Parameters"}},
			table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*networkingv1.IngressClass)
				name, parameters := c.Name, table.None
				if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
					name += " (default)"
				}
				if p := c.Spec.Parameters; p != nil {
					parameters = p.Kind
					if p.APIGroup != nil {
						parameters += "." + *p.APIGroup
					}
					parameters += "/" + p.Name
				}
				return []any{name, c.Spec.Controller, parameters, table.Age(c.CreationTimestamp, now)}
			}},
	})
}

func networkPolicies() *registry.Resource {
	return registry.Of[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](registry.Resource{
		Kind: networking("NetworkPolicy"), Plural: "networkpolicies", ShortNames: []string{"netpol"},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Pod-Selector"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				p := o.(*networkingv1.NetworkPolicy)
				return []any{p.Name, metav1.FormatLabelSelector(&p.Spec.PodSelector),
					table.Age(p.CreationTimestamp, now)}
			}},
	})
}

func serviceCIDRs() *registry.Resource {
	return registry.Of[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](registry.Resource{
		Kind: networking("ServiceCIDR"), Plural: "servicecidrs", Cluster: true, Status: true, NoGeneration: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "CIDRs"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*networkingv1.ServiceCIDR)
				return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), table.Age(c.CreationTimestamp, now)}
			}},
	})
}

// verbatim takes generateName as the name: an address has no random part.
type verbatim struct{}

func (verbatim) GenerateName(base string) string { return base }

func ipAddresses() *registry.Resource {
	return registry.Of[networkingv1.IPAddress, networkingv1.IPAddressList](registry.Resource{
		Kind: networking("IPAddress"), Plural: "ipaddresses", ShortNames: []string{"ip"}, Cluster: true,
		NoGeneration: true, ValidateName: func(name string, _ bool) []string { return content.IsPathSegmentName(name) },
		Customize: func(_ *genericregistry.Store, base *registry.Strategy) { base.NameGenerator = verbatim{} },
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "ParentRef"}},
			Row: func(o runtime.Object, _ time.Time) []any {
				a := o.(*networkingv1.IPAddress)
				parent := table.None
				if r := a.Spec.ParentRef; r != nil {
					parent = strings.ToLower(schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
					if r.Namespace != "" {
						parent += "/" + r.Namespace
					}
					parent += "/" + r.Name
				}
				return []any{a.Name, parent}
			}},
	})
}
