package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The first attempt says what is missing. The next ones wait for it, and say so at longer and longer intervals. The
// object may come at any time, come without the key, never come, or the pod ends: nothing else ends the wait.
func TestMissingObjectsAreWaitedFor(t *testing.T) {
	const event = `FailedMount MountVolume.SetUp failed for volume "v" : configmap "late" not found`
	comes := func(w *world, _ context.CancelFunc) { w.put("late", map[string]string{"k": "v"}) }
	const day = 24 * time.Hour
	const ofDay = 7 + (24*3600-127)/122 // events
	for _, c := range []struct {
		name   string
		after  time.Duration // of the second attempt
		act    func(w *world, end context.CancelFunc)
		err    error
		events int // of the second attempt
	}{
		{"late", 4 * time.Second, comes, nil, 2},
		{"much later", day, comes, nil, ofDay},
		{"never", day + time.Second, func(_ *world, end context.CancelFunc) { end() }, context.Canceled, ofDay},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{
					LocalObjectReference: named("late"), Items: []corev1.KeyToPath{{Key: "k", Path: "k"}}}))
				began := time.Now()
				if err := w.prepare(pod); err == nil || time.Since(began) != objectWait || len(w.events) != 1 {
					t.Fatalf("after %v: %v, %q", time.Since(began), err, w.events)
				}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				done := make(chan error, 1)
				began, w.events = time.Now(), nil
				go func() { done <- w.Prepare(ctx, pod) }()
				time.Sleep(c.after)
				synctest.Wait()
				w.mu.Lock()
				events := len(w.events)
				for _, e := range w.events {
					if e != event {
						t.Error(e)
					}
				}
				w.mu.Unlock()
				if events != c.events {
					t.Errorf("%d events, want %d", events, c.events)
				}
				c.act(w, end)
				if err := <-done; !errors.Is(err, c.err) || time.Since(began) != c.after {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				if w.State(pod).Mounted != (c.err == nil) || len(w.events) != events {
					t.Errorf("mounted: %v, %d events", w.State(pod).Mounted, len(w.events)-events)
				}
			})
		})
	}
}

// An object that comes without the key, and one of two: the pod waits for the rest.
func TestMissingObjectsComeBitByBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		source := func(name string) corev1.ConfigMapVolumeSource {
			return corev1.ConfigMapVolumeSource{LocalObjectReference: named(name),
				Items: []corev1.KeyToPath{{Key: "k", Path: "k"}}}
		}
		pod := podWith("u1", configMapVolume("v", source("a")), configMapVolume("w", source("b")))
		if err := w.prepare(pod); err == nil {
			t.Fatal("nothing is missing")
		}
		done := make(chan error, 1)
		go func() { done <- w.prepare(pod) }()
		for _, step := range []struct {
			name string
			data map[string]string
		}{{"a", nil}, {"b", map[string]string{"k": "v"}}, {"b", map[string]string{"k": "w"}}, {"a", nil}} {
			time.Sleep(10 * time.Millisecond)
			w.put(step.name, step.data)
			synctest.Wait()
			if len(done) > 0 {
				t.Fatalf("ended with %q: %v", step.name, <-done)
			}
		}
		w.put("a", map[string]string{"k": "v"})
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
