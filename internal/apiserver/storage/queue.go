package storage

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// watchRoom is how many events a client may be behind before the cache's own limit applies.
const watchRoom = 1000

// slowest is how long a client served by the engine may take for watchRoom events while more are
// waiting. The engine keeps everything that comes meanwhile.
const slowest = 5 * time.Second

// apart gives watches of the engine their own stream. On the stream of the caches, everybody
// receives the progress that a list requests, which comes as a bookmark.
var apart = metadata.Pairs("source", "engine")

// cacheStream also gives the watch of a cache its own stream. The engine reports its revision only
// when every watch on the stream has reached it, and a new one waits for a future version: on a
// stream shared by the caches, a new one would keep all others waiting until something is written.
type cacheStream struct {
	storage.Interface
	root       string // the key of all objects
	unreadable *unreadable
}

func (s cacheStream) of(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("source", "cache "+s.root))
}

// Watch implements storage.Interface. A second watch from a version means that the first has ended there, most likely
// with a change of an object that cannot be read. The cache would try again at once, for half a minute; it lists again
// instead.
func (s cacheStream) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if s.unreadable.again(opts.ResourceVersion) {
		return nil, apierrors.NewResourceExpired("the watch from version " + opts.ResourceVersion + " has failed")
	}
	return s.Interface.Watch(s.of(ctx), key, opts)
}

// RequestWatchProgress implements storage.Interface.
func (s cacheStream) RequestWatchProgress(ctx context.Context) error {
	return s.Interface.RequestWatchProgress(s.of(ctx))
}

// watchEngine makes the engine serve a watch, with bookmarks if the client requests them. A client
// that does not read is disconnected; it may resume. Parts of this process are trusted to read.
func watchEngine(ctx context.Context, engine storage.Interface, inProcess bool, key string,
	opts storage.ListOptions) (watch.Interface, error) {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return nil, err
	}
	opts.ProgressNotify = opts.Predicate.AllowWatchBookmarks
	w, err := engine.Watch(metadata.NewOutgoingContext(ctx, apart), key, opts)
	if err != nil || inProcess {
		return w, err
	}
	return newQueue(w, watchRoom, slowest, nil), nil
}

// queue passes the events of a watch on in order, and holds up to room of them for a slow reader.
// Its goroutine ends with the source or by Stop.
type queue struct {
	out     chan watch.Event
	bare    bool // the events carry the stored objects without a copy
	stopped chan struct{}
	stop    sync.Once
}

// newQueue returns a queue that ends when its reader takes longer than slowest for room events
// while as many are waiting; zero is unlimited. It calls ended, unless nil, when it has ended.
func newQueue(source watch.Interface, room int, slowest time.Duration, ended func()) *queue {
	q := &queue{out: make(chan watch.Event), stopped: make(chan struct{})}
	go q.run(source, room, slowest, ended)
	return q
}

// newBareQueue returns a queue without a limit, whose events carry the stored objects without a copy.
func newBareQueue(source watch.Interface, room int) *queue {
	q := &queue{out: make(chan watch.Event), stopped: make(chan struct{}), bare: true}
	go q.run(source, room, 0, nil)
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
	defer source.Stop()
	if ended != nil {
		defer ended()
	}
	var waiting []watch.Event
	var late <-chan time.Time // set while the queue is full
	taken := 0                // since late was set
	for in := source.ResultChan(); in != nil || len(waiting) > 0; {
		from, to, first := in, q.out, watch.Event{}
		if len(waiting) >= room {
			from = nil
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
			if q.bare {
				ev = bareEvent(ev)
			}
			waiting = append(waiting, ev)
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
