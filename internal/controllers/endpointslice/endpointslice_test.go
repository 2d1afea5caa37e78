package endpointslice_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/controllertest"
	"carob/internal/controllers/endpoints"
	"carob/internal/controllers/endpointslice"
	"carob/internal/controllers/source"
)

func objects() []runtime.Object {
	return []runtime.Object{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9", Selector: map[string]string{"app": "web"},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Port: 80, Protocol: "TCP", TargetPort: intstr.FromString("http")}}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
	}
}

func pod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i),
		Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: fmt.Sprint("10.1.0.", i+1)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Now()}}}}
}

// start runs the controllers of slices and of Endpoints until stop.
func start(t *testing.T, api *controllertest.API) (stop func()) {
	t.Helper()
	w := endpointslice.Watches{Services: source.Services(api), Pods: source.Pods(api),
		Slices: source.EndpointSlices(api), Nodes: source.Nodes(api)}
	legacy := source.Endpoints(api)
	a, err := endpointslice.New(api, &record.FakeRecorder{}, w)
	if err != nil {
		t.Fatal(err)
	}
	b, err := endpoints.New(api, &record.FakeRecorder{}, w.Services, w.Pods, legacy)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	watches := []*source.Watch{w.Services, w.Pods, w.Slices, w.Nodes, legacy}
	for _, watch := range watches {
		all.Go(func() { watch.Run(ctx) })
	}
	for _, watch := range watches {
		<-watch.Synced()
	}
	all.Go(func() { a.Run(ctx) })
	all.Go(func() { b.Run(ctx) })
	return func() { cancel(); all.Wait() }
}

// want compares the ready addresses in the slices now, and in the Endpoints a moment later.
func want(t *testing.T, api *controllertest.API, what string) {
	t.Helper()
	ready, all := map[string]bool{}, map[string]bool{}
	for _, p := range controllertest.All[*corev1.Pod](api) {
		all[p.Name] = true
		if p.DeletionTimestamp == nil && p.Status.Conditions[0].Status == corev1.ConditionTrue {
			ready[p.Name] = true
		}
	}
	seen := map[string]bool{}
	for _, s := range controllertest.All[*discoveryv1.EndpointSlice](api) {
		for _, e := range s.Endpoints {
			name := e.TargetRef.Name
			if seen[name] || !all[name] || *e.Conditions.Ready != ready[name] || *s.Ports[0].Port != 8080 {
				t.Errorf("%s: endpoint %+v of slice %s", what, e, s.Name)
			}
			seen[name] = true
		}
	}
	time.Sleep(20 * time.Millisecond)
	synctest.Wait()
	listed := 0
	for _, e := range controllertest.All[*corev1.Endpoints](api) {
		for _, s := range e.Subsets {
			listed += len(s.Addresses)
			for _, a := range s.Addresses {
				if !ready[a.TargetRef.Name] {
					t.Errorf("%s: Endpoints list %s", what, a.TargetRef.Name)
				}
			}
		}
	}
	if len(seen) != len(all) || listed != len(ready) {
		t.Errorf("%s: %d of %d pods in slices, %d of %d ready ones in Endpoints", what, len(seen), len(all), listed,
			len(ready))
	}
}

// A change of a pod is written at once, and a burst of changes in few writes; deleted slices are
// created again; the Endpoints are deleted with the Service, those of others stay.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := controllertest.New(objects()...)
		foreign := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "by-hand"}}
		api.Put(foreign)
		defer start(t, api)()
		synctest.Wait()
		controllertest.Equal(t, "without pods, at once", sorted(api), "", "create endpointslices ")
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		controllertest.Equal(t, "without pods, then", sorted(api), "create endpoints web", "")
		api.Put(pod(1))
		synctest.Wait()
		want(t, api, "a pod")
		api.Log()
		controllertest.Change(api, "ns", "p1", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} })
		time.Sleep(time.Minute)
		controllertest.Equal(t, "writes for an annotation", api.Log())
		controllertest.Change(api, "ns", "p1",
			func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
		synctest.Wait() // no time passes
		want(t, api, "a pod that is not ready")
		controllertest.Change(api, "ns", "p1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		synctest.Wait()
		want(t, api, "a pod that is terminating")
		for _, s := range controllertest.All[*discoveryv1.EndpointSlice](api) {
			api.Remove(s)
		}
		api.Remove(controllertest.All[*corev1.Endpoints](api)[1])
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, api, "somebody removed all")
		if n := len(controllertest.All[*discoveryv1.EndpointSlice](api)); n != 1 {
			t.Errorf("%d slices", n)
		}
		api.Remove(controllertest.All[*corev1.Service](api)[0])
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if all := controllertest.All[*corev1.Endpoints](api); len(all) != 1 || all[0].Name != foreign.Name {
			t.Errorf("Endpoints after the Service was deleted: %v", all)
		}
	})
}

// sorted returns the log without generated names.
func sorted(api *controllertest.API) []string {
	out := []string{"", ""}
	for _, line := range api.Log() {
		if line == "create endpoints web" {
			out[0] += line
		} else {
			out[1] += line[:len("create endpointslices ")]
		}
	}
	return out
}

// Late, double and lost events, conflicts, lost responses and a restart between any two writes: in
// the end each pod is in exactly one slice.
func TestConvergesUnderFaults(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			dice := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a repeatable test
			roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return dice.IntN(n) }
			api := controllertest.New(objects()...)
			trouble := func(_ string, gvr schema.GroupVersionResource, _ metav1.Object) error {
				if gvr.Resource != "pods" && roll(6) == 0 {
					return errors.New("no connection")
				}
				return nil
			}
			api.Before, api.After = trouble, trouble
			api.Late = func() time.Duration { return time.Duration(roll(40)) * time.Millisecond }
			api.Faults = func() controllertest.Fault { return []controllertest.Fault{0, 0, 0, 0, 1, 2}[roll(6)] }
			stop := start(t, api)
			for range 60 {
				p := pod(roll(12))
				switch roll(5) {
				case 0:
					api.Remove(p)
				case 1:
					controllertest.Change(api, "ns", p.Name,
						func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
				case 2:
					for _, s := range controllertest.All[*discoveryv1.EndpointSlice](api) {
						controllertest.Change(api, "ns", s.Name,
							func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
					}
				default:
					api.Put(p)
				}
				if roll(10) == 0 {
					stop()
					stop = start(t, api)
				}
				time.Sleep(time.Duration(roll(100)) * time.Millisecond)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			want(t, api, fmt.Sprint("seed ", seed))
			stop()
		})
	}
}
