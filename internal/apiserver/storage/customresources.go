package storage

import (
	"context"
	"fmt"

	clientkubernetes "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// ForCustomResources returns the storage options of custom resources and their definitions. They are
// stored under their group's name, like upstream's, and encoded with codec (their builder may replace
// it). Their watch caches start with the first watch and end with the storage.
func (o *Options) ForCustomResources(codec runtime.Codec, encode runtime.GroupVersioner) *CustomResourceOptions {
	return &CustomResourceOptions{Options: &Options{engine: o.engine, set: o.set, transformers: o.transformers,
		caching: func(schema.GroupResource) Caching { return Lazy }, compactor: o.compactor, paced: o.paced,
		inProcess: o.inProcess, customResources: true}, codec: codec, encode: encode}
}

// CustomResourceOptions implements generic.RESTOptionsGetter for custom resources and their definitions.
type CustomResourceOptions struct {
	*Options
	codec  runtime.Codec
	encode runtime.GroupVersioner
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (f *CustomResourceOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	sc := storagebackend.NewDefaultConfig(keyPrefix, f.codec)
	sc.EncodeVersioner = f.encode
	sc.CountMetricPollPeriod = 0
	sc.EventsHistoryWindow = storagebackend.DefaultEventsHistoryWindow
	return generic.RESTOptions{
		StorageConfig: sc.ForResource(gr), Decorator: f.decorate, EnableGarbageCollection: true,
		DeleteCollectionWorkers: deleteCollWorkers,
		ResourcePrefix:          gr.Group + "/" + gr.Resource,
	}, nil
}

var _ generic.RESTOptionsGetter = (*CustomResourceOptions)(nil)

// Close destroys the remaining storages.
func (f *CustomResourceOptions) Close() {
	f.mu.Lock()
	left := f.left
	f.left = nil
	f.mu.Unlock()
	for _, destroy := range left {
		destroy()
	}
}

// track records a storage until it is destroyed.
func (o *Options) track(l *lazyCache, destroy func()) func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left == nil {
		o.left = map[*lazyCache]func(){}
	}
	o.left[l] = destroy
	return func() {
		o.mu.Lock()
		delete(o.left, l)
		o.mu.Unlock()
		destroy()
	}
}

// Any reports whether an object of one of the kinds is stored.
func (o *Options) Any(ctx context.Context, kinds ...schema.GroupResource) (bool, error) {
	for _, gr := range kinds {
		if n, err := o.Count(ctx, gr); err != nil || n > 0 {
			return n > 0, err
		}
	}
	return false, nil
}

// Count returns how many objects of a kind are stored. It reads none of them.
func (o *Options) Count(ctx context.Context, gr schema.GroupResource) (int64, error) {
	prefix := resourcePrefix(gr)
	if o.customResources {
		prefix = gr.Group + "/" + gr.Resource
	}
	n, err := o.engine.Client.Kubernetes.Count(ctx, keyPrefix+"/"+prefix+"/", clientkubernetes.CountOptions{})
	if err != nil {
		return 0, fmt.Errorf("count %v: %w", gr, err)
	}
	return n, nil
}
