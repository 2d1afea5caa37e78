package storage

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// patient is a cached store whose watches have room for a burst. The cache ends
// a watch when its client is some ten events behind and does not catch up within
// a moment: fewer than one burst of pods makes on a busy machine. Events wait as
// pointers to what the cache holds anyway.
type patient struct {
	*cacher.CacheDelegator
	own  func(context.Context) bool // says whether a part of this process asks
	pace *pace                      // of the cache; nil on an external store
}

// watchRoom is how many events a client may be behind before the cache's own limit counts.
const watchRoom = 1000

// Watch implements storage.Interface.
func (p patient) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return nil, err
	}
	w, err := p.CacheDelegator.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	var left func()
	switch {
	case p.pace == nil || !opts.Predicate.AllowWatchBookmarks:
	case p.own(ctx):
		p.pace.own()
	default:
		left = p.pace.client()
	}
	return newQueue(w, watchRoom, 0, left), nil
}

// slowest is how long a client served by the engine may take for watchRoom events
// when more are waiting. The engine keeps all that comes meanwhile.
const slowest = 5 * time.Second

// bounded is the engine's store where clients watch it without a cache.
type bounded struct {
	storage.Interface
	own func(context.Context) bool // says whether a part of this process asks
	hub *hub
}

// Watch implements storage.Interface.
func (b bounded) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	own := b.own(ctx)
	if namespace, ok := b.hub.serves(key, opts); ok && !own {
		return b.hub.watch(ctx, key, namespace, opts)
	}
	return watchEngine(ctx, b.Interface, own, key, opts)
}

// apart gives watches of the engine a stream of their own. On that of the caches
// everybody hears the progress that a list asks for, which comes as a bookmark.
var apart = metadata.Pairs("source", "engine")

// cacheStream gives the watch of a cache a stream of its own, too. The engine tells
// how far it is only when every watch on the stream has come so far, and one that has
// just begun waits for a version that is still to come: on a stream that the caches
// shared a new one kept all others waiting until something was written.
type cacheStream struct {
	storage.Interface
	root string // the key of all objects
}

func (s cacheStream) of(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("source", "cache "+s.root))
}

// Watch implements storage.Interface.
func (s cacheStream) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(s.of(ctx), key, opts)
}

// RequestWatchProgress implements storage.Interface.
func (s cacheStream) RequestWatchProgress(ctx context.Context) error {
	return s.Interface.RequestWatchProgress(s.of(ctx))
}

// watchEngine has the engine serve a watch, with bookmarks if the client wants
// them. A client that does not read is cut off; it may go on where it was. Parts of
// this process are trusted to read.
func watchEngine(ctx context.Context, engine storage.Interface, own bool, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return nil, err
	}
	opts.ProgressNotify = opts.Predicate.AllowWatchBookmarks
	w, err := engine.Watch(metadata.NewOutgoingContext(ctx, apart), key, opts)
	if err != nil || own {
		return w, err
	}
	return newQueue(w, watchRoom, slowest, nil), nil
}

// queue passes the events of a watch on in their order and holds up to room of
// them for a reader that is slow. Its goroutine ends with the source or by Stop.
type queue struct {
	out     chan watch.Event
	stopped chan struct{}
	stop    sync.Once
	member  *member // of a hub that takes the place of the source; nil for none
}

// newQueue returns a queue that ends when its reader takes longer than slowest for
// room events while as many are waiting; zero is no limit. It calls ended, unless nil, when it has ended.
func newQueue(source watch.Interface, room int, slowest time.Duration, ended func()) *queue {
	return startQueue(source, room, slowest, ended, nil)
}

// startQueue returns such a queue, which goes on with what m hears once that has joined its hub.
func startQueue(source watch.Interface, room int, slowest time.Duration, ended func(), m *member) *queue {
	q := &queue{out: make(chan watch.Event), stopped: make(chan struct{}), member: m}
	go q.run(source, room, slowest, ended)
	return q
}

// Stop implements watch.Interface.
func (q *queue) Stop() {
	q.stop.Do(func() { close(q.stopped) })
}

// ResultChan implements watch.Interface. It is closed after the last event of the source, or after Stop.
func (q *queue) ResultChan() <-chan watch.Event { return q.out }

func (q *queue) run(source watch.Interface, room int, slowest time.Duration, ended func()) {
	defer close(q.out)
	stop := source.Stop
	defer func() { stop() }()
	if ended != nil {
		defer ended()
	}
	var waiting []watch.Event
	var late <-chan time.Time // set while the queue is full
	taken := 0                // since late was set
	var news <-chan struct{}  // of the hub, which takes the place of the source
	var asks <-chan time.Time // for the bookmark with which it does
	if q.member != nil {
		asks = time.After(firstAsk)
	}
	wait := firstAsk
	for in := source.ResultChan(); in != nil || news != nil || len(waiting) > 0; {
		from, hear, to, first := in, news, q.out, watch.Event{}
		if len(waiting) >= room {
			from, hear = nil, nil
		}
		switch {
		case len(waiting) < room/2 || taken >= room:
			late, taken = nil, 0
		case len(waiting) >= room && late == nil && slowest > 0:
			late, taken = time.After(slowest), 0
		}
		if len(waiting) > 0 {
			first = waiting[0]
		} else {
			to = nil
		}
		select {
		case ev, ok := <-from:
			if !ok {
				in = nil
				continue
			}
			if q.member != nil && ev.Type == watch.Bookmark {
				joined, wanted := q.member.bookmark(ev)
				if joined {
					in, news, asks = nil, q.member.news, nil
					stop()
					stop = func() {} // the source and its buffers are not kept
				}
				if !wanted {
					continue
				}
			}
			waiting = append(waiting, ev)
		case <-asks:
			q.member.ask()
			wait = min(2*wait, lastAsk)
			asks = time.After(wait)
		case <-hear:
			heard, more := q.member.take()
			waiting = append(waiting, heard...)
			if !more {
				news = nil
			}
		case to <- first:
			waiting[0] = watch.Event{}
			waiting = waiting[1:]
			taken++
		case <-late:
			return
		case <-q.stopped:
			return
		}
	}
}
