package gatewayplan

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// Live is a plan that is updated for changes of routes and Services; the cost depends only on the
// parts that they affect.
type Live struct {
	*Plan
	p *planner
}

// NewLive makes a plan. It takes ownership of the world's maps.
func NewLive(w *World) *Live {
	l := &Live{p: makePlan(w)}
	l.Plan = l.p.Plan
	for _, port := range l.Ports { // any order: each by itself, as below
		port.compile()
	}
	for _, g := range l.p.gates { // any order: each by itself
		for _, one := range g.everyListener() {
			one.routes = nil
		}
	}
	return l
}

// compile makes the table of a port, which has the routes from then on.
func (p *Port) compile() {
	p.Table, _ = httproute.Compile(p.Listeners) // errors are reported in the statuses of the routes
	for i := range p.Listeners {
		p.Listeners[i].Routes = nil
	}
}

// IngressClasses are those that Ingresses may name.
func (l *Live) IngressClasses() []*networkingv1.IngressClass { return l.p.World.Classes }

// Fail passes the ports that could not be opened. It returns the objects with statuses that report them.
func (l *Live) Fail(failed, udp map[netip.AddrPort]string) (gateways []*gatewayv1.Gateway,
	sets []*gatewayv1.ListenerSet) {
	l.p.Failed, l.p.FailedUDP = failed, udp
	for name, g := range l.p.gates { // any order: into maps and lists of different objects
		l.Gateways[name] = l.p.gatewayStatus(g)
		gateways = append(gateways, g.Gateway)
		for _, s := range g.sets {
			l.ListenerSets[nameOf(s)] = l.p.setStatus(s)
			sets = append(sets, s.ListenerSet)
		}
	}
	return gateways, sets
}

// Changes are objects that have changed; nil: the object was deleted.
type Changes struct {
	Ingresses    map[Name]*networkingv1.Ingress
	HTTPRoutes   map[Name]*gatewayv1.HTTPRoute
	GRPCRoutes   map[Name]*gatewayv1.GRPCRoute
	TLSRoutes    map[Name]*gatewayv1.TLSRoute
	TCPRoutes    map[Name]*gatewayv1.TCPRoute
	UDPRoutes    map[Name]*gatewayv1.UDPRoute
	Grants       map[Name]*gatewayv1.ReferenceGrant
	Services     map[Name]*corev1.Service
	Secrets      map[Name]*Material
	Namespaces   map[string]labels.Set
	Policies     map[Name]*gatewayv1.BackendTLSPolicy
	CAs          map[Name]*Material
	Gateways     map[Name]*gatewayv1.Gateway
	ListenerSets map[Name]*gatewayv1.ListenerSet
	// IngressClasses have no namespace in their names. The Ingresses that name one are among the changes, too.
	IngressClasses map[Name]*networkingv1.IngressClass
	GatewayClasses map[Name]*gatewayv1.GatewayClass // without a namespace in their names
	// Inference has all objects of the inference extension, if one of them has changed; nil: none has. A plan without
	// these kinds cannot follow it.
	Inference *Inference
}

// Empty reports whether nothing has changed.
func (c *Changes) Empty() bool {
	return len(c.Ingresses) == 0 && len(c.HTTPRoutes) == 0 && len(c.GRPCRoutes) == 0 && len(c.TLSRoutes) == 0 &&
		len(c.TCPRoutes) == 0 && len(c.UDPRoutes) == 0 && len(c.Grants) == 0 && len(c.Services) == 0 &&
		len(c.Secrets) == 0 && len(c.Namespaces) == 0 && len(c.Gateways) == 0 && len(c.ListenerSets) == 0 &&
		len(c.Policies) == 0 && len(c.CAs) == 0 && len(c.IngressClasses) == 0 && len(c.GatewayClasses) == 0 &&
		c.Inference == nil
}

// Touched lists the parts of a plan that changes have affected.
type Touched struct {
	Ports map[netip.AddrPort]bool // whose Table or Streams have changed
	UDP   map[netip.AddrPort]bool // UDP ports whose Streams have changed
	// Certificates are the ports with certificates of other Secrets, or for other hosts.
	Certificates map[netip.AddrPort]bool
	New, Gone    []httproute.Ref
	// Pools are those that come or go in Plan.Pools, or are served otherwise than before.
	Pools    map[httproute.Ref]bool
	Services map[Name]bool // whose endpoints may have changed
	// Listeners: ports may have been added, removed, or got other certificates.
	Listeners bool

	// Objects whose statuses may have to be stored.
	GatewayClasses []*gatewayv1.GatewayClass
	Ingresses      []*networkingv1.Ingress
	HTTPRoutes     []*gatewayv1.HTTPRoute
	GRPCRoutes     []*gatewayv1.GRPCRoute
	TLSRoutes      []*gatewayv1.TLSRoute
	TCPRoutes      []*gatewayv1.TCPRoute
	UDPRoutes      []*gatewayv1.UDPRoute
	Gateways       []*gatewayv1.Gateway
	ListenerSets   []*gatewayv1.ListenerSet
	Policies       []*gatewayv1.BackendTLSPolicy
	Inference      *Inference // statuses of its objects may have to be stored; nil: of none
}

