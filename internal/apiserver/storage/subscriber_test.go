package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// A slow reader loses nothing while it keeps up with most changes, and is disconnected if it does
// not; one that waits has no goroutine.
func TestMemberIsPatient(t *testing.T) {
	cachermetrics.Register()
	for name, tc := range map[string]struct {
		pause time.Duration // between two reads
		all   bool          // whether everything arrives
	}{
		"fair":  {slowest / watchRoom / 2, true},
		"slow":  {slowest / watchRoom * 2, false},
		"never": {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const events = 10 * watchRoom
				h, in, ended := fakeSharedWatch(t)
				h.kind.Resource = "classes-of-" + name
				m := newSubscriber(t.Context(), h, "", all("10"), false)
				if !h.join(m, 10) {
					t.Fatal("not joined")
				}
				go func() {
					defer close(in)
					for i := range events {
						in <- classAt(11 + i)
						time.Sleep(slowest / watchRoom / 4)
					}
				}()
				got := 0
				for ev := range m.ResultChan() {
					if versionOf(ev) != uint64(11+got) {
						t.Fatalf("event %d leads to %d", got, versionOf(ev))
					}
					got++
					time.Sleep(tc.pause)
				}
				if (got == events) != tc.all {
					t.Errorf("%d of %d events arrived", got, events)
				}
				<-ended
				synctest.Wait()
				if m.pumping {
					t.Error("its goroutine goes on")
				}
				m.Stop()
				if n := terminated(t, h.kind.Resource); (n == 0) != tc.all || n > 1 {
					t.Errorf("%v watches are counted as terminated", n)
				}
			})
		})
	}
}

// terminated is what apiserver_terminated_watchers_total says about a resource.
func terminated(t *testing.T, resource string) float64 {
	t.Helper()
	n := 0.0
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "apiserver_terminated_watchers_total" && l.GetName() == "resource" &&
					l.GetValue() == resource {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// A client that wants bookmarks gets the version of the shared watch before its timeout.
func TestMemberBookmarkAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, in, ended := fakeSharedWatch(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		opts := all("10")
		opts.Predicate.AllowWatchBookmarks = true
		m := newSubscriber(ctx, h, "other", opts, false)
		if !h.join(m, 10) {
			t.Fatal("not joined")
		}
		began := time.Now()
		in <- classAt(33) // in no namespace
		ev := <-m.ResultChan()
		if ev.Type != watch.Bookmark || versionOf(ev) != 33 || time.Since(began) != time.Minute-lastBookmark {
			t.Errorf("after %v: %v", time.Since(began), ev)
		}
		if ev, open := <-m.ResultChan(); open || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), ev)
		}
		synctest.Wait()
		if len(h.subscribers) != 0 || h.source != nil {
			t.Error("it is still a subscriber")
		}
		close(in)
		<-ended
	})
}

// Stop, at any time and more than once, ends a subscriber and its initial watch.
func TestMemberStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, in, ended := fakeSharedWatch(t)
		first := watch.NewFake()
		m := newSubscriber(t.Context(), h, "", initial(), true)
		go m.start(first)
		first.Add(classAt(3).Object)
		if ev := <-m.ResultChan(); versionOf(ev) != 3 {
			t.Errorf("%v", ev)
		}
		m.Stop()
		m.Stop()
		if ev, open := <-m.ResultChan(); open {
			t.Errorf("%v after the end", ev)
		}
		if !first.IsStopped() {
			t.Error("its own watch goes on")
		}
		if h.join(m, 10) || len(h.subscribers) != 0 {
			t.Error("joined after the end")
		}
		close(in)
		<-ended
	})
}

// A client that disconnected before its watch was started gets no later changes.
func TestMemberStopsBeforeItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, in, ended := fakeSharedWatch(t)
		for range 20 { // of an event and the end either may be seen first
			ctx, cancel := context.WithCancel(t.Context())
			m := newSubscriber(ctx, h, "", initial(), true)
			cancel()
			synctest.Wait() // it was stopped
			first := watch.NewFakeWithChanSize(1, false)
			first.Add(classAt(3).Object)
			m.start(first)
			if ev, open := <-m.ResultChan(); open && versionOf(ev) != 3 {
				t.Errorf("%v after the end", ev)
			}
		}
		close(in)
		<-ended
	})
}

// An object is encoded once for each encoding that its clients want, and never changed.
func TestSharedIsEncodedOnce(t *testing.T) {
	o := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	ev := share(share(watch.Event{Type: watch.Added, Object: o}))
	calls := 0
	encode := func(o runtime.Object, w io.Writer) error {
		calls++
		c := o.(*schedulingv1.PriorityClass)
		c.Kind = "set by the encoder"
		_, err := fmt.Fprint(w, c.Name, calls)
		return err
	}
	s := ev.Object.(runtime.CacheableObject)
	for range 2 {
		var one bytes.Buffer
		two := runtime.NewSpliceBuffer()
		if err := errors.Join(s.CacheEncode("one", encode, &one), s.CacheEncode("two", encode, two)); err != nil {
			t.Fatal(err)
		}
		if one.String() != "a1" || string(two.Bytes()) != "a2" {
			t.Errorf("%q, %q", one.String(), two.Bytes())
		}
	}
	if o.Kind != "" || s.GetObject() == runtime.Object(o) {
		t.Error("the object itself is handed out")
	}
	broken := errors.New("broken")
	for range 2 {
		if err := s.CacheEncode("three", func(runtime.Object, io.Writer) error { return broken },
			io.Discard); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
	}
	if status := share(watch.Event{Type: watch.Error,
		Object: &metav1.Status{}}); status.Object != runtime.Object(status.Object.(*metav1.Status)) {
		t.Error("a status has no metadata to share")
	}
}

// BenchmarkFanOut passes a change on to 200 clients that request the same encoding.
func BenchmarkFanOut(b *testing.B) {
	h := newSharedWatch(nil, "classes", 0, nil, nil, nil)
	defer h.close()
	h.source = watch.NewFake()
	const clients = 200
	var deliveries sync.WaitGroup
	for range clients {
		m := newSubscriber(b.Context(), h, "", all("1"), false)
		if !h.join(m, 1) {
			b.Fatal("not joined")
		}
		go func() {
			for ev := range m.ResultChan() {
				if err := ev.Object.(runtime.CacheableObject).CacheEncode("json",
					func(o runtime.Object, w io.Writer) error { return json.NewEncoder(w).Encode(o) },
					io.Discard); err != nil {
					b.Error(err)
				}
				deliveries.Done()
			}
		}()
	}
	version := 1
	for b.Loop() {
		version++
		deliveries.Add(clients)
		ev := classAt(version)
		h.pass(h.source, change{ev, uint64(version)})
		deliveries.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*clients), "ns/client")
}
