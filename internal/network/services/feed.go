package services

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
	core "carob/internal/core/netplan/services"
)

// feed has the Services and EndpointSlices as the watches delivered them, and which of them have changed since the last
// take.
type feed struct {
	node   string
	wake   chan struct{} // capacity 1: there are changes to take
	synced chan struct{} // closed by the last of the first lists
	health *health       // records that a change waits, and the node

	mu       sync.Mutex
	started  time.Time
	missing  map[string]bool // kinds without a first list
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice // by Service, then by name
	owner    map[types.NamespacedName]types.NamespacedName                  // the Service of each slice
	changed  map[types.NamespacedName][]time.Time                           // and the trigger of each change
	zoneName string
}

func newFeed(node string, h *health) *feed {
	return &feed{node: node, health: h, wake: make(chan struct{}, 1), synced: make(chan struct{}), started: time.Now(),
		missing:  map[string]bool{"services": true, "endpointslices": true, "nodes": true},
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		owner:    map[types.NamespacedName]types.NamespacedName{}, changed: map[types.NamespacedName][]time.Time{}}
}

// start runs the reflectors until ctx is done.
func (f *feed) start(ctx context.Context, group *sync.WaitGroup, client kubernetes.Interface) {
	run := func(kind string, example runtime.Object, store cache.ReflectorStore, lw *cache.ListWatch) {
		logger := klog.FromContext(ctx)
		r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), example, store,
			cache.ReflectorOptions{Name: "services-" + kind, Logger: &logger})
		// A Service that cannot be read is served as one that does not exist; the others must not wait for it.
		group.Go(func() { r.RunWithContext(partiallist.With(ctx)) })
	}
	all := metav1.NamespaceAll
	run("services", &corev1.Service{}, &store[*corev1.Service]{f, "services", f.serviceSeen, f.serviceGone,
		f.allServices},
		listWatch(client.CoreV1().Services(all), metav1.ListOptions{}))
	run("endpointslices", &discoveryv1.EndpointSlice{},
		&store[*discoveryv1.EndpointSlice]{f, "endpointslices", f.sliceSeen, f.sliceGone, f.allSlices},
		listWatch(client.DiscoveryV1().EndpointSlices(all), metav1.ListOptions{LabelSelector: "!" + labelHeadless}))
	run("nodes", &corev1.Node{}, &store[*corev1.Node]{f, "nodes", f.nodeSeen, f.nodeGone, f.allNodes},
		listWatch(client.CoreV1().Nodes(),
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.node).String()}))
}

// labelHeadless hides slices of headless Services, of which there may be many (N0.20, N10.18).
const labelHeadless = "service.kubernetes.io/headless"

type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func listWatch[L runtime.Object](client lister[L], which metav1.ListOptions) *cache.ListWatch {
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = which.LabelSelector, which.FieldSelector
		return o
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, with(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, with(o))
		},
	}
}

// store is a reflector's store that keeps nothing itself.
type store[T metav1.Object] struct {
	*feed
	kind       string
	seen, gone func(T)
	list       func([]T)
}

var _ cache.ReflectorStore = (*store[*corev1.Service])(nil)

func (s *store[T]) locked(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if len(s.changed) > 0 && len(s.missing) == 0 {
		s.health.queue()
		poke(s.wake)
	}
	return nil
}

func (s *store[T]) Add(o any) error    { return s.locked(func() { s.seen(o.(T)) }) }
func (s *store[T]) Update(o any) error { return s.locked(func() { s.seen(o.(T)) }) }
func (s *store[T]) Delete(o any) error { return s.locked(func() { s.gone(o.(T)) }) }
func (s *store[T]) Resync() error      { return nil }

