package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NewReader returns a Reader on the server's own storages: it reads the watch cache, and the store
// only for an object that the cache does not have yet. So a pod can follow its namespace or service
// account at once, without a wait. Lists of settings come from the store, and are cached as long as
// writes, if not nil, returns the same number for their kind (see storage.Engine.Writes).
func NewReader(storages Storages, writes func(schema.GroupResource) (uint64, bool)) Reader {
	return &storageReader{storages: storages, writes: writes, kept: map[schema.GroupResource]*settings{}}
}

type storageReader struct {
	storages Storages
	writes   func(schema.GroupResource) (uint64, bool)

	mu   sync.Mutex
	kept map[schema.GroupResource]*settings
}

// settings are the lists of one kind, by namespace, after so many writes to it.
type settings struct {
	writes uint64
	lists  map[string]runtime.Object
}

// maxKept limits for how many namespaces lists of one kind are cached.
const maxKept = 1000

// isSetting reports whether a kind seldom changes and is listed for every new pod.
func isSetting(resource schema.GroupResource) bool {
	return resource == limitRanges || resource == quotaResource || resource == priorityClasses
}

// fromCache requests any version in the cache.
const fromCache = "0"

func (r *storageReader) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object,
	error) {
	getter, ok := r.storages(resource).(rest.Getter)
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	ctx = ContextFor(ctx, resource, namespace)
	obj, err := getter.Get(ctx, name, &metav1.GetOptions{ResourceVersion: fromCache})
	if err != nil && apierrors.IsNotFound(err) {
		return getter.Get(ctx, name, &metav1.GetOptions{})
	}
	return obj, err
}

func (r *storageReader) Await(ctx context.Context, resource schema.GroupResource, namespace, name string,
	limit time.Duration) (runtime.Object, error) {
	obj, missing := r.Get(ctx, resource, namespace, name)
	if missing == nil || limit <= 0 || !apierrors.IsNotFound(missing) {
		return obj, missing
	}
	watcher, ok := r.storages(resource).(rest.Watcher)
	if !ok {
		return nil, missing
	}
	ctx, cancel := context.WithTimeout(ContextFor(ctx, resource, namespace), limit)
	defer cancel()
	// From version 0, the watch begins with the existing objects, so nothing is lost between the
	// read and the watch.
	w, err := watcher.Watch(ctx, &metainternalversion.ListOptions{
		ResourceVersion: fromCache, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name),
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %s %s/%s: %w", resource, namespace, name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, missing
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil, missing
			}
			if e.Type == watch.Added || e.Type == watch.Modified {
				// An object in a watch event is for encoding only.
				return r.Get(ctx, resource, namespace, name)
			}
		}
	}
}

// ContextFor returns the context for a request to another resource within the request of ctx. The
// storage takes the namespace from it, and the name of the resource for its errors.
func ContextFor(ctx context.Context, resource schema.GroupResource, namespace string) context.Context {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: resource.Group, Resource: resource.Resource, Namespace: namespace,
	})
	return genericapirequest.WithNamespace(ctx, namespace)
}

var errStop = errors.New("stop")

func (r *storageReader) List(ctx context.Context, resource schema.GroupResource, namespace string,
	fn func(runtime.Object) bool) error {
	lister, ok := r.storages(resource).(rest.Lister)
	if !ok {
		return nil
	}
	list, err := r.list(ContextFor(ctx, resource, namespace), lister, resource, namespace)
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		if !fn(o) {
			return errStop
		}
		return nil
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

func (r *storageReader) list(ctx context.Context, lister rest.Lister, resource schema.GroupResource,
	namespace string) (runtime.Object, error) {
	if r.writes == nil || !isSetting(resource) {
		return lister.List(ctx, &metainternalversion.ListOptions{ResourceVersion: fromCache})
	}
	writes, known := r.writes(resource)
	if !known {
		return lister.List(ctx, &metainternalversion.ListOptions{ResourceVersion: fromCache})
	}
	if list := r.find(resource, namespace, writes); list != nil {
		return list, nil
	}
	// A cache may lack the last of the counted writes.
	list, err := lister.List(ctx, &metainternalversion.ListOptions{})
	if err == nil {
		r.storeList(resource, namespace, writes, list)
	}
	return list, err
}

// find returns the cached list, nil if there is none.
func (r *storageReader) find(resource schema.GroupResource, namespace string, writes uint64) runtime.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[resource]; k != nil && k.writes == writes {
		return k.lists[namespace]
	}
	return nil
}

// storeList caches a list that was read after so many writes.
func (r *storageReader) storeList(resource schema.GroupResource, namespace string, writes uint64, list runtime.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kept[resource]
	if k == nil || k.writes < writes || len(k.lists) >= maxKept {
		k = &settings{writes: writes, lists: map[string]runtime.Object{}}
		r.kept[resource] = k
	}
	if k.writes == writes {
		k.lists[namespace] = list
	}
}
