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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"carob/internal/kinds/registry"
)

// The IPAddress object named like an address names its user: creating it allocates the address,
// deleting it releases the address, and one created by another client reserves its address. The
// ranges are the ServiceCIDR objects. Both are read from the store for every allocation, so there
// is no state to synchronise. Restore and Repair correct the inconsistencies after a crash between
// two writes.

const (
	// RangeName is the ServiceCIDR of the range the server was started with.
	RangeName = "kubernetes"
	// RangeFinalizer keeps a ServiceCIDR while its addresses are used.
	RangeFinalizer = "networking.k8s.io/service-cidr-finalizer"
	// managedBy marks the IPAddress objects created here.
	managedBy = "ipallocator.k8s.io"
	// recordTimeout is the timeout of a write after the response to its request.
	recordTimeout = 10 * time.Second
	// randomTries is the number of random addresses to try before all records are read.
	randomTries = 8
)

var errAllocated = errors.New("provided IP is already allocated")

// addressStore stores ranges and addresses.
type addressStore interface {
	// ranges returns the ranges from which addresses of a family may be allocated now.
	ranges(ctx context.Context, family corev1.IPFamily) ([]addresses, error)
	// claim allocates an address for s, or, in a dry run, only checks that it could. The error is
	// errAllocated if the address is used.
	claim(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error
	// free releases the address of s; it does nothing if s does not have it.
	free(ctx context.Context, ip netip.Addr, s *corev1.Service) error
	used(ctx context.Context) (map[netip.Addr]bool, error)
}

// take allocates the address that a client requested.
func (a *Allocator) take(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error {
	ranges, err := a.store().ranges(ctx, familyOf(ip))
	if err != nil {
		return err
	}
	r, ok := rangeWith(ranges, ip)
	switch {
	case ok:
	case dry && len(ranges) > 0: // upstream's dry run has one range and other words
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v", ip,
			ranges[0].prefix)
	default:
		return errors.New("the provided network does not match the current range")
	}
	start := time.Now()
	err = a.store().claim(ctx, ip, s, dry)
	if !dry {
		addressSeconds.WithLabelValues(r.prefix.String()).Observe(time.Since(start).Seconds())
		claimed(r, static, err)
	}
	return err
}

// next allocates a free address of a family.
func (a *Allocator) next(ctx context.Context, family corev1.IPFamily, s *corev1.Service, dry bool) (netip.Addr, error) {
	ranges, err := a.store().ranges(ctx, family)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, r := range ranges {
		start := time.Now()
		ip, err := a.anyOf(ctx, r, s, dry)
		if !dry {
			addressSeconds.WithLabelValues(r.prefix.String()).Observe(time.Since(start).Seconds())
			claimed(r, dynamic, err)
		}
		if !errors.Is(err, errFull) {
			return ip, err
		}
	}
	return netip.Addr{}, errFull
}

// anyOf allocates an address of a range; the error is errFull if all are used.
func (a *Allocator) anyOf(ctx context.Context, r addresses, s *corev1.Service, dry bool) (netip.Addr, error) {
	for range randomTries {
		if r.size == 0 {
			break
		}
		ip := r.any()
		if err := a.store().claim(ctx, ip, s, dry); !errors.Is(err, errAllocated) {
			return ip, err
		}
	}
	for {
		used, err := a.store().used(ctx)
		if err != nil {
			return netip.Addr{}, err
		}
		ip, ok := r.free(used)
		if !ok {
			return netip.Addr{}, errFull
		}
		if err := a.store().claim(ctx, ip, s, dry); !errors.Is(err, errAllocated) {
			return ip, err
		}
	}
}

// giveBack releases an address after the response to its request. The next repair corrects a
// failure.
func (a *Allocator) giveBack(ctx context.Context, ip netip.Addr, s *corev1.Service) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := a.store().free(ctx, ip, s); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot release an address of a Service", "address", ip, "service",
			klog.KObj(s))
	}
}

// Range returns the ServiceCIDR object of the allocator's own ranges.
func (a *Allocator) Range() *networkingv1.ServiceCIDR {
	c := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: RangeName, Finalizers: []string{RangeFinalizer}}}
	for _, p := range a.configured {
		c.Spec.CIDRs = append(c.Spec.CIDRs, p.String())
	}
	return c
}

