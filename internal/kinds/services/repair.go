package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/kinds/registry"
)

// Findings are reported as events, with the messages of upstream's repair controllers.
const (
	AddressReporter = "ipallocator-repair-controller"
	PortReporter    = "portallocator-repair-controller"
	RangeReporter   = "kubernetes-service-cidr-controller"
)

// Finding is a problem with the addresses or ports of an object.
type Finding struct {
	About                             runtime.Object // a Service or an IPAddress
	Reporter, Reason, Action, Message string
}

// inFlight is the maximum time between the record of an address and the write of its service: the
// timeout of a request.
const inFlight = time.Minute

// Reader lists the services of all namespaces, and names those that cannot be read: what they have is kept.
type Reader func(ctx context.Context) (list runtime.Object, unread []types.NamespacedName, err error)

// Restore marks the ports of the stored services as used, and repairs the records of their
// addresses, before the first write.
func (a *Allocator) Restore(ctx context.Context, s *registry.Store, read Reader) ([]Finding, error) {
	return a.repair(ctx, s, read, true)
}

// Repair makes the records of addresses and ports agree with the services in s. Problems that
// cannot be repaired, such as an address of two services, are only reported.
func (a *Allocator) Repair(ctx context.Context, s *registry.Store, read Reader) ([]Finding, error) {
	return a.repair(ctx, s, read, false)
}

func (a *Allocator) repair(ctx context.Context, s *registry.Store, read Reader, start bool) ([]Finding, error) {
	b, ok := a.store().(*apiObjects)
	if !ok {
		return nil, nil
	}
	look := picture{services: map[types.NamespacedName]*corev1.Service{}, ports: a.ports, now: time.Now(),
		young: inFlight}
	if start {
		look.young = 0
	}
	// Services are read first, so that a record created after the read is recent.
	list, unread, err := read(apirequest.WithNamespace(ctx, ""))
	if err != nil {
		return nil, fmt.Errorf("read the stored services: %w", err)
	}
	look.unread = unread
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		svc := o.(*corev1.Service)
		look.services[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
		look.order = append(look.order, svc)
		return nil
	})
	if look.ranges, err = b.prefixes(ctx); err != nil {
		return nil, err
	}
	if look.records, err = b.all(ctx); err != nil {
		return nil, err
	}
	r := look.addresses()
	err = b.mend(ctx, s, &r)
	served, portFindings := look.nodePorts(func(svc *corev1.Service) bool { return start || stands(ctx, s, svc) })
	if start || len(unread) == 0 { // which ports a service that cannot be read has is unknown: nothing is freed
		a.ports.rebuild(served)
	}
	if start {
		// No port was marked yet: there is nothing to report.
		portFindings = slices.DeleteFunc(portFindings, func(f Finding) bool { return f.Reason == "PortNotAllocated" })
	}
	return append(r.findings, portFindings...), err
}

// stands reports whether a service is still stored with the addresses and ports that were read.
func stands(ctx context.Context, s *registry.Store, svc *corev1.Service) bool {
	o, err := s.Get(apirequest.WithNamespace(ctx, svc.Namespace), svc.Name, &metav1.GetOptions{})
	if err != nil {
		return false
	}
	now := o.(*corev1.Service)
	return now.UID == svc.UID && slices.Equal(now.Spec.ClusterIPs, svc.Spec.ClusterIPs) &&
		slices.Equal(nodePorts(now), nodePorts(svc))
}

// picture is a snapshot of services, records, and ranges.
type picture struct {
	services map[types.NamespacedName]*corev1.Service
	order    []*corev1.Service
	unread   []types.NamespacedName // services that cannot be read: they keep what is recorded for them
	records  []*networkingv1.IPAddress
	ranges   []netip.Prefix
	ports    *ports
	now      time.Time
	young    time.Duration // records younger than this may belong to a service that is not stored yet
}

// remedy holds the changes to the records of addresses.
type remedy struct {
	erase    []*networkingv1.IPAddress
	write    []holding
	findings []Finding
}

// holding is an address of a service.
type holding struct {
	ip      netip.Addr
	service *corev1.Service
}

