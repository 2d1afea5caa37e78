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

// signers checks permissions of users for a signer.
type signers struct{ authorizer authorizer.Authorizer }

// certificateApproval allows only users with the permission for the signer to approve requests.
type certificateApproval struct{ signers }

// certificateSigning allows only users with the permission for the signer to sign requests.
type certificateSigning struct{ signers }

// trustBundleAttest allows only users who may attest for a signer to write its trust bundles.
type trustBundleAttest struct{ signers }

// certificateSubject rejects requests for a certificate of the administrators' group.
type certificateSubject struct{}

func (certificateApproval) Handles(op admission.Operation) bool { return op == admission.Update }
func (certificateSigning) Handles(op admission.Operation) bool  { return op == admission.Update }
func (certificateSubject) Handles(op admission.Operation) bool  { return op == admission.Create }
func (trustBundleAttest) Handles(op admission.Operation) bool {
	return on{create: true, update: true}.handles(op)
}

func (c certificateApproval) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	_, old, err := updatedRequest(a, "approval")
	if old == nil || err != nil {
		return err
	}
	return c.check(ctx, a, "approve", "approve requests with", old.Spec.SignerName)
}

func (c certificateSigning) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r, old, err := updatedRequest(a, "status")
	if old == nil || err != nil {
		return err
	}
	if slices.Equal(r.Status.Certificate, old.Status.Certificate) &&
		apiequality.Semantic.DeepEqual(r.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	return c.check(ctx, a, "sign", "sign requests with", old.Spec.SignerName)
}

func (c trustBundleAttest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	o, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return nil
	}
	old, _ := a.GetOldObject().(*certificatesv1.ClusterTrustBundle)
	if o.Spec.SignerName == "" || a.GetOperation() == admission.Update && old != nil && onlyGarbageCollection(o, old) {
		return nil
	}
	return c.check(ctx, a, "attest", "attest for", o.Spec.SignerName)
}

func (certificateSubject) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || a.GetSubresource() != "" || r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	return notAdministrators(a, r)
}

// updatedRequest returns a request that is updated through a subresource, the new and the old one;
// nil for anything else.
func updatedRequest(a admission.Attributes, subresource string) (r, old *certificatesv1.CertificateSigningRequest,
	err error) {
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || a.GetSubresource() != subresource {
		return nil, nil, nil
	}
	if old, ok = a.GetOldObject().(*certificatesv1.CertificateSigningRequest); !ok {
		return nil, nil, admission.NewForbidden(a, fmt.Errorf("unexpected type %T", a.GetOldObject()))
	}
	return r, old, nil
}

// check rejects a user who may not use verb for a signer.
func (s signers) check(ctx context.Context, a admission.Attributes, verb, what, signer string) error {
	if s.may(ctx, a.GetUserInfo(), verb, signer) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("user not permitted to %s signerName %q", what, signer))
}

// may reports whether u may use verb for a signer, by its name or by its whole domain.
func (s signers) may(ctx context.Context, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := s.authorizer.Authorize(ctx,
			authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: certificatesv1.GroupName, APIVersion: "*",
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
		return admission.NewForbidden(a,
			fmt.Errorf("use of %s signer with %s group is not allowed", r.Spec.SignerName, user.SystemPrivilegedGroup))
	}
	return nil
}

// onlyGarbageCollection reports whether an update changes only finalizers and owners.
func onlyGarbageCollection(o, old *certificatesv1.ClusterTrustBundle) bool {
	p := o.DeepCopy()
	p.TypeMeta = old.TypeMeta // a stored object has none
	p.Finalizers, p.OwnerReferences, p.ManagedFields = old.Finalizers, old.OwnerReferences, old.ManagedFields
	return apiequality.Semantic.DeepEqual(p, old)
}
