package gatewayplan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// objects holds the objects of a world by name, so that the test can change them.
type objects struct {
	frame      *World // everything else
	ingresses  map[Name]*networkingv1.Ingress
	http       map[Name]*gatewayv1.HTTPRoute
	grpc       map[Name]*gatewayv1.GRPCRoute
	tls        map[Name]*gatewayv1.TLSRoute
	tcp        map[Name]*gatewayv1.TCPRoute
	udp        map[Name]*gatewayv1.UDPRoute
	grants     map[Name]*gatewayv1.ReferenceGrant
	secrets    map[Name]Material
	services   map[Name]*corev1.Service
	namespaces map[string]labels.Set
	policies   map[Name]*gatewayv1.BackendTLSPolicy
	cas        map[Name]Material
}

func (o *objects) world() *World {
	w := *o.frame
	w.Ingresses, w.HTTPRoutes = slices.Collect(maps.Values(o.ingresses)), slices.Collect(maps.Values(o.http))
	w.GRPCRoutes, w.Services = slices.Collect(maps.Values(o.grpc)), maps.Clone(o.services)
	w.TLSRoutes, w.TCPRoutes = slices.Collect(maps.Values(o.tls)), slices.Collect(maps.Values(o.tcp))
	w.UDPRoutes, w.Grants = slices.Collect(maps.Values(o.udp)), slices.Collect(maps.Values(o.grants))
	w.Namespaces, w.Secrets = maps.Clone(o.namespaces), maps.Clone(o.secrets)
	w.Policies, w.CAs = slices.Collect(maps.Values(o.policies)), maps.Clone(o.cas)
	return &w
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
	return &objects{w, map[Name]*networkingv1.Ingress{}, map[Name]*gatewayv1.HTTPRoute{},
		map[Name]*gatewayv1.GRPCRoute{}, map[Name]*gatewayv1.TLSRoute{}, map[Name]*gatewayv1.TCPRoute{},
		map[Name]*gatewayv1.UDPRoute{}, map[Name]*gatewayv1.ReferenceGrant{nameOf(w.Grants[0]): w.Grants[0]},
		maps.Clone(w.Secrets), maps.Clone(w.Services), maps.Clone(w.Namespaces), policies,
		maps.Clone(w.CAs)}
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
	return backendOf(pick(r, "web", "web", "tls", "late", "none"), pick(r, "", "", "b"))
}

