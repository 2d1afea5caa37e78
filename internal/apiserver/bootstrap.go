package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"carob/internal/apiserver/auth"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/services"
)

var (
	servicesResource  = corev1.Resource("services")
	endpointsResource = corev1.Resource("endpoints")
	slicesResource    = discoveryv1.Resource("endpointslices")
	addressesResource = networkingv1.Resource("ipaddresses")
	rangesResource    = networkingv1.Resource("servicecidrs")
)

const kubernetesName = "kubernetes"

// seed makes the objects that clients take for granted, and restores the
// allocations of what is stored. It works on stores without caches, before the
// caches are made: etcd serves a watch that starts behind a write from a queue it
// looks at ten times a second, and each cache's first list would wait for that.
// Independent objects are made side by side: each costs a write to disk.
func (s *Server) seed(ctx context.Context) error {
	ctx = asServer(ctx)
	b := &registry.Builder{Set: s.set, Options: s.options.Uncached()}
	raw := stores{}
	defer raw.destroy()
	for _, r := range s.descriptors() {
		switch r.GroupResource() {
		case corev1.Resource("namespaces"), schedulingv1.Resource("priorityclasses"), servicesResource, endpointsResource, slicesResource, addressesResource, rangesResource:
			st, _, err := b.Build(r)
			if err != nil {
				return err
			}
			raw[r.GroupResource()] = st
		}
	}
	s.allocator.Bind(raw[rangesResource], raw[addressesResource])
	var err error
	if s.found, err = s.allocator.Restore(apirequest.WithNamespace(ctx, ""), raw[servicesResource]); err != nil {
		return err
	}
	tasks := []func() error{func() error { return s.kubernetesService(ctx, raw) }, func() error { return s.serviceRange(ctx, raw) }}
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		tasks = append(tasks, func() error {
			return raw.create(ctx, corev1.Resource("namespaces"), "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
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

// asServer returns a context whose writes are the server's own.
func asServer(ctx context.Context) context.Context {
	return apirequest.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// stores are the main storages of kinds.
type stores map[schema.GroupResource]*registry.Store

func (s stores) destroy() {
	for _, st := range s {
		if st.DestroyFunc != nil {
			st.DestroyFunc()
		}
	}
}

// create stores obj unless it exists. It looks first: on all but the first start
// that saves a refused write.
func (s stores) create(ctx context.Context, gr schema.GroupResource, namespace string, obj metav1.Object) error {
	ctx = apirequest.WithNamespace(ctx, namespace)
	if _, err := s[gr].Get(ctx, obj.GetName(), &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err := s[gr].Create(ctx, obj.(runtime.Object), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %v: %w", gr, err)
	}
	return nil
}

func systemPriorityClasses() []*schedulingv1.PriorityClass {
	never := new(corev1.PreemptLowerPriority)
	return []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2_000_001_000, PreemptionPolicy: never,
			Description: "Used for system critical pods that must not be moved from their current node."},
		{ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2_000_000_000, PreemptionPolicy: never,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."},
	}
}

// kubernetesService keeps the Service by which pods find the API server, and
// its endpoints at the address the server has today.
func (s *Server) kubernetesService(ctx context.Context, raw stores) error {
	ip, address, port := s.allocator.FirstIP().String(), *s.advertised.Load(), s.port()
	labels := map[string]string{"component": "apiserver", "provider": kubernetesName}
	err := raw.create(ctx, servicesResource, metav1.NamespaceDefault, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
			Ports:                 []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(port)}}},
	})
	if err != nil {
		return err
	}
	if !reachable(address) {
		return nil
	}
	meta := metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}
	ep := &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address.String()}},
		Ports: []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}}}}}
	if err := upsert(ctx, raw[endpointsResource], ep, func(o *corev1.Endpoints) bool {
		if equality.Semantic.DeepEqual(o.Subsets, ep.Subsets) {
			return false
		}
		o.Subsets = ep.Subsets
		return true
	}); err != nil {
		return err
	}
	family := discoveryv1.AddressTypeIPv4
	if address.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesName}},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(port), Protocol: new(corev1.ProtocolTCP)}},
	}
	return upsert(ctx, raw[slicesResource], slice, func(o *discoveryv1.EndpointSlice) bool {
		if equality.Semantic.DeepEqual(o.Endpoints, slice.Endpoints) && equality.Semantic.DeepEqual(o.Ports, slice.Ports) {
			return false
		}
		o.Endpoints, o.Ports = slice.Endpoints, slice.Ports
		return true
	})
}

