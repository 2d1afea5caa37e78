package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/testwait"
)

// sharedWatchOf returns the shared watch of the clients' watches; of a lazy cache once there is
// one.
func (c classes) sharedWatchOf() *sharedWatch {
	switch s := c.Interface.(zeroCopyStore).Interface.(type) {
	case queuedEngine:
		return s.shared
	case queuedCache:
		return s.shared
	case *lazyCache:
		if p := s.cached.Load(); p != nil {
			return p.shared
		}
	}
	return nil
}

// joined waits until n watches have joined the shared watch.
func (c classes) joined(t *testing.T, n int) {
	t.Helper()
	var joined int
	for deadline := time.Now().Add(8 * time.Second); ; <-time.After(time.Millisecond) {
		h := c.sharedWatchOf()
		h.mu.Lock()
		joined = len(h.subscribers)
		h.mu.Unlock()
		if joined == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d watches have joined, want %d", joined, n)
		}
	}
}

// shownEvent is an event as text, with its version.
type shownEvent struct {
	version uint64
	text    string
}

func shownOf(ev watch.Event) shownEvent {
	o, err := meta.Accessor(ev.Object)
	if err != nil {
		return shownEvent{0, fmt.Sprint(ev.Type)}
	}
	return shownEvent{versionOf(ev), fmt.Sprintf("%s %s/%s", ev.Type, o.GetNamespace(), o.GetName())}
}

// received returns what a watch delivers up to the change of the object named last.
func received(t *testing.T, w watch.Interface, last string) (all []shownEvent) {
	t.Helper()
	timeout := time.After(testwait.Limit)
	for {
		select {
		case ev, open := <-w.ResultChan():
			if !open {
				t.Errorf("ended after %d", len(all))
				return all
			}
			all = append(all, shownOf(ev))
			if o, err := meta.Accessor(ev.Object); err == nil && o.GetName() == last {
				return all
			}
		case <-timeout:
			t.Errorf("waiting for %s after %d", last, len(all))
			return all
		}
	}
}

func allFrom(version uint64) storage.ListOptions { return all(strconv.FormatUint(version, 10)) }

