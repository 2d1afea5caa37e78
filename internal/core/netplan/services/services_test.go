package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// world makes random Services that conflict with each other.
type world struct {
	*rand.Rand
	objects map[types.NamespacedName]Input
	clock   int64
}

func one[T any](w *world, list ...T) T { return list[w.IntN(len(list))] }

func (w *world) maybe(percent int) bool { return w.IntN(100) < percent }

var (
	clusterIPs4 = []string{"10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.96.0.5", "10.96.0.6", "10.96.0.7"}
	outside4    = []string{"192.0.2.10", "192.0.2.11", "10.96.0.2",
		"203.0.113.5"} // one is a cluster IP, one the node's
)

func (w *world) node() Node {
	n := Node{Name: "here", Zone: one(w, "", "z1", "z2"), Pods: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"),
		netip.MustParsePrefix("fd00:88::/64")}, Own: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:82")},
		OwnUDP:    []netip.AddrPort{netip.MustParseAddrPort("[::]:81"), netip.MustParseAddrPort("203.0.113.5:80")},
		Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8::5")}}
	if w.maybe(30) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr("203.0.113.6"), netip.MustParseAddr("127.0.0.1"))
	}
	return n
}

func (w *world) service(name types.NamespacedName) *corev1.Service {
	w.clock++
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
		CreationTimestamp: metav1.NewTime(time.Unix(w.clock/3, 0))}}
	s.Spec.ClusterIP = one(w, clusterIPs4...)
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	if w.maybe(50) {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, fmt.Sprintf("fd00:96::%d", 1+w.IntN(5)))
	}
	s.Spec.Type = one(w, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	for i := range 1 + w.IntN(2) {
		p := corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + w.IntN(3)),
			Protocol: one(w, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)}
		if slices.ContainsFunc(s.Spec.Ports, func(q corev1.ServicePort) bool {
			return q.Port == p.Port && q.Protocol == p.Protocol
		}) {
			continue
		}
		if s.Spec.Type != corev1.ServiceTypeClusterIP && w.maybe(90) {
			p.NodePort = int32(80 + w.IntN(6))
			if slices.ContainsFunc(s.Spec.Ports, func(q corev1.ServicePort) bool {
				return q.NodePort == p.NodePort && q.Protocol == p.Protocol
			}) {
				p.NodePort = 0
			}
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	if w.maybe(30) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, one(w, outside4...))
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		in := corev1.LoadBalancerIngress{IP: one(w, append(outside4, "2001:db8::77")...)}
		if w.maybe(30) {
			in.IPMode = new(one(w, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy))
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in,
			corev1.LoadBalancerIngress{Hostname: "lb.example"})
		if w.maybe(40) {
			s.Spec.LoadBalancerSourceRanges = []string{one(w, " 198.51.100.0/24", "203.0.113.0/28", "0.0.0.0/0",
				"fd00::/8")}
			if w.maybe(40) {
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, "10.88.0.0/17 ")
			}
		}
	}
	if w.maybe(30) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if w.maybe(40) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if w.maybe(30) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
			TimeoutSeconds: new(one[int32](w, 5, 10800))}}
	}
	switch w.IntN(20) {
	case 0:
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	case 1:
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
	case 2:
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
	}
	return s
}

