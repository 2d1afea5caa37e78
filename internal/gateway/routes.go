package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/routeapi"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
)

// ServeRoutes answers what is served (routeapi).
func (g *Gateway) ServeRoutes(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(g.Routes(r.URL.Query().Get("namespace"))) // the client has left
}

// Routes returns the routes of a namespace, or all: by address, in the order in which hosts and
// routes are written.
func (g *Gateway) Routes(namespace string) routeapi.List {
	g.mu.Lock()
	defer g.mu.Unlock()
	plan := g.plan
	out := routeapi.List{Routes: []routeapi.Route{}}
	if plan == nil {
		return out
	}
	d := &describer{namespace: namespace, pools: g.pools}
	for at, p := range plan.Ports {
		d.port(at, p)
	}
	slices.SortStableFunc(d.out, func(a, b routeapi.Route) int {
		x, _ := netip.ParseAddrPort(a.Address)
		y, _ := netip.ParseAddrPort(b.Address)
		return cmp.Or(x.Compare(y), cmp.Compare(a.Host, b.Host))
	})
	out.Routes = append(out.Routes, d.out...)
	out.Problems = problemsOf(plan.Plan, namespace, g.failed)
	return out
}

type describer struct {
	namespace string
	pools     poolMap
	out       []routeapi.Route
}

func (d *describer) port(at netip.AddrPort, p *gatewayplan.Port) {
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
			Backends: d.backends(s.Rule)})
	}
}

// rule lists each condition of a rule.
func (d *describer) rule(r routeapi.Route, rule *httproute.Rule) {
	r.Rule, r.Filters, r.Backends = rule.Name, filterTexts(&rule.Filters), d.backends(rule)
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

// filterTexts are the filters of a rule in a word each.
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

func (d *describer) backends(rule *httproute.Rule) (out []routeapi.Backend) {
	for i := range rule.Backends {
		b := &rule.Backends[i]
		one := routeapi.Backend{Weight: b.Weight, Problem: b.Invalid}
		if b.Ref.Name != "" {
			one.Service = b.Ref.String()
		}
		if p, known := d.pools.Get(b.Ref); known && b.Invalid == "" {
			for _, t := range *p.endpoints.Load() {
				one.Endpoints = append(one.Endpoints, t.Address.String())
			}
			if len(one.Endpoints) == 0 {
				one.Problem = "no endpoint is ready: requests get 503"
			}
		}
		out = append(out, one)
	}
	return out
}

// problemsOf are the objects that are not served as they are written, in the order of their kinds and names.
func problemsOf(plan *gatewayplan.Plan, namespace string, failed map[netip.AddrPort]string) []routeapi.Problem {
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
		"GRPCRoute": plan.GRPCRoutes, "TLSRoute": plan.TLSRoutes} {
		for of, parents := range all {
			for i := range parents {
				conditions(kind, of, parents[i].Conditions)
			}
		}
	}
	for at, why := range failed {
		if namespace == "" {
			add("port", name{Name: at.String()}, "PortUnavailable", why)
		}
	}
	slices.SortFunc(out, func(a, b routeapi.Problem) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(out)
}