// Watches that start while objects are written receive every change after their version once and in
// order; those that begin with the stored objects receive these first.
func TestHubLosesNothing(t *testing.T) {
	for name, caching := range map[string]Caching{"cached": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			const rounds = 30
			c := openClasses(t, caching)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			type client struct {
				watch.Interface
				key       string
				namespace string
				from      uint64 // zero: begins with what is stored
				ctx       context.Context
			}
			var clients []client
			isBookmark := func(s shownEvent) bool { return s.text == "BOOKMARK /" }
			// read reads like a client: if a watch ends because the cache had to wait for it, the
			// next one resumes.
			read := func(cl client) (all []shownEvent) {
				w := cl.Interface
				timeout := time.After(testwait.Limit)
				for last := false; !last || cl.from == 0 && !slices.ContainsFunc(all, isBookmark); {
					select {
					case ev, open := <-w.ResultChan():
						if open {
							all = append(all, shownOf(ev))
							last = last || strings.HasSuffix(all[len(all)-1].text, "/last")
							continue
						}
						t.Logf("ended after %d", len(all))
						opts := initial()
						switch {
						case cl.from > 0 && len(all) == 0:
							opts = allFrom(cl.from)
						case cl.from > 0 || slices.ContainsFunc(all, isBookmark):
							opts = allFrom(all[len(all)-1].version)
						default:
							all, last = nil, false
						}
						w = c.watch(t, cl.ctx, cl.key, opts)
					case <-timeout:
						t.Errorf("waiting for the last after %d", len(all))
						return all
					}
				}
				return all
			}
			begin := func(version uint64) {
				cl := client{from: version, key: classesRoot + "/", ctx: ctx}
				if len(clients)%4 == 1 {
					cl.ctx = withBare(asPart(ctx)) // a part of this process that accepts objects without a copy
				}
				opts := allFrom(version)
				if len(clients)%3 == 1 {
					cl.namespace = "b"
					cl.key += "b/"
				}
				if version == 0 {
					opts = initial()
				}
				cl.Interface = c.watch(t, cl.ctx, cl.key, opts)
				clients = append(clients, cl)
			}
			var changes []shownEvent
			note := func(what watch.EventType, ns, name string, version string) {
				v, err := strconv.ParseUint(version, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				changes = append(changes, shownEvent{v, fmt.Sprintf("%s %s/%s", what, ns, name)})
			}
			now := func() uint64 {
				v, err := c.GetCurrentResourceVersion(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			write := func(name string) {
				ns := []string{"a", "b"}[len(changes)/3%2]
				o := c.create(t, ns, name)
				note(watch.Added, ns, name, o.ResourceVersion)
				c.update(t, ns, name, 7)
				note(watch.Modified, ns, name, fmt.Sprint(now()))
				if len(changes)%3 == 0 {
					c.remove(t, ns, name)
					note(watch.Deleted, ns, name, fmt.Sprint(now()))
				}
			}
			first := c.create(t, "a", "first")
			note(watch.Added, "a", "first", first.ResourceVersion)
			random := rand.New(rand.NewPCG(1, 2))
			joined := 0
			for i := range rounds {
				for j := range 10 {
					write(fmt.Sprintf("w%d-%d", i, j))
				}
				begin(0)
				begin(now())
				begin(changes[random.IntN(len(changes))].version) // of which the shared watch may know nothing any more
				h := c.sharedWatchOf()
				h.mu.Lock()
				joined = max(joined, len(h.subscribers))
				h.mu.Unlock()
			}
			if joined == 0 {
				t.Error("nobody has joined")
			}
			c.create(t, "b", "last")
			note(watch.Added, "b", "last", fmt.Sprint(now()))
			for i, cl := range clients {
				got := read(cl)
				from := cl.from
				var stored []string
				if from == 0 {
					end := slices.IndexFunc(got, isBookmark)
					if end < 0 {
						t.Fatalf("client %d: no bookmark after %d", i, len(got))
					}
					for _, s := range got[:end] {
						stored = append(stored, s.text)
					}
					from = got[end].version
					got = got[end+1:]
				}
				var want []shownEvent
				state := map[string]bool{}
				for _, s := range changes {
					var what watch.EventType
					var object string
					if _, err := fmt.Sscan(s.text, &what, &object); err != nil {
						t.Fatal(err)
					}
					if cl.namespace != "" && object[:1] != cl.namespace {
						continue
					}
					if s.version > from {
						want = append(want, s)
					} else if what == watch.Deleted {
						delete(state, "ADDED "+object)
					} else {
						state["ADDED "+object] = true
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("client %d, from %d: %d events, want %d\n%v\n%v", i, from, len(got), len(want), got, want)
				}
				if cl.from == 0 && len(stored) != len(state) {
					t.Errorf("client %d: begins with %d objects, want %d", i, len(stored), len(state))
				}
				for _, s := range stored {
					if !state[s] {
						t.Errorf("client %d: begins with %s", i, s)
					}
				}
			}
			for _, cl := range clients {
				cl.Stop()
			}
			cancel()
			c.joined(t, 0)
			h := c.sharedWatchOf()
			h.mu.Lock()
			if h.source != nil || h.recent != nil {
				t.Error("the shared watch watches for nobody")
			}
			h.mu.Unlock()
			// And it starts again.
			w := c.watch(t, t.Context(), classesRoot, all(""))
			received(t, w, "last")
			c.joined(t, 1)
			c.create(t, "a", "again")
			received(t, w, "again")
		})
	}
}

// Watches that have joined end with the shared watch; a bookmark is passed on to those that want
// it.
func TestHubEnds(t *testing.T) {
	for name, caching := range map[string]Caching{"cached": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			c := openClasses(t, caching)
			opts := all("")
			opts.Predicate.AllowWatchBookmarks = true
			with, without := c.watch(t, t.Context(), classesRoot, opts), c.watch(t, t.Context(), classesRoot, all("0"))
			c.joined(t, 2)
			h := c.sharedWatchOf()
			h.mu.Lock()
			source := h.source
			h.mu.Unlock()
			h.pass(source,
				change{watch.Event{Type: watch.Bookmark,
					Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99"}}}, 99})
			if ev := <-with.ResultChan(); ev.Type != watch.Bookmark || versionOf(ev) != 99 {
				t.Fatalf("%v", ev)
			}
			source.Stop()
			for _, w := range []watch.Interface{with, without} {
				for ev := range w.ResultChan() {
					t.Errorf("%v after the end", ev)
				}
			}
		})
	}
}

// fakeSharedWatch is a shared watch that receives what is sent to in; its clients begin at versions
// after 10.
func fakeSharedWatch(t *testing.T) (h *sharedWatch, in chan watch.Event, ended chan struct{}) {
	h = newSharedWatch(nil, "classes", 0, nil, func() kruntime.Object { return &schedulingv1.PriorityClass{} }, nil)
	t.Cleanup(h.close)
	in, ended = make(chan watch.Event), make(chan struct{})
	h.source, h.since, h.latest = watch.NewProxyWatcher(in), 10, 10
	source := h.source
	go func() { h.run(source); close(ended) }()
	return h, in, ended
}

func classAt(version int) watch.Event {
	return watch.Event{Type: watch.Added,
		Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(version),
			ResourceVersion: fmt.Sprint(version)}}}
}

// A client whose version the shared watch no longer has cannot join.
func TestHubForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, in, ended := fakeSharedWatch(t)
		first := newSubscriber(t.Context(), h, "", all("10"), false)
		if !h.join(first, 10) {
			t.Fatal("not joined")
		}
		for i := range recentChanges + 5 {
			in <- classAt(11 + i)
		}
		in <- watch.Event{Type: watch.Error, Object: &metav1.Status{}}
		synctest.Wait()
		if h.join(newSubscriber(t.Context(), h, "", all("14"), false), 14) {
			t.Error("joined though change 15 is forgotten")
		}
		second := newSubscriber(t.Context(), h, "", all("20"), false)
		if !h.join(second, 20) {
			t.Error("not joined")
		}
		close(in)
		<-ended
		count := func(m *subscriber) (n int, last watch.EventType) {
			for ev := range m.ResultChan() {
				n, last = n+1, ev.Type
			}
			return n, last
		}
		if n, last := count(first); n != recentChanges+6 || last != watch.Error {
			t.Errorf("%d changes, the last is %s", n, last)
		}
		if n, last := count(second); n != recentChanges-5 || last != watch.Added {
			t.Errorf("%d changes, the last is %s", n, last)
		}
	})
}

// The memory of an idle watch, besides what the HTTP server uses for it.
func TestBytesOfAnIdleWatch(t *testing.T) {
	for name, tc := range map[string]Caching{"cached": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			const n, most = 400, 3 << 10
			c := openClasses(t, tc)
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
				runtime.GC() // stacks shrink
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
			}
			begin(1)
			c.joined(t, 1)
			bytes, goroutines := use()
			begin(n)
			c.joined(t, n+1)
			var moreBytes, moreGoroutines int
			for deadline := time.Now().Add(testwait.Limit); ; <-time.After(10 * time.Millisecond) {
				// what they started with is freed
				if moreBytes, moreGoroutines = use(); moreGoroutines <= goroutines+10 || time.Now().After(deadline) {
					break
				}
			}
			if got := moreGoroutines - goroutines; got > 10 {
				t.Errorf("%d goroutines for %d watches", got, n)
			}
			got := (moreBytes - bytes) / n
			t.Logf("%d bytes each", got)
			if got > most {
				t.Errorf("want at most %d", most)
			}
		})
	}
}
