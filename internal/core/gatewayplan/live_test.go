package gatewayplan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// objects holds the objects of a world by name, so that the test can change them. In the frame are the Gateways and
// ListenerSets, and everything that does not change.
type objects struct {
	frame     *World
	now       *Changes
	inference inferenceObjects
}

func (o *objects) world() *World {
	w, n := *o.frame, o.now
	w.Ingresses, w.HTTPRoutes = slices.Collect(maps.Values(n.Ingresses)), slices.Collect(maps.Values(n.HTTPRoutes))
	w.GRPCRoutes, w.Services = slices.Collect(maps.Values(n.GRPCRoutes)), maps.Clone(n.Services)
	w.TLSRoutes, w.TCPRoutes = slices.Collect(maps.Values(n.TLSRoutes)), slices.Collect(maps.Values(n.TCPRoutes))
	w.UDPRoutes, w.Grants = slices.Collect(maps.Values(n.UDPRoutes)), slices.Collect(maps.Values(n.Grants))
	w.Namespaces, w.Policies = maps.Clone(n.Namespaces), slices.Collect(maps.Values(n.Policies))
	w.Secrets, w.CAs = materials(n.Secrets), materials(n.CAs)
	w.Classes = slices.Collect(maps.Values(n.IngressClasses))
	w.GatewayClasses = slices.Collect(maps.Values(n.GatewayClasses))
	w.Inference = o.inference.copied()
	return &w
}

func materials(all map[Name]*Material) map[Name]Material {
	out := map[Name]Material{}
	for name, m := range all {
		out[name] = *m
	}
	return out
}

func pointers(all map[Name]Material) map[Name]*Material {
	out := map[Name]*Material{}
	for name, m := range all {
		out[name] = &m
	}
	return out
}

func named[T metav1.Object](all []T) map[Name]T {
	out := map[Name]T{}
	for _, o := range all {
		out[nameOf(o)] = o
	}
	return out
}

// set makes one change; o is nil if the object is deleted.
func set[K comparable, T any](now, changed map[K]T, name K, o T, there bool) {
	if changed[name] = o; there {
		now[name] = o
	} else {
		delete(now, name)
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// liveFrame has Gateways that share ports and hosts, ListenerSets, two policies in conflict, and a grant.
func liveFrame() *objects {
	w := world()
	hosts := func(g *gatewayv1.Gateway) *gatewayv1.Gateway { return allowSets(g, gatewayv1.NamespacesFromAll) }
	first := hosts(gatewayOf("g0", 5, plain("any", 80, ""), plain("one", 80, "one.example"), plain("dup", 81, "d"),
		plain("dup2", 81, "d")))
	first.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "10.0.0.1"}}
	second := gatewayOf("g1", 4, plain("any", 80, ""), plain("wild", 80, "*.example"))
	second.Spec.Addresses = first.Spec.Addresses
	second.Spec.Listeners[0].AllowedRoutes = &gatewayv1.AllowedRoutes{
		Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromAll)}}
	for i, p := range []gatewayv1.ProtocolType{gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType} {
		first.Spec.Listeners = append(first.Spec.Listeners, rawListener(string(p), p, 53))
		second.Spec.Listeners = append(second.Spec.Listeners, rawListener(string(p), p, int32(53+i)))
	}
	pass := rawListener("pass", gatewayv1.TLSProtocolType, 8443)
	pass.TLS = &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModePassthrough)}
	first.Spec.Listeners = append(first.Spec.Listeners, pass)
	second.Spec.Listeners = append(second.Spec.Listeners, pass)
	third := gatewayOf("g2", 3, plain("x", 80, ""), secure("s", "used", ""))
	w.Gateways = []*gatewayv1.Gateway{first, second, third}
	w.ListenerSets = []*gatewayv1.ListenerSet{setOf("b", "s0", 1, "g0", plain("x", 80, "set.example")),
		setOf("b", "s1", 0, "g0", plain("x", 80, "set.example"), plain("y", 8080, ""))}
	policies := map[Name]*gatewayv1.BackendTLSPolicy{}
	for i, name := range []string{"p0", "p1"} {
		p := policyOf("a", name, i, "tls", "")
		p.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesSystem)
		policies[nameOf(p)] = p
	}
	w.CAs[Name{Namespace: "a", Name: "clients"}] = Material{PEM: "clients"}
	first.Spec.TLS = &gatewayv1.GatewayTLSConfig{Frontend: &gatewayv1.FrontendTLSConfig{
		Default: gatewayv1.TLSConfig{Validation: &gatewayv1.FrontendTLSValidation{
			CACertificateRefs: []gatewayv1.ObjectReference{{Kind: "ConfigMap", Name: "clients"}}}}}}
	first.Spec.Listeners = append(first.Spec.Listeners, secure("clients", "used", "c"))
	w.Grants = []*gatewayv1.ReferenceGrant{grant("b", "HTTPRoute", "a", "Service", "")}
	w.Secrets[Name{Namespace: "a", Name: "cert"}] = Material{}
	w.Secrets[Name{Namespace: "a", Name: "used"}] = Material{}
	withDNS(w)
	w.Classes = append(w.Classes, &networkingv1.IngressClass{ObjectMeta: meta("", "more", 0),
		Spec: networkingv1.IngressClassSpec{Controller: IngressController}})
	now := changes()
	now.Grants, now.Policies, now.Secrets, now.CAs = named(w.Grants), policies, pointers(w.Secrets), pointers(w.CAs)
	now.Services, now.Namespaces = maps.Clone(w.Services), maps.Clone(w.Namespaces)
	now.IngressClasses, now.GatewayClasses = named(w.Classes), named(w.GatewayClasses)
	return &objects{frame: w, now: now, inference: inferenceObjects{}}
}

