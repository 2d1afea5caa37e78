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

// keepAgain is the wait after a failed look at the kubernetes Service.
const keepAgain = time.Second

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
		if err := s.kubernetesService(ctx, s.stores); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Keeping the kubernetes Service failed; trying again")
			time.AfterFunc(keepAgain, func() { signal(changed) })
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
