package gatewayplan

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// replanning is the part of a Change that plans Gateways and ListenerSets again. Listeners to which the same routes are
// attached stay as they are, so that only routes that name other listeners are joined again.
type replanning struct {
	// parents are the Gateways and ListenerSets with listeners that come, go, or take other routes.
	parents map[parentID]*changedParent
	// ports and udp are those before; recompiled are the ports whose tables have to be made anew.
	ports, udp map[netip.AddrPort]*Port
	recompiled map[netip.AddrPort]bool
	// concerned are routes of requests that other listeners may serve.
	concerned []*route
}

// parentID names a Gateway or a ListenerSet.
type parentID struct {
	kind gatewayv1.Kind
	Name
}

// changedParent has the listeners of a parent that concern routes.
type changedParent struct {
	all       bool // the parent comes or goes
	listeners []*listener
}

// concerns reports whether a route with a reference to the parent must be joined again.
func (c *changedParent) concerns(ref *gatewayv1.ParentReference) bool {
	return c.all || slices.ContainsFunc(c.listeners, func(l *listener) bool { return l.named(ref) })
}

// gatewayObjects takes over Gateways and ListenerSets, and reports whether one has more that is new than its status.
func (n *changing) gatewayObjects(c *Changes) (again bool) {
	if len(c.Gateways) > 0 {
		n.World.Gateways = slices.Clone(n.World.Gateways)
	}
	for name, g := range c.Gateways { // any order: each by itself
		before := takeOver(&n.World.Gateways, name, g)
		if before == nil || g == nil || !SameGateway(before, g) {
			again = again || before != nil || g != nil
		} else if gw := n.planner.gates[name]; gw != nil {
			gw.Gateway = g
			n.gates[gw] = true
		}
	}
	if len(c.ListenerSets) > 0 {
		n.World.ListenerSets = slices.Clone(n.World.ListenerSets)
	}
	for name, s := range c.ListenerSets { // any order: each by itself
		before := takeOver(&n.World.ListenerSets, name, s)
		if before == nil || s == nil || !SameListenerSet(before, s) {
			again = again || before != nil || s != nil
		} else if set := n.sets[name]; set != nil {
			set.ListenerSet = s
			n.added[set] = true
		}
	}
	return again
}

// object is a pointer to an object of the API.
type object interface {
	comparable
	GetNamespace() string
	GetName() string
}

// takeOver replaces an object of a list; after is nil if it was deleted. It returns the one before.
func takeOver[T object](all *[]T, name Name, after T) (before T) {
	var none T
	at := slices.IndexFunc(*all, func(o T) bool {
		return o.GetName() == name.Name && o.GetNamespace() == name.Namespace
	})
	switch {
	case at < 0 && after == none:
	case at < 0:
		*all = append(*all, after)
	case after == none:
		before = (*all)[at]
		*all = slices.Delete(*all, at, at+1)
	default:
		before, (*all)[at] = (*all)[at], after
	}
	return before
}

// gatewaysAgain plans all Gateways again, and adds the routes to which it makes a difference. hosting: there are
// Ingresses to serve.
func (n *changing) gatewaysAgain(again map[routeID]bool, hosting bool) {
	p := n.planner
	n.replan = &replanning{parents: map[parentID]*changedParent{}, ports: p.Ports, udp: p.UDP,
		recompiled: map[netip.AddrPort]bool{}}
	gates, sets := p.gates, p.sets
	p.World.Assigned, p.Plan.Assigned = p.Plan.Assigned, map[Name]netip.Addr{}
	order := p.planGateways()
	for name := range gates { // any order: into maps
		if p.gates[name] == nil {
			n.replan.parents[parentID{"Gateway", name}] = &changedParent{all: true}
			delete(p.Plan.Gateways, name)
		}
	}
	for name := range sets { // any order: into maps
		if p.sets[name] == nil {
			n.replan.parents[parentID{"ListenerSet", name}] = &changedParent{all: true}
			delete(p.Plan.ListenerSets, name)
		}
	}
	for i, g := range order {
		order[i] = n.keepGateway(gates[nameOf(g)], g, sets)
	}
	n.open(order, hosting)
	if len(n.replan.parents) == 0 {
		return
	}
	for id, r := range p.routes { // any order: into a map and a list of different routes
		switch {
		case !n.concerned(r):
		case r.streams():
			again[id] = true
		default:
			n.replan.concerned = append(n.replan.concerned, r)
		}
	}
}

