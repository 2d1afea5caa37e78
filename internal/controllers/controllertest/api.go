// Package controllertest is an API server in memory for tests of controllers: a typed client whose
// objects have resource versions that grow over all kinds, UIDs, generations, conflicts, status
// subresources and graceful deletions, and whose watches can deliver events late, twice, or not at
// all. It works in a bubble of testing/synctest. Tests drive it; it must never be part of the
// product.
//
// Contract: docs/spec/workloads.md.
package controllertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	ktesting "k8s.io/client-go/testing"
)

// API is the server and its client. Set its functions before controllers run.
type API struct {
	*fake.Clientset
	// Before, unless nil, is called before each write: an error is returned, and nothing is
	// written.
	Before func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error
	// After, unless nil, is called after each write that took effect: an error is returned
	// nevertheless.
	After func(verb string, gvr schema.GroupVersionResource, o metav1.Object) error
	// Late, unless nil, returns how long a watch delays an event.
	Late func() time.Duration
	// LateOf, unless nil, is added to it for watches of one resource.
	LateOf func(gvr schema.GroupVersionResource) time.Duration
	// Faults, unless nil, returns what a watch does with an event instead of delivering it once.
	Faults func() Fault

	mu      sync.Mutex
	version uint64
	made    int
	objects map[schema.GroupVersionResource]map[string]runtime.Object
	history map[schema.GroupVersionResource][]event
	news    chan struct{} // closed, and made anew, by each event
	log     []string
}

// Fault is what may happen to an event of a watch.
type Fault int

// The faults.
const (
	None  Fault = iota
	Twice       // it is delivered twice
	Cut         // the watch ends, and the events until the next list are lost
)

type event struct {
	watch.Event
	version uint64
}

// New returns a server with these objects.
func New(objects ...runtime.Object) *API {
	a := &API{Clientset: fake.NewClientset(), objects: map[schema.GroupVersionResource]map[string]runtime.Object{},
		history: map[schema.GroupVersionResource][]event{}, news: make(chan struct{}), version: 100}
	a.PrependReactor("*", "*", a.react)
	a.PrependWatchReactor("*", func(action ktesting.Action) (bool, watch.Interface, error) {
		var o metav1.ListOptions
		if w, ok := action.(ktesting.WatchActionImpl); ok {
			o = w.ListOptions
		}
		w, err := a.watch(action.GetResource(), o)
		return true, w, err
	})
	for _, o := range objects {
		a.Put(o)
	}
	return a
}