// sameGeneration reports whether two versions of an object have the same generation, and neither or both are being
// deleted.
func sameGeneration(a, b metav1.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

// SameGateway reports whether the second Gateway changes nothing in a plan except its status.
func SameGateway(a, b *gatewayv1.Gateway) bool {
	return sameGeneration(a, b) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// SameListenerSet is SameGateway for ListenerSets.
func SameListenerSet(a, b *gatewayv1.ListenerSet) bool {
	return sameGeneration(a, b) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// SamePolicy is SameGateway for policies.
func SamePolicy(a, b *gatewayv1.BackendTLSPolicy) bool {
	return sameGeneration(a, b) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// SameService reports whether the second Service changes nothing in a plan.
func SameService(a, b *corev1.Service) bool {
	return a.Spec.Type == b.Spec.Type && equality.Semantic.DeepEqual(a.Spec.Ports, b.Spec.Ports) &&
		a.Annotations[PickerAnnotation] == b.Annotations[PickerAnnotation]
}

// changing is a Change while it is made.
type changing struct {
	*planner
	out     *Touched
	planned map[routeID]*route // the new version; nil: deleted
	before  map[httproute.Ref]bool
	parts   map[netip.AddrPort]map[partOf]*httproute.Route
	streams map[*listener]bool // whose streams may have changed
	gates   map[*gateway]bool  // whose statuses may have changed
	added   map[*listenerSet]bool
	// touched are policies whose statuses may be others, also those that have gone.
	touched map[*policy]bool
	// recertified: Ingresses have other certificates.
	recertified bool
	// repool: the Service of a picker, or its policy, has changed. repooled: other pools are served, or through other
	// Gateways.
	repool, repooled bool
	replan           *replanning // nil: Gateways and ListenerSets are not planned again
}

// partOf names a part of a route at a listener of a port.
type partOf struct {
	listener int
	source   httproute.Source
	part     int
}

// Change updates the plan for the changed objects. It returns false when the plan has to be made anew, because it was
// made without the kinds of the changed objects; then this plan must not be used any more.
func (l *Live) Change(c *Changes) (*Touched, bool) {
	if c.Inference != nil && l.p.Inference == nil {
		return nil, false
	}
	n := &changing{planner: l.p, out: &Touched{Ports: map[netip.AddrPort]bool{},
		UDP: map[netip.AddrPort]bool{}, Certificates: map[netip.AddrPort]bool{}, Services: map[Name]bool{},
		Pools: map[httproute.Ref]bool{}}, streams: map[*listener]bool{},
		planned: map[routeID]*route{}, before: map[httproute.Ref]bool{},
		parts: map[netip.AddrPort]map[partOf]*httproute.Route{}, gates: map[*gateway]bool{},
		added: map[*listenerSet]bool{}, touched: map[*policy]bool{}}
	again := map[routeID]bool{}
	gateways := n.gatewayObjects(c)
	gateways = n.grants(c.Grants, again) || gateways
	for _, change := range []func(*Changes, map[routeID]bool) (gateways bool){n.classes, n.namespaces, n.secrets,
		n.services, n.policies} {
		gateways = change(c, again) || gateways
	}
	n.pools(c.Inference, again)
	n.readIngresses(c, again)
	hosting := n.hostingAfter() > 0
	gateways = gateways || hosting != (n.hosting > 0) // ports of Ingresses are opened or closed
	if gateways {
		n.gatewaysAgain(again, hosting)
	}
	n.read(c, again)
	if gateways {
		n.rejoin()
	}
	for id, after := range n.planned { // any order: into maps
		n.replace(id, after)
	}
	n.tables()
	n.certify()
	if gateways {
		n.reopened()
		n.gatewayStatuses(c)
	} else {
		n.statuses()
	}
	n.policyStatuses()
	n.poolStatuses()
	return n.out, true
}

// grants takes over grants, and adds the routes that refer to the namespaces of changed ones. It reports whether
// Gateways may depend on one: listeners name Secrets and ConfigMaps.
func (n *changing) grants(all map[Name]*gatewayv1.ReferenceGrant, again map[routeID]bool) (gateways bool) {
	for name, after := range all { // any order: into maps, and a list of which the order plays no role
		at := slices.IndexFunc(n.Grants, func(g *gatewayv1.ReferenceGrant) bool { return nameOf(g) == name })
		if at >= 0 {
			gateways = gateways || !forRoutes(n.Grants[at])
			n.Grants = slices.Delete(slices.Clone(n.Grants), at, at+1)
		}
		if after != nil {
			gateways = gateways || !forRoutes(after)
			n.Grants = append(slices.Clip(n.Grants), after)
		}
		maps.Copy(again, n.foreign[name.Namespace])
	}
	return gateways
}

// forRoutes reports whether a grant permits nothing but backends of routes.
func forRoutes(g *gatewayv1.ReferenceGrant) bool {
	return !slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
		return f.Kind == "Gateway" || f.Kind == "ListenerSet"
	})
}

// services takes over Services, and adds the routes that name them. Gateways do not depend on them.
func (n *changing) services(c *Changes, again map[routeID]bool) (gateways bool) {
	for name, after := range c.Services { // any order: into maps
		before := n.Services[name]
		if n.Services[name] = after; after == nil {
			delete(n.Services, name)
		}
		if before != nil && after != nil && SameService(before, after) {
			continue
		}
		n.repool = n.repool || n.pickers[name]
		n.out.Services[name] = true
		maps.Copy(again, n.naming[name])
	}
	return false
}

// readIngresses plans the Ingresses that have changed, and those in again.
func (n *changing) readIngresses(c *Changes, again map[routeID]bool) {
	all := maps.Clone(c.Ingresses)
	for id := range again { // any order: into a map
		if in, ok := n.routes[id].meta.(*networkingv1.Ingress); ok {
			all = with(all, id.Name, in)
		}
	}
	for name, in := range all { // any order: into maps
		delete(n.Plan.Ingresses, name)
		id := routeID{"Ingress", name}
		if n.planned[id] = nil; in != nil {
			if r := n.plannedIngress(in); r != nil {
				n.planned[id] = r
				n.out.Ingresses = append(n.out.Ingresses, in)
			}
		}
	}
}

// hostingAfter is the number of Ingresses with routes when those that were planned have replaced the former ones.
func (n *changing) hostingAfter() int {
	out := n.hosting
	for id, after := range n.planned { // any order: a sum
		if n.routes[id].opens() {
			out--
		}
		if after.opens() {
			out++
		}
	}
	return out
}

// read plans the routes that have changed, and those in again, other than Ingresses.
func (n *changing) read(c *Changes, again map[routeID]bool) {
	https, grpcs := maps.Clone(c.HTTPRoutes), maps.Clone(c.GRPCRoutes)
	tlss, tcps, udps := maps.Clone(c.TLSRoutes), maps.Clone(c.TCPRoutes), maps.Clone(c.UDPRoutes)
	for id := range again { // any order: into maps
		switch o := n.routes[id].meta.(type) {
		case *gatewayv1.HTTPRoute:
			https = with(https, id.Name, o)
		case *gatewayv1.GRPCRoute:
			grpcs = with(grpcs, id.Name, o)
		case *gatewayv1.TLSRoute:
			tlss = with(tlss, id.Name, o)
		case *gatewayv1.TCPRoute:
			tcps = with(tcps, id.Name, o)
		case *gatewayv1.UDPRoute:
			udps = with(udps, id.Name, o)
		}
	}
	n.out.HTTPRoutes = readRoutes(n, "HTTPRoute", https, n.Plan.HTTPRoutes, n.plannedHTTP)
	n.out.GRPCRoutes = readRoutes(n, "GRPCRoute", grpcs, n.Plan.GRPCRoutes, n.plannedGRPC)
	n.out.TLSRoutes = readRoutes(n, "TLSRoute", tlss, n.Plan.TLSRoutes, n.plannedTLS)
	n.out.TCPRoutes = readRoutes(n, "TCPRoute", tcps, n.Plan.TCPRoutes, n.plannedTCP)
	n.out.UDPRoutes = readRoutes(n, "UDPRoute", udps, n.Plan.UDPRoutes, n.plannedUDP)
}

// readRoutes plans routes of a kind, and returns those that still exist.
func readRoutes[T comparable](n *changing, kind gatewayv1.Kind, all map[Name]T,
	statuses map[Name][]gatewayv1.RouteParentStatus, plan func(T) *route) (out []T) {
	var none T
	for name, in := range all { // any order: into maps
		id := routeID{kind, name}
		if n.planned[id] = nil; in == none {
			delete(statuses, name)
			continue
		}
		n.planned[id] = plan(in)
		out = append(out, in)
	}
	return out
}

// with adds an object unless there is a newer one.
func with[T any](all map[Name]T, name Name, o T) map[Name]T {
	if all == nil {
		all = map[Name]T{}
	}
	if _, known := all[name]; !known {
		all[name] = o
	}
	return all
}

// replace replaces one version of a route by the next.
func (n *changing) replace(id routeID, after *route) {
	before := n.routes[id]
	n.recertify(before, after)
	n.recertified = n.recertified || !slices.EqualFunc(before.certificates(), after.certificates(), sameCertificate)
	for i, r := range []*route{before, after} {
		if r == nil {
			continue
		}
		n.repooled = n.repooled || len(r.pools) > 0
		for _, ref := range r.refs {
			n.note(ref)
		}
		n.count(r, []int{-1, 1}[i])
		for pol := range r.policies { // any order: into a map
			n.touched[pol] = true
		}
		for k := range r.joined {
			j := &r.joined[k]
			switch {
			case n.replan != nil: // their statuses are all planned again
			case j.by.kind == "ListenerSet":
				n.added[n.sets[nameOf(j.by)]] = true
			default:
				n.gates[j.of] = true
			}
			if j.streamed() {
				j.stream(j, i == 1)
				n.streams[j.listener] = true
			}
			for _, at := range j.places {
				n.part(at, j.served, i == 1)
			}
		}
		if in := r.ingress; in != nil {
			for _, one := range in.plain {
				n.part(listenerPlace{at: n.HTTP}, one, i == 1)
			}
			for _, one := range in.secure {
				n.part(listenerPlace{at: n.HTTPS}, one, i == 1)
			}
		}
	}
}

// note keeps whether a backend was in use before the change.
func (n *changing) note(ref httproute.Ref) {
	if _, known := n.before[ref]; !known {
		n.before[ref] = n.Refs[ref]
	}
}

func (r *route) certificates() []Certificate {
	if r == nil || r.ingress == nil {
		return nil
	}
	return r.ingress.certificates
}

// part records that a part of a route was added or removed. A part that was added and removed again
// stays recorded.
func (n *changing) part(at listenerPlace, r httproute.Route, comes bool) {
	if n.Ports[at.at] == nil || n.replan != nil && n.replan.recompiled[at.at] {
		return // not open, or compiled afterwards
	}
	if n.parts[at.at] == nil {
		n.parts[at.at] = map[partOf]*httproute.Route{}
	}
	key := partOf{at.index, r.Source, r.Part}
	if comes {
		n.parts[at.at][key] = &r
	} else if n.parts[at.at][key] == nil { // the route before is taken away first, but not of another name
		n.parts[at.at][key] = nil
	}
}

// mostParts is the number of changes of one table beyond which it is compiled again, when Gateways have changed.
const mostParts = 1000

// tables changes the tables of ports.
func (n *changing) tables() {
	for at, parts := range n.parts { // any order: each by itself
		port := n.Ports[at]
		if n.replan != nil && len(parts) > mostParts {
			n.replan.recompiled[at] = true
			continue
		}
		var changes []httproute.Change
		for key, r := range parts { // in any order: they are independent
			if old := port.Table.Route(key.listener, key.source, key.part); equality.Semantic.DeepEqual(old, r) {
				continue
			}
			changes = append(changes, httproute.Change{Listener: key.listener, Source: key.source, Part: key.part,
				Route: r})
		}
		if len(changes) > 0 {
			port.Table, _ = port.Table.With(changes)
			n.out.Ports[at] = true
		}
	}
	for s, listeners := range n.streaming { // any order: each by itself
		if !slices.ContainsFunc(listeners, func(l *listener) bool { return n.streams[l] }) {
			continue
		}
		var now []Stream
		for _, l := range listeners {
			now = append(now, l.allStreams()...)
		}
		if port := n.at(s); !equality.Semantic.DeepEqual(port.Streams, now) {
			port.Streams = now
			if s.udp {
				n.out.UDP[s.at] = true
			} else {
				n.out.Ports[s.at] = true
			}
		}
	}
	for ref, was := range n.before { // any order: into sets
		switch is := n.Refs[ref]; {
		case is && !was:
			n.out.New = append(n.out.New, ref)
		case was && !is:
			n.out.Gone = append(n.out.Gone, ref)
		}
	}
}

// statuses plans the statuses of the objects that routes are attached to.
func (n *changing) statuses() {
	for g := range n.gates { // any order: into maps
		n.Plan.Gateways[nameOf(g)] = n.gatewayStatus(g)
		n.out.Gateways = append(n.out.Gateways, g.Gateway)
	}
	for s := range n.added { // any order: into maps
		n.Plan.ListenerSets[nameOf(s)] = n.setStatus(s)
		n.out.ListenerSets = append(n.out.ListenerSets, s.ListenerSet)
	}
}
