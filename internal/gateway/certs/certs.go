// Package certs selects the certificates of a gateway, and reads those in Secrets and ConfigMaps.
//
// Contract: docs/spec/network.md.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/base/keysize"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/immutablemap"
)

// Set has the certificates of one port, by host name.
type Set struct {
	exact, wild immutablemap.Map[string, []*tls.Certificate]
	all         []*tls.Certificate
	Fallback    *tls.Certificate // for names without one; nil: their connections fail
}

// New returns an empty set.
func New() *Set {
	return &Set{exact: immutablemap.New[string, []*tls.Certificate](immutablemap.String),
		wild: immutablemap.New[string, []*tls.Certificate](immutablemap.String)}
}

// Add adds a certificate for a host name, which may begin with an asterisk; empty: for all.
func (c *Set) Add(host string, cert *tls.Certificate) {
	if host == "" {
		c.all = append(c.all, cert)
		return
	}
	m, key := c.of(host)
	before, _ := m.Get(key)
	m.Set(key, append(before, cert))
}

// With returns a copy in which a host name has other certificates.
func (c *Set) With(host string, all []*tls.Certificate) *Set {
	out := *c
	if host == "" {
		out.all = all
		return &out
	}
	if m, key := out.of(host); len(all) > 0 {
		*m = m.With(key, all)
	} else {
		*m = m.Without(key)
	}
	return &out
}

// of is the map that has a host name, and its key there.
func (c *Set) of(host string) (m *immutablemap.Map[string, []*tls.Certificate], key string) {
	if suffix, wild := strings.CutPrefix(host, "*"); wild {
		return &c.wild, suffix
	}
	return &c.exact, host
}

// Find returns the certificate for a connection: that of the most specific name, of several the first that the client
// can verify.
func (c *Set) Find(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	candidates := c.candidates(strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")))
	for _, cert := range candidates {
		if hello.SupportsCertificate(cert) == nil {
			return cert, nil
		}
	}
	switch {
	case len(candidates) > 0:
		return candidates[0], nil
	case c.Fallback != nil:
		return c.Fallback, nil
	}
	return nil, errors.New("no listener has this name")
}

// Has reports whether a connection for a name finds a certificate.
func (c *Set) Has(name string) bool { return len(c.candidates(name)) > 0 || c.Fallback != nil }

// Exact reports whether there is a certificate for exactly this name.
func (c *Set) Exact(name string) bool { _, has := c.exact.Get(name); return has }

// candidates are the certificates of the most specific name that has some.
func (c *Set) candidates(name string) []*tls.Certificate {
	out, _ := c.exact.Get(name)
	for rest := name; out == nil; {
		at := strings.IndexByte(rest, '.')
		if at < 0 {
			return c.all
		}
		out, _ = c.wild.Get(rest[at:])
		rest = rest[at+1:]
	}
	return out
}

// Read reads a Secret of type kubernetes.io/tls.
func Read(s *corev1.Secret) (*tls.Certificate, error) {
	err := keysize.PrivatePEM([]byte(PEM(s)))
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	}
	if err != nil {
		return nil, fmt.Errorf("its certificate and key cannot be used: %w", err)
	}
	return &pair, nil
}

// PEM is the certificate and the key of a Secret, as tls.X509KeyPair reads both from one text.
func PEM(s *corev1.Secret) string {
	return string(s.Data[corev1.TLSCertKey]) + "\n" + string(s.Data[corev1.TLSPrivateKeyKey])
}

// ReadCAs checks a ConfigMap with CAs.
func ReadCAs(m *corev1.ConfigMap) gatewayplan.Material {
	text := m.Data["ca.crt"]
	if text == "" {
		text = string(m.BinaryData["ca.crt"])
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(text)) {
		return gatewayplan.Material{Problem: "its key ca.crt has no certificate"}
	}
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return gatewayplan.Material{PEM: text}
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return gatewayplan.Material{Problem: "its key ca.crt has a certificate that cannot be read"}
		}
		if err := keysize.Public(cert.PublicKey); err != nil {
			return gatewayplan.Material{Problem: "in its key ca.crt, " + err.Error()}
		}
	}
}

// SelfSigned makes the certificate for names for which no Ingress has one (N6.15).
func SelfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's own key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make the gateway's own certificate: %w", err)
	}
	template := &x509.Certificate{SerialNumber: serial,
		Subject:   pkix.Name{CommonName: "carob gateway, default certificate"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), DNSNames: []string{"gateway.invalid"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's own certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// RequireClients requires certificates of clients.
func RequireClients(cfg *tls.Config, c *gatewayplan.ClientAuth) error {
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM([]byte(c.CA)) {
		return errors.New("the CA for clients cannot be read")
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	if c.Fallback {
		cfg.ClientAuth = tls.RequestClientCert
	}
	return nil
}
