package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	anonymousrequest "k8s.io/apiserver/pkg/authentication/request/anonymous"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	authnmetrics "k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"carob/internal/base/errkind"
)

// StructuredConfig configures whom to trust in addition to the cluster's own CA.
type StructuredConfig struct {
	// File holds an AuthenticationConfiguration (apiserver.config.k8s.io).
	File string
	// OwnIssuer is the issuer of service account tokens; no other issuer may have this name. It is
	// also the audience in a TokenReview of an external token.
	OwnIssuer string
}

// Structured authenticates by the user's configuration file: JWTs of external issuers, and anonymous
// requests if the file allows them. Nil has no opinion about a token, and the default about
// anonymous requests.
type Structured struct {
	cfg     StructuredConfig
	current atomic.Pointer[generation]
	follower
}

// generation is one version of the file.
type generation struct {
	data      string
	issuers   []*issuer
	tokens    authenticator.Token
	anonymous authenticator.Request
}

// issuer is one JWT authenticator. If the next generation has it unchanged, it is kept with the
// keys that it fetched.
type issuer struct {
	cfg apiserver.JWTAuthenticator
	oidc.AuthenticatorTokenWithHealthCheck
	// end stops fetching keys.
	end context.CancelFunc
}

// serverID identifies the API server in labels of metrics.
const serverID = "carob"

// NewStructured reads the file; the result is nil if there is none. Keys are fetched from issuers
// in the background until ctx ends: one that does not answer yet is not an error, its tokens are
// rejected meanwhile.
func NewStructured(ctx context.Context, cfg StructuredConfig) (*Structured, error) {
	if cfg.File == "" {
		return nil, nil
	}
	s := &Structured{cfg: cfg}
	data, err := os.ReadFile(cfg.File)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "read the authentication configuration: %w", err)
	}
	g, err := s.generation(ctx, string(data), nil)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "authentication configuration %s: %w", cfg.File, err)
	}
	authnmetrics.RegisterMetrics()
	authnmetrics.RecordAuthenticationConfigLastConfigInfo(serverID, g.data)
	s.current.Store(g)
	return s, nil
}

// generation validates the content of the file and creates its issuers, or takes them from the
// previous generation.
func (s *Structured) generation(ctx context.Context, data string, before *generation) (_ *generation, err error) {
	cfg, err := decode(data)
	if err != nil {
		return nil, err
	}
	compiler, own := authenticationcel.NewDefaultCompiler(), []string{s.cfg.OwnIssuer}
	if err := validation.ValidateAuthenticationConfiguration(compiler, cfg, own).ToAggregate(); err != nil {
		return nil, err
	}
	g := &generation{data: data, anonymous: anonymousBy(cfg.Anonymous)}
	defer func() {
		if err != nil {
			g.end(before)
		}
	}()
	var tokens []authenticator.Token
	for _, jwt := range cfg.JWT {
		i := before.issuer(jwt)
		if i == nil {
			if i, err = newIssuer(ctx, jwt, compiler, own); err != nil {
				return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
			}
		}
		g.issuers = append(g.issuers, i)
		tokens = append(tokens, i)
	}
	g.tokens = authenticator.WrapAudienceAgnosticToken(own, tokenunion.NewFailOnError(tokens...))
	return g, nil
}

func newIssuer(ctx context.Context, jwt apiserver.JWTAuthenticator, compiler authenticationcel.Compiler,
	own []string) (*issuer, error) {
	ctx, end := context.WithCancel(ctx)
	opts := oidc.Options{JWTAuthenticator: jwt, Compiler: compiler, DisallowedIssuers: own,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(), APIServerID: serverID}
	if ca := jwt.Issuer.CertificateAuthority; ca != "" {
		opts.CAContentProvider = authority(ca)
	}
	a, err := oidc.New(ctx, opts)
	if err != nil {
		end()
		return nil, err
	}
	return &issuer{cfg: jwt, AuthenticatorTokenWithHealthCheck: a, end: end}, nil
}

// authority is the PEM of the CA of an issuer's certificate.
type authority string

func (a authority) CurrentCABundleContent() []byte { return []byte(a) }

// decode parses an AuthenticationConfiguration of any supported version; an unknown field is an error.
func decode(data string) (*apiserver.AuthenticationConfiguration, error) {
	if strings.TrimSpace(data) == "" {
		return nil, errors.New("the file is empty")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(),
		[]byte(data))
	if err != nil {
		return nil, err
	}
	cfg, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it holds an object of another kind (%T), an AuthenticationConfiguration is needed", obj)
	}
	return cfg, nil
}

// issuer returns the one with exactly that configuration, nil if there is none.
func (g *generation) issuer(cfg apiserver.JWTAuthenticator) *issuer {
	if g == nil {
		return nil
	}
	for _, i := range g.issuers {
		if reflect.DeepEqual(i.cfg, cfg) {
			return i
		}
	}
	return nil
}

// end stops the issuers that other, which may be nil, does not share.
func (g *generation) end(other *generation) {
	for _, i := range g.issuers {
		if other.issuer(i.cfg) != i {
			i.end()
		}
	}
}

// AuthenticateToken implements authenticator.Token for the tokens of external issuers. It has no
// opinion about other tokens.
func (s *Structured) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if s == nil {
		return nil, false, nil
	}
	if _, ok := authenticator.AudiencesFrom(ctx); !ok {
		ctx = authenticator.WithAudiences(ctx, authenticator.Audiences{s.cfg.OwnIssuer})
	}
	return s.current.Load().tokens.AuthenticateToken(ctx, token)
}

// AuthenticateRequest implements authenticator.Request for requests without a credential.
func (s *Structured) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.Header.Get("Authorization") != "" {
		return nil, false, nil // of a kind that nothing here accepts
	}
	if s == nil {
		return public.AuthenticateRequest(r)
	}
	return s.current.Load().anonymous.AuthenticateRequest(r)
}

// public lets anonymous requests read the health and the version of the server.
var public = anonymousrequest.NewAuthenticator([]apiserver.AnonymousAuthCondition{{Path: "/healthz"}, {Path: "/readyz"},
	{Path: "/livez"}, {Path: "/version"}, {Path: "/version/"}})

func anonymousBy(cfg *apiserver.AnonymousAuthConfig) authenticator.Request {
	switch {
	case cfg == nil:
		return public
	case !cfg.Enabled:
		return authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return nil, false, nil
		})
	}
	return anonymousrequest.NewAuthenticator(cfg.Conditions)
}
