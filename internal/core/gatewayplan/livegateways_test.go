package gatewayplan

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// changeGateway deletes a Gateway, makes it again, or changes its listeners, addresses, class, CAs, or certificate for
// backends.
func (o *objects) changeGateway(r *rand.Rand, step int, there bool, c *Changes) {
	all := slices.Clone(o.frame.Gateways)
	n := r.IntN(4)
	name := Name{Namespace: "a", Name: fmt.Sprint("g", n)}
	at := slices.IndexFunc(all, func(g *gatewayv1.Gateway) bool { return g.Name == name.Name })
	var g *gatewayv1.Gateway
	switch {
	case at < 0: // as it was in the beginning, or a new one
		g = gatewayOf(name.Name, r.IntN(8), plain("any", 80, ""), secure("one", "cert", "one.example"))
		for _, first := range liveFrame().frame.Gateways {
			if first.Name == g.Name && r.IntN(2) == 0 {
				g = first.DeepCopy()
			}
		}
		at, all = len(all), append(all, g)
	case !there && r.IntN(2) == 0:
		c.Gateways[name], o.frame.Gateways = nil, slices.Delete(all, at, at+1)
		return
	default:
		g = all[at].DeepCopy()
		o.changeListeners(r, g)
	}
	g.Generation = int64(100 + step)
	all[at], c.Gateways[name], o.frame.Gateways = g, g, all
}

func (o *objects) changeListeners(r *rand.Rand, g *gatewayv1.Gateway) {
	l := &g.Spec.Listeners[r.IntN(len(g.Spec.Listeners))]
	secret := gatewayv1.SecretObjectReference{Name: pick[gatewayv1.ObjectName](r, "used", "other")}
	extra := slices.IndexFunc(g.Spec.Listeners, func(l gatewayv1.Listener) bool { return l.Name == "extra" })
	switch r.IntN(9) {
	case 0:
		l.Port = pick[gatewayv1.PortNumber](r, 80, 81, 8080)
	case 1:
		if l.Protocol == gatewayv1.HTTPProtocolType {
			l.Hostname = new(pick[gatewayv1.Hostname](r, "one.example", "*.example", "h.example"))
		}
	case 2:
		l.AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{
			From: new(pick(r, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame,
				gatewayv1.NamespacesFromSelector)), Selector: team("x")}}
	case 3:
		if l.TLS != nil {
			l.TLS.CertificateRefs = []gatewayv1.SecretObjectReference{secret}
		}
	case 4, 5:
		if extra >= 0 {
			g.Spec.Listeners = slices.Delete(g.Spec.Listeners, extra, extra+1)
			return
		}
		g.Spec.Listeners = append(g.Spec.Listeners, pick(r, plain("extra", 80, "extra.example"), plain("extra", 80, ""),
			plain("extra", 8081, ""), secure("extra", "cert", "x"),
			rawListener("extra", gatewayv1.TCPProtocolType, 90)))
	case 6:
		g.Spec.Addresses = pick(r, nil, []gatewayv1.GatewaySpecAddress{{Value: "10.0.0.1"}},
			[]gatewayv1.GatewaySpecAddress{{Value: "10.0.0.2"}}, []gatewayv1.GatewaySpecAddress{{Value: "10.9.9.9"}})
	case 7:
		g.Spec.GatewayClassName = pick[gatewayv1.ObjectName](r, Class, Class, Class, "other")
		g.CreationTimestamp = meta("", "", r.IntN(8)).CreationTimestamp
	case 8:
		g.Spec.TLS = &gatewayv1.GatewayTLSConfig{Backend: &gatewayv1.GatewayBackendTLS{
			ClientCertificateRef: &secret}}
		allowSets(g, pick(r, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromNone,
			gatewayv1.NamespacesFromSelector)).Spec.AllowedListeners.Namespaces.Selector = team("x")
	}
}

