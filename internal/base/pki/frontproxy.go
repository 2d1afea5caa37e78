package pki

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// FrontProxyName is the common name of the certificate with which the API server
// tells another API server who the user is.
const FrontProxyName = "front-proxy-client"

// FrontProxy returns the authority and the client certificate of requests that
// the API server passes on with the user's name in headers. It is an authority of
// its own: whoever holds a certificate of it may be anybody. The files are made when
// first asked for.
func (p *PKI) FrontProxy(now time.Time) (caPEM []byte, client KeyPair, err error) {
	dir := filepath.Join(p.dir, "front-proxy")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, KeyPair{}, fmt.Errorf("make the key directory: %w", err)
	}
	own := &PKI{}
	if err := own.openCA(dir, now); err != nil {
		return nil, KeyPair{}, fmt.Errorf("front proxy: %w", err)
	}
	client, err = own.openLeaf(filepath.Join(dir, "client"), Request{CommonName: FrontProxyName}, now)
	return own.CAPEM, client, err
}
