// Package mirror plans the EndpointSlices with the same content as an Endpoints object that a user
// manages. internal/controllers/endpointslicemirroring writes them. It must never look at a clock
// or at the API.
//
// Contract: N1.I in docs/spec/network.md.
package mirror

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/netplan"
)

// ManagedBy is the value of the managed-by label on slices that this plan makes.
const ManagedBy = "endpointslicemirroring-controller.k8s.io"

// Max is how many addresses of a subset are mirrored (N1.41).
const Max = 1000

const leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"

// Mirrors reports whether an Endpoints object is mirrored (N1.38); either may be nil.
func Mirrors(e *corev1.Endpoints, s *corev1.Service) bool {
	if e == nil || s == nil || e.DeletionTimestamp != nil || len(s.Spec.Selector) > 0 {
		return false
	}
	_, leader := e.Annotations[leaderAnnotation]
	return !leader && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// Plan is what to write, in this order. Updates carry the resource version that they were
// planned on.
type Plan struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice

	Invalid int // addresses that cannot be parsed
	Skipped int // addresses that are not mirrored, including the invalid ones
}

// group is the content of one slice.
type group struct {
	family    discoveryv1.AddressType
	ports     []corev1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// Decide returns the plan for an object that is mirrored. existing are the slices of its name with
// the label ManagedBy; nothing in the input is changed.
func Decide(e *corev1.Endpoints, existing []*discoveryv1.EndpointSlice) Plan {
	var out Plan
	groups, order := map[string]*group{}, []string{}
	for _, s := range repack(e.Subsets) {
		room := Max
		add := func(a *corev1.EndpointAddress, ready bool) {
			ip, ok := netplan.ParseIP(a.IP)
			switch {
			case room == 0:
				out.Skipped++
				return
			case !ok:
				out.Invalid, out.Skipped = out.Invalid+1, out.Skipped+1
				return
			}
			room--
			family := discoveryv1.AddressTypeIPv4
			if ip.Is6() {
				family = discoveryv1.AddressTypeIPv6
			}
			key := string(family) + " " + portsKey(s.Ports)
			if groups[key] == nil {
				groups[key] = &group{family: family, ports: s.Ports}
				order = append(order, key)
			}
			groups[key].endpoints = append(groups[key].endpoints, endpoint(a, ip, ready))
		}
		for i := range s.Addresses {
			add(&s.Addresses[i], true)
		}
		for i := range s.NotReadyAddresses {
			add(&s.NotReadyAddresses[i], false)
		}
	}
	sorted := slices.SortedFunc(slices.Values(existing),
		func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	var left []*discoveryv1.EndpointSlice
	used := map[string]bool{}
	for _, s := range sorted {
		key := string(s.AddressType) + " " + slicePortsKey(s.Ports)
		g := groups[key]
		if g == nil || used[key] {
			left = append(left, s)
			continue
		}
		used[key] = true
		if wanted := g.slice(e, s); !equal(s, wanted) {
			out.Update = append(out.Update, wanted)
		}
	}
	for _, key := range order {
		if used[key] {
			continue
		}
		g := groups[key]
		i := slices.IndexFunc(left, func(s *discoveryv1.EndpointSlice) bool { return s.AddressType == g.family })
		if i < 0 {
			out.Create = append(out.Create, g.slice(e, nil))
			continue
		}
		out.Update = append(out.Update, g.slice(e, left[i]))
		left = slices.Delete(left, i, i+1)
	}
	out.Delete = left
	return out
}

func endpoint(a *corev1.EndpointAddress, ip netip.Addr, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: a.TargetRef, NodeName: a.NodeName}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e
}

// slice returns the slice of a group; stored is what it replaces, nil for a new one.
func (g *group) slice(e *corev1.Endpoints, stored *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, GenerateName: e.Name + "-"}, AddressType: g.family}
	if stored != nil {
		s = stored.DeepCopy()
	}
	s.Labels = map[string]string{}
	maps.Copy(s.Labels, e.Labels)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, ManagedBy
	s.Annotations = nil
	for k, v := range e.Annotations { // any order: a map becomes a map
		if k == corev1.EndpointsLastChangeTriggerTime || k == corev1.LastAppliedConfigAnnotation {
			continue
		}
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[k] = v
	}
	s.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))}
	s.Ports = nil
	for _, p := range g.ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol,
			AppProtocol: p.AppProtocol})
	}
	s.Endpoints = g.endpoints
	return s
}

