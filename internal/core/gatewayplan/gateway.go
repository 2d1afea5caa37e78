package gatewayplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

const group = gatewayv1.GroupName

// gateway is one Gateway while it is planned.
type gateway struct {
	*gatewayv1.Gateway
	listeners []*listener
	addresses []netip.Addr
	sets      []*listenerSet
	accepted  metav1.Condition
	unusable  string // why no address can be used
	identity  *identity
	used      map[listenerPort]*usedPort // by listeners that are served, also those of sets
}

// listener is one of its listeners.
type listener struct {
	*gatewayv1.Listener
	of       *gateway
	by       referrer // the Gateway, or a ListenerSet
	host     string
	kinds    []gatewayv1.Kind // of routes
	conflict gatewayv1.ListenerConditionReason
	rejected gatewayv1.ListenerConditionReason // why it is not accepted; empty: it is
	broken   gatewayv1.ListenerConditionReason // why its references are not resolved
	message  string
	secrets  []Name
	clients  *ClientAuth

	attached int // routes
	routes   []httproute.Route
	streams  []*joined // of routes, the oldest first
	places   []listenerPlace
}

// listenerPlace is where a listener is served: its index among the listeners of a port.
type listenerPlace struct {
	at    netip.AddrPort
	index int
}

// referrer is the object that contains a listener: references are resolved from its namespace.
type referrer struct {
	kind gatewayv1.Kind
	metav1.Object
}

// serves reports whether requests are served at the listener.
func (l *listener) serves() bool {
	return l.rejected == "" && l.conflict == "" && (l.broken == "" ||
		l.broken == gatewayv1.ListenerReasonInvalidRouteKinds)
}

func (p *planner) gateways() {
	p.gatewayClasses()
	order := p.planGateways()
	p.attach()
	for _, g := range order {
		p.open(g)
	}
	for _, g := range order {
		p.Plan.Gateways[nameOf(g)] = p.gatewayStatus(g)
		for _, s := range g.sets {
			p.Plan.ListenerSets[nameOf(s)] = p.setStatus(s)
		}
	}
	for _, pol := range p.byPolicy { // any order: into a map
		p.policyStatus(pol)
	}
}

// planGateways plans the Gateways and ListenerSets of carob's classes, without their routes. It returns the Gateways,
// the oldest first.
func (p *planner) planGateways() (order []*gateway) {
	all := map[Name]*gateway{}
	taken := p.taken(p.ours)
	for _, g := range byAge(p.World.Gateways) {
		if p.ours[string(g.Spec.GatewayClassName)] && g.DeletionTimestamp == nil {
			gw := p.gateway(g, taken)
			all[nameOf(g)] = gw
			order = append(order, gw)
		}
	}
	p.gates, p.sets = all, p.listenerSets(all)
	return order
}

// taken returns the addresses of the pool that Gateways have: by the plan before, or by their
// status.
func (p *planner) taken(ours map[string]bool) map[netip.Addr]Name {
	out, has := map[netip.Addr]Name{}, map[Name]bool{}
	take := func(g *gatewayv1.Gateway, ip netip.Addr) {
		if _, used := out[ip]; !used && !has[nameOf(g)] && slices.Contains(p.Pool, ip) {
			out[ip], has[nameOf(g)] = nameOf(g), true
		}
	}
	all := slices.DeleteFunc(byAge(p.World.Gateways), func(g *gatewayv1.Gateway) bool {
		return !ours[string(g.Spec.GatewayClassName)] || requestsAddress(g)
	})
	for _, g := range all {
		if ip, known := p.World.Assigned[nameOf(g)]; known {
			take(g, ip)
		}
	}
	for _, g := range all {
		for _, a := range g.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Value); err == nil {
				take(g, ip)
			}
		}
	}
	return out
}

// requestsAddress reports whether a Gateway names its addresses.
func requestsAddress(g *gatewayv1.Gateway) bool {
	return slices.ContainsFunc(g.Spec.Addresses, func(a gatewayv1.GatewaySpecAddress) bool { return a.Value != "" })
}

