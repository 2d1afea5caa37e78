package gatewayplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

func meta(namespace, name string, age int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 3,
		CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))}
}

// world has carob's classes, the Service web in the namespaces a and b, and two addresses.
func world() *World {
	w := &World{Services: map[Name]*corev1.Service{}, Secrets: map[Name]Material{}, CAs: map[Name]Material{},
		Namespaces: map[string]labels.Set{"a": {"team": "x"}, "b": {}},
		GatewayClasses: []*gatewayv1.GatewayClass{{ObjectMeta: meta("", Class, 0),
			Spec: gatewayv1.GatewayClassSpec{ControllerName: GatewayController}}},
		Classes: []*networkingv1.IngressClass{{ObjectMeta: meta("", Class, 0),
			Spec: networkingv1.IngressClassSpec{Controller: IngressController}}},
		Pool: []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")},
		Host: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		HTTP: netip.MustParseAddrPort("10.0.0.1:80"), HTTPS: netip.MustParseAddrPort("10.0.0.1:443")}
	for _, ns := range []string{"a", "b"} {
		w.Services[Name{Namespace: ns, Name: "web"}] = &corev1.Service{ObjectMeta: meta(ns, "web", 0),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	}
	return w
}

func gatewayOf(name string, age int, listeners ...gatewayv1.Listener) *gatewayv1.Gateway {
	return &gatewayv1.Gateway{ObjectMeta: meta("a", name, age),
		Spec: gatewayv1.GatewaySpec{GatewayClassName: Class, Listeners: listeners}}
}

func plain(name string, port int32, host string) gatewayv1.Listener {
	l := gatewayv1.Listener{Name: gatewayv1.SectionName(name), Port: port, Protocol: gatewayv1.HTTPProtocolType}
	if host != "" {
		l.Hostname = new(gatewayv1.Hostname(host))
	}
	return l
}

func secure(name, secret, namespace string) gatewayv1.Listener {
	l := plain(name, 443, "")
	l.Protocol = gatewayv1.HTTPSProtocolType
	l.TLS = &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{
		Name: gatewayv1.ObjectName(secret)}}}
	if namespace != "" {
		l.TLS.CertificateRefs[0].Namespace = new(gatewayv1.Namespace(namespace))
	}
	return l
}

func routeOf(namespace, name string, parent gatewayv1.ParentReference,
	hosts ...gatewayv1.Hostname) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{ObjectMeta: meta(namespace, name, 0)}
	r.Spec.ParentRefs = []gatewayv1.ParentReference{parent}
	r.Spec.Hostnames = hosts
	r.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{backendOf("web", "")}}}
	return r
}

func backendOf(name, namespace string) gatewayv1.HTTPBackendRef {
	ref := gatewayv1.HTTPBackendRef{}
	ref.Name, ref.Port = gatewayv1.ObjectName(name), ptr.To(gatewayv1.PortNumber(80))
	if namespace != "" {
		ref.Namespace = new(gatewayv1.Namespace(namespace))
	}
	return ref
}

// textOf formats conditions as "Type=Status/Reason".
func textOf(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		if c.ObservedGeneration != 3 {
			out = append(out, fmt.Sprint("generation ", c.ObservedGeneration))
		}
	}
	return strings.Join(out, " ")
}

func grant(namespace string, from gatewayv1.Kind, fromNamespace string, to gatewayv1.Kind,
	name string) *gatewayv1.ReferenceGrant {
	g := &gatewayv1.ReferenceGrant{ObjectMeta: meta(namespace, "g", 0), Spec: gatewayv1.ReferenceGrantSpec{
		From: []gatewayv1.ReferenceGrantFrom{{Group: group, Kind: from, Namespace: gatewayv1.Namespace(fromNamespace)}},
		To:   []gatewayv1.ReferenceGrantTo{{Kind: to}}}}
	if name != "" {
		g.Spec.To[0].Name = new(gatewayv1.ObjectName(name))
	}
	return g
}

