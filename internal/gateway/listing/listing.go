// Package listing lists what a gateway serves, as `carob routes` and `carob explain` show it. Package gateway calls it;
// it has no state.
package listing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/routeapi"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
)

type name = types.NamespacedName

// Gateway is the state of a gateway.
type Gateway struct {
	Plan *gatewayplan.Plan
	// Endpoints returns the endpoints of a backend as IP:PORT, or false if the backend is not served.
	Endpoints func(of httproute.Ref) ([]string, bool)
	// Failed are the ports that could not be opened, and FailedUDP those of UDP.
	Failed, FailedUDP map[netip.AddrPort]string
}

// Routes returns the routes of a namespace, or all: by address, in the order in which hosts and routes are written.
func (g *Gateway) Routes(namespace string) routeapi.List {
	out := routeapi.List{Routes: []routeapi.Route{}}
	d := &describer{namespace: namespace, endpoints: g.Endpoints}
	for at, p := range g.Plan.Ports {
		d.port(at, p)
	}
	for at, p := range g.Plan.UDP {
		d.raw(at, "UDP", p)
	}
	slices.SortStableFunc(d.out, func(a, b routeapi.Route) int {
		x, _ := netip.ParseAddrPort(a.Address)
		y, _ := netip.ParseAddrPort(b.Address)
		return cmp.Or(x.Compare(y), cmp.Compare(a.Host, b.Host))
	})
	out.Routes = append(out.Routes, d.out...)
	out.Problems = problemsOf(g.Plan, namespace, g.Failed, g.FailedUDP)
	return out
}

type describer struct {
	namespace string
	endpoints func(of httproute.Ref) ([]string, bool)
	out       []routeapi.Route
}

// raw lists the route of a raw port.
func (d *describer) raw(at netip.AddrPort, protocol string, p *gatewayplan.Port) {
	if len(p.Streams) == 0 {
		return
	}
	s := &p.Streams[0]
	if d.namespace == "" || s.Source.Namespace == d.namespace {
		d.out = append(d.out, routeapi.Route{Address: at.String(), Protocol: protocol, Kind: s.Source.Kind,
			Namespace: s.Source.Namespace, Name: s.Source.Name, Rule: s.Rule.Name, Host: "*",
			Backends: d.backends(s.Rule, lost(s.Source.Kind))})
	}
}

func (d *describer) port(at netip.AddrPort, p *gatewayplan.Port) {
	if p.Raw {
		d.raw(at, "TCP", p)
		return
	}
	protocol := "HTTP"
	if p.TLS {
		protocol = "HTTPS"
	}
	for _, served := range p.Table.Routes() {
		r := served.Route
		if d.namespace != "" && r.Source.Namespace != d.namespace {
			continue
		}
		hosts := []string{}
		for _, h := range r.Hosts {
			hosts = append(hosts, h.Name)
		}
		if len(hosts) == 0 {
			hosts = []string{served.Listener}
		}
		for _, host := range hosts {
			for n := range r.Rules {
				d.rule(routeapi.Route{Address: at.String(), Protocol: protocol, Kind: r.Source.Kind,
					Namespace: r.Source.Namespace, Name: r.Source.Name, Host: cmp.Or(host, "*")}, &r.Rules[n])
			}
		}
	}
	for i := range p.Streams {
		s := &p.Streams[i]
		if d.namespace != "" && s.Source.Namespace != d.namespace {
			continue
		}
		d.out = append(d.out, routeapi.Route{Address: at.String(), Protocol: "TLS", Kind: s.Source.Kind,
			Namespace: s.Source.Namespace, Name: s.Source.Name, Rule: s.Rule.Name, Host: cmp.Or(s.Host, "*"),
			Backends: d.backends(s.Rule, lost(s.Source.Kind))})
	}
}

// rule lists each condition of a rule.
func (d *describer) rule(r routeapi.Route, rule *httproute.Rule) {
	r.Rule, r.Filters, r.Backends = rule.Name, filterTexts(&rule.Filters), d.backends(rule, "requests get 503")
	switch {
	case rule.NotFound:
		r.Answer = "404"
	case rule.Filters.Redirect != nil:
		r.Answer = fmt.Sprint(rule.Filters.Redirect.Status)
	case len(rule.Backends) == 0:
		r.Answer = "500"
	}
	for i := range rule.Matches {
		m := &rule.Matches[i]
		one := r
		one.Path = pathText(m.Path)
		if m.Method != "" {
			one.Match = append(one.Match, "method "+m.Method)
		}
		for _, h := range m.Headers {
			one.Match = append(one.Match, "header "+valueText(h))
		}
		for _, q := range m.Query {
			one.Match = append(one.Match, "query "+valueText(q))
		}
		d.out = append(d.out, one)
	}
}

