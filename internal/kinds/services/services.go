package services

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"carob/internal/base/errkind"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Allocator owns the service addresses and node ports.
type Allocator struct {
	configured []netip.Prefix    // as configured at the start, the default family first
	families   []corev1.IPFamily // of configured
	ports      *ports
	bound      atomic.Pointer[addressStore]
}

// NewAllocator returns an allocator for one range of addresses, or for one of each family (the
// default one first), and a range of ports. Call Bind before the first write. Errors are of kind
// errkind.Invalid.
func NewAllocator(cidrs []netip.Prefix, lowPort, highPort int) (*Allocator, error) {
	if len(cidrs) == 0 || len(cidrs) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4() {
		return nil, errkind.Errorf(errkind.Invalid, "the service ranges %v are not one range, or one of each family",
			cidrs)
	}
	registerMetrics()
	a := &Allocator{}
	for _, cidr := range cidrs {
		if err := checkRange(cidr); err != nil {
			return nil, err
		}
		a.configured = append(a.configured, cidr.Masked())
		a.families = append(a.families, familyOf(cidr.Addr()))
	}
	var err error
	a.ports, err = newPorts(lowPort, highPort)
	return a, err
}

// FirstIP is the reserved address of the kubernetes Service.
func (a *Allocator) FirstIP() netip.Addr { return rangeOf(a.configured[0]).first() }

// Bind sets the stores of ServiceCIDRs and IPAddresses.
func (a *Allocator) Bind(ranges, addresses *registry.Store) {
	a.bind(&apiObjects{configured: a.configured, ranged: ranges, recordings: addresses})
}

func (a *Allocator) bind(b addressStore) { a.bound.Store(&b) }

func (a *Allocator) store() addressStore { return *a.bound.Load() }

// Resource returns the descriptor of services, which allocates from a.
func (a *Allocator) Resource() *registry.Resource {
	svc := func(o runtime.Object) *corev1.Service { return o.(*corev1.Service) }
	return registry.Of[corev1.Service, corev1.ServiceList](registry.Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("Service"), ReturnDeleted: true, Plural: "services",
		ShortNames: []string{"svc"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true, NoGeneration: true, CreateOnUpdate: true,
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) { dropUnused(svc(obj), svc(old)) },
		Fields: map[string]func(runtime.Object) string{
			"spec.clusterIP": func(o runtime.Object) string { return svc(o).Spec.ClusterIP },
			"spec.type":      func(o runtime.Object) string { return string(svc(o).Spec.Type) },
		},
		Customize: func(s *genericregistry.Store, _ *registry.Strategy) {
			s.BeginCreate = func(ctx context.Context, obj runtime.Object,
				opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
				return a.begin(ctx, svc(obj), nil, dryrun.IsDryRun(opts.DryRun))
			}
			s.BeginUpdate = func(ctx context.Context, obj, old runtime.Object,
				opts *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
				return a.begin(ctx, svc(obj), svc(old), dryrun.IsDryRun(opts.DryRun))
			}
			s.AfterDelete = func(obj runtime.Object, _ *metav1.DeleteOptions) {
				s := svc(obj)
				for _, ip := range clusterIPs(s) {
					a.giveBack(context.Background(), ip, s)
				}
				a.ports.release(nodePorts(s)...)
				if needsHealthPort(s) {
					a.ports.release(int(s.Spec.HealthCheckNodePort))
				}
			}
		},
		Main: func(s *registry.Store) rest.Storage { return &storage{s} },
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Type"}, {Name: "Cluster-IP"}, {Name: "External-IP"},
				{Name: "Port(s)"}, table.AgeColumn, {Name: "Selector", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				s := svc(o)
				ip := s.Spec.ClusterIP
				if ip == "" {
					ip = "<none>"
				}
				return []any{s.Name, string(s.Spec.Type), ip, ExternalIP(s), ServicePorts(s.Spec.Ports),
					table.Age(s.CreationTimestamp, now),
					labels.FormatLabels(s.Spec.Selector)}
			}},
	})
}

