package storage

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// patient is a cached store whose watches have room for a burst. The cache ends
// a watch when its client is some ten events behind and does not catch up within
// a moment: fewer than one burst of pods makes on a busy machine. Events wait as
// pointers to what the cache holds anyway.
type patient struct{ *cacher.CacheDelegator }

// watchRoom is how many events a client may be behind before the cache's own limit counts.
const watchRoom = 1000

// Watch implements storage.Interface.
func (p patient) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := p.CacheDelegator.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return newQueue(w, watchRoom), nil
}

// queue passes the events of a watch on in their order and holds up to room of
// them for a reader that is slow. Its goroutine ends with the source or by Stop.
type queue struct {
	source  watch.Interface
	out     chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func newQueue(source watch.Interface, room int) *queue {
	q := &queue{source: source, out: make(chan watch.Event), stopped: make(chan struct{})}
	go q.run(room)
	return q
}

// Stop implements watch.Interface.
func (q *queue) Stop() {
	q.stop.Do(func() {
		close(q.stopped)
		q.source.Stop()
	})
}

// ResultChan implements watch.Interface. It is closed after the last event of the source, or after Stop.
func (q *queue) ResultChan() <-chan watch.Event { return q.out }

func (q *queue) run(room int) {
	defer close(q.out)
	var waiting []watch.Event
	for in := q.source.ResultChan(); in != nil || len(waiting) > 0; {
		from, to, first := in, q.out, watch.Event{}
		if len(waiting) >= room {
			from = nil
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
			waiting = append(waiting, ev)
		case to <- first:
			waiting[0] = watch.Event{}
			waiting = waiting[1:]
		case <-q.stopped:
			return
		}
	}
}
