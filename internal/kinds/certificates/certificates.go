package certificates

import (
	"context"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func certificates(kind string) schema.GroupVersionKind {
	return certificatesv1.SchemeGroupVersion.WithKind(kind)
}

// Kinds returns the kinds of certificates.k8s.io. may authorizes signing of pod certificates.
func Kinds(may authorizer.UnconditionalAuthorizer) []*registry.Resource {
	return []*registry.Resource{signingRequests(), trustBundles(), podCertificateRequests(may)}
}

// signingRequests describes CertificateSigningRequests. The server sets the requesting user, which
// never changes; /approval writes conditions, /status the certificate.
func signingRequests() *registry.Resource {
	csr := func(o runtime.Object) *certificatesv1.CertificateSigningRequest {
		return o.(*certificatesv1.CertificateSigningRequest)
	}
	var approval *approvalStrategy
	return registry.Of[certificatesv1.CertificateSigningRequest,
		certificatesv1.CertificateSigningRequestList](registry.Resource{
		Kind: certificates("CertificateSigningRequest"), Plural: "certificatesigningrequests",
		ShortNames: []string{"csr"}, Cluster: true,
		Status: true, StatusMetadata: true, NoGeneration: true, Resets: []string{"spec", "status"},
		StatusResets: []string{"spec", "status.conditions"},
		Fields: map[string]func(runtime.Object) string{
			"spec.signerName": func(o runtime.Object) string { return csr(o).Spec.SignerName }},
		PrepareCreate: func(ctx context.Context, obj runtime.Object) {
			c := csr(obj)
			c.Spec.Username, c.Spec.UID, c.Spec.Groups, c.Spec.Extra = "", "", nil, nil
			if u, ok := apirequest.UserFrom(ctx); ok {
				c.Spec.Username, c.Spec.UID, c.Spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
				for key, values := range u.GetExtra() {
					if c.Spec.Extra == nil {
						c.Spec.Extra = map[string]certificatesv1.ExtraValue{}
					}
					c.Spec.Extra[key] = values
				}
			}
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) { csr(obj).Spec = csr(old).Spec },
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			keepConditions(csr(obj), csr(old), certificatesv1.CertificateApproved)
			keepConditions(csr(obj), csr(old), certificatesv1.CertificateDenied)
			stampConditions(csr(obj), csr(old), metav1.Now())
		},
		Customize: func(_ *genericregistry.Store, base *registry.Strategy) { approval = &approvalStrategy{base} },
		Subresources: func(s *registry.Store) (map[string]rest.Storage, error) {
			return map[string]rest.Storage{"certificatesigningrequests/approval": registry.NewSubresource(s, approval)},
				nil
		},
		Table: table.Kind{Columns: []table.Column{table.NameColumn, table.AgeColumn, {Name: "SignerName"},
			{Name: "Requestor"}, {Name: "RequestedDuration"}, {Name: "Condition"}},
			Row: func(o runtime.Object, now time.Time) []any {
				c, lasts := csr(o), table.None
				if s := c.Spec.ExpirationSeconds; s != nil {
					lasts = duration.HumanDuration(time.Duration(*s) * time.Second)
				}
				return []any{c.Name, table.Age(c.CreationTimestamp, now), table.OrNone(c.Spec.SignerName),
					c.Spec.Username, lasts, signingState(c)}
			}},
	})
}

func signingState(c *certificatesv1.CertificateSigningRequest) string {
	var approved, denied, failed bool
	for _, cond := range c.Status.Conditions {
		approved = approved || cond.Type == certificatesv1.CertificateApproved
		denied = denied || cond.Type == certificatesv1.CertificateDenied
		failed = failed || cond.Type == certificatesv1.CertificateFailed
	}
	state := "Pending"
	if denied {
		state = "Denied"
	} else if approved {
		state = "Approved"
	}
	if failed {
		state += ",Failed"
	}
	if len(c.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

// keepConditions keeps the stored approval conditions on a write to /status: only /approval changes
// them. If their number differs, validation rejects the write.
func keepConditions(c, old *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) {
	find := func(c *certificatesv1.CertificateSigningRequest) (at []int) {
		for i, cond := range c.Status.Conditions {
			if cond.Type == kind {
				at = append(at, i)
			}
		}
		return at
	}
	mine, stored := find(c), find(old)
	if len(mine) != len(stored) {
		return
	}
	for k := range mine {
		c.Status.Conditions[mine[k]] = old.Status.Conditions[stored[k]]
	}
}

// stampConditions sets the times that the client left out.
func stampConditions(c, old *certificatesv1.CertificateSigningRequest, now metav1.Time) {
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if cond.LastUpdateTime.IsZero() {
			cond.LastUpdateTime = now
		}
		if !cond.LastTransitionTime.IsZero() {
			continue
		}
		cond.LastTransitionTime = now
		for _, was := range old.Status.Conditions {
			if was.Type == cond.Type && was.Status == cond.Status && !was.LastTransitionTime.IsZero() {
				cond.LastTransitionTime = was.LastTransitionTime
				break
			}
		}
	}
}

// approvalStrategy changes only the conditions of a signing request.
type approvalStrategy struct{ *registry.Strategy }

func (s *approvalStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s *approvalStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, was := obj.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest)
	stampConditions(c, was, metav1.Now())
	conditions := c.Status.Conditions
	c.Spec, c.Status = was.Spec, was.Status
	c.Status.Conditions = conditions
}

