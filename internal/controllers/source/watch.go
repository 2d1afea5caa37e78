package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/zerocopy"
)

// Watch holds the objects of one kind as last reported by the API server, and its progress: Version
// is the resource version up to which it has received every change. Its objects are read only: with
// a client of the API server in this process, they are those of the server's own watch cache
// (package zerocopy).
//
// It is an informer with one goroutine: the reflector's, on which listeners are called one after
// the other, after the change is stored. So a listener must not block. Make it with a function of
// this package, add listeners, Run it.
type Watch struct {
	name      string
	lw        *zerocopy.ListWatch
	example   runtime.Object
	slim      cache.TransformFunc // of objects that only this watch has
	read      cache.TransformFunc // of all objects, into others
	objects   cache.Indexer
	mutations cache.MutationDetector

	started  atomic.Bool
	version  atomic.Uint64
	synced   chan struct{} // closed by the first list
	listed   bool          // synced is closed; the reflector's goroutine
	change   []func(before, after metav1.Object)
	progress []func(version uint64)
}

var (
	_          cache.ReflectorBookmarkStore = (*Watch)(nil)
	errStarted                              = errors.New("the watch has started already")
)

// mutationPeriod is a fraction of the two minutes for which the detector keeps an object at least.
const mutationPeriod = 20 * time.Second

// detectMutations is what cache.NewCacheMutationDetector looks at: without it the detector does nothing.
var detectMutations, _ = strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR"))

func newWatch[L runtime.Object](c zerocopy.Client[L], example runtime.Object, selector fields.Selector,
	slim cache.TransformFunc, indexers cache.Indexers) *Watch {
	if indexers == nil {
		indexers = cache.Indexers{}
	}
	name := fmt.Sprintf("%T", example)
	return &Watch{name: name, lw: zerocopy.New(c, example, selector), example: example, slim: slim,
		objects: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers), synced: make(chan struct{}),
		mutations: cache.NewCacheMutationDetector(name)}
}

// Objects returns the current objects, by namespace/name and by the indexes of the kind. Objects
// and lists are for reading only.
func (w *Watch) Objects() cache.Indexer { return w.objects }

// Synced returns a channel that is closed after the first list.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

// Version returns the resource version up to which every change has been received; 0 before the
// first list.
func (w *Watch) Version() uint64 { return w.version.Load() }

// OnChange registers f, which is called with each object that is added (before is nil), changed or
// removed (after is nil), after a new list also with missed changes. An object that was replaced by
// another of its name is first removed and then added.
func (w *Watch) OnChange(f func(before, after metav1.Object)) error {
	if w.started.Load() {
		return fmt.Errorf("listen to changes of %s: %w", w.name, errStarted)
	}
	w.change = append(w.change, f)
	return nil
}

// OnProgress registers f, which is called with Version whenever it has grown: after the calls for
// the change, for a bookmark, and for a new list.
func (w *Watch) OnProgress(f func(version uint64)) error {
	if w.started.Load() {
		return fmt.Errorf("listen to the progress of %s: %w", w.name, errStarted)
	}
	w.progress = append(w.progress, f)
	return nil
}

// Run watches until ctx ends. Controllers that share a watch may all call it: the first call watches, and the
// others only wait for their ctx. All of them must end together.
func (w *Watch) Run(ctx context.Context) {
	if w.started.Swap(true) {
		<-ctx.Done()
		return
	}
	var checks sync.WaitGroup
	defer checks.Wait()
	if detectMutations {
		checks.Go(func() { w.checkMutations(ctx) })
	}
	log := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(w.lw, w.example, w, cache.ReflectorOptions{Logger: &log,
		Name: "controllers"}).RunWithContext(ctx)
}

// checkMutations compares the objects with their copies, which ends the process if one was modified: now, regularly,
// and when ctx ends. The detector's own loop compares each second, which takes most of the time of tests in virtual
// time.
func (w *Watch) checkMutations(ctx context.Context) {
	once := make(chan struct{})
	close(once)
	for {
		w.mutations.Run(once)
		select {
		case <-ctx.Done():
			w.mutations.Run(once)
			return
		case <-time.After(mutationPeriod):
		}
	}
}