// change applies one random change.
func (o *objects) change(r *rand.Rand, step int, c *Changes) {
	ns := pick(r, "a", "a", "b")
	name := Name{Namespace: ns, Name: fmt.Sprint("r", r.IntN(8))}
	there := r.IntN(3) > 0
	switch r.IntN(19) {
	case 16, 17:
		o.changeGateway(r, step, there, c)
	case 18:
		o.changeSet(r, step, there, c)
	case 9, 10, 11, 12, 13:
		o.changeMore(r, name, there, c)
	case 14, 15:
		o.changePolicies(r, step, there, c)
	case 0, 1, 2:
		if c.HTTPRoutes[name] = nil; !there {
			delete(o.http, name)
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
				rule.Retry = &gatewayv1.HTTPRouteRetry{} // cannot be served
			}
			in.Spec.Rules = append(in.Spec.Rules, rule)
		}
		if r.IntN(4) == 0 {
			in.Status.Parents = []gatewayv1.RouteParentStatus{{ControllerName: "other"}}
		}
		o.http[name], c.HTTPRoutes[name] = in, in
	case 3:
		if c.GRPCRoutes[name] = nil; !there {
			delete(o.grpc, name)
			return
		}
		in := &gatewayv1.GRPCRoute{ObjectMeta: meta(ns, name.Name, 0)}
		in.Spec.ParentRefs, in.Spec.Hostnames = randomParents(r), randomHosts(r)
		in.Spec.Rules = []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{
			BackendRef: randomBackend(r).BackendRef}}}}
		o.grpc[name], c.GRPCRoutes[name] = in, in
	case 4, 5:
		if c.Ingresses[name] = nil; !there {
			delete(o.ingresses, name)
			return
		}
		in := ingressOf(name.Name, pick(r, "one.example", "*.example", ""), map[string]string{})
		in.Namespace = ns
		in.Spec.IngressClassName = new(pick(r, Class, Class, Class, "other"))
		in.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = pick(r, "web", "late", "none")
		if r.IntN(3) == 0 {
			in.Spec.DefaultBackend = &in.Spec.Rules[0].HTTP.Paths[0].Backend
		}
		if r.IntN(6) == 0 {
			in.Annotations["nginx.ingress.kubernetes.io/auth-url"] = "x" // not served
		}
		if r.IntN(10) == 0 {
			in.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "cert"}}
		}
		o.ingresses[name], c.Ingresses[name] = in, in
	case 6, 7:
		name.Name = pick(r, "web", "tls", "late")
		if c.Services[name] = nil; !there {
			delete(o.services, name)
			return
		}
		s := &corev1.Service{ObjectMeta: meta(ns, name.Name, 0), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{
			Name: "http", Port: pick[int32](r, 80, 80, 80, 81)}}}}
		o.services[name], c.Services[name] = s, s
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
		delete(o.tls, name)
		c.TLSRoutes[name] = nil
	case kind == 0:
		in := &gatewayv1.TLSRoute{ObjectMeta: meta(name.Namespace, name.Name, age)}
		in.Spec.ParentRefs, in.Spec.Hostnames = randomParents(r), randomHosts(r)
		in.Spec.Rules = []gatewayv1.TLSRouteRule{{BackendRefs: backends}}
		o.tls[name], c.TLSRoutes[name] = in, in
	case kind == 1 && !there:
		delete(o.tcp, name)
		c.TCPRoutes[name] = nil
	case kind == 1:
		in := tcpRouteOf(name.Namespace, name.Name, age, randomParents(r), backends...)
		o.tcp[name], c.TCPRoutes[name] = in, in
	case kind == 2 && !there:
		delete(o.udp, name)
		c.UDPRoutes[name] = nil
	case kind == 2:
		in := udpRouteOf(name.Namespace, name.Name, age, randomParents(r), backends...)
		o.udp[name], c.UDPRoutes[name] = in, in
	case kind == 3:
		name = Name{Namespace: name.Namespace, Name: pick(r, "g", "h")}
		if c.Grants[name] = nil; !there {
			delete(o.grants, name)
			return
		}
		other := map[string]string{"a": "b", "b": "a"}[name.Namespace]
		in := grant(name.Namespace, pick[gatewayv1.Kind](r, "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute",
			"UDPRoute", "Gateway"), other, "Service", pick(r, "", "web", "dns"))
		in.Name = name.Name
		o.grants[name], c.Grants[name] = in, in
	default:
		name = Name{Namespace: "a", Name: pick(r, "used", "cert", "other", "other", "more")}
		if c.Secrets[name] = nil; !there {
			delete(o.secrets, name)
			return
		}
		m := Material{Problem: pick(r, "", "", "", "it is bad"), PEM: pick(r, "one", "two", "")}
		o.secrets[name], c.Secrets[name] = m, &m
	}
}

