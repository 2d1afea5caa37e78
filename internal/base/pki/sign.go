package pki

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

const (
	signBackdate = 5 * time.Minute
	// A certificate with a shorter lifetime keeps its full length; others begin and end earlier by
	// signBackdate.
	shortLife = 8 * time.Hour
)

// Sign issues a certificate, in PEM, with the key, subject, and alternative names of a request;
// other extensions of the request are ignored. The caller has checked that the requester may have
// it. It expires with the CA at the latest.
func (p *PKI) Sign(r *x509.CertificateRequest, usage x509.KeyUsage, extended []x509.ExtKeyUsage, life time.Duration,
	now time.Time) ([]byte, error) {
	if !now.Before(p.CA.NotAfter) {
		return nil, fmt.Errorf("sign a certificate for %s: the cluster's CA expired on %s", r.Subject.CommonName,
			p.CA.NotAfter.Format(time.DateOnly))
	}
	t, err := template(r.Subject.CommonName, now, life)
	if err != nil {
		return nil, err
	}
	t.Subject = r.Subject
	t.DNSNames, t.IPAddresses, t.EmailAddresses, t.URIs = r.DNSNames, r.IPAddresses, r.EmailAddresses, r.URIs
	t.KeyUsage, t.ExtKeyUsage = usage, extended
	t.NotBefore = now.Add(-signBackdate)
	if life >= shortLife {
		t.NotAfter = now.Add(life - signBackdate)
	}
	if t.NotAfter.After(p.CA.NotAfter) {
		t.NotAfter = p.CA.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, p.CA, r.PublicKey, p.ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", r.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