func TestListeners(t *testing.T) {
	strange := plain("x", 80, "")
	strange.Protocol = "example.com/sctp"
	kinds := func(names ...gatewayv1.Kind) gatewayv1.Listener {
		l := plain("x", 80, "")
		l.AllowedRoutes = &gatewayv1.AllowedRoutes{}
		for _, k := range names {
			l.AllowedRoutes.Kinds = append(l.AllowedRoutes.Kinds, gatewayv1.RouteGroupKind{Kind: k})
		}
		return l
	}
	mixed := secure("y", "good", "")
	mixed.Port = 80
	const valid = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs Conflicted=False/NoConflicts Programmed=True/Programmed"
	for _, c := range []struct {
		what      string
		listeners []gatewayv1.Listener
		grants    []*gatewayv1.ReferenceGrant
		gateway   string
		want      []string
	}{
		{"valid", []gatewayv1.Listener{plain("x", 80, "")}, nil, "Accepted=True/Accepted Programmed=True/Programmed",
			[]string{valid}},
		{"unknown protocol only", []gatewayv1.Listener{strange}, nil,
			"Accepted=False/ListenersNotValid Programmed=False/Invalid",
			[]string{"Accepted=False/UnsupportedProtocol ResolvedRefs=True/ResolvedRefs Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"unknown protocol, too", []gatewayv1.Listener{plain("y", 80, ""), strange}, nil,
			"Accepted=True/ListenersNotValid Programmed=True/Programmed",
			[]string{valid,
				"Accepted=False/UnsupportedProtocol ResolvedRefs=True/ResolvedRefs Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"unknown kind", []gatewayv1.Listener{kinds("TCPRoute", "HTTPRoute")}, nil,
			"Accepted=True/Accepted Programmed=True/Programmed",
			[]string{"Accepted=True/Accepted ResolvedRefs=False/InvalidRouteKinds Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"same hostname", []gatewayv1.Listener{plain("x", 80, "h.com"), plain("y", 80, "H.com"), plain("z", 80, "")},
			nil,
			"Accepted=True/ListenersNotValid Programmed=True/Programmed", []string{
				"Accepted=False/HostnameConflict ResolvedRefs=True/ResolvedRefs Conflicted=True/HostnameConflict Programmed=False/Invalid",
				"Accepted=False/HostnameConflict ResolvedRefs=True/ResolvedRefs Conflicted=True/HostnameConflict Programmed=False/Invalid",
				valid}},
		{"two protocols on one port", []gatewayv1.Listener{plain("x", 80, ""), mixed}, nil,
			"Accepted=False/ListenersNotValid Programmed=False/Invalid", []string{
				"Accepted=False/ProtocolConflict ResolvedRefs=True/ResolvedRefs Conflicted=True/ProtocolConflict Programmed=False/Invalid",
				"Accepted=False/ProtocolConflict ResolvedRefs=True/ResolvedRefs Conflicted=True/ProtocolConflict Programmed=False/Invalid"}},
		{"good certificate", []gatewayv1.Listener{secure("x", "good", "")}, nil,
			"Accepted=True/Accepted Programmed=True/Programmed", []string{valid}},
		{"bad certificate", []gatewayv1.Listener{secure("x", "bad", "")}, nil,
			"Accepted=True/Accepted Programmed=False/Invalid",
			[]string{"Accepted=True/Accepted ResolvedRefs=False/InvalidCertificateRef Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"no certificate", []gatewayv1.Listener{secure("x", "none", "")}, nil,
			"Accepted=True/Accepted Programmed=False/Invalid",
			[]string{"Accepted=True/Accepted ResolvedRefs=False/InvalidCertificateRef Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"no grant", []gatewayv1.Listener{secure("x", "good", "b")}, nil,
			"Accepted=True/Accepted Programmed=False/Invalid",
			[]string{"Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"a grant for another", []gatewayv1.Listener{secure("x", "good", "b")},
			[]*gatewayv1.ReferenceGrant{grant("b", "Gateway", "c", "Secret", ""), grant("b", "HTTPRoute", "a", "Secret",
				""),
				grant("a", "Gateway", "a", "Secret", ""), grant("b", "Gateway", "a", "Secret", "other"),
				grant("b", "Gateway", "a", "Service", "")}, "Accepted=True/Accepted Programmed=False/Invalid",
			[]string{"Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted Conflicted=False/NoConflicts Programmed=False/Invalid"}},
		{"a grant", []gatewayv1.Listener{secure("x", "good", "b")},
			[]*gatewayv1.ReferenceGrant{grant("b", "Gateway", "a", "Secret", "good")},
			"Accepted=True/Accepted Programmed=True/Programmed", []string{valid}},
	} {
		w := world()
		w.Secrets = map[Name]Material{{Namespace: "a", Name: "good"}: {}, {Namespace: "b", Name: "good"}: {},
			{Namespace: "a", Name: "bad"}: {Problem: "it is bad"}}
		w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, c.listeners...)}
		w.Grants = c.grants
		p := makePlan(w).Plan
		s := p.Gateways[Name{Namespace: "a", Name: "g"}]
		if got := textOf(s.Conditions); got != c.gateway {
			t.Errorf("%s: %s, want %s", c.what, got, c.gateway)
		}
		for i, want := range c.want {
			if got := textOf(s.Listeners[i].Conditions); got != want {
				t.Errorf("%s: listener %d: %s, want %s", c.what, i, got, want)
			}
		}
		served := false
		for _, port := range p.Ports {
			served = served || len(port.Listeners) > 0
		}
		if want := slices.ContainsFunc(c.want, func(s string) bool {
			return s == valid || strings.Contains(s, "InvalidRouteKinds")
		}); served != want {
			t.Errorf("%s: served %v", c.what, served)
		}
	}
}

func TestAttachment(t *testing.T) {
	selected := plain("sel", 81, "")
	selected.AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{
		From:     ptr.To(gatewayv1.NamespacesFromSelector),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}}}
	all := plain("all", 82, "*.h.com")
	all.AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{
		From: ptr.To(gatewayv1.NamespacesFromAll)}}
	to := func(section string, port int32) gatewayv1.ParentReference {
		ref := gatewayv1.ParentReference{Name: "g", Namespace: ptr.To(gatewayv1.Namespace("a"))}
		if section != "" {
			ref.SectionName = new(gatewayv1.SectionName(section))
		}
		if port != 0 {
			ref.Port = &port
		}
		return ref
	}
	for _, c := range []struct {
		what      string
		route     *gatewayv1.HTTPRoute
		want      string
		listeners []int32 // attached routes of same, sel, all
	}{
		{"to all", routeOf("a", "r", to("", 0)), "Accepted=True/Accepted", []int32{1, 1, 1}},
		{"another namespace", routeOf("b", "r", to("", 0)), "Accepted=True/Accepted", []int32{0, 0, 1}},
		{"not allowed", routeOf("b", "r", to("same", 0)), "Accepted=False/NotAllowedByListeners", []int32{0, 0, 0}},
		{"no such listener", routeOf("a", "r", to("none", 0)), "Accepted=False/NoMatchingParent", []int32{0, 0, 0}},
		{"by port", routeOf("a", "r", to("", 81)), "Accepted=True/Accepted", []int32{0, 1, 0}},
		{"name and port differ", routeOf("a", "r", to("same", 81)), "Accepted=False/NoMatchingParent", []int32{0, 0,
			0}},
		{"hostname", routeOf("a", "r", to("all", 0), "x.h.com", "no.com"), "Accepted=True/Accepted", []int32{0, 0, 1}},
		{"no hostname", routeOf("a", "r", to("all", 0), "h.com"), "Accepted=False/NoMatchingListenerHostname",
			[]int32{0, 0, 0}},
	} {
		w := world()
		w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, plain("same", 80, ""), selected, all)}
		w.HTTPRoutes = []*gatewayv1.HTTPRoute{c.route}
		p := makePlan(w).Plan
		parents := p.HTTPRoutes[nameOf(c.route)]
		if len(parents) != 1 || textOf(parents[0].Conditions) != c.want+" ResolvedRefs=True/ResolvedRefs" {
			t.Errorf("%s: %+v", c.what, parents)
		}
		for i, l := range p.Gateways[Name{Namespace: "a", Name: "g"}].Listeners {
			if l.AttachedRoutes != c.listeners[i] {
				t.Errorf("%s: listener %s has %d routes", c.what, l.Name, l.AttachedRoutes)
			}
		}
	}
}

