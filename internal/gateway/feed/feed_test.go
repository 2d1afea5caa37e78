package feed

import (
	"context"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
)

// The kinds that an Ingress needs are watched from the first one of carob's to the last.
func TestWatchesEndUnused(t *testing.T) {
	client := fake.NewClientset(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}})
	f := New(Config{Client: client})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	watching := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.running[backingKinds] != nil
	}
	taken := func(ingresses int) func() bool {
		return func() bool {
			_, _, ok := f.Take()
			f.mu.Lock()
			defer f.mu.Unlock()
			return ok && len(f.ingresses.all) == ingresses
		}
	}
	testwait.For(t, "the first lists are complete", taken(0))
	if watching() {
		t.Error("Services are watched for no Ingress")
	}
	api := client.NetworkingV1().Ingresses("default")
	if _, err := api.Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "in"},
		Spec: networkingv1.IngressSpec{IngressClassName: new("carob")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the rest is watched", watching)
	testwait.For(t, "its lists are complete", taken(1))
	if err := api.Delete(ctx, "in", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the other watches have ended", func() bool { return !watching() })
}
