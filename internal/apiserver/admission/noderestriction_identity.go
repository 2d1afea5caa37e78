package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// token: an agent gets tokens only for pods that run on its node, and only for an audience that the
// pod requests.
func (n nodeRestriction) token(ctx context.Context, a admission.Attributes, node string) error {
	req, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return errors.New("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return errors.New("node requested token with a pod binding without a uid")
	}
	obj, err := n.reader.Get(ctx, podResource, a.GetNamespace(), ref.Name)
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(corev1.Resource("pod"), ref.Name)
	}
	if err != nil {
		return err
	}
	p, ok := obj.(*corev1.Pod)
	switch {
	case !ok:
		return fmt.Errorf("unexpected type %T", obj)
	case p.UID != ref.UID:
		return fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case p.Spec.NodeName != node:
		return errors.New("node requested token bound to a pod scheduled on a different node")
	case len(req.Spec.Audiences) > 1:
		return errors.New("node may only request 0 or 1 audiences")
	}
	audience := ""
	if len(req.Spec.Audiences) == 1 {
		audience = req.Spec.Audiences[0]
	}
	requested, err := n.requestsAudience(ctx, p, audience)
	switch {
	case requested:
		return nil
	case n.may(ctx, a, "request-serviceaccounts-token-audience", audience, a.GetName()):
		return nil
	case err != nil:
		return fmt.Errorf("error validating audience %q: %v", audience,
			err) //nolint:errorlint // not the kind of err: it is a refusal
	}
	return fmt.Errorf("%s is not authorized to request tokens for audience %q", a.GetUserInfo().GetName(), audience)
}

// may checks a permission that an administrator can give a node beyond what pods require.
func (n nodeRestriction) may(ctx context.Context, a admission.Attributes, verb, resource, name string) bool {
	d, _, err := n.authorizer.Authorize(ctx,
		authorizer.AttributesRecord{User: a.GetUserInfo(), Verb: verb, APIGroup: a.GetResource().Group,
			APIVersion: a.GetResource().Version,
			Resource:   resource, Namespace: a.GetNamespace(), Name: name, ResourceRequest: true})
	return err == nil && d == authorizer.DecisionAllow
}

// requestsAudience reports whether a volume of the pod uses such a token: a projected one, or one of
// a CSI driver that requests it. In-tree volumes that were migrated to a CSI driver are not
// recognized.
func (n nodeRestriction) requestsAudience(ctx context.Context, p *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		driver, err := "", error(nil)
		switch {
		case v.Projected != nil:
			if slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
				return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
			}) {
				return true, nil
			}
		case v.CSI != nil:
			driver = v.CSI.Driver
		case v.PersistentVolumeClaim != nil:
			driver, err = n.driverOf(ctx, p.Namespace, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			driver, err = n.driverOf(ctx, p.Namespace, p.Name+"-"+v.Name)
		}
		requests := false
		if err == nil && driver != "" {
			requests, err = n.driverRequestsAudience(ctx, driver, audience)
		}
		if requests {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// driverOf returns the CSI driver of a claim, "" if it has another type.
func (n nodeRestriction) driverOf(ctx context.Context, namespace, claim string) (string, error) {
	obj, err := n.reader.Get(ctx, corev1.Resource("persistentvolumeclaims"), namespace, claim)
	if err != nil {
		return "", err
	}
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName == "" {
		return "", nil
	}
	if obj, err = n.reader.Get(ctx, corev1.Resource("persistentvolumes"), "", c.Spec.VolumeName); err != nil {
		return "", err
	}
	if pv, ok := obj.(*corev1.PersistentVolume); ok && pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver, nil
	}
	return "", nil
}

func (n nodeRestriction) driverRequestsAudience(ctx context.Context, driver, audience string) (bool, error) {
	obj, err := n.reader.Get(ctx, storagev1.Resource("csidrivers"), "", driver)
	if apierrors.IsNotFound(err) {
		err = apierrors.NewNotFound(storagev1.Resource("csidriver"), driver)
	}
	if err != nil {
		return false, err
	}
	d, ok := obj.(*storagev1.CSIDriver)
	return ok && slices.ContainsFunc(d.Spec.TokenRequests,
		func(r storagev1.TokenRequest) bool { return r.Audience == audience }), nil
}

// podCertificate: an agent requests certificates for pods that run on its node, in their names,
// from signers that they name.
func (n nodeRestriction) podCertificate(ctx context.Context, a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return fmt.Errorf("unexpected operation %q, subresource %q", a.GetOperation(), a.GetSubresource())
	}
	r, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.GetObject())
	}
	s := &r.Spec
	if string(s.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName,
			node)
	}
	// The data here may lag behind what the agent saw, so the error requests a retry.
	stale := func(format string, args ...any) error {
		return apierrors.NewConflict(a.GetResource().GroupResource(), r.Name,
			fmt.Errorf("PodCertificateRequest "+format, args...))
	}
	get := func(resource, namespace, name string) (any, error) {
		o, err := n.reader.Get(ctx, corev1.Resource(resource), namespace, name)
		if err != nil {
			return nil, fmt.Errorf("while retrieving what the PodCertificateRequest names: %w", err)
		}
		return o, nil
	}
	o, err := get("nodes", "", node)
	if err != nil {
		return err
	}
	if owner, ok := o.(*corev1.Node); !ok || owner.UID != s.NodeUID {
		return stale("names node UID %q, inconsistent with the running node", s.NodeUID)
	}
	if o, err = get("pods", a.GetNamespace(), s.PodName); err != nil {
		return err
	}
	p, ok := o.(*corev1.Pod)
	switch {
	case !ok || p.UID != s.PodUID:
		return stale("contains pod UID (%q) which differs from running pod %q", s.PodUID, s.PodName)
	case p.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", s.PodName, node)
	case isMirror(p):
		return fmt.Errorf("pod %q is a mirror pod", s.PodName)
	case p.Spec.ServiceAccountName != s.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest contains serviceAccountName (%q) that differs from running pod (%q)",
			s.ServiceAccountName, p.Spec.ServiceAccountName)
	}
	if o, err = get("serviceaccounts", a.GetNamespace(), s.ServiceAccountName); err != nil {
		return err
	}
	if account, ok := o.(*corev1.ServiceAccount); !ok || account.UID != s.ServiceAccountUID {
		return stale("names service account UID %q, which differs from the running service account",
			s.ServiceAccountUID)
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Projected; v != nil &&
			slices.ContainsFunc(v.Sources, func(c corev1.VolumeProjection) bool {
				return c.PodCertificate != nil && c.PodCertificate.SignerName == s.SignerName
			}) {
			return nil
		}
	}
	if n.may(ctx, a, "request-serviceaccounts-podcertificate-signer", strings.ReplaceAll(s.SignerName, "/", ":"),
		s.ServiceAccountName) {
		return nil
	}
	return fmt.Errorf("pod %q does not mount a podCertificate projected volume for signer %q", s.PodName, s.SignerName)
}
