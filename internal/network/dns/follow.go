package dns

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
	"carob/internal/base/zerocopy"
)

// follower passes on the changes of one kind. It keeps only those fields of each object that the next change needs. It
// has one goroutine, the reflector's, on which changed is called.
type follower struct {
	lw      cache.ListerWatcher
	example runtime.Object
	changed func(before, after metav1.Object) // before is slim; either may be nil
	listed  func()                            // called after the first list

	known map[string]metav1.Object
	first bool
}

var _ cache.ReflectorStore = (*follower)(nil)

// follow returns a follower of one kind. Objects are those of the API server in this process: for reading only.
func follow[L runtime.Object](c zerocopy.Client[L], example runtime.Object, selector fields.Selector,
	changed func(before, after metav1.Object)) *follower {
	return &follower{lw: zerocopy.New(c, example, selector), example: example, changed: changed, listed: func() {},
		first: true, known: map[string]metav1.Object{}}
}

// slim keeps the identity of an object, the Service of a slice, and the addresses of a pod.
func slim(o metav1.Object) metav1.Object {
	meta := metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
		return &discoveryv1.EndpointSlice{ObjectMeta: meta}
	case *corev1.Service:
		return &corev1.Service{ObjectMeta: meta}
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: meta}
	case *corev1.ConfigMap:
		return &corev1.ConfigMap{ObjectMeta: meta}
	case *corev1.Pod:
		meta.DeletionTimestamp = o.DeletionTimestamp
		return &corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs}}
	}
	return o
}

func (f *follower) run(ctx context.Context) {
	log := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(f.lw, f.example, f, cache.ReflectorOptions{Logger: &log,
		Name: "dns"}).RunWithContext(partiallist.With(ctx)) // an object that cannot be read has no name
}

func (f *follower) one(obj any, gone bool) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("unexpected %T in a watch of the DNS", obj)
	}
	key := o.GetNamespace() + "/" + o.GetName()
	before := f.known[key]
	if gone {
		if before != nil {
			delete(f.known, key)
			f.changed(before, nil)
		}
		return nil
	}
	f.known[key] = slim(o)
	f.changed(before, o)
	return nil
}

// Add implements cache.ReflectorStore.
func (f *follower) Add(obj any) error { return f.one(obj, false) }

// Update implements cache.ReflectorStore.
func (f *follower) Update(obj any) error { return f.one(obj, false) }

// Delete implements cache.ReflectorStore.
func (f *follower) Delete(obj any) error { return f.one(obj, true) }

// Replace implements cache.ReflectorStore.
func (f *follower) Replace(list []any, _ string) error {
	left := map[string]metav1.Object{}
	maps.Copy(left, f.known)
	for _, obj := range list {
		if o, ok := obj.(metav1.Object); ok {
			delete(left, o.GetNamespace()+"/"+o.GetName())
		}
		if err := f.one(obj, false); err != nil {
			return err
		}
	}
	for k, o := range left {
		delete(f.known, k)
		f.changed(o, nil)
	}
	if f.first {
		f.first = false
		f.listed()
	}
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to repeat.
func (f *follower) Resync() error { return nil }
