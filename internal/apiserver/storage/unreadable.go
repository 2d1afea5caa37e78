package storage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/klog/v2"

	"carob/internal/base/partiallist"
)

// unreadable are the keys of the stored objects that the watch cache of a kind lacks, because they cannot be decoded.
// The cache serves requests that do not include them, and parts of this process that accept less (package partial);
// the engine answers others, with the error that names them. A write to one of them ends the watch of the cache, which
// then lists again.
type unreadable struct {
	keys atomic.Pointer[[]string]
	from atomic.Pointer[string] // the version from which the cache watches; nil after a list
}

// again notes that the cache watches from a version, and reports whether it did so before without a list in between.
func (u *unreadable) again(version string) bool {
	last := u.from.Swap(&version)
	return last != nil && *last == version
}

// set replaces the keys; a list of several pages adds to those of the pages before.
func (u *unreadable) set(keys []string, more bool) {
	if old := u.keys.Load(); more && old != nil {
		keys = append(slices.Clone(*old), keys...)
	}
	if keys == nil {
		u.keys.Store(nil)
		return
	}
	u.keys.Store(&keys)
}

// in reports whether a list or watch of key would include an object that cannot be read.
func (u *unreadable) in(key string, opts storage.ListOptions) bool {
	keys := u.keys.Load()
	if keys == nil {
		return false
	}
	name, single := opts.Predicate.MatchesSingle()
	return slices.ContainsFunc(*keys, func(lost string) bool {
		lost, key := trimKey(lost), trimKey(key)
		return lost == key || opts.Recursive && strings.HasPrefix(lost, key+"/") &&
			(!single || strings.HasSuffix(lost, "/"+name))
	})
}

// trimKey returns a key without the prefix of all keys.
func trimKey(key string) string { return strings.Trim(strings.TrimPrefix(key, keyPrefix), "/") }

// GetList implements storage.Interface: it lists what the cache is filled with.
func (s cacheStream) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	s.unreadable.from.Store(nil)
	err := s.Interface.GetList(ctx, key, opts, list)
	keys, more := partiallist.Keys(err), opts.Predicate.Continue != ""
	if err == nil || keys == nil {
		if err == nil {
			s.unreadable.set(nil, more)
		}
		return err
	}
	if err := s.Interface.GetList(partiallist.With(ctx), key, opts, list); err != nil {
		s.unreadable.set(keys, more) // the cache stays empty
		return err
	}
	klog.FromContext(ctx).Error(err, "Stored objects cannot be read; others are served. Restore these, or delete them"+
		" with the option ignoreStoreReadErrorWithClusterBreakingPotential", "keys", keys)
	s.unreadable.set(keys, more)
	return nil
}

// tolerant is a store of built-in kinds whose lists lack what cannot be decoded, for callers that accept that.
type tolerant struct{ storage.Interface }

// GetList implements storage.Interface.
func (t tolerant) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	err := t.Interface.GetList(ctx, key, opts, list)
	if err == nil || !partiallist.Accepted(ctx) || partiallist.Keys(err) == nil {
		return err
	}
	slice, err := dropItems(list) // what the failed attempt has read
	if err != nil {
		return err
	}
	if err := t.Interface.GetList(context.WithValue(ctx, skipKey{}, true), key, opts, list); err != nil {
		return err
	}
	kept := reflect.MakeSlice(slice.Type(), 0, slice.Len())
	for i := range slice.Len() {
		if o, err := meta.Accessor(slice.Index(i).Addr().Interface()); err != nil || o.GetName() != "" {
			kept = reflect.Append(kept, slice.Index(i))
		}
	}
	slice.Set(kept)
	return nil
}

// dropItems empties a list, and returns its slice of items.
func dropItems(list runtime.Object) (reflect.Value, error) {
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return reflect.Value{}, fmt.Errorf("list objects again: %w", err)
	}
	slice := reflect.ValueOf(items).Elem()
	slice.SetZero()
	return slice, nil
}

// skipKey is in the context of lists without the objects that cannot be decoded.
type skipKey struct{}

// skipping decodes an object that cannot be decoded as one without a name, if the context of the list has skipKey.
type skipping struct{ etcd3.Decoder }

// DecodeListItem implements etcd3.Decoder.
func (s skipping) DecodeListItem(ctx context.Context, data []byte, rev uint64,
	newItem func() runtime.Object) (runtime.Object, error) {
	o, err := s.Decoder.DecodeListItem(ctx, data, rev, newItem)
	if err != nil && ctx.Value(skipKey{}) != nil && !errors.Is(err, context.Canceled) {
		return newItem(), nil
	}
	return o, err
}