func TestReferences(t *testing.T) {
	kind := backendOf("web", "")
	kind.Kind = ptr.To(gatewayv1.Kind("Bucket"))
	port := backendOf("web", "")
	port.Port = ptr.To(gatewayv1.PortNumber(81))
	for _, c := range []struct {
		what   string
		refs   []gatewayv1.HTTPBackendRef
		grants []*gatewayv1.ReferenceGrant
		want   string
		valid  []bool
	}{
		{"missing", []gatewayv1.HTTPBackendRef{backendOf("none", "")}, nil, "False/BackendNotFound", []bool{false}},
		{"missing port", []gatewayv1.HTTPBackendRef{port}, nil, "False/BackendNotFound", []bool{false}},
		{"kind", []gatewayv1.HTTPBackendRef{kind, backendOf("web", "")}, nil, "False/InvalidKind", []bool{false, true}},
		{"namespace", []gatewayv1.HTTPBackendRef{backendOf("web", "b")}, nil, "False/RefNotPermitted", []bool{false}},
		{"granted", []gatewayv1.HTTPBackendRef{backendOf("web", "b")},
			[]*gatewayv1.ReferenceGrant{grant("b", "HTTPRoute", "a", "Service", "web")}, "True/ResolvedRefs",
			[]bool{true}},
		{"none", nil, nil, "True/ResolvedRefs", nil},
	} {
		w := world()
		w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, plain("x", 80, ""))}
		r := routeOf("a", "r", gatewayv1.ParentReference{Name: "g"})
		r.Spec.Rules[0].BackendRefs = c.refs
		w.HTTPRoutes, w.Grants = []*gatewayv1.HTTPRoute{r}, c.grants
		p := makePlan(w).Plan
		if got := textOf(p.HTTPRoutes[nameOf(r)][0].Conditions); got != "Accepted=True/Accepted ResolvedRefs="+c.want {
			t.Errorf("%s: %s", c.what, got)
		}
		served := p.Ports[netip.MustParseAddrPort("127.0.0.2:80")].Listeners[0].Routes[0].Rules[0].Backends
		for i, valid := range c.valid {
			if (served[i].Invalid == "") != valid {
				t.Errorf("%s: backend %d: %+v", c.what, i, served[i])
			}
		}
	}
}

