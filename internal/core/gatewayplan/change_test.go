package gatewayplan

import (
	"fmt"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// crowd returns a world with many routes at one Gateway, each with a host name of its own.
func crowd(n int) *World {
	w := world()
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("gw", 0, plain("main", 80, ""))}
	for i := range n {
		w.HTTPRoutes = append(w.HTTPRoutes, routeOf("a", fmt.Sprint("r", i), gatewayv1.ParentReference{Name: "gw"},
			gatewayv1.Hostname(fmt.Sprintf("h%d.example.com", i))))
	}
	return w
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100, 10000, 100000} {
		w := crowd(n)
		b.Run(fmt.Sprint("make/", n), func(b *testing.B) {
			for b.Loop() {
				makePlan(w)
			}
		})
		plan := makePlan(w).Plan
		b.Run(fmt.Sprint("compile/", n), func(b *testing.B) {
			for b.Loop() {
				for _, p := range plan.Ports {
					httproute.Compile(p.Listeners)
				}
			}
		})
	}
}

// BenchmarkChange measures the change of one route among many.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{10, 10000, 100000} {
		w := crowd(n)
		routes := w.HTTPRoutes
		live := NewLive(w)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r := routes[i%n].DeepCopy()
				r.Spec.Rules[0].Matches = []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{
					Value: new(fmt.Sprint("/", i))}}}
				if t, ok := live.Change(&Changes{HTTPRoutes: map[Name]*gatewayv1.HTTPRoute{nameOf(r): r}}); !ok ||
					len(t.Ports) != 1 {
					b.Fatal(t, ok)
				}
			}
		})
	}
}

// BenchmarkChangedPolicy is one BackendTLSPolicy that changes among as many routes and policies, each with a Service of
// its own.
func BenchmarkChangedPolicy(b *testing.B) {
	for _, n := range []int{10, 10000} {
		w := crowd(n)
		for i, r := range w.HTTPRoutes {
			s := w.Services[Name{Namespace: "a", Name: "web"}].DeepCopy()
			s.Name = fmt.Sprint("s", i)
			w.Services[nameOf(s)] = s
			r.Spec.Rules[0].BackendRefs = []gatewayv1.HTTPBackendRef{backendOf(s.Name, "")}
			p := policyOf("a", fmt.Sprint("p", i), 0, s.Name, "")
			p.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesSystem)
			w.Policies = append(w.Policies, p)
		}
		policies := w.Policies
		live := NewLive(w)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				p := policies[i%n].DeepCopy()
				p.Spec.Validation.Hostname = gatewayv1.PreciseHostname(fmt.Sprint("h", i))
				c := &Changes{Policies: map[Name]*gatewayv1.BackendTLSPolicy{nameOf(p): p}}
				if t, ok := live.Change(c); !ok || len(t.Ports) != 1 || len(t.Policies) != 1 {
					b.Fatal(t, ok)
				}
			}
		})
	}
}

// BenchmarkGatewayChange measures changes of a Gateway with many routes: of its certificate, of a listener that serves
// none of them, and of one that serves all.
func BenchmarkGatewayChange(b *testing.B) {
	for _, n := range []int{10, 10000} {
		for name, listener := range map[string]gatewayv1.Listener{
			"certificate": secure("tls", "cert", ""), "other": plain("more", 81, "other.test"), "same": plain("more", 81, ""),
		} {
			w := crowd(n)
			w.Secrets[Name{Namespace: "a", Name: "cert"}] = Material{}
			before := w.Gateways[0].DeepCopy()
			if name == "certificate" {
				before.Spec.Listeners = append(before.Spec.Listeners, secure("tls", "gone", ""))
				before.Spec.Listeners[1].Hostname = new(gatewayv1.Hostname("other.test"))
				listener.Hostname = before.Spec.Listeners[1].Hostname
			}
			after := before.DeepCopy()
			after.Generation++
			after.Spec.Listeners = append(after.Spec.Listeners[:1], listener)
			w.Gateways[0] = before
			live := NewLive(w)
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					g := []*gatewayv1.Gateway{after, before}[i%2]
					if t, ok := live.Change(&Changes{Gateways: map[Name]*gatewayv1.Gateway{nameOf(g): g}}); !ok ||
						!t.Listeners {
						b.Fatal(t, ok)
					}
				}
			})
		}
	}
}