// Put creates an object without changing it, or replaces it.
func (a *API) Put(o runtime.Object) {
	gvr := resourceOf(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	o = o.DeepCopyObject()
	m := access(o)
	if a.objects[gvr] == nil || a.objects[gvr][key(m)] == nil {
		a.name(m)
		a.store(gvr, watch.Added, o)
		return
	}
	a.store(gvr, watch.Modified, o)
}

// Change changes an object under the lock of the server, like a client that never has a
// conflict, and reports whether it exists.
func Change[T runtime.Object](a *API, namespace, name string, change func(T)) bool {
	var zero T
	o := reflect.New(
		reflect.TypeOf(zero).Elem()).Interface().(T) //nolint:errcheck,forcetypeassert // it is made of that type
	gvr := resourceOf(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	stored, ok := a.objects[gvr][namespace+"/"+name].(T)
	if !ok {
		return false
	}
	changed := stored.DeepCopyObject().(T) //nolint:errcheck,forcetypeassert // a copy has its type
	change(changed)
	a.bump(access(stored), access(changed), stored, changed)
	a.store(gvr, watch.Modified, changed)
	return true
}

// All returns the stored objects of a type, by name.
func All[T runtime.Object](a *API) []T {
	var zero T
	gvr := resourceOf(
		reflect.New(
			reflect.TypeOf(zero).Elem()).Interface().(T)) //nolint:errcheck,forcetypeassert // it is made of that type
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []T
	for _, name := range a.names(gvr) {
		out = append(out, a.objects[gvr][name].DeepCopyObject().(T)) //nolint:errcheck,forcetypeassert // of this kind
	}
	return out
}

// Remove removes an object at once, as when its kubelet has terminated it.
func (a *API) Remove(o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gvr := resourceOf(o)
	if stored := a.objects[gvr][key(access(o))]; stored != nil {
		a.store(gvr, watch.Deleted, stored.DeepCopyObject())
	}
}

// Log returns the writes since the last call, as "verb resource[/subresource] name".
func (a *API) Log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log
	a.log = nil
	return log
}

func resourceOf(o runtime.Object) schema.GroupVersionResource {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		panic("controllertest: " + err.Error())
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return gvr
}

func access(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic("controllertest: " + err.Error())
	}
	return m
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

func (a *API) names(gvr schema.GroupVersionResource) []string {
	var names []string
	for name := range a.objects[gvr] {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// store puts an object into the store and the history. Call with mu held.
func (a *API) store(gvr schema.GroupVersionResource, how watch.EventType, o runtime.Object) {
	a.version++
	m := access(o)
	m.SetResourceVersion(strconv.FormatUint(a.version, 10))
	if a.objects[gvr] == nil {
		a.objects[gvr] = map[string]runtime.Object{}
	}
	a.objects[gvr][key(m)] = o
	if how == watch.Deleted || m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 &&
		gvr.Resource != "pods" {
		how = watch.Deleted
		delete(a.objects[gvr], key(m))
	}
	a.history[gvr] = append(a.history[gvr], event{watch.Event{Type: how, Object: o.DeepCopyObject()}, a.version})
	close(a.news)
	a.news = make(chan struct{})
}

// name sets the metadata of a new object like the server.
func (a *API) name(m metav1.Object) {
	a.made++
	if m.GetName() == "" {
		m.SetName(fmt.Sprintf("%s%05d", m.GetGenerateName(), a.made))
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("uid-%d", a.made)))
	}
	if t := m.GetCreationTimestamp(); t.IsZero() {
		m.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	m.SetGeneration(max(1, m.GetGeneration()))
}

func part(o runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName(name)
}

// bump raises the generation if the spec has changed (W0.70).
func (a *API) bump(before, after metav1.Object, old, now runtime.Object) {
	_, deployment := now.(*appsv1.Deployment)
	spec := part(now, "Spec")
	if spec.IsValid() && !equality.Semantic.DeepEqual(part(old, "Spec").Interface(), spec.Interface()) ||
		deployment && !equality.Semantic.DeepEqual(before.GetAnnotations(), after.GetAnnotations()) {
		after.SetGeneration(before.GetGeneration() + 1)
	}
}

func (a *API) react(action ktesting.Action) (bool, runtime.Object, error) {
	gvr := action.GetResource()
	if gvr.Resource == "events" {
		return false, nil, nil
	}
	switch action.GetVerb() {
	case "get":
		get, ok := action.(ktesting.GetAction)
		if !ok {
			break
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		o := a.objects[gvr][action.GetNamespace()+"/"+get.GetName()]
		if o == nil {
			return true, nil, apierrors.NewNotFound(gvr.GroupResource(), get.GetName())
		}
		return true, o.DeepCopyObject(), nil
	case "list":
		if list, ok := action.(ktesting.ListActionImpl); ok {
			o, err := a.list(gvr, list)
			return true, o, err
		}
	case "create", "update", "patch", "delete":
		o, err := a.write(action)
		return true, o, err
	}
	return false, nil, nil
}

func (a *API) list(gvr schema.GroupVersionResource, action ktesting.ListActionImpl) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list, err := scheme.Scheme.New(action.GetKind().GroupVersion().WithKind(action.GetKind().Kind + "List"))
	if err != nil {
		return nil, err
	}
	var items []runtime.Object
	for _, name := range a.names(gvr) {
		if action.GetNamespace() == "" || strings.HasPrefix(name, action.GetNamespace()+"/") {
			items = append(items, a.objects[gvr][name].DeepCopyObject())
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.FormatUint(a.version,
		10)) //nolint:errcheck,forcetypeassert // every list is one
	return list, nil
}

// write performs a request.
func (a *API) write(action ktesting.Action) (runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gvr := action.GetResource()
	var o runtime.Object
	var err error
	how := watch.Modified
	switch action := action.(type) {
	case ktesting.UpdateAction: // before create: an update is one, too
		if action.GetVerb() == "create" {
			o = action.GetObject().DeepCopyObject()
			how = watch.Added
			access(o).SetNamespace(action.GetNamespace())
			break
		}
		o, err = a.update(gvr, action.GetSubresource(), action.GetObject().DeepCopyObject())
	case ktesting.PatchAction:
		o, err = a.patch(gvr, action)
	case ktesting.DeleteAction:
		how = watch.Deleted
		o, err = a.remove(gvr, action)
	}
	if err != nil {
		return nil, err
	}
	m := access(o)
	if a.Before != nil {
		if err := a.Before(action.GetVerb(), gvr, m); err != nil {
			return nil, err
		}
	}
	if how == watch.Added {
		if m.GetName() != "" && a.objects[gvr][key(m)] != nil {
			return nil, apierrors.NewAlreadyExists(gvr.GroupResource(), m.GetName())
		}
		a.name(m)
	}
	if err := oneController(gvr, m); err != nil {
		return nil, err
	}
	if how == watch.Deleted && m.GetDeletionTimestamp() != nil {
		how = watch.Modified
	}
	resource := gvr.Resource
	if s := action.GetSubresource(); s != "" {
		resource += "/" + s
	}
	stored := a.objects[gvr][key(m)]
	if how == watch.Modified && stored != nil && equality.Semantic.DeepEqual(stored, o) {
		return o.DeepCopyObject(), nil // nothing changed
	}
	a.log = append(a.log, action.GetVerb()+" "+resource+" "+m.GetName())
	a.store(gvr, how, o)
	if a.After != nil {
		if err := a.After(action.GetVerb(), gvr, m); err != nil {
			return nil, err
		}
	}
	return o.DeepCopyObject(), nil
}

func (a *API) update(gvr schema.GroupVersionResource, subresource string, o runtime.Object) (runtime.Object, error) {
	m := access(o)
	stored := a.objects[gvr][key(m)]
	if stored == nil {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), m.GetName())
	}
	before := access(stored)
	if m.GetUID() != "" && m.GetUID() != before.GetUID() || m.GetResourceVersion() != "" &&
		m.GetResourceVersion() != before.GetResourceVersion() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), m.GetName(),
			fmt.Errorf("version %s is stored, not %s", before.GetResourceVersion(), m.GetResourceVersion()))
	}
	if subresource == "status" {
		changed := stored.DeepCopyObject()
		part(changed, "Status").Set(part(o, "Status"))
		if d, ok := changed.(*appsv1.Deployment); ok {
			d.Annotations = m.GetAnnotations() // W0.72
		}
		return changed, nil
	}
	if s := part(o, "Status"); s.IsValid() {
		s.Set(part(stored.DeepCopyObject(), "Status"))
	}
	m.SetCreationTimestamp(before.GetCreationTimestamp())
	m.SetUID(before.GetUID())
	m.SetGeneration(before.GetGeneration())
	m.SetResourceVersion(before.GetResourceVersion())
	a.bump(before, m, stored, o)
	return o, nil
}