// policyOf is a policy for a Service or one of its ports.
func policyOf(ns, name string, age int, service, port string) *gatewayv1.BackendTLSPolicy {
	p := &gatewayv1.BackendTLSPolicy{ObjectMeta: meta(ns, name, age)}
	p.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{}}
	p.Spec.TargetRefs[0].Kind, p.Spec.TargetRefs[0].Name = "Service", gatewayv1.ObjectName(service)
	if port != "" {
		p.Spec.TargetRefs[0].SectionName = new(gatewayv1.SectionName(port))
	}
	p.Spec.Validation.Hostname = "x"
	return p
}

func randomParents(r *rand.Rand) (out []gatewayv1.ParentReference) {
	for range r.IntN(3) {
		ref := gatewayv1.ParentReference{Namespace: new(gatewayv1.Namespace("a")),
			Name: pick[gatewayv1.ObjectName](r, "g0", "g0", "g1", "g2", "none")}
		if r.IntN(4) == 0 {
			ref.Kind, ref.Namespace = new(gatewayv1.Kind("ListenerSet")), new(gatewayv1.Namespace("b"))
			ref.Name = pick[gatewayv1.ObjectName](r, "s0", "s1")
		} else if r.IntN(3) == 0 {
			ref.SectionName = new(pick[gatewayv1.SectionName](r, "any", "one", "dup", "nope", "UDP", "pass"))
		}
		out = append(out, ref)
	}
	return out
}

func randomHosts(r *rand.Rand) (out []gatewayv1.Hostname) {
	for range r.IntN(3) {
		out = append(out, pick[gatewayv1.Hostname](r, "one.example", "*.example", "h.example", "set.example", "d"))
	}
	return out
}

func randomBackend(r *rand.Rand) gatewayv1.HTTPBackendRef {
	if r.IntN(4) == 0 {
		return poolBackendOf(r)
	}
	return backendOf(pick(r, "web", "web", "tls", "late", "none"), pick(r, "", "", "b"))
}

