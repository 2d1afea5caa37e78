package admission

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NewReader returns a Reader over the storages of the server itself: the watch cache answers, and only an object it does
// not have yet costs a read of the store. So a pod can follow its namespace or service account at once, without a wait.
func NewReader(storages Storages) Reader { return storageReader{storages} }

type storageReader struct{ storages Storages }

// fromCache asks for any version the cache holds.
const fromCache = "0"

func (r storageReader) Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error) {
	getter, ok := r.storages(resource).(rest.Getter)
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	obj, err := getter.Get(ctx, name, &metav1.GetOptions{ResourceVersion: fromCache})
	if err != nil && apierrors.IsNotFound(err) {
		return getter.Get(ctx, name, &metav1.GetOptions{})
	}
	return obj, err
}

func (r storageReader) List(ctx context.Context, resource schema.GroupResource, namespace string, fn func(runtime.Object) bool) error {
	lister, ok := r.storages(resource).(rest.Lister)
	if !ok {
		return nil
	}
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	list, err := lister.List(ctx, &metainternalversion.ListOptions{ResourceVersion: fromCache, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	errStop := fmt.Errorf("stop")
	err = meta.EachListItem(list, func(o runtime.Object) error {
		if !fn(o) {
			return errStop
		}
		return nil
	})
	if err == errStop {
		return nil
	}
	return err
}
