package pods

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// validateProjectedCertificate validates a projected key and certificate of a signer. The caller
// checks that no other source writes its files.
func validateProjectedCertificate(c *corev1.PodCertificateProjection, at *field.Path) field.ErrorList {
	const hour = 60 * 60
	errs := rules.SignerName(c.SignerName, at.Child("signerName"))
	errs = append(errs, ValidateUserAnnotations(c.UserAnnotations, at.Child("userAnnotations"))...)
	errs = append(errs, rules.Supported(c.KeyType, at.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384",
		"ECDSAP521", "ED25519")...)
	if s, longest := c.MaxExpirationSeconds, LongestCertificate(c.SignerName); s != nil {
		if *s < hour {
			errs = append(errs,
				field.Invalid(at.Child("maxExpirationSeconds"), *s,
					fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", hour)))
		}
		if *s > longest {
			errs = append(errs,
				field.Invalid(at.Child("maxExpirationSeconds"), *s,
					fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", longest)))
		}
	}
	files := 0
	for _, f := range []struct{ field, path string }{{"credentialBundlePath", c.CredentialBundlePath},
		{"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath}} {
		if f.path != "" {
			files++
			errs = append(errs, validateVolumeFile(f.path, at.Child(f.field))...)
		}
	}
	if files == 0 {
		errs = append(errs,
			field.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	return errs
}

// LongestCertificate is the longest lifetime of a pod's certificate, in seconds.
func LongestCertificate(signer string) int32 {
	const day = 24 * 60 * 60
	if host, _, _ := strings.Cut(signer, "/"); host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io") {
		return day
	}
	return 91 * day
}

// ValidateUserAnnotations validates the annotations that a pod passes to a signer.
func ValidateUserAnnotations(annotations map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range annotations {
		errs = append(errs, validation.IsDomainPrefixedKey(at, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		errs = append(errs, field.TooLong(at, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}

// validateProjectedBundle validates a projected trust bundle: one by name, or those of a signer.
func validateProjectedBundle(b *corev1.ClusterTrustBundleProjection, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "only one of name and signerName may be used"))
	case b.Name != nil:
		errs = append(errs, validateBundleName(*b.Name, at.Child("name"))...)
		if b.LabelSelector != nil {
			errs = append(errs,
				field.Invalid(at.Child("labelSelector"), field.OmitValueType{},
					"labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		errs = append(errs, rules.SignerName(*b.SignerName, at.Child("signerName"))...)
		errs = append(errs, metav1validation.ValidateLabelSelector(b.LabelSelector,
			metav1validation.LabelSelectorValidationOptions{}, at.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(at, "either name or signerName must be specified"))
	}
	if b.Path == "" {
		return append(errs, field.Required(at.Child("path"), ""))
	}
	return append(errs, validateVolumeFile(b.Path, at.Child("path"))...)
}

// validateBundleName validates the name of a trust bundle: the name of a signer's begins with the
// signer's name, in which colons replace slashes.
func validateBundleName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "must be a valid object name")}
	}
	var errs field.ErrorList
	for _, m := range apivalidation.NameIsDNSSubdomain(name[strings.LastIndexByte(name, ':')+1:], false) {
		errs = append(errs, field.Invalid(at, name, "not a valid clustertrustbundlename: "+m))
	}
	return errs
}