func (p *planner) gateway(g *gatewayv1.Gateway, taken map[netip.Addr]Name) *gateway {
	gw := &gateway{Gateway: g, accepted: condition(gatewayv1.GatewayConditionAccepted, true,
		gatewayv1.GatewayReasonAccepted, "the Gateway is served by carob", g.Generation)}
	p.address(gw, taken)
	p.clientIdentity(gw)
	if i := g.Spec.Infrastructure; i != nil && i.ParametersRef != nil {
		gw.accepted = condition(gatewayv1.GatewayConditionAccepted, false, gatewayv1.GatewayReasonInvalidParameters,
			"carob has no parameters for a Gateway", g.Generation)
	}
	for i := range g.Spec.Listeners {
		gw.listeners = append(gw.listeners, p.listener(gw, &g.Spec.Listeners[i], referrer{"Gateway", g}))
	}
	conflicts(gw.listeners)
	for _, l := range gw.listeners {
		gw.use(l)
	}
	valid := 0
	for _, l := range gw.listeners {
		if l.rejected == "" && l.conflict == "" {
			valid++
		}
	}
	if valid < len(gw.listeners) && gw.accepted.Status == metav1.ConditionTrue {
		gw.accepted = condition(gatewayv1.GatewayConditionAccepted, valid > 0, gatewayv1.GatewayReasonListenersNotValid,
			fmt.Sprintf("%d of %d listeners are not valid", len(gw.listeners)-valid, len(gw.listeners)), g.Generation)
	}
	return gw
}

// address chooses where a Gateway is served: its own addresses, else one of the pool, else where Ingresses are served.
func (p *planner) address(gw *gateway, taken map[netip.Addr]Name) {
	reject := func(message string) {
		gw.accepted = condition(gatewayv1.GatewayConditionAccepted, false, gatewayv1.GatewayReasonUnsupportedAddress,
			message, gw.Generation)
	}
	for _, a := range gw.Spec.Addresses {
		if a.Type != nil && *a.Type != gatewayv1.IPAddressType {
			reject("addresses of type " + string(*a.Type) + " are not supported, only IPAddress")
			return
		}
	}
	if requestsAddress(gw.Gateway) {
		for _, a := range gw.Spec.Addresses {
			ip, err := netip.ParseAddr(a.Value)
			switch {
			case a.Value == "":
			case err != nil:
				reject(fmt.Sprintf("%q is not an IP address", a.Value))
				return
			case !slices.Contains(p.Pool, ip) && !slices.Contains(p.Host, ip):
				gw.unusable = fmt.Sprintf("%s is not an address of this host and not in --gateway-addresses", ip)
			default:
				gw.addresses = append(gw.addresses, ip)
			}
		}
		return
	}
	if len(p.Pool) > 0 {
		for _, ip := range p.Pool {
			if taken[ip] == nameOf(gw) {
				gw.addresses, p.Plan.Assigned[nameOf(gw)] = []netip.Addr{ip}, ip
				return
			}
		}
		for _, ip := range p.Pool {
			if _, used := taken[ip]; !used {
				taken[ip] = nameOf(gw)
				gw.addresses, p.Plan.Assigned[nameOf(gw)] = []netip.Addr{ip}, ip
				return
			}
		}
		gw.unusable = "all addresses of --gateway-addresses are in use"
		return
	}
	for _, at := range []netip.AddrPort{p.HTTP, p.HTTPS} {
		if at.IsValid() && !slices.Contains(gw.addresses, at.Addr()) {
			gw.addresses = append(gw.addresses, at.Addr())
		}
	}
	if len(gw.addresses) == 0 {
		gw.unusable = "carob was started without an address for Gateways (--gateway-addresses, --gateway-http)"
	}
}

func (p *planner) listener(gw *gateway, in *gatewayv1.Listener, by referrer) *listener {
	l := &listener{Listener: in, of: gw, by: by, host: strings.ToLower(string(or(in.Hostname, "")))}
	switch in.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		l.kinds = []gatewayv1.Kind{"HTTPRoute", "GRPCRoute"}
	case gatewayv1.TLSProtocolType:
		l.kinds = []gatewayv1.Kind{"TLSRoute"}
	case gatewayv1.TCPProtocolType:
		l.kinds, l.host = []gatewayv1.Kind{"TCPRoute"}, ""
	case gatewayv1.UDPProtocolType:
		l.kinds, l.host = []gatewayv1.Kind{"UDPRoute"}, ""
	default:
		l.rejected = gatewayv1.ListenerReasonUnsupportedProtocol
		l.message = "protocol " + string(in.Protocol) + " is not supported"
		return l
	}
	if in.AllowedRoutes != nil && len(in.AllowedRoutes.Kinds) > 0 {
		supported := l.kinds
		l.kinds = nil
		for _, k := range in.AllowedRoutes.Kinds {
			if or(k.Group, group) == group && slices.Contains(supported, k.Kind) {
				if !slices.Contains(l.kinds, k.Kind) {
					l.kinds = append(l.kinds, k.Kind)
				}
			} else {
				l.broken = gatewayv1.ListenerReasonInvalidRouteKinds
				l.message = fmt.Sprintf("routes of kind %s cannot be attached to %s", k.Kind, in.Protocol)
			}
		}
	}
	if wire(in.Protocol) == "tls" {
		p.certificates(l)
		p.frontend(l)
	}
	return l
}

