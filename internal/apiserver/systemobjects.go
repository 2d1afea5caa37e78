package apiserver

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"carob/internal/core/resources"
	"carob/internal/kinds/apiregistration"
	"carob/internal/kinds/registry"
)

// seed creates the objects that clients take for granted, and restores the allocations of stored
// objects. It uses stores without caches, before the caches are created: etcd serves a watch that
// starts behind a write from a queue that it checks ten times a second, and each cache's first list
// would wait for that. Independent objects are created in parallel: each costs a write to disk.
func (s *Server) seed(ctx context.Context) error {
	ctx = asServer(ctx)
	b := &registry.Builder{Set: s.set, Options: s.options.Uncached()}
	raw := stores{}
	defer raw.destroy()
	for _, r := range s.descriptors() {
		switch r.GroupResource() {
		case corev1.Resource("namespaces"), schedulingv1.Resource("priorityclasses"), servicesResource,
			endpointsResource, slicesResource, addressesResource, rangesResource:
			st, _, err := b.Build(r)
			if err != nil {
				return err
			}
			raw[r.GroupResource()] = st
		}
	}
	s.allocator.Bind(raw[rangesResource], raw[addressesResource])
	var err error
	if s.found, err = s.allocator.Restore(apirequest.WithNamespace(ctx, ""), raw[servicesResource],
		readServices(raw[servicesResource])); err != nil {
		return err
	}
	tasks := []func() error{func() error { return s.kubernetesService(ctx, raw) },
		func() error { return s.serviceRange(ctx, raw) }}
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic,
		corev1.NamespaceNodeLease} {
		tasks = append(tasks, func() error {
			return raw.create(ctx, corev1.Resource("namespaces"), "",
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		})
	}
	for _, c := range systemPriorityClasses() {
		tasks = append(tasks, func() error { return raw.create(ctx, schedulingv1.Resource("priorityclasses"), "", c) })
	}
	errs := make(chan error, len(tasks))
	var wg sync.WaitGroup
	for _, t := range tasks {
		wg.Go(func() { errs <- t() })
	}
	wg.Wait()
	for range tasks {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// asServer returns a context whose writes have the server's own identity.
func asServer(ctx context.Context) context.Context {
	return apirequest.WithUser(ctx,
		&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

func systemPriorityClasses() []*schedulingv1.PriorityClass {
	never := new(corev1.PreemptLowerPriority)
	return []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: resources.NodeCritical}, Value: resources.NodeCriticalPriority,
			PreemptionPolicy: never,
			Description:      "Used for system critical pods that must not be moved from their current node."},
		{ObjectMeta: metav1.ObjectMeta{Name: resources.ClusterCritical}, Value: resources.ClusterCriticalPriority,
			PreemptionPolicy: never,
			Description:      "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."},
	}
}

// storeAfterStart creates the objects that nothing waits for: APIServices of the built-in groups,
// and what other API servers need to trust this one.
func (s *Server) storeAfterStart(ctx context.Context) {
	for _, gv := range s.versions {
		if ctx.Err() != nil {
			return
		}
		if gv.Group == apiregistration.GroupResource.Group {
			continue // the others are listed by it
		}
		if err := s.storeAPIService(ctx, gv); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Storing an APIService failed", "groupVersion", gv)
			s.conditions.fail(err, groupChecks...)
			return
		}
	}
	if err := s.storeTrust(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Storing the configuration of other API servers failed")
		s.conditions.fail(err, trustChecks...)
	}
	if err := s.trackTokens(ctx, time.Now()); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot store the date from which the use of tokens is tracked")
	}
}
