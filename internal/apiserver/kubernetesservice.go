package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

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

// kubernetesService keeps the Service by which pods find the API server, and its endpoints at the
// server's current address.
func (s *Server) kubernetesService(ctx context.Context, raw stores) error {
	ip, address, port := s.allocator.FirstIP().String(), *s.advertised.Load(), s.port()
	labels := map[string]string{"component": "apiserver", "provider": kubernetesName}
	err := raw.create(ctx, servicesResource, metav1.NamespaceDefault, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
			Ports: []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443,
				TargetPort: intstr.FromInt32(port)}}},
	})
	if err != nil {
		return err
	}
	if !reachable(address) {
		return nil
	}
	meta := metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault,
		Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}
	ep := &corev1.Endpoints{ObjectMeta: meta,
		Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address.String()}},
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
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesName}},
		AddressType: family,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(port),
			Protocol: new(corev1.ProtocolTCP)}},
	}
	return upsert(ctx, raw[slicesResource], slice, func(o *discoveryv1.EndpointSlice) bool {
		if o.AddressType == slice.AddressType && equality.Semantic.DeepEqual(o.Endpoints, slice.Endpoints) &&
			equality.Semantic.DeepEqual(o.Ports, slice.Ports) {
			return false
		}
		o.AddressType, o.Endpoints, o.Ports = slice.AddressType, slice.Endpoints, slice.Ports
		return true
	})
}

// serviceRange stores the ranges of service addresses as an object. A second range is added to it
// if the server is started with one; any other difference is only reported.
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
		_, _, err = st.Update(ctx, want.Name,
			rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
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
	_, _, err = st.Status().Update(ctx, want.Name,
		rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			c := old.DeepCopyObject().(*networkingv1.ServiceCIDR)
			services.Ready(c)
			return c, nil
		}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("make the service range ready: %w", err)
	}
	return nil
}

// reachable reports whether pods can use an address; others are not valid in endpoints.
func reachable(a netip.Addr) bool { return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() }

func (s *Server) port() int32 {
	if a, ok := s.cfg.Listener.Addr().(*net.TCPAddr); ok {
		return int32(a.Port)
	}
	return 0
}

const (
	// serviceRetry is the wait after a failed update of the kubernetes Service.
	serviceRetry = time.Second
	// serviceDelay is the wait after a change: the address of a deleted Service is free a moment
	// after it is gone.
	serviceDelay = 200 * time.Millisecond
	// rangesDelay is when the watch of ranges begins after a start.
	rangesDelay = 3 * time.Second
)

// keepKubernetesService creates the kubernetes Service, its endpoints, and the default ServiceCIDR
// again when they are deleted or changed, until ctx ends.
//
//	services, endpoints, endpointslices, servicecidrs ──watch──▶ changed (holds one) ──▶ kubernetesService, serviceRange
func (s *Server) keepKubernetesService(ctx context.Context) {
	ctx = asServer(ctx)
	changed := make(chan struct{}, 1)
	watchers := newTaskGroup(ctx)
	defer watchers.wait()
	for _, gr := range []schema.GroupResource{servicesResource, endpointsResource, slicesResource} {
		watchers.run(func(ctx context.Context) { s.watchKubernetesService(ctx, gr, changed) })
	}
	watchers.run(func(ctx context.Context) {
		// The first watch of ranges creates their cache, for which the start need not wait.
		select {
		case <-ctx.Done():
		case <-time.After(rangesDelay):
			s.watchKubernetesService(ctx, rangesResource, changed)
		}
	})
	repeat(ctx, changed, s.moved, func() error {
		if err := s.serviceRange(ctx, s.stores); err != nil {
			return err
		}
		return s.kubernetesService(apirequest.WithNamespace(ctx, metav1.NamespaceDefault), s.stores)
	})
}

// repeat calls update a moment after each signal, and again a while after a failure, until ctx ends.
func repeat(ctx context.Context, changed, moved <-chan struct{}, update func() error) {
	var retry <-chan time.Time // of the last failure; a signal may come before
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-moved:
		case <-retry:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(serviceDelay):
		}
		retry = nil
		if err := update(); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Keeping the kubernetes Service failed; trying again")
			retry = time.After(serviceRetry)
		}
	}
}

// Advertise makes another address of the machine the endpoint of the kubernetes Service. An address
// of another IP family than at the start, or a loopback address, is ignored.
func (s *Server) Advertise(addr netip.Addr) {
	if have := *s.advertised.Load(); addr == have || !reachable(addr) || addr.Is4() != s.cfg.AdvertiseAddress.Is4() {
		return
	}
	s.advertised.Store(&addr)
	signal(s.moved)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watchKubernetesService signals each change of the object named kubernetes of one kind.
func (s *Server) watchKubernetesService(ctx context.Context, gr schema.GroupResource, changed chan struct{}) {
	for ctx.Err() == nil {
		scope := apirequest.WithNamespace(ctx, metav1.NamespaceDefault)
		if gr == rangesResource {
			scope = apirequest.WithNamespace(ctx, "")
		}
		w, err := s.stores[gr].Watch(scope,
			&internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField,
				kubernetesName)})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(serviceRetry):
			}
			continue
		}
		signal(changed) // changes between two watches are unknown
		for range w.ResultChan() {
			signal(changed)
		}
	}
}