// change applies one random change.
func (o *objects) change(r *rand.Rand, step int, c *Changes) {
	ns := pick(r, "a", "a", "b")
	name := Name{Namespace: ns, Name: fmt.Sprint("r", r.IntN(8))}
	there := r.IntN(3) > 0
	switch r.IntN(25) {
	case 22, 23, 24:
		o.changeInference(r)
		c.Inference = o.inference.copied()
	case 19:
		o.changeClass(r, there, c)
	case 20:
		o.changeGatewayClass(r, step, there, c)
	case 21:
		o.changeNamespace(r, there, c)
	case 16, 17:
		o.changeGateway(r, step, there, c)
	case 18:
		o.changeSet(r, step, there, c)
	case 9, 10, 11, 12, 13:
		o.changeMore(r, name, there, c)
	case 14, 15:
		o.changePolicies(r, step, there, c)
	case 0, 1, 2:
		if !there {
			set(o.now.HTTPRoutes, c.HTTPRoutes, name, nil, false)
			return
		}
		in := routeOf(ns, name.Name, gatewayv1.ParentReference{}, randomHosts(r)...)
		in.CreationTimestamp, in.Spec.ParentRefs = meta("", "", r.IntN(2)).CreationTimestamp, randomParents(r)
		in.Spec.Rules = nil
		for range r.IntN(3) {
			rule := gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{randomBackend(r), randomBackend(r)},
				Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{
					Value: new(pick(r, "/", "/x", "/y"))}}}}
			if r.IntN(4) == 0 {
				rule.SessionPersistence = &gatewayv1.SessionPersistence{} // cannot be served
			}
			in.Spec.Rules = append(in.Spec.Rules, rule)
		}
		if r.IntN(4) == 0 {
			in.Status.Parents = []gatewayv1.RouteParentStatus{{ControllerName: "other"}}
		}
		set(o.now.HTTPRoutes, c.HTTPRoutes, name, in, true)
	case 3:
		if !there {
			set(o.now.GRPCRoutes, c.GRPCRoutes, name, nil, false)
			return
		}
		in := &gatewayv1.GRPCRoute{ObjectMeta: meta(ns, name.Name, 0)}
		in.Spec.ParentRefs, in.Spec.Hostnames = randomParents(r), randomHosts(r)
		in.Spec.Rules = []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{
			BackendRef: randomBackend(r).BackendRef}}}}
		set(o.now.GRPCRoutes, c.GRPCRoutes, name, in, true)
	case 4, 5:
		if !there {
			set(o.now.Ingresses, c.Ingresses, name, nil, false)
			return
		}
		in := ingressOf(name.Name, pick(r, "one.example", "*.example", ""), map[string]string{})
		in.Namespace = ns
		in.Spec.IngressClassName = new(pick(r, Class, Class, "more", "other"))
		in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = pick(r, "web", "late", "none")
		if r.IntN(3) == 0 {
			in.Spec.DefaultBackend = &in.Spec.Rules[0].HTTP.Paths[0].Backend
		}
		if r.IntN(6) == 0 {
			in.Annotations["nginx.ingress.kubernetes.io/auth-url"] = "x" // not served
		}
		for range r.IntN(3) {
			in.Spec.TLS = append(in.Spec.TLS, networkingv1.IngressTLS{SecretName: pick(r, "cert", "other", "more", ""),
				Hosts: pick(r, nil, []string{"one.example"}, []string{"x", "y"})})
		}
		set(o.now.Ingresses, c.Ingresses, name, in, true)
	case 6, 7:
		name.Name = pick(r, "web", "tls", "late")
		if !there {
			set(o.now.Services, c.Services, name, nil, false)
			return
		}
		s := &corev1.Service{ObjectMeta: meta(ns, name.Name, 0), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{
			Name: "http", Port: pick[int32](r, 80, 80, 80, 81)}}}}
		set(o.now.Services, c.Services, name, s, true)
	case 8:
		if len(o.frame.Gateways) == 0 {
			return
		}
		g := o.frame.Gateways[r.IntN(len(o.frame.Gateways))].DeepCopy()
		g.Status.Conditions = []metav1.Condition{{Type: fmt.Sprint("Other", step)}}
		o.frame.Gateways = slices.Clone(o.frame.Gateways)
		o.frame.Gateways[slices.IndexFunc(o.frame.Gateways, func(b *gatewayv1.Gateway) bool {
			return b.Name == g.Name
		})] = g
		c.Gateways[nameOf(g)] = g
	}
}

