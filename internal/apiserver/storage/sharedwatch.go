package storage

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
)

// How many changes a shared watch keeps for clients that join.
const recentChanges = 64

// sharedWatch serves clients that watch all objects of a kind, or those of a namespace, with one
// watch of the cache or, if there is none, of the engine: each watch of the cache needs two
// goroutines, of the engine five, with their buffers. Other watches are left to them. It keeps few
// changes and no objects, so a client's initial objects come from a watch of its own, up to the
// bookmark that ends them.
type sharedWatch struct {
	storage.Interface                      // whose watch is shared
	root              string               // the key of all objects
	kind              schema.GroupResource // its name in metrics
	slack             uint64               // how many versions before the current one its watch begins
	clock             *cacheClock          // of the cache; nil for none
	queued            bool                 // the source waits for no client
	newObject         func() runtime.Object
	// a watch for one client
	single func(context.Context, string, storage.ListOptions) (watch.Interface, error)
	ctx    context.Context // of the shared watch
	end    context.CancelFunc

	begin sync.Mutex // held while the shared watch starts

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	source      watch.Interface // nil while there is none
	since       uint64          // all changes after this version are in recent, or still to come
	latest      uint64          // the version of the newest change
	recent      []change        // oldest first
}

// change is an event and the version that it leads to.
type change struct {
	watch.Event
	version uint64
}

// newSharedWatch returns a shared watch of the objects below root, as stored by s. single starts a
// watch for one client alone.
func newSharedWatch(s storage.Interface, root string, slack uint64, clock *cacheClock, newObject func() runtime.Object,
	single func(context.Context, string, storage.ListOptions) (watch.Interface, error)) *sharedWatch {
	h := &sharedWatch{Interface: s, root: root, slack: slack, clock: clock, newObject: newObject, single: single,
		subscribers: map[*subscriber]struct{}{}}
	// Its own stream: it would also receive the progress that others on the stream request.
	h.on(metadata.Pairs("source", "shared "+root))
	return h
}

// on chooses the stream of the engine, before the first watch.
func (h *sharedWatch) on(stream metadata.MD) {
	h.ctx, h.end = context.WithCancel(metadata.NewOutgoingContext(context.Background(), stream))
}

// close ends the shared watch, and the watches of all who have joined.
func (h *sharedWatch) close() { h.end() }

// serves reports whether the shared watch can serve a watch.
func (h *sharedWatch) serves(key string, opts storage.ListOptions) (namespace string, ok bool) {
	key = strings.Trim(key, "/")
	namespace = strings.TrimPrefix(strings.TrimPrefix(key, h.root), "/")
	return namespace, opts.Recursive && opts.Predicate.Empty() && opts.Predicate.ShardSelector == nil &&
		!strings.Contains(namespace, "/") &&
		(key == h.root || strings.HasPrefix(key, h.root+"/"))
}

// Watch implements storage.Interface.
func (h *sharedWatch) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	namespace, ok := h.serves(key, opts)
	if !ok {
		return h.single(ctx, key, opts)
	}
	fromStart := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if opts.SendInitialEvents == nil && (opts.ResourceVersion == "" || opts.ResourceVersion == "0") {
		fromStart = true
		opts.ResourceVersion = "0"
	}
	if !fromStart {
		version, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
		if err != nil || version == 0 {
			return h.single(ctx, key, opts)
		}
		m := newSubscriber(ctx, h, namespace, opts, false)
		if h.join(m, version) {
			flowcontrol.WatchInitialized(ctx) // others may start theirs
			return m, nil
		}
		m.Stop()
		return h.single(ctx, key, opts)
	}
	m := newSubscriber(ctx, h, namespace, opts, true)
	opts.SendInitialEvents = new(true)
	opts.Predicate.AllowWatchBookmarks = true
	w, err := h.single(ctx, key, opts)
	if err != nil {
		m.Stop()
		return nil, err
	}
	go m.start(w)
	return m, nil
}

