package loop

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// OnChange calls f for every object that appears, changes or goes.
func OnChange(informer cache.SharedIndexInformer, f func(metav1.Object)) error {
	call := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(metav1.Object); ok {
			f(o)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    call,
		UpdateFunc: func(_, obj any) { call(obj) },
		DeleteFunc: call,
	})
	return err
}

// OnNamespace calls f with the name of every namespace that appears or changes.
func OnNamespace(namespaces cache.SharedIndexInformer, f func(name string)) error {
	return OnChange(namespaces, func(o metav1.Object) { f(o.GetName()) })
}

// Active reports whether a namespace takes new objects.
func Active(namespaces cache.Store, name string) bool {
	obj, exists, _ := namespaces.GetByKey(name)
	if !exists {
		return false
	}
	n, ok := obj.(*corev1.Namespace)
	return ok && n.DeletionTimestamp == nil && n.Status.Phase != corev1.NamespaceTerminating
}
