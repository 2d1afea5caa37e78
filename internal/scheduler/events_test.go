package scheduler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"
)

// TestEventsWaitForBindings: the event of a binding is written when no binding is in flight, and not
// later than maxWriteDelay (L2.43).
func TestEventsWaitForBindings(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprintf("the other ends %v", ends), func(t *testing.T) {
			inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
				release := make(chan struct{})
				w.bind = func(pod, _ string) error {
					if pod == "b" {
						<-release
					}
					return nil
				}
				began := time.Now()
				w.create(pod("a", "1"), pod("b", "1"))
				w.on("a", "n1")
				time.Sleep(time.Second)
				synctest.Wait()
				if n := len(w.events("Scheduled")); n != 0 {
					w.Fatalf("%d events are written while a pod is being bound", n)
				}
				if ends {
					close(release)
					synctest.Wait()
				} else {
					defer close(release)
					time.Sleep(maxWriteDelay - time.Second)
					synctest.Wait()
				}
				e := w.events("Scheduled")
				if len(e) != 1 || e[0].Regarding.Name != "a" || !e[0].EventTime.Time.Equal(began) {
					w.Errorf("events %+v", e)
				}
				if ends {
					time.Sleep(writeDelay)
					synctest.Wait()
					if n := len(w.events("Scheduled")); n != 2 {
						w.Errorf("%d events at the end, want 2", n)
					}
				}
			})
		})
	}
}

// TestEventsAreRetried: the write of an event is retried if the API could not be reached, and given
// up if it responded with an error.
func TestEventsAreRetried(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "4")}, func(w *world) {
		tries := map[string]int{}
		w.client.PrependReactor("create", "events", func(a ktesting.Action) (bool, runtime.Object, error) {
			of := a.(ktesting.CreateAction).GetObject().(interface{ GetName() string }).GetName()[:1]
			tries[of]++
			switch {
			case of == "b":
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, of, errors.New("no"))
			case of == "c", tries[of] < 3:
				return true, nil, errors.New("connection refused")
			}
			return false, nil, nil
		})
		w.create(pod("a", "1"), pod("b", "1"), pod("c", "1"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if e := w.events("Scheduled"); len(e) != 1 || e[0].Regarding.Name != "a" {
			w.Errorf("events %+v", e)
		}
		if fmt.Sprint(tries) != fmt.Sprintf("map[a:3 b:1 c:%d]", maxTries) {
			w.Errorf("tries: %v", tries)
		}
	})
}

// TestEventsOfManyPods: each of many pods has one event, from a bounded number of goroutines, in the name of
// its scheduler.
func TestEventsOfManyPods(t *testing.T) {
	inWorld(t, []runtime.Object{node("n1", "64")}, func(w *world) {
		var many []*corev1.Pod
		for i := range 30 {
			many = append(many, pod(fmt.Sprint("p", i), "100m"))
		}
		w.create(many...)
		time.Sleep(writeDelay)
		synctest.Wait()
		seen := map[string]int{}
		for _, e := range w.events("Scheduled") {
			seen[e.Regarding.Name]++
			if e.ReportingController != "default-scheduler" || string(e.Regarding.UID) != "uid-"+e.Regarding.Name ||
				e.Regarding.Kind != "Pod" || e.Regarding.APIVersion != "v1" || e.ReportingInstance == "" {
				w.Errorf("event %+v", e)
			}
		}
		for i := range 30 {
			if name := fmt.Sprint("p", i); seen[name] != 1 {
				w.Errorf("pod %s has %d events", name, seen[name])
			}
		}
	})
}
