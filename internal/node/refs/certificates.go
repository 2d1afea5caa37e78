package refs

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// RequestCertificate requests a certificate from the signer of a projection; csr is an empty
// PKCS #10 request in DER, signed with the key that the certificate is for. The pod owns the request, so it is deleted
// with the pod. RequestCertificate returns its name.
func (s *Store) RequestCertificate(ctx context.Context, pod *corev1.Pod, src *corev1.PodCertificateProjection,
	csr []byte) (string, error) {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	sa, err := s.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("while fetching service account: %w", err)
	}
	node, err := s.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("while getting node object: %w", err)
	}
	req, err := s.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx,
		&certificatesv1.PodCertificateRequest{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName:    "req-",
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
			},
			Spec: certificatesv1.PodCertificateRequestSpec{
				SignerName: src.SignerName,
				PodName:    pod.Name, PodUID: pod.UID,
				ServiceAccountName: account, ServiceAccountUID: sa.UID,
				NodeName: types.NodeName(node.Name), NodeUID: node.UID,
				MaxExpirationSeconds:      src.MaxExpirationSeconds,
				StubPKCS10Request:         csr,
				UnverifiedUserAnnotations: src.UserAnnotations,
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("while creating on API: %w", err)
	}
	return req.Name, nil
}

// CertificateRequest returns a request of the pod, from the cache if the pod is held.
func (s *Store) CertificateRequest(ctx context.Context, pod *corev1.Pod,
	name string) (*certificatesv1.PodCertificateRequest, error) {
	known, _ := s.cached(ctx, key{kind: requests, name: pod.Spec.NodeName})
	if o, ok := known[types.NamespacedName{Namespace: pod.Namespace, Name: name}]; ok {
		return o.(*certificatesv1.PodCertificateRequest), nil
	}
	return s.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
}
