// Package endpointslice plans the EndpointSlices of a Service with a selector: which to create, to
// change and to delete. internal/controllers/endpointslice writes them. It must never look at a
// clock or at the API.
//
// Contract: N1 in docs/spec/network.md.
package endpointslice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/netplan"
)

// ManagedBy is the value of the managed-by label on slices that this plan makes.
const ManagedBy = "endpointslice-controller.k8s.io"

// Max is how many endpoints a slice holds at most (N0.22).
const Max = 100

// Input holds everything that a plan depends on. Nothing in it is changed.
type Input struct {
	Service *corev1.Service              // it selects pods; see netplan.Selects
	Pods    []*corev1.Pod                // those that it selects
	Slices  []*discoveryv1.EndpointSlice // those of its name, managed by ManagedBy, that are not being deleted
	Zones   map[string]string            // the zone of each existing node, by name; "" for none
	Trigger time.Time                    // of the change that led here; zero for none
}

// Plan is what to write, in this order. Updates carry the resource version that they were
// planned on.
type Plan struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
	// Lost lists pods that are left out because their node does not exist (N1.14).
	Lost []string
}

// Decide returns the plan for a Service.
func Decide(in Input) Plan {
	var out Plan
	pods := slices.SortedFunc(slices.Values(in.Pods),
		func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		if netplan.Ended(p) || len(p.Status.PodIPs) == 0 {
			return true
		}
		if _, there := in.Zones[p.Spec.NodeName]; !there && !in.Service.Spec.PublishNotReadyAddresses {
			out.Lost = append(out.Lost, p.Name)
			return true
		}
		return false
	})
	existing := slices.SortedFunc(slices.Values(in.Slices),
		func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	for _, family := range netplan.Families(in.Service) {
		f := plan{Input: &in, family: family}
		existing = slices.DeleteFunc(existing, func(s *discoveryv1.EndpointSlice) bool {
			if s.AddressType != discoveryv1.AddressType(family) {
				return false
			}
			f.existing = append(f.existing, s)
			return true
		})
		f.decide(pods)
		out.Create = append(out.Create, f.Create...)
		out.Update = append(out.Update, f.Update...)
		out.Delete = append(out.Delete, f.Delete...)
	}
	out.Delete = append(out.Delete, existing...) // of a family that the Service does not have
	for _, s := range slices.Concat(out.Create, out.Update) {
		s.Annotations = netplan.SetTrigger(s.Annotations, in.Trigger)
	}
	return out
}

// plan is the plan for one family.
type plan struct {
	*Input
	Plan
	family    corev1.IPFamily
	existing  []*discoveryv1.EndpointSlice
	unchanged []*discoveryv1.EndpointSlice
}

// group holds the pods that have the same ports.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[string]*discoveryv1.Endpoint // that have no slice yet, by identity
	order     []string                         // identities
	slices    []*discoveryv1.EndpointSlice
}

func (p *plan) decide(pods []*corev1.Pod) {
	groups := map[string]*group{}
	var order []string
	for _, pod := range pods {
		address := netplan.Address(pod, p.family)
		if address == "" {
			continue
		}
		ports := ports(p.Service, pod)
		key := portsKey(ports)
		if groups[key] == nil {
			groups[key] = &group{ports: ports, endpoints: map[string]*discoveryv1.Endpoint{}}
			order = append(order, key)
		}
		e := p.endpoint(pod, address)
		id := identity(e)
		groups[key].endpoints[id] = e
		groups[key].order = append(groups[key].order, id)
	}
	for _, s := range p.existing {
		if g := groups[portsKey(s.Ports)]; g != nil && owned(s, p.Service) {
			g.slices = append(g.slices, s)
		} else {
			p.Delete = append(p.Delete, s)
		}
	}
	for _, key := range order {
		p.pack(groups[key])
	}
	if len(p.Delete) == len(p.existing) && len(p.Create) == 0 {
		p.keepPlaceholder()
	}
	p.hint()
	p.reuse()
	if p.Service.DeletionTimestamp != nil {
		p.Create = nil // N1.27
	}
}