// Add implements cache.ReflectorStore.
func (w *Watch) Add(obj any) error {
	o, version, err := w.take(obj)
	if err != nil {
		return err
	}
	before, there, err := w.objects.Get(o)
	if err != nil {
		return err
	}
	old, _ := before.(metav1.Object)
	if there && old.GetUID() == o.GetUID() {
		if v, err := ParseVersion(old.GetResourceVersion()); err == nil && v > version {
			return nil // a late event: a newer version is stored
		}
	}
	if err := w.objects.Update(o); err != nil {
		return err
	}
	switch {
	case !there:
		w.changed(nil, o)
	case old.GetUID() != o.GetUID():
		w.changed(old, nil)
		w.changed(nil, o)
	default:
		w.changed(old, o)
	}
	w.reached(version)
	return nil
}

// Update implements cache.ReflectorStore.
func (w *Watch) Update(obj any) error { return w.Add(obj) }

// Delete implements cache.ReflectorStore.
func (w *Watch) Delete(obj any) error {
	o, version, err := w.take(obj)
	if err != nil {
		return err
	}
	before, there, err := w.objects.Get(o)
	if err != nil {
		return err
	}
	if err := w.objects.Delete(o); err != nil {
		return err
	}
	if there {
		if old, ok := before.(metav1.Object); ok && old.GetUID() != o.GetUID() {
			w.changed(old, nil)
		}
		w.changed(o, nil)
	}
	w.reached(version)
	return nil
}

// Replace implements cache.ReflectorStore.
func (w *Watch) Replace(list []any, version string) error {
	type pair struct{ before, after metav1.Object }
	var changes []pair
	left := map[string]metav1.Object{}
	for _, obj := range w.objects.List() {
		o, key, err := keyed(obj)
		if err != nil {
			return err
		}
		left[key] = o
	}
	objects := make([]any, 0, len(list))
	for _, obj := range list {
		o, _, err := w.take(obj)
		if err != nil {
			return err
		}
		_, key, err := keyed(o)
		if err != nil {
			return err
		}
		objects = append(objects, o)
		old := left[key]
		delete(left, key)
		switch {
		case old == nil:
			changes = append(changes, pair{nil, o})
		case old.GetUID() != o.GetUID():
			changes = append(changes, pair{old, nil}, pair{nil, o})
		case old.GetResourceVersion() != o.GetResourceVersion() || o.GetResourceVersion() == "":
			changes = append(changes, pair{old, o})
		}
	}
	for _, o := range left {
		changes = append(changes, pair{o, nil})
	}
	if err := w.objects.Replace(objects, version); err != nil {
		return err
	}
	for _, c := range changes {
		w.changed(c.before, c.after)
	}
	if !w.listed {
		w.listed = true
		close(w.synced)
	}
	return w.Bookmark(version)
}

// Bookmark implements cache.ReflectorBookmarkStore.
func (w *Watch) Bookmark(version string) error {
	v, err := ParseVersion(version)
	if err != nil {
		return fmt.Errorf("bookmark of %s: %w", w.name, err)
	}
	w.reached(v)
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to repeat.
func (w *Watch) Resync() error { return nil }

// take drops the fields that no controller reads, unless the object is the API server's own, which
// must not be modified and needs no extra memory.
func (w *Watch) take(obj any) (o metav1.Object, version uint64, err error) {
	if w.slim != nil && !w.lw.Shared() {
		if obj, err = w.slim(obj); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	if w.read != nil {
		if obj, err = w.read(obj); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, 0, fmt.Errorf("unexpected %T in the watch of %s", obj, w.name)
	}
	w.mutations.AddObject(obj)
	version, err = ParseVersion(o.GetResourceVersion())
	return o, version, err
}

func (w *Watch) changed(before, after metav1.Object) {
	for _, f := range w.change {
		f(before, after)
	}
}

// reached records a version. A duplicate event, or a late one after a new list, does not lower it.
func (w *Watch) reached(version uint64) {
	if version <= w.version.Load() {
		return
	}
	w.version.Store(version)
	for _, f := range w.progress {
		f(version)
	}
}

func keyed(obj any) (metav1.Object, string, error) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return nil, "", fmt.Errorf("unexpected %T", obj)
	}
	key, err := cache.MetaNamespaceKeyFunc(obj)
	return o, key, err
}

// ParseVersion reads a resource version; none is 0.
func ParseVersion(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read resource version %q: %w", s, err)
	}
	return v, nil
}
