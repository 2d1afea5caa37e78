// Package services is the storage of Services: the descriptor of the kind and
// the allocation of cluster IPs and node ports around each write. The apiserver
// package drives it and calls Restore before the first write. It must never
// keep an allocation whose write failed.
package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"

	"carob/internal/apiserver/resources"
	"carob/internal/apiserver/table"
)

// Allocator owns the service addresses and node ports.
type Allocator struct {
	own   addresses
	ports *ports
	bound atomic.Pointer[book]
}

// NewAllocator returns an allocator for a range of addresses and a range of ports.
// Bind it before the first write.
func NewAllocator(cidr netip.Prefix, lowPort, highPort int) (*Allocator, error) {
	if err := checkRange(cidr); err != nil {
		return nil, err
	}
	p, err := newPorts(lowPort, highPort)
	if err != nil {
		return nil, err
	}
	return &Allocator{own: rangeOf(cidr), ports: p}, nil
}

// FirstIP is the address kept for the kubernetes Service.
func (a *Allocator) FirstIP() netip.Addr { return a.own.first() }

// Bind says where ServiceCIDRs and IPAddresses are kept from now on.
func (a *Allocator) Bind(ranges, addresses *resources.Store) {
	a.bind(&objects{own: a.own.prefix, ranged: ranges, recordings: addresses})
}

func (a *Allocator) bind(b book) { a.bound.Store(&b) }

func (a *Allocator) records() book { return *a.bound.Load() }

// Restore marks the ports that the stored services use, and repairs the records of
// their addresses. Conflicts among services are history and left alone.
func (a *Allocator) Restore(ctx context.Context, s *resources.Store) error {
	return a.repair(ctx, s, 0, func(svc *corev1.Service) {
		for _, p := range nodePorts(svc) {
			_ = a.ports.take(p) // out of today's range or taken: nothing to restore
		}
	})
}

// inFlight is how long a service may be on its way into the store after its
// address was recorded: longer than any request takes.
const inFlight = 2 * time.Minute

// Repair makes the records of addresses agree with the services of s.
func (a *Allocator) Repair(ctx context.Context, s *resources.Store) error {
	return a.repair(ctx, s, inFlight, func(*corev1.Service) {})
}

func (a *Allocator) repair(ctx context.Context, s *resources.Store, young time.Duration, look func(*corev1.Service)) error {
	b, ok := a.records().(*objects)
	if !ok {
		return nil
	}
	list, err := s.List(apirequest.WithNamespace(ctx, ""), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the stored services: %w", err)
	}
	owners := map[netip.Addr]*corev1.Service{}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		svc := o.(*corev1.Service)
		for _, ip := range allocatedIPs(svc) {
			if owners[ip] == nil {
				owners[ip] = svc
			}
		}
		look(svc)
		return nil
	})
	if err != nil {
		return err
	}
	return b.repair(ctx, owners, young)
}

// Resource returns the descriptor of services, which allocates from a.
func (a *Allocator) Resource() *resources.Resource {
	svc := func(o runtime.Object) *corev1.Service { return o.(*corev1.Service) }
	return resources.Of[corev1.Service, corev1.ServiceList](resources.Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("Service"), Plural: "services", ShortNames: []string{"svc"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true, NoGeneration: true,
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) { dropUnused(svc(obj), svc(old)) },
		Fields: map[string]func(runtime.Object) string{
			"spec.clusterIP": func(o runtime.Object) string { return svc(o).Spec.ClusterIP },
			"spec.type":      func(o runtime.Object) string { return string(svc(o).Spec.Type) },
		},
		Customize: func(s *genericregistry.Store, _ *resources.Strategy) {
			s.BeginCreate = a.beginCreate
			s.BeginUpdate = a.beginUpdate
			s.AfterDelete = func(obj runtime.Object, opts *metav1.DeleteOptions) {
				if !dryrun.IsDryRun(opts.DryRun) {
					a.release(context.Background(), svc(obj), nil)
				}
			}
		},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Type"}, {Name: "Cluster-IP"}, {Name: "External-IP"}, {Name: "Port(s)"}, table.AgeColumn, {Name: "Selector", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				s := svc(o)
				ip := s.Spec.ClusterIP
				if ip == "" {
					ip = "<none>"
				}
				return []any{s.Name, string(s.Spec.Type), ip, resources.ExternalIP(s), resources.ServicePorts(s.Spec.Ports), table.Age(s.CreationTimestamp, now),
					labels.FormatLabels(s.Spec.Selector)}
			}},
	})
}

// wantsIP reports whether a service of this type has a cluster IP of its own.
func wantsIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

func wantsNodePorts(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	default:
		return false
	}
}