// changeMore changes a route that passes connections on, a grant, or a Secret.
func (o *objects) changeMore(r *rand.Rand, name Name, there bool, c *Changes) {
	backends := []gatewayv1.BackendRef{randomBackend(r).BackendRef, streamBackend("dns", pick(r, "", "a"), 53)}
	age := r.IntN(3)
	switch kind := r.IntN(5); {
	case kind == 0 && !there:
		set(o.now.TLSRoutes, c.TLSRoutes, name, nil, false)
	case kind == 0:
		in := &gatewayv1.TLSRoute{ObjectMeta: meta(name.Namespace, name.Name, age)}
		in.Spec.ParentRefs, in.Spec.Hostnames = randomParents(r), randomHosts(r)
		in.Spec.Rules = []gatewayv1.TLSRouteRule{{BackendRefs: backends}}
		set(o.now.TLSRoutes, c.TLSRoutes, name, in, true)
	case kind == 1 && !there:
		set(o.now.TCPRoutes, c.TCPRoutes, name, nil, false)
	case kind == 1:
		in := tcpRouteOf(name.Namespace, name.Name, age, randomParents(r), backends...)
		set(o.now.TCPRoutes, c.TCPRoutes, name, in, true)
	case kind == 2 && !there:
		set(o.now.UDPRoutes, c.UDPRoutes, name, nil, false)
	case kind == 2:
		in := udpRouteOf(name.Namespace, name.Name, age, randomParents(r), backends...)
		set(o.now.UDPRoutes, c.UDPRoutes, name, in, true)
	case kind == 3:
		name = Name{Namespace: name.Namespace, Name: pick(r, "g", "h")}
		if !there {
			set(o.now.Grants, c.Grants, name, nil, false)
			return
		}
		other := map[string]string{"a": "b", "b": "a"}[name.Namespace]
		in := grant(name.Namespace, pick[gatewayv1.Kind](r, "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute",
			"UDPRoute", "Gateway"), other, "Service", pick(r, "", "web", "dns"))
		in.Name = name.Name
		set(o.now.Grants, c.Grants, name, in, true)
	default:
		name = Name{Namespace: pick(r, "a", "a", "a", "b"), Name: pick(r, "used", "cert", "other", "other", "more")}
		if !there {
			set(o.now.Secrets, c.Secrets, name, nil, false)
			return
		}
		m := Material{Problem: pick(r, "", "", "", "it is bad"), PEM: pick(r, "one", "two", "")}
		set(o.now.Secrets, c.Secrets, name, &m, true)
	}
}

// changePolicies changes a policy, of which four want two Services and their ports, or the status of one, or a CA.
func (o *objects) changePolicies(r *rand.Rand, step int, there bool, c *Changes) {
	age := r.IntN(4)
	name := Name{Namespace: pick(r, "a", "a", "b"), Name: fmt.Sprint("p", age)}
	known := o.now.Policies[name]
	if r.IntN(4) == 0 {
		name = Name{Namespace: name.Namespace, Name: pick(r, "ca", "ca", "ca", "ca", "clients", "unused")}
		if !there {
			set(o.now.CAs, c.CAs, name, nil, false)
			return
		}
		m := Material{PEM: pick(r, "one", "two"), Problem: pick(r, "", "", "it is bad")}
		set(o.now.CAs, c.CAs, name, &m, true)
		return
	}
	if !there {
		set(o.now.Policies, c.Policies, name, nil, false)
		return
	}
	in := policyOf(name.Namespace, name.Name, age, pick(r, "web", "tls", "late", "none"), pick(r, "", "", "http"))
	in.Generation = int64(step)
	if known != nil && r.IntN(3) == 0 {
		in = known.DeepCopy()
		in.Status.Ancestors = []gatewayv1.PolicyAncestorStatus{{ControllerName: GatewayController,
			Conditions: []metav1.Condition{{Type: fmt.Sprint("Other", step)}}}}
	} else if r.IntN(3) == 0 {
		in.Spec.Validation.WellKnownCACertificates = new(pick(r, gatewayv1.WellKnownCACertificatesSystem, "other"))
	} else {
		in.Spec.Validation.CACertificateRefs = []gatewayv1.LocalObjectReference{{Kind: "ConfigMap", Name: "ca"}}
	}
	if r.IntN(4) == 0 {
		in.Spec.TargetRefs = append(in.Spec.TargetRefs, policyOf("", "", 0, "web", "").Spec.TargetRefs...)
	}
	set(o.now.Policies, c.Policies, name, in, true)
}

