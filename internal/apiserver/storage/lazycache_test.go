package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/testwait"
	"carob/internal/kinds/scheme"
)

// inProcessKey marks the contexts of parts of this process in these tests.
type inProcessKey struct{}

func asPart(ctx context.Context) context.Context { return context.WithValue(ctx, inProcessKey{}, true) }

// classes is a store of priority classes, which these tests treat as a kind with namespaces: a
// store only knows keys.
type classes struct {
	storage.Interface
	engine  *Engine
	options *Options
	destroy func()
}

const classesRoot = "/priorityclasses"

func openClasses(t *testing.T, caching Caching) classes {
	t.Helper()
	set, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, filepath.Join(t.TempDir(), "etcd"))
	o := NewOptions(e, set, func(schema.GroupResource) Caching { return caching }, Plain,
		func(ctx context.Context) bool { return ctx.Value(inProcessKey{}) != nil })
	t.Cleanup(o.Close)
	s, destroy := decorate(t, o, classesRoot)
	return classes{s, e, o, destroy}
}

// decorate makes a store of priority classes below a key.
func decorate(t *testing.T, o *Options, root string) (s storage.Interface, destroy func()) {
	t.Helper()
	ro, err := o.GetRESTOptions(schedulingv1.Resource("priorityclasses"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, destroy, err = ro.Decorator(ro.StorageConfig, root, func(obj runtime.Object) (string, error) {
		m, err := meta.Accessor(obj)
		return root + "/" + m.GetNamespace() + "/" + m.GetName(), err
	}, func() runtime.Object { return &schedulingv1.PriorityClass{} },
		func() runtime.Object { return &schedulingv1.PriorityClassList{} }, storage.DefaultClusterScopedAttr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(destroy)
	return s, destroy
}

func (c classes) create(t *testing.T, namespace, name string) *schedulingv1.PriorityClass {
	t.Helper()
	out := &schedulingv1.PriorityClass{}
	in := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{"name": name}}}
	if err := c.Create(t.Context(), classesRoot+"/"+namespace+"/"+name, in, out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

func (c classes) update(t *testing.T, namespace, name string, value int32) {
	t.Helper()
	if err := c.GuaranteedUpdate(t.Context(), classesRoot+"/"+namespace+"/"+name, &schedulingv1.PriorityClass{}, false,
		nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*schedulingv1.PriorityClass).Value = value
			return obj, nil
		}), nil); err != nil {
		t.Fatal(err)
	}
}

func (c classes) remove(t *testing.T, namespace, name string) {
	t.Helper()
	if err := c.Delete(t.Context(), classesRoot+"/"+namespace+"/"+name, &schedulingv1.PriorityClass{}, nil,
		storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// all are the options of a watch of everything from a version.
func all(version string) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: version, Recursive: true, Predicate: storage.Everything}
}

// initial are those of a watch that begins with the stored objects.
func initial() storage.ListOptions {
	o := all("")
	o.SendInitialEvents = new(true)
	o.Predicate.AllowWatchBookmarks = true
	return o
}

