package gateway

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

	"carob/internal/core/gatewayplan"
)

// certificates are the certificates of one port, by host name.
type certificates struct {
	exact, wild map[string][]*tls.Certificate
	all         []*tls.Certificate
	fallback    *tls.Certificate
}

func newCertificates() *certificates {
	return &certificates{exact: map[string][]*tls.Certificate{}, wild: map[string][]*tls.Certificate{}}
}

func (c *certificates) add(host string, cert *tls.Certificate) {
	suffix, wild := strings.CutPrefix(host, "*")
	switch {
	case host == "":
		c.all = append(c.all, cert)
	case wild:
		c.wild[suffix] = append(c.wild[suffix], cert)
	default:
		c.exact[host] = append(c.exact[host], cert)
	}
}

// find returns the certificate for a connection: that of the most specific name, of several the first that the client
// can verify.
func (c *certificates) find(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	candidates := c.candidates(strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")))
	for _, cert := range candidates {
		if hello.SupportsCertificate(cert) == nil {
			return cert, nil
		}
	}
	switch {
	case len(candidates) > 0:
		return candidates[0], nil
	case c.fallback != nil:
		return c.fallback, nil
	}
	return nil, errors.New("no listener has this name")
}

// candidates are the certificates of the most specific name that has some.
func (c *certificates) candidates(name string) []*tls.Certificate {
	out := c.exact[name]
	for rest := name; out == nil; {
		at := strings.IndexByte(rest, '.')
		if at < 0 {
			return c.all
		}
		out = c.wild[rest[at:]]
		rest = rest[at+1:]
	}
	return out
}

// readCertificate reads a Secret of type kubernetes.io/tls.
func readCertificate(s *corev1.Secret) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("its certificate and key cannot be used: %w", err)
	}
	return &pair, nil
}

// readCAs checks a ConfigMap with CAs.
func readCAs(m *corev1.ConfigMap) gatewayplan.Material {
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
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return gatewayplan.Material{Problem: "its key ca.crt has a certificate that cannot be read"}
		}
	}
}

// selfSigned makes the certificate for names that no Ingress has one for (N6.15).
func selfSigned(now time.Time) (*tls.Certificate, error) {
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

// requireClients asks clients for certificates.
func requireClients(cfg *tls.Config, c *gatewayplan.ClientAuth) error {
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
