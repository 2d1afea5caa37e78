package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"carob/internal/base/certrequest"
)

// certificates lets only those approve, sign and attest who may do so for the
// signer in question, and keeps anybody from asking for a certificate of the
// administrators' group.
type certificates struct{ authorizer authorizer.Authorizer }

func (certificates) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (c certificates) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch o := a.GetObject().(type) {
	case *certificatesv1.CertificateSigningRequest:
		return c.request(ctx, a, o)
	case *certificatesv1.ClusterTrustBundle:
		old, _ := a.GetOldObject().(*certificatesv1.ClusterTrustBundle)
		if o.Spec.SignerName == "" || a.GetOperation() == admission.Update && old != nil && onlyGarbageCollection(o, old) {
			return nil
		}
		if !c.may(ctx, a.GetUserInfo(), "attest", o.Spec.SignerName) {
			return admission.NewForbidden(a, fmt.Errorf("user not permitted to attest for signerName %q", o.Spec.SignerName))
		}
	}
	return nil
}

func (c certificates) request(ctx context.Context, a admission.Attributes, r *certificatesv1.CertificateSigningRequest) error {
	if a.GetOperation() == admission.Create {
		if a.GetSubresource() == "" && r.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName {
			return notAdministrators(a, r)
		}
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return admission.NewForbidden(a, fmt.Errorf("unexpected type %T", a.GetOldObject()))
	}
	switch signer := old.Spec.SignerName; a.GetSubresource() {
	case "approval":
		if !c.may(ctx, a.GetUserInfo(), "approve", signer) {
			return admission.NewForbidden(a, fmt.Errorf("user not permitted to approve requests with signerName %q", signer))
		}
	case "status":
		same := slices.Equal(r.Status.Certificate, old.Status.Certificate) && apiequality.Semantic.DeepEqual(r.Status.Conditions, old.Status.Conditions)
		if !same && !c.may(ctx, a.GetUserInfo(), "sign", signer) {
			return admission.NewForbidden(a, fmt.Errorf("user not permitted to sign requests with signerName %q", signer))
		}
	}
	return nil
}

// may reports whether u may use verb for a signer, by its name or by its whole domain.
func (c certificates) may(ctx context.Context, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := c.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: certificatesv1.GroupName, APIVersion: "*",
			Resource: "signers", Name: name, ResourceRequest: true})
		if err == nil && decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

func notAdministrators(a admission.Attributes, r *certificatesv1.CertificateSigningRequest) error {
	parsed, err := certrequest.Parse(r.Spec.Request)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if slices.Contains(parsed.Subject.Organization, user.SystemPrivilegedGroup) {
		return admission.NewForbidden(a, fmt.Errorf("use of %s signer with %s group is not allowed", r.Spec.SignerName, user.SystemPrivilegedGroup))
	}
	return nil
}

// onlyGarbageCollection reports whether an update changes finalizers and owners only.
func onlyGarbageCollection(o, old *certificatesv1.ClusterTrustBundle) bool {
	p := o.DeepCopy()
	p.Finalizers, p.OwnerReferences, p.ManagedFields = old.Finalizers, old.OwnerReferences, old.ManagedFields
	return apiequality.Semantic.DeepEqual(p, old)
}