// oneController refuses an object with two controllers, as the API server does (W0.20).
func oneController(gvr schema.GroupVersionResource, m metav1.Object) error {
	controllers := 0
	for _, o := range m.GetOwnerReferences() {
		if o.Controller != nil && *o.Controller {
			controllers++
		}
	}
	if controllers < 2 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: gvr.Group, Kind: gvr.Resource}, m.GetName(), field.ErrorList{
		field.Invalid(field.NewPath("metadata", "ownerReferences"), m.GetOwnerReferences(),
			"Only one reference can have Controller set to true")})
}

func (a *API) patch(gvr schema.GroupVersionResource, action ktesting.PatchAction) (runtime.Object, error) {
	stored := a.objects[gvr][action.GetNamespace()+"/"+action.GetName()]
	if stored == nil {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), action.GetName())
	}
	old, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	patched, err := strategicpatch.StrategicMergePatch(old, action.GetPatch(), stored)
	if err != nil {
		return nil, err
	}
	o := reflect.New(
		reflect.TypeOf(
			stored).Elem()).Interface().(runtime.Object) //nolint:errcheck,forcetypeassert // of the stored type
	if err := json.Unmarshal(patched, o); err != nil {
		return nil, err
	}
	return a.update(gvr, action.GetSubresource(), o)
}

