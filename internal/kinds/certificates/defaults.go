package certificates

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, func(o *certificatesv1.PodCertificateRequest) {
		defaulting.OrNew(&o.Spec.MaxExpirationSeconds, 24*60*60)
	})
}