func (s *approvalStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.Resource.Validator.Subresource == nil {
		return s.Strategy.ValidateUpdate(ctx, obj, old)
	}
	return s.Resource.Validator.Subresource(ctx, "approval", obj, old)
}

func (s *approvalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return registry.ResetFields(s.Resource, "spec", "status.certificate")
}

func trustBundles() *registry.Resource {
	return registry.Of[certificatesv1.ClusterTrustBundle, certificatesv1.ClusterTrustBundleList](registry.Resource{
		Kind: certificates("ClusterTrustBundle"), Plural: "clustertrustbundles", Cluster: true, NoGeneration: true,
		RequireResourceVersion: true,
		ValidateName:           trustBundleName,
		Fields: map[string]func(runtime.Object) string{
			"spec.signerName": func(o runtime.Object) string {
				return o.(*certificatesv1.ClusterTrustBundle).Spec.SignerName
			},
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "SignerName"}}),
			Row: func(o runtime.Object, _ time.Time) []any {
				b := o.(*certificatesv1.ClusterTrustBundle)
				return []any{b.Name, table.OrNone(b.Spec.SignerName)}
			}},
	})
}

// trustBundleName leaves the name to validation, which checks the signer's prefix.
func trustBundleName(string, bool) []string { return nil }

func podCertificateRequests(may authorizer.UnconditionalAuthorizer) *registry.Resource {
	req := func(o runtime.Object) *certificatesv1.PodCertificateRequest {
		return o.(*certificatesv1.PodCertificateRequest)
	}
	return registry.Of[certificatesv1.PodCertificateRequest,
		certificatesv1.PodCertificateRequestList](registry.Resource{
		Kind: certificates("PodCertificateRequest"), Plural: "podcertificaterequests", Status: true, NoGeneration: true,
		RequireResourceVersion: true,
		Fields: map[string]func(runtime.Object) string{
			"spec.signerName": func(o runtime.Object) string { return req(o).Spec.SignerName },
			"spec.podName":    func(o runtime.Object) string { return req(o).Spec.PodName },
			"spec.nodeName":   func(o runtime.Object) string { return string(req(o).Spec.NodeName) },
		},
		// A client that sets a certificate must be allowed to sign for the signer.
		AuthorizeStatus: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			if equality.Semantic.DeepEqual(req(obj).Status, req(old).Status) {
				return nil
			}
			return maySign(ctx, may, req(old).Spec.SignerName)
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "PodName"}, {Name: "ServiceAccountName"},
			{Name: "NodeName"}, {Name: "SignerName"}, {Name: "State"},
			{Name: "UnverifiedUserAnnotations", Wide: true}}),
			Row: func(o runtime.Object, _ time.Time) []any {
				r, state := req(o), "Pending"
				for _, c := range r.Status.Conditions {
					switch c.Type {
					case certificatesv1.PodCertificateRequestConditionTypeIssued,
						certificatesv1.PodCertificateRequestConditionTypeDenied,
						certificatesv1.PodCertificateRequestConditionTypeFailed:
						state = c.Type
					}
				}
				return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName),
					r.Spec.SignerName, state, table.LabelMap(r.Spec.UnverifiedUserAnnotations)}
			}},
	})
}

func maySign(ctx context.Context, may authorizer.UnconditionalAuthorizer, signer string) field.ErrorList {
	at := field.NewPath("spec", "signerName")
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return field.ErrorList{field.InternalError(at,
			fmt.Errorf("cannot determine calling user to perform \"sign\" check"))}
	}
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _,
			err := may.Authorize(ctx,
			authorizer.AttributesRecord{User: u, Verb: "sign", Name: name, APIGroup: certificatesv1.GroupName,
				APIVersion: "*",
				Resource:   "signers", ResourceRequest: true})
		if err == nil && decision == authorizer.DecisionAllow {
			return nil
		}
	}
	return field.ErrorList{field.Forbidden(at,
		fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", u.GetName(), signer))}
}
