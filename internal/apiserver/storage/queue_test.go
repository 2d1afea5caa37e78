package storage

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func numbered(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
}

func name(ev watch.Event) string { return ev.Object.(*corev1.Pod).Name }

// A reader that does nothing for a while loses nothing and stops nobody, up to the room it has.
func TestQueueHoldsABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 100
		source := watch.NewFake()
		q := newQueue(source, room)
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
		q := newQueue(source, 10)
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
