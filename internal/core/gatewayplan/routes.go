package gatewayplan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// routeID names a route of any kind, also an Ingress.
type routeID struct {
	kind gatewayv1.Kind
	Name
}

// route is a route of any kind while it is planned.
type route struct {
	kind       gatewayv1.Kind
	meta       metav1.Object
	generation int64
	hosts      []string
	rules      []httproute.Rule
	bad        []string // why rules cannot be served, one text for each such rule
	rejected   string   // why no rule can be served
	unresolved *backendProblem
	policies   map[*policy]bool
	pools      map[httproute.Ref]bool
	refs       []httproute.Ref // its backends
	services   []Name          // that it names, missing ones included
	secrets    []Name          // that an Ingress names
	foreign    []string        // other namespaces in which it names a backend, permitted or not
	pooling    []string        // namespaces in which it names an InferencePool, permitted or not

	// encrypted are the rules for listeners that terminate TLS: connections to backends with a BackendTLSPolicy use
	// TLS. encrypting are these policies.
	encrypted  []httproute.Rule
	encrypting map[*policy]bool

	joined  []joined
	through map[Name]bool // the Gateways that serve it
	parents []gatewayv1.RouteParentStatus
	ingress *ingressRoutes // of an Ingress
}

func (r *route) id() routeID { return routeID{r.kind, nameOf(r.meta)} }

// streams reports whether the route forwards connections or datagrams unchanged.
func (r *route) streams() bool {
	return r.kind == "TLSRoute" || r.kind == "TCPRoute" || r.kind == "UDPRoute"
}

// joined is the part of a route that a listener serves.
type joined struct {
	*listener
	served  httproute.Route
	streams []Stream
}

// attach attaches routes to listeners, and records the result in the routes' statuses.
func (p *planner) attach() {
	for _, r := range byAge(p.World.HTTPRoutes) {
		p.place(p.plannedHTTP(r))
	}
	for _, r := range byAge(p.World.GRPCRoutes) {
		p.place(p.plannedGRPC(r))
	}
	for _, r := range p.World.TLSRoutes {
		p.place(p.plannedTLS(r))
	}
	for _, r := range p.World.TCPRoutes {
		p.place(p.plannedTCP(r))
	}
	for _, r := range p.World.UDPRoutes {
		p.place(p.plannedUDP(r))
	}
}

// place adds a route to its listeners.
func (p *planner) place(r *route) {
	p.count(r, 1)
	for i := range r.joined {
		if j := &r.joined[i]; j.streamed() {
			j.stream(j, true)
		} else {
			j.routes = append(j.routes, j.served)
		}
	}
}

func (p *planner) plannedHTTP(in *gatewayv1.HTTPRoute) *route {
	r := p.httpRoute(in)
	p.join(r, in.Spec.ParentRefs)
	setStatus(p.Plan.HTTPRoutes, r, len(in.Status.Parents))
	return r
}

func (p *planner) plannedGRPC(in *gatewayv1.GRPCRoute) *route {
	r := p.grpcRoute(in)
	p.join(r, in.Spec.ParentRefs)
	setStatus(p.Plan.GRPCRoutes, r, len(in.Status.Parents))
	return r
}

// setStatus records the status of a route. A route without a Gateway of carob's gets an empty one only to remove stored
// entries.
func setStatus(statuses map[Name][]gatewayv1.RouteParentStatus, r *route, stored int) {
	if r.parents != nil || stored > 0 {
		statuses[nameOf(r.meta)] = r.parents
	} else {
		delete(statuses, nameOf(r.meta))
	}
}

// count adds a route to the indexes of all routes, or removes it (by is -1).
func (p *planner) count(r *route, by int) {
	id := r.id()
	if p.routes[id] = r; by < 0 {
		delete(p.routes, id)
	}
	for _, s := range r.services {
		index(p.naming, s, id, by)
	}
	for _, s := range r.secrets {
		index(p.certifying, s, id, by)
	}
	for _, space := range r.foreign {
		index(p.foreign, space, id, by)
	}
	for _, space := range r.pooling {
		index(p.pooling, space, id, by)
	}
	for _, ref := range r.refs {
		p.refer(ref, by)
	}
	for _, j := range r.joined {
		j.attached += by
	}
	p.countPolicies(r, by)
	p.countPools(r, by)
	if r.opens() {
		p.hosting += by
	}
}

