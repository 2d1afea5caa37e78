package policies_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan/policies"
)

// world has policies, namespaces and pods in the form of the API.
type world struct {
	policies   map[string]*networkingv1.NetworkPolicy
	namespaces map[string]map[string]string
	pods       map[string]policies.Pod
}

// allowed is a naive implementation of the N clauses: no tables, no sets, no order.
func (w *world) allowed(p policies.Packet) bool {
	return p.Src == p.Dst && (w.isolated(policies.Egress, p.Src) || w.isolated(policies.Ingress, p.Dst)) || // N5.16
		w.side(policies.Egress, p.Src, p.Dst, p) && w.side(policies.Ingress, p.Dst, p.Src, p) // N5.4
}

func (w *world) isolated(d policies.Direction, at netip.Addr) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(w.pods)), func(pod policies.Pod) bool {
		return len(w.selecting(d, pod, at)) > 0
	})
}

// selecting returns the policies that isolate a pod of this node at an address (N5.1 to N5.3).
func (w *world) selecting(d policies.Direction, pod policies.Pod, at netip.Addr) []*networkingv1.NetworkPolicy {
	var list []*networkingv1.NetworkPolicy
	if !pod.Here || pod.HostNetwork || !slices.Contains(pod.Addresses, at) {
		return nil
	}
	for _, np := range w.policies {
		if np.Namespace == pod.Namespace && fits(&np.Spec.PodSelector, pod.Labels) && has(np, d) {
			list = append(list, np)
		}
	}
	return list
}

func has(np *networkingv1.NetworkPolicy, d policies.Direction) bool {
	if len(np.Spec.PolicyTypes) == 0 { // N5.2
		return d == policies.Ingress || len(np.Spec.Egress) > 0
	}
	return slices.Contains(np.Spec.PolicyTypes, networkingv1.PolicyType(d.String()))
}

func fits(s *metav1.LabelSelector, l map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := l[k]; !ok || got != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		v, there := l[e.Key]
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			if !there || !slices.Contains(e.Values, v) {
				return false
			}
		case metav1.LabelSelectorOpNotIn:
			if there && slices.Contains(e.Values, v) {
				return false
			}
		case metav1.LabelSelectorOpExists:
			if !there {
				return false
			}
		case metav1.LabelSelectorOpDoesNotExist:
			if there {
				return false
			}
		}
	}
	return true
}

func (w *world) side(d policies.Direction, at, peer netip.Addr, p policies.Packet) bool {
	for _, pod := range w.pods {
		list := w.selecting(d, pod, at)
		if len(list) == 0 {
			continue
		}
		return slices.ContainsFunc(list, func(np *networkingv1.NetworkPolicy) bool {
			if d == policies.Ingress {
				return slices.ContainsFunc(np.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
					return w.peers(np.Namespace, r.From, peer) && w.ports(r.Ports, p)
				})
			}
			return slices.ContainsFunc(np.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
				return w.peers(np.Namespace, r.To, peer) && w.ports(r.Ports, p)
			})
		})
	}
	return true
}

func (w *world) peers(namespace string, peers []networkingv1.NetworkPolicyPeer, at netip.Addr) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return within(p.IPBlock.CIDR, at) &&
				!slices.ContainsFunc(p.IPBlock.Except, func(e string) bool { return within(e, at) })
		}
		for _, pod := range w.pods {
			l, known := w.namespaces[pod.Namespace]
			switch {
			case pod.HostNetwork, pod.Gone, !slices.Contains(pod.Addresses, at), // N5.8, N5.17, N5.25
				p.NamespaceSelector == nil && pod.Namespace != namespace,
				p.NamespaceSelector != nil && (!known || !fits(p.NamespaceSelector, l)),
				p.PodSelector != nil && !fits(p.PodSelector, pod.Labels):
				continue
			}
			return true
		}
		return false
	})
}

func within(cidr string, at netip.Addr) bool {
	p := netip.MustParsePrefix(cidr)
	return p.Contains(at)
}

var numbers = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

