// Package certificates is the group certificates.k8s.io: CertificateSigningRequests, ClusterTrustBundles and
// PodCertificateRequests. It says who may ask for, approve and sign what; signing itself is the controllers' work. The
// clock is read for one thing: that a pod's certificate was issued just now.
package certificates
