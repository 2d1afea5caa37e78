// Package gatewayplan decides what the gateway serves: from Ingresses and objects of the Gateway API it makes the ports
// to listen on, their routes as core/httproute compiles them, and the status of each object. It is pure; package
// gateway drives it.
//
// Contract: N6 in docs/spec/network.md, and the documentation of the types of sigs.k8s.io/gateway-api.
package gatewayplan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/gatewayplan/inferenceapi"
	"carob/internal/core/httproute"
)

// Controller names in classes that carob serves.
const (
	IngressController                             = "carob.dev/ingress"
	GatewayController gatewayv1.GatewayController = "carob.dev/gateway"
	// Class is the name of the IngressClass and of the GatewayClass that carob makes.
	Class = "carob"
)

// Name is the namespace and the name of an object.
type Name = types.NamespacedName

// Material is a certificate with its key, or a set of CAs, as far as a decision needs it.
type Material struct {
	Problem string // why it cannot be used; empty when it can
	PEM     string // of CAs, or of the certificate and key that a Gateway presents to backends
}

// World holds everything that a plan depends on.
type World struct {
	Classes    []*networkingv1.IngressClass
	Ingresses  []*networkingv1.Ingress
	Services   map[Name]*corev1.Service
	Secrets    map[Name]Material // Secrets of type kubernetes.io/tls
	CAs        map[Name]Material // ConfigMaps, by their key ca.crt
	Namespaces map[string]labels.Set

	GatewayClasses []*gatewayv1.GatewayClass
	Gateways       []*gatewayv1.Gateway
	ListenerSets   []*gatewayv1.ListenerSet
	HTTPRoutes     []*gatewayv1.HTTPRoute
	GRPCRoutes     []*gatewayv1.GRPCRoute
	TLSRoutes      []*gatewayv1.TLSRoute
	TCPRoutes      []*gatewayv1.TCPRoute
	UDPRoutes      []*gatewayv1.UDPRoute
	Grants         []*gatewayv1.ReferenceGrant
	Policies       []*gatewayv1.BackendTLSPolicy

	// Inference has pools of model servers; nil: the API server does not serve the kinds.
	Inference *Inference

	HTTP, HTTPS netip.AddrPort // where Ingresses are served; not valid: nowhere
	Pool        []netip.Addr   // each Gateway without addresses gets one of these; none: it shares those above
	// Assigned are the addresses of the pool that the previous plan gave to Gateways; their
	// statuses may not show them yet.
	Assigned map[Name]netip.Addr
	Host     []netip.Addr // addresses of this host, reported when a port listens on all
	// Failed are the ports that could not be opened, and FailedUDP those of UDP.
	Failed, FailedUDP map[netip.AddrPort]string
	// Offered means that other gateways call carob's picker: all pools with this picker are served, those without a
	// route included.
	Offered bool
}

// Plan is what the gateway serves, and the statuses of the objects.
type Plan struct {
	Ports     map[netip.AddrPort]*Port
	UDP       map[netip.AddrPort]*Port // ports of UDP
	Refs      map[httproute.Ref]bool   // the backends that routes name
	Assigned  map[Name]netip.Addr      // of the pool
	Ingresses map[Name]IngressResult

	Classes      map[string][]metav1.Condition
	Gateways     map[Name]gatewayv1.GatewayStatus
	ListenerSets map[Name]gatewayv1.ListenerSetStatus
	HTTPRoutes   map[Name][]gatewayv1.RouteParentStatus
	GRPCRoutes   map[Name][]gatewayv1.RouteParentStatus
	TLSRoutes    map[Name][]gatewayv1.RouteParentStatus
	TCPRoutes    map[Name][]gatewayv1.RouteParentStatus
	UDPRoutes    map[Name][]gatewayv1.RouteParentStatus
	Policies     map[Name][]gatewayv1.PolicyAncestorStatus
	// Pools are the InferencePools that routes refer to, or for which other gateways may use carob's picker.
	// PoolStatus is the status of each existing pool at carob's Gateways; Models, Objectives and Rewrites have
	// the conditions of theirs.
	Pools                        map[httproute.Ref]*Pool
	PoolStatus                   map[httproute.Ref][]inferenceapi.Parent
	Models, Objectives, Rewrites map[Name][]metav1.Condition
	// RouterObjectives and RouterRewrites are about those of inferenceapi.RouterGroup.
	RouterObjectives, RouterRewrites map[Name][]metav1.Condition
}