func (w *world) slice(name types.NamespacedName, i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace,
		Name: fmt.Sprint(name.Name, "-", i)},
		AddressType: one(w, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)}
	if w.maybe(5) {
		s.Labels = map[string]string{"service.kubernetes.io/headless": ""}
	}
	for i := range 2 {
		for _, proto := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			if w.maybe(80) {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Protocol: &proto,
					Port: new(int32(8080 + w.IntN(2)))})
			}
		}
	}
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("p0"), Protocol: new(corev1.ProtocolTCP)})
	hints := w.maybe(40)
	for range w.IntN(5) {
		format := map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.88.0.%d",
			discoveryv1.AddressTypeIPv6: "fd00:88::%d"}[s.AddressType]
		n := 1 + w.IntN(6)
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, n)}, NodeName: new(one(w, "here", "there"))}
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", UID: types.UID(fmt.Sprint("pod", n))}
		if w.maybe(80) {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(w.maybe(60)), Serving: new(w.maybe(70)),
				Terminating: new(w.maybe(40))}
		}
		if hints {
			e.Hints = &discoveryv1.EndpointHints{}
			if w.maybe(90) {
				e.Hints.ForZones = []discoveryv1.ForZone{{Name: one(w, "z1", "z2")}}
			}
			if w.maybe(70) {
				e.Hints.ForNodes = []discoveryv1.ForNode{{Name: one(w, "here", "there")}}
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// change changes some Services, and returns them as they are now.
func (w *world) change() []Input {
	var out []Input
	for range 1 + w.IntN(3) {
		name := types.NamespacedName{Namespace: one(w, "a", "b"), Name: one(w, "s", "t", "u", "v")}
		in, have := w.objects[name]
		in.Name = name
		switch {
		case have && w.maybe(20):
			in.Service = nil
			if w.maybe(50) {
				in.Slices = nil
			}
		case in.Service == nil || w.maybe(30):
			in.Service = w.service(name)
		default:
			in.Slices = slices.Clone(in.Slices)
			if i := w.IntN(3); i < len(in.Slices) {
				in.Slices[i] = w.slice(name, i)
			} else {
				in.Slices = append(in.Slices, w.slice(name, len(in.Slices)))
			}
		}
		w.objects[name] = in
		out = slices.DeleteFunc(out, func(i Input) bool { return i.Name == name })
		out = append(out, in)
	}
	return out
}

func (w *world) packet(v6 bool) Packet {
	p := Packet{To: Port{Proto: one(w, TCP, UDP, SCTP), Port: uint16(80 + w.IntN(7))}}
	if v6 {
		p.To.Addr = netip.MustParseAddr(one(w, "fd00:96::1", "fd00:96::2", "fd00:96::3", "2001:db8::5", "2001:db8::77"))
		p.Source = netip.MustParseAddr(one(w, "fd00:88::1", "2001:db8:1::1"))
	} else {
		p.To.Addr = netip.MustParseAddr(one(w, slices.Concat(clusterIPs4, outside4, []string{"203.0.113.6",
			"192.0.2.99"})...))
		p.Source = netip.MustParseAddr(one(w, "10.88.0.1", "10.88.200.9", "198.51.100.7", "203.0.113.9", "192.0.2.10"))
	}
	if w.maybe(20) {
		p.FromNode, p.Source = true, netip.MustParseAddr("203.0.113.5")
		if v6 {
			p.Source = netip.MustParseAddr("2001:db8::5")
		}
	}
	return p
}

// gathered returns a state's elements as a table.
func gathered(t *testing.T, s *State) *Table {
	t.Helper()
	out := NewTable()
	for e := range s.Elements() {
		if _, twice := out[e.Set][e.Key]; twice {
			t.Fatalf("%s has %+v twice", e.Set, e.Key)
		}
		out[e.Set][e.Key] = e
	}
	return out
}

// unordered replaces the indexes of endpoints, which depend on earlier states, by the sets of
// endpoints of each list; it checks that they count from 0.
func unordered(t *testing.T, tab *Table) (rest [Sets]map[Key]Element, lists map[uint32][]netip.AddrPort) {
	t.Helper()
	rest, lists = *tab, map[uint32][]netip.AddrPort{}
	rest[Endpoints], rest[Slots] = nil, nil
	for k, e := range tab[Endpoints] {
		lists[k.ID] = append(lists[k.ID], e.To)
	}
	for k, e := range tab[Slots] {
		lists[k.ID] = append(lists[k.ID], tab[Members][Key{ID: e.Member}].To)
	}
	for l, all := range lists {
		for i := range all {
			_, ok := tab[Endpoints][Key{ID: l, Index: uint32(i)}]
			_, slot := tab[Slots][Key{ID: l, Index: uint32(i)}]
			if ok == slot {
				t.Errorf("list %v has %d endpoints and none at %d", l, len(all), i)
			}
		}
		slices.SortFunc(all, netip.AddrPort.Compare)
		if len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Errorf("list %v has an endpoint twice: %v", l, all)
		}
	}
	return rest, lists
}

// After each of 10,000 random changes of Services and endpoints, the differences, applied one after
// the other, give the table that is computed anew, and packets go to the destinations of the N2
// clauses.
func TestChangesAndPackets(t *testing.T) {
	for seed := range uint64(40) {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), objects: map[types.NamespacedName]Input{}}
		for _, v6 := range []bool{false, true} {
			clear(w.objects)
			n := w.node()
			s := New(v6, n)
			tab := gathered(t, s)
			classes := map[Class]bool{}
			for _, c := range s.Classes() {
				classes[c] = true // those that always exist
			}
			always := maps.Clone(classes)
			for step := range 125 {
				var changes []Change
				if step%30 == 29 {
					n = w.node()
					changes = append(changes, s.SetNode(n), s.Update(slices.Collect(maps.Values(w.objects))))
				} else {
					changes = append(changes, s.Update(w.change()))
				}
				for _, c := range changes {
					if !tab.Apply(c) {
						t.Fatalf("seed %d step %d: the kernel refuses %+v", seed, step, c)
					}
					note(t, classes, c.NewClasses, c.OldClasses)
				}
				fresh := New(v6, n)
				fresh.Update(slices.Collect(maps.Values(w.objects)))
				rest, lists := unordered(t, tab)
				wantRest, wantLists := unordered(t, gathered(t, fresh))
				for i := range rest {
					if !maps.Equal(rest[i], wantRest[i]) {
						t.Fatalf("seed %d step %d: %s\n%v\nfresh\n%v", seed, step, Set(i), rest[i], wantRest[i])
					}
				}
				if !maps.EqualFunc(lists, wantLists, slices.Equal) {
					t.Fatalf("seed %d step %d: lists\n%v\nfresh\n%v", seed, step, lists, wantLists)
				}
				if own := gathered(t, s); !sameTables(own, tab) {
					t.Fatalf("seed %d step %d: its elements are not the applied ones", seed, step)
				}
				used := maps.Clone(always)
				for _, set := range []Set{Dispatch, Inside} {
					for _, e := range tab[set] {
						used[e.Target.Class] = true
					}
				}
				if !maps.Equal(used, classes) {
					t.Fatalf("seed %d step %d: classes %v, used %v", seed, step, classes, used)
				}
				sameUses(t, s, fresh)
				objects := slices.Collect(maps.Values(w.objects))
				for range 40 {
					p := w.packet(v6)
					got, want := tab.Decide(s.Node(), p), model(s.Node(), objects, p)
					slices.SortFunc(got.List, netip.AddrPort.Compare)
					slices.SortFunc(want.List, netip.AddrPort.Compare)
					if got.Outcome != want.Outcome || got.Outcome == Forward &&
						(!slices.Equal(got.List, want.List) || got.Timeout != want.Timeout ||
							got.Masquerade != want.Masquerade) {
						t.Fatalf("seed %d step %d: %+v\nis   %+v\nwant %+v", seed, step, p, got, want)
					}
				}
			}
		}
	}
}

