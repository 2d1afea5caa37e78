// Package endpoints plans the Endpoints object of a Service with a selector, the older form of its
// endpoints. internal/controllers/endpoints writes it. It must never look at a clock or at the API.
//
// Contract: N1.J in docs/spec/network.md.
package endpoints

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/netplan"
)

// Max is how many addresses an object holds at most (N0.25).
const Max = 1000

// The label that names the manager of an object, and its value for this plan.
const (
	LabelManagedBy = "endpoints.kubernetes.io/managed-by"
	ManagedBy      = "endpoint-controller"
)

// Input holds everything that a plan depends on. Nothing in it is changed.
type Input struct {
	Service *corev1.Service   // it selects pods; see netplan.Selects
	Pods    []*corev1.Pod     // those that it selects
	Stored  *corev1.Endpoints // nil for none
	Trigger time.Time         // of the change that led here; zero for none
}

// Decide returns the object to store, with the resource version of the stored one; nil when the
// stored object is right.
func Decide(in Input) *corev1.Endpoints {
	wanted := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: in.Service.Namespace, Name: in.Service.Name}}
	if in.Stored != nil {
		wanted = in.Stored.DeepCopy()
	}
	wanted.Labels, wanted.Subsets = labels(in.Service), subsets(in.Service, in.Pods)
	delete(wanted.Annotations, corev1.EndpointsOverCapacity)
	if truncate(wanted.Subsets) {
		if wanted.Annotations == nil {
			wanted.Annotations = map[string]string{}
		}
		wanted.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	}
	if in.Stored != nil && equal(in.Stored, wanted) {
		return nil
	}
	wanted.Annotations = netplan.SetTrigger(wanted.Annotations, in.Trigger)
	return wanted
}

func equal(stored, wanted *corev1.Endpoints) bool {
	return maps.Equal(stored.Labels, wanted.Labels) && maps.Equal(stored.Annotations, wanted.Annotations) &&
		equality.Semantic.DeepEqual(stored.Subsets, wanted.Subsets)
}

func labels(s *corev1.Service) map[string]string {
	out := map[string]string{}
	maps.Copy(out, s.Labels)
	delete(out, corev1.IsHeadlessService)
	if netplan.Headless(s) {
		out[corev1.IsHeadlessService] = ""
	}
	out[LabelManagedBy] = ManagedBy
	return out
}

// subsets groups addresses that have the same ports; all is sorted (N1.45, N1.46).
func subsets(s *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	family := netplan.Families(s)[0]
	groups := map[string]*corev1.EndpointSubset{}
	for _, p := range pods {
		address := netplan.Address(p, family)
		if address == "" || netplan.Ended(p) ||
			p.DeletionTimestamp != nil && !s.Spec.PublishNotReadyAddresses {
			continue
		}
		list := ports(s, p)
		if len(list) == 0 && (len(s.Spec.Ports) > 0 || s.Spec.ClusterIP != corev1.ClusterIPNone) {
			continue
		}
		key := portsKey(list)
		g := groups[key]
		if g == nil {
			g = &corev1.EndpointSubset{Ports: list}
			groups[key] = g
		}
		a := corev1.EndpointAddress{IP: address, Hostname: netplan.Hostname(p, s),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		if p.Spec.NodeName != "" {
			a.NodeName = new(p.Spec.NodeName)
		}
		if s.Spec.PublishNotReadyAddresses || netplan.Ready(p) {
			g.Addresses = append(g.Addresses, a)
		} else {
			g.NotReadyAddresses = append(g.NotReadyAddresses, a)
		}
	}
	var out []corev1.EndpointSubset
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		slices.SortFunc(g.Addresses, compare)
		slices.SortFunc(g.NotReadyAddresses, compare)
		out = append(out, *g)
	}
	return out
}

func ports(s *corev1.Service, p *corev1.Pod) []corev1.EndpointPort {
	var out []corev1.EndpointPort
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		if n, ok := netplan.Target(p, port); ok {
			out = append(out, corev1.EndpointPort{Name: port.Name, Port: n, Protocol: port.Protocol,
				AppProtocol: port.AppProtocol})
		}
	}
	slices.SortFunc(out, func(a, b corev1.EndpointPort) int {
		return cmp.Compare(netplan.PortKey(&a), netplan.PortKey(&b))
	})
	return out
}

func portsKey(sorted []corev1.EndpointPort) string {
	all := make([]string, len(sorted))
	for i := range sorted {
		all[i] = netplan.PortKey(&sorted[i])
	}
	return strings.Join(all, ";")
}

// compare orders addresses by IP, then by the UID of the pod.
func compare(a, b corev1.EndpointAddress) int {
	x, y := netip.MustParseAddr(a.IP).As16(), netip.MustParseAddr(b.IP).As16() // netplan.Address made them
	return cmp.Or(bytes.Compare(x[:], y[:]), cmp.Compare(a.TargetRef.UID, b.TargetRef.UID))
}

// truncate keeps Max addresses, ready ones first, with a share for each subset, and reports whether
// there were more (N1.47).
func truncate(all []corev1.EndpointSubset) bool {
	ready, unready := 0, 0
	for i := range all {
		ready += len(all[i].Addresses)
		unready += len(all[i].NotReadyAddresses)
	}
	if ready+unready <= Max {
		return false
	}
	room, total := Max-ready, unready
	if ready > Max {
		room, total = Max, ready
	}
	left := room
	for i := range all {
		list := &all[i].NotReadyAddresses
		if ready > Max {
			all[i].NotReadyAddresses = nil
			list = &all[i].Addresses
		}
		share := (len(*list)*room + total - 1) / total // rounded up
		n := min(share, left, len(*list))
		*list = (*list)[:n:n]
		left -= n
	}
	return true
}