// Port holds what the gateway serves at one port.
type Port struct {
	TLS bool
	// A raw port passes all traffic to the first of Streams, which has no host name; without one, connections are
	// refused. All UDP ports are raw.
	Raw       bool
	Listeners []httproute.Listener // in a Live plan without their routes, which are in its Table
	Table     *httproute.Table     // nil: not in a Live plan
	// Certificates are those of TLS connections, by requested host name.
	Certificates []Certificate
	// Default: connections for unknown names get a self-signed certificate (N6.15).
	Default bool
	// Streams are TLS connections that are passed through, by requested host name, or the routes of a raw port:
	// the first stream of a name is served, which is the oldest at its listener.
	Streams []Stream
	// Clients configures which certificates clients must have.
	Clients *ClientAuth

	from    []*listener // of Gateways, as in Listeners; nil: that of Ingresses
	endsTLS bool        // TLS ends here for a listener of a Gateway
}

// Certificate lists the Secrets with the certificates for a host name; "" is for all.
type Certificate struct {
	Host    string
	Secrets []Name
}

// Stream is a host name whose connections are passed to backends, or a route of a raw port.
type Stream struct {
	Host      string
	Rule      *httproute.Rule
	Source    httproute.Source
	Terminate bool // TLS ends here
}

// ClientAuth is the validation of client certificates.
type ClientAuth struct {
	CA string // PEM
	// Fallback lets clients in whose certificate is missing or not valid.
	Fallback bool
}

// IngressResult is the outcome for one Ingress.
type IngressResult struct {
	Addresses []networkingv1.IngressLoadBalancerIngress
	Problems  []Problem
}

// Problem reports something about an object to its owner: the reason and the message of an event.
type Problem struct{ Reason, Message string }

func makePlan(w *World) *planner {
	p := &planner{World: w, Plan: &Plan{Ports: map[netip.AddrPort]*Port{}, UDP: map[netip.AddrPort]*Port{},
		Refs: map[httproute.Ref]bool{}, Assigned: map[Name]netip.Addr{},
		Ingresses: map[Name]IngressResult{}, Classes: map[string][]metav1.Condition{},
		Gateways: map[Name]gatewayv1.GatewayStatus{}, ListenerSets: map[Name]gatewayv1.ListenerSetStatus{},
		HTTPRoutes: map[Name][]gatewayv1.RouteParentStatus{}, GRPCRoutes: map[Name][]gatewayv1.RouteParentStatus{},
		TLSRoutes: map[Name][]gatewayv1.RouteParentStatus{}, TCPRoutes: map[Name][]gatewayv1.RouteParentStatus{},
		UDPRoutes: map[Name][]gatewayv1.RouteParentStatus{}, Policies: map[Name][]gatewayv1.PolicyAncestorStatus{},
	},
		through: map[httproute.Ref]counts{}, refs: map[httproute.Ref]int{},
		routes: map[routeID]*route{}, naming: map[Name]map[routeID]bool{}, foreign: map[string]map[routeID]bool{},
		named: map[Name]bool{}, certifying: map[Name]map[routeID]bool{}, clients: map[Name]bool{},
		streaming: map[socket][]*listener{}, selected: map[string]bool{}, pooling: map[string]map[routeID]bool{}}
	p.ingresses()
	p.tlsPolicies()
	p.readPools()
	p.gateways()
	p.offerPools()
	p.Plan.Pools = p.servedPools()
	p.poolStatus()
	return p
}

type planner struct {
	*World
	*Plan

	claims   map[policyTarget][]*policy // the oldest first, which holds
	byPolicy map[Name]*policy           // all of them
	used     map[*policy]counts         // the Gateways through which a policy works
	pools    map[httproute.Ref]*Pool
	pickers  map[Name]bool            // Services that pools name
	through  map[httproute.Ref]counts // the Gateways whose routes refer to a pool

	gates   map[Name]*gateway // by the names of the Gateways
	sets    map[Name]*listenerSet
	routes  map[routeID]*route // of all kinds, also Ingresses
	naming  map[Name]map[routeID]bool
	foreign map[string]map[routeID]bool // with a backend in another namespace, which is the key
	pooling map[string]map[routeID]bool // with an InferencePool, by the pool's namespace
	named   map[Name]bool               // Secrets that Gateways have looked up
	// certifying are the Ingresses that name a Secret.
	certifying map[Name]map[routeID]bool
	clients    map[Name]bool // ConfigMaps with CAs that listeners name
	// streaming are the listeners of ports that serve streams, in their order.
	streaming map[socket][]*listener
	refs      map[httproute.Ref]int // how many routes lead to a backend
	hosting   int                   // Ingresses with routes
	certified []Certificate         // of Ingresses
	// certifiers are the Ingresses with these certificates, the oldest first.
	certifiers []*route
	ours       map[string]bool // GatewayClasses that carob serves
	selected   map[string]bool // namespaces whose labels have been read
}