func (w *world) ports(ports []networkingv1.NetworkPolicyPort, p policies.Packet) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(port networkingv1.NetworkPolicyPort) bool {
		proto := uint8(6)
		if port.Protocol != nil {
			proto = numbers[*port.Protocol]
		}
		switch {
		case proto != p.Protocol:
			return false
		case port.Port == nil:
			return true
		case port.Port.Type == intstr.Int:
			from, to := port.Port.IntVal, port.Port.IntVal
			if port.EndPort != nil {
				to = *port.EndPort
			}
			return from <= int32(p.Port) && int32(p.Port) <= to
		}
		for _, pod := range w.pods { // N5.11
			if pod.Gone || pod.HostNetwork || !slices.Contains(pod.Addresses, p.Dst) {
				continue
			}
			if slices.Contains(pod.Ports, policies.Port{Name: port.Port.StrVal, Protocol: proto, Port: p.Port}) {
				return true
			}
		}
		return false
	})
}

// dice makes random worlds. It uses few names, labels and addresses, so that they collide often.
type dice struct{ *rand.Rand }

func (d dice) pick(n int) int { return d.IntN(n) }

func one[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

func (d dice) labels() map[string]string {
	l := map[string]string{}
	for _, k := range []string{"app", "tier", "env"} {
		if d.pick(2) == 0 {
			l[k] = one(d, "a", "b", "c", "")
		}
	}
	return l
}

func (d dice) selector() metav1.LabelSelector {
	var s metav1.LabelSelector
	if d.pick(4) == 0 {
		return s
	}
	if d.pick(2) == 0 {
		s.MatchLabels = map[string]string{one(d, "app", "tier"): one(d, "a", "b", "")}
	}
	if d.pick(2) == 0 {
		e := metav1.LabelSelectorRequirement{Key: one(d, "app", "tier", "env"),
			Operator: one(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists,
				metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = one(d, []string{"a"}, []string{"a", "b"}, []string{"", "c"})
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

var blocks = []struct {
	cidr   string
	except []string
}{
	{"10.0.0.0/24", nil}, {"10.0.0.0/28", []string{"10.0.0.4/30"}},
	{"10.0.0.8/29", []string{"10.0.0.8/30", "10.0.0.9/32"}},
	{"0.0.0.0/0", []string{"10.0.0.0/30", "192.0.2.0/25"}}, {"10.0.0.7/32", nil}, {"192.0.2.0/24", nil},
	{"255.255.255.248/29", []string{"255.255.255.255/32"}}, {"fd00::/64", []string{"fd00::4/126"}}, {"::/0", nil},
	{"fd00::8/125", []string{"fd00::8/125"}}, {"10.0.0.0/29", []string{"10.0.0.0/29"}},
}

func (d dice) peers() []networkingv1.NetworkPolicyPeer {
	var list []networkingv1.NetworkPolicyPeer
	for range d.pick(4) {
		var p networkingv1.NetworkPolicyPeer
		switch d.pick(4) {
		case 0:
			b := blocks[d.pick(len(blocks))]
			p.IPBlock = &networkingv1.IPBlock{CIDR: b.cidr, Except: b.except}
		case 1:
			s := d.selector()
			p.PodSelector = &s
		case 2:
			s := d.selector()
			p.NamespaceSelector = &s
		case 3:
			s, n := d.selector(), d.selector()
			p.PodSelector, p.NamespaceSelector = &s, &n
		}
		list = append(list, p)
	}
	return list
}

func (d dice) ports() []networkingv1.NetworkPolicyPort {
	var list []networkingv1.NetworkPolicyPort
	for range d.pick(4) {
		var p networkingv1.NetworkPolicyPort
		if d.pick(3) > 0 {
			proto := one(d, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
			p.Protocol = &proto
		}
		switch d.pick(4) {
		case 0:
		case 1:
			n := intstr.FromString(one(d, "web", "dns", "nobody"))
			p.Port = &n
		default:
			n := intstr.FromInt32(one[int32](d, 53, 80, 81, 65535, 1))
			p.Port = &n
			if d.pick(2) == 0 {
				end := one(d, n.IntVal, n.IntVal+1, 65535)
				end = min(end, 65535)
				p.EndPort = &end
			}
		}
		list = append(list, p)
	}
	return list
}

func (d dice) policy(namespace, name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	np.Spec.PodSelector = d.selector()
	for range d.pick(3) {
		np.Spec.Ingress = append(np.Spec.Ingress,
			networkingv1.NetworkPolicyIngressRule{From: d.peers(), Ports: d.ports()})
	}
	for range d.pick(3) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: d.peers(), Ports: d.ports()})
	}
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	np.Spec.PolicyTypes = one(d, nil, nil, []networkingv1.PolicyType{in}, []networkingv1.PolicyType{out},
		[]networkingv1.PolicyType{in, out})
	return np
}

const places = 16

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func address6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)) }

