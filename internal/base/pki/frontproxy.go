package pki

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// FrontProxyName is the common name of the certificate with which the API server proxies requests, with the user in
// headers, to an aggregated API server.
const FrontProxyName = "front-proxy-client"

// FrontProxy is the CA and client certificate for requests that the API server proxies, with the
// user's name in headers.
type FrontProxy struct {
	CAPEM []byte
	*Leaf
}

// FrontProxy returns the CA and the client certificate for proxied requests. It is a separate CA:
// the owner of one of its certificates can impersonate any user. The files are created at the first
// call.
func (p *PKI) FrontProxy(now time.Time) (*FrontProxy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frontProxy != nil {
		return p.frontProxy, nil
	}
	const name = "front-proxy"
	dir := filepath.Join(p.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the key directory: %w", err)
	}
	ca, err := openAuthority(dir, now)
	if err != nil {
		return nil, fmt.Errorf("front proxy: %w", err)
	}
	l := &Leaf{file: filepath.Join(name, "client"), request: Request{CommonName: FrontProxyName}}
	if err := ca.open(l, p.dir, now); err != nil {
		return nil, fmt.Errorf("front proxy: %w", err)
	}
	p.leaves = append(p.leaves, issued{l, ca})
	p.frontProxy = &FrontProxy{CAPEM: ca.pem, Leaf: l}
	return p.frontProxy, nil
}
