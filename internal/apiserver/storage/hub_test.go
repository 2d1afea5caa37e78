package storage

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func (c classes) hub() *hub { return c.Interface.(bounded).hub }

// joined waits until n watches have joined the hub and no other is left.
func (c classes) joined(t *testing.T, n int) {
	t.Helper()
	h := c.hub()
	for deadline := time.Now().Add(8 * time.Second); ; {
		h.mu.Lock()
		all, joined := len(h.members), 0
		for _, j := range h.members {
			if j {
				joined++
			}
		}
		h.mu.Unlock()
		if all == n && joined == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d watches have joined, want %d", joined, all, n)
		}
		if _, err := c.engine.Client.Put(t.Context(), "/other", "as leases do"); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// heard returns what a watch hears up to the change named last, as text.
func heard(t *testing.T, w watch.Interface, last string) (all []string) {
	t.Helper()
	timeout := time.After(8 * time.Second)
	for {
		select {
		case ev, open := <-w.ResultChan():
			if !open {
				t.Errorf("ended after %d", len(all))
				return all
			}
			o := ev.Object.(*schedulingv1.PriorityClass)
			all = append(all, fmt.Sprintf("%s %s/%s", ev.Type, o.Namespace, o.Name))
			if o.Name == last {
				return all
			}
		case <-timeout:
			t.Errorf("waiting for %s after %d", last, len(all))
			return all
		}
	}
}

// Watches that begin and join while objects are written hear of every change after
// their version once, in order, and of no bookmarks that they did not ask for.
func TestHubLosesNothing(t *testing.T) {
	const watches, writes = 40, 2 * hubMemory
	c := openClasses(t, Uncached)
	first := c.create(t, "a", "first")
	began := make(chan watch.Interface, 2*watches)
	go func() {
		defer close(began)
		for i := range watches {
			opts, key := all(first.ResourceVersion), classesRoot+"/"
			if i%4 == 1 {
				key += "b/"
			}
			w, err := c.Watch(t.Context(), key, opts)
			if err != nil {
				t.Error(err)
				return
			}
			began <- w
			<-time.After(20 * time.Millisecond)
		}
	}()
	var want, wantB []string
	note := func(what, ns, name string) {
		ev := fmt.Sprintf("%s %s/%s", what, ns, name)
		want = append(want, ev)
		if ns == "b" {
			wantB = append(wantB, ev)
		}
	}
	n := 0
	write := func(name string) {
		ns := []string{"a", "b"}[n/3%2]
		c.create(t, ns, name)
		c.update(t, ns, name, int32(n+1))
		note("ADDED", ns, name)
		note("MODIFIED", ns, name)
		n += 2
		if n%3 == 0 {
			c.remove(t, ns, name)
			n++
			note("DELETED", ns, name)
		}
	}
	for i := 0; n < writes; i++ {
		write(fmt.Sprint("w", i))
	}
	var ws []watch.Interface
	for w := range began {
		ws = append(ws, w)
	}
	// Nobody reads so far: all are in their queues, and join when they have room.
	results := make(chan []string, watches)
	for _, w := range ws {
		go func() { results <- heard(t, w, "last") }()
	}
	c.joined(t, watches)
	for i := range 10 {
		write(fmt.Sprint("x", i))
	}
	c.create(t, "b", "last")
	note("ADDED", "b", "last")
	for range ws {
		got := <-results
		expect := want
		if len(got) == len(wantB) {
			expect = wantB
		}
		if strings.Join(got, "\n") != strings.Join(expect, "\n") {
			t.Fatalf("%d events, want %d or %d", len(got), len(want), len(wantB))
		}
	}
	for _, w := range ws {
		w.Stop()
	}
	c.joined(t, 0)
	if h := c.hub(); h.source != nil || h.recent != nil {
		t.Error("the hub watches for nobody")
	}
	// And it begins again.
	w := c.watch(t, t.Context(), classesRoot, all(""))
	heard(t, w, "last")
	c.joined(t, 1)
	c.create(t, "a", "again")
	heard(t, w, "again")
}

// Who has joined ends with the hub's watch; a bookmark is passed on to who wants it.
func TestHubEnds(t *testing.T) {
	c := openClasses(t, Uncached)
	opts := all("")
	opts.Predicate.AllowWatchBookmarks = true
	w := c.watch(t, t.Context(), classesRoot, opts)
	c.joined(t, 1)
	h := c.hub()
	h.mu.Lock()
	for m := range h.members {
		m.hear(change{watch.Event{Type: watch.Bookmark, Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99"}}}, 99})
	}
	source := h.source
	h.mu.Unlock()
	for {
		if ev := <-w.ResultChan(); ev.Type != watch.Bookmark {
			t.Fatalf("%v", ev)
		} else if versionOf(ev) == 99 {
			break
		}
	}
	source.Stop()
	for ev := range w.ResultChan() {
		t.Errorf("%v after the end", ev)
	}
}

// A member whose version the hub has forgotten goes on with its own watch.
func TestHubForgets(t *testing.T) {
	h := newHub(nil, "classes")
	defer h.close()
	in := make(chan watch.Event)
	h.source = watch.NewProxyWatcher(in)
	h.since = 10
	joined, late := &member{hub: h, known: 10, news: make(chan struct{}, 1)}, &member{hub: h, news: make(chan struct{}, 1)}
	h.members = map[*member]bool{joined: true, late: false}
	ended := make(chan struct{})
	go func() { h.run(h.source); close(ended) }()
	for i := range hubMemory + 5 {
		in <- watch.Event{Type: watch.Added, Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(11 + i)}}}
	}
	in <- watch.Event{Type: watch.Error, Object: &metav1.Status{}}
	if h.join(late, 14) {
		t.Error("joined though change 15 is forgotten")
	}
	if !h.join(late, 20) {
		t.Error("not joined")
	}
	if heard, more := late.take(); !more || len(heard) != hubMemory-5 || versionOf(heard[0]) != 21 {
		t.Errorf("%d changes", len(heard))
	}
	close(in)
	<-ended
	if heard, more := joined.take(); more || len(heard) != hubMemory+6 {
		t.Errorf("%d changes, more %t", len(heard), more)
	}
}

// What a watch takes that nothing happens to, beside what the HTTP server has of it.
func TestBytesOfAnIdleWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		caching           Caching
		bytes, goroutines int
	}{
		"from the cache": {Lazy, 16 << 10, 2},
		"from the hub":   {Uncached, 16 << 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 400
			c := openClasses(t, tc.caching)
			c.create(t, "a", "one")
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			begin := func(n int) {
				for range n {
					w := c.watch(t, ctx, classesRoot, all(""))
					if ev := <-w.ResultChan(); ev.Type != watch.Added {
						t.Fatalf("%v", ev)
					}
				}
			}
			use := func() (bytes, goroutines int) {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC() // stacks get smaller
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
			}
			begin(1)
			if tc.caching == Uncached {
				c.joined(t, 1)
			}
			bytes, goroutines := use()
			begin(n)
			if tc.caching == Uncached {
				c.joined(t, n+1)
			}
			moreBytes, moreGoroutines := use()
			if got := (moreBytes - bytes) / n; got > tc.bytes {
				t.Errorf("%d bytes each, want at most %d", got, tc.bytes)
			} else {
				t.Logf("%d bytes each", got)
			}
			if got := moreGoroutines - goroutines; got > n*tc.goroutines+10 {
				t.Errorf("%d goroutines for %d watches", got, n)
			}
		})
	}
}
