package reconciler

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Source delivers changes; source.Watch implements it.
type Source interface {
	OnChange(f func(before, after metav1.Object)) error
}

// OnChange calls f for every object that is added, changed or removed.
func OnChange(s Source, f func(metav1.Object)) error {
	return s.OnChange(func(before, after metav1.Object) {
		if after == nil {
			after = before
		}
		f(after)
	})
}

// OnNamespace calls f with the name of every namespace that is added or changed.
func OnNamespace(namespaces Source, f func(name string)) error {
	return OnChange(namespaces, func(o metav1.Object) { f(o.GetName()) })
}

// Active reports whether a namespace accepts new objects.
func Active(namespaces cache.Store, name string) bool {
	obj, exists, _ := namespaces.GetByKey(name)
	if !exists {
		return false
	}
	n, ok := obj.(*corev1.Namespace)
	return ok && n.DeletionTimestamp == nil && n.Status.Phase != corev1.NamespaceTerminating
}

// Created reports whether a create in a namespace needs no retry: the object exists, or the namespace ends.
func Created(err error, namespaces cache.Store, namespace string) bool {
	return err == nil || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
		apierrors.IsNotFound(err) && !Active(namespaces, namespace)
}
