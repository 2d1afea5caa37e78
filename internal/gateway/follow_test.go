package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/testwait"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/feed"
)

// note adds an object to changes; nil: it was deleted.
func note[T any](into *map[name]T, of name, o T) {
	if *into == nil {
		*into = map[name]T{}
	}
	(*into)[of] = o
}

// fills has the gateway find the endpoints of the lab's Services, as its feed does with those of the API server.
func (l *lab) fills() {
	l.fill = func(s *feed.Snapshot, services map[name]bool, _ map[httproute.Ref]bool) {
		for of := range services { // any order: into maps
			s.Services[of], s.Slices[of] = l.world.Services[of], l.slices[of]
		}
	}
}

// change passes only changed Ingresses and Services to the gateway; those without an object were deleted.
func (l *lab) change(ingresses map[string]*networkingv1.Ingress, services ...string) {
	l.t.Helper()
	s := &feed.Snapshot{Changed: map[name]bool{}, Services: map[name]*corev1.Service{},
		Slices: map[name][]*discoveryv1.EndpointSlice{}}
	for of, in := range ingresses {
		note(&s.Changes.Ingresses, name{Namespace: "default", Name: of}, in)
	}
	for _, of := range services {
		key := name{Namespace: "default", Name: of}
		note(&s.Changes.Services, key, l.world.Services[key])
	}
	l.fills()
	if !l.follow(l.t.Context(), s) {
		l.t.Fatal("the whole world is needed")
	}
	l.Gateway.update(l.t.Context(), s)
}

// Changes of Ingresses and Services are followed without a new plan: what they serve, the pools, and the statuses.
func TestChangesAreFollowed(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("first.example.com", nil, "/=a")
	l.update()
	plan := l.plan
	get := func(host string, status int, text string) {
		t.Helper()
		got, body, _ := l.get("GET", host, "/", nil)
		if text == "" {
			body = ""
		}
		want(t, host, got, body, status, text)
	}
	pools := func(n int) {
		t.Helper()
		if got := l.pools.Len(); got != n || len(l.retired) != 0 || len(l.refs) != n {
			t.Errorf("%d pools, %d retired, %v, want %d", got, len(l.retired), l.refs, n)
		}
	}
	second := l.ingress("second.example.com", nil, "/=b")
	of := map[string]*networkingv1.Ingress{second.Name: second}
	get("second.example.com", 404, "")
	l.change(of)
	get("second.example.com", 500, "")
	pools(1)
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	l.change(nil, "b")
	get("second.example.com", 200, "b GET")
	get("first.example.com", 200, "a GET")
	pools(2)
	if !l.Routed("pb") {
		t.Error("the pod of b gets no requests")
	}
	moved := second.DeepCopy()
	moved.Spec.Rules[0].Host = "third.example.com"
	moved.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "a"
	of[second.Name] = moved
	l.change(of)
	get("second.example.com", 404, "")
	get("third.example.com", 200, "a GET")
	pools(1)
	if l.Routed("pb") {
		t.Error("the pod of b still gets requests")
	}
	delete(l.world.Services, name{Namespace: "default", Name: "a"})
	l.change(nil, "a")
	get("first.example.com", 500, "")
	pools(0)
	of[second.Name] = nil
	l.change(of)
	get("third.example.com", 404, "")
	if l.plan != plan {
		t.Error("there is a new plan")
	}
}

// Through the watches, too, a second Ingress and its new status lead to no new plan. A port that another process uses
// is opened when it is free.
func TestChangesFromWatchesAreFollowed(t *testing.T) {
	client := fake.NewClientset(&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "carob"},
		Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}})
	at := freePort(t)
	taken, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g := New(Config{Client: client, HTTP: at, Events: record.NewFakeRecorder(100),
		Host: func() []netip.Addr { return nil }})
	g.retryAfter = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	l := &lab{t: t}
	api := client.NetworkingV1().Ingresses("default")
	create := func(host string) {
		t.Helper()
		if _, err := api.Create(ctx, l.ingress(host, nil, "/=missing"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	state := func(f func() bool) func() bool {
		return func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.plan != nil && f()
		}
	}
	create("a.example.com")
	testwait.For(t, "the port is taken", state(func() bool { return g.failed[at] != "" }))
	taken.Close()
	testwait.For(t, "the port is opened", state(func() bool { return g.ports[at] != nil && len(g.failed) == 0 }))
	var plan *gatewayplan.Live
	state(func() bool { plan = g.plan; return true })()
	create("b.example.com")
	testwait.For(t, "both are served", state(func() bool {
		_, ok := g.ports[at].site.Load().table.Find(&httproute.Request{Host: "b.example.com", Path: "/"})
		return ok
	}))
	testwait.For(t, "the status is stored", func() bool {
		in, err := api.Get(ctx, "i2", metav1.GetOptions{})
		return err == nil && len(in.Status.LoadBalancer.Ingress) == 1
	})
	late := l.ingress("c.example.com", nil, "/=missing")
	late.Spec.IngressClassName = new("late")
	if _, err := api.Create(ctx, late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	finds := func(host string) func() bool {
		return state(func() bool {
			_, ok := g.ports[at].site.Load().table.Find(&httproute.Request{Host: host, Path: "/"})
			return ok
		})
	}
	classes := client.NetworkingV1().IngressClasses()
	for _, class := range []*networkingv1.IngressClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Spec: networkingv1.IngressClassSpec{Controller: "theirs"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "late"},
			Spec: networkingv1.IngressClassSpec{Controller: gatewayplan.IngressController}},
	} {
		if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testwait.For(t, "the class has come", finds("c.example.com"))
	if err := classes.Delete(ctx, "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the class has gone", func() bool { return !finds("c.example.com")() && finds("a.example.com")() })
	if !state(func() bool { return g.plan == plan })() {
		t.Error("there is a new plan")
	}
}
