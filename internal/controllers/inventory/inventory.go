// Package inventory watches the metadata of all objects in the cluster, with one watch for each
// kind that can be listed, watched, and deleted, including kinds that are added later (custom
// resources, aggregated APIs). It stores no objects: it passes on events. The controller manager
// runs it for the garbage collector and the quota controller; it must never make decisions or
// write.
//
// Goroutines: one that runs discovery when a definition changes, and a reflector for each kind.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/zerocopy"
)

// Kind is a served kind of objects.
type Kind struct {
	schema.GroupVersionResource
	schema.GroupVersionKind
	Namespaced bool
}

// Group returns the API group.
func (k Kind) Group() string { return k.GroupVersionResource.Group }

// Request makes a request for an object of a namespace, or for a subresource. The name may be that of a reference,
// which the API server does not check: a request with one that leads to another path fails.
func (k Kind) Request(r *rest.Request, namespace, name string, subresource ...string) *rest.Request {
	root := "/apis/" + k.Group() + "/" + k.GroupVersionResource.Version
	if k.Group() == "" {
		root = "/api/" + k.GroupVersionResource.Version
	}
	return r.AbsPath(root).Namespace(namespace).Resource(k.Resource).Name(name).SubResource(subresource...)
}

// Reader receives events. Its methods are called from many goroutines, for one kind in the order of
// events, and must not wait.
type Reader interface {
	// Changed: an object was added or changed. Readers must not modify its metadata.
	Changed(k Kind, o *metav1.PartialObjectMetadata)
	// Gone: the object was deleted; o is its last state.
	Gone(k Kind, o *metav1.PartialObjectMetadata)
	// Relisted: these are all objects of this kind.
	Relisted(k Kind, objects []*metav1.PartialObjectMetadata)
	// Kinds: the set of kinds has changed.
	Kinds()
}

// Delays of discovery after a definition changed: a new kind is served a moment after its
// definition is established.
var rediscover = []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second}

// ignored kinds have many objects with short lives, and no dependents.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
}

// definitions are the kinds whose objects define kinds.
var definitions = map[schema.GroupResource]bool{
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: true,
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             true,
}

// Inventory watches all kinds. Create it with New, add readers, and call Run once.
type Inventory struct {
	discovery discovery.DiscoveryInterface
	objects   metadata.Interface
	delay     time.Duration
	readers   []Reader
	look      chan struct{} // at most one element
	synced    chan struct{}

	mu      sync.Mutex
	kinds   map[schema.GroupKind][]Kind // every served version, the preferred one first
	watched map[schema.GroupResource]*watcher
}

// watcher is the watch of one kind.
type watcher struct {
	kind   Kind
	cancel context.CancelFunc
	listed chan struct{}
	once   sync.Once
}

// New returns an inventory that starts its watches some time after Run.
func New(d discovery.DiscoveryInterface, objects metadata.Interface, delay time.Duration) *Inventory {
	return &Inventory{
		discovery: d, objects: objects, delay: delay, look: make(chan struct{}, 1), synced: make(chan struct{}),
		kinds: map[schema.GroupKind][]Kind{}, watched: map[schema.GroupResource]*watcher{},
	}
}

// AddReader adds a reader, before Run.
func (i *Inventory) AddReader(r Reader) { i.readers = append(i.readers, r) }

// Synced is closed when every kind of the first discovery has been listed.
func (i *Inventory) Synced() <-chan struct{} { return i.synced }

// Resolve returns the kind for an apiVersion and a kind name.
func (i *Inventory) Resolve(gvk schema.GroupVersionKind) (Kind, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.kinds[gvk.GroupKind()] {
		if k.GroupVersionKind.Version == gvk.Version {
			return k, true
		}
	}
	return Kind{}, false
}

// Preferred returns a kind in the version that the server prefers.
func (i *Inventory) Preferred(gk schema.GroupKind) (Kind, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if all := i.kinds[gk]; len(all) > 0 {
		return all[0], true
	}
	return Kind{}, false
}

