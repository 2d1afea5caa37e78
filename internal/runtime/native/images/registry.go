package images

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// hosts configures where the images of a registry are fetched from, with which certificates and
// credentials.
func (s *Store) hosts(ctx context.Context, named reference.Named, auth *cri.AuthConfig) docker.RegistryHosts {
	opts := config.HostOptions{
		Credentials: func(host string) (string, string, error) { return credentials(auth, host) },
		UpdateClient: func(c *http.Client) error {
			c.Transport = boundedAnswers{c.Transport}
			return nil
		},
	}
	if s.cfg.RegistryConfig != "" {
		opts.HostDir = config.HostDirFromRoot(s.cfg.RegistryConfig)
	}
	find := config.ConfigureHosts(ctx, opts)
	token := auth.GetRegistryToken()
	return func(host string) ([]docker.RegistryHost, error) {
		hosts, err := find(host)
		for i := range hosts {
			if h := hosts[i]; h.Host == "" || h.Scheme != "http" && h.Scheme != "https" {
				return nil, fmt.Errorf(
					"hosts.toml of %s in %s names an unusable server: %q is not an address of http or https",
					host, s.cfg.RegistryConfig, h.Scheme+"://"+h.Host+h.Path)
			}
			if token == "" {
				continue
			}
			// A bearer token is for the registry itself, not for its mirrors.
			if sameRegistry(hosts[i].Host, reference.Domain(named)) {
				hosts[i].Authorizer = nil
				header := hosts[i].Header.Clone()
				if header == nil {
					header = http.Header{}
				}
				header.Set("Authorization", "Bearer "+token)
				hosts[i].Header = header
			}
		}
		return hosts, err
	}
}

// maxAnswer limits what is read of a token server's answer.
const maxAnswer = 1 << 20

// boundedAnswers limits the answers to requests without an Accept header, which are those for
// tokens and which the library reads into memory as they come, and manifests, which it reads to
// their end if their size is not announced.
type boundedAnswers struct{ http.RoundTripper }

func (b boundedAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	rt := b.RoundTripper
	if rt == nil {
		rt = http.DefaultTransport
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return resp, err
	}
	bound := int64(math.MaxInt64)
	switch {
	case req.Header.Get("Accept") == "":
		bound = maxAnswer
	case strings.Contains(req.URL.Path, "/manifests/"):
		bound = maxDocument + 1
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, bound), resp.Body}
	return resp, nil
}

func sameRegistry(host, domain string) bool {
	if domain == "docker.io" {
		return host == "registry-1.docker.io" || host == "index.docker.io" || host == domain
	}
	return host == domain
}

// credentials returns user and secret for a host; an identity token is a secret without a user.
// Credentials for another server are not sent to the host.
func credentials(auth *cri.AuthConfig, host string) (user, secret string, _ error) {
	if auth == nil {
		return "", "", nil
	}
	if server := auth.GetServerAddress(); server != "" {
		if !strings.Contains(server, "://") {
			server = "https://" + server
		}
		u, err := url.Parse(server)
		if err != nil {
			return "", "", fmt.Errorf("server address of the credentials: %w", err)
		}
		if u.Host != host && !(sameRegistry(u.Host, "docker.io") && sameRegistry(host, "docker.io")) {
			return "", "", nil
		}
	}
	switch {
	case auth.GetUsername() != "":
		return auth.Username, auth.Password, nil
	case auth.GetIdentityToken() != "":
		return "", auth.IdentityToken, nil
	case auth.GetAuth() != "":
		plain, err := base64.StdEncoding.DecodeString(auth.Auth)
		if err != nil {
			return "", "", fmt.Errorf("credentials are not base64: %w", err)
		}
		user, secret, ok := strings.Cut(string(plain), ":")
		if !ok {
			return "", "", errors.New("credentials have no colon between user and password")
		}
		return user, strings.Trim(secret, "\x00"), nil
	}
	return "", "", nil
}

// pullError formats the error of a failed pull like containerd and adds a code.
func pullError(ref string, err error) error {
	text := fmt.Sprintf("failed to pull and unpack image %q: %v", ref, err)
	var reply remoteerrors.ErrUnexpectedStatus
	var network net.Error
	var dns *net.DNSError
	var full *noSpace
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, text)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, text)
	case errdefs.IsNotFound(err):
		return status.Error(codes.NotFound, text)
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return status.Error(codes.PermissionDenied, text)
	case errors.As(err, &reply):
		switch {
		case reply.StatusCode == http.StatusUnauthorized || reply.StatusCode == http.StatusForbidden:
			return status.Error(codes.PermissionDenied, text)
		case reply.StatusCode == http.StatusTooManyRequests:
			return status.Error(codes.ResourceExhausted, text)
		case reply.StatusCode >= 500:
			return unavailable(text)
		}
	case errors.As(err, &full), errors.Is(err, syscall.ENOSPC):
		return status.Error(codes.ResourceExhausted, text)
	case errors.Is(err, errStalled), errors.As(err, &dns), errors.As(err, &network):
		return unavailable(text)
	}
	return status.Error(codes.Unknown, text)
}

// unavailable is the error by which the agent recognizes a registry that does not respond (L3.110).
func unavailable(text string) error {
	return status.Error(codes.Unavailable, crierrors.ErrRegistryUnavailable.Error()+": "+text)
}

// rpcError adds a code to any other error.
func rpcError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	return errgrpc.ToGRPC(err)
}

// isFullName reports whether a name has more than a tag.
func isFullName(n string) bool { return strings.ContainsAny(n, "/:") }