// remove sets the deletion time of a pod on a node, unless its grace period is 0, and of an object
// with finalizers; all others are removed.
func (a *API) remove(gvr schema.GroupVersionResource, action ktesting.DeleteAction) (runtime.Object, error) {
	stored := a.objects[gvr][action.GetNamespace()+"/"+action.GetName()]
	if stored == nil {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), action.GetName())
	}
	o := stored.DeepCopyObject()
	m := access(o)
	if p := action.GetDeleteOptions().Preconditions; p != nil && p.UID != nil && *p.UID != m.GetUID() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), m.GetName(), fmt.Errorf("the UID is %s", m.GetUID()))
	}
	pod, isPod := o.(*corev1.Pod)
	grace := action.GetDeleteOptions().GracePeriodSeconds
	atOnce := grace != nil && *grace == 0
	if atOnce && len(m.GetFinalizers()) == 0 {
		m.SetDeletionTimestamp(nil)
		return o, nil
	}
	if isPod && pod.Spec.NodeName != "" || len(m.GetFinalizers()) > 0 {
		if m.GetDeletionTimestamp() == nil {
			m.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Truncate(time.Second))))
		}
	}
	return o, nil
}

// watch delivers what happened after a version, and continues.
func (a *API) watch(gvr schema.GroupVersionResource, o metav1.ListOptions) (watch.Interface, error) {
	since := uint64(0)
	if o.ResourceVersion != "" {
		v, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		since = v
	}
	w := &stream{out: make(chan watch.Event), stopped: make(chan struct{})}
	go a.deliver(w, gvr, since)
	return w, nil
}

func (a *API) deliver(w *stream, gvr schema.GroupVersionResource, since uint64) {
	defer close(w.out)
	for {
		a.mu.Lock()
		news := a.news
		var next *event
		i, _ := slices.BinarySearchFunc(a.history[gvr], since+1,
			func(e event, v uint64) int { return cmp.Compare(e.version, v) })
		if i < len(a.history[gvr]) {
			next = &a.history[gvr][i]
		}
		a.mu.Unlock()
		if next == nil {
			select {
			case <-news:
				continue
			case <-w.stopped:
				return
			}
		}
		since = next.version
		wait := time.Duration(0)
		if a.Late != nil {
			wait = a.Late()
		}
		if a.LateOf != nil {
			wait += a.LateOf(gvr)
		}
		if wait > 0 {
			// A watch that is stopped ends at once, so that no test blocks on an event without a
			// reader.
			select {
			case <-time.After(wait):
			case <-w.stopped:
				return
			}
		}
		times := 1
		if a.Faults != nil {
			switch a.Faults() {
			case Cut:
				status := apierrors.NewResourceExpired("the events are lost").Status()
				w.send(watch.Event{Type: watch.Error, Object: &status})
				return
			case Twice:
				times = 2
			case None:
			}
		}
		for range times {
			if !w.send(watch.Event{Type: next.Type, Object: next.Object.DeepCopyObject()}) {
				return
			}
		}
	}
}

// stream is one watch.
type stream struct {
	out     chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func (s *stream) send(e watch.Event) bool {
	select {
	case s.out <- e:
		return true
	case <-s.stopped:
		return false
	}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop.Do(func() { close(s.stopped) }) }
