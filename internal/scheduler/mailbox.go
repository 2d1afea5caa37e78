package scheduler

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// mailbox passes work to the loop: watches and finished calls post closures, and the loop runs them
// in order. Posting never blocks.
type mailbox struct {
	mu    sync.Mutex
	queue []func()
	full  chan struct{} // contains a token if the queue may not be empty
}

func newMailbox() *mailbox { return &mailbox{full: make(chan struct{}, 1)} }

func (m *mailbox) post(f func()) {
	m.mu.Lock()
	m.queue = append(m.queue, f)
	m.mu.Unlock()
	select {
	case m.full <- struct{}{}:
	default:
	}
}

// run runs everything that was posted.
func (m *mailbox) run() {
	m.mu.Lock()
	work := m.queue
	m.queue = nil
	m.mu.Unlock()
	for _, f := range work {
		f()
	}
}

// feed posts a reflector's objects instead of storing them: the cluster and the queue have the only
// copies. T is the type of the object, P the data that the loop needs.
type feed[T, P any] struct {
	box     *mailbox
	prepare func(T) P // runs in the reflector's goroutine
	seen    func(P)
	gone    func(T)
	all     func([]P) // a new full list
}

var _ cache.ReflectorStore = (*feed[int, int])(nil)

// Add implements cache.ReflectorStore.
func (f *feed[T, P]) Add(obj any) error { return f.Update(obj) }

// Update implements cache.ReflectorStore.
func (f *feed[T, P]) Update(obj any) error {
	if o, ok := obj.(T); ok {
		p := f.prepare(o)
		f.box.post(func() { f.seen(p) })
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *feed[T, P]) Delete(obj any) error {
	if o, ok := obj.(T); ok {
		f.box.post(func() { f.gone(o) })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed[T, P]) Replace(list []any, _ string) error {
	objects := make([]P, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(T); ok {
			objects = append(objects, f.prepare(o))
		}
	}
	f.box.post(func() { f.all(objects) })
	return nil
}

// Resync implements cache.ReflectorStore.
func (f *feed[T, P]) Resync() error { return nil }