// ByResource returns a kind by its resource, in the version that the server prefers.
func (i *Inventory) ByResource(gr schema.GroupResource) (Kind, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, all := range i.kinds {
		if all[0].GroupResource() == gr {
			return all[0], true
		}
	}
	return Kind{}, false
}

// Run watches until ctx is done.
func (i *Inventory) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	timer := time.NewTimer(i.delay)
	defer timer.Stop()
	step := len(rediscover) // of discovery after a change; none is due
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.look:
			if !first {
				step = 0
				timer.Reset(rediscover[0])
			}
			continue
		case <-timer.C:
		}
		found, complete := i.discover(ctx, &group)
		if first && found { // the kinds of a server that is away are added when it returns
			first = false
			group.Go(func() { i.awaitLists(ctx) })
		}
		switch {
		case first:
			timer.Reset(time.Second)
		case step+1 < len(rediscover):
			step++
			timer.Reset(rediscover[step])
		case !complete:
			timer.Reset(rediscover[len(rediscover)-1])
		}
	}
}

// After this time, a kind that cannot be listed (its server is down) is not waited for any longer.
const listPatience = 30 * time.Second

// awaitLists closes synced when all kinds that are watched now have been listed or removed.
func (i *Inventory) awaitLists(ctx context.Context) {
	i.mu.Lock()
	waits := make([]chan struct{}, 0, len(i.watched))
	for _, w := range i.watched {
		waits = append(waits, w.listed)
	}
	i.mu.Unlock()
	defer close(i.synced)
	enough := time.NewTimer(listPatience)
	defer enough.Stop()
	for _, w := range waits {
		select {
		case <-ctx.Done():
			return
		case <-enough.C:
			klog.FromContext(ctx).Info("Some kinds cannot be listed; continuing without them")
			return
		case <-w:
		}
	}
}

// discover finds the kinds, starts and stops watches, and reports whether there is a result, and whether it is
// complete. Kinds whose discovery failed keep their watch.
func (i *Inventory) discover(ctx context.Context, group *sync.WaitGroup) (found, complete bool) {
	groups, lists, err := i.discovery.ServerGroupsAndResources()
	failed := map[schema.GroupVersion]bool{}
	if err != nil {
		var partial *discovery.ErrGroupDiscoveryFailed
		if !errors.As(err, &partial) {
			klog.FromContext(ctx).V(2).Info("Discovery failed; retrying", "err", err)
			return false, false
		}
		for gv := range partial.Groups {
			failed[gv] = true
		}
	}
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	kinds, watchable := sortKinds(lists, preferred)
	if i.apply(ctx, group, kinds, watchable, failed) {
		for _, r := range i.readers {
			r.Kinds()
		}
	}
	return true, len(failed) == 0
}

// sortKinds returns all kinds with their versions, the preferred one first, and the kinds to watch.
func sortKinds(lists []*metav1.APIResourceList, preferred map[string]string) (map[schema.GroupKind][]Kind,
	map[schema.GroupResource]Kind) {
	kinds, watchable := map[schema.GroupKind][]Kind{}, map[schema.GroupResource]Kind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "get") || slices.Contains([]byte(r.Name), '/') {
				continue
			}
			k := Kind{gv.WithResource(r.Name), gv.WithKind(r.Kind), r.Namespaced}
			gk, gr := k.GroupKind(), k.GroupResource()
			if all := kinds[gk]; gv.Version == preferred[gv.Group] {
				kinds[gk] = append([]Kind{k}, all...)
			} else {
				kinds[gk] = append(all, k)
			}
			if ignored[gr] || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") ||
				!slices.Contains(r.Verbs, "delete") {
				continue
			}
			if _, ok := watchable[gr]; !ok || gv.Version == preferred[gv.Group] {
				watchable[gr] = k
			}
		}
	}
	return kinds, watchable
}