// changePolicies changes a policy, of which four want two Services and their ports, or the status of one, or a CA.
func (o *objects) changePolicies(r *rand.Rand, step int, there bool, c *Changes) {
	age := r.IntN(4)
	name := Name{Namespace: pick(r, "a", "a", "b"), Name: fmt.Sprint("p", age)}
	known := o.policies[name]
	if r.IntN(4) == 0 {
		name = Name{Namespace: name.Namespace, Name: pick(r, "ca", "ca", "ca", "ca", "clients", "unused")}
		if c.CAs[name] = nil; !there {
			delete(o.cas, name)
			return
		}
		m := Material{PEM: pick(r, "one", "two"), Problem: pick(r, "", "", "it is bad")}
		o.cas[name], c.CAs[name] = m, &m
		return
	}
	if c.Policies[name] = nil; !there {
		delete(o.policies, name)
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
	o.policies[name], c.Policies[name] = in, in
}

func changes() *Changes {
	return &Changes{Ingresses: map[Name]*networkingv1.Ingress{}, HTTPRoutes: map[Name]*gatewayv1.HTTPRoute{},
		GRPCRoutes: map[Name]*gatewayv1.GRPCRoute{}, Services: map[Name]*corev1.Service{},
		Gateways: map[Name]*gatewayv1.Gateway{}, TLSRoutes: map[Name]*gatewayv1.TLSRoute{},
		TCPRoutes: map[Name]*gatewayv1.TCPRoute{}, UDPRoutes: map[Name]*gatewayv1.UDPRoute{},
		Grants: map[Name]*gatewayv1.ReferenceGrant{}, Secrets: map[Name]*Material{},
		Policies: map[Name]*gatewayv1.BackendTLSPolicy{}, CAs: map[Name]*Material{},
		ListenerSets: map[Name]*gatewayv1.ListenerSet{}}
}

// statuses returns the statuses of a plan by kind and name, copied.
func statuses(p *Plan) map[string]any {
	out := map[string]any{}
	put(out, "Ingress", p.Ingresses)
	put(out, "Gateway", p.Gateways)
	put(out, "ListenerSet", p.ListenerSets)
	put(out, "HTTPRoute", p.HTTPRoutes)
	put(out, "GRPCRoute", p.GRPCRoutes)
	put(out, "TLSRoute", p.TLSRoutes)
	put(out, "TCPRoute", p.TCPRoutes)
	put(out, "UDPRoute", p.UDPRoutes)
	put(out, "BackendTLSPolicy", p.Policies)
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
	followed, used, replanned := 0, 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := liveFrame()
		live := NewLive(o.world())
		for step := range 40 {
			c := changes()
			for range 1 + r.IntN(3) {
				o.change(r, step, c)
			}
			before, refs := statuses(live.Plan), maps.Clone(live.Refs)
			tables := map[string]*httproute.Table{}
			streams := map[string][]Stream{}
			for at, p := range live.Ports {
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
				live = fresh
				continue
			}
			if followed++; touched.Listeners {
				replanned++
			}
			after := statuses(live.Plan)
			for what, s := range statuses(fresh.Plan) {
				if !reflect.DeepEqual(after[what], s) {
					t.Fatalf("seed %d, step %d: the status of %s: %+v\nafresh: %+v", seed, step, what, after[what], s)
				}
				if !reflect.DeepEqual(before[what], s) && !touched.statuses()[what] {
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
	if followed < 1800 || used < 300 || replanned < 600 {
		t.Errorf("only %d changes were followed, %d of Gateways, with %d routes of UDP", followed, replanned, used)
	}
}

// Changes that affect more than routes require a new plan.
func TestChangesThatRequireNewPlan(t *testing.T) {
	tls := ingressOf("i", "x", map[string]string{})
	tls.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "cert"}}
	key := Name{Namespace: tls.Namespace, Name: "i"}
	first := changes()
	first.Ingresses[key] = ingressOf("i", "x", map[string]string{})
	certificate := changes()
	certificate.Ingresses[key] = tls
	if _, ok := NewLive(liveFrame().world()).Change(first); ok {
		t.Error("the first Ingress opens ports")
	}
	o := liveFrame()
	o.frame.Secrets[Name{Namespace: tls.Namespace, Name: "cert"}] = Material{}
	o.ingresses[Name{Namespace: "a", Name: "other"}] = ingressOf("other", "y", map[string]string{})
	if _, ok := NewLive(o.world()).Change(certificate); ok {
		t.Error("an Ingress brings a certificate")
	}
	o.ingresses[Name{Namespace: "a", Name: "other"}] = tls
	gone := changes()
	gone.Secrets[Name{Namespace: tls.Namespace, Name: "cert"}] = nil
	if _, ok := NewLive(o.world()).Change(gone); ok {
		t.Error("the certificate of an Ingress is gone")
	}
	w := o.world()
	w.Inference = &Inference{Pools: []*inferenceapi.Pool{poolOf("a", "p", &inferenceapi.Picker{Kind: "Service",
		Name: "picker", Port: &inferenceapi.Port{Number: 80}})}}
	for service, follows := range map[string]bool{"picker": false, "web": true} {
		c := changes()
		p := policyOf("a", "p", 0, service, "")
		c.Policies[nameOf(p)] = p
		if _, ok := NewLive(w).Change(c); ok != follows {
			t.Errorf("a policy for Service %s is followed: %v", service, ok)
		}
	}
	space := &Changes{Namespaces: map[string]labels.Set{"c": {"team": "x"}}}
	if _, ok := NewLive(o.world()).Change(space); !ok {
		t.Error("no listener selects namespaces by labels")
	}
	o.http[Name{Namespace: "b", Name: "r"}] = routeOf("b", "r", gatewayv1.ParentReference{Name: "g0",
		Namespace: new(gatewayv1.Namespace("a"))})
	o.frame.Gateways[0].Spec.Listeners[0].AllowedRoutes = &gatewayv1.AllowedRoutes{
		Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromSelector),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}}}
	if _, ok := NewLive(o.world()).Change(space); ok {
		t.Error("a listener selects namespaces by labels")
	}
}
