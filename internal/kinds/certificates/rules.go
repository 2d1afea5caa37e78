package certificates

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(certificatesv1.GroupName, "CertificateSigningRequest"): func() rules.Rules {
		r := rules.Of(anyName, validateSigningRequest, validateSigningRequestUpdate(signingObject))
		r.StatusUpdate, r.Subresource = rules.TypedUpdate(validateSigningRequestUpdate(signingStatus)),
			validateSigningRequestApproval
		return r
	},
	rules.Kind(certificatesv1.GroupName,
		"ClusterTrustBundle"): func() rules.Rules {
		return rules.Of(anyName, validateTrustBundle, validateTrustBundleUpdate)
	},
	rules.Kind(certificatesv1.GroupName, "PodCertificateRequest"): func() rules.Rules {
		r := rules.Of(nil, validatePodCertificateRequest, validatePodCertificateRequestUpdate)
		r.StatusUpdate = rules.TypedUpdate(validatePodCertificateRequestStatusUpdate)
		return r
	},
}