// refer adds a reference to a backend, or removes one (by is -1).
func (p *planner) refer(ref httproute.Ref, by int) {
	if p.refs[ref] += by; p.refs[ref] > 0 {
		p.Refs[ref] = true
	} else {
		delete(p.refs, ref)
		delete(p.Refs, ref)
	}
}

// opens reports whether a route is an Ingress that is served, for which ports are opened; nil is not.
func (r *route) opens() bool { return r != nil && r.ingress != nil && r.ingress.plain != nil }

// countPools adds a route to the Gateways that serve its pools, or takes it away (by is -1).
func (p *planner) countPools(r *route, by int) {
	for g := range r.through { // any order: into maps
		for ref := range r.pools { // any order: into maps
			if p.through[ref] == nil {
				p.through[ref] = counts{}
			}
			if p.through[ref].add(g, by); len(p.through[ref]) == 0 {
				delete(p.through, ref)
			}
		}
	}
}

// index adds a route to those of a key, or removes it (by is -1).
func index[K comparable](all map[K]map[routeID]bool, key K, id routeID, by int) {
	switch {
	case by < 0:
		if delete(all[key], id); len(all[key]) == 0 {
			delete(all, key)
		}
	case all[key] == nil:
		all[key] = map[routeID]bool{id: true}
	default:
		all[key][id] = true
	}
}

// countPolicies adds a route to the Gateways through which its policies work, or takes it away (by is -1).
func (p *planner) countPolicies(r *route, by int) {
	for g := range r.through { // any order: into maps
		for pol := range r.policies {
			if p.used[pol] == nil {
				p.used[pol] = counts{}
			}
			p.used[pol].add(g, by)
		}
	}
}

// parentOf returns what a reference of a route in a namespace names; false: nothing of the Gateway API.
func parentOf(ref *gatewayv1.ParentReference, namespace string) (parentID, bool) {
	return parentID{or(ref.Kind, "Gateway"), Name{Namespace: string(or(ref.Namespace,
		gatewayv1.Namespace(namespace))), Name: string(ref.Name)}}, or(ref.Group, group) == group
}

// named reports whether a reference to the parent of a listener includes the listener.
func (l *listener) named(ref *gatewayv1.ParentReference) bool {
	return (ref.SectionName == nil || *ref.SectionName == l.Name) && (ref.Port == nil || *ref.Port == l.Port)
}

// join finds the listeners of a route, and computes the entries of its status.
func (p *planner) join(r *route, refs []gatewayv1.ParentReference) {
	for _, ref := range refs {
		parent, ok := parentOf(&ref, r.meta.GetNamespace())
		if !ok {
			continue
		}
		var g *gateway
		var listeners []*listener
		switch parent.kind {
		case "Gateway":
			if g = p.gates[parent.Name]; g != nil {
				listeners = g.listeners
			}
		case "ListenerSet":
			if set := p.sets[parent.Name]; set != nil {
				g, listeners = set.of, set.listeners
			}
		}
		if g == nil {
			continue
		}
		accepted := p.joinListeners(r, &ref, listeners)
		s := gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: GatewayController,
			Conditions: []metav1.Condition{accepted}}
		resolved := condition(gatewayv1.RouteConditionResolvedRefs, true, gatewayv1.RouteReasonResolvedRefs,
			"all references are resolved", r.generation)
		if r.unresolved != nil {
			resolved = condition(gatewayv1.RouteConditionResolvedRefs, false, r.unresolved.reason, r.unresolved.message,
				r.generation)
		}
		s.Conditions = append(s.Conditions, resolved)
		if len(r.bad) > 0 && r.rejected == "" {
			s.Conditions = append(s.Conditions, condition(gatewayv1.RouteConditionPartiallyInvalid, true,
				gatewayv1.RouteReasonUnsupportedValue, "Dropped Rule(s): "+strings.Join(r.bad, "; "), r.generation))
		}
		r.parents = append(r.parents, s)
		if accepted.Status == metav1.ConditionTrue {
			if r.through == nil {
				r.through = map[Name]bool{}
			}
			r.through[nameOf(g)] = true
		}
	}
}