// allocate completes s and allocates the addresses and ports that it needs beyond those of old (nil
// for a new service). A dry run has no effect.
func (a *Allocator) allocate(ctx context.Context, s, old *corev1.Service, dry bool) (*attempt, error) {
	if old != nil {
		keepAllocated(s, old)
	}
	normalize(s, old)
	if errs := settleFamilies(s, old, a.families); len(errs) > 0 {
		return nil, invalid(s, errs...)
	}
	ips, ports := &addressClaim{Allocator: a, dry: dry, s: s}, &portClaim{ports: a.ports, dry: dry}
	undo := func(ctx context.Context) {
		ips.undo(ctx)
		ports.undo()
	}
	leaving, err := ips.claim(ctx, old)
	if err != nil {
		undo(ctx)
		return nil, err
	}
	leavingPorts, err := claimPorts(ports, s, old)
	if err != nil {
		undo(ctx)
		return nil, err
	}
	return &attempt{undo: undo, commit: func(ctx context.Context) {
		if dry {
			return
		}
		for _, ip := range leaving {
			a.giveBack(ctx, ip, old)
		}
		a.ports.release(leavingPorts...)
	}}, nil
}

// addressClaim holds the addresses that one request allocates; a dry run has no effect.
type addressClaim struct {
	*Allocator
	dry  bool
	s    *corev1.Service
	took []netip.Addr
}

// claim allocates the addresses that s lacks, and returns those of old that it no longer needs.
func (c *addressClaim) claim(ctx context.Context, old *corev1.Service) (leaves []netip.Addr, err error) {
	s := c.s
	switch {
	case old == nil || !needsIP(old):
		if needsIP(s) && !headless(s) {
			return nil, c.fill(ctx, 0)
		}
		return nil, nil
	case settled(s, old) || headless(old):
		return nil, nil
	case !needsIP(s):
		return clusterIPs(old), nil
	}
	switch is, was := len(s.Spec.IPFamilies), len(old.Spec.IPFamilies); {
	case was == 1 && is == 2:
		return nil, c.fill(ctx, 1)
	case was == 2 && is == 1:
		return clusterIPs(old)[1:], nil
	}
	return nil, nil
}

// fill allocates an address for each family of the service from index i on: the one that the client
// requested, or any.
func (c *addressClaim) fill(ctx context.Context, first int) error {
	s := c.s
	// The list may be shared with the stored object.
	ips := make([]string, len(s.Spec.IPFamilies))
	copy(ips, s.Spec.ClusterIPs)
	for i := first; i < len(ips); i++ {
		if ips[i] != "" {
			ip, err := parseIP(ips[i])
			if err == nil {
				err = c.take(ctx, ip, s, c.dry)
			}
			if err != nil {
				return invalid(s,
					field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs,
						fmt.Sprintf("failed to allocate IP %v: %v", ips[i], err)))
			}
			c.took = append(c.took, ip)
			continue
		}
		ip, err := c.next(ctx, s.Spec.IPFamilies[i], s, c.dry)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name,
				err))
		}
		c.took = append(c.took, ip)
		ips[i] = ip.String()
	}
	s.Spec.ClusterIPs, s.Spec.ClusterIP = ips, ips[0]
	return nil
}

// undo releases the allocated addresses.
func (c *addressClaim) undo(ctx context.Context) {
	if c.dry {
		return
	}
	for _, ip := range c.took {
		c.giveBack(ctx, ip, c.s)
	}
}

// clusterIPs returns the addresses of s.
func clusterIPs(s *corev1.Service) []netip.Addr {
	if !needsIP(s) || headless(s) {
		return nil
	}
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP} // stored by a server without the list
	}
	var out []netip.Addr
	for _, v := range list {
		if ip, err := parseIP(v); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

func invalid(s *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}
