package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// NewAuthenticator returns the authenticator of requests from the network:
// client certificates signed by the CA, then tokens (nil for none). A credential
// that is wrong is refused and never turned into the anonymous user, who may
// reach only the paths that say whether the server lives and its version.
func NewAuthenticator(pool *x509.CertPool, tokens authenticator.Token) authenticator.Request {
	all := []authenticator.Request{newCertificates(pool)}
	if tokens != nil {
		all = append(all, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	}
	return union.NewFailOnError(group.NewAuthenticatedGroupAdder(union.NewFailOnError(all...)), authenticator.RequestFunc(anonymous))
}

// anonymous accepts requests without a credential to the public paths.
func anonymous(r *http.Request) (*authenticator.Response, bool, error) {
	switch r.URL.Path {
	case "/healthz", "/readyz", "/livez", "/version", "/version/":
	default:
		return nil, false, nil
	}
	if r.Header.Get("Authorization") != "" {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
}

const (
	// A verdict is remembered that long; a chain check costs an ECDSA verification.
	verdictLife = time.Minute
	maxVerdicts = 4096
)

// certificates authenticates by client certificate.
type certificates struct {
	opts x509.VerifyOptions

	mu       sync.Mutex
	verdicts map[[sha256.Size]byte]verdict
}

type verdict struct {
	response *authenticator.Response
	until    time.Time
}

func newCertificates(pool *x509.CertPool) *certificates {
	return &certificates{opts: x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, verdicts: map[[sha256.Size]byte]verdict{}}
}

// AuthenticateRequest implements authenticator.Request.
func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	id, now := sha256.Sum256(leaf.Raw), time.Now()
	c.mu.Lock()
	v, ok := c.verdicts[id]
	c.mu.Unlock()
	if ok && now.Before(v.until) {
		return v.response, true, nil
	}
	opts := c.opts
	opts.CurrentTime = now
	if len(r.TLS.PeerCertificates) > 1 {
		opts.Intermediates = x509.NewCertPool()
		for _, i := range r.TLS.PeerCertificates[1:] {
			opts.Intermediates.AddCert(i)
		}
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return nil, false, err
	}
	response, ok, err := x509request.CommonNameUserConversion(chains[0])
	if err != nil || !ok {
		return nil, false, errors.Join(errors.New("the client certificate names no user"), err)
	}
	until := now.Add(verdictLife)
	if leaf.NotAfter.Before(until) {
		until = leaf.NotAfter
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verdicts) >= maxVerdicts {
		clear(c.verdicts)
	}
	c.verdicts[id] = verdict{response, until}
	return response, true, nil
}
