// Package tokens issues and verifies the tokens of service accounts: ES256-signed JWTs with a
// limited lifetime, bound to the account and usually to one pod, secret, or node. Tokens in a
// Secret are valid as long as it exists.
//
// The API server drives it: it serves the token subresource of service accounts, authenticates each
// bearer token, and publishes the public key. The package stores nothing: a token is valid if it is
// signed by the key, has not expired, and the objects that it is bound to exist with the same UID.
// It never logs a token.
//
// Contract: docs/spec/pod-lifecycle.md.
package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/apiserver/admission"
)

// DefaultIssuer is the issuer when none is configured.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Config is what the token service needs.
type Config struct {
	// Issuer is the URL in the iss claim; DefaultIssuer if empty.
	Issuer string
	// Audiences are those of the API server itself; the issuer if empty. A request without
	// audiences gets the first.
	Audiences []string
	// Key signs and verifies (P-256).
	Key *ecdsa.PrivateKey
	// JWKSURI is where clients outside find the public key; below the issuer if empty.
	JWKSURI string
	// Reader reads the bound objects.
	Reader admission.Reader
	// Used, if not nil, is called for the first use in a day (UTC, as 2006-01-02) of the token in a
	// Secret. The request waits for it.
	Used func(ctx context.Context, secret *corev1.Secret, day string)
	// Now is the clock; time.Now if nil.
	Now func() time.Time
}

// Service issues and verifies tokens. It has no state and is safe for concurrent use.
type Service struct {
	issuer    string
	audiences []string
	jwksURI   string
	key       *ecdsa.PrivateKey
	keyID     string
	reader    admission.Reader
	used      func(ctx context.Context, secret *corev1.Secret, day string)
	now       func() time.Time
}

// New creates the token service.
func New(c Config) (*Service, error) {
	if c.Key == nil || c.Key.Curve != elliptic.P256() {
		return nil, errors.New("make the service account token service: the signing key must be ECDSA P-256")
	}
	spki, err := x509.MarshalPKIXPublicKey(&c.Key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("make the service account token service: %w", err)
	}
	sum := sha256.Sum256(spki)
	s := &Service{
		issuer: c.Issuer, audiences: c.Audiences, jwksURI: c.JWKSURI, key: c.Key, reader: c.Reader, used: c.Used,
		now:   c.Now,
		keyID: base64.RawURLEncoding.EncodeToString(sum[:]),
	}
	if s.issuer == "" {
		s.issuer = DefaultIssuer
	}
	if len(s.audiences) == 0 {
		s.audiences = []string{s.issuer}
	}
	if s.jwksURI == "" {
		s.jwksURI = s.issuer + jwksPath
	}
	if s.now == nil {
		s.now = time.Now
	}
	return s, nil
}

// claims are the contents of a token.
type claims struct {
	jwt.RegisteredClaims
	Kubernetes bound `json:"kubernetes.io"`
}

// bound is what a token is bound to.
type bound struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	ServiceAccount ref              `json:"serviceaccount"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

type ref struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid,omitempty"`
}

// Audiences are those of tokens that the API server accepts.
func (s *Service) Audiences() []string { return s.audiences }

func (s *Service) sign(c jwt.Claims) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodES256, c)
	delete(t.Header, "typ")
	t.Header["kid"] = s.keyID
	signed, err := t.SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign a service account token: %w", err)
	}
	return signed, nil
}
