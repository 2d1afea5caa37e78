// Package endpoints decides where requests to a backend may go: to the endpoints of a port of a Service, or to the pods
// of an InferencePool. It is pure; package gateway calls it whenever slices or pods have changed.
package endpoints

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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

// OfService returns the endpoints of a port of a Service, in order: the ready ones, or, if none is ready, those that
// are terminating but still serving, as for Services (N2). Hints and weights play no role.
func OfService(s *corev1.Service, ref httproute.Ref, all []*discoveryv1.EndpointSlice) []Endpoint {
	port := PortOf(s, ref.Port, ref.UDP)
	if port == nil {
		return nil
	}
	count := 0
	for _, slice := range all {
		count += len(slice.Endpoints)
	}
	ready, ending := make([]Endpoint, 0, count), []Endpoint(nil)
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
	return ordered(ready)
}

// OfPool returns the endpoints of a pool of a namespace, in order: each port of each pod that its selector matches and
// that is ready. A pod that is being deleted is not an endpoint.
func OfPool(namespace string, selector map[string]string, ports []int32, pods []*corev1.Pod) []Endpoint {
	var out []Endpoint
	for _, pod := range pods {
		ip, ok := AddressOf(pod)
		if !ok || !Selects(selector, pod.Labels) || pod.Namespace != namespace {
			continue
		}
		for rank, port := range ports {
			if port > 0 && port < 1<<16 {
				out = append(out, Endpoint{Address: netip.AddrPortFrom(ip, uint16(port)), Pod: pod.UID,
					Name: pod.Name, Rank: rank})
			}
		}
	}
	return ordered(out)
}

// AddressOf returns the address of a pod; false if the pod must not get requests.
func AddressOf(pod *corev1.Pod) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	return ip.Unmap(), err == nil && ready && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning
}

// Selects reports whether a pod has all labels of a selector. An empty selector selects nothing.
func Selects(selector, of map[string]string) bool {
	if len(selector) == 0 {
		return false
	}
	for k, v := range selector { // any order: all must match
		if have, ok := of[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// ordered sorts endpoints, and leaves one of each address. It moves small keys, not endpoints: there may be thousands.
func ordered(all []Endpoint) []Endpoint {
	if keys, ok := plainKeys(all); ok {
		slices.Sort(keys)
		return distinct(all, keys)
	}
	type key struct {
		address netip.AddrPort
		at      int32
	}
	keys := make([]key, len(all))
	for i := range all {
		keys[i] = key{all[i].Address, int32(i)}
	}
	slices.SortFunc(keys, func(a, b key) int {
		if c := a.address.Compare(b.address); c != 0 {
			return c
		}
		return cmp.Compare(all[a.at].Pod, all[b.at].Pod)
	})
	out := make([]Endpoint, 0, len(all))
	for _, k := range keys {
		if n := len(out); n == 0 || out[n-1].Address != all[k.at].Address {
			out = append(out, all[k.at])
		}
	}
	return out
}

// plainKeys are address, port, and index of each endpoint in one number; false: there are others than those of IPv4, or
// more than an index of 16 bits has.
func plainKeys(all []Endpoint) (keys []uint64, ok bool) {
	if len(all) > 1<<16 {
		return nil, false
	}
	keys = make([]uint64, len(all))
	for i := range all {
		a := all[i].Address
		if !a.Addr().Is4() {
			return nil, false
		}
		four := a.Addr().As4()
		keys[i] = uint64(binary.BigEndian.Uint32(four[:]))<<32 | uint64(a.Port())<<16 | uint64(i)
	}
	return keys, true
}

// distinct returns the endpoints in the order of their keys, and of those with the same address the one of the first
// pod.
func distinct(all []Endpoint, keys []uint64) []Endpoint {
	out := make([]Endpoint, 0, len(all))
	for i, k := range keys {
		e := &all[k&0xffff]
		if i == 0 || keys[i-1]>>16 != k>>16 {
			out = append(out, *e)
		} else if last := &out[len(out)-1]; e.Pod < last.Pod {
			*last = *e
		}
	}
	return out
}

// PortOf returns a port of a Service by number and protocol: TCP and UDP may have the same number.
// nil: there is none.
func PortOf(s *corev1.Service, number int32, udp bool) *corev1.ServicePort {
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
		if p.Port != nil && ptr.Deref(p.Name, "") == name && carries(ptr.Deref(p.Protocol, ""), udp) &&
			*p.Port > 0 && *p.Port < 1<<16 {
			return uint16(*p.Port)
		}
	}
	return 0
}
