// Package endpointslice gives Services with a selector their EndpointSlices. It drives
// core/netplan/endpointslice. The controller manager runs it; it must never change slices of other
// managers.
//
// Contract: N1 in docs/spec/network.md.
package endpointslice

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/servicepods"
	"carob/internal/controllers/slicewriter"
	"carob/internal/controllers/source"
	"carob/internal/core/netplan"
	"carob/internal/core/netplan/endpointslice"
)

// foreignDelay is the wait after another writer changed a slice, so that two conflicting writers do
// not overwrite each other at once (N0.23).
const foreignDelay = time.Second

// Watches are what the controller reads; services and pods are indexed by namespace, pods
// source.ByNode, too.
type Watches struct{ Services, Pods, Slices, Nodes *source.Watch }

// Controller keeps the slices. Its key is a Service's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	Watches
	keeper *children.Keeper
	behind *servicepods.Watch
}

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, w Watches) (*Controller, error) {
	c := &Controller{Watches: w}
	c.Reconciler = reconciler.New("endpoint_slice", 5, c.reconcile)
	fresh, err := freshness.New(c.Add, w.Slices)
	if err != nil {
		return nil, fmt.Errorf("endpointslice: %w", err)
	}
	metrics.OnRead(func() { metrics.SlicesNumber.WithLabelValues().Set(float64(len(w.Slices.Objects().ListKeys()))) })
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: w.Pods}
	if c.behind, err = servicepods.New(w.Services, w.Pods, c.Add); err != nil {
		return nil, fmt.Errorf("endpointslice: %w", err)
	}
	if err := w.Slices.OnChange(func(before, after metav1.Object) {
		for _, o := range []metav1.Object{before, after} {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok && managed(s) {
				c.AddAfter(s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName], foreignDelay)
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("endpointslice: watch slices: %w", err)
	}
	// A pod may be observed before its node (N1.14).
	if err := w.Nodes.OnChange(func(before, after metav1.Object) {
		if before == nil {
			for _, p := range source.OnNode(w.Pods, after.GetName()) {
				c.behind.Affected(nil, p, c.Add)
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("endpointslice: watch nodes: %w", err)
	}
	return c, nil
}

func managed(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == endpointslice.ManagedBy &&
		s.Labels[discoveryv1.LabelServiceName] != ""
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		metrics.SliceSyncs.WithLabelValues("stale").Inc()
		return 0, nil // queued when it is
	}
	service := source.Get[*corev1.Service](c.Services, key)
	if service == nil {
		c.behind.Forget(key) // the garbage collector deletes its slices
		return 0, nil
	}
	if !netplan.Selects(service) {
		return 0, nil
	}
	in := endpointslice.Input{Service: service, Zones: map[string]string{}}
	in.Pods, in.Trigger = c.behind.Of(service)
	for _, p := range in.Pods {
		if n := source.Get[*corev1.Node](c.Nodes, p.Spec.NodeName); n != nil {
			in.Zones[n.Name] = n.Labels[corev1.LabelTopologyZone]
		}
	}
	for _, s := range source.SlicesOf(c.Slices, key) {
		if managed(s) && s.DeletionTimestamp == nil {
			in.Slices = append(in.Slices, s)
		}
	}
	plan := endpointslice.Decide(in)
	err := slicewriter.Write(ctx, c.keeper, c.Slices, key,
		slicewriter.Plan{Create: plan.Create, Update: plan.Update, Delete: plan.Delete},
		func(operation string) { metrics.SliceChanges.WithLabelValues(operation).Inc() })
	result := "success"
	if err != nil {
		result = "error"
	}
	metrics.SliceSyncs.WithLabelValues(result).Inc()
	if err == nil && len(plan.Lost) > 0 {
		err = fmt.Errorf("the nodes of the pods %s are not known", strings.Join(plan.Lost, ", "))
	}
	if err != nil {
		c.keeper.Events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", service.Namespace, service.Name, err)
		return 0, fmt.Errorf("endpoint slices of service %s: %w", key, err)
	}
	return 0, nil
}
