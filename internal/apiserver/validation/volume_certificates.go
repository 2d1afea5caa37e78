package validation

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// projectedCertificate checks a key and certificate that a signer makes for the pod.
// The caller checks that no other source writes its files.
func projectedCertificate(c *corev1.PodCertificateProjection, at *field.Path) field.ErrorList {
	const hour = 60 * 60
	errs := signerName(c.SignerName, at.Child("signerName"))
	errs = append(errs, userAnnotations(c.UserAnnotations, at.Child("userAnnotations"))...)
	errs = append(errs, supported(c.KeyType, at.Child("keyType"), "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")...)
	if s, longest := c.MaxExpirationSeconds, longestCertificate(c.SignerName); s != nil {
		if *s < hour {
			errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", hour)))
		}
		if *s > longest {
			errs = append(errs, field.Invalid(at.Child("maxExpirationSeconds"), *s, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", longest)))
		}
	}
	files := 0
	for _, f := range []struct{ field, path string }{{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath}} {
		if f.path != "" {
			files++
			errs = append(errs, volumeFile(f.path, at.Child(f.field))...)
		}
	}
	if files == 0 {
		errs = append(errs, field.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	return errs
}

// longestCertificate is how many seconds a pod's certificate of a signer may live at most.
func longestCertificate(signer string) int32 {
	const day = 24 * 60 * 60
	if host, _, _ := strings.Cut(signer, "/"); host == "kubernetes.io" || strings.HasSuffix(host, ".kubernetes.io") {
		return day
	}
	return 91 * day
}

// userAnnotations checks what a pod tells a signer.
func userAnnotations(annotations map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range annotations {
		errs = append(errs, validation.IsDomainPrefixedKey(at, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		errs = append(errs, field.TooLong(at, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}

// projectedBundle checks a file of trust bundles: of one by name, or of a signer's.
func projectedBundle(b *corev1.ClusterTrustBundleProjection, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Name != nil && b.SignerName != nil:
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "only one of name and signerName may be used"))
	case b.Name != nil:
		errs = append(errs, bundleName(*b.Name, at.Child("name"))...)
		if b.LabelSelector != nil {
			errs = append(errs, field.Invalid(at.Child("labelSelector"), field.OmitValueType{}, "labelSelector must be unset if name is specified"))
		}
	case b.SignerName != nil:
		errs = append(errs, signerName(*b.SignerName, at.Child("signerName"))...)
		errs = append(errs, metav1validation.ValidateLabelSelector(b.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, at.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(at, "either name or signerName must be specified"))
	}
	if b.Path == "" {
		return append(errs, field.Required(at.Child("path"), ""))
	}
	return append(errs, volumeFile(b.Path, at.Child("path"))...)
}

// bundleName checks the name of a trust bundle: of a signer's it begins with the
// signer's name, in which colons stand for slashes.
func bundleName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "must be a valid object name")}
	}
	var errs field.ErrorList
	for _, m := range apivalidation.NameIsDNSSubdomain(name[strings.LastIndexByte(name, ':')+1:], false) {
		errs = append(errs, field.Invalid(at, name, "not a valid clustertrustbundlename: "+m))
	}
	return errs
}