// normalize keeps clusterIP and clusterIPs the same.
func normalize(s *corev1.Service) {
	switch {
	case s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0:
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0:
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
}

// dropUnused removes what only the old type had a use for, unless the client has
// changed it: a client that changes the type need not know all that goes with it.
func dropUnused(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if wantsIP(old) && !wantsIP(s) {
		if is.ClusterIP == was.ClusterIP && slices.Equal(is.ClusterIPs, was.ClusterIPs) {
			is.ClusterIP, is.ClusterIPs = "", nil
		}
		if slices.Equal(is.IPFamilies, was.IPFamilies) {
			is.IPFamilies = nil
		}
		if equalTo(is.IPFamilyPolicy, was.IPFamilyPolicy) {
			is.IPFamilyPolicy = nil
		}
	}
	if hasPorts, had := wantsPortType(s), wantsPortType(old); had && !hasPorts {
		if slices.EqualFunc(is.Ports, was.Ports, func(a, b corev1.ServicePort) bool { return a.NodePort == b.NodePort }) {
			for i := range is.Ports {
				is.Ports[i].NodePort = 0
			}
		}
	}
	if outside(old) && !outside(s) && is.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		is.ExternalTrafficPolicy = ""
	}
	if wantsHealthPort(old) && !wantsHealthPort(s) && is.HealthCheckNodePort == was.HealthCheckNodePort {
		is.HealthCheckNodePort = 0
	}
	if was.Type == corev1.ServiceTypeLoadBalancer && is.Type != corev1.ServiceTypeLoadBalancer {
		if equalTo(is.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			is.AllocateLoadBalancerNodePorts = nil
		}
		if equalTo(is.LoadBalancerClass, was.LoadBalancerClass) {
			is.LoadBalancerClass = nil
		}
	}
}

// wantsPortType tells whether services of this type are reached from outside by ports of nodes.
func wantsPortType(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// outside tells whether there is a way to the service from outside of the cluster.
func outside(s *corev1.Service) bool {
	return wantsPortType(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

func equalTo[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// carryOver gives a client that left out what was allocated the old values, so
// that a plain replace or apply of its manifest works.
func carryOver(s, old *corev1.Service) {
	dropUnused(s, old)
	if !wantsIP(s) {
		if wantsIP(old) && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		s.Spec.HealthCheckNodePort = 0
		return
	}
	if wantsIP(old) {
		if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, slices.Clone(old.Spec.ClusterIPs)
		}
		if s.Spec.IPFamilyPolicy == nil {
			s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		}
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		}
	}
	normalize(s)
	if !wantsNodePorts(s) || !wantsNodePorts(old) {
		return
	}
	was := map[string]int32{}
	for _, p := range old.Spec.Ports {
		was[fmt.Sprint(p.Protocol, p.Port)] = p.NodePort
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort == 0 {
			p.NodePort = was[fmt.Sprint(p.Protocol, p.Port)]
		}
	}
}

func (a *Allocator) beginCreate(ctx context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj.(*corev1.Service), nil, dryrun.IsDryRun(opts.DryRun))
}

func (a *Allocator) beginUpdate(ctx context.Context, obj, old runtime.Object, opts *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj.(*corev1.Service), old.(*corev1.Service), dryrun.IsDryRun(opts.DryRun))
}

// begin allocates what s needs beyond old's. The returned function settles it:
// after a failed write, or a dry run, what was new is given back; else what
// old had and s has no more.
func (a *Allocator) begin(ctx context.Context, s, old *corev1.Service, dry bool) (genericregistry.FinishFunc, error) {
	// The store calls this before the strategy prepares the object.
	normalize(s)
	if old != nil {
		carryOver(s, old)
	}
	var undo []func()
	rollback := func() {
		for _, f := range undo {
			f()
		}
	}
	if err := a.allocateIP(ctx, s, old, dry, &undo); err != nil {
		rollback()
		return nil, err
	}
	if err := a.allocatePorts(s, old, &undo); err != nil {
		rollback()
		return nil, err
	}
	return func(ctx context.Context, success bool) {
		switch {
		case !success || dry:
			rollback()
		case old != nil:
			a.release(ctx, old, s)
		}
	}, nil
}

