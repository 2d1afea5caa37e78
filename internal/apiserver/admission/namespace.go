package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// namespaceLifecycle rejects new objects in a namespace that is missing or terminating, and
// protects the system namespaces (L1.25).
type namespaceLifecycle struct{ reader Reader }

func (namespaceLifecycle) Handles(op admission.Operation) bool {
	return on{create: true, remove: true}.handles(op)
}

func (l namespaceLifecycle) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() == admission.Delete {
		if a.GetResource().GroupResource() == namespaces && a.GetSubresource() == "" {
			switch a.GetName() {
			case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic:
				return apierrors.NewForbidden(namespaces, a.GetName(), errors.New("this namespace may not be deleted"))
			}
		}
		return nil
	}
	name := a.GetNamespace()
	if name == "" || a.GetResource().GroupResource() == namespaces || isAccessReview(a) {
		return nil
	}
	obj, err := l.reader.Get(ctx, namespaces, "", name)
	if err != nil {
		return err
	}
	ns, ok := obj.(*corev1.Namespace)
	if !ok || ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	err = admission.NewForbidden(a,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", name))
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", name),
			Field: "metadata.namespace",
		})
	}
	return err
}

// isAccessReview reports whether a request is a permission check, which is allowed for any
// namespace.
func isAccessReview(a admission.Attributes) bool {
	r := a.GetResource()
	return r.Group == "authorization.k8s.io" && r.Resource == "localsubjectaccessreviews"
}