// Ready marks a range as ready.
func Ready(c *networkingv1.ServiceCIDR) {
	meta.SetStatusCondition(&c.Status.Conditions,
		metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
			Reason: "", Message: "Kubernetes default Service CIDR is ready"})
}

// apiObjects is the addressStore of a running server.
type apiObjects struct {
	configured         []netip.Prefix
	ranged, recordings *registry.Store
}

// ranges implements addressStore: the ranges that are not marked as unusable, the server's own first, the
// others sorted by name. The server's own range is usable before its ServiceCIDR exists.
func (b *apiObjects) ranges(ctx context.Context, family corev1.IPFamily) ([]addresses, error) {
	list, err := b.ranged.List(clusterScope(ctx), &internalversion.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the service ranges: %w", err)
	}
	var first, rest []addresses
	shown := false
	err = meta.EachListItem(list, func(o runtime.Object) error {
		c := o.(*networkingv1.ServiceCIDR)
		shown = shown || c.Name == RangeName
		if !usable(c) {
			return nil
		}
		for _, p := range prefixes(c) {
			switch {
			case familyOf(p.Addr()) != family ||
				slices.ContainsFunc(append(first, rest...), func(r addresses) bool { return r.prefix == p }):
			case c.Name == RangeName:
				first = append(first, rangeOf(p))
			default:
				rest = append(rest, rangeOf(p))
			}
		}
		return nil
	})
	for _, p := range b.configured {
		if !shown && familyOf(p.Addr()) == family {
			first = append(first, rangeOf(p))
		}
	}
	return append(first, rest...), err
}

// usable reports whether addresses may be allocated from a range. A range without a status may be
// used, because there may be no controller.
func usable(c *networkingv1.ServiceCIDR) bool {
	ready := meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return c.DeletionTimestamp == nil && (ready == nil || ready.Status == metav1.ConditionTrue)
}

func prefixes(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil { // validation accepts only prefixes
			out = append(out, p)
		}
	}
	return out
}

// claim implements addressStore.
func (b *apiObjects) claim(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error {
	ctx = clusterScope(ctx)
	if dry {
		_, err := b.recordings.Get(ctx, ip.String(), &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errAllocated
		}
		return err
	}
	_, err := b.recordings.Create(ctx, record(ip, s), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errAllocated
	}
	return err
}

// free implements addressStore.
func (b *apiObjects) free(ctx context.Context, ip netip.Addr, s *corev1.Service) error {
	ctx = clusterScope(ctx)
	obj, err := b.recordings.Get(ctx, ip.String(), &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if r := obj.(*networkingv1.IPAddress); equality.Semantic.DeepEqual(r.Spec, record(ip, s).Spec) {
		return b.erase(ctx, r)
	}
	return nil
}

func (b *apiObjects) erase(ctx context.Context, r *networkingv1.IPAddress) error {
	o := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
	if _, _, err := b.recordings.Delete(clusterScope(ctx), r.Name, rest.ValidateAllObjectFunc, o); err != nil &&
		!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete address %s: %w", r.Name, err)
	}
	return nil
}

// used implements addressStore.
func (b *apiObjects) used(ctx context.Context) (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	return out, b.each(ctx, func(ip netip.Addr, _ *networkingv1.IPAddress) error {
		out[ip] = true
		return nil
	})
}

func (b *apiObjects) each(ctx context.Context, f func(netip.Addr, *networkingv1.IPAddress) error) error {
	list, err := b.recordings.List(clusterScope(ctx), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the stored addresses: %w", err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		r := o.(*networkingv1.IPAddress)
		ip, err := netip.ParseAddr(r.Name)
		if err != nil {
			return nil //nolint:nilerr // validation rejects these
		}
		return f(ip, r)
	})
}

func record(ip netip.Addr, s *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
				networkingv1.LabelManagedBy: managedBy}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services",
			Namespace: s.Namespace, Name: s.Name}},
	}
}

func clusterScope(ctx context.Context) context.Context { return apirequest.WithNamespace(ctx, "") }