// rejoin joins the concerned routes with the listeners that hold now: what they serve stays as it is.
func (n *changing) rejoin() {
	for _, before := range n.replan.concerned {
		if _, planned := n.planned[before.id()]; planned {
			continue
		}
		after := new(*before)
		after.joined, after.through, after.parents = nil, nil, nil
		n.join(after, before.parentRefs())
		n.replaceJoined(before, after)
		if slices.EqualFunc(before.parents, after.parents, func(a, b gatewayv1.RouteParentStatus) bool {
			return a.ParentRef == b.ParentRef && slices.Equal(a.Conditions, b.Conditions)
		}) {
			continue // the references are those of the same object
		}
		switch o := before.meta.(type) {
		case *gatewayv1.HTTPRoute:
			setStatus(n.Plan.HTTPRoutes, after, len(o.Status.Parents))
			n.out.HTTPRoutes = append(n.out.HTTPRoutes, o)
		case *gatewayv1.GRPCRoute:
			setStatus(n.Plan.GRPCRoutes, after, len(o.Status.Parents))
			n.out.GRPCRoutes = append(n.out.GRPCRoutes, o)
		}
	}
}

// replaceJoined replaces a route by one that differs in its listeners only.
func (n *changing) replaceJoined(before, after *route) {
	n.routes[before.id()] = after
	for i, r := range []*route{before, after} {
		other := []*route{after, before}[i]
		for k := range r.joined {
			j := &r.joined[k]
			if slices.ContainsFunc(other.joined, func(o joined) bool { return o.listener == j.listener }) {
				continue // for the same hosts: otherwise the listener were another one
			}
			j.attached += []int{-1, 1}[i]
			for _, at := range j.places {
				n.part(at, j.served, i == 1)
			}
		}
	}
	if maps.Equal(before.through, after.through) {
		return
	}
	n.countPolicies(before, -1)
	n.countPolicies(after, 1)
	n.countPools(before, -1)
	n.countPools(after, 1)
	n.repooled = n.repooled || len(before.pools) > 0
	for pol := range before.policies { // any order: into a map
		n.touched[pol] = true
	}
}

// keepGateway keeps what routes know of a Gateway; before is nil if it is new. It returns the Gateway that holds.
func (n *changing) keepGateway(before, after *gateway, sets map[Name]*listenerSet) *gateway {
	name := nameOf(after)
	id := parentID{"Gateway", name}
	if before == nil {
		n.replan.parents[id] = &changedParent{all: true}
		for _, s := range after.sets {
			n.replan.parents[parentID{"ListenerSet", nameOf(s)}] = &changedParent{all: true}
		}
		return after
	}
	changed := keepListeners(before.listeners, after.listeners, before)
	for i, s := range after.sets {
		s.of = before
		of := parentID{"ListenerSet", nameOf(s)}
		was := sets[of.Name]
		if was == nil || was.of != before {
			n.replan.parents[of] = &changedParent{all: true}
			for _, l := range s.listeners {
				l.of = before
			}
			continue
		}
		n.replan.change(of, keepListeners(was.listeners, s.listeners, before))
		*was = *s
		after.sets[i], n.sets[of.Name] = was, was
	}
	*before = *after
	n.planner.gates[name] = before
	n.replan.change(id, changed)
	return before
}

func (r *replanning) change(id parentID, listeners []*listener) {
	if len(listeners) > 0 {
		r.parents[id] = &changedParent{listeners: listeners}
	}
}

// keepListeners replaces those of the new listeners for which routes need not be joined again by the old ones, which it
// updates. It returns the listeners that come and go; of is the Gateway of all.
func keepListeners(before, after []*listener, of *gateway) (changed []*listener) {
	kept := map[*listener]bool{}
	for i, l := range after {
		at := slices.IndexFunc(before, func(o *listener) bool { return o.Name == l.Name })
		if at < 0 || !joinsAlike(before[at], l) {
			l.of = of
			changed = append(changed, l)
			continue
		}
		old := before[at]
		kept[old] = true
		l.of, l.attached, l.streams = of, old.attached, old.streams
		*old = *l
		after[i] = old
	}
	for _, l := range before {
		if !kept[l] {
			changed = append(changed, l)
		}
	}
	return changed
}

// joinsAlike reports whether the same routes are attached to two versions of a listener, in the same way.
func joinsAlike(a, b *listener) bool {
	return a.Port == b.Port && a.Protocol == b.Protocol && a.host == b.host && slices.Equal(a.kinds, b.kinds) &&
		passthrough(a.Listener) == passthrough(b.Listener) && a.by.kind == b.by.kind &&
		a.by.GetNamespace() == b.by.GetNamespace() && a.of.identity.certificate() == b.of.identity.certificate() &&
		equality.Semantic.DeepEqual(a.AllowedRoutes, b.AllowedRoutes)
}

