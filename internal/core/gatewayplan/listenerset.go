package gatewayplan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// listenerSet is one ListenerSet while it is planned: it adds listeners to a Gateway.
type listenerSet struct {
	*gatewayv1.ListenerSet
	of        *gateway
	listeners []*listener
	refused   gatewayv1.ListenerSetConditionReason // why no listener is served; empty: some are
	message   string
}

// listenerSets joins ListenerSets with their Gateways. The listeners of a Gateway precede those
// of its sets, and older sets precede younger ones (GEP-1713): of two in conflict, the first is
// served.
func (p *planner) listenerSets(all map[Name]*gateway) map[Name]*listenerSet {
	sets := map[Name]*listenerSet{}
	for _, in := range byAge(p.World.ListenerSets) {
		ref := &in.Spec.ParentRef
		if or(ref.Group, group) != group || or(ref.Kind, "Gateway") != "Gateway" || in.DeletionTimestamp != nil {
			continue
		}
		g := all[Name{Namespace: string(or(ref.Namespace, gatewayv1.Namespace(in.Namespace))), Name: string(ref.Name)}]
		if g == nil {
			continue
		}
		set := &listenerSet{ListenerSet: in, of: g}
		sets[nameOf(in)] = set
		switch {
		case !p.allowsSet(g, in.Namespace):
			set.refused, set.message = gatewayv1.ListenerSetReasonNotAllowed,
				"the Gateway does not allow ListenerSets of this namespace (spec.allowedListeners)"
			g.sets = append(g.sets, set)
			continue
		case g.accepted.Status != metav1.ConditionTrue:
			set.refused, set.message = gatewayv1.ListenerSetReasonParentNotAccepted, "the Gateway is not accepted"
			g.sets = append(g.sets, set)
			continue
		}
		g.sets = append(g.sets, set)
		valid := 0
		for i := range in.Spec.Listeners {
			e := &in.Spec.Listeners[i]
			l := p.listener(g, &gatewayv1.Listener{Name: e.Name, Hostname: e.Hostname, Port: e.Port,
				Protocol: e.Protocol, TLS: e.TLS, AllowedRoutes: e.AllowedRoutes}, referrer{"ListenerSet", in})
			if l.conflict = g.used[l.port()].conflict(l); l.conflict != "" {
				l.rejected, l.message = "", "an earlier listener has the same port and hostname, or another protocol"
			}
			set.listeners = append(set.listeners, l)
			if g.use(l) {
				valid++
			}
		}
		if valid == 0 {
			set.refused, set.message = gatewayv1.ListenerSetReasonListenersNotValid, "no listener is valid"
		}
	}
	return sets
}

// everyListener returns the listeners of the Gateway itself, then those of its sets.
func (g *gateway) everyListener() []*listener {
	out := slices.Clip(g.listeners)
	for _, s := range g.sets {
		out = append(out, s.listeners...)
	}
	return out
}

// listenerPort is a port of a Gateway: that of UDP with the same number is another one.
type listenerPort struct {
	number gatewayv1.PortNumber
	udp    bool
}

func (l *listener) port() listenerPort {
	return listenerPort{l.Port, l.Protocol == gatewayv1.UDPProtocolType}
}

// usedPort is how the listeners of a port use it, none of which conflicts with another one.
type usedPort struct {
	wire  string
	raw   bool
	hosts map[string]bool
}

// use is how a listener alone uses its port.
func (l *listener) use() *usedPort {
	return &usedPort{wire: wire(l.Protocol), raw: l.raw(), hosts: map[string]bool{l.host: true}}
}

// conflict returns why one more listener of the port cannot be distinguished from those that use it; empty: it can. A
// nil port is not used.
func (u *usedPort) conflict(l *listener) gatewayv1.ListenerConditionReason {
	switch {
	case u == nil:
	case u.wire != wire(l.Protocol), u.raw:
		return gatewayv1.ListenerReasonProtocolConflict
	case u.hosts[l.host]:
		return gatewayv1.ListenerReasonHostnameConflict
	}
	return ""
}

// use notes a listener if it is served, and reports that. A Gateway with many sets has thousands of listeners: none is
// compared with each before it.
func (g *gateway) use(l *listener) bool {
	if !l.serves() {
		return false
	}
	if g.used == nil {
		g.used = map[listenerPort]*usedPort{}
	}
	if u := g.used[l.port()]; u != nil {
		u.hosts[l.host] = true
	} else {
		g.used[l.port()] = l.use()
	}
	return true
}