func equal(a, b *discoveryv1.EndpointSlice) bool {
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports)
}

// repack groups the addresses that have the same ports, each address once. One that is both ready
// and not ready is not ready. All is sorted, so that the order in the object does not matter.
func repack(in []corev1.EndpointSubset) []corev1.EndpointSubset {
	type target struct{ ip, uid string }
	type state struct {
		address corev1.EndpointAddress
		ready   bool
		ports   map[string]corev1.EndpointPort
	}
	// An address may be ready for one port and not for another: both are kept.
	byPort := map[string]map[target]*state{}
	ports := map[string]corev1.EndpointPort{}
	for _, s := range in {
		list := s.Ports
		if len(list) == 0 {
			list = []corev1.EndpointPort{{Port: -1}}
		}
		for _, p := range list {
			key := netplan.PortKey(&p)
			ports[key] = p
			if byPort[key] == nil {
				byPort[key] = map[target]*state{}
			}
			add := func(a corev1.EndpointAddress, ready bool) {
				t := target{ip: a.IP}
				if a.TargetRef != nil {
					t.uid = string(a.TargetRef.UID)
				}
				if old := byPort[key][t]; old == nil {
					byPort[key][t] = &state{address: a, ready: ready}
				} else {
					old.ready = old.ready && ready
				}
			}
			for _, a := range s.Addresses {
				add(a, true)
			}
			for _, a := range s.NotReadyAddresses {
				add(a, false)
			}
		}
	}
	type entry struct {
		target
		ready bool
	}
	all := map[entry]*state{}
	for _, key := range slices.Sorted(maps.Keys(byPort)) {
		for t, st := range byPort[key] { // any order: each target by itself
			e := entry{t, st.ready}
			if all[e] == nil {
				all[e] = &state{address: st.address, ready: st.ready, ports: map[string]corev1.EndpointPort{}}
			}
			all[e].ports[key] = ports[key]
		}
	}
	out := map[string]*corev1.EndpointSubset{}
	for _, st := range all { // any order: the lists are sorted below
		keys := slices.Sorted(maps.Keys(st.ports))
		id := strings.Join(keys, ";")
		if out[id] == nil {
			out[id] = &corev1.EndpointSubset{}
			for _, k := range keys {
				if p := st.ports[k]; p.Port >= 0 {
					out[id].Ports = append(out[id].Ports, p)
				}
			}
		}
		if st.ready {
			out[id].Addresses = append(out[id].Addresses, st.address)
		} else {
			out[id].NotReadyAddresses = append(out[id].NotReadyAddresses, st.address)
		}
	}
	var list []corev1.EndpointSubset
	for _, id := range slices.Sorted(maps.Keys(out)) {
		slices.SortFunc(out[id].Addresses, compare)
		slices.SortFunc(out[id].NotReadyAddresses, compare)
		list = append(list, *out[id])
	}
	return list
}

func compare(a, b corev1.EndpointAddress) int {
	uid := func(a corev1.EndpointAddress) string {
		if a.TargetRef == nil {
			return ""
		}
		return string(a.TargetRef.UID)
	}
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(uid(a), uid(b)))
}

func portsKey(ports []corev1.EndpointPort) string {
	all := make([]string, len(ports))
	for i := range ports {
		all[i] = netplan.PortKey(&ports[i])
	}
	slices.Sort(all)
	return strings.Join(all, ";")
}

func slicePortsKey(ports []discoveryv1.EndpointPort) string {
	all := make([]corev1.EndpointPort, len(ports))
	for i, p := range ports {
		if p.Name != nil {
			all[i].Name = *p.Name
		}
		if p.Protocol != nil {
			all[i].Protocol = *p.Protocol
		}
		if p.Port != nil {
			all[i].Port = *p.Port
		}
		all[i].AppProtocol = p.AppProtocol
	}
	return portsKey(all)
}