func (p *planner) joinListeners(r *route, ref *gatewayv1.ParentReference,
	listeners []*listener) metav1.Condition {
	no := func(reason gatewayv1.RouteConditionReason, message string) metav1.Condition {
		return condition(gatewayv1.RouteConditionAccepted, false, reason, message, r.generation)
	}
	if r.rejected != "" {
		return no(gatewayv1.RouteReasonUnsupportedValue, r.rejected)
	}
	named := slices.DeleteFunc(slices.Clone(listeners), func(l *listener) bool {
		return !l.named(ref)
	})
	if len(named) == 0 {
		return no(gatewayv1.RouteReasonNoMatchingParent, "the parent does not have this listener")
	}
	allowing := slices.DeleteFunc(slices.Clone(named), func(l *listener) bool {
		return !p.allows(l, r.kind, r.meta.GetNamespace())
	})
	if len(allowing) == 0 {
		return no(gatewayv1.RouteReasonNotAllowedByListeners, "no listener allows routes of this kind and namespace")
	}
	found := false
	for _, l := range allowing {
		hosts, ok := intersect(l.host, r.hosts)
		if !ok {
			continue
		}
		found = true
		if slices.ContainsFunc(r.joined, func(j joined) bool { return j.listener == l }) {
			continue
		}
		r.joined = append(r.joined, joinedAt(l, r, hosts))
	}
	if !found {
		return no(gatewayv1.RouteReasonNoMatchingListenerHostname, "no listener has a hostname that the route has")
	}
	return condition(gatewayv1.RouteConditionAccepted, true, gatewayv1.RouteReasonAccepted, "the route is served",
		r.generation)
}

func joinedAt(l *listener, r *route, hosts []string) joined {
	from := source(string(r.kind), r.meta)
	if l.streamed() {
		if !passthrough(l.Listener) {
			maps.Copy(r.policies, r.encrypting)
		}
		return joined{listener: l, served: httproute.Route{Source: from}, streams: streams(l, r, hosts, from)}
	}
	served := httproute.Route{Source: from, Rules: l.of.identity.show(r.rules)}
	for _, h := range hosts {
		served.Hosts = append(served.Hosts, httproute.HostPattern{Name: h})
	}
	return joined{listener: l, served: served}
}

// intersect returns the hostnames of a route that a listener serves; an empty result with ok means all of the
// listener's.
func intersect(listener string, hosts []string) (out []string, ok bool) {
	if len(hosts) == 0 {
		return nil, true
	}
	for _, h := range hosts {
		if both, ok := httproute.Intersect(listener, h); ok {
			out = append(out, both)
		}
	}
	return out, len(out) > 0
}

func lower(hosts []gatewayv1.Hostname) (out []string) {
	for _, h := range hosts {
		out = append(out, strings.ToLower(string(h)))
	}
	return out
}

func (p *planner) httpRoute(in *gatewayv1.HTTPRoute) *route {
	r := &route{kind: "HTTPRoute", meta: in, generation: in.Generation, hosts: lower(in.Spec.Hostnames),
		policies: map[*policy]bool{}}
	planRules(r, in.Spec.Rules, p.httpRule)
	return r
}

// planRules plans the rules of a route. A rule with a problem responds to each request with an error; a route that has
// only such rules is rejected.
func planRules[R any](r *route, rules []R, plan func(*route, *R) (rule httproute.Rule, problem string)) {
	for i := range rules {
		rule, problem := plan(r, &rules[i])
		if problem != "" {
			r.bad = append(r.bad, fmt.Sprintf("rule %d: %s", i, problem))
			rule.Filters, rule.Backends = httproute.Filters{}, []httproute.Backend{{Weight: 1, Invalid: problem}}
		}
		r.rules = append(r.rules, rule)
	}
	if len(r.bad) > 0 && len(r.bad) == len(rules) {
		r.rejected = strings.Join(r.bad, "; ")
	}
}