// BenchmarkOtherChanges measures changes of other objects among 10,000 routes of a Gateway that selects them by the
// labels of their namespace, and 10,000 Ingresses with a certificate each: the labels of a namespace without routes, a
// GatewayClass, an IngressClass with one Ingress, and a Secret that an Ingress names.
func BenchmarkOtherChanges(b *testing.B) {
	w := crowd(10000)
	w.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gatewayv1.AllowedRoutes{
		Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromSelector), Selector: team("x")}}
	w.Namespaces["a"] = labels.Set{"team": "x"}
	for i := range 10000 {
		in := ingressOf(fmt.Sprint("i", i), fmt.Sprintf("i%d.example.com", i), map[string]string{})
		in.Spec.TLS = []networkingv1.IngressTLS{{SecretName: fmt.Sprint("s", i)}}
		w.Ingresses = append(w.Ingresses, in)
		w.Secrets[Name{Namespace: in.Namespace, Name: fmt.Sprint("s", i)}] = Material{}
	}
	one := ingressOf("one", "one.example.com", map[string]string{})
	one.Spec.IngressClassName = new("late")
	late := &networkingv1.IngressClass{ObjectMeta: meta("", "late", 0),
		Spec: networkingv1.IngressClassSpec{Controller: IngressController}}
	class := w.GatewayClasses[0]
	live := NewLive(w)
	for name, change := range map[string]func(i int) *Changes{
		"namespace": func(i int) *Changes {
			return &Changes{Namespaces: map[string]labels.Set{"other": {"team": fmt.Sprint(i)}}}
		},
		"gatewayclass": func(int) *Changes {
			return &Changes{GatewayClasses: map[Name]*gatewayv1.GatewayClass{nameOf(class): class}}
		},
		"ingressclass": func(i int) *Changes {
			class := late
			if i%2 == 1 {
				class = nil
			}
			return &Changes{IngressClasses: map[Name]*networkingv1.IngressClass{nameOf(late): class},
				Ingresses: map[Name]*networkingv1.Ingress{nameOf(one): one}}
		},
		"secret": func(i int) *Changes {
			return &Changes{Secrets: map[Name]*Material{{Namespace: "a", Name: "s7"}: []*Material{nil, {}}[i%2]}}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if _, ok := live.Change(change(i)); !ok {
					b.Fatal("not followed")
				}
			}
		})
	}
	b.Run("fresh", func(b *testing.B) {
		for b.Loop() {
			live = NewLive(w)
		}
	})
}

// BenchmarkPoolChange measures changes of an InferencePool and of a model among many routes, of which ten lead to
// pools, and the first and the last Ingress.
func BenchmarkPoolChange(b *testing.B) {
	for _, n := range []int{10, 10000} {
		w := crowd(n)
		w.Inference = &Inference{}
		for i, r := range w.HTTPRoutes[:10] {
			p := poolOf("a", fmt.Sprint("p", i), nil)
			w.Inference.Pools = append(w.Inference.Pools, p)
			ref := backendOf(p.Name, "")
			ref.Kind, ref.Group = new(gatewayv1.Kind("InferencePool")), new(gatewayv1.Group(inferenceapi.Group))
			r.Spec.Rules[0].BackendRefs = []gatewayv1.HTTPBackendRef{ref}
		}
		live := NewLive(w)
		for name, change := range map[string]func(int) *Changes{
			"pool": func(i int) *Changes {
				in := *live.p.Inference
				p := in.Pools[i%10].DeepCopy()
				p.Spec.AppProtocol = []string{"", "kubernetes.io/h2c"}[i/10%2]
				in.Pools = slices.Concat(in.Pools[:i%10], []*inferenceapi.Pool{p}, in.Pools[i%10+1:])
				return &Changes{Inference: &in}
			},
			"model": func(i int) *Changes {
				in, m := *live.p.Inference, &inferenceapi.Model{ObjectMeta: meta("a", "m", 0)}
				m.Spec.PoolRef.Group, m.Spec.PoolRef.Name = inferenceapi.Group, "p0"
				m.Spec.ModelName = fmt.Sprint(i)
				in.Models = []*inferenceapi.Model{m}
				return &Changes{Inference: &in}
			},
			"ingress": func(i int) *Changes {
				in := ingressOf("i", "x.test", map[string]string{})
				of := nameOf(in)
				if i%2 == 1 {
					in = nil
				}
				return &Changes{Ingresses: map[Name]*networkingv1.Ingress{of: in}}
			},
		} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					if t, ok := live.Change(change(i)); !ok {
						b.Fatal(t, ok)
					}
				}
			})
		}
	}
}
