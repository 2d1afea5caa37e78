package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"carob/internal/kinds/services"
)

const (
	// keepAgain is the wait after a failed look at the kubernetes Service.
	keepAgain = time.Second
	// keepAfter is the wait after a change: the address of a deleted Service is free
	// a moment after it has gone.
	keepAfter = 200 * time.Millisecond
	// keepRanges is when the ranges are watched after a start.
	keepRanges = 3 * time.Second
)

// keepKubernetesService makes the kubernetes Service, its endpoints and the default
// ServiceCIDR anew when somebody deletes or changes them, until ctx ends.
//
//	services, endpoints, endpointslices, servicecidrs ──watch──▶ changed (holds one) ──▶ kubernetesService, serviceRange
func (s *Server) keepKubernetesService(ctx context.Context) {
	ctx = asServer(ctx)
	changed := make(chan struct{}, 1)
	watchers := newGroup(ctx)
	defer watchers.wait()
	for _, gr := range []schema.GroupResource{servicesResource, endpointsResource, slicesResource} {
		watchers.run(func(ctx context.Context) { s.watchKubernetesService(ctx, gr, changed) })
	}
	watchers.run(func(ctx context.Context) {
		// The first watch of ranges makes their cache, which the boot need not wait for.
		select {
		case <-ctx.Done():
		case <-time.After(keepRanges):
			s.watchKubernetesService(ctx, rangesResource, changed)
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.moved:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(keepAfter):
		}
		err := s.serviceRange(ctx, s.stores)
		if err == nil {
			err = s.kubernetesService(apirequest.WithNamespace(ctx, metav1.NamespaceDefault), s.stores)
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Keeping the kubernetes Service failed; trying again")
			time.AfterFunc(keepAgain, func() { signal(changed) })
		}
	}
}

// Advertise has the kubernetes Service lead to another address of the machine. One
// that is of the other IP family than that of the start, or a loopback address, is
// not taken.
func (s *Server) Advertise(addr netip.Addr) {
	if have := *s.advertised.Load(); addr == have || !reachable(addr) || addr.Is4() != s.cfg.AdvertiseAddress.Is4() {
		return
	}
	s.advertised.Store(&addr)
	signal(s.moved)
}

// repairEvery is upstream's period, too.
const repairEvery = 3 * time.Minute

// repair makes the records of service addresses and ports agree with the services now
// and then, until ctx ends, and the config map on tokens anew: somebody may have deleted one. What it finds,
// and what the start has found, is told as events.
func (s *Server) repair(ctx context.Context) {
	ctx = asServer(ctx)
	found := s.found
	if c := s.strangeRange.Load(); c != nil {
		found = append(found, services.Finding{About: c, Reporter: services.RangeReporter, Reason: "KubernetesDefaultServiceCIDRInconsistent", Action: "ServiceCIDRSync",
			Message: fmt.Sprintf("The default ServiceCIDR %v does not match the controller flag configurations %v", c.Spec.CIDRs, s.allocator.Range().Spec.CIDRs)})
	}
	var reporters map[string]events.EventRecorder // made with the first finding
	for {
		if len(found) > 0 && reporters == nil {
			reporters = s.reporters(ctx, services.AddressReporter, services.PortReporter, services.RangeReporter)
		}
		for _, f := range found {
			klog.FromContext(ctx).Info("Repairing services", "reason", f.Reason, "finding", f.Message)
			reporters[f.Reporter].Eventf(f.About, nil, corev1.EventTypeWarning, f.Reason, f.Action, "%s", f.Message)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairEvery):
		}
		var err error
		if found, err = s.allocator.Repair(ctx, s.stores[servicesResource]); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Repairing the addresses of services failed; trying again", "wait", repairEvery)
		}
		if err := s.trackTokens(ctx, time.Now()); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Storing since when the use of tokens is noted failed; trying again", "wait", repairEvery)
		}
	}
}

// reporters are recorders of events by the names of who reports them; they end with ctx.
func (s *Server) reporters(ctx context.Context, names ...string) map[string]events.EventRecorder {
	client, err := kubernetes.NewForConfig(s.ownClient())
	if err != nil {
		panic(fmt.Sprintf("a client of our own: %v", err)) // it has no options that could be wrong
	}
	out := map[string]events.EventRecorder{}
	for _, name := range names {
		b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
		if err := b.StartRecordingToSinkWithContext(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Recording events failed", "reporter", name)
		}
		context.AfterFunc(ctx, b.Shutdown)
		out[name] = b.NewRecorder(s.set.Scheme, name)
	}
	return out
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
		w, err := s.stores[gr].Watch(scope, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, kubernetesName)})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(keepAgain):
			}
			continue
		}
		signal(changed) // what happened between two watches is not known
		for range w.ResultChan() {
			signal(changed)
		}
	}
}
