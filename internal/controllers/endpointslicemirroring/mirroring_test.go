package endpointslicemirroring_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/endpointslicemirroring"
	"carob/internal/controllers/source"
)

// start runs the controller until stop.
func start(t *testing.T, api *controllertest.API, events record.EventRecorder) (stop func()) {
	t.Helper()
	w := endpointslicemirroring.Watches{Services: source.Services(api), Endpoints: source.Endpoints(api),
		Slices: source.EndpointSlices(api)}
	c, err := endpointslicemirroring.New(api, events, w)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	watches := []*source.Watch{w.Services, w.Endpoints, w.Slices}
	for _, watch := range watches {
		all.Go(func() { watch.Run(ctx) })
	}
	for _, watch := range watches {
		<-watch.Synced()
	}
	all.Go(func() { c.Run(ctx) })
	return func() { cancel(); all.Wait() }
}

func service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}}
}

func object(ips ...string) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"},
		Subsets: []corev1.EndpointSubset{{Ports: []corev1.EndpointPort{{Name: "sql", Port: 5432, Protocol: "TCP"}}}}}
	for _, ip := range ips {
		e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: ip})
	}
	return e
}

// content formats the content of the Service's slices.
func content(api *controllertest.API) string {
	var out []string
	for _, s := range controllertest.All[*discoveryv1.EndpointSlice](api) {
		if s.Labels[discoveryv1.LabelManagedBy] != "endpointslicemirroring-controller.k8s.io" {
			continue
		}
		for _, e := range s.Endpoints {
			out = append(out, e.Addresses[0])
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// N1.38 to N1.43: the copies follow the object, and are deleted with it, with its Service, and when
// the Service or a label requires it.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record.NewFakeRecorder(10)
		api := controllertest.New(service(), object("10.0.0.1"))
		foreign := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "by-hand",
			Labels: map[string]string{discoveryv1.LabelServiceName: "db"}}}
		api.Put(foreign)
		defer start(t, api, events)()
		is := func(what, want string) {
			t.Helper()
			synctest.Wait()
			if got := content(api); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		is("created", "10.0.0.1")
		controllertest.Change(api, "ns", "db", func(e *corev1.Endpoints) { e.Subsets = object("10.0.0.2").Subsets })
		is("changed", "10.0.0.2")
		controllertest.Change(api, "ns", "db",
			func(e *corev1.Endpoints) { e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"} })
		is("to be skipped", "")
		controllertest.Change(api, "ns", "db", func(e *corev1.Endpoints) { e.Labels = nil })
		is("no longer", "10.0.0.2")
		controllertest.Change(api, "ns", "db",
			func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} })
		is("a selector", "")
		controllertest.Change(api, "ns", "db", func(s *corev1.Service) { s.Spec.Selector = nil })
		is("no selector", "10.0.0.2")
		for _, s := range controllertest.All[*discoveryv1.EndpointSlice](api) {
			if s.Name != foreign.Name {
				api.Remove(s)
			}
		}
		time.Sleep(2 * time.Second)
		is("somebody deleted the copy", "10.0.0.2")
		api.Remove(controllertest.All[*corev1.Service](api)[0])
		is("the Service is gone", "")
		api.Put(service())
		is("it is back", "10.0.0.2")
		var many []string
		for i := range 1001 {
			many = append(many, fmt.Sprintf("10.1.%d.%d", i/200, i%200+1))
		}
		controllertest.Change(api, "ns", "db", func(e *corev1.Endpoints) { e.Subsets = object(many...).Subsets })
		synctest.Wait()
		select {
		case e := <-events.Events:
			if e != "Warning TooManyAddressesToMirror A max of 1000 addresses can be mirrored to EndpointSlices per "+
				"Endpoints subset. 1 addresses were skipped" {
				t.Error(e)
			}
		default:
			t.Error("there is no event about a skipped address")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(events.Events) > 0 {
			t.Errorf("a second event: %s", <-events.Events)
		}
		api.Remove(controllertest.All[*corev1.Endpoints](api)[0])
		is("the object is gone", "")
		if n := len(controllertest.All[*discoveryv1.EndpointSlice](api)); n != 1 {
			t.Errorf("%d slices: that of another manager must stay", n)
		}
	})
}

// Late, double and lost events, conflicts, lost responses and a restart: in the end the copy has
// the content of the object, once.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			dice := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a repeatable test
			roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return dice.IntN(n) }
			api := controllertest.New(service(), object("10.0.0.1"))
			trouble := func(_ string, gvr schema.GroupVersionResource, _ metav1.Object) error {
				if gvr.Resource == "endpointslices" && roll(5) == 0 {
					return errors.New("no connection")
				}
				return nil
			}
			api.Before, api.After = trouble, trouble
			api.Late = func() time.Duration { return time.Duration(roll(40)) * time.Millisecond }
			api.Faults = func() controllertest.Fault { return []controllertest.Fault{0, 0, 0, 0, 1, 2}[roll(6)] }
			stop := start(t, api, &record.FakeRecorder{})
			last := ""
			for range 40 {
				last = fmt.Sprintf("10.0.0.%d", 1+roll(200))
				switch roll(4) {
				case 0:
					api.Remove(object())
					api.Put(object(last))
				default:
					api.Put(object(last))
				}
				if roll(8) == 0 {
					stop()
					stop = start(t, api, &record.FakeRecorder{})
				}
				time.Sleep(time.Duration(roll(100)) * time.Millisecond)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if got := content(api); got != last {
				t.Errorf("seed %d: %q, want %q", seed, got, last)
			}
			stop()
		})
	}
}
