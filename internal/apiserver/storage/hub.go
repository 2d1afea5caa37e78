package storage

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// A member that has not joined yet asks how far it is after so long, then less
	// often. The engine answers when something was written since it began.
	firstAsk, lastAsk = time.Second, 5 * time.Second
	// The changes that a hub remembers for those who join.
	hubMemory = 256
)

// hub serves clients that watch all objects of an uncached kind, or those of a
// namespace, by one watch of the engine: each of its watches takes five goroutines
// and their buffers. It remembers few changes and no objects, so every client begins
// with a watch of the engine of its own and joins when a bookmark there says up to
// which version it has heard of everything:
//
//	begun, a watch of its own ──a bookmark, of a version the hub remembers──▶ joined ──▶ left
type hub struct {
	engine storage.Interface
	root   string          // the key of all objects
	ctx    context.Context // of the hub's own watch
	end    context.CancelFunc

	mu      sync.Mutex
	members map[*member]bool // the value says who has joined
	source  watch.Interface  // nil while there is none
	since   uint64           // all changes after this version are in recent, or too new to be heard of
	recent  []change         // oldest first
	begun   int              // watches, ever
}

// change is an event and the version that it leads to.
type change struct {
	watch.Event
	version uint64
}

func newHub(engine storage.Interface, root string) *hub {
	h := &hub{engine: engine, root: root, members: map[*member]bool{}}
	h.ctx, h.end = context.WithCancel(h.stream(context.Background(), "all"))
	return h
}

// stream gives a watch a stream of its own. Everybody on a stream hears the progress
// that is asked for, even a watch that began after it was and has not heard of what
// was before.
func (h *hub) stream(ctx context.Context, name string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("source", "hub "+h.root+" "+name))
}

// close ends the hub's watch; what its members still have of the engine ends with that.
func (h *hub) close() { h.end() }

// serves says whether a watch is one of those that can join.
func (h *hub) serves(key string, opts storage.ListOptions) (namespace string, ok bool) {
	key = strings.Trim(key, "/")
	namespace = strings.TrimPrefix(strings.TrimPrefix(key, h.root), "/")
	return namespace, opts.Recursive && opts.Predicate.Empty() && opts.Predicate.ShardSelector == nil && !strings.Contains(namespace, "/") &&
		(key == h.root || strings.HasPrefix(key, h.root+"/"))
}

// watch begins a watch that serves has said yes to.
func (h *hub) watch(ctx context.Context, key, namespace string, opts storage.ListOptions) (watch.Interface, error) {
	h.mu.Lock()
	h.begun++
	ctx = h.stream(ctx, strconv.Itoa(h.begun))
	h.mu.Unlock()
	opts.ProgressNotify = true
	w, err := h.engine.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	m := &member{hub: h, namespace: namespace, bookmarks: opts.Predicate.AllowWatchBookmarks, news: make(chan struct{}, 1)}
	m.ask = func() {
		if h.listen() == nil {
			_ = h.engine.RequestWatchProgress(ctx) // without an answer the watch goes on as it is
		}
	}
	h.mu.Lock()
	h.members[m] = false
	h.mu.Unlock()
	return startQueue(w, watchRoom, slowest, func() { h.leave(m) }, m), nil
}

// listen begins the hub's watch unless there is one.
func (h *hub) listen() error {
	h.mu.Lock()
	listening := h.source != nil || len(h.members) == 0
	h.mu.Unlock()
	if listening {
		return nil
	}
	now, err := h.engine.GetCurrentResourceVersion(h.ctx)
	if err != nil {
		return err
	}
	since := now - 1 // a watch of what is still to come keeps the engine from answering
	w, err := h.engine.Watch(h.ctx, "/"+h.root+"/", storage.ListOptions{ResourceVersion: strconv.FormatUint(since, 10), Predicate: storage.Everything, Recursive: true, ProgressNotify: true})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source != nil || len(h.members) == 0 { // meanwhile
		w.Stop()
		return nil
	}
	h.source, h.since, h.recent = w, since, nil
	go h.run(w)
	return nil
}

// run passes the changes on until the watch ends; then that of all who have joined ends, too.
func (h *hub) run(w watch.Interface) {
	var told time.Time // when the last bookmark was passed on
	for ev := range w.ResultChan() {
		c := change{ev, versionOf(ev)}
		if ev.Type == watch.Bookmark {
			now := time.Now()
			if now.Sub(told) < progressEvery/2 {
				continue // somebody else was asked
			}
			told = now
		}
		h.mu.Lock()
		if ev.Type != watch.Bookmark && ev.Type != watch.Error {
			if len(h.recent) == hubMemory {
				h.since = h.recent[0].version
				h.recent = append(h.recent[:0], h.recent[1:]...)
			}
			h.recent = append(h.recent, c)
		}
		for m, joined := range h.members {
			if joined {
				m.hear(c)
			}
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source != w {
		return // nobody was left
	}
	h.source, h.recent = nil, nil
	for m, joined := range h.members {
		if joined {
			m.end()
		}
	}
}

// join feeds a member that has heard of all changes up to a version; false when the
// hub does not know all that came after.
func (h *hub) join(m *member, version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.source == nil || version < h.since {
		return false
	}
	m.known = version
	for _, c := range h.recent {
		m.hear(c)
	}
	h.members[m] = true
	m.ask = nil
	return true
}

// leave ends the hub's watch when the last has left.
func (h *hub) leave(m *member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.members, m)
	if len(h.members) == 0 && h.source != nil {
		h.source.Stop()
		h.source, h.recent = nil, nil
		h.members = maps.Clone(h.members) // a map never gets smaller
	}
}

// member is a watch of a client: what it has to hear of, once it has joined.
type member struct {
	hub       *hub
	namespace string // all, when empty
	bookmarks bool   // are wanted
	known     uint64 // it has heard of all changes up to this version
	news      chan struct{}
	ask       func() // how far its own watch is; nil when it has joined

	mu    sync.Mutex
	heard []watch.Event
	over  bool // nothing comes any more
}

// bookmark says whether to go on with news instead of the watch whose bookmark this
// is, and whether the client wants it.
func (m *member) bookmark(ev watch.Event) (joined, wanted bool) {
	return m.hub.join(m, versionOf(ev)), m.bookmarks
}

// hear takes a change. Call with the hub's mu held.
func (m *member) hear(c change) {
	if c.version <= m.known && c.Type != watch.Error || c.Type == watch.Bookmark && !m.bookmarks {
		return
	}
	if o, err := meta.Accessor(c.Object); err == nil && m.namespace != "" && c.Type != watch.Bookmark && o.GetNamespace() != m.namespace {
		return
	}
	m.mu.Lock()
	m.heard = append(m.heard, c.Event)
	m.mu.Unlock()
	m.tell()
}

func (m *member) end() {
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	m.tell()
}

func (m *member) tell() {
	select {
	case m.news <- struct{}{}:
	default:
	}
}

// take returns what was heard since the last call, for the caller to own, and whether more may come.
func (m *member) take() (heard []watch.Event, more bool) {
	m.mu.Lock()
	heard, m.heard, more = m.heard, nil, !m.over
	m.mu.Unlock()
	for i := range heard {
		heard[i].Object = heard[i].Object.DeepCopyObject() // others get it, too
	}
	return heard, more
}

// versionOf returns the version that an event leads to; zero for an error.
func versionOf(ev watch.Event) uint64 {
	v, err := storage.APIObjectVersioner{}.ObjectResourceVersion(ev.Object)
	if err != nil {
		return 0
	}
	return v
}
