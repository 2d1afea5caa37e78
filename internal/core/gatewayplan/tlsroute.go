package gatewayplan

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

func (p *planner) tlsRoute(in *gatewayv1.TLSRoute) *route {
	r := &route{kind: "TLSRoute", meta: in, generation: in.Generation, hosts: lower(in.Spec.Hostnames),
		policies: map[*policy]bool{}}
	for i := range in.Spec.Rules {
		rule := httproute.Rule{Name: string(or(in.Spec.Rules[i].Name, ""))}
		for j := range in.Spec.Rules[i].BackendRefs {
			ref := &in.Spec.Rules[i].BackendRefs[j]
			rule.Backends = append(rule.Backends, p.backend(r, &ref.BackendObjectReference, or(ref.Weight, 1)))
		}
		r.rules = append(r.rules, rule)
	}
	return r
}

// streams are the host names of a TLSRoute at a listener. Only its first rule can match.
func streams(l *listener, r *route, hosts []string, from httproute.Source) (out []Stream) {
	if len(r.rules) == 0 {
		return nil
	}
	if len(hosts) == 0 {
		hosts = []string{l.host}
	}
	for _, h := range hosts {
		out = append(out, Stream{Host: h, Rule: &r.rules[0], Source: from, Terminate: !passthrough(l.Listener)})
	}
	return out
}