// apply stores the result of a discovery and reports whether anything is new.
func (i *Inventory) apply(ctx context.Context, group *sync.WaitGroup, kinds map[schema.GroupKind][]Kind,
	watchable map[schema.GroupResource]Kind, failed map[schema.GroupVersion]bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	changed := false
	for gk, all := range i.kinds {
		if _, ok := kinds[gk]; !ok &&
			slices.ContainsFunc(all, func(k Kind) bool { return failed[k.GroupVersionKind.GroupVersion()] }) {
			kinds[gk] = all
		}
	}
	i.kinds = kinds
	for gr, w := range i.watched {
		k, ok := watchable[gr]
		if ok && k == w.kind || !ok && failed[w.kind.GroupVersionKind.GroupVersion()] {
			continue
		}
		changed = true
		w.cancel()
		w.signalListed()
		delete(i.watched, gr)
		if !ok {
			for _, r := range i.readers {
				r.Relisted(w.kind, nil)
			}
		}
	}
	for gr, k := range watchable {
		if i.watched[gr] != nil {
			continue
		}
		changed = true
		ctx, cancel := context.WithCancel(ctx)
		w := &watcher{kind: k, cancel: cancel, listed: make(chan struct{})}
		i.watched[gr] = w
		group.Go(func() { i.watch(ctx, w) })
	}
	return changed
}

func (w *watcher) signalListed() { w.once.Do(func() { close(w.listed) }) }

func (i *Inventory) watch(ctx context.Context, w *watcher) {
	log := klog.FromContext(ctx)
	lw := zerocopy.New(i.objects.Resource(w.kind.GroupVersionResource), nil, fields.Everything())
	r := cache.NewReflectorWithOptions(lw, nil, &feed{i, w}, cache.ReflectorOptions{
		Logger: &log, Name: "inventory", TypeDescription: w.kind.GroupVersionResource.String()})
	r.RunWithContext(ctx)
}

// feed passes on the objects of a reflector.
type feed struct {
	*Inventory
	w *watcher
}

var _ cache.ReflectorStore = (*feed)(nil)

func (f *feed) deliver(obj any, how func(Reader, *metav1.PartialObjectMetadata)) error {
	o, err := metadataOf(obj)
	if err != nil {
		return fmt.Errorf("in the watch of %s: %w", f.w.kind.GroupVersionResource, err)
	}
	for _, r := range f.readers {
		how(r, o)
	}
	f.definitionChanged()
	return nil
}

// metadataOf returns the metadata of an object: of a whole object of the API server in this process, or of a
// PartialObjectMetadata from an API server elsewhere.
func metadataOf(obj any) (*metav1.PartialObjectMetadata, error) {
	if o, ok := obj.(*metav1.PartialObjectMetadata); ok {
		return o, nil
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("%T: %w", obj, err)
	}
	if a, ok := obj.(metav1.ObjectMetaAccessor); ok {
		o = a.GetObjectMeta() // which is copied in one go, if it is of the usual type
	}
	return meta.AsPartialObjectMetadata(o), nil
}

// Add implements cache.ReflectorStore.
func (f *feed) Add(obj any) error {
	return f.deliver(obj, func(r Reader, o *metav1.PartialObjectMetadata) { r.Changed(f.w.kind, o) })
}

// Update implements cache.ReflectorStore.
func (f *feed) Update(obj any) error { return f.Add(obj) }

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(obj any) error {
	return f.deliver(obj, func(r Reader, o *metav1.PartialObjectMetadata) { r.Gone(f.w.kind, o) })
}

// Replace implements cache.ReflectorStore.
func (f *feed) Replace(list []any, _ string) error {
	objects := make([]*metav1.PartialObjectMetadata, 0, len(list))
	for _, obj := range list {
		o, err := metadataOf(obj)
		if err != nil {
			return fmt.Errorf("in the list of %s: %w", f.w.kind.GroupVersionResource, err)
		}
		objects = append(objects, o)
	}
	for _, r := range f.readers {
		r.Relisted(f.w.kind, objects)
	}
	f.w.signalListed()
	f.definitionChanged()
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to do.
func (f *feed) Resync() error { return nil }

// definitionChanged triggers discovery if the object is a definition.
func (f *feed) definitionChanged() {
	if !definitions[f.w.kind.GroupResource()] {
		return
	}
	select {
	case f.look <- struct{}{}:
	default:
	}
}
