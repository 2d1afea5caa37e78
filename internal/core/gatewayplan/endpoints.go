package gatewayplan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/httproute"
)

// Endpoint is a destination of requests.
type Endpoint struct {
	Address netip.AddrPort
	Pod     types.UID // empty: no pod
	Ending  bool      // its pod is being deleted
	// Of a pool: the name of the pod, and the index of the port.
	Name string
	Rank int
}

// Endpoints returns those of a port of a Service, in order: the ready ones, or, if none is ready, those that are
// terminating but still serving, as for Services (N2). Hints and weights play no role.
func Endpoints(s *corev1.Service, ref httproute.Ref, all []*discoveryv1.EndpointSlice) []Endpoint {
	port := portOf(s, ref.Port, ref.UDP)
	if port == nil {
		return nil
	}
	var ready, ending []Endpoint
	for _, slice := range all {
		number := slicePort(slice, port.Name, ref.UDP)
		if number == 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue
			}
			out := Endpoint{Address: netip.AddrPortFrom(ip.Unmap(), number)}
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				out.Pod = e.TargetRef.UID
			}
			switch c := e.Conditions; {
			case c.Ready == nil || *c.Ready:
				ready = append(ready, out)
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				out.Ending = true
				ending = append(ending, out)
			}
		}
	}
	if len(ready) == 0 {
		ready = ending
	}
	slices.SortFunc(ready, func(a, b Endpoint) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Pod, b.Pod))
	})
	return slices.CompactFunc(ready, func(a, b Endpoint) bool { return a.Address == b.Address })
}

// portOf returns a port of a Service by number and protocol: TCP and UDP may have the same number.
// nil: there is none.
func portOf(s *corev1.Service, number int32, udp bool) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.Port == number && carries(p.Protocol, udp) {
			return p
		}
	}
	return nil
}

// carries reports whether a protocol is UDP, or TCP, which is the default.
func carries(protocol corev1.Protocol, udp bool) bool {
	if udp {
		return protocol == corev1.ProtocolUDP
	}
	return protocol == corev1.ProtocolTCP || protocol == ""
}

// slicePort returns the number of a named port of a slice; 0: it has none.
func slicePort(s *discoveryv1.EndpointSlice, name string, udp bool) uint16 {
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) &&
			carries(or(p.Protocol, ""), udp) && *p.Port > 0 && *p.Port < 1<<16 {
			return uint16(*p.Port)
		}
	}
	return 0
}
