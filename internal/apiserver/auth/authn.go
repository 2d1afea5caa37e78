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
)

// NewAuthenticator returns the authenticator of requests from the network: client certificates
// signed by the CA, then tokens (nil for none). An invalid credential is rejected and never treated
// as anonymous; structured (nil for the default) decides about anonymous requests.
func NewAuthenticator(pool *x509.CertPool, tokens authenticator.Token, structured *Structured) authenticator.Request {
	all := []authenticator.Request{newCertificates(pool)}
	if tokens != nil {
		all = append(all, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	}
	return union.NewFailOnError(group.NewAuthenticatedGroupAdder(union.NewFailOnError(all...)), structured)
}

const (
	// How long a result is cached; a chain check costs an ECDSA verification.
	verdictLife = time.Minute
	maxVerdicts = 4096
)

// certificates authenticates by client certificate.
type certificates struct {
	verify authenticator.Request

	mu       sync.Mutex
	verdicts map[[sha256.Size]byte]verdict
}

type verdict struct {
	response *authenticator.Response
	until    time.Time
}

func newCertificates(pool *x509.CertPool) *certificates {
	opts := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	return &certificates{verify: x509request.New(opts, x509request.CommonNameUserConversion),
		verdicts: map[[sha256.Size]byte]verdict{}}
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
	response, ok, err := c.verify.AuthenticateRequest(r)
	if err != nil {
		return nil, false, err
	}
	if !ok {
		return nil, false, errors.New("the client certificate names no user")
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