// open opens the ports of all Gateways, the oldest first. Ports with the same listeners keep their tables.
func (n *changing) open(order []*gateway, hosting bool) {
	p := n.planner
	p.Plan.Ports, p.Plan.UDP = map[netip.AddrPort]*Port{}, map[netip.AddrPort]*Port{}
	p.streaming = map[socket][]*listener{}
	if hosting {
		p.openIngresses(nil, nil)
	}
	for _, g := range order {
		p.open(g)
	}
	for at, port := range p.Ports { // any order: each by itself
		was := n.replan.ports[at]
		if was == nil || len(was.from) > len(port.from) || !slices.Equal(was.from, port.from[:len(was.from)]) ||
			slices.ContainsFunc(port.from[len(was.from):], (*listener).hasRoutes) {
			n.replan.recompiled[at] = true
			continue
		}
		var hosts []string
		for _, l := range port.from[len(was.from):] {
			hosts = append(hosts, l.host)
		}
		port.Table = was.Table.Append(hosts)
	}
}

// hasRoutes reports whether routes are attached to a listener, or whether it is that of Ingresses.
func (l *listener) hasRoutes() bool { return l == nil || l.attached > 0 }

// concerned reports whether other listeners can serve a route.
func (n *changing) concerned(r *route) bool {
	return slices.ContainsFunc(r.parentRefs(), func(ref gatewayv1.ParentReference) bool {
		id, ok := parentOf(&ref, r.meta.GetNamespace())
		c := n.replan.parents[id]
		return ok && c != nil && c.concerns(&ref)
	})
}

// parentRefs are those in the specification of a route; an Ingress has none.
func (r *route) parentRefs() []gatewayv1.ParentReference {
	switch o := r.meta.(type) {
	case *gatewayv1.HTTPRoute:
		return o.Spec.ParentRefs
	case *gatewayv1.GRPCRoute:
		return o.Spec.ParentRefs
	case *gatewayv1.TLSRoute:
		return o.Spec.ParentRefs
	case *gatewayv1.TCPRoute:
		return o.Spec.ParentRefs
	case *gatewayv1.UDPRoute:
		return o.Spec.ParentRefs
	}
	return nil
}

// reopened compiles the tables of ports with other listeners, and finds the ports that have changed.
func (n *changing) reopened() {
	p := n.planner
	if len(n.replan.recompiled) > 0 {
		routes, plain, secure := n.attachedRoutes()
		for at := range n.replan.recompiled { // any order: each by itself
			port := p.Ports[at]
			for i, l := range port.from {
				switch {
				case l != nil:
					port.Listeners[i].Routes = routes[l]
				case port.TLS:
					port.Listeners[i].Routes = secure
				default:
					port.Listeners[i].Routes = plain
				}
			}
			port.compile()
		}
	}
	n.out.Listeners = true
	n.out.Ports, n.out.UDP = differing(n.replan.ports, p.Ports), differing(n.replan.udp, p.UDP)
}

// attachedRoutes returns what listeners of recompiled ports serve, and the routes of Ingresses.
func (n *changing) attachedRoutes() (routes map[*listener][]httproute.Route, plain, secure []httproute.Route) {
	routes = map[*listener][]httproute.Route{}
	for at := range n.replan.recompiled { // any order: into a map
		for _, l := range n.Ports[at].from {
			routes[l] = nil
		}
	}
	for _, r := range n.routes { // any order: tables sort their routes
		for i := range r.joined {
			j := &r.joined[i]
			if all, wanted := routes[j.listener]; wanted {
				routes[j.listener] = append(all, j.served)
			}
		}
		if r.ingress != nil {
			plain, secure = append(plain, r.ingress.plain...), append(secure, r.ingress.secure...)
		}
	}
	return routes, plain, secure
}

// differing returns the ports that come, go, or have another table or other streams.
func differing(before, after map[netip.AddrPort]*Port) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for at, port := range after { // any order: into a set
		was := before[at]
		if was == nil || was.Table != port.Table || !equality.Semantic.DeepEqual(was.Streams, port.Streams) {
			out[at] = true
		}
	}
	for at := range before { // any order: into a set
		if after[at] == nil {
			out[at] = true
		}
	}
	return out
}

// gatewayStatuses plans the statuses of all Gateways and ListenerSets, and returns those that are others.
func (n *changing) gatewayStatuses(c *Changes) {
	for name, g := range n.planner.gates { // any order: into maps and lists of different objects
		before := n.Plan.Gateways[name]
		now := n.gatewayStatus(g)
		n.Plan.Gateways[name] = now
		if _, changed := c.Gateways[name]; changed || !equality.Semantic.DeepEqual(before, now) {
			n.out.Gateways = append(n.out.Gateways, g.Gateway)
		}
	}
	for name, s := range n.sets { // any order: into maps and lists of different objects
		before := n.Plan.ListenerSets[name]
		now := n.setStatus(s)
		n.Plan.ListenerSets[name] = now
		if _, changed := c.ListenerSets[name]; changed || !equality.Semantic.DeepEqual(before, now) {
			n.out.ListenerSets = append(n.out.ListenerSets, s.ListenerSet)
		}
	}
}