// passthrough reports whether TLS does not end at a listener.
func passthrough(l *gatewayv1.Listener) bool {
	return l.TLS != nil && l.TLS.Mode != nil && *l.TLS.Mode == gatewayv1.TLSModePassthrough
}

// certificates resolves the Secrets of a listener.
func (p *planner) certificates(l *listener) {
	if passthrough(l.Listener) {
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			l.rejected, l.message = gatewayv1.ListenerReasonUnsupportedValue, "an HTTPS listener must end TLS"
		}
		return
	}
	if l.TLS == nil || len(l.TLS.CertificateRefs) == 0 {
		l.broken, l.message = gatewayv1.ListenerReasonInvalidCertificateRef, "the listener has no certificate"
		return
	}
	for _, ref := range l.TLS.CertificateRefs {
		name := Name{Namespace: string(or(ref.Namespace, gatewayv1.Namespace(l.by.GetNamespace()))),
			Name: string(ref.Name)}
		secret, there := p.secret(name)
		switch {
		case or(ref.Group, "") != "" || or(ref.Kind, "Secret") != "Secret":
			l.broken, l.message = gatewayv1.ListenerReasonInvalidCertificateRef, "a certificate must be in a Secret"
		case !p.granted(l.by.kind, l.by.GetNamespace(), "", "Secret", name):
			l.broken = gatewayv1.ListenerReasonRefNotPermitted
			l.message = fmt.Sprintf("no ReferenceGrant permits the use of Secret %s", name)
		case !there:
			l.broken = gatewayv1.ListenerReasonInvalidCertificateRef
			l.message = fmt.Sprintf("Secret %s of type kubernetes.io/tls does not exist", name)
		case secret.Problem != "":
			l.broken = gatewayv1.ListenerReasonInvalidCertificateRef
			l.message = fmt.Sprintf("Secret %s: %s", name, secret.Problem)
		default:
			l.secrets = append(l.secrets, name)
		}
	}
}

// frontend finds how the certificates of clients are validated at a listener's port.
func (p *planner) frontend(l *listener) {
	if l.of.Spec.TLS == nil || l.of.Spec.TLS.Frontend == nil || passthrough(l.Listener) {
		return
	}
	validation := l.of.Spec.TLS.Frontend.Default.Validation
	for i := range l.of.Spec.TLS.Frontend.PerPort {
		if per := &l.of.Spec.TLS.Frontend.PerPort[i]; per.Port == l.Port {
			validation = per.TLS.Validation
		}
	}
	if validation == nil {
		return
	}
	l.clients = &ClientAuth{Fallback: validation.Mode == gatewayv1.AllowInsecureFallback}
	for _, ref := range validation.CACertificateRefs {
		name := Name{Namespace: string(or(ref.Namespace, gatewayv1.Namespace(l.of.Namespace))), Name: string(ref.Name)}
		ca, there := p.CAs[name]
		p.clients[name] = true
		switch {
		case ref.Group != "" || ref.Kind != "ConfigMap":
			l.broken, l.message = gatewayv1.ListenerReasonInvalidCACertificateKind, "CAs must be in a ConfigMap"
		case !p.granted("Gateway", l.of.Namespace, "", "ConfigMap", name):
			l.broken = gatewayv1.ListenerReasonRefNotPermitted
			l.message = fmt.Sprintf("no ReferenceGrant permits the use of ConfigMap %s", name)
		case !there || ca.Problem != "":
			l.broken = gatewayv1.ListenerReasonInvalidCACertificateRef
			l.message = fmt.Sprintf("ConfigMap %s has no CA: %s", name, cmp.Or(ca.Problem, "it does not exist"))
		default:
			l.clients.CA += ca.PEM + "\n"
		}
	}
	if l.clients.CA == "" {
		l.rejected = gatewayv1.ListenerReasonNoValidCACertificate
	}
}

