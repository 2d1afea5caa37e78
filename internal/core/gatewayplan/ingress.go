package gatewayplan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"carob/internal/core/httproute"
)

// legacyClass is the annotation that chose a class before spec.ingressClassName (N6.6).
const legacyClass = "kubernetes.io/ingress.class"

// afterAll is the age of the routes that are matched after the paths of all Ingresses.
const afterAll = 1 << 62

// Serves reports whether an Ingress is served by carob: its class names carob's controller (N6.6, N6.7).
func Serves(in *networkingv1.Ingress, classes []*networkingv1.IngressClass) bool {
	name := ClassOf(in)
	return name != "" && slices.ContainsFunc(classes, func(c *networkingv1.IngressClass) bool {
		return c.Name == name && c.Spec.Controller == IngressController
	})
}

// ingressRoutes holds the routes of an Ingress.
type ingressRoutes struct {
	plain, secure []httproute.Route // over HTTP and HTTPS
	certificates  []Certificate
	problems      []Problem
}

// ingresses plans all Ingresses. They share one listener for all hosts, over HTTP and HTTPS.
func (p *planner) ingresses() {
	var plain, secure []httproute.Route
	var certificates []Certificate
	for _, in := range byAge(p.World.Ingresses) {
		r := p.plannedIngress(in)
		if r == nil {
			continue
		}
		p.count(r, 1)
		plain, secure = append(plain, r.ingress.plain...), append(secure, r.ingress.secure...)
		if certificates = append(certificates, r.ingress.certificates...); len(r.ingress.certificates) > 0 {
			p.certifiers = append(p.certifiers, r)
		}
	}
	if p.certified = certificates; len(plain) > 0 {
		p.openIngresses(plain, secure)
	}
}

// openIngresses opens the ports of Ingresses.
func (p *planner) openIngresses(plain, secure []httproute.Route) {
	if p.HTTP.IsValid() {
		port := p.port(p.HTTP, false)
		port.Listeners, port.from = []httproute.Listener{{Routes: plain}}, []*listener{nil}
	}
	if p.HTTPS.IsValid() {
		port := p.port(p.HTTPS, true)
		port.Listeners, port.from = []httproute.Listener{{Routes: secure}}, []*listener{nil}
		port.Certificates, port.Default = slices.Clip(p.certified), true
	}
}

// plannedIngress plans an Ingress; nil: carob does not serve it.
func (p *planner) plannedIngress(in *networkingv1.Ingress) *route {
	if !Serves(in, p.World.Classes) || in.DeletionTimestamp != nil {
		return nil
	}
	r := p.ingress(in)
	for i := range r.ingress.plain {
		r.ingress.plain[i].Part = i
	}
	for i := range r.ingress.secure {
		r.ingress.secure[i].Part = i
	}
	result := IngressResult{Problems: r.ingress.problems}
	if r.ingress.plain != nil {
		result.Addresses = p.ingressAddresses()
	}
	p.Plan.Ingresses[nameOf(in)] = result
	return r
}

func (p *planner) ingressAddresses() (out []networkingv1.IngressLoadBalancerIngress) {
	at := p.HTTP
	if !at.IsValid() {
		at = p.HTTPS
	}
	for _, ip := range p.addresses(at.Addr()) {
		out = append(out, networkingv1.IngressLoadBalancerIngress{IP: ip.String()})
	}
	return out
}

// ingress makes the routes of one Ingress: one for each host, so that a host's default backend comes after its paths.
func (p *planner) ingress(in *networkingv1.Ingress) *route {
	out := &ingressRoutes{}
	r := &route{kind: "Ingress", meta: in, ingress: out}
	a, problems, ok := annotationsOf(in)
	if out.problems = problems; !ok {
		return r
	}
	from := source("Ingress", in)
	rest, more := p.restOf(r, in, a)
	out.problems = append(out.problems, more...)
	if in.Spec.DefaultBackend != nil || len(in.Spec.Rules) == 0 {
		route := httproute.Route{Source: from, Rules: []httproute.Rule{rest}} // for all hosts that no rule names
		route.Source.Created = afterAll
		out.plain, out.secure = append(out.plain, route), append(out.secure, route)
	}
	for i := range in.Spec.Rules {
		rule := &in.Spec.Rules[i]
		route := httproute.Route{Source: from}
		if rule.Host != "" {
			route.Hosts = []httproute.HostPattern{{Name: strings.ToLower(rule.Host), OneLabel: true}}
		}
		if rule.HTTP != nil {
			for j := range rule.HTTP.Paths {
				path := &rule.HTTP.Paths[j]
				match := ingressPath(path, a)
				if err := httproute.Check([]httproute.Match{match}); err != nil {
					out.problems = append(out.problems, Problem{"InvalidPath", "a path is not served: " + err.Error()})
					continue
				}
				b, problem := p.ingressBackend(r, in, &path.Backend, a)
				if problem != nil {
					out.problems = append(out.problems, *problem)
				}
				route.Rules = append(route.Rules, a.rule(match, b))
			}
		}
		// Requests that match no path of a host go to the Ingress's default backend, not to the
		// paths of another host (N6.12). For a rule for all hosts, they go to other Ingresses.
		routes := []httproute.Route{route}
		if rule.Host != "" {
			last := route
			last.Source.Created = afterAll
			last.Rules = []httproute.Rule{rest}
			routes = append(routes, last)
		}
		out.secure = append(out.secure, routes...)
		for _, one := range routes {
			if p.redirects(in, rule.Host, a) {
				one.Rules = slices.Clone(one.Rules)
				for j := range one.Rules {
					one.Rules[j].NotFound = false
					one.Rules[j].Filters = httproute.Filters{Redirect: &httproute.Redirect{Scheme: "https", Status: 308,
						Port: int32(p.HTTPS.Port())}}
				}
			}
			out.plain = append(out.plain, one)
		}
	}
	out.certificates, more = p.ingressCertificates(r, in)
	out.problems = append(out.problems, more...)
	return r
}