// addresses compares the services with the records, which should correspond one to one.
func (p picture) addresses() remedy {
	var out remedy
	report := func(about runtime.Object, reason, action, message string, args ...any) {
		out.findings = append(out.findings,
			Finding{about, AddressReporter, reason, action, fmt.Sprintf(message, args...)})
	}
	recorded := map[string]*networkingv1.IPAddress{}
	for _, r := range p.records {
		recorded[r.Name] = r
	}
	seen := map[string]bool{} // records that are correct, or handled
	for _, svc := range p.order {
		if !needsIP(svc) || headless(svc) {
			continue
		}
		for _, text := range svc.Spec.ClusterIPs {
			ip, err := parseIP(text)
			if err != nil {
				report(svc, "ClusterIPNotValid", "ClusterIPValidation",
					"Cluster IP %s is not a valid IP; please recreate Service", text)
				continue
			}
			family, name := familyOf(ip), ip.String()
			if !slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return rangeOf(r).has(ip) }) {
				report(svc, "ClusterIPOutOfRange", "ClusterIPAllocation",
					"Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family,
					ip)
				seen[name] = seen[name] || recorded[name] != nil && refersTo(recorded[name], svc)
				continue
			}
			r := recorded[name]
			switch {
			case r == nil && !seen[name]:
				report(svc, "ClusterIPNotAllocated", "ClusterIPAllocation",
					"Cluster IP [%v]: %s is not allocated; repairing", family, ip)
				out.write = append(out.write, holding{ip, svc})
			case r != nil && refersTo(r, svc) && !seen[name]:
				if r.Labels[networkingv1.LabelIPAddressFamily] != string(family) ||
					r.Labels[networkingv1.LabelManagedBy] != managedBy {
					out.erase, out.write = append(out.erase, r), append(out.write, holding{ip, svc})
				}
			case seen[name] || p.held(r):
				report(svc, "ClusterIPAlreadyAllocated", "ClusterIPAllocation",
					"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, ip)
				continue
			default:
				report(svc, "ClusterIPNotAllocated", "ClusterIPAllocation",
					"the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family, ip,
					svc.Namespace, svc.Name)
				out.erase, out.write = append(out.erase, r), append(out.write, holding{ip, svc})
			}
			seen[name] = true
		}
	}
	for _, r := range p.records {
		if seen[r.Name] || r.Labels[networkingv1.LabelManagedBy] != managedBy {
			continue // correct, or created by another client
		}
		young := p.now.Sub(r.CreationTimestamp.Time) < p.young
		switch ref := r.Spec.ParentRef; {
		case ref == nil || ref.Group != "" || ref.Resource != "services":
			report(r, "IPAddressNotAllocated", "IPAddressAllocation",
				"IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", r.Name, ref)
		case young, slices.Contains(p.unread, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}):
			continue
		case p.services[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] == nil:
			report(r, "IPAddressNotAllocated", "IPAddressAllocation",
				"IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", r.Name, ref.Namespace, ref.Name)
		default:
			report(r, "IPAddressWrongReference", "IPAddressAllocation",
				"IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", r.Name, ref.Namespace, ref.Name)
		}
		out.erase = append(out.erase, r)
	}
	return out
}

// held reports whether the service in a record has its address.
func (p picture) held(r *networkingv1.IPAddress) bool {
	ref := r.Spec.ParentRef
	if ref == nil || ref.Group != "" || ref.Resource != "services" {
		return false
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	svc := p.services[name]
	return slices.Contains(p.unread, name) || svc != nil &&
		slices.ContainsFunc(clusterIPs(svc), func(ip netip.Addr) bool { return ip.String() == r.Name })
}

func refersTo(r *networkingv1.IPAddress, s *corev1.Service) bool {
	ref := r.Spec.ParentRef
	return ref != nil && *ref == networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace,
		Name: s.Name}
}

// nodePorts returns the ports of services and their problems. stands reports whether a service
// whose port is not marked still exists.
func (p picture) nodePorts(stands func(*corev1.Service) bool) (map[int]struct{}, []Finding) {
	served := map[int]struct{}{}
	var out []Finding
	for _, svc := range p.order {
		report := func(reason, message string, args ...any) {
			out = append(out, Finding{svc, PortReporter, reason, "PortAllocation", fmt.Sprintf(message, args...)})
		}
		for _, n := range portsOnce(svc) {
			switch _, twice := served[n]; {
			case !p.ports.has(n):
				report("PortOutOfRange", "Port %d is not within the port range %v; please recreate service", n, p.ports)
			case twice:
				report("PortAlreadyAllocated", "Port %d was assigned to multiple services; please recreate service", n)
			case p.ports.taken(n):
				served[n] = struct{}{}
			case stands(svc):
				served[n] = struct{}{}
				report("PortNotAllocated", "Port %d is not allocated; repairing", n)
			}
		}
	}
	return served, out
}

// portsOnce returns the node ports of a service. The protocols of a number count as one; the same
// number twice for one protocol is an error and stays.
func portsOnce(s *corev1.Service) []int {
	var out []int
	protocols := map[int][]corev1.Protocol{}
	add := func(n int, p corev1.Protocol) {
		if had := protocols[n]; len(had) == 0 || slices.Contains(had, p) {
			out = append(out, n)
		}
		protocols[n] = append(protocols[n], p)
	}
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			add(int(p.NodePort), p.Protocol)
		}
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 {
		add(int(n), corev1.ProtocolTCP)
	}
	return out
}

// mend applies the remedy. It creates a record only for a service that still exists; the next
// repair retries failures.
func (b *apiObjects) mend(ctx context.Context, s *registry.Store, r *remedy) error {
	var errs []error
	for _, o := range r.erase {
		errs = append(errs, b.erase(ctx, o))
	}
	for _, h := range r.write {
		if !stands(ctx, s, h.service) {
			r.findings = slices.DeleteFunc(r.findings, func(f Finding) bool { return f.About == h.service })
			continue
		}
		if err := b.claim(ctx, h.ip, h.service, false); err != nil && !errors.Is(err, errAllocated) {
			errs = append(errs,
				fmt.Errorf("record address %v of service %s/%s: %w", h.ip, h.service.Namespace, h.service.Name, err))
		}
	}
	return errors.Join(errs...)
}

// all returns the records of addresses.
func (b *apiObjects) all(ctx context.Context) ([]*networkingv1.IPAddress, error) {
	var out []*networkingv1.IPAddress
	err := b.each(ctx, func(_ netip.Addr, r *networkingv1.IPAddress) error {
		out = append(out, r)
		return nil
	})
	return out, err
}

// prefixes returns all ranges, including those without allocation.
func (b *apiObjects) prefixes(ctx context.Context) ([]netip.Prefix, error) {
	list, err := b.ranged.List(clusterScope(ctx), &internalversion.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the service ranges: %w", err)
	}
	out, shown := []netip.Prefix(nil), false
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		c := o.(*networkingv1.ServiceCIDR)
		shown = shown || c.Name == RangeName
		out = append(out, prefixes(c)...)
		return nil
	})
	if !shown {
		out = append(out, b.configured...)
	}
	return out, nil
}
