package gatewayplan

import (
	"cmp"
	"regexp"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

func (p *planner) grpcRoute(in *gatewayv1.GRPCRoute) *route {
	r := &route{kind: "GRPCRoute", meta: in, generation: in.Generation, hosts: lower(in.Spec.Hostnames),
		policies: map[*policy]bool{}}
	planRules(r, in.Spec.Rules, p.grpcRule)
	return r
}

func (p *planner) grpcRule(r *route, in *gatewayv1.GRPCRouteRule) (out httproute.Rule, problem string) {
	out.Name = string(or(in.Name, ""))
	for i := range in.Matches {
		m, bad := grpcMatch(&in.Matches[i])
		if problem = cmp.Or(problem, bad); bad == "" {
			out.Matches = append(out.Matches, m)
		}
	}
	if len(in.Matches) == 0 {
		out.Matches = []httproute.Match{{Path: httproute.PathMatch{Kind: httproute.Prefix, Value: "/"}}}
	}
	if in.SessionPersistence != nil {
		return out, "sessionPersistence is not supported"
	}
	filters, bad := p.filters(r, httpFilters(in.Filters))
	problem = cmp.Or(problem, bad)
	out.Filters = filters
	for i := range in.BackendRefs {
		ref := &in.BackendRefs[i]
		b := p.backend(r, &ref.BackendObjectReference, or(ref.Weight, 1))
		b.Filters, bad = p.filters(r, httpFilters(ref.Filters))
		problem = cmp.Or(problem, bad)
		out.Backends = append(out.Backends, b)
	}
	return out, problem
}

// httpFilters converts filters to the same filters of an HTTPRoute.
func httpFilters(all []gatewayv1.GRPCRouteFilter) (out []gatewayv1.HTTPRouteFilter) {
	for _, f := range all {
		out = append(out, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterType(f.Type),
			RequestHeaderModifier: f.RequestHeaderModifier, ResponseHeaderModifier: f.ResponseHeaderModifier,
			RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef})
	}
	return out
}

// grpcMatch returns a match of the path /service/method. The precedence of paths gives the precedence of
// services and methods.
func grpcMatch(in *gatewayv1.GRPCRouteMatch) (m httproute.Match, problem string) {
	m.Path = httproute.PathMatch{Kind: httproute.Prefix, Value: "/"}
	if in.Method != nil {
		service, method := or(in.Method.Service, ""), or(in.Method.Method, "")
		switch {
		case or(in.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression:
			m.Path.Kind = httproute.Regex
			m.Path.Value = "/(?:" + cmp.Or(service, "[^/]+") + ")/(?:" + cmp.Or(method, "[^/]+") + ")"
		case service != "" && method != "":
			m.Path = httproute.PathMatch{Kind: httproute.Exact, Value: "/" + service + "/" + method}
		case service != "":
			m.Path.Value = "/" + service
		case method != "":
			m.Path = httproute.PathMatch{Kind: httproute.Method, Value: method}
		}
	}
	if m.Path.Kind == httproute.Regex {
		if _, err := regexp.Compile(m.Path.Value); err != nil {
			return m, err.Error()
		}
	}
	for _, h := range in.Headers {
		expr := or(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression
		if expr {
			if _, err := regexp.Compile(h.Value); err != nil {
				return m, err.Error()
			}
		}
		m.Headers = append(m.Headers, httproute.ValueMatch{Name: string(h.Name), Value: h.Value, Regex: expr})
	}
	return m, ""
}
