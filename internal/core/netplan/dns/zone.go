package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/netplan"
)

// Zone holds the DNS names of the cluster and their records. Make it with NewZone. Its methods Set…
// and Remove… cost in proportion to the change, not to the size of the cluster; Answer must not run
// meanwhile.
type Zone struct {
	// Serial is the serial number of the SOA record (N4.16), set by the caller that changes the zone.
	Serial uint32

	namespaces map[string]struct{} // by wire label
	services   map[string]*service // by wire labels of <service>.<namespace>
	clusterIPs map[netip.Addr][]*service
	endpoints  map[netip.Addr][]named
	pods       map[netip.Addr]map[string]int // number of pods by wire label of the namespace

	leads map[types.UID]int // number of endpoints of a pod that is not terminating
	left  []types.UID       // pods that may have lost their last endpoint since TakeLeft
}

// NewZone returns an empty zone.
func NewZone() *Zone {
	return &Zone{namespaces: map[string]struct{}{}, services: map[string]*service{},
		clusterIPs: map[netip.Addr][]*service{}, endpoints: map[netip.Addr][]named{},
		pods: map[netip.Addr]map[string]int{}, leads: map[types.UID]int{}}
}

// Leads reports whether a Service's names have endpoints of a pod that is not terminating. A terminating pod does not
// count, even if its addresses are published (publishNotReadyAddresses).
func (z *Zone) Leads(pod types.UID) bool { return z.leads[pod] > 0 }

// TakeLeft returns the pods of which Leads has become false since the last call.
func (z *Zone) TakeLeft() []types.UID {
	out := slices.DeleteFunc(z.left, z.Leads)
	z.left = nil
	return out
}

// service is a Service and its endpoints. Endpoints may arrive before their Service.
type service struct {
	there    bool
	headless bool
	external []byte // wire form of an external name; nil for none
	alias    bool   // of type ExternalName
	ips      []netip.Addr
	ports    []port

	name      []byte // wire labels of <service>.<namespace>.svc
	namespace string // wire label
	slices    []*slice
	v4, v6    []netip.Addr // of all ready endpoints, each once
}

// slice is an EndpointSlice, as far as it is ready.
type slice struct {
	name      string
	endpoints []endpoint
	ports     []port // none: addresses without ports
}

type endpoint struct {
	addr netip.Addr
	// Wire labels of its name (N4.19), without and with the option endpoint_pod_names.
	label, podLabel []byte
	pod             types.UID // "" if it has no pod, or a terminating one
}

type port struct {
	name, protocol string // lower case
	number         uint16
}

// named is an endpoint of a service.
type named struct {
	service *service
	slice   string
	endpoint
}

func key(name, namespace string) string {
	return string(wireLabel(name)) + string(wireLabel(namespace))
}

// SetNamespace adds a namespace.
func (z *Zone) SetNamespace(name string) { z.namespaces[string(wireLabel(name))] = struct{}{} }

// RemoveNamespace removes a namespace.
func (z *Zone) RemoveNamespace(name string) { delete(z.namespaces, string(wireLabel(name))) }

// get returns the service of a name, created if missing.
func (z *Zone) get(name, namespace string) *service {
	k := key(name, namespace)
	s := z.services[k]
	if s == nil {
		s = &service{name: append([]byte(k), "\x03svc"...), namespace: string(wireLabel(namespace))}
		z.services[k] = s
	}
	return s
}

// drop removes a service without Service and endpoints.
func (z *Zone) drop(name, namespace string) {
	if k := key(name, namespace); !z.services[k].there && len(z.services[k].slices) == 0 {
		delete(z.services, k)
	}
}

// SetService adds a Service or replaces it.
func (z *Zone) SetService(in *corev1.Service) {
	s := z.get(in.Name, in.Namespace)
	z.forgetAddresses(s)
	s.there, s.headless, s.external, s.ips, s.ports = true, false, nil, nil, nil
	if s.alias = in.Spec.Type == corev1.ServiceTypeExternalName; s.alias {
		_, err := netip.ParseAddr(in.Spec.ExternalName)
		if name, bad := Wire(in.Spec.ExternalName); err != nil && bad == nil && len(name) > 1 {
			s.external = name
		}
		return
	}
	s.headless = in.Spec.ClusterIP == corev1.ClusterIPNone
	ips := in.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{in.Spec.ClusterIP}
	}
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil {
			s.ips = append(s.ips, ip.Unmap())
			z.clusterIPs[ip.Unmap()] = append(z.clusterIPs[ip.Unmap()], s)
		}
	}
	for i := range in.Spec.Ports {
		p := &in.Spec.Ports[i]
		s.ports = append(s.ports, port{strings.ToLower(p.Name), strings.ToLower(string(p.Protocol)), uint16(p.Port)})
	}
}

func (z *Zone) forgetAddresses(s *service) {
	for _, ip := range s.ips {
		without(z.clusterIPs, ip, func(o *service) bool { return o == s })
	}
}

// without removes the elements of a list in a map, and the list when it is empty.
func without[T any](m map[netip.Addr][]T, k netip.Addr, remove func(T) bool) {
	if list := slices.DeleteFunc(m[k], remove); len(list) > 0 {
		m[k] = list
	} else {
		delete(m, k)
	}
}

