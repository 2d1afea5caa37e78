package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

const (
	// keepAgain is the wait after a failed look at the kubernetes Service.
	keepAgain = time.Second
	// keepAfter is the wait after a change: the address of a deleted Service is free
	// a moment after it has gone.
	keepAfter = 200 * time.Millisecond
)

// keepKubernetesService makes the kubernetes Service and its endpoints anew when
// somebody deletes or changes them, until ctx ends.
//
//	services, endpoints, endpointslices ──watch──▶ changed (holds one) ──▶ kubernetesService
func (s *Server) keepKubernetesService(ctx context.Context) {
	ctx = apirequest.WithNamespace(asServer(ctx), metav1.NamespaceDefault)
	changed := make(chan struct{}, 1)
	watchers := newGroup(ctx)
	defer watchers.wait()
	for _, gr := range []schema.GroupResource{servicesResource, endpointsResource, slicesResource} {
		watchers.run(func(ctx context.Context) { s.watchKubernetesService(ctx, gr, changed) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(keepAfter):
		}
		if err := s.kubernetesService(ctx, s.stores); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Keeping the kubernetes Service failed; trying again")
			time.AfterFunc(keepAgain, func() { signal(changed) })
		}
	}
}

// repairEvery is upstream's period, too.
const repairEvery = 3 * time.Minute

// repairAddresses makes the records of service addresses agree with the services
// now and then, until ctx ends: somebody may have deleted one.
func (s *Server) repairAddresses(ctx context.Context) {
	ctx = asServer(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairEvery):
		}
		if err := s.allocator.Repair(ctx, s.stores[servicesResource]); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Repairing the addresses of services failed; trying again", "wait", repairEvery)
		}
	}
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
		w, err := s.stores[gr].Watch(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, kubernetesName)})
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
