package gatewayplan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Endpoint is where a request can be sent.
type Endpoint struct {
	Address netip.AddrPort
	Pod     types.UID // empty: no pod
	Ending  bool      // its pod is being deleted
	// Of a pool: the name of the pod, and the index of the port.
	Name string
	Rank int
}

// Endpoints returns those of a port of a Service, in order: the ready ones, or, if there is none, those that still
// serve while they end, as Services do (N2). Hints and weights play no role.
func Endpoints(s *corev1.Service, port int32, all []*discoveryv1.EndpointSlice) []Endpoint {
	at := slices.IndexFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if at < 0 {
		return nil
	}
	name := s.Spec.Ports[at].Name
	var ready, ending []Endpoint
	for _, slice := range all {
		number := slicePort(slice, name)
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

// slicePort is the number of a named port of a slice; 0: it has none.
func slicePort(s *discoveryv1.EndpointSlice, name string) uint16 {
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) &&
			(p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) && *p.Port > 0 && *p.Port < 1<<16 {
			return uint16(*p.Port)
		}
	}
	return 0
}
