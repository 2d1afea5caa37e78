package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
)

// Picker is the configuration for connections to an endpoint picker; nil: they have no TLS.
func Picker(p *gatewayplan.PoolPicker) (*tls.Config, error) {
	switch {
	case p.TLS != nil:
		return Backend(p.TLS)
	case p.Plain:
		return nil, nil
	}
	// Pickers create their own certificates (2.1), which are not verified unless a BackendTLSPolicy requires it.
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, nil
}

// Backend returns the TLS configuration for a backend. It fails for a CA or a certificate that cannot be read.
func Backend(b *httproute.BackendTLS) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: b.Name}
	if b.Insecure {
		cfg.InsecureSkipVerify = true // set by the annotation backend-protocol, as in ingress-nginx
		return cfg, nil
	}
	if b.CA != "" {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(b.CA)) {
			return nil, errors.New("the CA for a backend cannot be read")
		}
	}
	if b.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(b.Cert), []byte(b.Cert))
		if err != nil {
			return nil, fmt.Errorf("read the client certificate for a backend: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if b.SANs == "" {
		return cfg, nil
	}
	// The names that the certificate must have differ from the requested server name, so the chain is verified here.
	sans := strings.Split(strings.TrimSuffix(b.SANs, "\x00"), "\x00")
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			opts.Intermediates.AddCert(c)
		}
		leaf := s.PeerCertificates[0]
		if _, err := leaf.Verify(opts); err != nil {
			return err
		}
		if !slices.ContainsFunc(sans, func(san string) bool { return hasSAN(leaf, san) }) {
			return errors.New("the backend's certificate has none of the required names")
		}
		return nil
	}
	return cfg, nil
}

func hasSAN(c *x509.Certificate, san string) bool {
	if name, ok := strings.CutPrefix(san, "dns:"); ok {
		return c.VerifyHostname(name) == nil
	}
	uri, _ := strings.CutPrefix(san, "uri:")
	for _, u := range c.URIs {
		if u.String() == uri {
			return true
		}
	}
	return false
}