func (p *planner) httpRule(r *route, in *gatewayv1.HTTPRouteRule) (out httproute.Rule, problem string) {
	out.Name = string(or(in.Name, ""))
	for i := range in.Matches {
		out.Matches = append(out.Matches, httpMatch(&in.Matches[i]))
	}
	if len(in.Matches) == 0 {
		out.Matches = []httproute.Match{{Path: httproute.PathMatch{Kind: httproute.Prefix, Value: "/"}}}
	}
	if in.Timeouts != nil {
		out.Timeout, out.BackendTimeout = duration(in.Timeouts.Request), duration(in.Timeouts.BackendRequest)
	}
	if in.SessionPersistence != nil {
		return out, "sessionPersistence is not supported"
	}
	out.Retry = retry(in.Retry)
	filters, bad := p.filters(r, in.Filters)
	problem = bad
	out.Filters = filters
	for i := range in.BackendRefs {
		ref := &in.BackendRefs[i]
		b := p.backend(r, &ref.BackendObjectReference, or(ref.Weight, 1))
		b.Filters, bad = p.filters(r, ref.Filters)
		problem = cmp.Or(problem, bad)
		if out.Retry != nil && b.Ref.Pool != "" {
			problem = cmp.Or(problem, "retry is not supported for an InferencePool, whose picker names the next server")
		}
		out.Backends = append(out.Backends, b)
	}
	if problem == "" {
		if err := httproute.Check(out.Matches); err != nil {
			problem, out.Matches = err.Error(), nil
		}
	}
	return out, problem
}

// retry returns the retry of a rule, a field that only the kinds of the experimental channel have.
func retry(in *gatewayv1.HTTPRouteRetry) *httproute.Retry {
	if in == nil {
		return nil
	}
	out := &httproute.Retry{Attempts: or(in.Attempts, 1), Backoff: duration(in.Backoff)}
	for _, code := range in.Codes {
		out.Codes = append(out.Codes, int(code))
	}
	return out
}

// duration reads a duration of the Gateway API (GEP-2257), whose form the API server has checked.
func duration(d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	out, err := time.ParseDuration(string(*d))
	if err != nil || out < 0 {
		return 0
	}
	return out
}