// restOf returns the rule for requests that match no path.
func (p *planner) restOf(r *route, in *networkingv1.Ingress, a *annotations) (httproute.Rule, []Problem) {
	match := httproute.Match{Path: httproute.PathMatch{Kind: httproute.Prefix, Value: "/"}}
	if in.Spec.DefaultBackend == nil {
		return httproute.Rule{Matches: []httproute.Match{match}, NotFound: true}, nil
	}
	b, problem := p.ingressBackend(r, in, in.Spec.DefaultBackend, a)
	if problem != nil {
		return a.rule(match, b), []Problem{*problem}
	}
	return a.rule(match, b), nil
}

// redirects reports whether plain requests for a host are sent to HTTPS.
func (p *planner) redirects(in *networkingv1.Ingress, host string, a *annotations) bool {
	if !p.HTTPS.IsValid() {
		return false
	}
	return a.forceRedirect || a.redirect && slices.ContainsFunc(in.Spec.TLS, func(t networkingv1.IngressTLS) bool {
		return len(t.Hosts) == 0 || slices.ContainsFunc(t.Hosts, func(h string) bool {
			return strings.EqualFold(h, host)
		})
	})
}

func ingressPath(path *networkingv1.HTTPIngressPath, a *annotations) httproute.Match {
	value := path.Path
	if value == "" {
		value = "/"
	}
	m := httproute.PathMatch{Kind: httproute.Prefix, Value: value}
	switch {
	case path.PathType != nil && *path.PathType == networkingv1.PathTypeExact:
		m.Kind = httproute.Exact
	case a.regex && path.PathType != nil && *path.PathType == networkingv1.PathTypeImplementationSpecific:
		// Like nginx's "location ~*": anchored at the start of the path, case-insensitive.
		m = httproute.PathMatch{Kind: httproute.Regex, Value: "(?i:" + value + ").*"}
	}
	return httproute.Match{Path: m}
}

// ingressBackend resolves a backend; one with a problem is answered with 500 (503 without endpoints: N6.13).
func (p *planner) ingressBackend(r *route, in *networkingv1.Ingress, b *networkingv1.IngressBackend,
	a *annotations) (httproute.Backend, *Problem) {
	out := httproute.Backend{Weight: 1}
	fail := func(reason, format string, args ...any) (httproute.Backend, *Problem) {
		out.Invalid = fmt.Sprintf(format, args...)
		return out, &Problem{reason, out.Invalid}
	}
	if b.Service == nil {
		return fail("UnsupportedBackend", "a backend is a resource: only Services can be backends")
	}
	name := Name{Namespace: in.Namespace, Name: b.Service.Name}
	r.services = append(r.services, name)
	s := p.Services[name]
	if s == nil {
		return fail("BackendNotFound", "Service %s does not exist", name)
	}
	number := b.Service.Port.Number
	if b.Service.Port.Name != "" {
		at := slices.IndexFunc(s.Spec.Ports, func(sp corev1.ServicePort) bool {
			return sp.Name == b.Service.Port.Name
		})
		if at < 0 {
			return fail("BackendNotFound", "Service %s has no port %s", name, b.Service.Port.Name)
		}
		number = s.Spec.Ports[at].Port
	}
	port, problem := p.service(r, name, number, false)
	if problem != nil {
		return fail("BackendNotFound", "%s", problem.message)
	}
	out.Ref = httproute.Ref{Namespace: name.Namespace, Name: name.Name, Port: number}
	out.Protocol = protocolOf(port)
	a.apply(&out)
	r.refs = append(r.refs, out.Ref)
	return out, nil
}

// ingressCertificates returns the certificates of the TLS section; if a Secret has a problem, the
// others are still served (N6.16).
func (p *planner) ingressCertificates(r *route, in *networkingv1.Ingress) (out []Certificate, problems []Problem) {
	for _, t := range in.Spec.TLS {
		if t.SecretName == "" {
			continue // the default certificate
		}
		name := Name{Namespace: in.Namespace, Name: t.SecretName}
		r.secrets = append(r.secrets, name)
		secret, there := p.Secrets[name]
		switch {
		case !there:
			problems = append(problems, Problem{"SecretNotFound", fmt.Sprintf("Secret %s of type kubernetes.io/tls does "+
				"not exist: clients get a certificate that they do not trust", name)})
			continue
		case secret.Problem != "":
			problems = append(problems, Problem{"InvalidSecret", fmt.Sprintf("Secret %s: %s", name, secret.Problem)})
			continue
		}
		hosts := t.Hosts
		if len(hosts) == 0 {
			for i := range in.Spec.Rules {
				hosts = append(hosts, in.Spec.Rules[i].Host)
			}
		}
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, h := range hosts {
			out = append(out, Certificate{Host: strings.ToLower(h), Secrets: []Name{name}})
		}
	}
	return out, problems
}
