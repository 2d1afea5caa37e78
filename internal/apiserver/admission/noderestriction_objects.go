package admission

import (
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"carob/internal/apiserver/auth"
	"carob/internal/base/certrequest"
)

// claimStatus: a node only reports the progress of a resize in a claim.
func claimStatus(a admission.Attributes, node string) error {
	if a.GetSubresource() != "status" {
		return errors.New("may only update PVC status")
	}
	c, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
	old, okOld := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if a.GetOperation() != admission.Update || !ok || !okOld {
		return fmt.Errorf("unexpected operation %q on %T", a.GetOperation(), a.GetObject())
	}
	rest := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		c.TypeMeta = metav1.TypeMeta{} // a stored claim has none
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions, c.Status.AllocatedResourceStatuses, c.Status.AllocatedResources = nil,
			nil, nil, nil
		return c
	}
	if !apiequality.Semantic.DeepEqual(rest(c), rest(old)) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.quantity and status.conditions",
			node)
	}
	return nil
}

func csiNode(a admission.Attributes, node string) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		m, err := meta.Accessor(a.GetObject())
		if err != nil {
			return errors.New("unable to access the object name")
		}
		name = m.GetName()
	}
	if name != node {
		return errors.New("can only access CSINode with the same name as the requesting node")
	}
	if a.GetSubresource() != "status" {
		return nil
	}
	o, ok := a.GetObject().(*storagev1.CSINode)
	old, okOld := a.GetOldObject().(*storagev1.CSINode)
	if !ok || !okOld {
		return fmt.Errorf("unexpected operation %q on %T", a.GetOperation(), a.GetObject())
	}
	if !apiequality.Semantic.DeepEqual(o.Spec, old.Spec) {
		return fmt.Errorf("node %q is not allowed to modify CSINode spec via status", node)
	}
	return nil
}

// resourceSlice: the authorizer sees neither the content of a create nor that of a deleted
// collection. nodeName of a slice never changes.
func resourceSlice(a admission.Attributes, node string) error {
	verb, obj := "create", a.GetObject()
	switch a.GetOperation() {
	case admission.Create:
	case admission.Delete:
		verb, obj = "delete", a.GetOldObject()
	default:
		return nil
	}
	s, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return fmt.Errorf("unexpected type %T", obj)
	}
	if s.Spec.NodeName == nil || *s.Spec.NodeName != node {
		return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

// certificateRequest: a node requests agents' certificates only in its own name.
func certificateRequest(a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	if r.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := certrequest.Parse(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if parsed.Subject.CommonName != auth.NodeUserPrefix+node {
		return fmt.Errorf("can only create a node CSR with CN=%s%s", auth.NodeUserPrefix, node)
	}
	return nil
}
