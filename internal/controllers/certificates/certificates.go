// Package certificates handles certificate signing requests: it approves client certificates for
// node agents, signs approved requests for the signers of Kubernetes, and removes requests that are
// finished. The controller manager runs it; it must never sign a request that is not approved, or
// one for another signer.
package certificates

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/certrequest"
	"carob/internal/base/confirm"
	"carob/internal/controllers/inventory"
	"carob/internal/controllers/reconciler"
)

// Signer has the key of the CA.
type Signer interface {
	// Sign issues a certificate, in PEM, with the key, subject, and alternative names of a request.
	// It expires with the CA at the latest.
	Sign(r *x509.CertificateRequest, usage x509.KeyUsage, extended []x509.ExtKeyUsage, life time.Duration,
		now time.Time) ([]byte, error)
}

// Controller reconciles the requests. Its key is a request's name.
type Controller struct {
	*reconciler.Reconciler
	client kubernetes.Interface
	signer Signer
}

// New returns a controller. Without a signer, it signs nothing.
func New(client kubernetes.Interface, inv *inventory.Inventory, signer Signer) *Controller {
	c := &Controller{client: client, signer: signer}
	c.Reconciler = reconciler.New("certificate", 2, c.reconcile)
	inv.AddReader(c)
	return c
}

var _ inventory.Reader = (*Controller)(nil)

// Changed implements inventory.Reader.
func (c *Controller) Changed(k inventory.Kind, o *metav1.PartialObjectMetadata) {
	if k.GroupResource() == certificatesv1.Resource("certificatesigningrequests") {
		c.Add(o.Name)
	}
}

// Relisted implements inventory.Reader.
func (c *Controller) Relisted(k inventory.Kind, objects []*metav1.PartialObjectMetadata) {
	for _, o := range objects {
		c.Changed(k, o)
	}
}

// Gone implements inventory.Reader.
func (c *Controller) Gone(inventory.Kind, *metav1.PartialObjectMetadata) {}

// Kinds implements inventory.Reader.
func (c *Controller) Kinds() {}

func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	api := c.client.CertificatesV1().CertificateSigningRequests()
	r, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get certificate signing request %s: %w", name, err)
	}
	again, err := c.act(ctx, r)
	return again, confirm.Overtaken(ctx, r, err, confirm.By(api.Get, name))
}

func (c *Controller) act(ctx context.Context, r *certificatesv1.CertificateSigningRequest) (time.Duration, error) {
	parsed, err := certrequest.Parse(r.Spec.Request)
	if err != nil { // validation rejects such a request, so the stored object is damaged; a retry does not help
		klog.FromContext(ctx).Error(err, "Cannot parse a certificate signing request", "request", r.Name)
		return 0, nil
	}
	api := c.client.CertificatesV1().CertificateSigningRequests()
	s := decide(r, parsed, time.Now())
	switch {
	case s.remove:
		klog.FromContext(ctx).V(2).Info("Removing a finished certificate signing request", "request", r.Name)
		if err := api.Delete(ctx, r.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID,
				ResourceVersion: &r.ResourceVersion}}); err != nil {
			return 0, fmt.Errorf("delete certificate signing request %s: %w", r.Name, err)
		}
	case len(s.approveIf) > 0:
		return s.again, c.approve(ctx, r, s.approveIf)
	case s.refuse != nil:
		r.Status.Conditions = append(r.Status.Conditions,
			condition(certificatesv1.CertificateFailed, "SignerValidationFailure", s.refuse.Error()))
		if _, err := api.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
			return 0, fmt.Errorf("fail certificate signing request %s: %w", r.Name, err)
		}
	case s.sign && c.signer != nil:
		usage, extended, err := keyUsages(r.Spec.Usages)
		if err == nil {
			r.Status.Certificate, err = c.signer.Sign(parsed, usage, extended, life(r), time.Now())
		}
		if err == nil {
			_, err = api.UpdateStatus(ctx, r, metav1.UpdateOptions{})
		}
		if err != nil {
			return 0, fmt.Errorf("sign certificate signing request %s: %w", r.Name, err)
		}
	}
	return s.again, nil
}

// approve approves r if its requester may create one of the subresources.
func (c *Controller) approve(ctx context.Context, r *certificatesv1.CertificateSigningRequest,
	subresources []string) error {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.Spec.Extra))
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	for _, sub := range subresources {
		review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Version: "*",
					Resource: "certificatesigningrequests", Subresource: sub, Verb: "create"},
			}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("check whether the requester of %s is authorized: %w", r.Name, err)
		}
		if !review.Status.Allowed {
			continue
		}
		r.Status.Conditions = append(r.Status.Conditions, condition(certificatesv1.CertificateApproved, "AutoApproved",
			"The requester may create certificatesigningrequests/"+sub+"."))
		if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, r,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("approve certificate signing request %s: %w", r.Name, err)
		}
		return nil
	}
	return nil // an approver may still decide
}

func condition(t certificatesv1.RequestConditionType, reason,
	message string) certificatesv1.CertificateSigningRequestCondition {
	return certificatesv1.CertificateSigningRequestCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason,
		Message: message, LastUpdateTime: metav1.Now()}
}