func httpMatch(in *gatewayv1.HTTPRouteMatch) httproute.Match {
	m := httproute.Match{Path: httproute.PathMatch{Kind: httproute.Prefix, Value: "/"},
		Method: string(or(in.Method, ""))}
	if in.Path != nil {
		m.Path.Value = or(in.Path.Value, "/")
		switch or(in.Path.Type, gatewayv1.PathMatchPathPrefix) {
		case gatewayv1.PathMatchExact:
			m.Path.Kind = httproute.Exact
		case gatewayv1.PathMatchRegularExpression:
			m.Path.Kind = httproute.Regex
		case gatewayv1.PathMatchPathPrefix:
		}
	}
	for _, h := range in.Headers {
		m.Headers = append(m.Headers, httproute.ValueMatch{Name: string(h.Name), Value: h.Value,
			Regex: or(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression})
	}
	for _, q := range in.QueryParams {
		m.Query = append(m.Query, httproute.ValueMatch{Name: string(q.Name), Value: q.Value,
			Regex: or(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression})
	}
	return m
}

// filters converts filters; problem names an unsupported one.
func (p *planner) filters(r *route, all []gatewayv1.HTTPRouteFilter) (out httproute.Filters, problem string) {
	for i := range all {
		f := &all[i]
		switch {
		case f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			out.Request = append(out.Request, headerChange(f.RequestHeaderModifier))
		case f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			out.Response = append(out.Response, headerChange(f.ResponseHeaderModifier))
		case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			in := f.RequestRedirect
			out.Redirect = &httproute.Redirect{Scheme: or(in.Scheme, ""), Host: string(or(in.Hostname, "")),
				Port: or(in.Port, 0), Status: or(in.StatusCode, 302), Path: pathChange(in.Path)}
		case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			out.Rewrite = &httproute.Rewrite{Host: string(or(f.URLRewrite.Hostname, "")),
				Path: pathChange(f.URLRewrite.Path)}
		case f.Type == gatewayv1.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
			out.Mirrors = append(out.Mirrors, p.mirror(r, f.RequestMirror))
		case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
			out.CORS = cors(f.CORS)
		default:
			problem = "filter " + string(f.Type) + " is not supported"
		}
	}
	if out.Redirect != nil && out.Rewrite != nil {
		problem = "a redirect and a rewrite exclude each other"
	}
	return out, problem
}

func (p *planner) mirror(r *route, in *gatewayv1.HTTPRequestMirrorFilter) httproute.Mirror {
	m := httproute.Mirror{Backend: p.backend(r, &in.BackendRef, 1), Numerator: 100, Denominator: 100}
	if in.Percent != nil {
		m.Numerator = *in.Percent
	}
	if in.Fraction != nil {
		m.Numerator, m.Denominator = in.Fraction.Numerator, or(in.Fraction.Denominator, 100)
	}
	return m
}

func headerChange(in *gatewayv1.HTTPHeaderFilter) (out httproute.HeaderChange) {
	for _, h := range in.Set {
		out.Set = append(out.Set, httproute.HeaderValue{Name: httproute.CanonicalHeader(string(h.Name)),
			Value: h.Value})
	}
	for _, h := range in.Add {
		out.Add = append(out.Add, httproute.HeaderValue{Name: httproute.CanonicalHeader(string(h.Name)),
			Value: h.Value})
	}
	for _, h := range in.Remove {
		out.Remove = append(out.Remove, httproute.CanonicalHeader(h))
	}
	return out
}

func pathChange(in *gatewayv1.HTTPPathModifier) httproute.PathChange {
	switch {
	case in == nil:
	case in.Type == gatewayv1.FullPathHTTPPathModifier:
		return httproute.PathChange{Kind: httproute.ReplaceFull, Value: or(in.ReplaceFullPath, "")}
	case in.Type == gatewayv1.PrefixMatchHTTPPathModifier:
		return httproute.PathChange{Kind: httproute.ReplacePrefix, Value: or(in.ReplacePrefixMatch, "")}
	}
	return httproute.PathChange{}
}

func cors(in *gatewayv1.HTTPCORSFilter) *httproute.CORS {
	out := &httproute.CORS{Credentials: or(in.AllowCredentials, false), MaxAge: in.MaxAge}
	for _, o := range in.AllowOrigins {
		out.Origins = append(out.Origins, string(o))
	}
	for _, m := range in.AllowMethods {
		out.Methods = append(out.Methods, string(m))
	}
	for _, h := range in.AllowHeaders {
		out.Headers = append(out.Headers, string(h))
	}
	for _, h := range in.ExposeHeaders {
		out.Expose = append(out.Expose, string(h))
	}
	return out
}

// backend resolves a reference. The route's status reports the first problem.
func (p *planner) backend(r *route, ref *gatewayv1.BackendObjectReference, weight int32) httproute.Backend {
	out := httproute.Backend{Weight: weight}
	fail := func(problem *backendProblem) httproute.Backend {
		if r.unresolved == nil {
			r.unresolved = problem
		}
		out.Invalid = problem.message
		return out
	}
	name := Name{Namespace: string(or(ref.Namespace, gatewayv1.Namespace(r.meta.GetNamespace()))),
		Name: string(ref.Name)}
	apiGroup, kind := or(ref.Group, ""), or(ref.Kind, "Service")
	if name.Namespace != r.meta.GetNamespace() {
		r.foreign = append(r.foreign, name.Namespace)
	}
	if isPool(string(apiGroup), string(kind)) && !r.streams() {
		return p.poolBackend(r, out, string(apiGroup), name, fail)
	}
	if apiGroup != "" || kind != "Service" {
		return fail(&backendProblem{gatewayv1.RouteReasonInvalidKind, notBackend(string(apiGroup), string(kind))})
	}
	if !p.granted(r.kind, r.meta.GetNamespace(), apiGroup, kind, name) {
		return fail(&backendProblem{gatewayv1.RouteReasonRefNotPermitted,
			fmt.Sprintf("no ReferenceGrant permits the use of Service %s", name)})
	}
	if ref.Port == nil {
		return fail(&backendProblem{gatewayv1.RouteReasonUnsupportedProtocol, "a Service needs a port"})
	}
	udp := r.kind == "UDPRoute"
	port, problem := p.service(r, name, *ref.Port, udp)
	if problem != nil {
		return fail(problem)
	}
	out.Ref = httproute.Ref{Namespace: name.Namespace, Name: name.Name, Port: *ref.Port, UDP: udp}
	out.Protocol = protocolOf(port)
	if r.kind == "GRPCRoute" {
		out.Protocol = httproute.H2C
	}
	if !r.streams() { // routes of connections plan both kinds of backends
		if p.encrypt(&out, name, port.Name, r.policies); out.Invalid != "" {
			return out
		}
		if out.TLS != nil {
			out.TLS.H2 = r.kind == "GRPCRoute"
		}
	}
	r.refs = append(r.refs, out.Ref)
	return out
}
