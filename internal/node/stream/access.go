package stream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
)

// access authenticates and authorizes clients other than the API server, as the kubelet's webhook mode does: it accepts
// client certificates of the cluster's authority and tokens that the API authenticates, and allows what RBAC allows
// their users for the subresources of this node.
type access struct {
	node   string
	tokens authenticator.Request
	rights authorizer.Authorizer
}

// How long results of the API are cached (the kubelet's defaults), and the timeout of a request.
const (
	allowedTTL    = 5 * time.Minute
	deniedTTL     = 30 * time.Second
	reviewTimeout = 10 * time.Second
)

func newAccess(node string, client kubernetes.Interface) (*access, error) {
	backoff := &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	// Reviews are calls within the process: they need no cache, and a token that is revoked
	// ends at once.
	tokens, err := webhook.NewFromInterface(client.AuthenticationV1(), nil, *backoff, reviewTimeout,
		webhook.AuthenticatorMetrics{
			RecordRequestTotal:   func(context.Context, string) {},
			RecordRequestLatency: func(context.Context, string, float64) {},
		})
	if err != nil {
		return nil, fmt.Errorf("node server: authentication: %w", err)
	}
	rights, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: allowedTTL, DenyCacheTTL: deniedTTL,
		WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("node server: authorization: %w", err)
	}
	return &access{node: node, tokens: bearertoken.New(tokens), rights: rights}, nil
}

// errUnknown is the error of a client without valid credentials.
var errUnknown = errors.New("no client certificate and no token")

// who is the user of a request: that of the verified certificate, otherwise of the token. An unverified certificate is
// ignored.
func (a *access) who(req *http.Request) (user.Info, error) {
	if req.TLS != nil && len(req.TLS.VerifiedChains) > 0 {
		subject := req.TLS.VerifiedChains[0][0].Subject
		if subject.CommonName == "" {
			return nil, errUnknown
		}
		groups := slices.Clone(subject.Organization)
		return &user.DefaultInfo{Name: subject.CommonName, Groups: append(groups, user.AllAuthenticated)}, nil
	}
	answer, ok, err := a.tokens.AuthenticateRequest(req)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errUnknown
	}
	return answer.User, nil
}

// verbs maps HTTP methods to verbs of the API; other methods have no verb, so that only users
// with all verbs may use them.
var verbs = map[string]string{"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

// fine and coarse map paths to subresources of a node. Access to the fine one is checked first, then to the coarse one,
// which is proxy if a path has none.
var (
	fine = []struct{ path, subresource string }{
		{"/pods", "pods"}, {"/runningpods", "pods"}, {"/healthz", "healthz"}, {"/configz", "configz"},
	}
	coarse = []struct{ path, subresource string }{
		{"/stats", "stats"}, {"/metrics", "metrics"}, {"/logs", "log"}, {"/checkpoint", "checkpoint"},
		{"/statusz", "statusz"}, {"/flagz", "configz"},
	}
)

// subresources are the subresources of a path; one of them must be allowed.
func subresources(path string) []string {
	below := func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
	var list []string
	for _, f := range fine {
		if below(f.path) {
			list = append(list, f.subresource)
			break
		}
	}
	for _, c := range coarse {
		if below(c.path) {
			return append(list, c.subresource)
		}
	}
	return append(list, "proxy")
}

// guard rejects requests that the user may not make, with the kubelet's messages.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		who, err := a.who(req)
		if err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		list, verb := subresources(req.URL.Path), verbs[req.Method]
		for _, sub := range list {
			decision, _, err := a.rights.Authorize(req.Context(), authorizer.AttributesRecord{
				User: who, Verb: verb, APIVersion: "v1", Resource: "nodes", Subresource: sub, Name: a.node,
				ResourceRequest: true, Path: req.URL.Path,
			})
			if err != nil {
				http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)",
					who.GetName(), verb, sub), http.StatusInternalServerError)
				return
			}
			if decision == authorizer.DecisionAllow {
				next.ServeHTTP(w, req)
				return
			}
		}
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", who.GetName(),
			verb, list), http.StatusForbidden)
	})
}