// join adds a subscriber that has received all changes up to a version; false if the shared watch
// does not have all later ones.
func (h *sharedWatch) join(m *subscriber, version uint64) bool {
	for range 2 { // the shared watch may end at once
		if h.listen(version) != nil {
			return false
		}
		h.mu.Lock()
		if h.source == nil {
			h.mu.Unlock()
			continue
		}
		defer h.mu.Unlock()
		if version < h.since || m.hasGone() {
			h.restUnneeded()
			return false
		}
		m.known = version
		for _, c := range h.recent {
			m.receive(change{share(c.Event), c.version})
		}
		h.subscribers[m] = struct{}{}
		return true
	}
	return false
}

// listen starts the shared watch unless there is one, at a version or before it.
func (h *sharedWatch) listen(version uint64) error {
	h.begin.Lock()
	defer h.begin.Unlock()
	h.mu.Lock()
	listening := h.source != nil
	h.mu.Unlock()
	if listening {
		return nil
	}
	now, err := h.GetCurrentResourceVersion(h.ctx)
	if err != nil {
		return err
	}
	since := min(version, now-h.slack)
	opts := storage.ListOptions{ResourceVersion: strconv.FormatUint(since, 10), Predicate: storage.Everything,
		Recursive: true, ProgressNotify: true}
	opts.Predicate.AllowWatchBookmarks = true
	w, err := h.Interface.Watch(h.ctx, "/"+h.root+"/", opts)
	if err != nil {
		return err
	}
	if h.queued {
		w = newQueue(w, watchRoom, 0, nil)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.source, h.since, h.latest, h.recent = w, since, since, nil
	go h.run(w)
	return nil
}

// run passes the changes on until the watch ends; then the watches of all clients that have joined
// end, too.
func (h *sharedWatch) run(w watch.Interface) {
	for ev := range w.ResultChan() {
		h.pass(w, change{ev, versionOf(ev)})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source != w {
		return // no client was left
	}
	h.source, h.recent = nil, nil
	for m := range h.subscribers {
		m.end()
	}
}

// pass passes a change of the shared watch on.
func (h *sharedWatch) pass(w watch.Interface, c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source != w {
		return // no client was left
	}
	h.latest = max(h.latest, c.version)
	if c.Type != watch.Bookmark && c.Type != watch.Error {
		if len(h.recent) == recentChanges {
			h.since = h.recent[0].version
			h.recent = append(h.recent[:0], h.recent[1:]...)
		}
		h.recent = append(h.recent, c)
	}
	c.Event = share(c.Event)
	for m := range h.subscribers {
		m.receive(c)
	}
}

// forget drops all but the newest changes. Clients that join at an older version get a watch of their own.
func (h *sharedWatch) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := len(h.recent) - keptHistory; old > 0 {
		h.since = h.recent[old-1].version
		h.recent = slices.Clone(h.recent[old:])
	}
}

// leave ends the shared watch when the last has left.
func (h *sharedWatch) leave(m *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.subscribers[m]; !ok {
		return
	}
	delete(h.subscribers, m)
	h.restUnneeded()
}

// restUnneeded ends the shared watch when no client is left. Call with mu held.
func (h *sharedWatch) restUnneeded() {
	if len(h.subscribers) > 0 {
		return
	}
	h.subscribers = map[*subscriber]struct{}{} // a map never gets smaller
	if h.source != nil {
		h.source.Stop()
		h.source, h.recent = nil, nil
	}
}

// bookmark sends a subscriber the current version of the shared watch.
func (h *sharedWatch) bookmark(m *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.subscribers[m]; !ok || h.source == nil {
		return
	}
	version := max(h.latest, m.known)
	o := h.newObject()
	if err := (storage.APIObjectVersioner{}).UpdateObject(o, version); err == nil {
		m.receive(change{watch.Event{Type: watch.Bookmark, Object: o}, version})
	}
}

// versionOf returns the version of an event; zero for an error.
func versionOf(ev watch.Event) uint64 {
	v, err := storage.APIObjectVersioner{}.ObjectResourceVersion(ev.Object)
	if err != nil {
		return 0
	}
	return v
}