// raw reports whether all traffic of the listener's port is passed to one route.
func (l *listener) raw() bool {
	return l.Protocol == gatewayv1.TCPProtocolType || l.Protocol == gatewayv1.UDPProtocolType
}

// streamed reports whether the listener forwards connections instead of requests.
func (l *listener) streamed() bool { return l.raw() || l.Protocol == gatewayv1.TLSProtocolType }

// wire returns what connections of a protocol begin with: it must be the same for all listeners of
// a port.
func wire(protocol gatewayv1.ProtocolType) string {
	switch protocol {
	case gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType:
		return "tls"
	default:
		return string(protocol)
	}
}

// allowsSet reports whether ListenerSets of a namespace may add listeners to a Gateway; by
// default none may.
func (p *planner) allowsSet(g *gateway, namespace string) bool {
	if g.Spec.AllowedListeners == nil || g.Spec.AllowedListeners.Namespaces == nil {
		return false
	}
	from := g.Spec.AllowedListeners.Namespaces
	return p.allowsNamespace(or(from.From, gatewayv1.NamespacesFromNone), from.Selector, namespace, g.Namespace)
}

// allowsNamespace reports whether a rule about namespaces includes one. own is the namespace of the object that
// contains the rule.
func (p *planner) allowsNamespace(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector,
	namespace, own string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return namespace == own
	case gatewayv1.NamespacesFromSelector:
		p.selected[namespace] = true
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return false
		}
		of := p.Namespaces[namespace]
		if of == nil {
			of = labels.Set{}
		}
		return s.Matches(of)
	case gatewayv1.NamespacesFromNone:
	}
	return false
}

// attachedSets counts the sets of a Gateway with a listener that is served.
func (g *gateway) attachedSets() *int32 {
	if g.Spec.AllowedListeners == nil && len(g.sets) == 0 {
		return nil
	}
	n := int32(0)
	for _, s := range g.sets {
		if s.refused == "" {
			n++
		}
	}
	return &n
}

// setStatus returns the status of a ListenerSet, after all routes are attached.
func (p *planner) setStatus(s *listenerSet) (out gatewayv1.ListenerSetStatus) {
	g := s.of
	serving := 0
	unusable := g.unusable
	for _, l := range s.listeners {
		failed := ""
		if l.serves() {
			for _, ip := range g.addresses {
				if why := p.failure(l, ip); why != "" {
					failed, unusable = why, why
				}
			}
			if failed == "" {
				serving++
			}
		}
		out.Listeners = append(out.Listeners, gatewayv1.ListenerEntryStatus(listenerStatus(g, l, failed)))
	}
	accepted := condition(gatewayv1.ListenerSetConditionAccepted, s.refused == "", gatewayv1.ListenerSetReasonAccepted,
		"the listeners are served by carob", s.Generation)
	programmed := condition(gatewayv1.ListenerSetConditionProgrammed, true, gatewayv1.ListenerSetReasonProgrammed,
		"the listeners are served", s.Generation)
	switch {
	case s.refused != "":
		accepted.Reason, accepted.Message = string(s.refused), s.message
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, s.refused, s.message, s.Generation)
	case serving == 0:
		programmed = condition(gatewayv1.ListenerSetConditionProgrammed, false, gatewayv1.ListenerSetReasonPending,
			unusable, s.Generation)
	}
	if bad := len(s.listeners) - serving; s.refused == "" && bad > 0 {
		accepted.Reason = string(gatewayv1.ListenerSetReasonListenersNotValid)
		accepted.Message = fmt.Sprintf("%d of %d listeners are not served", bad, len(s.listeners))
	}
	out.Conditions = []metav1.Condition{accepted, programmed}
	return out
}

// ListenerSetStatus returns the status to store, or false when the stored one is the same.
func ListenerSetStatus(stored *gatewayv1.ListenerSetStatus, now gatewayv1.ListenerSetStatus,
	at metav1.Time) (gatewayv1.ListenerSetStatus, bool) {
	before := gatewayv1.GatewayStatus{Conditions: stored.Conditions}
	for _, l := range stored.Listeners {
		before.Listeners = append(before.Listeners, gatewayv1.ListenerStatus(l))
	}
	after := gatewayv1.GatewayStatus{Conditions: now.Conditions}
	for _, l := range now.Listeners {
		after.Listeners = append(after.Listeners, gatewayv1.ListenerStatus(l))
	}
	after, changed := GatewayStatus(&before, after, at)
	now.Conditions, now.Listeners = after.Conditions, nil
	for _, l := range after.Listeners {
		now.Listeners = append(now.Listeners, gatewayv1.ListenerEntryStatus(l))
	}
	return now, changed
}