// RemoveService removes a Service; its endpoints stay until their slices are removed.
func (z *Zone) RemoveService(name, namespace string) {
	s := z.services[key(name, namespace)]
	if s == nil {
		return
	}
	z.forgetAddresses(s)
	s.there, s.ips, s.ports, s.external = false, nil, nil, nil
	z.drop(name, namespace)
}

// SetSlice adds an EndpointSlice or replaces it. before is what it was, nil for a new one.
func (z *Zone) SetSlice(before, after *discoveryv1.EndpointSlice) {
	if before != nil && of(before) != of(after) {
		z.RemoveSlice(before)
	}
	owner := of(after)
	if owner == "" {
		return
	}
	s := z.get(owner, after.Namespace)
	z.forgetSlice(s, after.Name)
	one := &slice{name: after.Name}
	for i := range after.Ports {
		p := &after.Ports[i]
		var out port
		if p.Name != nil {
			out.name = strings.ToLower(*p.Name)
		}
		if p.Protocol != nil {
			out.protocol = strings.ToLower(string(*p.Protocol))
		}
		if p.Port != nil {
			out.number = uint16(*p.Port)
		}
		one.ports = append(one.ports, out)
	}
	for i := range after.Endpoints {
		e := &after.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready { // N4.18, N1.36
			continue
		}
		for _, text := range e.Addresses {
			if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
				one.endpoints = append(one.endpoints, endpointOf(e, ip.Unmap()))
			}
		}
	}
	one.endpoints = slices.Clip(one.endpoints)
	for _, e := range one.endpoints {
		z.endpoints[e.addr] = append(z.endpoints[e.addr], named{s, one.name, e})
		if e.pod != "" {
			z.leads[e.pod]++
		}
	}
	at, _ := slices.BinarySearchFunc(s.slices, one.name, func(o *slice, n string) int { return cmp.Compare(o.name, n) })
	s.slices = slices.Insert(s.slices, at, one)
	s.collect()
}

func of(s *discoveryv1.EndpointSlice) string { return s.Labels[discoveryv1.LabelServiceName] }

func endpointOf(in *discoveryv1.Endpoint, addr netip.Addr) endpoint {
	e := endpoint{addr: addr}
	if ref := in.TargetRef; ref != nil && ref.Kind == "Pod" && (in.Conditions.Terminating == nil ||
		!*in.Conditions.Terminating) {
		e.pod = ref.UID
	}
	if in.Hostname != nil {
		e.label = wireLabel(*in.Hostname)
		e.podLabel = e.label
	}
	if e.label == nil {
		e.label = wireLabel(dashed(addr))
		e.podLabel = e.label
		if in.TargetRef != nil {
			if l := wireLabel(in.TargetRef.Name); l != nil {
				e.podLabel = l
			}
		}
	}
	return e
}

// RemoveSlice removes an EndpointSlice.
func (z *Zone) RemoveSlice(in *discoveryv1.EndpointSlice) {
	s := z.services[key(of(in), in.Namespace)]
	if s == nil {
		return
	}
	z.forgetSlice(s, in.Name)
	s.collect()
	z.drop(of(in), in.Namespace)
}

func (z *Zone) forgetSlice(s *service, name string) {
	at, ok := slices.BinarySearchFunc(s.slices, name, func(o *slice, n string) int { return cmp.Compare(o.name, n) })
	if !ok {
		return
	}
	seen := map[netip.Addr]struct{}{}
	for _, e := range s.slices[at].endpoints {
		if _, done := seen[e.addr]; !done { // an address may be in a slice many times
			seen[e.addr] = struct{}{}
			without(z.endpoints, e.addr, func(n named) bool { return n.service == s && n.slice == name })
		}
		if e.pod == "" {
			continue
		}
		if z.leads[e.pod]--; z.leads[e.pod] == 0 {
			delete(z.leads, e.pod)
			z.left = append(z.left, e.pod)
		}
	}
	s.slices = slices.Delete(s.slices, at, at+1)
}

// collect lists the addresses of a service.
func (s *service) collect() {
	s.v4, s.v6 = nil, nil
	seen := map[netip.Addr]struct{}{}
	for _, one := range s.slices {
		for _, e := range one.endpoints {
			if _, ok := seen[e.addr]; ok {
				continue
			}
			seen[e.addr] = struct{}{}
			if e.addr.Is4() {
				s.v4 = append(s.v4, e.addr)
			} else {
				s.v6 = append(s.v6, e.addr)
			}
		}
	}
}

// ChangePod records the addresses of a pod; either may be nil. Only the mode `verified` needs it.
func (z *Zone) ChangePod(before, after *corev1.Pod) {
	for _, p := range []*corev1.Pod{before, after} {
		if p == nil || p.DeletionTimestamp != nil || netplan.Ended(p) {
			continue
		}
		for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
			a, err := netip.ParseAddr(netplan.Address(p, family))
			if err != nil {
				continue
			}
			ns, change := string(wireLabel(p.Namespace)), 1
			if p == before {
				change = -1
			}
			if z.pods[a] == nil {
				z.pods[a] = map[string]int{}
			}
			if z.pods[a][ns] += change; z.pods[a][ns] <= 0 {
				delete(z.pods[a], ns)
			}
			if len(z.pods[a]) == 0 {
				delete(z.pods, a)
			}
		}
	}
}
