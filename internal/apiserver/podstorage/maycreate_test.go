package podstorage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	ownadmission "carob/internal/apiserver/admission"
)

// verbs allows these verbs for everybody and records its requests.
type verbs struct {
	allowed  map[string]bool
	requests []string
}

func (v *verbs) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	v.requests = append(v.requests, fmt.Sprintf("%s %s/%s %s", a.GetVerb(),
		a.GetResource(), a.GetSubresource(), a.GetName()))
	if v.allowed[a.GetVerb()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "not allowed", nil
}

func requestContext(t *testing.T, verb, resource, subresource string) context.Context {
	ctx := apirequest.WithNamespace(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"}), "ns")
	return apirequest.WithRequestInfo(ctx,
		&apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: resource,
			Subresource: subresource, Name: "n", Namespace: "ns"})
}

// A user who may only read pods/exec and similar subresources cannot start a stream with a GET.
func TestStreamsNeedCreate(t *testing.T) {
	for sub, options := range map[string]runtime.Object{
		"exec":   &corev1.PodExecOptions{Command: []string{"sh"}, Stdout: true},
		"attach": &corev1.PodAttachOptions{Stdout: true}, "portforward": &corev1.PodPortForwardOptions{},
	} {
		v := &verbs{allowed: map[string]bool{"get": true}}
		_, s := open(t)
		s.Resources["pods/exec"].(*execREST).create.authorizer = v
		s.Resources["pods/attach"].(*attachREST).create.authorizer = v
		s.Resources["pods/portforward"].(*portForwardREST).create.authorizer = v
		c := s.Resources["pods/"+sub].(rest.Connecter)
		if _, err := c.Connect(requestContext(t, "get", "pods", sub), "n", options, nil); !apierrors.IsForbidden(err) {
			t.Errorf("%s by who may get: %v", sub, err)
		}
		if len(v.requests) != 1 || v.requests[0] != "create pods/"+sub+" n" {
			t.Errorf("%s: requested %q", sub, v.requests)
		}
		if _, err := c.Connect(requestContext(t, "create", "pods", sub), "n", options,
			nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s by a POST that was let through: %v", sub, err)
		}
		v.allowed["create"] = true
		if _, err := c.Connect(requestContext(t, "get", "pods", sub), "n", options, nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s by who may create: %v", sub, err)
		}
		if _, err := c.Connect(t.Context(), "n", options, nil); !apierrors.IsInternalError(err) {
			t.Errorf("%s without a request: %v", sub, err)
		}
	}
}

// nodeReader knows one node with an agent at an address.
type nodeReader struct {
	ownadmission.Reader
	node *corev1.Node
}

func (r nodeReader) Get(context.Context, schema.GroupResource, string, string) (runtime.Object, error) {
	return r.node, nil
}

// A user with the verb get on nodes/proxy can read from the agent; a GET with an upgrade, with
// which exec starts, is not a read, whatever its path.
func TestNodeProxyUpgradesNeedCreate(t *testing.T) {
	reached := 0
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached++
		w.WriteHeader(http.StatusTeapot)
	}))
	defer agent.Close()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	g := newAgents(NodeAgents{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", agent.Listener.Addr().String())
	}}, nodeReader{node: node})
	v := &verbs{allowed: map[string]bool{}}
	r := &nodeProxyREST{agents: g, create: creator{v}}
	for _, tc := range []struct {
		verb, path, upgrade string
		allowed             bool
		refused             bool
	}{
		{"get", "exec/ns/p/c", "websocket", false, true},
		{"get", "//exec/ns/p/c", "WebSocket", false, true},
		{"get", "attach/ns/p/c", "SPDY/3.1", false, true},
		{"get", "anything", "h2c", false, true},
		{"get", "exec/ns/p/c", "websocket", true, false},
		{"create", "exec/ns/p/c", "websocket", false, false},
		{"get", "stats/summary", "", false, false},
		{"get", "exec/ns/p/c", "", false, false}, // the agent rejects it: it has no effect
	} {
		v.allowed["create"] = tc.allowed
		before, answers := reached, &proxyErrors{}
		h, err := r.Connect(requestContext(t, tc.verb, "nodes", "proxy"), "n", &corev1.NodeProxyOptions{Path: tc.path},
			answers)
		if err != nil {
			t.Fatal(err)
		}
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			h.ServeHTTP(w, req.WithContext(requestContext(t, tc.verb, "nodes", "proxy")))
		}))
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/x?command=id", nil)
		if tc.upgrade != "" {
			req.Header.Set("Connection", "keep-alive, Upgrade")
			req.Header.Set("Upgrade", tc.upgrade)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		front.Close()
		if tc.refused != (reached == before) || tc.refused != apierrors.IsForbidden(answers.err) {
			t.Errorf("%+v: the agent was reached %d times, %v", tc, reached-before, answers.err)
		}
	}
}
