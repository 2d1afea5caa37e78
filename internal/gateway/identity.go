package gateway

import (
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// identities are the Secrets to which Gateways refer as their certificates for backends. The lock is held.
func (f *feed) identities() map[name]bool {
	out := map[name]bool{}
	for _, g := range f.gateways.all {
		if of, ok := identityOf(g); ok {
			out[of] = true
		}
	}
	return out
}

// identityOf is the Secret with the certificate that a Gateway presents to backends.
func identityOf(g *gatewayv1.Gateway) (name, bool) {
	if g == nil || g.Spec.TLS == nil || g.Spec.TLS.Backend == nil || g.Spec.TLS.Backend.ClientCertificateRef == nil {
		return name{}, false
	}
	ref := g.Spec.TLS.Backend.ClientCertificateRef
	of := name{Namespace: g.Namespace, Name: string(ref.Name)}
	if ref.Namespace != nil {
		of.Namespace = string(*ref.Namespace)
	}
	return of, true
}

// pemOf is the certificate and the key of a Secret, as tls.X509KeyPair reads both from one text.
func pemOf(s *corev1.Secret) string {
	return string(s.Data[corev1.TLSCertKey]) + "\n" + string(s.Data[corev1.TLSPrivateKeyKey])
}
