package storage

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/goroutinestack"
)

// Writes returns how many writes to a kind have ended since the start, including failed ones.
// Objects read from the store after one call are still current if a later call returns the same
// number: a write is counted before its caller gets the result. It returns false if that is not
// known: others write to the store too, or the result of a write is unknown. Objects that expire
// (with a lease) are not counted.
func (e *Engine) Writes(gr schema.GroupResource) (uint64, bool) {
	if e.server == nil {
		return 0, false
	}
	return e.writes.of(gr).known()
}

// writes holds a tally for each kind.
type writes struct{ kinds sync.Map } // schema.GroupResource → *tally

func (w *writes) of(gr schema.GroupResource) *tally {
	t, ok := w.kinds.Load(gr)
	if !ok {
		t, _ = w.kinds.LoadOrStore(gr, &tally{})
	}
	return t.(*tally)
}

// tally counts the writes to one kind. A write whose caller did not wait for its end may still take
// effect later, but before any write that starts after it:
//
//	known ──write abandoned──▶ open ──a later write succeeds──▶ known
type tally struct {
	ended  atomic.Uint64
	lost   atomic.Uint64 // abandoned writes
	behind atomic.Uint64 // those of them that cannot take effect any more
}

func (t *tally) known() (uint64, bool) {
	n := t.ended.Load()
	return n, t.behind.Load() == t.lost.Load()
}

// end counts a write. lost is the number of abandoned writes at its start, certain says that it has
// changed the store if it did not fail.
func (t *tally) end(err error, lost uint64, certain bool) {
	switch {
	case undecided(err):
		t.lost.Add(1)
	case err == nil && certain:
		for b := t.behind.Load(); b < lost && !t.behind.CompareAndSwap(b, lost); b = t.behind.Load() {
		}
	}
	t.ended.Add(1)
}

// undecided reports whether a write with this error may still take effect: all but errors of the
// store and of checks before the write.
func undecided(err error) bool {
	var answer *storage.StorageError
	var refused apierrors.APIStatus
	return err != nil && !errors.As(err, &answer) && !errors.As(err, &refused)
}

// counted is a store that counts the writes to its kind.
type counted struct {
	storage.Interface
	tally *tally
}

// Create implements storage.Interface.
func (c counted) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	lost := c.tally.lost.Load()
	err := c.Interface.Create(ctx, key, obj, out, ttl)
	c.tally.end(err, lost, true)
	return err
}

// Delete implements storage.Interface.
func (c counted) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
	cached runtime.Object, opts storage.DeleteOptions) error {
	lost := c.tally.lost.Load()
	err := c.Interface.Delete(ctx, key, out, preconditions, validate, cached, opts)
	c.tally.end(err, lost, true)
	return err
}

// GuaranteedUpdate implements storage.Interface. An update that changes nothing is not written. The
// changes of a request happen inside, on a new goroutine.
func (c counted) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc, cached runtime.Object) error {
	goroutinestack.Grow()
	err := c.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
	c.tally.end(err, 0, false)
	return err
}