func sameTables(a, b *Table) bool {
	for i := range a {
		if !maps.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func note[K comparable](t *testing.T, have map[K]bool, come, gone []K) {
	t.Helper()
	for _, k := range come {
		if have[k] {
			t.Errorf("%v comes twice", k)
		}
		have[k] = true
	}
	for _, k := range gone {
		if !have[k] {
			t.Errorf("%v is deleted but does not exist", k)
		}
		delete(have, k)
	}
}

// The results for pods do not depend on earlier states, either.
func sameUses(t *testing.T, s, fresh *State) {
	t.Helper()
	for i := range 7 {
		pod := types.UID(fmt.Sprint("pod", i))
		if s.UseOf(pod) != fresh.UseOf(pod) {
			t.Errorf("%s: %v, fresh %v", pod, s.UseOf(pod), fresh.UseOf(pod))
		}
	}
	if s.total != fresh.total {
		t.Errorf("totals %+v, fresh %+v", s.total, fresh.total)
	}
	if len(s.pods) != len(fresh.pods) || len(s.hairpin) != len(fresh.hairpin) || len(s.lists) != len(fresh.lists) ||
		len(s.ids.taken) != len(fresh.ids.taken) || len(s.members.taken) != len(fresh.members.taken) ||
		len(s.ports) != len(fresh.ports) || len(s.owners) != len(fresh.owners) {
		t.Error("unused entries are kept")
	}
}