func changes() *Changes {
	return &Changes{Ingresses: map[Name]*networkingv1.Ingress{}, HTTPRoutes: map[Name]*gatewayv1.HTTPRoute{},
		GRPCRoutes: map[Name]*gatewayv1.GRPCRoute{}, Services: map[Name]*corev1.Service{},
		Gateways: map[Name]*gatewayv1.Gateway{}, TLSRoutes: map[Name]*gatewayv1.TLSRoute{},
		TCPRoutes: map[Name]*gatewayv1.TCPRoute{}, UDPRoutes: map[Name]*gatewayv1.UDPRoute{},
		Grants: map[Name]*gatewayv1.ReferenceGrant{}, Secrets: map[Name]*Material{},
		Policies: map[Name]*gatewayv1.BackendTLSPolicy{}, CAs: map[Name]*Material{},
		ListenerSets: map[Name]*gatewayv1.ListenerSet{}, Namespaces: map[string]labels.Set{},
		IngressClasses: map[Name]*networkingv1.IngressClass{}, GatewayClasses: map[Name]*gatewayv1.GatewayClass{}}
}

// statuses returns the statuses of a plan by kind and name, copied.
func statuses(p *Plan) map[string]any {
	out := map[string]any{}
	put(out, "Ingress", p.Ingresses)
	put(out, "Gateway", p.Gateways)
	for name, s := range p.Classes {
		out["GatewayClass /"+name] = s
	}
	put(out, "ListenerSet", p.ListenerSets)
	put(out, "HTTPRoute", p.HTTPRoutes)
	put(out, "GRPCRoute", p.GRPCRoutes)
	put(out, "TLSRoute", p.TLSRoutes)
	put(out, "TCPRoute", p.TCPRoutes)
	put(out, "UDPRoute", p.UDPRoutes)
	put(out, "BackendTLSPolicy", p.Policies)
	for ref, s := range p.PoolStatus {
		out[fmt.Sprint("InferencePool ", ref)] = s
	}
	put(out, "InferenceModel", p.Models)
	put(out, "InferenceObjective", p.Objectives)
	put(out, "InferenceModelRewrite", p.Rewrites)
	put(out, "InferenceObjective of llm-d", p.RouterObjectives)
	put(out, "InferenceModelRewrite of llm-d", p.RouterRewrites)
	return out
}

func put[T any](out map[string]any, kind string, all map[Name]T) {
	for name, s := range all {
		out[kind+" "+name.String()] = s
	}
}

func (t *Touched) statuses() map[string]bool {
	out := map[string]bool{}
	touch(out, "Ingress", t.Ingresses)
	touch(out, "Gateway", t.Gateways)
	touch(out, "GatewayClass", t.GatewayClasses)
	touch(out, "ListenerSet", t.ListenerSets)
	touch(out, "HTTPRoute", t.HTTPRoutes)
	touch(out, "GRPCRoute", t.GRPCRoutes)
	touch(out, "TLSRoute", t.TLSRoutes)
	touch(out, "TCPRoute", t.TCPRoutes)
	touch(out, "UDPRoute", t.UDPRoutes)
	touch(out, "BackendTLSPolicy", t.Policies)
	return out
}

func touch[T metav1.Object](out map[string]bool, kind string, all []T) {
	for _, o := range all {
		out[kind+" "+nameOf(o).String()] = true
	}
}