// conflicts finds listeners that cannot be distinguished: none of them is served.
func conflicts(all []*listener) {
	for i, a := range all {
		if a.rejected == gatewayv1.ListenerReasonUnsupportedProtocol {
			continue
		}
		u := a.use()
		for _, b := range all[i+1:] {
			if b.port() != a.port() || b.rejected == gatewayv1.ListenerReasonUnsupportedProtocol {
				continue
			}
			if reason := u.conflict(b); reason != "" {
				a.conflict, b.conflict = reason, reason
			}
		}
	}
}

// open adds the listeners of a Gateway to the ports of the plan.
func (p *planner) open(g *gateway) {
	if g.accepted.Status != metav1.ConditionTrue {
		return
	}
	for _, l := range g.everyListener() {
		if !l.serves() {
			continue
		}
		for _, ip := range g.addresses {
			at := socket{netip.AddrPortFrom(ip, uint16(l.Port)), l.Protocol == gatewayv1.UDPProtocolType}
			var port *Port
			if l.raw() {
				port = p.raw(at)
			} else {
				port = p.port(at.at, l.Protocol != gatewayv1.HTTPProtocolType)
			}
			refused := ""
			if port == nil {
				refused = "another Gateway or the Ingresses use this port, with another protocol or for TCP or UDP"
			} else if !port.validates(l) {
				refused = "another Gateway uses this port, and lets in clients with other certificates"
			}
			if refused != "" {
				l.rejected, l.message = gatewayv1.ListenerReasonPortUnavailable, refused
				continue
			}
			if l.streamed() {
				p.streaming[at] = append(p.streaming[at], l)
				port.Streams = append(port.Streams, l.allStreams()...)
			} else {
				l.places = append(l.places, listenerPlace{netip.AddrPortFrom(ip, uint16(l.Port)), len(port.Listeners)})
				port.Listeners = append(port.Listeners, httproute.Listener{Host: l.host, Routes: l.routes})
				port.from = append(port.from, l)
			}
			if len(l.secrets) > 0 {
				port.Certificates = append(port.Certificates, Certificate{Host: l.host, Secrets: l.secrets})
			}
		}
	}
}

// validates reports whether the port demands the certificates of clients that a listener does. The first listener of a
// Gateway where TLS ends decides, also for Ingresses, whose users may create no Gateway: a client is let in before its
// request names a host, so that another demand would hold for the hosts of all.
func (p *Port) validates(l *listener) bool {
	switch {
	case wire(l.Protocol) != "tls" || passthrough(l.Listener):
		return true
	case !p.endsTLS:
		p.endsTLS, p.Clients = true, l.clients
		return true
	case p.Clients == nil || l.clients == nil:
		return p.Clients == l.clients
	}
	return *p.Clients == *l.clients
}

// failure returns why a listener's port could not be opened at an address; empty: it is open.
func (p *planner) failure(l *listener, ip netip.Addr) string {
	at := netip.AddrPortFrom(ip, uint16(l.Port))
	if l.Protocol == gatewayv1.UDPProtocolType {
		return p.FailedUDP[at]
	}
	return p.Failed[at]
}

// gatewayStatus returns the status of a Gateway, after all routes are attached.
func (p *planner) gatewayStatus(g *gateway) gatewayv1.GatewayStatus {
	s := gatewayv1.GatewayStatus{Conditions: []metav1.Condition{g.accepted}, AttachedListenerSets: g.attachedSets()}
	unusable := g.unusable
	broken := ""
	serving := 0
	for _, l := range g.listeners {
		failed := ""
		if l.serves() && g.accepted.Status == metav1.ConditionTrue {
			for _, ip := range g.addresses {
				failed = cmp.Or(failed, p.failure(l, ip))
			}
			if failed == "" {
				serving++
			}
		}
		if l.broken != "" && l.broken != gatewayv1.ListenerReasonInvalidRouteKinds {
			broken = l.message
		}
		unusable = cmp.Or(unusable, failed)
		s.Listeners = append(s.Listeners, listenerStatus(g, l, failed))
	}
	programmed := condition(gatewayv1.GatewayConditionProgrammed, true, gatewayv1.GatewayReasonProgrammed,
		"the Gateway is served", g.Generation)
	switch {
	case g.accepted.Status != metav1.ConditionTrue:
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid,
			g.accepted.Message, g.Generation)
	case unusable != "":
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonAddressNotUsable,
			unusable, g.Generation)
	case serving == 0:
		programmed = condition(gatewayv1.GatewayConditionProgrammed, false, gatewayv1.GatewayReasonInvalid,
			cmp.Or(broken, "no listener can be served"), g.Generation)
	}
	s.Conditions = append(s.Conditions, programmed)
	if g.identity != nil {
		s.Conditions = append(s.Conditions, g.identity.condition(g.Generation))
	}
	insecure := slices.ContainsFunc(g.listeners, func(l *listener) bool {
		return l.clients != nil &&
			l.clients.Fallback
	})
	if insecure {
		s.Conditions = append(s.Conditions, condition(gatewayv1.GatewayConditionInsecureFrontendValidationMode, true,
			gatewayv1.GatewayReasonConfigurationChanged, "clients without a valid certificate are let in",
			g.Generation))
	}
	if g.unusable == "" {
		for _, ip := range g.addresses {
			for _, a := range p.addresses(ip) {
				kind := gatewayv1.IPAddressType
				s.Addresses = append(s.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: a.String()})
			}
		}
	}
	return s
}