// changeSet deletes a ListenerSet, makes it again, or changes its Gateway or listeners.
func (o *objects) changeSet(r *rand.Rand, step int, there bool, c *Changes) {
	all := slices.Clone(o.frame.ListenerSets)
	name := Name{Namespace: "b", Name: pick(r, "s0", "s1", "s2")}
	at := slices.IndexFunc(all, func(s *gatewayv1.ListenerSet) bool { return s.Name == name.Name })
	if at >= 0 && !there {
		c.ListenerSets[name], o.frame.ListenerSets = nil, slices.Delete(all, at, at+1)
		return
	}
	s := setOf("b", name.Name, r.IntN(3), pick(r, "g0", "g0", "g1"), plain("x", pick[int32](r, 80, 8080), pick(r,
		"set.example", "one.example")))
	if r.IntN(2) == 0 {
		s.Spec.Listeners = append(s.Spec.Listeners, setOf("b", "", 0, "", plain("y", 8080, "")).Spec.Listeners...)
	}
	if s.Generation = int64(100 + step); at < 0 {
		at, all = len(all), append(all, s)
	}
	all[at], c.ListenerSets[name], o.frame.ListenerSets = s, s, all
}

// followGateway changes a Gateway of a live plan, and compares its tables with those of a fresh plan.
func followGateway(t *testing.T, live *Live, w func() *World, g *gatewayv1.Gateway, c *Changes) {
	t.Helper()
	g.Generation++
	c.Gateways = map[Name]*gatewayv1.Gateway{nameOf(g): g}
	sameTables(t, live, w, c)
}

func sameTables(t *testing.T, live *Live, w func() *World, c *Changes) {
	t.Helper()
	if _, ok := live.Change(c); !ok {
		t.Fatal("not followed")
	}
	for at, p := range NewLive(w()).Ports {
		if got := live.Ports[at]; got == nil || !reflect.DeepEqual(got.Table.Routes(), p.Table.Routes()) {
			t.Errorf("%v: %+v, afresh %+v", at, got, p)
		}
	}
}

// Backends see the certificate that a Gateway gets later.
func TestGatewayGetsCertificateForBackends(t *testing.T) {
	gw := gatewayOf("gw", 0, plain("main", 80, ""))
	build := func() *World {
		w := world()
		p := policyOf("a", "p", 0, "web", "")
		p.Spec.Validation.WellKnownCACertificates = new(gatewayv1.WellKnownCACertificatesSystem)
		w.Policies = []*gatewayv1.BackendTLSPolicy{p}
		w.Secrets[Name{Namespace: "a", Name: "id"}] = Material{PEM: "certificate"}
		w.HTTPRoutes = []*gatewayv1.HTTPRoute{routeOf("a", "r", gatewayv1.ParentReference{Name: "gw"})}
		w.Gateways = []*gatewayv1.Gateway{gw}
		return w
	}
	live := NewLive(build())
	gw = gw.DeepCopy()
	gw.Spec.TLS = &gatewayv1.GatewayTLSConfig{Backend: &gatewayv1.GatewayBackendTLS{
		ClientCertificateRef: &gatewayv1.SecretObjectReference{Name: "id"}}}
	followGateway(t, live, build, gw, &Changes{})
	for _, p := range live.Ports {
		if tls := p.Table.Routes()[0].Route.Rules[0].Backends[0].TLS; tls == nil || tls.Cert != "certificate" {
			t.Errorf("%+v", tls)
		}
	}
}

// A Gateway that moves from a port that it shared to another address takes its routes along, and their later changes.
func TestGatewayMoves(t *testing.T) {
	gw := gatewayOf("moves", 1, plain("x", 80, "x.example"))
	gw.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "10.0.0.1"}}
	route := routeOf("a", "r", gatewayv1.ParentReference{Name: "moves"})
	build := func() *World {
		w := world()
		stays := gatewayOf("stays", 0, plain("y", 80, "y.example"))
		stays.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: "10.0.0.1"}}
		w.Gateways = []*gatewayv1.Gateway{stays, gw}
		w.HTTPRoutes = []*gatewayv1.HTTPRoute{route}
		return w
	}
	live := NewLive(build())
	gw = gw.DeepCopy()
	gw.Spec.Addresses[0].Value = "127.0.0.2"
	followGateway(t, live, build, gw, &Changes{})
	route = route.DeepCopy()
	route.Spec.Rules = append(route.Spec.Rules, route.Spec.Rules...)
	sameTables(t, live, build, &Changes{HTTPRoutes: map[Name]*gatewayv1.HTTPRoute{nameOf(route): route}})
}
