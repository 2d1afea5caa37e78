// Package servicecidr makes ServiceCIDRs ready, and keeps a deleted one while its addresses are in
// use. The controller manager runs it; it must never change an address.
package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
)

const (
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	managed   = networkingv1.LabelManagedBy + "=ipallocator.k8s.io"
	// A request in flight when the range was deleted may still allocate an address in it.
	grace = 2 * time.Second
)

var (
	ranges    = networkingv1.Resource("servicecidrs")
	addresses = networkingv1.Resource("ipaddresses")
)

// Controller reconciles ServiceCIDRs. Its key is a name.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface

	mu      sync.Mutex
	leaving map[string]bool // names of deleted ranges
}

// New returns a controller that reads inv and writes through client.
func New(client kubernetes.Interface, inv *inventory.Inventory) *Controller {
	c := &Controller{client: client, leaving: map[string]bool{}}
	c.Reconciler = reconciler.New("servicecidrs", 1, c.reconcile)
	inv.AddReader(c)
	return c
}

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	if k.GroupResource() != ranges {
		return
	}
	c.mu.Lock()
	if o.DeletionTimestamp != nil {
		c.leaving[o.Name] = true
	}
	c.mu.Unlock()
	c.Add(o.Name)
	c.lookAgain() // a new range may contain the addresses of a deleted one
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	switch k.GroupResource() {
	case ranges:
		c.mu.Lock()
		delete(c.leaving, o.Name)
		c.mu.Unlock()
	case addresses:
		c.lookAgain()
	}
}

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		c.Changed(k, o)
	}
	if k.GroupResource() == addresses {
		c.lookAgain()
	}
}

// Kinds implements inventory.Reader.
func (c *Controller) Kinds() {}

func (c *Controller) lookAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.leaving {
		c.Add(name)
	}
}

func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	api := c.client.NetworkingV1().ServiceCIDRs()
	r, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get service CIDR %s: %w", name, err)
	}
	if r.DeletionTimestamp != nil {
		return c.removeFinalizer(ctx, r)
	}
	if !slices.Contains(r.Finalizers, finalizer) {
		r.Finalizers = append(r.Finalizers, finalizer)
		changed, err := api.Update(ctx, r, metav1.UpdateOptions{})
		if err != nil {
			return 0, c.overtaken(ctx, r, "add the finalizer to", err)
		}
		r = changed
	}
	return 0, c.updateReady(ctx, r,
		metav1.Condition{Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready"})
}

// overtaken returns the error of a write to a range; nil if the watch will show why it failed.
func (c *Controller) overtaken(ctx context.Context, r *networkingv1.ServiceCIDR, what string, err error) error {
	live := confirm.By(c.client.NetworkingV1().ServiceCIDRs().Get, r.Name)
	if err = confirm.Overtaken(ctx, r, err, live); err != nil {
		return fmt.Errorf("%s service CIDR %s: %w", what, r.Name, err)
	}
	return nil
}

// removeFinalizer removes the finalizer from a range that is no longer needed.
func (c *Controller) removeFinalizer(ctx context.Context, r *networkingv1.ServiceCIDR) (time.Duration, error) {
	if !slices.Contains(r.Finalizers, finalizer) {
		return 0, nil
	}
	all, err := c.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list service CIDRs: %w", err)
	}
	used, err := c.client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{LabelSelector: managed})
	if err != nil {
		return 0, fmt.Errorf("list service addresses: %w", err)
	}
	if inUse(r, all.Items, used.Items) {
		return 0, c.updateReady(ctx, r,
			metav1.Condition{Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
				Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"})
	}
	if wait := time.Until(r.DeletionTimestamp.Add(grace)); wait > 0 {
		return wait, nil
	}
	r.Finalizers = slices.DeleteFunc(r.Finalizers, func(f string) bool { return f == finalizer })
	_, err = c.client.NetworkingV1().ServiceCIDRs().Update(ctx, r, metav1.UpdateOptions{})
	return 0, c.overtaken(ctx, r, "remove the finalizer of", err)
}

// inUse reports whether an address in use is in range r and in no range that stays.
func inUse(r *networkingv1.ServiceCIDR, all []networkingv1.ServiceCIDR, used []networkingv1.IPAddress) bool {
	var others []networkingv1.ServiceCIDR
	for _, o := range all {
		if o.UID != r.UID && o.DeletionTimestamp == nil {
			others = append(others, o)
		}
	}
	return slices.ContainsFunc(used, func(a networkingv1.IPAddress) bool {
		ip, err := netip.ParseAddr(a.Name)
		return err == nil && contains(r, ip) &&
			!slices.ContainsFunc(others, func(o networkingv1.ServiceCIDR) bool { return contains(&o, ip) })
	})
}

func contains(r *networkingv1.ServiceCIDR, ip netip.Addr) bool {
	return slices.ContainsFunc(r.Spec.CIDRs, func(cidr string) bool {
		p, err := netip.ParsePrefix(cidr)
		return err == nil && p.Contains(ip)
	})
}

// updateReady stores the Ready condition if it has changed.
func (c *Controller) updateReady(ctx context.Context, r *networkingv1.ServiceCIDR, ready metav1.Condition) error {
	ready.Type = networkingv1.ServiceCIDRConditionReady
	if old := meta.FindStatusCondition(r.Status.Conditions, ready.Type); old != nil && old.Status == ready.Status &&
		old.Reason == ready.Reason {
		return nil
	}
	meta.SetStatusCondition(&r.Status.Conditions, ready)
	_, err := c.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, r, metav1.UpdateOptions{})
	return c.overtaken(ctx, r, "update the status of", err)
}