func (c classes) watch(t *testing.T, ctx context.Context, key string, opts storage.ListOptions) watch.Interface {
	t.Helper()
	w, err := c.Watch(ctx, key, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// A cache learns the store's revision also while another one starts, whose watch waits for a future
// version.
func TestNewCacheDelaysNoRequest(t *testing.T) {
	c := openClasses(t, Lazy)
	c.create(t, "n", "a")
	c.watch(t, t.Context(), classesRoot, all(""))
	for i := range 5 {
		put, err := c.engine.Client.Put(t.Context(), "/elsewhere", "x")
		if err != nil {
			t.Fatal(err)
		}
		other, _ := decorate(t, c.options, fmt.Sprintf("/others%d", i))
		w, err := other.Watch(t.Context(), fmt.Sprintf("/others%d", i), all(""))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		list := &schedulingv1.PriorityClassList{}
		if err := c.GetList(t.Context(), classesRoot, all(fmt.Sprint(put.Header.Revision)), list); err != nil ||
			len(list.Items) != 1 {
			t.Fatalf("round %d: %d items, %v", i, len(list.Items), err)
		}
	}
}

// short formats an event.
func short(e watch.Event) string {
	object := e.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	c, ok := object.(*schedulingv1.PriorityClass)
	switch {
	case !ok:
		return fmt.Sprintf("%s %v", e.Type, e.Object)
	case e.Type == watch.Bookmark && c.Annotations[metav1.InitialEventsAnnotationKey] == "true":
		return "END OF INITIAL EVENTS"
	case e.Type == watch.Bookmark:
		return "BOOKMARK"
	}
	return fmt.Sprintf("%s %s=%d", e.Type, c.Name, c.Value)
}

func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, x := range want {
		e, open := <-w.ResultChan()
		if got := short(e); !open || got != x {
			t.Fatalf("event %q (open: %v), want %q", got, open, x)
		}
	}
}

func (c classes) lazy() *lazyCache { return c.Interface.(zeroCopyStore).Interface.(*lazyCache) }

func (c classes) hasCache() bool { return c.lazy().cached.Load() != nil }

// A watch of a part of this process needs no cache. It delivers everything in order, continues
// while a client's watch creates the cache, and ends with the storage.
func TestLazyDirectWatch(t *testing.T) {
	c := openClasses(t, Lazy)
	c.create(t, "a", "one")
	direct := c.watch(t, asPart(t.Context()), classesRoot, initial())
	expect(t, direct, "ADDED one=0", "END OF INITIAL EVENTS")
	two := c.create(t, "b", "two")
	later := c.watch(t, asPart(t.Context()), classesRoot, all(two.ResourceVersion))
	c.update(t, "a", "one", 1)
	c.remove(t, "a", "one")
	expect(t, direct, "ADDED two=0", "MODIFIED one=1", "DELETED one=1")
	expect(t, later, "MODIFIED one=1", "DELETED one=1")
	if c.hasCache() {
		t.Fatal("parts of this process made a cache")
	}
	ofClient := c.watch(t, t.Context(), classesRoot, initial())
	expect(t, ofClient, "ADDED two=0", "END OF INITIAL EVENTS")
	if !c.hasCache() {
		t.Fatal("a client's watch made no cache")
	}
	// A client may have a version from before the cache, and a part of this process now uses the
	// cache.
	before := c.watch(t, t.Context(), classesRoot, all(two.ResourceVersion))
	cached := c.watch(t, asPart(t.Context()), classesRoot, initial())
	expect(t, cached, "ADDED two=0", "END OF INITIAL EVENTS")
	c.update(t, "b", "two", 2)
	expect(t, before, "MODIFIED one=1", "DELETED one=1", "MODIFIED two=2")
	for _, w := range []watch.Interface{direct, later, ofClient, cached} {
		expect(t, w, "MODIFIED two=2")
	}
	c.destroy()
	for name, w := range map[string]watch.Interface{"direct": direct, "client": ofClient, "cached": cached} {
		for e := range w.ResultChan() {
			t.Errorf("%s: %s after the end", name, short(e))
		}
	}
	if _, err := c.Watch(asPart(t.Context()), classesRoot, all("")); err == nil {
		t.Error("a watch of a storage that is destroyed")
	}
}

// A list that waits asks the engine for its revision. The answer reaches the caches; a watch that
// the engine serves receives nothing that it did not request.
func TestProgressIsNoBookmark(t *testing.T) {
	c := openClasses(t, Lazy)
	one := c.create(t, "a", "one")
	direct := c.watch(t, asPart(t.Context()), classesRoot, all(one.ResourceVersion))
	c.update(t, "a", "one", 1)
	expect(t, c.watch(t, t.Context(), classesRoot, initial()), "ADDED one=1", "END OF INITIAL EVENTS")
	before := c.watch(t, t.Context(), classesRoot, all(one.ResourceVersion))
	for _, w := range []watch.Interface{direct, before} {
		expect(t, w, "MODIFIED one=1")
	}
	if _, err := c.engine.Client.Client.Put(t.Context(), "/elsewhere", ""); err != nil {
		t.Fatal(err)
	}
	if err := c.GetList(t.Context(), classesRoot, all(""), &schedulingv1.PriorityClassList{}); err != nil {
		t.Fatal(err)
	}
	c.update(t, "a", "one", 2)
	for _, w := range []watch.Interface{direct, before} {
		expect(t, w, "MODIFIED one=2")
	}
}

// A watch of a part of the objects, and every client, gets a cache: the engine would send each of
// them everything, and has no limit for one that does not read.
func TestLazyMakesCache(t *testing.T) {
	selector := all("")
	selector.Predicate = storage.SelectionPredicate{Label: labels.SelectorFromSet(labels.Set{"name": "one"}),
		Field: fields.Everything(), GetAttrs: storage.DefaultClusterScopedAttr}
	single := all("")
	single.Recursive = false
	for name, tc := range map[string]struct {
		inProcess bool
		key       string
		opts      storage.ListOptions
	}{
		"client":    {false, classesRoot, all("")},
		"namespace": {true, classesRoot + "/a", all("")},
		"selector":  {true, classesRoot, selector},
		"object":    {true, classesRoot + "/a/one", single},
	} {
		t.Run(name, func(t *testing.T) {
			c := openClasses(t, Lazy)
			c.create(t, "a", "one")
			ctx := t.Context()
			if tc.inProcess {
				ctx = asPart(ctx)
			}
			expect(t, c.watch(t, ctx, tc.key, tc.opts), "ADDED one=0")
			if !c.hasCache() || len(c.lazy().direct) != 0 {
				t.Errorf("cache: %v, watches of the engine: %d", c.hasCache(), len(c.lazy().direct))
			}
		})
	}
}

// A direct watch ends with its request, and the error for a compacted version is that of upstream's
// store.
func TestLazyReleasesWatches(t *testing.T) {
	c := openClasses(t, Lazy)
	l := c.lazy()
	first := c.create(t, "a", "one")
	ctx, cancel := context.WithCancel(asPart(t.Context()))
	w := c.watch(t, ctx, classesRoot, all(""))
	expect(t, w, "ADDED one=0")
	cancel()
	for range w.ResultChan() {
	}
	forgotten := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.direct) == 0
	}
	testwait.For(t, "the watch is forgotten", func() bool {
		if forgotten() {
			return true
		}
		// Something else to do. A watch would stay open, and the later ones would join it with the events it has seen.
		_, _ = c.GetCurrentResourceVersion(t.Context())
		return false
	})
	c.update(t, "a", "one", 1)
	c.update(t, "a", "one", 2)
	now, err := c.GetCurrentResourceVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.Client.Compact(t.Context(), int64(now)); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{t.Context(), asPart(t.Context())} {
		e := <-c.watch(t, ctx, classesRoot, all(first.ResourceVersion)).ResultChan()
		if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) &&
			!apierrors.IsGone(err) {
			t.Errorf("part %v: %s %v, want 410; compacted at %d", ctx.Value(inProcessKey{}), e.Type, e.Object, now)
		}
	}
}

