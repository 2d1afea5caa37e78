package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/base/certrequest"
	"carob/internal/kinds/rules"
)

// legacySigner is the signer of old requests that name none.
const legacySigner = "kubernetes.io/legacy-unknown"

// signingStage is which endpoint writes to a signing request.
type signingStage int

const (
	signingObject signingStage = iota
	signingApproval
	signingStatus
)

// keyUsages are the valid usages of a certificate, sorted.
func keyUsages() []string {
	all := []string{}
	for _, u := range []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
		certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment, certificatesv1.UsageCertSign,
		certificatesv1.UsageCRLSign,
		certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny,
		certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth,
		certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection, certificatesv1.UsageSMIME,
		certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	} {
		all = append(all, string(u))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// anyName accepts every name: names of signing requests are not restricted.
func anyName(string, bool) []string { return nil }

func validateSigningRequest(c *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return checkSigningRequest(c, nil)
}

// checkSigningRequest validates c; errors that old already has are allowed.
func checkSigningRequest(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	const shortest = 600
	at := field.NewPath("spec")
	var errs field.ErrorList
	if err := parseRequest(c.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(at.Child("request"), c.Spec.Request, err.Error()))
	}
	if len(c.Spec.Usages) == 0 {
		errs = append(errs, field.Required(at.Child("usages"), ""))
	}
	errs = append(errs, validateTolerated(validateUsages(c.Spec.Usages, at.Child("usages")), old,
		func() field.ErrorList { return validateUsages(old.Spec.Usages, at.Child("usages")) })...)
	if c.Spec.SignerName != legacySigner {
		errs = append(errs, rules.SignerName(c.Spec.SignerName, at.Child("signerName"))...)
	} else if old == nil || old.Spec.SignerName != legacySigner {
		errs = append(errs, field.Invalid(at.Child("signerName"), c.Spec.SignerName,
			"the legacy signerName is not allowed via this API version"))
	}
	if s := c.Spec.ExpirationSeconds; s != nil && *s < shortest {
		errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s,
			"may not specify a duration less than 600 seconds (10 minutes)"))
	}
	conditions := field.NewPath("status", "conditions")
	errs = append(errs, validateTolerated(validateSigningConditions(c, conditions), old,
		func() field.ErrorList { return validateSigningConditions(old, conditions) })...)
	same := old != nil && bytes.Equal(c.Status.Certificate, old.Status.Certificate)
	if err := certificateChain(c.Status.Certificate); err != nil && !same &&
		(old == nil || certificateChain(old.Status.Certificate) == nil) {
		errs = append(errs, field.Invalid(field.NewPath("status", "certificate"), "<certificate data>", err.Error()))
	}
	return errs
}

// validateTolerated drops errors of types that the stored object has, too.
func validateTolerated(errs field.ErrorList, old *certificatesv1.CertificateSigningRequest,
	before func() field.ErrorList) field.ErrorList {
	if old == nil || len(errs) == 0 {
		return errs
	}
	type fault struct {
		kind   field.ErrorType
		detail string
	}
	was := map[fault]bool{}
	for _, e := range before() {
		was[fault{e.Type, e.Detail}] = true
	}
	return slices.DeleteFunc(errs, func(e *field.Error) bool { return was[fault{e.Type, e.Detail}] })
}

func validateUsages(list []certificatesv1.KeyUsage, at *field.Path) field.ErrorList {
	known, seen := keyUsages(), sets.New[certificatesv1.KeyUsage]()
	var errs field.ErrorList
	for i, u := range list {
		if !slices.Contains(known, string(u)) {
			errs = append(errs, field.NotSupported(at.Index(i), u, known))
		}
		if seen.Has(u) {
			errs = append(errs, field.Duplicate(at.Index(i), u))
		}
		seen.Insert(u)
	}
	return errs
}

func parseRequest(text []byte) error {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return fmt.Errorf("PEM block type must be CERTIFICATE REQUEST")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return certrequest.Check(r)
}

func certificateChain(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	blocks := 0
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return fmt.Errorf("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return fmt.Errorf("found CERTIFICATE PEM block containing 0 certificates")
		}
		blocks++
		text = rest
	}
	if blocks == 0 {
		return fmt.Errorf("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

// verdicts are the conditions that exist at most once and stay.
var verdicts = []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
	certificatesv1.CertificateDenied, certificatesv1.CertificateFailed}

func validateSigningConditions(c *certificatesv1.CertificateSigningRequest, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, cond := range c.Status.Conditions {
		if cond.Type == "" {
			errs = append(errs, field.Required(at.Index(i).Child("type"), ""))
		}
		values := []string{string(corev1.ConditionTrue)}
		if !slices.Contains(verdicts, cond.Type) {
			values = []string{string(corev1.ConditionFalse), string(corev1.ConditionTrue),
				string(corev1.ConditionUnknown)}
		}
		errs = append(errs, rules.OneOf(string(cond.Status), at.Index(i).Child("status"), values...)...)
		if cond.Type == certificatesv1.CertificateApproved && seen[certificatesv1.CertificateDenied] ||
			cond.Type == certificatesv1.CertificateDenied && seen[certificatesv1.CertificateApproved] {
			errs = append(errs, field.Invalid(at, cond.Type, "Approved and Denied conditions are mutually exclusive"))
		}
		if seen[cond.Type] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("type"), cond.Type))
		}
		seen[cond.Type] = true
	}
	return errs
}

