package storage

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"carob/internal/base/zerocopy"
)

// zeroCopyStore is the store of a kind. Parts of this process that accept objects without a copy get lists and
// watches with the objects of the watch cache where there is one.
type zeroCopyStore struct {
	storage.Interface
	inProcess       func(context.Context) bool // reports whether a part of this process makes the request
	newObject, list func() runtime.Object
}

func (h zeroCopyStore) response(ctx context.Context) *zerocopy.Response {
	if !h.inProcess(ctx) {
		return nil
	}
	return zerocopy.ResponseFor(ctx, h.newObject)
}

// GetList implements storage.Interface.
func (h zeroCopyStore) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	response := h.response(ctx)
	if response == nil {
		return h.Interface.GetList(ctx, key, opts, list)
	}
	whole := h.list()
	if err := h.Interface.GetList(ctx, key, opts, whole); err != nil {
		return err
	}
	from, err := meta.ListAccessor(whole)
	if err != nil {
		return err
	}
	to, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	to.SetResourceVersion(from.GetResourceVersion())
	to.SetContinue(from.GetContinue())
	to.SetRemainingItemCount(from.GetRemainingItemCount())
	response.SetList(whole)
	return nil
}

// Watch implements storage.Interface.
func (h zeroCopyStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	response := h.response(ctx)
	if response == nil {
		return h.Interface.Watch(ctx, key, opts)
	}
	w, err := h.Interface.Watch(withBare(ctx), key, opts)
	if err != nil {
		return nil, err
	}
	return response.SetWatch(w), nil
}

type bareKey struct{}

// withBare marks the context of a watch whose events carry the stored objects without a wrapper or copy.
func withBare(ctx context.Context) context.Context { return context.WithValue(ctx, bareKey{}, true) }

// requestsBare reports whether the events of a watch carry the stored objects without a wrapper or copy.
func requestsBare(ctx context.Context) bool { return ctx.Value(bareKey{}) != nil }

// cachedObject is the type of objects in the events of a watch cache: a wrapper that keeps their encodings and gives
// away copies only.
const cachedObject = "*cacher.cachingObject"

// bareEvent takes the object of an event out of its wrapper. The object is for reading only.
func bareEvent(ev watch.Event) watch.Event {
	if s, ok := ev.Object.(*sharedObject); ok {
		ev.Object = s.object
	}
	c, ok := ev.Object.(runtime.CacheableObject)
	if !ok {
		return ev
	}
	if v := reflect.ValueOf(c); v.Kind() == reflect.Pointer && v.Type().String() == cachedObject {
		if f := hiddenField(v.Elem(), "object"); f.IsValid() && f.Kind() == reflect.Interface && !f.IsNil() {
			if o, ok := reflect.TypeAssert[runtime.Object](f); ok {
				ev.Object = o
				return ev
			}
		}
	}
	ev.Object = c.GetObject() // a copy
	return ev
}
