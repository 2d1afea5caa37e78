package refs

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// Waits between two tries to list and watch while the API server does not respond.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

var (
	errShortWatch = errors.New("the server ended the watch at once")
	errNoAnswer   = errors.New("the server accepted the watch and did not answer")
)

// source lists and watches a set of objects.
type source struct {
	list  func(context.Context, metav1.ListOptions) (objects []metav1.Object, version string, err error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// sink receives the objects of a source. replace and apply return true if no further change is possible and the watch
// may end.
type sink struct {
	tried   func()
	live    func(bool) // whether a watch is open
	replace func(all []metav1.Object) (final bool)
	apply   func(obj metav1.Object, deleted bool) (final bool)
}

type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func sourceOf[L runtime.Object](c listWatcher[L], fieldSelector string, items func(L) []metav1.Object) source {
	return source{
		list: func(ctx context.Context, o metav1.ListOptions) ([]metav1.Object, string, error) {
			o.FieldSelector = fieldSelector
			l, err := c.List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			m, err := meta.ListAccessor(l)
			if err != nil {
				return nil, "", err
			}
			return items(l), m.GetResourceVersion(), nil
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fieldSelector
			return c.Watch(ctx, o)
		},
	}
}

// pointers turns the items of a list into objects.
func pointers[T any, P interface {
	*T
	metav1.Object
}](items []T) []metav1.Object {
	out := make([]metav1.Object, len(items))
	for i := range items {
		out[i] = P(&items[i])
	}
	return out
}

// follow lists and watches until ctx ends or the sink needs no more.
func follow(ctx context.Context, src source, to sink) {
	log := klog.FromContext(ctx)
	retry := firstRetry
	for ctx.Err() == nil {
		all, version, err := listOnce(ctx, src)
		if err == nil {
			final := to.replace(all)
			to.tried()
			if final {
				return
			}
			began := time.Now()
			if final, err = watchFrom(ctx, src, to, version); final {
				return
			}
			if time.Since(began) > lastRetry {
				retry = firstRetry
			}
			if err == nil {
				continue // expired: list again at once
			}
		}
		to.tried()
		if ctx.Err() != nil {
			return
		}
		log.V(2).Info("Listing or watching a referenced object failed", "err", err, "retryIn", retry)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, lastRetry)
	}
}

func listOnce(ctx context.Context, src source) ([]metav1.Object, string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return src.list(ctx, metav1.ListOptions{})
}

// watchFrom watches, again and again, from a version on. It returns nil when that version is too old.
func watchFrom(ctx context.Context, src source, to sink, version string) (final bool, err error) {
	for {
		began, seen := time.Now(), version
		var ended bool
		version, ended, err = watchOnce(ctx, src, to, version)
		switch {
		case ended:
			return true, nil
		case isGone(err):
			return false, nil
		case err != nil:
			return false, err
		case seen == version && time.Since(began) < time.Second:
			return false, errShortWatch // avoid a busy loop if a server closes each watch at once
		}
	}
}

// watchOnce opens a watch and follows it to its end.
func watchOnce(ctx context.Context, src source, to sink, version string) (_ string, final bool, _ error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unanswered := time.AfterFunc(answerTime, func() { cancel(errNoAnswer) })
	w, err := src.watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if !unanswered.Stop() {
		if err == nil {
			w.Stop()
		}
		return version, false, errNoAnswer
	}
	if err != nil {
		return version, false, err
	}
	defer w.Stop()
	to.live(true)
	defer to.live(false)
	return drain(ctx, w, to, version)
}

// drain handles events until the watch or ctx ends, and returns the last resource version.
func drain(ctx context.Context, w watch.Interface, to sink, version string) (_ string, final bool, _ error) {
	for {
		select {
		case <-ctx.Done():
			return version, false, ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok {
				return version, false, ctx.Err()
			}
			if ev.Type == watch.Error {
				return version, false, apierrors.FromObject(ev.Object)
			}
			obj, err := meta.Accessor(ev.Object)
			if err != nil {
				return version, false, err
			}
			version = obj.GetResourceVersion()
			if ev.Type != watch.Bookmark && to.apply(obj, ev.Type == watch.Deleted) {
				return version, true, nil
			}
		}
	}
}