// A rule with a filter that carob does not have is answered with an error, and is not served without it.
func TestUnknownFilter(t *testing.T) {
	w := world()
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 0, plain("x", 80, ""))}
	r := routeOf("a", "r", gatewayv1.ParentReference{Name: "g"})
	bad := r.Spec.Rules[0]
	bad.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterExtensionRef}}
	r.Spec.Rules = append(r.Spec.Rules, bad)
	w.HTTPRoutes = []*gatewayv1.HTTPRoute{r}
	p := makePlan(w).Plan
	if got := textOf(p.HTTPRoutes[nameOf(r)][0].Conditions); !strings.Contains(got, "PartiallyInvalid=True") {
		t.Error(got)
	}
	rules := p.Ports[netip.MustParseAddrPort("127.0.0.2:80")].Listeners[0].Routes[0].Rules
	if rules[0].Backends[0].Invalid != "" || rules[1].Backends[0].Invalid == "" {
		t.Errorf("%+v", rules)
	}
	r.Spec.Rules = r.Spec.Rules[1:]
	if got := textOf(makePlan(w).Plan.HTTPRoutes[nameOf(r)][0].Conditions); !strings.HasPrefix(got,
		"Accepted=False/UnsupportedValue") {
		t.Error(got)
	}
}

// Addresses of the pool stay with their Gateways, by the status; the oldest chooses first.
func TestAddresses(t *testing.T) {
	w := world()
	young, old, third := gatewayOf("a", 1, plain("x", 80, "")), gatewayOf("b", 2, plain("x", 80, "")), gatewayOf("c", 0,
		plain("x", 80, ""))
	w.Gateways = []*gatewayv1.Gateway{third, young, old}
	address := func(g *gatewayv1.Gateway) string {
		s := makePlan(w).Plan.Gateways[nameOf(g)]
		if len(s.Addresses) == 0 {
			return textOf(s.Conditions)
		}
		return s.Addresses[0].Value
	}
	if address(old) != "127.0.0.2" || address(young) != "127.0.0.3" ||
		address(third) != "Accepted=True/Accepted Programmed=False/AddressNotUsable" {
		t.Error(address(old), address(young), address(third))
	}
	young.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: "127.0.0.2"}}
	if address(old) != "127.0.0.3" || address(young) != "127.0.0.2" {
		t.Error("a Gateway lost its address", address(old), address(young))
	}
	// The status may not contain the address of the previous plan yet.
	young.Status.Addresses = nil
	w.Assigned = map[Name]netip.Addr{nameOf(young): netip.MustParseAddr("127.0.0.2")}
	if address(young) != "127.0.0.2" || address(old) != "127.0.0.3" ||
		makePlan(w).Plan.Assigned[nameOf(old)].String() != "127.0.0.3" {
		t.Error("a Gateway lost the address that was just assigned", address(old), address(young))
	}
	third.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "10.0.0.1"}}
	if address(third) != "10.0.0.1" {
		t.Error(address(third))
	}
	third.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "9.9.9.9"}}
	if got := address(third); got != "Accepted=True/Accepted Programmed=False/AddressNotUsable" {
		t.Error(got)
	}
	third.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Type: ptr.To(gatewayv1.HostnameAddressType), Value: "h"}}
	if got := address(third); got != "Accepted=False/UnsupportedAddress Programmed=False/Invalid" {
		t.Error(got)
	}
}

