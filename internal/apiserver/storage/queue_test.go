package storage

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func numbered(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
}

func name(ev watch.Event) string { return ev.Object.(*corev1.Pod).Name }

// A reader that pauses loses nothing and blocks nobody, as long as there is room.
func TestQueueHoldsABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 100
		source := watch.NewFake()
		q := newQueue(source, room, 0, nil)
		taken := 0
		go func() {
			for i := range room + 1 {
				source.Add(numbered(i))
				taken++
			}
			source.Stop()
		}()
		synctest.Wait()
		if taken != room {
			t.Fatalf("%d events are held, want %d", taken, room)
		}
		for i := range room + 1 {
			if ev := <-q.ResultChan(); name(ev) != fmt.Sprint(i) {
				t.Fatalf("event %d is %s", i, name(ev))
			}
		}
		if ev, open := <-q.ResultChan(); open {
			t.Errorf("%v after the end of the source", ev)
		}
	})
}

// Stop ends the queue with events in it, and its source.
func TestQueueStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 3})
		q := newQueue(source, 10, 0, nil)
		source.Add(numbered(0))
		source.Add(numbered(1))
		synctest.Wait()
		q.Stop()
		q.Stop()
		synctest.Wait()
		for range q.ResultChan() {
			t.Error("an event after Stop")
		}
		if !source.IsStopped() {
			t.Error("the source goes on")
		}
	})
}

// A reader that is too slow for what the engine would have to keep loses its watch; one that reads
// fast enough, or has nothing waiting, does not.
func TestQueueCutsOffASlowReader(t *testing.T) {
	for pace, tc := range map[string]struct {
		pause time.Duration // between two reads
		all   bool          // whether everything arrives
	}{
		"fair": {40 * time.Millisecond, true},
		"slow": {60 * time.Millisecond, false},
	} {
		t.Run(pace, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const room, events = 100, 1000
				in := make(chan watch.Event)
				source := watch.NewProxyWatcher(in)
				q := newQueue(source, room, slowest, nil)
				defer q.Stop()
				go func() {
					defer close(in)
					for i := range events {
						select {
						case in <- watch.Event{Type: watch.Added, Object: numbered(i)}:
						case <-source.StopChan():
							return
						}
					}
				}()
				got := 0
				for ev := range q.ResultChan() {
					if name(ev) != fmt.Sprint(got) {
						t.Fatalf("event %d is %s", got, name(ev))
					}
					got++
					time.Sleep(tc.pause)
				}
				if (got == events) != tc.all || got < room/2 {
					t.Errorf("%d of %d events arrived", got, events)
				}
			})
		})
	}
	t.Run("never", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			source := watch.NewFake()
			q := newQueue(source, 10, slowest, nil)
			for i := range 9 {
				source.Add(numbered(i))
			}
			time.Sleep(time.Hour)
			if source.IsStopped() {
				t.Fatal("cut off with room left")
			}
			source.Add(numbered(9))
			time.Sleep(slowest + time.Millisecond)
			synctest.Wait()
			if _, open := <-q.ResultChan(); open || !source.IsStopped() {
				t.Errorf("a reader that never reads: open %v, source ended %v", open, source.IsStopped())
			}
		})
	})
}
