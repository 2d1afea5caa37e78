package services

import (
	"context"
	"fmt"
	"net/netip"
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
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/klog/v2"

	"carob/internal/apiserver/resources"
)

// The set of used addresses lives in memory. What users see of it are objects:
// an IPAddress for each address of a service, written after the service and
// deleted after it, and a ServiceCIDR for the range. An IPAddress that somebody
// else makes keeps its address from services. Restore puts in order what a
// crash between two writes left.

const (
	// rangeName is the ServiceCIDR of the range the server was started with.
	rangeName = "kubernetes"
	// managedBy marks the records made here.
	managedBy = "ipallocator.k8s.io"
	// recordTimeout bounds a write beside a request that is answered already.
	recordTimeout = 10 * time.Second
)

// Bind says where the records are kept from now on.
func (a *Allocator) Bind(addresses *resources.Store) { a.records.Store(addresses) }

// Range returns the ServiceCIDR object of the allocator's range.
func (a *Allocator) Range() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: rangeName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{a.ips.prefix.String()}}}
}

// Ready marks a range as usable.
func Ready(c *networkingv1.ServiceCIDR) {
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
		Reason: "", Message: "Kubernetes default Service CIDR is ready"})
}

// Addresses adds the allocator's hooks to the descriptor of IPAddresses.
func (a *Allocator) Addresses(r *resources.Resource) {
	before := r.Customize
	r.Customize = func(s *genericregistry.Store, base *resources.Strategy) {
		if before != nil {
			before(s, base)
		}
		s.BeginCreate = func(_ context.Context, obj runtime.Object, opts *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			ip, ok := foreign(obj)
			if !ok || dryrun.IsDryRun(opts.DryRun) {
				return func(context.Context, bool) {}, nil
			}
			if a.ips.take(ip) != nil {
				ok = false // of another range, or a service has it: then the object exists, or will soon
			}
			return func(_ context.Context, success bool) {
				if ok && !success {
					a.ips.release(ip)
				}
			}, nil
		}
		s.AfterDelete = func(obj runtime.Object, opts *metav1.DeleteOptions) {
			if ip, ok := foreign(obj); ok && !dryrun.IsDryRun(opts.DryRun) {
				a.ips.release(ip)
			}
		}
	}
}

// foreign returns the address of an IPAddress that was not made here.
func foreign(obj runtime.Object) (netip.Addr, bool) {
	o := obj.(*networkingv1.IPAddress)
	ip, err := netip.ParseAddr(o.Name)
	return ip, err == nil && o.Labels[networkingv1.LabelManagedBy] != managedBy
}

func record(ip netip.Addr, s *corev1.Service) *networkingv1.IPAddress {
	family := corev1.IPv4Protocol
	if ip.Is6() {
		family = corev1.IPv6Protocol
	}
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: managedBy}},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
}

// write makes the record of an address. The service is stored already, so an
// error is logged; the next start repairs it.
func (a *Allocator) write(ctx context.Context, ip netip.Addr, s *corev1.Service) {
	st := a.records.Load()
	if st == nil {
		return
	}
	ctx, cancel := context.WithTimeout(apirequest.WithNamespace(context.WithoutCancel(ctx), ""), recordTimeout)
	defer cancel()
	_, err := st.Create(ctx, record(ip, s), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		klog.FromContext(ctx).Error(err, "Recording a service's address failed", "address", ip, "service", klog.KObj(s))
	}
}

// erase deletes the record of an address.
func (a *Allocator) erase(ip netip.Addr) {
	st := a.records.Load()
	if st == nil {
		return
	}
	ctx, cancel := context.WithTimeout(apirequest.WithNamespace(context.Background(), ""), recordTimeout)
	defer cancel()
	_, _, err := st.Delete(ctx, ip.String(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Deleting the record of a service's address failed", "address", ip)
	}
}

// restoreRecords makes the records agree with the services that have addresses:
// missing ones are written, those of nobody deleted, and addresses of others taken.
func (a *Allocator) restoreRecords(ctx context.Context, owners map[netip.Addr]*corev1.Service) error {
	st := a.records.Load()
	if st == nil {
		return nil
	}
	list, err := st.List(apirequest.WithNamespace(ctx, ""), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the stored addresses: %w", err)
	}
	missing := owners
	err = meta.EachListItem(list, func(o runtime.Object) error {
		r := o.(*networkingv1.IPAddress)
		ip, err := netip.ParseAddr(r.Name)
		if err != nil {
			return nil
		}
		if _, other := foreign(r); other {
			_ = a.ips.take(ip) // of another range or a service's: nothing to take
			return nil
		}
		if s := owners[ip]; s != nil && equality.Semantic.DeepEqual(r.Spec, record(ip, s).Spec) {
			delete(missing, ip)
			return nil
		}
		a.erase(ip)
		return nil
	})
	if err != nil {
		return err
	}
	for ip, s := range missing {
		a.write(ctx, ip, s)
	}
	return nil
}