// After any changes, the plan equals one that is made anew from the same objects, and Touched lists everything that
// differs.
func TestLivePlan(t *testing.T) {
	used, replanned, pooled := 0, 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := liveFrame()
		o.frame.Offered = seed%2 == 0
		live := NewLive(o.world())
		for step := range 40 {
			c := changes()
			for range 1 + r.IntN(3) {
				o.change(r, step, c)
			}
			before, refs, pools := statuses(live.Plan), maps.Clone(live.Refs), live.Pools
			tables := map[string]*httproute.Table{}
			streams, served := map[string][]Stream{}, map[string][]Certificate{}
			for at, p := range live.Ports {
				served[at.String()] = p.Certificates
				tables[at.String()], streams[at.String()] = p.Table, p.Streams
			}
			udp := map[netip.AddrPort]bool{}
			for at, p := range live.UDP {
				streams["UDP "+at.String()], udp[at] = p.Streams, true
			}
			w := o.world()
			w.Assigned = maps.Clone(live.Assigned)
			touched, ok := live.Change(c)
			fresh := NewLive(w)
			if !ok {
				t.Fatalf("seed %d, step %d: the change was not followed", seed, step)
			}
			if touched.Listeners {
				replanned++
			}
			if diff := poolsDiffer(pools, live.Plan, fresh.Plan, touched); diff != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, diff)
			}
			pooled += len(live.Pools)
			after := statuses(live.Plan)
			for what, s := range statuses(fresh.Plan) {
				if !reflect.DeepEqual(after[what], s) {
					t.Fatalf("seed %d, step %d: the status of %s: %+v\nafresh: %+v", seed, step, what, after[what], s)
				}
				if !reflect.DeepEqual(before[what], s) && !touched.statuses()[what] &&
					(touched.Inference == nil || !strings.HasPrefix(what, "Inference")) {
					t.Fatalf("seed %d, step %d: %s was not touched", seed, step, what)
				}
				delete(after, what)
			}
			if len(after) > 0 || !maps.Equal(live.Refs, fresh.Refs) || len(live.Ports) != len(fresh.Ports) {
				t.Fatalf("seed %d, step %d: %v, backends %v, afresh %v", seed, step, after, live.Refs, fresh.Refs)
			}
			for _, ref := range touched.New {
				if refs[ref] || !live.Refs[ref] {
					t.Fatalf("seed %d, step %d: backend %v is not new", seed, step, ref)
				}
				refs[ref] = true
			}
			for _, ref := range touched.Gone {
				delete(refs, ref)
			}
			if !maps.Equal(live.Assigned, fresh.Assigned) {
				t.Fatalf("seed %d, step %d: addresses %v, afresh %v", seed, step, live.Assigned, fresh.Assigned)
			}
			if !maps.Equal(refs, live.Refs) {
				t.Fatalf("seed %d, step %d: of the backends %v it returned %v %v", seed, step, live.Refs, touched.New,
					touched.Gone)
			}
			for pol := range live.p.used {
				if live.p.byPolicy[nameOf(pol)] != pol {
					t.Fatalf("seed %d, step %d: policy %s is kept", seed, step, nameOf(pol))
				}
			}
			for at, p := range fresh.Ports {
				got := live.Ports[at]
				if got == nil || !reflect.DeepEqual(got.Table.Routes(), p.Table.Routes()) || got.TLS != p.TLS ||
					got.Raw != p.Raw || got.Default != p.Default || !reflect.DeepEqual(got.Clients, p.Clients) ||
					!reflect.DeepEqual(got.Certificates, p.Certificates) {
					t.Fatalf("seed %d, step %d: %v:\n%+v\nafresh:\n%+v", seed, step, at, got.Table.Routes(),
						p.Table.Routes())
				}
				if !reflect.DeepEqual(got.Streams, p.Streams) {
					t.Fatalf("seed %d, step %d: %v:\n%+v\nafresh:\n%+v", seed, step, at, got.Streams, p.Streams)
				}
				if !touched.Listeners && touched.Certificates[at] == reflect.DeepEqual(served[at.String()],
					got.Certificates) {
					t.Fatalf("seed %d, step %d: certificates at %v are touched: %v", seed, step, at,
						touched.Certificates[at])
				}
				if touched.Ports[at] != (tables[at.String()] != got.Table ||
					!reflect.DeepEqual(streams[at.String()], got.Streams)) {
					t.Fatalf("seed %d, step %d: %v is touched: %v", seed, step, at, touched.Ports[at])
				}
			}
			for at, p := range fresh.UDP {
				got := live.UDP[at]
				if got == nil || !reflect.DeepEqual(got.Streams, p.Streams) || len(live.UDP) != len(fresh.UDP) ||
					touched.UDP[at] == (udp[at] && reflect.DeepEqual(streams["UDP "+at.String()], got.Streams)) {
					t.Fatalf("seed %d, step %d: UDP %v:\n%+v\nafresh:\n%+v", seed, step, at, got, p)
				}
				used += len(p.Streams)
			}
		}
	}
	if used < 300 || replanned < 600 || pooled < 1000 {
		t.Errorf("only %d changes of Gateways, %d routes of UDP, %d pools", replanned, used, pooled)
	}
}

// A plan without the kinds of the inference extension cannot follow their objects.
func TestChangesThatRequireNewPlan(t *testing.T) {
	w := liveFrame().world()
	w.Inference = nil
	c := changes()
	c.Inference = &Inference{}
	if _, ok := NewLive(w).Change(c); ok {
		t.Error("pools are followed by a plan without them")
	}
}