// socket names a port: the same number may be open for TCP and UDP.
type socket struct {
	at  netip.AddrPort
	udp bool
}

// counts holds the number of routes of each Gateway.
type counts map[Name]int

func (c counts) add(g Name, by int) {
	if c[g] += by; c[g] == 0 {
		delete(c, g)
	}
}

func nameOf(o metav1.Object) Name { return Name{Namespace: o.GetNamespace(), Name: o.GetName()} }

func source(kind string, o metav1.Object) httproute.Source {
	return httproute.Source{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(),
		Created: o.GetCreationTimestamp().Unix()}
}

// byAge orders objects: the oldest first, then by name.
func byAge[T metav1.Object](all []T) []T {
	all = slices.Clone(all)
	slices.SortFunc(all, compareAge[T])
	return all
}

func compareAge[T metav1.Object](a, b T) int {
	x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(x.Compare(y.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()))
}

// secret looks a Secret up for a Gateway. From then on a change of it is a change of the Gateways.
func (p *planner) secret(name Name) (Material, bool) {
	p.named[name] = true
	m, there := p.Secrets[name]
	return m, there
}

// at returns an open port of the plan.
func (p *planner) at(s socket) *Port {
	if s.udp {
		return p.UDP[s.at]
	}
	return p.Ports[s.at]
}

// port returns a port of the plan, or nil if it is used with another protocol already.
func (p *planner) port(at netip.AddrPort, tls bool) *Port {
	port := p.Ports[at]
	if port == nil {
		port = &Port{TLS: tls}
		p.Ports[at] = port
	}
	if port.TLS != tls || port.Raw {
		return nil
	}
	return port
}

// raw returns a raw port of the plan, or nil if it is used already: without host names, its listeners cannot be
// distinguished.
func (p *planner) raw(s socket) *Port {
	if p.at(s) != nil {
		return nil
	}
	port := &Port{Raw: true}
	if s.udp {
		p.UDP[s.at] = port
	} else {
		p.Ports[s.at] = port
	}
	return port
}

// backendProblem is the reason why a reference to a backend does not work: a reason of the condition
// ResolvedRefs.
type backendProblem struct {
	reason  gatewayv1.RouteConditionReason
	message string
}

// service resolves a port of a Service, of TCP or of UDP, for a route; nil: for a pool.
func (p *planner) service(r *route, name Name, port int32, udp bool) (*corev1.ServicePort, *backendProblem) {
	if r != nil {
		r.services = append(r.services, name)
	}
	s := p.Services[name]
	if s == nil {
		return nil, &backendProblem{
			gatewayv1.RouteReasonBackendNotFound, "Service " + name.String() + " does not exist",
		}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		// An ExternalName can be any name, also one that the creator of the route must not reach
		// (CVE-2021-25740).
		return nil, &backendProblem{gatewayv1.RouteReasonBackendNotFound, "Service " + name.String() +
			" is of type ExternalName, which is not a backend"}
	}
	if found := endpoints.PortOf(s, port, udp); found != nil {
		return found, nil
	}
	protocol := "TCP"
	if udp {
		protocol = "UDP"
	}
	return nil, &backendProblem{gatewayv1.RouteReasonBackendNotFound, "Service " + name.String() +
		" has no such port of " + protocol}
}

// protocolOf returns the protocol of a port (appProtocol, KEP-3726).
func protocolOf(port *corev1.ServicePort) httproute.Protocol {
	if port.AppProtocol != nil && *port.AppProtocol == "kubernetes.io/h2c" {
		return httproute.H2C
	}
	return httproute.HTTP1
}

// addresses are those that a client can use to reach an address that a port listens on.
func (p *planner) addresses(at netip.Addr) []netip.Addr {
	if at.IsUnspecified() {
		return p.Host
	}
	return []netip.Addr{at}
}
