// Package endpointslicemirroring copies Endpoints objects that users manage to EndpointSlices,
// which proxies and the DNS read.
//
// Contract: N1.I in docs/spec/network.md.
package endpointslicemirroring

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/servicepods"
	"carob/internal/controllers/slicewriter"
	"carob/internal/controllers/source"
	"carob/internal/core/netplan/mirror"
)

// foreignDelay is the wait after another writer changed a slice, so that two conflicting writers do
// not overwrite each other at once (N0.23).
const foreignDelay = time.Second

// Watches are what the controller reads.
type Watches struct{ Services, Endpoints, Slices *source.Watch }

// Controller keeps the copies. Its key is the namespace/name of an Endpoints object and its Service.
type Controller struct {
	*reconciler.Reconciler
	Watches
	keeper *children.Keeper

	mu       sync.Mutex
	reported map[string]string // by key, the version with an event about skipped addresses
}

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, w Watches) (*Controller, error) {
	c := &Controller{Watches: w, reported: map[string]string{}}
	c.Reconciler = reconciler.New("endpoint_slice_mirroring", 5, c.reconcile)
	fresh, err := freshness.New(c.Add, w.Slices)
	if err != nil {
		return nil, fmt.Errorf("endpointslicemirroring: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh}
	for _, watch := range []*source.Watch{w.Services, w.Endpoints} {
		if err := watch.OnChange(func(before, after metav1.Object) {
			for _, o := range []metav1.Object{before, after} {
				if o != nil {
					c.Add(servicepods.Key(o))
				}
			}
		}); err != nil {
			return nil, fmt.Errorf("endpointslicemirroring: %w", err)
		}
	}
	if err := w.Slices.OnChange(func(before, after metav1.Object) {
		for _, o := range []metav1.Object{before, after} {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok && managed(s) {
				c.AddAfter(s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName], foreignDelay)
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("endpointslicemirroring: watch slices: %w", err)
	}
	return c, nil
}

func managed(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy && s.Labels[discoveryv1.LabelServiceName] != ""
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		return 0, nil // queued when it is
	}
	var existing []*discoveryv1.EndpointSlice
	for _, s := range source.SlicesOf(c.Slices, key) {
		if managed(s) && s.DeletionTimestamp == nil {
			existing = append(existing, s)
		}
	}
	endpoints, service := source.Get[*corev1.Endpoints](c.Endpoints, key), source.Get[*corev1.Service](c.Services, key)
	plan := slicewriter.Plan{Delete: existing}
	if mirror.Mirrors(endpoints, service) {
		p := mirror.Decide(endpoints, existing)
		plan = slicewriter.Plan{Create: p.Create, Update: p.Update, Delete: p.Delete}
		c.recordSkipped(key, endpoints, &p)
	} else {
		c.mu.Lock()
		delete(c.reported, key)
		c.mu.Unlock()
	}
	if err := slicewriter.Write(ctx, c.keeper, c.Slices, key, plan, func(string) {}); err != nil {
		return 0, fmt.Errorf("copies of endpoints %s: %w", key, err)
	}
	return 0, nil
}

// recordSkipped records an event about skipped addresses, once per version of an object (N1.41).
func (c *Controller) recordSkipped(key string, e *corev1.Endpoints, p *mirror.Plan) {
	if p.Skipped == 0 {
		return
	}
	c.mu.Lock()
	reported := c.reported[key] == e.ResourceVersion
	c.reported[key] = e.ResourceVersion
	c.mu.Unlock()
	if reported {
		return
	}
	if p.Invalid > 0 {
		c.keeper.Events.Eventf(e, corev1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", p.Invalid)
	}
	if p.Skipped > p.Invalid {
		c.keeper.Events.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
			mirror.Max, p.Skipped)
	}
}