// pack puts the endpoints of a group into slices (N1.24).
func (p *plan) pack(g *group) {
	var untouched, rewritten []*discoveryv1.EndpointSlice
	wanted := Labels(p.Service)
	for _, s := range g.slices {
		var keep []discoveryv1.Endpoint
		changed := !maps.Equal(s.Labels, wanted)
		for i := range s.Endpoints {
			id := identity(&s.Endpoints[i])
			e := g.endpoints[id]
			if e == nil {
				changed = true
				continue
			}
			delete(g.endpoints, id) // of duplicates in slices, one stays
			changed = changed || !sameEndpoint(e, &s.Endpoints[i])
			keep = append(keep, *e)
		}
		switch {
		case changed && len(keep) == 0:
			p.Delete = append(p.Delete, s)
		case changed:
			s = s.DeepCopy()
			s.Endpoints, s.Labels = keep, wanted
			rewritten = append(rewritten, s)
		default:
			untouched = append(untouched, s)
		}
	}
	left := slices.DeleteFunc(g.order, func(id string) bool { return g.endpoints[id] == nil })
	fill := func(s *discoveryv1.EndpointSlice) {
		for len(left) > 0 && len(s.Endpoints) < Max {
			s.Endpoints = append(s.Endpoints, *g.endpoints[left[0]])
			left = left[1:]
		}
	}
	slices.SortStableFunc(rewritten, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(len(b.Endpoints), len(a.Endpoints))
	})
	for _, s := range rewritten {
		fill(s)
	}
	for len(left) > 0 {
		at := -1
		for i, s := range untouched {
			if n := len(s.Endpoints) + len(left); len(left) < Max && n <= Max &&
				(at < 0 || len(s.Endpoints) > len(untouched[at].Endpoints)) {
				at = i
			}
		}
		if at < 0 {
			s := p.empty(g.ports)
			fill(s)
			p.Create = append(p.Create, s)
			continue
		}
		s := untouched[at].DeepCopy()
		untouched = slices.Delete(untouched, at, at+1)
		fill(s)
		rewritten = append(rewritten, s)
	}
	p.Update = append(p.Update, rewritten...)
	p.unchanged = append(p.unchanged, untouched...)
}

// keepPlaceholder ensures that a Service without endpoints has one empty slice (N1.12).
func (p *plan) keepPlaceholder() {
	s := p.empty(nil)
	i := slices.IndexFunc(p.Delete, func(d *discoveryv1.EndpointSlice) bool {
		return len(d.Endpoints) == 0 && len(d.Ports) == 0 && owned(d, p.Service) && maps.Equal(d.Labels, s.Labels)
	})
	if i < 0 {
		p.Create = append(p.Create, s)
		return
	}
	p.Delete = slices.Delete(p.Delete, i, i+1)
}

// reuse replaces pairs of a create and a delete by updates (N1.23).
func (p *plan) reuse() {
	p.Delete = slices.DeleteFunc(p.Delete, func(d *discoveryv1.EndpointSlice) bool {
		if len(p.Create) == 0 || !owned(d, p.Service) {
			return false
		}
		last := len(p.Create) - 1
		s := p.Create[last]
		s.Name, s.GenerateName, s.UID, s.ResourceVersion = d.Name, d.GenerateName, d.UID, d.ResourceVersion
		p.Create, p.Update = p.Create[:last], append(p.Update, s)
		return true
	})
}

// hint sets the zones and nodes for which proxies should use each endpoint (N1.29, N1.30).
func (p *plan) hint() {
	p.unchanged = slices.DeleteFunc(p.unchanged, func(s *discoveryv1.EndpointSlice) bool {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if p.distributes() && !*e.Conditions.Ready || equality.Semantic.DeepEqual(e.Hints, p.hints(e)) {
				continue
			}
			p.Update = append(p.Update, s.DeepCopy())
			return true
		}
		return false
	})
	for _, s := range slices.Concat(p.Create, p.Update) {
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = p.hints(&s.Endpoints[i])
		}
	}
}

// distributes reports whether the Service prefers certain endpoints. The annotation of the topology
// mode, which carob does not implement, takes precedence over the field (N1.31).
func (p *plan) distributes() bool {
	mode, ok := p.Service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = p.Service.Annotations[corev1.AnnotationTopologyMode]
	}
	if d := p.Service.Spec.TrafficDistribution; d != nil && mode != "Auto" && mode != "auto" {
		return slices.Contains([]string{corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}, *d)
	}
	return false
}

