package zerocopy

import (
	"context"
	"reflect"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"carob/internal/base/partiallist"
)

// Client is a client of one kind, as the typed clients are.
type Client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// ListWatch lists and watches for a reflector. A list shows everything that was stored when it began, also where the
// reflector would accept an older state.
type ListWatch struct {
	object reflect.Type
	which  string // a field selector
	list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
	shared atomic.Bool
	unread func([]types.NamespacedName) // see Partial
}

var (
	_ cache.ListerWatcher            = (*ListWatch)(nil)
	_ cache.ListerWatcherWithContext = (*ListWatch)(nil)
)

// New returns the ListWatch for the objects that c lists and the selector which selects. Objects of another type than
// example are decoded as usual; nil accepts all types.
func New[L runtime.Object](c Client[L], example runtime.Object, which fields.Selector) *ListWatch {
	lw := &ListWatch{
		which: which.String(), watch: c.Watch,
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
	}
	if example != nil {
		lw.object = reflect.TypeOf(example)
	}
	return lw
}

// Partial makes lists of a namespaced kind return what can be read of it. report is called with the names of the other
// objects, before each list is returned: they are not gone.
func (l *ListWatch) Partial(report func(unread []types.NamespacedName)) *ListWatch {
	l.unread = report
	return l
}

// Shared reports whether the objects of the newest list or watch are those of the server, which
// must not be modified. Only the goroutine of the reflector may call it.
func (l *ListWatch) Shared() bool { return l.shared.Load() }

// ListWithContext implements cache.ListerWithContext.
func (l *ListWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.FieldSelector = l.which
	if o.ResourceVersion == "0" {
		o.ResourceVersion, o.Limit = "", 0
	}
	var shared bool
	one := func(ctx context.Context) (objects runtime.Object, err error) {
		objects, shared, err = list(ctx, l.object, func(ctx context.Context) (runtime.Object, error) {
			return l.list(ctx, o)
		})
		return objects, err
	}
	var objects runtime.Object
	var err error
	if l.unread == nil {
		objects, err = one(ctx)
	} else {
		var unread []types.NamespacedName
		if objects, unread, err = partiallist.List(ctx, one); err == nil {
			l.unread(unread)
		}
	}
	if err != nil {
		return nil, err
	}
	l.shared.Store(shared)
	return objects, nil
}

// WatchWithContext implements cache.WatcherWithContext.
func (l *ListWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = l.which
	w, shared, err := begin(ctx, l.object, func(ctx context.Context) (watch.Interface, error) {
		return l.watch(ctx, o)
	})
	if err != nil {
		return nil, err
	}
	l.shared.Store(shared)
	return w, nil
}

// List implements cache.Lister.
func (l *ListWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

// Watch implements cache.Watcher.
func (l *ListWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// IsWatchListSemanticsUnSupported makes reflectors list, and then watch: a list of a watch cache
// consists of its own objects, the initial events of a watch would be copies.
func (*ListWatch) IsWatchListSemanticsUnSupported() bool { return true }