func pathText(m httproute.PathMatch) string {
	switch m.Kind {
	case httproute.Exact:
		return "=" + m.Value
	case httproute.Regex:
		return "~" + m.Value
	case httproute.Method:
		return "=/*/" + m.Value
	case httproute.Prefix:
	}
	return m.Value
}

func valueText(m httproute.ValueMatch) string {
	if m.Regex {
		return m.Name + "~" + m.Value
	}
	return m.Name + "=" + m.Value
}

// filterTexts are the filters of a rule, one word for each.
func filterTexts(f *httproute.Filters) (out []string) {
	for _, has := range []struct {
		is   bool
		name string
	}{{f.CORS != nil, "cors"}, {f.Redirect != nil, "redirect"}, {len(f.Request) > 0, "request-headers"},
		{f.Rewrite != nil, "rewrite"}, {len(f.Mirrors) > 0, "mirror"}, {len(f.Response) > 0, "response-headers"}} {
		if has.is {
			out = append(out, has.name)
		}
	}
	return out
}

// lost describes what happens to connections that no endpoint gets.
func lost(kind string) string {
	if kind == "UDPRoute" {
		return "datagrams are dropped"
	}
	return "connections are closed"
}

func (d *describer) backends(rule *httproute.Rule, lost string) (out []routeapi.Backend) {
	for i := range rule.Backends {
		b := &rule.Backends[i]
		one := routeapi.Backend{Weight: b.Weight, Problem: b.Invalid}
		if b.Ref.Name != "" {
			one.Service = b.Ref.String()
		}
		if all, known := d.endpoints(b.Ref); known && b.Invalid == "" {
			one.Endpoints = all
			if len(one.Endpoints) == 0 {
				one.Problem = "no endpoint is ready: " + lost
			}
		}
		out = append(out, one)
	}
	return out
}

// problemsOf are the objects that are not served as specified, in the order of their kinds and names.
func problemsOf(plan *gatewayplan.Plan, namespace string, failed,
	failedUDP map[netip.AddrPort]string) []routeapi.Problem {
	var out []routeapi.Problem
	add := func(kind string, of name, reason, message string) {
		if namespace == "" || of.Namespace == namespace {
			out = append(out, routeapi.Problem{Kind: kind, Namespace: of.Namespace, Name: of.Name, Reason: reason,
				Message: message})
		}
	}
	conditions := func(kind string, of name, all []metav1.Condition) {
		for _, c := range all {
			if c.Status == metav1.ConditionFalse && c.Type != "Conflicted" {
				add(kind, of, c.Reason, c.Type+": "+c.Message)
			}
		}
	}
	for of, r := range plan.Ingresses {
		for _, p := range r.Problems {
			add("Ingress", of, p.Reason, p.Message)
		}
	}
	for of, s := range plan.Gateways {
		conditions("Gateway", of, s.Conditions)
		for _, l := range s.Listeners {
			conditions("Gateway", name{Namespace: of.Namespace, Name: of.Name + "/" + string(l.Name)}, l.Conditions)
		}
	}
	for of, s := range plan.ListenerSets {
		conditions("ListenerSet", of, s.Conditions)
	}
	for kind, all := range map[string]map[name][]gatewayv1.RouteParentStatus{"HTTPRoute": plan.HTTPRoutes,
		"GRPCRoute": plan.GRPCRoutes, "TLSRoute": plan.TLSRoutes, "TCPRoute": plan.TCPRoutes,
		"UDPRoute": plan.UDPRoutes} {
		for of, parents := range all {
			for i := range parents {
				conditions(kind, of, parents[i].Conditions)
			}
		}
	}
	for protocol, all := range map[string]map[netip.AddrPort]string{"": failed, "/UDP": failedUDP} {
		for at, why := range all {
			if namespace == "" {
				add("port", name{Name: at.String() + protocol}, "PortUnavailable", why)
			}
		}
	}
	for _, ports := range []map[netip.AddrPort]*gatewayplan.Port{plan.Ports, plan.UDP} {
		for at, p := range ports {
			if !p.Raw || len(p.Streams) < 2 {
				continue
			}
			first := &p.Streams[0].Source
			for i := range p.Streams[1:] {
				s := &p.Streams[1+i].Source
				add(s.Kind, name{Namespace: s.Namespace, Name: s.Name}, "OlderRoute", fmt.Sprintf(
					"nothing is served for it at port %d: %s/%s is older", at.Port(), first.Namespace, first.Name))
			}
		}
	}
	slices.SortFunc(out, func(a, b routeapi.Problem) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(out)
}