func (p *plan) hints(e *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	if !p.distributes() || !*e.Conditions.Ready {
		return nil
	}
	var h discoveryv1.EndpointHints
	if e.Zone != nil {
		h.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
	}
	if e.NodeName != nil && *p.Service.Spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferSameNode {
		h.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return &h
}

// endpoint returns the endpoint of a pod (N1.15 to N1.17).
func (p *plan) endpoint(pod *corev1.Pod, address string) *discoveryv1.Endpoint {
	serving, terminating := netplan.Ready(pod), pod.DeletionTimestamp != nil
	e := &discoveryv1.Endpoint{
		Addresses: []string{address},
		Conditions: discoveryv1.EndpointConditions{
			Ready:   new(p.Service.Spec.PublishNotReadyAddresses || serving && !terminating),
			Serving: &serving, Terminating: &terminating,
		},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" {
		e.NodeName = new(pod.Spec.NodeName)
	}
	if zone := p.Zones[pod.Spec.NodeName]; zone != "" {
		e.Zone = &zone
	}
	if name := netplan.Hostname(pod, p.Service); name != "" {
		e.Hostname = &name
	}
	return e
}

func (p *plan) empty(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	owner := metav1.NewControllerRef(p.Service, corev1.SchemeGroupVersion.WithKind("Service"))
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Service.Namespace, GenerateName: p.Service.Name + "-",
			Labels: Labels(p.Service), OwnerReferences: []metav1.OwnerReference{*owner}},
		AddressType: discoveryv1.AddressType(p.family),
		Endpoints:   []discoveryv1.Endpoint{},
		Ports:       slices.Clone(ports),
	}
}

// Labels returns the labels of a Service's slices (N1.9).
func Labels(s *corev1.Service) map[string]string {
	out := map[string]string{}
	maps.Copy(out, s.Labels)
	delete(out, corev1.IsHeadlessService)
	if netplan.Headless(s) {
		out[corev1.IsHeadlessService] = ""
	}
	out[discoveryv1.LabelServiceName], out[discoveryv1.LabelManagedBy] = s.Name, ManagedBy
	return out
}

// owned reports whether a slice belongs to this Service, not to an earlier one of the same name
// (N1.10).
func owned(s *discoveryv1.EndpointSlice, service *corev1.Service) bool {
	return slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.UID == service.UID && o.Kind == "Service" && o.APIVersion == "v1"
	})
}

// ports returns the ports of a Service on a pod; ports that the pod does not have are left out
// (N1.19 to N1.21).
func ports(s *corev1.Service, pod *corev1.Pod) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		if n, ok := netplan.Target(pod, port); ok {
			out = append(out, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &n,
				AppProtocol: port.AppProtocol})
		}
	}
	return out
}

// portsKey returns the same key for the same ports in any order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	all := make([]string, len(ports))
	for i := range ports {
		p := &ports[i]
		all[i] = text(p.Name) + text(p.Protocol) + text(p.AppProtocol)
		if p.Port != nil {
			all[i] += fmt.Sprint(*p.Port)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ";")
}

// identity returns the key by which two endpoints are the same (N1.22).
func identity(e *discoveryv1.Endpoint) string {
	id := fmt.Sprintf("%q", e.Addresses) + text(e.Hostname)
	if e.TargetRef != nil {
		id += fmt.Sprintf("%q/%q/%q", e.TargetRef.Kind, e.TargetRef.Namespace, e.TargetRef.Name)
	}
	return id
}

func text[T ~string](s *T) string {
	if s == nil {
		return "-,"
	}
	return fmt.Sprintf("%q,", string(*s))
}

// sameEndpoint reports whether two endpoints with one identity are equal, apart from their hints.
func sameEndpoint(a, b *discoveryv1.Endpoint) bool {
	x, y := *a, *b
	x.Hints, y.Hints = nil, nil
	if y.TargetRef != nil {
		ref := *y.TargetRef
		ref.ResourceVersion = ""
		y.TargetRef = &ref
	}
	return equality.Semantic.DeepEqual(x, y)
}