func (a *Allocator) allocateIP(ctx context.Context, s, old *corev1.Service, dry bool, undo *[]func()) error {
	if !wantsIP(s) {
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
		return nil
	}
	if errs := settleFamilies(s, old, []corev1.IPFamily{familyOf(a.own.prefix.Addr())}); len(errs) > 0 {
		return invalid(s, errs...)
	}
	if headless(s) {
		return nil
	}
	giveBack := func(ip netip.Addr) {
		if !dry {
			*undo = append(*undo, func() { a.giveBack(ctx, ip, s) })
		}
	}
	if s.Spec.ClusterIP == "" {
		ip, err := a.next(ctx, s, dry)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
		}
		giveBack(ip)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ip.String(), []string{ip.String()}
		return nil
	}
	ip, _ := netip.ParseAddr(s.Spec.ClusterIP) // validation refuses a malformed one
	if !ip.IsValid() || old != nil && slices.Contains(allocatedIPs(old), ip) {
		return nil
	}
	if err := a.take(ctx, ip, s, dry); err != nil {
		return invalid(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", ip, err)))
	}
	giveBack(ip)
	return nil
}

func (a *Allocator) allocatePorts(s, old *corev1.Service, undo *[]func()) error {
	var had []port
	if old != nil {
		had = nodePorts(old)
	}
	if s.Spec.Type != corev1.ServiceTypeNodePort && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		// Left over from the old type, unless the client asks for it on purpose; validation refuses that.
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			if slices.Contains(had, port{string(p.Protocol), int(p.NodePort)}) {
				p.NodePort = 0
			}
		}
		return a.allocateHealthPort(s, old, undo)
	}
	var mine []port
	if err := a.allocateHealthPort(s, old, undo); err != nil {
		return err
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		want := port{string(p.Protocol), int(p.NodePort)}
		switch {
		case want.number == 0 && wantsNodePorts(s):
			// Another protocol on the same port shares its number.
			n := sharedNodePort(s.Spec.Ports[:i], p)
			if n != 0 && a.ports.take(port{want.protocol, n}) == nil {
				want.number = n
			} else {
				var err error
				if want.number, err = a.ports.next(want.protocol); err != nil {
					return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
				}
			}
			p.NodePort = int32(want.number)
			*undo = append(*undo, func() { a.ports.release(want) })
		case want.number == 0 || slices.Contains(had, want) || slices.Contains(mine, want):
		default:
			if err := a.ports.take(want); err != nil {
				return invalid(s, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
			}
			*undo = append(*undo, func() { a.ports.release(want) })
		}
		mine = append(mine, want)
	}
	return nil
}

// wantsHealthPort reports whether load balancers ask each node if it has a pod of s.
func wantsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func (a *Allocator) allocateHealthPort(s, old *corev1.Service, undo *[]func()) error {
	kept := old != nil && wantsHealthPort(old) && (s.Spec.HealthCheckNodePort == 0 || s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort)
	switch {
	case !wantsHealthPort(s):
		if old != nil && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
			s.Spec.HealthCheckNodePort = 0
		}
		return nil
	case kept:
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
		return nil
	}
	want := port{string(corev1.ProtocolTCP), int(s.Spec.HealthCheckNodePort)}
	if want.number == 0 {
		n, err := a.ports.next(want.protocol)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort: %w", err))
		}
		want.number = n
	} else if err := a.ports.take(want); err != nil {
		return invalid(s, field.Invalid(field.NewPath("spec", "healthCheckNodePort"), s.Spec.HealthCheckNodePort, fmt.Sprintf("failed to allocate requested HealthCheck NodePort %d: %v", want.number, err)))
	}
	s.Spec.HealthCheckNodePort = int32(want.number)
	*undo = append(*undo, func() { a.ports.release(want) })
	return nil
}

func sharedNodePort(before []corev1.ServicePort, p *corev1.ServicePort) int {
	for _, b := range before {
		if b.Port == p.Port && b.Protocol != p.Protocol {
			return int(b.NodePort)
		}
	}
	return 0
}

// release gives back what s has and keep (nil for nothing) has not.
func (a *Allocator) release(ctx context.Context, s, keep *corev1.Service) {
	var ips []netip.Addr
	var kept []port
	if keep != nil {
		ips, kept = allocatedIPs(keep), nodePorts(keep)
	}
	for _, ip := range allocatedIPs(s) {
		if !slices.Contains(ips, ip) {
			a.giveBack(ctx, ip, s)
		}
	}
	for _, p := range nodePorts(s) {
		if !slices.Contains(kept, p) {
			a.ports.release(p)
		}
	}
}

func allocatedIPs(s *corev1.Service) []netip.Addr {
	if !wantsIP(s) || headless(s) {
		return nil
	}
	if ip, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
		return []netip.Addr{ip}
	}
	return nil
}

func nodePorts(s *corev1.Service) []port {
	var out []port
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, port{string(p.Protocol), int(p.NodePort)})
		}
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 && wantsHealthPort(s) {
		out = append(out, port{string(corev1.ProtocolTCP), int(n)})
	}
	return out
}

func invalid(s *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}
