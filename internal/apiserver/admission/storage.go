package admission

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

var (
	storageClassResource = storagev1.SchemeGroupVersion.WithResource("storageclasses").GroupResource()
	ingressClassResource = networkingv1.SchemeGroupVersion.WithResource("ingressclasses").GroupResource()
)

// Finalizers that protect storage objects in use; their controllers remove them.
const (
	ClaimProtection           = "kubernetes.io/pvc-protection"
	VolumeProtection          = "kubernetes.io/pv-protection"
	AttributesClassProtection = "kubernetes.io/vac-protection"
)

// storageInUse keeps claims and volumes from being removed while they are used.
type storageInUse struct{}

func (storageInUse) Handles(op admission.Operation) bool { return on{create: true}.handles(op) }

func (storageInUse) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	finalizer := ""
	switch a.GetObject().(type) {
	case *corev1.PersistentVolumeClaim:
		finalizer = ClaimProtection
	case *corev1.PersistentVolume:
		finalizer = VolumeProtection
	case *storagev1.VolumeAttributesClass:
		finalizer = AttributesClassProtection
	}
	if o, ok := a.GetObject().(metav1.Object); ok && finalizer != "" && !slices.Contains(o.GetFinalizers(), finalizer) {
		o.SetFinalizers(append(o.GetFinalizers(), finalizer))
	}
	return nil
}

// defaultStorageClass sets the default class of a claim without a class.
type defaultStorageClass struct{ reader Reader }

func (defaultStorageClass) Handles(op admission.Operation) bool { return on{create: true}.handles(op) }

const defaultStorageClassAnnotation = "storageclass.kubernetes.io/is-default-class"

func (d defaultStorageClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	c, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	if !ok || a.GetSubresource() != "" || c.Spec.StorageClassName != nil {
		return nil
	}
	if _, old := c.Annotations[corev1.BetaStorageClassAnnotation]; old {
		return nil
	}
	name, err := defaultOf(ctx, d.reader, storageClassResource, defaultStorageClassAnnotation,
		"storageclass.beta.kubernetes.io/is-default-class")
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if name != "" {
		c.Spec.StorageClassName = &name
	}
	return nil
}

// defaultIngressClass does the same for an ingress.
type defaultIngressClass struct{ reader Reader }

func (defaultIngressClass) Handles(op admission.Operation) bool { return on{create: true}.handles(op) }

func (d defaultIngressClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	i, ok := a.GetObject().(*networkingv1.Ingress)
	if !ok || a.GetSubresource() != "" || i.Spec.IngressClassName != nil {
		return nil
	}
	if _, old := i.Annotations["kubernetes.io/ingress.class"]; old {
		return nil
	}
	name, err := defaultOf(ctx, d.reader, ingressClassResource, networkingv1.AnnotationIsDefaultIngressClass)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if name != "" {
		i.Spec.IngressClassName = &name
	}
	return nil
}

// defaultOf returns the class with the annotation of a default, the newest of several, or "".
func defaultOf(ctx context.Context, reader Reader, kind schema.GroupResource, annotations ...string) (string, error) {
	var best metav1.Object
	err := reader.List(ctx, kind, "", func(o runtime.Object) bool {
		c, ok := o.(metav1.Object)
		if !ok || !slices.ContainsFunc(annotations, func(a string) bool { return c.GetAnnotations()[a] == "true" }) {
			return true
		}
		if best == nil || younger(c, best) {
			best = c
		}
		return true
	})
	if err != nil || best == nil {
		return "", err
	}
	return best.GetName(), nil
}

func younger(a, b metav1.Object) bool {
	ta, tb := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if ta.Equal(&tb) {
		return a.GetName() < b.GetName()
	}
	return tb.Before(&ta)
}

// claimResize allows only claims whose class supports expansion to grow.
type claimResize struct{ reader Reader }

func (claimResize) Handles(op admission.Operation) bool { return on{update: true}.handles(op) }

func (r claimResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	c, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, okOld := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if !ok || !okOld || a.GetSubresource() != "" {
		return nil
	}
	size, before := c.Spec.Resources.Requests[corev1.ResourceStorage],
		old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return admission.NewForbidden(a, errors.New("only bound persistent volume claims can be expanded"))
	}
	if name := classOf(c); name != "" && name == classOf(old) {
		obj, err := r.reader.Get(ctx, storageClassResource, "", name)
		if class, ok := obj.(*storagev1.StorageClass); err == nil && ok && class.AllowVolumeExpansion != nil &&
			*class.AllowVolumeExpansion {
			return nil
		}
	}
	return admission.NewForbidden(a,
		errors.New(
			"only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
}

func classOf(c *corev1.PersistentVolumeClaim) string {
	if class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}
