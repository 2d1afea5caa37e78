package storage

import (
	"context"
	"testing"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/zerocopy"
)

// requests is a client of the classes, whose answers are what a handler sees.
type requests struct {
	classes
	part bool // a part of this process makes the requests
	kept *schedulingv1.PriorityClassList
	seen watch.Interface
}

func (r *requests) context(ctx context.Context) context.Context {
	if r.part {
		return asPart(ctx)
	}
	return ctx
}

func (r *requests) options(o metav1.ListOptions) storage.ListOptions {
	opts := all(o.ResourceVersion)
	opts.Predicate.AllowWatchBookmarks = o.AllowWatchBookmarks
	if o.FieldSelector != "" {
		f, err := fields.ParseSelector(o.FieldSelector)
		if err != nil {
			panic(err)
		}
		opts.Predicate = storage.SelectionPredicate{Label: labels.Everything(), Field: f,
			GetAttrs: storage.DefaultClusterScopedAttr}
	}
	return opts
}

func (r *requests) List(ctx context.Context, o metav1.ListOptions) (*schedulingv1.PriorityClassList, error) {
	r.kept = &schedulingv1.PriorityClassList{}
	return r.kept, r.GetList(r.context(ctx), classesRoot, r.options(o), r.kept)
}

func (r *requests) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := r.classes.Watch(r.context(ctx), classesRoot, r.options(o))
	r.seen = w
	return w, err
}

// openReady waits for the cache, if there is one.
func openReady(t *testing.T, caching Caching) classes {
	t.Helper()
	c := openClasses(t, caching)
	if _, err := c.options.Wait(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	return c
}

// Parts of this process that accept objects without a copy all get the same objects, those of the watch cache where
// there is one.
func TestListsAndWatchesShareObjects(t *testing.T) {
	for name, caching := range map[string]Caching{"eager": Eager, "lazy": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			c := openReady(t, caching)
			c.create(t, "n", "a")
			r := &requests{classes: c, part: true}
			example := &schedulingv1.PriorityClass{}
			whole := zerocopy.New(r, example, fields.Everything())
			listed, err := whole.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				t.Fatal(err)
			}
			list, ok := listed.(*schedulingv1.PriorityClassList)
			if !ok || !whole.Shared() || len(list.Items) != 1 || list.ResourceVersion == "" {
				t.Fatalf("list %+v, shared: %v", listed, whole.Shared())
			}
			if len(r.kept.Items) != 0 || r.kept.ResourceVersion != list.ResourceVersion {
				t.Errorf("the handler has %+v", r.kept)
			}
			begin := func(lw *zerocopy.ListWatch) watch.Interface {
				t.Helper()
				w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion,
					AllowWatchBookmarks: true})
				if err != nil {
					t.Fatal(err)
				}
				if !lw.Shared() || r.seen.ResultChan() != nil {
					t.Errorf("shared: %v, events for the handler: %v", lw.Shared(), r.seen.ResultChan() != nil)
				}
				t.Cleanup(w.Stop)
				return w
			}
			one, two := begin(whole), begin(zerocopy.New(r, nil, fields.Everything()))
			some := two
			if caching == Eager { // alone, with a selector, for which a lazy kind gets a cache
				some = begin(zerocopy.New(r, example, fields.OneTermEqualSelector("metadata.name", "b")))
			}
			c.create(t, "n", "b")
			c.update(t, "n", "b", 3)
			c.remove(t, "n", "b")
			for _, want := range []string{"ADDED b=0", "MODIFIED b=3", "DELETED b=3"} {
				first, second := <-one.ResultChan(), <-two.ResultChan()
				third := second
				if some != two {
					third = <-some.ResultChan()
				}
				for _, ev := range []watch.Event{first, second, third} {
					if _, wrapped := ev.Object.(runtime.CacheableObject); wrapped || short(ev) != want {
						t.Errorf("%s as %T, want %s", short(ev), ev.Object, want)
					}
				}
				if first.Object != second.Object {
					t.Errorf("%s: two objects", want)
				}
				if first.Object != third.Object {
					t.Errorf("%s: not the object of the cache", want)
				}
			}
			if caching == Lazy && c.hasCache() {
				t.Error("a part of this process had a cache made")
			}
		})
	}
}

// Requests from the network, and clients that expect another type, get encoded answers of their own.
func TestOnlyPartsOfTheProcessShareObjects(t *testing.T) {
	c := openClasses(t, Lazy)
	c.create(t, "n", "a")
	for name, tc := range map[string]struct {
		part    bool
		example runtime.Object
	}{
		"a client":     {false, &schedulingv1.PriorityClass{}},
		"another type": {true, &schedulingv1.PriorityClassList{}},
	} {
		r := &requests{classes: c, part: tc.part}
		lw := zerocopy.New(r, tc.example, fields.Everything())
		list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
		if err != nil || list != r.kept || lw.Shared() || len(r.kept.Items) != 1 {
			t.Errorf("%s: list %+v, %v", name, list, err)
		}
		w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: r.kept.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		if w != r.seen || lw.Shared() {
			t.Errorf("%s: the watch has the server's own objects", name)
		}
		w.Stop()
	}
}

// When the storage ends, the watches that it passed on end, too.
func TestSharedWatchesEndWithTheStorage(t *testing.T) {
	for name, caching := range map[string]Caching{"eager": Eager, "lazy": Lazy, "uncached": Uncached} {
		t.Run(name, func(t *testing.T) {
			c := openReady(t, caching)
			created := c.create(t, "n", "a")
			lw := zerocopy.New(&requests{classes: c, part: true}, &schedulingv1.PriorityClass{}, fields.Everything())
			w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: created.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			c.destroy()
			for range w.ResultChan() { //nolint:revive // until it is closed
			}
		})
	}
}
