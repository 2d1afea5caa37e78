package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"carob/internal/base/atomicfile"
	"carob/internal/base/errkind"
)

const (
	caLife = 10 * 365 * 24 * time.Hour
	// At a start, a CA is signed again if it expires within this time: longer than any process
	// runs, and long enough for every client to receive the new one.
	caRenewBefore = 2 * 365 * 24 * time.Hour
)

// authority is a CA certificate with its key.
type authority struct {
	cert *x509.Certificate
	pem  []byte
	key  *ecdsa.PrivateKey
}

// openAuthority loads the CA in dir, or creates it. One that is about to expire gets a new
// certificate for the same key and name, so that certificates it has signed stay valid, also for clients that have only
// the old CA certificate.
func openAuthority(dir string, now time.Time) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	pair, err := readPair(certFile, keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		// The certificate is written last: without it, all other files are useless.
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create the CA's key: %w", err)
		}
		keyPEM, err := encodeKey(key)
		if err != nil {
			return nil, err
		}
		if err := atomicfile.Write(keyFile, keyPEM, 0o600); err != nil {
			return nil, err
		}
		return newAuthority(key, certFile, now)
	}
	if err != nil {
		return nil, errkind.Errorf(errkind.Corrupt, "read the cluster's CA: %w", err)
	}
	key, ok := pair.TLS.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.TLS.Leaf.IsCA {
		return nil, errkind.Errorf(errkind.Corrupt, "read the cluster's CA: %s is not a CA with an ECDSA key", certFile)
	}
	if c := pair.TLS.Leaf; now.Before(c.NotBefore) || now.Add(caRenewBefore).After(c.NotAfter) {
		return newAuthority(key, certFile, now)
	}
	return &authority{cert: pair.TLS.Leaf, pem: pair.CertPEM, key: key}, nil
}

// newAuthority signs a CA certificate with its own key, and writes it.
func newAuthority(key *ecdsa.PrivateKey, certFile string, now time.Time) (*authority, error) {
	t, err := template("carob-ca", now, caLife)
	if err != nil {
		return nil, err
	}
	t.IsCA = true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	a := &authority{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("parse the CA certificate: %w", err)
	}
	return a, atomicfile.Write(certFile, a.pem, 0o600)
}

// issue creates a new key and a certificate for it, valid from now.
func (a *authority) issue(r Request, now time.Time) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("create a key for %s: %w", r.CommonName, err)
	}
	t, err := template(r.CommonName, now, r.Life)
	if err != nil {
		return KeyPair{}, err
	}
	t.Subject.Organization = r.Organizations
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if r.Server {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	t.DNSNames, t.IPAddresses = hosts(r.Hosts)
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign the certificate of %s: %w", r.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return newKeyPair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM)
}
