package auth

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
)

const relistAfter = time.Second

// follow lists and watches src until ctx ends. all gets each complete list by key, one gets each
// change (nil for a deletion). It lists again at once after a watch that ended without an error, but at most once per
// relistAfter: a watch may end at once, again and again.
func follow(ctx context.Context, src Source, all func(map[string]runtime.Object),
	one func(key string, obj runtime.Object)) {
	ctx = partiallist.With(ctx) // an object that cannot be read gives no rights; others keep theirs
	for ctx.Err() == nil {
		next := time.Now().Add(relistAfter)
		if err := followOnce(ctx, src, all, one); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Listing again", "reason", err.Error())
			next = time.Now().Add(relistAfter)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
}

func followOnce(ctx context.Context, src Source, all func(map[string]runtime.Object),
	one func(key string, obj runtime.Object)) error {
	list, err := src.List(ctx, &internalversion.ListOptions{})
	if err != nil {
		return err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	objs := map[string]runtime.Object{}
	if err := meta.EachListItemWithAlloc(list, func(o runtime.Object) error {
		objs[key(o)] = o
		return nil
	}); err != nil {
		return err
	}
	all(objs)
	w, err := src.Watch(ctx, &internalversion.ListOptions{ResourceVersion: l.GetResourceVersion(), Watch: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			obj := e.Object
			if c, ok := obj.(interface{ GetObject() runtime.Object }); ok {
				obj = c.GetObject() // the watch cache wraps objects that it sends to several watchers
			}
			switch e.Type {
			case watch.Added, watch.Modified:
				one(key(obj), obj)
			case watch.Deleted:
				one(key(obj), nil)
			case watch.Error:
				return fmt.Errorf("the watch ended: %w", apierrors.FromObject(obj))
			default: // bookmarks are not changes
			}
		}
	}
}

// accessor returns the metadata of a kind that has it.
func accessor(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(fmt.Sprintf("auth: %T has no metadata", obj))
	}
	return m
}

func key(obj runtime.Object) string {
	m := accessor(obj)
	return m.GetNamespace() + "/" + m.GetName()
}
