package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

	"carob/internal/apiserver/resources"
)

// Who has an address is said by the IPAddress object of its name: making it takes
// the address, deleting it gives it back, and one that somebody else made keeps its
// address from services. The ranges are the ServiceCIDR objects. Both are read from
// the store whenever an address is needed, so there is nothing to keep in step.
// Restore and Repair put in order what a crash between two writes left.

const (
	// RangeName is the ServiceCIDR of the range the server was started with.
	RangeName = "kubernetes"
	// RangeFinalizer keeps a ServiceCIDR while its addresses are used.
	RangeFinalizer = "networking.k8s.io/service-cidr-finalizer"
	// managedBy marks the records made here.
	managedBy = "ipallocator.k8s.io"
	// recordTimeout bounds a write beside a request that is answered already.
	recordTimeout = 10 * time.Second
	// guesses are random addresses tried before all records are read.
	guesses = 8
)

var errAllocated = errors.New("provided IP is already allocated")

// book is where ranges and addresses are written down.
type book interface {
	// ranges returns what addresses may be taken from now.
	ranges(ctx context.Context) ([]addresses, error)
	// claim takes an address for s, or only looks whether it could (dry). The error
	// is errAllocated when somebody has it.
	claim(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error
	// free gives back the address of s; it does nothing when s has it not.
	free(ctx context.Context, ip netip.Addr, s *corev1.Service) error
	used(ctx context.Context) (map[netip.Addr]bool, error)
}

// take claims the address that a client chose.
func (a *Allocator) take(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error {
	ranges, err := a.records().ranges(ctx)
	if err != nil {
		return err
	}
	var valid []string
	for _, r := range ranges {
		if r.has(ip) {
			return a.records().claim(ctx, ip, s, dry)
		}
		valid = append(valid, r.prefix.String())
	}
	return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v", ip, strings.Join(valid, ","))
}

// next claims an address that nobody has.
func (a *Allocator) next(ctx context.Context, s *corev1.Service, dry bool) (netip.Addr, error) {
	ranges, err := a.records().ranges(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, r := range ranges {
		for range guesses {
			if r.size == 0 {
				break
			}
			ip := r.any()
			if err := a.records().claim(ctx, ip, s, dry); !errors.Is(err, errAllocated) {
				return ip, err
			}
		}
		for {
			used, err := a.records().used(ctx)
			if err != nil {
				return netip.Addr{}, err
			}
			ip, ok := r.free(used)
			if !ok {
				break
			}
			if err := a.records().claim(ctx, ip, s, dry); !errors.Is(err, errAllocated) {
				return ip, err
			}
		}
	}
	return netip.Addr{}, errors.New("range is full")
}

// giveBack frees an address after the request that had it is answered. The next
// repair catches up with a failure.
func (a *Allocator) giveBack(ctx context.Context, ip netip.Addr, s *corev1.Service) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := a.records().free(ctx, ip, s); err != nil {
		klog.FromContext(ctx).Error(err, "Giving back a service's address failed", "address", ip, "service", klog.KObj(s))
	}
}

// Range returns the ServiceCIDR object of the allocator's own range.
func (a *Allocator) Range() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: RangeName, Finalizers: []string{RangeFinalizer}},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{a.own.prefix.String()}}}
}

// Ready marks a range as usable.
func Ready(c *networkingv1.ServiceCIDR) {
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Reason: "", Message: "Kubernetes default Service CIDR is ready"})
}

// objects is the book of a running server.
type objects struct {
	own                netip.Prefix
	ranged, recordings *resources.Store
}

// ranges implements book: the server's own range first, then the other ready ones
// of its family in the order of their names.
func (b *objects) ranges(ctx context.Context) ([]addresses, error) {
	list, err := b.ranged.List(clusterScope(ctx), &internalversion.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the service ranges: %w", err)
	}
	out := []addresses{rangeOf(b.own)}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		c := o.(*networkingv1.ServiceCIDR)
		usable := c.DeletionTimestamp == nil && meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		for _, cidr := range c.Spec.CIDRs {
			switch p, err := netip.ParsePrefix(cidr); {
			case err != nil || p.Addr().Is4() != b.own.Addr().Is4():
			case p == b.own:
				if c.DeletionTimestamp != nil && c.Name == RangeName {
					out = out[1:]
				}
			case usable:
				out = append(out, rangeOf(p))
			}
		}
		return nil
	})
	return out, err
}

// claim implements book.
func (b *objects) claim(ctx context.Context, ip netip.Addr, s *corev1.Service, dry bool) error {
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

// free implements book.
func (b *objects) free(ctx context.Context, ip netip.Addr, s *corev1.Service) error {
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

func (b *objects) erase(ctx context.Context, r *networkingv1.IPAddress) error {
	o := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
	if _, _, err := b.recordings.Delete(clusterScope(ctx), r.Name, rest.ValidateAllObjectFunc, o); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete address %s: %w", r.Name, err)
	}
	return nil
}

// used implements book.
func (b *objects) used(ctx context.Context) (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	return out, b.each(ctx, func(ip netip.Addr, _ *networkingv1.IPAddress) error {
		out[ip] = true
		return nil
	})
}

func (b *objects) each(ctx context.Context, f func(netip.Addr, *networkingv1.IPAddress) error) error {
	list, err := b.recordings.List(clusterScope(ctx), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the stored addresses: %w", err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		r := o.(*networkingv1.IPAddress)
		ip, err := netip.ParseAddr(r.Name)
		if err != nil {
			return nil //nolint:nilerr // validation lets none in
		}
		return f(ip, r)
	})
}

// repair makes the records agree with the services that have addresses: missing
// ones are written, and those of nobody deleted when they are older than young.
func (b *objects) repair(ctx context.Context, owners map[netip.Addr]*corev1.Service, young time.Duration) error {
	missing := owners
	err := b.each(ctx, func(ip netip.Addr, r *networkingv1.IPAddress) error {
		s := owners[ip]
		switch {
		case r.Labels[networkingv1.LabelManagedBy] != managedBy:
			delete(missing, ip) // somebody else's; the service has it all the same
		case s != nil && equality.Semantic.DeepEqual(r.Spec, record(ip, s).Spec):
			delete(missing, ip)
		case time.Since(r.CreationTimestamp.Time) >= young:
			return b.erase(ctx, r)
		}
		return nil
	})
	for ip, s := range missing {
		if e := b.claim(ctx, ip, s, false); e != nil && !errors.Is(e, errAllocated) {
			err = errors.Join(err, fmt.Errorf("record address %v of service %s/%s: %w", ip, s.Namespace, s.Name, e))
		}
	}
	return err
}

func record(ip netip.Addr, s *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: managedBy}},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

func clusterScope(ctx context.Context) context.Context { return apirequest.WithNamespace(ctx, "") }
