package gatewayplan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
)

func (p *planner) plannedTLS(in *gatewayv1.TLSRoute) *route {
	r := streamRoute("TLSRoute", in, lower(in.Spec.Hostnames))
	for i := range in.Spec.Rules {
		p.streamRule(r, in.Spec.Rules[i].Name, in.Spec.Rules[i].BackendRefs)
	}
	p.join(r, in.Spec.ParentRefs)
	setStatus(p.Plan.TLSRoutes, r, len(in.Status.Parents))
	return r
}

func (p *planner) plannedTCP(in *gatewayv1.TCPRoute) *route {
	r := streamRoute("TCPRoute", in, nil)
	for i := range in.Spec.Rules {
		p.streamRule(r, in.Spec.Rules[i].Name, in.Spec.Rules[i].BackendRefs)
	}
	p.join(r, in.Spec.ParentRefs)
	setStatus(p.Plan.TCPRoutes, r, len(in.Status.Parents))
	return r
}

func (p *planner) plannedUDP(in *gatewayv1.UDPRoute) *route {
	r := streamRoute("UDPRoute", in, nil)
	for i := range in.Spec.Rules {
		p.streamRule(r, in.Spec.Rules[i].Name, in.Spec.Rules[i].BackendRefs)
	}
	p.join(r, in.Spec.ParentRefs)
	setStatus(p.Plan.UDPRoutes, r, len(in.Status.Parents))
	return r
}

func streamRoute(kind gatewayv1.Kind, in metav1.Object, hosts []string) *route {
	return &route{kind: kind, meta: in, generation: in.GetGeneration(), hosts: hosts, policies: map[*policy]bool{},
		encrypting: map[*policy]bool{}}
}

func (p *planner) streamRule(r *route, name *gatewayv1.SectionName, refs []gatewayv1.BackendRef) {
	rule := httproute.Rule{Name: string(or(name, ""))}
	for i := range refs {
		rule.Backends = append(rule.Backends, p.backend(r, &refs[i].BackendObjectReference, or(refs[i].Weight, 1)))
	}
	r.rules = append(r.rules, rule)
	if r.kind == "UDPRoute" {
		return
	}
	rule.Backends = slices.Clone(rule.Backends)
	for i := range rule.Backends {
		if b := &rule.Backends[i]; b.Invalid == "" {
			of := Name{Namespace: b.Ref.Namespace, Name: b.Ref.Name}
			p.encrypt(b, of, endpoints.PortOf(p.Services[of], b.Ref.Port, false).Name, r.encrypting)
		}
	}
	r.encrypted = append(r.encrypted, rule)
}

// streams returns the streams of a route at a listener that forwards connections. Only its first rule can
// match.
func streams(l *listener, r *route, hosts []string, from httproute.Source) (out []Stream) {
	if len(r.rules) == 0 {
		return nil
	}
	if len(hosts) == 0 {
		hosts = []string{l.host}
	}
	end := l.Protocol == gatewayv1.TLSProtocolType && !passthrough(l.Listener)
	rules := r.rules
	if len(r.encrypted) > 0 && !passthrough(l.Listener) {
		rules = l.of.identity.show(r.encrypted)
	}
	for _, h := range hosts {
		out = append(out, Stream{Host: h, Rule: &rules[0], Source: from, Terminate: end})
	}
	return out
}

// allStreams returns the streams of all routes at a listener, of the oldest route first.
func (l *listener) allStreams() (out []Stream) {
	for _, j := range l.streams {
		out = append(out, j.streams...)
	}
	return out
}

// stream adds or removes the streams of a route at a listener that forwards connections.
func (l *listener) stream(j *joined, comes bool) {
	at, there := slices.BinarySearchFunc(l.streams, j, func(a, b *joined) int {
		return a.served.Source.Compare(b.served.Source)
	})
	switch {
	case comes && !there:
		l.streams = slices.Insert(l.streams, at, j)
	case !comes && there:
		l.streams = slices.Delete(l.streams, at, at+1)
	}
}
