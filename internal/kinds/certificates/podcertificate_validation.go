package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

const maxRequest = 10 << 10 // bytes

func validatePodCertificateRequest(r *certificatesv1.PodCertificateRequest) field.ErrorList {
	const longestUID, hour = 128, 60 * 60
	s, at := &r.Spec, field.NewPath("spec")
	errs := rules.SignerName(s.SignerName, at.Child("signerName"))
	errs = append(errs, pods.ValidateUserAnnotations(s.UnverifiedUserAnnotations,
		at.Child("unverifiedUserAnnotations"))...)
	for _, o := range []struct{ kind, name, uid string }{{"pod", s.PodName, string(s.PodUID)},
		{"serviceAccount", s.ServiceAccountName, string(s.ServiceAccountUID)},
		{"node", string(s.NodeName), string(s.NodeUID)}} {
		errs = append(errs, rules.Messages(at.Child(o.kind+"Name"), o.name,
			apivalidation.NameIsDNSSubdomain(o.name, false))...)
		if o.uid == "" {
			errs = append(errs, field.Invalid(at.Child(o.kind+"UID"), o.uid, "must not be empty"))
		} else if len(o.uid) > longestUID {
			errs = append(errs, field.TooLong(at.Child(o.kind+"UID"), o.uid, longestUID))
		}
	}
	if s.MaxExpirationSeconds == nil {
		return append(errs, field.Required(at.Child("maxExpirationSeconds"), "must be set"))
	}
	longest := pods.LongestCertificate(s.SignerName)
	if n := *s.MaxExpirationSeconds; n < hour || n > longest {
		errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), n,
			fmt.Sprintf("must be in the range [%d, %d]", hour, longest)))
	}
	if len(s.StubPKCS10Request) == 0 {
		return append(errs, field.Invalid(at, field.OmitValueType{},
			"exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"))
	}
	return append(errs, validateStubRequest(s.StubPKCS10Request, at.Child("stubPKCS10Request"))...)
}

// acceptableKey rejects weak keys.
func acceptableKey(key any, at *field.Path) *field.Error {
	switch k := key.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() && k.Curve != elliptic.P521() {
			return field.Invalid(at, "curve "+k.Curve.Params().Name,
				"elliptic public keys must use curve P256, P384, or P521")
		}
	case *rsa.PublicKey:
		if bits := k.Size() * 8; bits != 3072 && bits != 4096 {
			return field.Invalid(at, fmt.Sprintf("%d-bit modulus", bits),
				"RSA keys must have modulus size 3072 or 4096")
		}
	default:
		return field.Invalid(at, field.OmitValueType{},
			"unknown public key type; supported types are Ed25519, ECDSA, and RSA")
	}
	return nil
}

func validateStubRequest(der []byte, at *field.Path) field.ErrorList {
	if len(der) > maxRequest {
		return field.ErrorList{field.TooLong(at, "", maxRequest)}
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	if e := acceptableKey(r.PublicKey, at); e != nil {
		return field.ErrorList{e}
	}
	if r.CheckSignature() != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "invalid signature")}
	}
	return nil
}

func validatePodCertificateRequestUpdate(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	return apivalidation.ValidateImmutableField(r.Spec, old.Spec, field.NewPath("spec"))
}

// podCertificateOutcome returns the condition that ended the request, "" if none has.
func podCertificateOutcome(r *certificatesv1.PodCertificateRequest) string {
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued,
			certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			if c.Status == metav1.ConditionTrue {
				return c.Type
			}
		}
	}
	return ""
}