func listenerStatus(g *gateway, l *listener, failed string) gatewayv1.ListenerStatus {
	generation := l.by.GetGeneration()
	s := gatewayv1.ListenerStatus{Name: l.Name, AttachedRoutes: int32(l.attached),
		SupportedKinds: []gatewayv1.RouteGroupKind{}}
	apiGroup := gatewayv1.Group(group)
	for _, k := range l.kinds {
		s.SupportedKinds = append(s.SupportedKinds, gatewayv1.RouteGroupKind{Group: &apiGroup, Kind: k})
	}
	add := func(c metav1.Condition) { s.Conditions = append(s.Conditions, c) }
	switch {
	case l.rejected != "":
		add(condition(gatewayv1.ListenerConditionAccepted, false, l.rejected, l.message, generation))
	case l.conflict != "":
		add(condition(gatewayv1.ListenerConditionAccepted, false, l.conflict,
			"another listener has the same port and hostname, or another protocol", generation))
	case failed != "":
		add(condition(gatewayv1.ListenerConditionAccepted, true, gatewayv1.ListenerReasonAccepted, "", generation))
	default:
		add(condition(gatewayv1.ListenerConditionAccepted, true, gatewayv1.ListenerReasonAccepted,
			"the listener is accepted", generation))
	}
	if l.broken != "" {
		add(condition(gatewayv1.ListenerConditionResolvedRefs, false, l.broken, l.message, generation))
	} else {
		add(condition(gatewayv1.ListenerConditionResolvedRefs, true, gatewayv1.ListenerReasonResolvedRefs,
			"all references are resolved", generation))
	}
	if l.conflict != "" {
		add(condition(gatewayv1.ListenerConditionConflicted, true, l.conflict,
			"another listener has the same port and hostname, or another protocol", generation))
	} else {
		add(condition(gatewayv1.ListenerConditionConflicted, false, gatewayv1.ListenerReasonNoConflicts, "",
			generation))
	}
	switch {
	case l.conflict != "" && l.by.kind == "ListenerSet":
		add(condition(gatewayv1.ListenerConditionProgrammed, false, l.conflict, l.message, generation))
	case g.accepted.Status != metav1.ConditionTrue, !l.serves(), l.broken != "":
		add(condition(gatewayv1.ListenerConditionProgrammed, false, gatewayv1.ListenerReasonInvalid,
			cmp.Or(l.message, "the listener is not valid"), generation))
	case failed != "" || g.unusable != "":
		add(condition(gatewayv1.ListenerConditionProgrammed, false, gatewayv1.ListenerReasonPending,
			cmp.Or(failed, g.unusable), generation))
	default:
		add(condition(gatewayv1.ListenerConditionProgrammed, true, gatewayv1.ListenerReasonProgrammed,
			"the listener is served", generation))
	}
	return s
}

// allows reports whether a listener accepts routes of a kind in a namespace.
func (p *planner) allows(l *listener, kind gatewayv1.Kind, namespace string) bool {
	if !slices.Contains(l.kinds, kind) {
		return false
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if l.AllowedRoutes != nil && l.AllowedRoutes.Namespaces != nil {
		from = or(l.AllowedRoutes.Namespaces.From, from)
		selector = l.AllowedRoutes.Namespaces.Selector
	}
	return p.allowsNamespace(from, selector, namespace, l.by.GetNamespace())
}