// Without a pool, Gateways and Ingresses share an address: the routes of one port are joined.
func TestSharedAddress(t *testing.T) {
	w := world()
	w.Pool = nil
	w.Gateways = []*gatewayv1.Gateway{gatewayOf("g", 1, plain("x", 80, "")), gatewayOf("h", 0, plain("x", 80,
		"only.com"))}
	w.HTTPRoutes = []*gatewayv1.HTTPRoute{routeOf("a", "r", gatewayv1.ParentReference{Name: "g"}),
		routeOf("a", "s", gatewayv1.ParentReference{Name: "h"})}
	w.Ingresses = []*networkingv1.Ingress{ingressOf("i", "web.com", nil)}
	p := makePlan(w).Plan
	if len(p.Ports[w.HTTP].Listeners) != 3 || len(p.Ingresses) != 1 {
		t.Errorf("%+v", p.Ports[w.HTTP])
	}
	table, _ := httproute.Compile(p.Ports[w.HTTP].Listeners)
	for host, want := range map[string]string{"web.com": "Ingress", "any.com": "HTTPRoute", "only.com": "HTTPRoute"} {
		if r, ok := table.Find(&httproute.Request{Host: host, Path: "/"}); !ok || r.Source.Kind != want {
			t.Errorf("%s: %+v %v", host, r.Source, ok)
		}
	}
	w.Failed = map[netip.AddrPort]string{w.HTTP: "in use"}
	if got := textOf(makePlan(w).Plan.Gateways[Name{Namespace: "a", Name: "g"}].Conditions); !strings.Contains(got,
		"Programmed=False/AddressNotUsable") {
		t.Error(got)
	}
}

