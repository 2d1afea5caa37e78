package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"carob/internal/base/atomicfile"
)

// Leaf is one of carob's own certificates, which is renewed before it expires. Servers and clients
// get it again for each handshake.
type Leaf struct {
	file    string // without extension, in the key directory
	request Request
	pair    atomic.Pointer[KeyPair]
}

// Pair returns the current certificate and key.
func (l *Leaf) Pair() KeyPair { return *l.pair.Load() }

// Certificate returns the current certificate; it never fails.
func (l *Leaf) Certificate() (*tls.Certificate, error) { return &l.pair.Load().TLS, nil }

// Serve is for GetCertificate of a server's tls.Config.
func (l *Leaf) Serve(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.Certificate() }

// Present is for GetClientCertificate of a client's tls.Config.
func (l *Leaf) Present(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return l.Certificate() }

// Renew renews the certificates that are about to expire, and returns them. One that cannot be
// written is used anyway, and the error reports it.
func (p *PKI) Renew(now time.Time) (renewed []*Leaf, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, l := range p.leaves {
		if lasts(l.Pair().TLS.Leaf, now) {
			continue
		}
		changed, err := l.issuer.renew(l.Leaf, p.dir, now)
		if changed {
			renewed = append(renewed, l.Leaf)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("renew certificate %s: %w", l.file, err))
		}
	}
	return renewed, errors.Join(errs...)
}

// Rename issues the servers' certificates again if the names and addresses of cfg differ from
// theirs, because the machine's addresses have changed. The rest of cfg must be the same as for
// Open.
func (p *PKI) Rename(cfg Config, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for l, hosts := range map[*Leaf][]string{p.Serving: cfg.serverHosts(), p.NodeServing: cfg.nodeHosts()} {
		request := l.request
		if request.Hosts = hosts; p.ca.fits(l.Pair().TLS.Leaf, request, now) {
			continue
		}
		l.request = request
		if _, err := p.ca.renew(l, p.dir, now); err != nil {
			errs = append(errs, fmt.Errorf("issue certificate %s for the new addresses: %w", l.file, err))
		}
	}
	return errors.Join(errs...)
}

// issued is a leaf certificate with its CA.
type issued struct {
	*Leaf
	issuer *authority
}

// open loads the leaf from its files, or issues it if they do not match.
func (a *authority) open(l *Leaf, dir string, now time.Time) error {
	base := filepath.Join(dir, l.file)
	if pair, err := readPair(base+".crt", base+".key"); err == nil && a.fits(pair.TLS.Leaf, l.request, now) {
		l.pair.Store(&pair)
		return nil
	}
	_, err := a.renew(l, dir, now)
	return err
}

// renew issues the leaf again; changed reports that there is a new one, even if it could not be
// written.
func (a *authority) renew(l *Leaf, dir string, now time.Time) (changed bool, err error) {
	pair, err := a.issue(l.request, now)
	if err != nil {
		return false, err
	}
	l.pair.Store(&pair)
	base := filepath.Join(dir, l.file)
	// A pair that a crash left incomplete does not parse and is issued again, so there is no need
	// to wait for the disk.
	if err := atomicfile.WriteUnsynced(base+".key", pair.KeyPEM, 0o600); err != nil {
		return true, err
	}
	return true, atomicfile.WriteUnsynced(base+".crt", pair.CertPEM, 0o600)
}

// lasts reports whether c is valid for some time.
func lasts(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotBefore) && now.Add(renewBefore).Before(c.NotAfter)
}

// fits reports whether c matches r and is valid for long enough.
func (a *authority) fits(c *x509.Certificate, r Request, now time.Time) bool {
	dns, ips := hosts(r.Hosts)
	return lasts(c, now) && c.CheckSignatureFrom(a.cert) == nil &&
		c.Subject.CommonName == r.CommonName && slices.Equal(c.Subject.Organization, r.Organizations) &&
		slices.Equal(c.DNSNames, dns) && slices.EqualFunc(c.IPAddresses, ips, net.IP.Equal)
}
