package gateway

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
)

// watched are the kinds that have been watched so far.
func watched(c *fake.Clientset) (out []string) {
	for _, a := range c.Actions() {
		if a.GetVerb() == "watch" && !slices.Contains(out, a.GetResource().Resource) {
			out = append(out, a.GetResource().Resource)
		}
	}
	slices.Sort(out)
	return out
}

// Without an Ingress of carob's, only Ingresses and their classes are watched and no port is open. The first one starts
// the rest: it is served, its status has the address, and an event its problem. When it is deleted, the port is
// closed.
func TestNothingRunsUnused(t *testing.T) {
	client := fake.NewClientset(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}})
	at := freePort(t)
	events := record.NewFakeRecorder(100)
	g := New(Config{Client: client, HTTP: at, Events: events, Host: func() []netip.Addr { return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	opens := func() bool {
		c, err := net.DialTimeout("tcp", at.String(), time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	first := []string{"ingressclasses", "ingresses"}
	testwait.For(t, "only Ingresses are watched", func() bool { return slices.Equal(watched(client), first) })
	l := &lab{t: t}
	in := l.ingress("x.example.com", nil, "/=missing")
	theirs := in.DeepCopy()
	theirs.Name, theirs.Spec.IngressClassName = "theirs", new("nginx")
	api := client.NetworkingV1().Ingresses("default")
	if _, err := api.Create(ctx, theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if opens() || !slices.Equal(watched(client), first) {
		t.Errorf("an Ingress of another class: %v", watched(client))
	}
	if _, err := api.Create(ctx, in, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the port is open", opens)
	testwait.For(t, "the status tells where", func() bool {
		stored, err := api.Get(ctx, in.Name, metav1.GetOptions{})
		return err == nil && len(stored.Status.LoadBalancer.Ingress) == 1 &&
			stored.Status.LoadBalancer.Ingress[0].IP == at.Addr().String()
	})
	if e := <-events.Events; !strings.Contains(e, "BackendNotFound") {
		t.Error(e)
	}
	testwait.For(t, "the rest is watched", func() bool { // a watch follows its list
		return slices.Equal(watched(client), []string{"endpointslices", "ingressclasses", "ingresses", "secrets",
			"services"})
	})
	if other, err := api.Get(ctx, "theirs", metav1.GetOptions{}); err != nil ||
		len(other.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("another controller's Ingress: %+v %v", other.Status, err)
	}
	if err := api.Delete(ctx, in.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the port is closed", func() bool { return !opens() })
}

// A status that cannot be stored is stored later.
func TestStatusIsRetried(t *testing.T) {
	client := fake.NewClientset(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}})
	refuse := true
	var mu sync.Mutex
	client.PrependReactor("update", "ingresses", func(clientgotesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			refuse = false
			return true, nil, context.DeadlineExceeded
		}
		return false, nil, nil
	})
	g := New(Config{Client: client, HTTP: freePort(t), Events: record.NewFakeRecorder(100),
		Host: func() []netip.Addr { return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	l := &lab{t: t}
	in := l.ingress("", nil, "/=missing")
	api := client.NetworkingV1().Ingresses("default")
	if _, err := api.Create(ctx, in, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the status is stored", func() bool {
		stored, err := api.Get(ctx, in.Name, metav1.GetOptions{})
		return err == nil && len(stored.Status.LoadBalancer.Ingress) == 1
	})
}