// pod makes the pod of a number; those of this node have addresses that no other pod has.
func (d dice) pod(i int) policies.Pod {
	p := policies.Pod{UID: fmt.Sprint("uid", i), Namespace: one(d, "x", "y", "z"), Name: fmt.Sprint("pod", i),
		Labels: d.labels(), Here: i < places/2, HostNetwork: d.pick(12) == 0, Gone: d.pick(8) == 0}
	at := i
	if !p.Here && d.pick(3) == 0 {
		at = places/2 + d.pick(places/2) // two pods may claim one address for a while
	}
	if d.pick(6) > 0 {
		p.Addresses = append(p.Addresses, address(at))
		if d.pick(2) == 0 {
			p.Addresses = append(p.Addresses, address6(at))
		}
	}
	for range d.pick(3) {
		p.Ports = append(p.Ports, policies.Port{Name: one(d, "web", "dns"), Protocol: one(d, uint8(6), 17, 132),
			Port: one(d, uint16(53), 80, 8080)})
	}
	return p
}

func (d dice) packet() policies.Packet {
	p := policies.Packet{Protocol: one(d, uint8(6), 6, 17, 132, 1)}
	if p.Protocol != 1 {
		p.Port = one(d, uint16(53), 80, 81, 82, 8080, 65535, 1)
	}
	if d.pick(3) == 0 {
		p.Src, p.Dst = address6(d.pick(places)), address6(d.pick(places))
		return p
	}
	p.Src, p.Dst = address(d.pick(places)), address(d.pick(places))
	far := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.200"),
		netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("255.255.255.250")}
	if d.pick(4) == 0 {
		p.Src = one(d, far...)
	}
	if d.pick(4) == 0 {
		p.Dst = one(d, far...)
	}
	return p
}

// change changes the world and the plan in the same way.
func (d dice) change(w *world, p *policies.Plan) error {
	switch d.pick(10) {
	case 0, 1:
		np := d.policy(one(d, "x", "y", "z"), fmt.Sprint("np", d.pick(5)))
		w.policies[np.Namespace+"/"+np.Name] = np
		return p.SetPolicy(np)
	case 2:
		ns, name := one(d, "x", "y", "z"), fmt.Sprint("np", d.pick(5))
		delete(w.policies, ns+"/"+name)
		p.DeletePolicy(ns, name)
	case 3:
		ns := one(d, "x", "y", "z")
		w.namespaces[ns] = d.labels()
		p.SetNamespace(ns, w.namespaces[ns])
	case 4:
		if ns := one(d, "x", "y", "z"); d.pick(4) == 0 {
			delete(w.namespaces, ns)
			p.DeleteNamespace(ns)
		}
	case 5:
		uid := fmt.Sprint("uid", d.pick(places))
		delete(w.pods, uid)
		p.DeletePod(uid)
	case 6, 7: // only a part of a pod changes
		uid := fmt.Sprint("uid", d.pick(places))
		pod, ok := w.pods[uid]
		if !ok {
			return nil
		}
		other := d.pod(0)
		switch d.pick(4) {
		case 0:
			pod.Labels = other.Labels
		case 1:
			pod.Gone = !pod.Gone
		case 2:
			pod.Ports = other.Ports
		case 3:
			pod.Addresses = nil
		}
		w.pods[uid] = pod
		p.SetPod(pod)
	default:
		pod := d.pod(d.pick(places))
		if old, ok := w.pods[pod.UID]; ok {
			pod.Namespace, pod.HostNetwork = old.Namespace, old.HostNetwork
		}
		w.pods[pod.UID] = pod
		p.SetPod(pod)
	}
	return nil
}

func (w *world) compute() policies.Table {
	return policies.Compute(slices.Collect(maps.Values(w.policies)), w.namespaces, slices.Collect(maps.Values(w.pods)))
}