// Many reads that any version would answer create a cache: each write of a pod has some.
func TestLazyMakesCacheForReads(t *testing.T) {
	c := openClasses(t, Lazy)
	c.create(t, "a", "one")
	list := func(version string) {
		t.Helper()
		var out schedulingv1.PriorityClassList
		if err := c.GetList(t.Context(), classesRoot, all(version), &out); err != nil || len(out.Items) != 1 {
			t.Fatalf("%d objects, %v", len(out.Items), err)
		}
	}
	for range 2 * oftenRead {
		list("")
	}
	for range oftenRead - 1 {
		list("0")
	}
	if c.hasCache() || c.lazy().cache != nil {
		t.Fatal("a cache, too early")
	}
	testwait.For(t, "there is a cache", func() bool {
		if c.hasCache() {
			return true
		}
		list("0")
		return false
	})
	list("0")
}

// The items of a list that is read from etcd have no kind: the list has it.
func TestListItemsHaveNoKind(t *testing.T) {
	c := openClasses(t, Lazy)
	c.create(t, "n", "a")
	list := &schedulingv1.PriorityClassList{}
	if err := c.GetList(t.Context(), classesRoot, all(""), list); err != nil || len(list.Items) != 1 || c.hasCache() {
		t.Fatalf("%d items, %v", len(list.Items), err)
	}
	if kind := list.Items[0].Kind; kind != "" {
		t.Errorf("an item says that it is a %s", kind)
	}
}

// A watch cache that never ends does not keep the server from stopping; the server waits for one that does end.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, never := time.Now(), make(chan struct{})
		stopWithin(stopPatience, func() { <-never })
		if took := time.Since(begin); took != stopPatience {
			t.Errorf("waited %v for a cache that never ends", took)
		}
		close(never)
		ended := false
		stopWithin(stopPatience, func() { time.Sleep(time.Second); ended = true })
		if !ended {
			t.Error("did not wait for a cache that ends")
		}
	})
}
