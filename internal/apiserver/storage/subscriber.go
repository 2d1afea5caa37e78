package storage

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
)

const (
	// lastBookmark is how long before its timeout a client gets a bookmark to resume from; the same
	// as upstream.
	lastBookmark = 2 * time.Second
	// subscriberBuffer is the buffer of a client's channel: a few changes, so that most changes
	// wake only its own goroutine.
	subscriberBuffer = 2
)

// subscriber is a watch of a client that a shared watch serves. No goroutine of it runs while it
// waits:
//
//	started, with a watch of its own ──the bookmark after the initial events──▶ joined, waiting ──a change──▶ pumping ──all taken──▶ waiting
//
// One that begins at a version joins at once. A subscriber that is too slow, whose shared watch has
// ended, or that was stopped, ends by closing out.
type subscriber struct {
	shared    *sharedWatch
	namespace string // all, when empty
	bookmarks bool   // are wanted
	bare      bool   // its events carry the stored objects without a copy
	initial   bool   // the one after the initial events is
	out       chan watch.Event
	gone      chan struct{} // closed when the client does not read out any more
	attended  func()        // unregisters it from the cache's bookmarks; nil for none
	last      *time.Timer   // for the bookmark before its timeout; nil for none
	stop      sync.Once

	known uint64 // it has received all changes up to this version; protected by shared.mu

	mu       sync.Mutex
	unhook   func() bool   // from the end of the client's context
	received []watch.Event // received changes, oldest first
	pumping  bool          // a goroutine sends the received changes
	over     bool          // no more changes will come
	cut      bool          // whether gone is closed
	closed   bool          // whether out is closed
	late     time.Time     // when more than watchRoom started to wait
	taken    int           // since late
}

// newSubscriber returns a subscriber that ends with ctx, from now on. If it is to be started, its
// channel belongs to start, however early that end comes.
func newSubscriber(ctx context.Context, h *sharedWatch, namespace string, opts storage.ListOptions,
	toStart bool) *subscriber {
	m := &subscriber{shared: h, namespace: namespace, bookmarks: opts.Predicate.AllowWatchBookmarks,
		initial: opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.Predicate.AllowWatchBookmarks,
		out:     make(chan watch.Event, subscriberBuffer),
		gone:    make(chan struct{}), pumping: toStart, bare: requestsBare(ctx)}
	if m.bookmarks {
		if h.clock != nil && !m.bare { // a part of this process waits for none
			m.attended = h.clock.client()
		}
		if end, ok := ctx.Deadline(); ok {
			m.last = time.AfterFunc(time.Until(end)-lastBookmark, func() { h.bookmark(m) })
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unhook = context.AfterFunc(ctx, m.Stop)
	return m
}

// ResultChan implements watch.Interface. It is closed when the shared watch has ended, the reader
// was too slow, or after Stop.
func (m *subscriber) ResultChan() <-chan watch.Event { return m.out }

// Stop implements watch.Interface.
func (m *subscriber) Stop() {
	m.stop.Do(func() {
		if m.attended != nil {
			m.attended()
		}
		if m.last != nil {
			m.last.Stop()
		}
		m.mu.Lock()
		m.unhook()
		m.cutOff()
		m.mu.Unlock()
		m.shared.leave(m) // after that it does not join any more
	})
}

func (m *subscriber) hasGone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cut
}

// start passes its own watch on until it has delivered the initial events, and then joins.
func (m *subscriber) start(initial watch.Interface) {
	defer m.pump()
	defer initial.Stop()
	for {
		select {
		case ev, ok := <-initial.ResultChan():
			if !ok {
				m.mu.Lock()
				m.over = true
				m.mu.Unlock()
				return
			}
			wanted, joined := true, false
			if ev.Type == watch.Bookmark {
				o, err := meta.Accessor(ev.Object)
				first := err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != ""
				wanted = m.bookmarks && (m.initial || !first)
				joined = m.shared.join(m, versionOf(ev)) // or continues with its own, up to the next bookmark
			}
			if wanted {
				select {
				case m.out <- ev:
				case <-m.gone:
					return
				}
			}
			if joined {
				return
			}
		case <-m.gone:
			return
		}
	}
}

// receive accepts a change. Call with shared.mu held.
func (m *subscriber) receive(c change) {
	switch c.Type {
	case watch.Error:
		c.Object = c.Object.DeepCopyObject() // others get it, too
	case watch.Bookmark:
		if !m.bookmarks || c.version < m.known {
			return
		}
	default:
		if c.version <= m.known {
			return
		}
		if o, err := meta.Accessor(c.Object); err == nil && m.namespace != "" && o.GetNamespace() != m.namespace {
			return
		}
	}
	if m.bare {
		c.Event = bareEvent(c.Event)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	if !m.pumping {
		select {
		case m.out <- c.Event:
			return
		default:
		}
		m.pumping = true
		go m.pump()
	}
	m.received = append(m.received, c.Event)
	if m.tooSlow() {
		cachermetrics.TerminatedWatchersCounter.WithLabelValues(m.shared.kind.Group, m.shared.kind.Resource).Inc()
		m.cutOff()
	}
}

// tooSlow reports whether the client takes longer than slowest for watchRoom changes while more are
// waiting. Call with mu held.
func (m *subscriber) tooSlow() bool {
	if len(m.received) < watchRoom {
		m.late = time.Time{}
		return false
	}
	if now := time.Now(); m.late.IsZero() || m.taken >= watchRoom {
		m.late, m.taken = now, 0
	} else {
		return now.Sub(m.late) > slowest
	}
	return false
}

// cutOff ends the subscriber and discards waiting changes. Call with mu held.
func (m *subscriber) cutOff() {
	if !m.cut {
		m.cut = true
		close(m.gone)
	}
	m.over, m.received = true, nil
	m.finish()
}

// end ends the subscriber after the waiting changes. Call with shared.mu held.
func (m *subscriber) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	m.finish()
}

// finish closes out when nothing sends and nothing will arrive any more. Call with mu held.
func (m *subscriber) finish() {
	if m.over && !m.pumping && !m.closed {
		m.closed = true
		close(m.out)
	}
}

// pump sends the received changes until none is left.
func (m *subscriber) pump() {
	for {
		m.mu.Lock()
		if len(m.received) == 0 {
			m.received, m.pumping = nil, false
			m.finish()
			m.mu.Unlock()
			return
		}
		ev := m.received[0]
		m.received[0] = watch.Event{}
		m.received = m.received[1:]
		m.taken++
		m.mu.Unlock()
		select {
		case m.out <- ev:
		case <-m.gone:
		}
	}
}
