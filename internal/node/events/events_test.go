package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"carob/internal/core/podlife"
)

// nodeUID is the UID of the node for the recorder.
var nodeUID types.UID

func start(t *testing.T) (*fake.Clientset, *Recorder) {
	client := fake.NewClientset()
	r := New(client.CoreV1(), "n1", func() types.UID { return nodeUID })
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	return client, r
}

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "u"}}

func list(t *testing.T, client *fake.Clientset) []corev1.Event {
	t.Helper()
	events, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return events.Items
}

func writes(client *fake.Clientset) int {
	n := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "create" || a.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

// An event names its source, and the part of the pod it is about (L10.1, L10.2).
func TestEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		r.Pod(pod, podlife.Event{Type: "Normal", Reason: "Started", Message: "Container started",
			FieldPath: "spec.containers{c}"})
		r.Node("Normal", "Starting", "Starting kubelet.")
		nodeUID = "0815"
		defer func() { nodeUID = "" }()
		r.Node("Normal", "NodeReady", "Node n1 status is now: NodeReady")
		time.Sleep(writeDelay)
		synctest.Wait()
		events := list(t, client)
		if len(events) != 3 {
			t.Fatalf("%d events", len(events))
		}
		for _, e := range events {
			switch e.InvolvedObject.Kind {
			case "Pod":
				if e.Namespace != "default" || e.InvolvedObject.UID != "u" ||
					e.InvolvedObject.FieldPath != "spec.containers{c}" || e.Count != 1 ||
					e.Source.Component != "kubelet" || e.Source.Host != "n1" || e.Reason != "Started" {
					t.Errorf("%+v", e)
				}
			case "Node":
				if want := map[string]types.UID{"Starting": "n1",
					"NodeReady": "0815"}[e.Reason]; e.Namespace != "default" || e.InvolvedObject.UID != want {
					t.Errorf("%+v", e)
				}
			}
		}
	})
}

// Nothing is written while what events are about goes on.
func TestEventsWaitForABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		r.Pod(pod, podlife.Event{Type: "Normal", Reason: "Pulled", Message: "m"})
		time.Sleep(writeDelay - time.Millisecond)
		r.Pod(pod, podlife.Event{Type: "Normal", Reason: "Created", Message: "m"})
		synctest.Wait()
		if n := writes(client); n != 0 {
			t.Errorf("%d writes at once", n)
		}
		time.Sleep(writeDelay - time.Millisecond)
		synctest.Wait()
		if n := writes(client); n != 0 {
			t.Errorf("%d writes, though the second has just come", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		events := list(t, client)
		if len(events) != 2 {
			t.Fatalf("%d events", len(events))
		}
		apart := events[1].FirstTimestamp.Sub(events[0].FirstTimestamp.Time)
		if apart.Abs() != writeDelay-time.Millisecond {
			t.Errorf("their times are %v apart: they must say when, not when they were written", apart)
		}
	})
}

// While events come without an end, each is written after writeMax, in their order.
func TestEventsAreWrittenAfterWriteMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		const apart = writeDelay - time.Millisecond
		began, n := time.Now(), 0
		for ; time.Since(began) < writeMax+writeDelay*5; n++ {
			r.Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", n),
				UID: types.UID(fmt.Sprint("u", n))}}, podlife.Event{Type: "Normal", Reason: "Pulled", Message: "m"})
			synctest.Wait()
			want := 0
			if since := time.Since(began) - writeMax; since >= 0 {
				want = int(since/apart) + 1
			}
			if got := writes(client); got != want {
				t.Fatalf("%d events are written after %v, want %d", got, time.Since(began), want)
			}
			time.Sleep(apart)
		}
		time.Sleep(writeDelay)
		synctest.Wait()
		if got := len(list(t, client)); got != n {
			t.Errorf("%d of %d events are written", got, n)
		}
	})
}

// Repeats raise the count, with one write for a burst of them.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		same := podlife.Event{Type: "Warning", Reason: "Unhealthy", Message: "Liveness probe failed: no"}
		r.Pod(pod, same)
		time.Sleep(writeDelay)
		synctest.Wait()
		for range 8 {
			r.Pod(pod, same)
			synctest.Wait()
		}
		time.Sleep(repeatDelay)
		synctest.Wait()
		events := list(t, client)
		if len(events) != 1 || events[0].Count != 9 {
			t.Errorf("%d events, %+v", len(events), events)
		}
		if n := writes(client); n != 2 {
			t.Errorf("%d writes", n)
		}
	})
}

// One object can't flood the API server: 25 at once, then one in five minutes (L10.1).
func TestSpam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		for i := range 200 {
			r.Pod(pod, podlife.Event{Type: "Warning", Reason: fmt.Sprintf("Reason%d", i), Message: "m"})
		}
		time.Sleep(writeDelay)
		synctest.Wait()
		if n := writes(client); n != 25 {
			t.Errorf("%d writes", n)
		}
	})
}

// Events outlive an outage of the API server.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, r := start(t)
		var mu sync.Mutex
		down := true
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return down, nil, errors.New("connection refused")
		})
		r.Pod(pod, podlife.Event{Type: "Normal", Reason: "Started", Message: "Container started"})
		time.Sleep(20 * time.Second)
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(retryDelay)
		synctest.Wait()
		if n := len(list(t, client)); n != 1 {
			t.Errorf("%d events", n)
		}
	})
}