func ingressOf(name, host string, annotations map[string]string) *networkingv1.Ingress {
	class := Class
	in := &networkingv1.Ingress{ObjectMeta: meta("a", name, 0), Spec: networkingv1.IngressSpec{IngressClassName: &class,
		Rules: []networkingv1.IngressRule{{Host: host}}}}
	in.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: "/",
		PathType: ptr.To(networkingv1.PathTypePrefix), Backend: networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "web",
				Port: networkingv1.ServiceBackendPort{Name: "http"}}}}}}
	in.Annotations = annotations
	return in
}

func TestAnnotations(t *testing.T) {
	for _, c := range []struct {
		name, value, reason string
		served              bool
	}{
		{"rewrite-target", "/x", "", true}, {"proxy-body-size", "8m", "", true}, {"proxy-body-size", "8x",
			"InvalidAnnotation", false},
		{"proxy-read-timeout", "30", "", true}, {"proxy-read-timeout", "-1", "InvalidAnnotation", false},
		{"ssl-redirect", "maybe", "InvalidAnnotation", false}, {"backend-protocol", "grpcs", "", true},
		{"backend-protocol", "FCGI", "InvalidAnnotation", false}, {"proxy-buffering", "on", "IgnoredAnnotation", true},
		{"whitelist-source-range", "10.0.0.0/8", "UnsupportedAnnotation", false},
		{"configuration-snippet", "deny all;", "UnsupportedAnnotation", false},
	} {
		w := world()
		w.Ingresses = []*networkingv1.Ingress{ingressOf("i", "h.com", map[string]string{nginx + c.name: c.value,
			"other": "x"})}
		p := makePlan(w).Plan
		r := p.Ingresses[Name{Namespace: "a", Name: "i"}]
		if c.reason == "" && len(r.Problems) > 0 || c.reason != "" && (len(r.Problems) != 1 ||
			r.Problems[0].Reason != c.reason) {
			t.Errorf("%s: %v", c.name, r.Problems)
		}
		if (p.Ports[w.HTTP] != nil) != c.served || (len(r.Addresses) > 0) != c.served {
			t.Errorf("%s %s: served %v, %v", c.name, c.value, p.Ports[w.HTTP] != nil, r.Addresses)
		}
	}
}

// Which Ingresses carob serves (N6.6, N6.7), and which backend gets requests that match no path
// (N6.12).
func TestIngressClassesAndDefaults(t *testing.T) {
	w := world()
	other := ingressOf("other", "o.com", nil)
	other.Spec.IngressClassName = new("nginx")
	none := ingressOf("none", "n.com", nil)
	none.Spec.IngressClassName = nil
	legacy := ingressOf("legacy", "l.com", map[string]string{legacyClass: Class})
	legacy.Spec.IngressClassName = nil
	fallback := ingressOf("fallback", "f.com", nil)
	fallback.Spec.Rules[0].HTTP.Paths[0].Path = "/only"
	fallback.Spec.DefaultBackend = fallback.Spec.Rules[0].HTTP.Paths[0].Backend.DeepCopy()
	fallback.Spec.DefaultBackend.Service = &networkingv1.IngressServiceBackend{Name: "none",
		Port: networkingv1.ServiceBackendPort{Number: 80}}
	wild := ingressOf("wild", "*.com", nil)
	narrow := ingressOf("narrow", "x.com", nil)
	narrow.Spec.Rules[0].HTTP.Paths[0].Path = "/only"
	w.Ingresses = []*networkingv1.Ingress{other, none, legacy, fallback, wild, narrow}
	p := makePlan(w).Plan
	if len(p.Ingresses) != 4 {
		t.Errorf("%v", p.Ingresses)
	}
	table, _ := httproute.Compile(p.Ports[w.HTTP].Listeners)
	for _, c := range []struct{ host, path, want string }{
		{"o.com", "/", "wild"}, {"n.com", "/", "wild"}, {"l.com", "/", "legacy"}, {"f.com", "/only", "fallback"},
		{"f.com", "/x", "fallback default"}, {"a.b.com", "/", "fallback default"}, {"x.com", "/only/y", "narrow"},
		{"x.com", "/", "narrow 404"}, {"", "/", "fallback default"},
	} {
		r, ok := table.Find(&httproute.Request{Host: c.host, Path: c.path})
		got := ""
		if ok {
			got = r.Source.Name
			if r.Rule.NotFound {
				got += " 404"
			} else if r.Rule.Backends[0].Invalid != "" {
				got += " default"
			}
		}
		if got != c.want {
			t.Errorf("%s%s: %q, want %q", c.host, c.path, got, c.want)
		}
	}
}

