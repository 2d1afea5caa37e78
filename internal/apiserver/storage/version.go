package storage

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// checkVersion rejects an invalid version. The library's stores reject it, too, but with an error
// that the API returns as 500.
func checkVersion(version string) error {
	if version == "" {
		return nil
	}
	if _, err := strconv.ParseUint(version, 10, 64); err != nil {
		return apierrors.NewBadRequest("invalid resource version " + strconv.Quote(version))
	}
	return nil
}

// Get implements storage.Interface.
func (p queuedCache) Get(ctx context.Context, key string, opts storage.GetOptions, obj runtime.Object) error {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return err
	}
	if p.unreadable.in(key, storage.ListOptions{}) {
		return p.cut.engine.Get(ctx, key, opts, obj)
	}
	err := p.CacheDelegator.Get(ctx, key, opts, obj)
	if storage.IsNotFound(err) && p.unreadable.in(key, storage.ListOptions{}) {
		return p.cut.engine.Get(ctx, key, opts, obj)
	}
	return err
}

// Get implements storage.Interface.
func (b queuedEngine) Get(ctx context.Context, key string, opts storage.GetOptions, obj runtime.Object) error {
	if err := checkVersion(opts.ResourceVersion); err != nil {
		return err
	}
	return b.Interface.Get(ctx, key, opts, obj)
}
