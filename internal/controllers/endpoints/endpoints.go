// Package endpoints gives Services with a selector their Endpoints object, for clients from before
// EndpointSlices. It drives core/netplan/endpoints. The controller manager runs it; it must never
// change the Endpoints of Services without a selector.
//
// Contract: N1.J in docs/spec/network.md.
package endpoints

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/servicepods"
	"carob/internal/controllers/source"
	"carob/internal/core/netplan"
	"carob/internal/core/netplan/endpoints"
)

// Controller keeps Endpoints. Its key is the namespace/name of a Service and its Endpoints.
type Controller struct {
	*reconciler.Reconciler
	services, endpoints *source.Watch
	keeper              *children.Keeper
	behind              *servicepods.Watch

	mu   sync.Mutex
	gone map[string]bool // Services deleted while this ran: their Endpoints are deleted, whoever created them
}

// afterSlices is the wait after a change of a Service or of its pods. The EndpointSlices, which traffic depends on, are
// written first: the store syncs one write after the other to the disk. Nothing in carob waits for Endpoints.
const afterSlices = 20 * time.Millisecond

// New returns a controller; services and pods are indexed by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, services, pods,
	stored *source.Watch) (*Controller, error) {
	c := &Controller{services: services, endpoints: stored, gone: map[string]bool{}}
	c.Reconciler = reconciler.New("endpoint", 5, c.reconcile)
	fresh, err := freshness.New(c.Add, stored)
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: pods}
	if err := services.OnChange(func(before, after metav1.Object) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if after == nil {
			c.gone[servicepods.Key(before)] = true
		} else {
			delete(c.gone, servicepods.Key(after))
		}
	}); err != nil {
		return nil, fmt.Errorf("endpoints: watch services: %w", err)
	}
	if c.behind, err = servicepods.New(services, pods, func(key string) { c.AddAfter(key, afterSlices) }); err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	// Endpoints of Services that were deleted while this controller did not run, and Endpoints that others
	// deleted.
	if err := stored.OnChange(func(before, after metav1.Object) {
		switch {
		case after == nil:
			c.Add(servicepods.Key(before))
		case before == nil && ours(after):
			c.Add(servicepods.Key(after))
		}
	}); err != nil {
		return nil, fmt.Errorf("endpoints: watch endpoints: %w", err)
	}
	return c, nil
}

func ours(o metav1.Object) bool {
	return o.GetLabels()[endpoints.LabelManagedBy] == endpoints.ManagedBy
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		return 0, nil // queued when it is
	}
	stored := source.Get[*corev1.Endpoints](c.endpoints, key)
	service := source.Get[*corev1.Service](c.services, key)
	if service == nil {
		return 0, c.remove(ctx, key, stored)
	}
	if !netplan.Selects(service) {
		return 0, nil
	}
	in := endpoints.Input{Service: service, Stored: stored}
	in.Pods, in.Trigger = c.behind.Of(service)
	wanted := endpoints.Decide(in)
	if wanted == nil {
		return 0, nil
	}
	api := c.keeper.Client.CoreV1().Endpoints(service.Namespace)
	if stored == nil {
		made, err := api.Create(ctx, wanted, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the watch lags behind; its next event queues the key
			made, err = api.Get(ctx, wanted.Name, metav1.GetOptions{})
		}
		if children.NamespaceEnds(err) {
			return 0, nil
		}
		if err != nil {
			c.keeper.Events.Eventf(wanted, corev1.EventTypeWarning, "FailedToCreateEndpoint",
				"Failed to create endpoint for service %v/%v: %v", service.Namespace, service.Name, err)
			return 0, fmt.Errorf("create endpoints %s: %w", key, err)
		}
		c.keeper.Fresh.Wrote(key, c.endpoints, made)
		return 0, nil
	}
	changed, err := api.Update(ctx, wanted, metav1.UpdateOptions{})
	if err == nil {
		c.keeper.Fresh.Wrote(key, c.endpoints, changed)
		return 0, nil
	}
	err = c.keeper.Behind(ctx, key, c.endpoints, stored, err, confirm.By(api.Get, wanted.Name))
	if err != nil {
		c.keeper.Events.Eventf(wanted, corev1.EventTypeWarning, "FailedToUpdateEndpoint",
			"Failed to update endpoint %v/%v: %v", service.Namespace, service.Name, err)
		return 0, fmt.Errorf("update endpoints %s: %w", key, err)
	}
	return 0, nil
}

// remove deletes the Endpoints of a deleted Service (N1.49).
func (c *Controller) remove(ctx context.Context, key string, stored *corev1.Endpoints) error {
	c.behind.Forget(key)
	c.mu.Lock()
	gone := c.gone[key]
	c.mu.Unlock()
	if stored != nil && (gone || ours(stored)) {
		api := c.keeper.Client.CoreV1().Endpoints(stored.Namespace)
		err := api.Delete(ctx, stored.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(stored.UID))})
		err = confirm.Ended(ctx, stored.UID, err, confirm.By(api.Get, stored.Name))
		if err != nil {
			return fmt.Errorf("delete endpoints %s: %w", key, err)
		}
	}
	c.mu.Lock()
	delete(c.gone, key)
	c.mu.Unlock()
	return nil
}