func (s *store[T]) Replace(list []any, _ string) error {
	all := make([]T, len(list))
	for i, o := range list {
		all[i] = o.(T)
	}
	return s.locked(func() {
		s.list(all)
		if s.missing[s.kind] {
			if delete(s.missing, s.kind); len(s.missing) == 0 {
				close(s.synced)
			}
		}
	})
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (f *feed) touch(name types.NamespacedName) {
	if _, noted := f.changed[name]; !noted {
		f.changed[name] = nil
	}
}

func (f *feed) serviceSeen(s *corev1.Service) {
	f.services[nameOf(s)] = slimService(s)
	f.touch(nameOf(s))
}

func (f *feed) serviceGone(s *corev1.Service) {
	delete(f.services, nameOf(s))
	f.touch(nameOf(s))
}

func (f *feed) allServices(all []*corev1.Service) {
	for name := range f.services {
		f.touch(name)
	}
	clear(f.services)
	for _, s := range all {
		f.serviceSeen(s)
	}
}

func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// sliceSeen handles a changed slice, which may have belonged to another Service before.
func (f *feed) sliceSeen(s *discoveryv1.EndpointSlice) {
	of := serviceOf(s)
	if before, known := f.owner[nameOf(s)]; known && before != of {
		f.dropSlice(nameOf(s))
	}
	if of.Name == "" || s.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	if f.slices[of] == nil {
		f.slices[of] = map[string]*discoveryv1.EndpointSlice{}
	}
	f.slices[of][s.Name], f.owner[nameOf(s)] = slimSlice(s), of
	f.touch(of)
	// Changes from before the start of the process do not count (N9.6).
	if t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil &&
		t.After(f.started) {
		f.changed[of] = append(f.changed[of], t)
	}
}

func (f *feed) sliceGone(s *discoveryv1.EndpointSlice) { f.dropSlice(nameOf(s)) }

func (f *feed) dropSlice(name types.NamespacedName) {
	of, known := f.owner[name]
	if !known {
		return
	}
	delete(f.owner, name)
	if delete(f.slices[of], name.Name); len(f.slices[of]) == 0 {
		delete(f.slices, of)
	}
	f.touch(of)
}

func (f *feed) allSlices(all []*discoveryv1.EndpointSlice) {
	for name := range f.slices {
		f.touch(name)
	}
	clear(f.slices)
	clear(f.owner)
	for _, s := range all {
		f.sliceSeen(s)
	}
}

// taintToBeDeleted is on a node that an autoscaler is going to remove (N2.60).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

func (f *feed) nodeGone(*corev1.Node) { f.health.setEligible(false) }

func (f *feed) nodeSeen(n *corev1.Node) {
	f.health.setEligible(n.DeletionTimestamp == nil && !slices.ContainsFunc(n.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == taintToBeDeleted }))
	if zone := n.Labels[corev1.LabelTopologyZone]; zone != f.zoneName {
		f.zoneName = zone
		for name := range f.services { // the hints of all endpoints have another meaning now
			f.touch(name)
		}
	}
}

func (f *feed) allNodes(all []*corev1.Node) {
	f.health.setEligible(false) // unless the node exists
	for _, n := range all {
		f.nodeSeen(n)
	}
}

func (f *feed) zone() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.zoneName
}

func (f *feed) service(name types.NamespacedName) *corev1.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.services[name]
}

// take returns the Services that have changed.
func (f *feed) take() []input {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]input, 0, len(f.changed))
	for name, triggered := range f.changed {
		out = append(out, f.input(name, triggered))
	}
	clear(f.changed)
	return out
}

// all returns all Services, and those that are gone since the last take.
func (f *feed) all() []input {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.services {
		f.touch(name)
	}
	out := make([]input, 0, len(f.changed))
	for name, triggered := range f.changed {
		out = append(out, f.input(name, triggered))
	}
	clear(f.changed)
	return out
}

func (f *feed) input(name types.NamespacedName, triggered []time.Time) input {
	in := input{core.Input{Name: name, Service: f.services[name]}, triggered}
	for _, s := range f.slices[name] {
		in.Slices = append(in.Slices, s)
	}
	slices.SortFunc(in.Slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return in
}
