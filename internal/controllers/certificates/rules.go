package certificates

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// legacyUnknown is the signer of requests from before signers had names. The v1 API accepts no new
// ones; stored ones are still signed.
const legacyUnknown = "kubernetes.io/legacy-unknown"

// How long a request is kept after its last change.
const (
	keepEnded   = time.Hour      // signed, denied, or failed
	keepPending = 24 * time.Hour // not decided, or not signed
)

// Limits of a certificate's validity, and the default.
const (
	minLife = 10 * time.Minute
	maxLife = 365 * 24 * time.Hour
)

// step is what must be done with a request.
type step struct {
	remove bool
	// approveIf names subresources of certificatesigningrequests: if the requester may create one
	// of them, the request is approved.
	approveIf []string
	sign      bool
	// refuse is the reason why an approved request can never be signed.
	refuse error
	// again is the time of the next check if nothing happens; zero for never.
	again time.Duration
}

// decide returns what to do with a request whose certificate request has been parsed.
func decide(r *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest, now time.Time) step {
	if end := deadline(r); !end.IsZero() {
		if !now.Before(end) {
			return step{remove: true}
		}
		s := decideOpen(r, parsed)
		s.again = end.Sub(now)
		return s
	}
	return decideOpen(r, parsed)
}

// decideOpen is decide for a request that is not finished.
func decideOpen(r *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) step {
	switch {
	case len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateDenied) ||
		has(r, certificatesv1.CertificateFailed):
		return step{}
	case !has(r, certificatesv1.CertificateApproved):
		if r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName ||
			nodeClient(parsed, r.Spec.Usages) != nil {
			return step{}
		}
		if r.Spec.Username == parsed.Subject.CommonName {
			return step{approveIf: []string{"selfnodeclient", "nodeclient"}}
		}
		return step{approveIf: []string{"nodeclient"}}
	}
	var err error
	switch r.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientSignerName:
		err = client(r.Spec.Usages)
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		err = nodeClient(parsed, r.Spec.Usages)
	case certificatesv1.KubeletServingSignerName:
		err = nodeServing(parsed, r.Spec.Usages)
	case legacyUnknown:
	default:
		return step{} // for another signer
	}
	if err == nil {
		_, _, err = keyUsages(r.Spec.Usages)
	}
	return step{sign: err == nil, refuse: err}
}

func has(r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == t && c.Status != corev1.ConditionFalse
	})
}

// deadline is when a request may be removed; zero for never. The earliest time applies.
func deadline(r *certificatesv1.CertificateSigningRequest) time.Time {
	var end time.Time
	earlier := func(since time.Time, keep time.Duration) {
		if t := since.Add(keep); !since.IsZero() && (end.IsZero() || t.Before(end)) {
			end = t
		}
	}
	if len(r.Status.Conditions) == 0 {
		earlier(r.CreationTimestamp.Time, keepPending)
	}
	for _, c := range r.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			earlier(c.LastUpdateTime.Time, keepEnded)
		case c.Type != certificatesv1.CertificateApproved:
		case len(r.Status.Certificate) > 0:
			earlier(c.LastUpdateTime.Time, keepEnded)
			earlier(expiry(r.Status.Certificate), 0)
		default:
			earlier(c.LastUpdateTime.Time, keepPending)
		}
	}
	return end
}

// expiry is the end of the first certificate in PEM data; zero if it cannot be parsed.
func expiry(data []byte) time.Time {
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return c.NotAfter
}

// life returns the validity of the certificate.
func life(r *certificatesv1.CertificateSigningRequest) time.Duration {
	if r.Spec.ExpirationSeconds == nil {
		return maxLife
	}
	return min(max(time.Duration(*r.Spec.ExpirationSeconds)*time.Second, minLife), maxLife)
}

// client validates a request for a client certificate of the API server.
func client(usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		if u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment &&
			u != certificatesv1.UsageClientAuth {
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// nodeClient validates a request for a node agent's client certificate, in upstream's order.
func nodeClient(p *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return first(
		ofNodes(p),
		refuse(len(p.DNSNames) > 0, "DNS subjectAltNames are not allowed"),
		refuse(len(p.EmailAddresses) > 0, "Email subjectAltNames are not allowed"),
		refuse(len(p.IPAddresses) > 0, "IP subjectAltNames are not allowed"),
		refuse(len(p.URIs) > 0, "URI subjectAltNames are not allowed"),
		ofNode(p),
		usedFor(certificatesv1.UsageClientAuth, usages),
	)
}

// nodeServing validates a request for a node agent's serving certificate, in upstream's order.
func nodeServing(p *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	return first(
		ofNodes(p),
		refuse(len(p.DNSNames) == 0 && len(p.IPAddresses) == 0, "DNS or IP subjectAltName is required"),
		refuse(len(p.EmailAddresses) > 0, "Email subjectAltNames are not allowed"),
		refuse(len(p.URIs) > 0, "URI subjectAltNames are not allowed"),
		usedFor(certificatesv1.UsageServerAuth, usages),
		ofNode(p),
	)
}

// first returns the first error.
func first(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

func refuse(failed bool, message string) error {
	if failed {
		return errors.New(message)
	}
	return nil
}

func ofNodes(p *x509.CertificateRequest) error {
	return refuse(!slices.Equal(p.Subject.Organization, []string{"system:nodes"}),
		"subject organization is not system:nodes")
}

func ofNode(p *x509.CertificateRequest) error {
	return refuse(!strings.HasPrefix(p.Subject.CommonName, "system:node:"),
		"subject common name does not begin with system:node:")
}

// usedFor validates the usages of a node agent's certificate. Encipherment is for RSA keys only, so it may be omitted.
func usedFor(purpose certificatesv1.KeyUsage, usages []certificatesv1.KeyUsage) error {
	rest := slices.DeleteFunc(slices.Sorted(slices.Values(usages)),
		func(u certificatesv1.KeyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
	want := []certificatesv1.KeyUsage{purpose, certificatesv1.UsageDigitalSignature}
	slices.Sort(want)
	if slices.Equal(slices.Compact(rest), want) {
		return nil
	}
	all := slices.Concat(want, []certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment})
	slices.Sort(all)
	return fmt.Errorf("usages did not match %v", all)
}

// keyUsages converts usages; extended usages are sorted, without duplicates.
func keyUsages(usages []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var plain x509.KeyUsage
	var extended []x509.ExtKeyUsage
	for _, u := range usages {
		if bit, ok := plainUsages[u]; ok {
			plain |= bit
		} else if e, ok := extendedUsages[u]; ok {
			extended = append(extended, e)
		} else {
			return 0, nil, fmt.Errorf("unrecognized usage %q", u)
		}
	}
	slices.SortFunc(extended, func(a, b x509.ExtKeyUsage) int { return cmp.Compare(a, b) })
	return plain, slices.Compact(extended), nil
}

var plainUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}
