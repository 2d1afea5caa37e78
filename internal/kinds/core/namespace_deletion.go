package core

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/rules"
)

// namespaceStorage deletes a namespace in two steps: the first DELETE sets its phase to
// Terminating, and it is removed when /finalize removes its last spec finalizer. It does not
// support deletion of collections.
//
//	Active ──DELETE──> Terminating ──/finalize leaves no finalizer──> gone
type namespaceStorage struct {
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.ShortNamesProvider
	rest.SingularNameProvider
	rest.ResetFieldsStrategy
	rest.StorageWithReadiness
	rest.StorageVersionProvider
	store *registry.Store
}

var (
	_ rest.GracefulDeleter      = (*namespaceStorage)(nil)
	_ rest.Scoper               = (*namespaceStorage)(nil)
	_ rest.ShortNamesProvider   = (*namespaceStorage)(nil)
	_ rest.SingularNameProvider = (*namespaceStorage)(nil)
)

func newNamespaceStorage(s *registry.Store) rest.Storage {
	return &namespaceStorage{Getter: s, Lister: s, CreaterUpdater: s, Watcher: s, ShortNamesProvider: s,
		SingularNameProvider: s, ResetFieldsStrategy: s,
		StorageWithReadiness: s, StorageVersionProvider: s, store: s}
}

// New implements rest.Storage.
func (s *namespaceStorage) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage.
func (s *namespaceStorage) Destroy() { s.store.Destroy() }

// NamespaceScoped implements rest.Scoper.
func (s *namespaceStorage) NamespaceScoped() bool { return false }

// Delete implements rest.GracefulDeleter.
func (s *namespaceStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := s.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	if err := checkPreconditions(ns, opts.Preconditions); err != nil {
		return nil, false, err
	}
	if ns.DeletionTimestamp == nil {
		out, err := s.terminate(ctx, ns, validate, opts)
		return out, false, err
	}
	if len(ns.Spec.Finalizers) != 0 {
		return ns, false, nil
	}
	return s.store.Delete(ctx, name, validate, opts)
}

func checkPreconditions(ns *corev1.Namespace, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != ns.UID {
		return apierrors.NewConflict(corev1.Resource("namespaces"), ns.Name,
			preconditionError{"UID", string(*p.UID), string(ns.UID)})
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != ns.ResourceVersion {
		return apierrors.NewConflict(corev1.Resource("namespaces"), ns.Name,
			preconditionError{"ResourceVersion", *p.ResourceVersion, ns.ResourceVersion})
	}
	return nil
}

// preconditionError returns the failed precondition of a deletion, with upstream's message.
type preconditionError struct{ field, wanted, found string }

func (e preconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.field, e.wanted, e.field,
		e.found)
}

func (s *namespaceStorage) terminate(ctx context.Context, ns *corev1.Namespace, validate rest.ValidateObjectFunc,
	opts *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := s.store.KeyFunc(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	pre := &storage.Preconditions{UID: &ns.UID}
	if opts.Preconditions != nil {
		pre.ResourceVersion = opts.Preconditions.ResourceVersion
	}
	out := s.store.New()
	err = s.store.Storage.GuaranteedUpdate(ctx, key, out, false, pre,
		storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			n, ok := existing.(*corev1.Namespace)
			if !ok {
				return nil, fmt.Errorf("expected a Namespace, got %T", existing)
			}
			if validate != nil {
				if err := validate(ctx, n); err != nil {
					return nil, err
				}
			}
			if n.DeletionTimestamp.IsZero() {
				now := metav1.Now()
				n.DeletionTimestamp = &now
			}
			n.Status.Phase = corev1.NamespaceTerminating
			return n, nil
		}), dryrun.IsDryRun(opts.DryRun), nil)
	if err != nil {
		err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, corev1.Resource("namespaces"), ns.Name),
			corev1.Resource("namespaces"), ns.Name)
		if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
			err = apierrors.NewInternalError(err)
		}
		return nil, err
	}
	return out, nil
}

// namespaceIsEmpty reports whether an update may remove the namespace, because no finalizer is
// left.
func namespaceIsEmpty(ctx context.Context, key string, obj, existing runtime.Object) bool {
	return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0 &&
		genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
}

func namespaceSubresources(s *registry.Store) (map[string]rest.Storage, error) {
	strategy, ok := s.UpdateStrategy.(*registry.Strategy)
	if !ok {
		return nil, fmt.Errorf("namespaces have the strategy %T", s.UpdateStrategy)
	}
	view := *s.Store
	view.UpdateStrategy = finalizeStrategy{strategy}
	return map[string]rest.Storage{"namespaces/finalize": &finalizeStorage{store: &view}}, nil
}

// finalizeStorage serves PUT of /finalize, the only endpoint that changes spec.finalizers.
type finalizeStorage struct{ store *genericregistry.Store }

var _ rest.Updater = (*finalizeStorage)(nil)

func (s *finalizeStorage) New() runtime.Object { return s.store.New() }

func (s *finalizeStorage) Destroy() {}

// UpdateStrategy returns the strategy for changes of finalizers.
func (s *finalizeStorage) UpdateStrategy() rest.RESTUpdateStrategy { return s.store.UpdateStrategy }

func (s *finalizeStorage) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc,
	_ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, obj, create, update, false, opts)
}

type finalizeStrategy struct{ *registry.Strategy }

func (finalizeStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (finalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
}

func (finalizeStrategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	var errs field.ErrorList
	for i, f := range obj.(*corev1.Namespace).Spec.Finalizers {
		errs = append(errs, rules.FinalizerName(string(f), field.NewPath("spec", "finalizers").Index(i))...)
	}
	return errs
}

func (finalizeStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return nil }