// validateSigningRequestUpdate validates an update through the given endpoint: verdicts are written
// through /approval and stay, the certificate is written through /status, once.
func validateSigningRequestUpdate(stage signingStage) func(c,
	old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return func(c, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
		errs := checkSigningRequest(c, old)
		at := field.NewPath("status", "conditions")
		find := func(c *certificatesv1.CertificateSigningRequest,
			t certificatesv1.RequestConditionType) (out []certificatesv1.CertificateSigningRequestCondition) {
			for _, cond := range c.Status.Conditions {
				if cond.Type == t {
					out = append(out, cond)
				}
			}
			return out
		}
		for _, t := range verdicts {
			now, was := find(c, t), find(old, t)
			switch {
			case len(now) < len(was):
				errs = append(errs,
					field.Forbidden(at, fmt.Sprintf("updates may not remove a condition of type %q", t)))
			case stage == signingApproval || t == certificatesv1.CertificateFailed:
			case len(now) > len(was):
				errs = append(errs, field.Forbidden(at, fmt.Sprintf("updates may not add a condition of type %q", t)))
			case !apiequality.Semantic.DeepEqual(now, was):
				errs = append(errs,
					field.Forbidden(at,
						fmt.Sprintf("updates may not modify a condition of type %q\n%v", t, rules.Diff(was, now))))
			}
		}
		switch certificate := field.NewPath("status", "certificate"); {
		case bytes.Equal(c.Status.Certificate, old.Status.Certificate):
		case stage != signingStatus:
			errs = append(errs, field.Forbidden(certificate, "updates may not set certificate content"))
		case len(old.Status.Certificate) > 0:
			errs = append(errs, field.Forbidden(certificate, "updates may not modify existing certificate content"))
		}
		return errs
	}
}

// validateSigningRequestApproval validates an update through /approval, the only other subresource.
func validateSigningRequestApproval(_ context.Context, _ string, obj, old runtime.Object) field.ErrorList {
	return validateSigningRequestUpdate(signingApproval)(obj.(*certificatesv1.CertificateSigningRequest),
		old.(*certificatesv1.CertificateSigningRequest))
}

func validateTrustBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	return checkTrustBundle(b, nil)
}

func validateTrustBundleUpdate(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	return append(checkTrustBundle(b, old),
		apivalidation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName,
			field.NewPath("spec", "signerName"))...)
}

func checkTrustBundle(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	at := field.NewPath("metadata", "name")
	var errs field.ErrorList
	if signer := b.Spec.SignerName; signer == "" {
		if strings.Contains(b.Name, ":") {
			errs = append(errs,
				field.Invalid(at, b.Name, "ClusterTrustBundle without signer name must not have \":\" in its name"))
		} else {
			errs = append(errs, rules.Messages(at, b.Name, apivalidation.NameIsDNSSubdomain(b.Name, false))...)
		}
	} else {
		prefix := strings.ReplaceAll(signer, "/", ":") + ":"
		if rest, ok := strings.CutPrefix(b.Name, prefix); ok {
			errs = append(errs, rules.Messages(at, b.Name, apivalidation.NameIsDNSSubdomain(rest, false))...)
		} else if b.Name != "" {
			errs = append(errs,
				field.Invalid(at, b.Name,
					fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix)))
		}
		errs = append(errs, rules.SignerName(signer, field.NewPath("spec", "signerName"))...)
	}
	if old != nil && old.Spec.TrustBundle == b.Spec.TrustBundle {
		return errs
	}
	return append(errs, validateTrustAnchors(b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))...)
}

func validateTrustAnchors(text string, at *field.Path) field.ErrorList {
	const bytes, hidden = 1 << 20, "<value omitted>"
	if len(text) > bytes {
		return field.ErrorList{field.TooLong(at, "", bytes)}
	}
	var errs field.ErrorList
	where := map[string][]int{}
	rest := []byte(text)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		bad := func(format string, args ...any) {
			errs = append(errs, field.Invalid(at, hidden, fmt.Sprintf("entry %d ", i)+fmt.Sprintf(format, args...)))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case block.Type != "CERTIFICATE":
			bad("has bad block type: %v", block.Type)
		case len(block.Headers) > 0:
			bad("has PEM block headers")
		case err != nil:
			bad("does not parse as X.509")
		case !cert.IsCA:
			bad("does not have the CA bit set")
		case !cert.BasicConstraintsValid:
			bad("has invalid basic constraints")
		default:
			where[string(block.Bytes)] = append(where[string(block.Bytes)], i)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(where) == 0 {
		errs = append(errs, field.Invalid(at, hidden, "at least one trust anchor must be provided"))
	}
	for _, at2 := range where {
		if len(at2) > 1 {
			errs = append(errs, field.Invalid(at, hidden, fmt.Sprintf("duplicate trust anchor (indices %v)", at2)))
		}
	}
	return errs
}
