// Package certificates is the group certificates.k8s.io: CertificateSigningRequests,
// ClusterTrustBundles, and PodCertificateRequests. It validates who may request, approve, and sign
// what; controllers do the signing. It reads the clock only to check that a pod's certificate was
// issued recently.
package certificates