// serviceRange shows the ranges of service addresses as an object. A second range is
// added to it when the server is started with one; any other difference is only told.
func (s *Server) serviceRange(ctx context.Context, raw stores) error {
	want := s.allocator.Range()
	err := raw.create(ctx, rangesResource, "", want.DeepCopy())
	if err != nil {
		return err
	}
	st, ctx := raw[rangesResource], apirequest.WithNamespace(ctx, "")
	obj, err := st.Get(ctx, want.Name, &metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the service range: %w", err)
	}
	c := obj.(*networkingv1.ServiceCIDR)
	if c.DeletionTimestamp != nil {
		return nil
	}
	if have, wanted := c.Spec.CIDRs, want.Spec.CIDRs; len(have) == 1 && len(wanted) == 2 && have[0] == wanted[0] {
		_, _, err = st.Update(ctx, want.Name, rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			c := old.DeepCopyObject().(*networkingv1.ServiceCIDR)
			c.Spec.CIDRs = wanted
			return c, nil
		}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("add the second service range: %w", err)
		}
	} else if !slices.Equal(have, wanted) {
		s.strangeRange.Store(c)
		return nil
	}
	if len(c.Status.Conditions) > 0 {
		return nil
	}
	_, _, err = st.Status().Update(ctx, want.Name, rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		c := old.DeepCopyObject().(*networkingv1.ServiceCIDR)
		services.Ready(c)
		return c, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("make the service range ready: %w", err)
	}
	return nil
}

// reachable reports whether an address is of use to a pod; others are not valid in endpoints.
func reachable(a netip.Addr) bool { return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() }

func (s *Server) port() int32 {
	if a, ok := s.cfg.Listener.Addr().(*net.TCPAddr); ok {
		return int32(a.Port)
	}
	return 0
}

// upsert creates obj, or lets change adjust what is stored; change reports
// whether there is anything to write.
func upsert[T metav1.Object](ctx context.Context, st *registry.Store, obj T, change func(T) bool) error {
	ctx = apirequest.WithNamespace(ctx, obj.GetNamespace())
	_, err := st.Create(ctx, any(obj).(runtime.Object).DeepCopyObject(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, _, err = st.Update(ctx, obj.GetName(), rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		o := old.DeepCopyObject()
		change(any(o).(T))
		return o, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

// policyDelay leaves the first second after a start to the parts that read the
// whole cluster then: a hundred writes in a row hold back their first lists.
const policyDelay = time.Second

// reconcilePolicy stores the built-in policy: what is missing is made, and what
// is marked for it gets back the rules it lacks. The authorizer knows the policy
// already, so nothing waits for this.
func (s *Server) reconcilePolicy(ctx context.Context) {
	log := klog.FromContext(ctx)
	ctx = asServer(ctx)
	select {
	case <-time.After(policyDelay):
	case <-ctx.Done():
		return
	}
	for _, o := range auth.Builtin().Objects() {
		if ctx.Err() != nil {
			return
		}
		if err := s.reconcilePolicyObject(ctx, o); err != nil && ctx.Err() == nil {
			log.Error(err, "Storing the built-in RBAC policy failed", "resource", o.Resource)
			return
		}
	}
	s.storeLater(ctx)
	s.aggregateRoles(ctx)
}

// aggregateRoles keeps the rules of aggregated ClusterRoles until ctx ends.
func (s *Server) aggregateRoles(ctx context.Context) {
	st, ctx := s.stores[rbacv1.Resource("clusterroles")], apirequest.WithNamespace(ctx, "")
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.rbac.Changed():
		}
		for _, role := range s.rbac.Aggregated() {
			_, _, err := st.Update(ctx, role.Name, rest.DefaultUpdatedObjectInfo(role), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
			// A conflict means that a newer version is on its way here and signals again.
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Aggregating the rules of a role failed", "clusterRole", role.Name)
			}
		}
	}
}

func (s *Server) reconcilePolicyObject(ctx context.Context, o auth.Object) error {
	m := o.Object.(metav1.Object)
	ctx = apirequest.WithNamespace(ctx, m.GetNamespace())
	st := s.stores[o.Resource]
	old, err := st.Get(ctx, m.GetName(), &metav1.GetOptions{ResourceVersion: "0"})
	if err == nil {
		merged, changed := auth.Merge(old, o.Object)
		if !changed {
			return nil
		}
		_, _, err = st.Update(ctx, m.GetName(), rest.DefaultUpdatedObjectInfo(merged), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = st.Create(ctx, o.Object.DeepCopyObject(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