func validatePodCertificateRequestStatusUpdate(r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	at := field.NewPath("status")
	outcomes := []string{certificatesv1.PodCertificateRequestConditionTypeIssued,
		certificatesv1.PodCertificateRequestConditionTypeDenied,
		certificatesv1.PodCertificateRequestConditionTypeFailed}
	var errs field.ErrorList
	for i, c := range r.Status.Conditions {
		at := at.Child("conditions", fmt.Sprintf("[%d]", i)) // with a dot, as upstream
		if e := rules.Supported(c.Type, at.Child("type"), outcomes...); e != nil {
			errs = append(errs, e...)
			continue
		}
		if i > 0 {
			errs = append(errs,
				field.Invalid(at.Child("type"), c.Type,
					`There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		errs = append(errs, rules.Supported(string(c.Status), at.Child("status"), string(metav1.ConditionTrue))...)
	}
	errs = append(errs, metav1validation.ValidateConditions(r.Status.Conditions, at.Child("conditions"))...)
	if len(errs) > 0 {
		return errs
	}
	same := func(want certificatesv1.PodCertificateRequestStatus, detail string) field.ErrorList {
		if apiequality.Semantic.DeepEqual(r.Status, want) {
			return nil
		}
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, detail)}
	}
	if podCertificateOutcome(old) != "" {
		return same(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch podCertificateOutcome(r) {
	case certificatesv1.PodCertificateRequestConditionTypeIssued:
		return validateIssuedCertificate(r, old, time.Now())
	case "":
		return same(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
	}
	return same(certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions},
		"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
}

// validateIssuedCertificate checks that the issued certificate matches the request.
func validateIssuedCertificate(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	const longest, skew, margin = 100 << 10, 5 * time.Minute, 10 * time.Minute
	at := field.NewPath("status")
	chain := at.Child("certificateChain")
	fail := func(at *field.Path, value any, detail string) field.ErrorList {
		return field.ErrorList{field.Invalid(at, value, detail)}
	}
	text := r.Status.CertificateChain
	if len(text) > longest {
		return field.ErrorList{field.TooLong(chain, "", longest)}
	}
	var leaf *x509.Certificate
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fail(chain, text, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			return fail(chain, text, "leaf certificate does not parse as valid X.509")
		case err != nil:
			return fail(chain, text, "intermediate certificate does not parse as valid X.509")
		case leaf == nil:
			leaf = cert
		}
	}
	if leaf == nil {
		return fail(chain, text, "issued certificate chain must contain at least one certificate")
	}
	if errs := validateLeafNames(leaf, chain); len(errs) > 0 {
		return errs
	}
	request, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		return fail(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR")
	}
	if k, ok := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && !k.Equal(leaf.PublicKey) {
		return fail(chain, text, "leaf certificate was not issued to the requested public key")
	}
	var errs field.ErrorList
	s := &r.Status
	if s.NotBefore == nil {
		errs = append(errs, field.Required(at.Child("notBefore"),
			"must be present and consistent with the issued certificate"))
	}
	if s.NotAfter == nil {
		errs = append(errs, field.Required(at.Child("notAfter"),
			"must be present and consistent with the issued certificate"))
	}
	if s.BeginRefreshAt == nil {
		errs = append(errs, field.Required(at.Child("beginRefreshAt"),
			"must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	if len(errs) > 0 {
		return errs
	}
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return fail(at.Child("notBefore"), s.NotBefore.Time,
			"must be set to the NotBefore time encoded in the leaf certificate")
	case s.NotBefore.Time.Sub(now).Abs() >= skew:
		return fail(at.Child("notBefore"), s.NotBefore.Time,
			"must be set to within 5 minutes of kube-apiserver's current time")
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return fail(at.Child("notAfter"), s.NotAfter.Time,
			"must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < time.Hour:
		return fail(chain, lifetime, "leaf certificate lifetime must be >= 1 hour")
	case r.Spec.MaxExpirationSeconds != nil && lifetime > time.Duration(*r.Spec.MaxExpirationSeconds)*time.Second:
		return fail(chain, lifetime,
			fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)",
				*r.Spec.MaxExpirationSeconds))
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Time.Add(margin)):
		return fail(at.Child("beginRefreshAt"), s.BeginRefreshAt.Time,
			"must be at least 10 minutes after status.notBefore")
	case s.BeginRefreshAt.Time.After(s.NotAfter.Time.Add(-margin)):
		return fail(at.Child("beginRefreshAt"), s.BeginRefreshAt.Time,
			"must be at least 10 minutes before status.notAfter")
	}
	return nil
}

func validateLeafNames(leaf *x509.Certificate, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(at, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(at, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(at, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(at, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}