// A status keeps the entries of other controllers, and the times of unchanged conditions.
func TestStatusIsShared(t *testing.T) {
	before, now := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	ref := gatewayv1.ParentReference{Name: "g"}
	stored := []gatewayv1.RouteParentStatus{{ControllerName: "other", ParentRef: ref},
		{ControllerName: GatewayController, ParentRef: ref, Conditions: []metav1.Condition{
			{Type: "Accepted", Status: "True", LastTransitionTime: before}, {Type: "ResolvedRefs", Status: "True",
				LastTransitionTime: before},
			{Type: "example.com/Theirs", Status: "True", LastTransitionTime: before},
			{Type: "PartiallyInvalid", Status: "True", LastTransitionTime: before}}},
		{ControllerName: GatewayController, ParentRef: gatewayv1.ParentReference{Name: "gone"}}}
	fresh := []gatewayv1.RouteParentStatus{{ControllerName: GatewayController, ParentRef: ref,
		Conditions: []metav1.Condition{
			{Type: "Accepted", Status: "True"}, {Type: "ResolvedRefs", Status: "False"}}}}
	out, changed := Parents(stored, fresh, now)
	if !changed || len(out) != 2 || out[0].ControllerName != "other" || len(out[1].Conditions) != 3 ||
		!out[1].Conditions[0].LastTransitionTime.Equal(&before) ||
		!out[1].Conditions[1].LastTransitionTime.Equal(&now) {
		t.Errorf("%v %+v", changed, out)
	}
	if again, changed := Parents(out, fresh, metav1.NewTime(time.Unix(3, 0))); changed {
		t.Errorf("the same status is a change: %+v", again)
	}
	if _, changed := Parents(nil, nil, now); changed {
		t.Error("nothing is a change")
	}
}

// A path that is not a valid regular expression is reported; the other paths of its Ingress are served.
func TestInvalidPathOfIngress(t *testing.T) {
	w := world()
	in := ingressOf("i", "web.com", map[string]string{nginx + "use-regex": "true"})
	paths := &in.Spec.Rules[0].HTTP.Paths
	*paths = append(*paths, (*paths)[0])
	(*paths)[1].Path, (*paths)[1].PathType = "/a(", ptr.To(networkingv1.PathTypeImplementationSpecific)
	w.Ingresses = []*networkingv1.Ingress{in}
	p := makePlan(w).Plan
	problems := p.Ingresses[nameOf(in)].Problems
	if len(problems) != 1 || problems[0].Reason != "InvalidPath" || !strings.Contains(problems[0].Message, "/a(") {
		t.Errorf("%v", problems)
	}
	if rules := p.Ports[w.HTTP].Listeners[0].Routes[0].Rules; len(rules) != 1 {
		t.Errorf("%+v", rules)
	}
}
