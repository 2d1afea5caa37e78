package podstorage

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/apiserver/endpoints"
)

// cached returns objects like the watch caches, by resource.
type cached map[string]runtime.Object

func (c cached) Get(_ context.Context, gr schema.GroupResource, _, name string) (runtime.Object, error) {
	if o, ok := c[gr.Resource]; ok && o.(metav1.Object).GetName() == name {
		return o, nil
	}
	return nil, apierrors.NewNotFound(gr, name)
}

func (c cached) Await(ctx context.Context, gr schema.GroupResource, namespace, name string,
	_ time.Duration) (runtime.Object, error) {
	return c.Get(ctx, gr, namespace, name)
}

func (c cached) List(_ context.Context, gr schema.GroupResource, _ string, fn func(runtime.Object) bool) error {
	if o, ok := c[gr.Resource]; ok {
		fn(o)
	}
	return nil
}

type failing struct{ t *testing.T }

func (f failing) Object(code int, _ runtime.Object) { f.t.Errorf("answered with an object, %d", code) }
func (f failing) Error(err error)                   { f.t.Error(err) }

func TestServiceProxy(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+" "+r.URL.RequestURI()+" "+string(body))
	})
	plain, secure := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	defer plain.Close()
	defer secure.Close()
	// The pod's address does not belong to this host; its ports lead to the servers.
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true}, //nolint:gosec // the test server's own
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := map[string]net.Listener{"192.0.2.7:8080": plain.Listener, "192.0.2.7:8443": secure.Listener}[addr]
			if to == nil {
				t.Errorf("dialed %s", addr)
				to = plain.Listener
			}
			var d net.Dialer
			return d.DialContext(ctx, network, to.Addr().String())
		}}
	defer transport.CloseIdleConnections()
	store := cached{
		"services": &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "tls", Port: 443}}}},
		"pods": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{PodIP: "192.0.2.7"}},
		"endpointslices": &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s-1", Namespace: "ns",
			Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}}},
			Ports: []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(8080))},
				{Name: new("tls"), Port: new(int32(8443))}}},
	}
	store["services"].(*corev1.Service).Namespace = "ns"
	r := &serviceProxyREST{&endpoints.Resolver{Reader: store}, transport}
	ctx := genericapirequest.WithNamespace(t.Context(), "ns")
	for _, tc := range []struct {
		id, method, path string
		code             int
		want             string
	}{
		{"s:80", "GET", "/", 200, "GET /?q=1 "},
		{"s:web", "POST", "/a/b/", 200, "POST /a/b/?q=1 body"},
		{"http:s:web", "PATCH", "", 200, "PATCH /?q=1 body"},
		{"https:s:tls", "DELETE", "/x", 200, "DELETE /x?q=1 "},
		{"https:s:443", "PUT", "/../x", 200, "PUT /x?q=1 body"},
		{"s:web", "GET", "", 301, ""},
		{"s:web", "HEAD", "", 301, ""},
	} {
		h, err := r.Connect(ctx, tc.id, &corev1.ServiceProxyOptions{Path: tc.path}, failing{t})
		if err != nil {
			t.Errorf("%s: %v", tc.id, err)
			continue
		}
		server := httptest.NewServer(h)
		var body io.Reader
		if tc.method == "POST" || tc.method == "PUT" || tc.method == "PATCH" {
			body = strings.NewReader("body")
		}
		req, err := http.NewRequestWithContext(t.Context(), tc.method,
			server.URL+"/api/v1/namespaces/ns/services/"+tc.id+"/proxy?q=1", body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.code || tc.code == 200 && string(got) != tc.want {
			t.Errorf("%s %s %s: %d %q", tc.method, tc.id, tc.path, resp.StatusCode, got)
		}
		server.Close()
	}
	for id, want := range map[string]func(error) bool{
		"s": apierrors.IsServiceUnavailable, "s:81": apierrors.IsServiceUnavailable, "other:80": apierrors.IsNotFound,
		"ftp:s:80": apierrors.IsBadRequest, "a:b:c:d": apierrors.IsBadRequest,
	} {
		if _, err := r.Connect(ctx, id, &corev1.ServiceProxyOptions{}, failing{t}); !want(err) {
			t.Errorf("%s: %v", id, err)
		}
	}
	// A forged status must not lead to this host.
	store["pods"].(*corev1.Pod).Status.PodIP = "127.0.0.1"
	store["endpointslices"].(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] = "127.0.0.1"
	if _, err := r.Connect(ctx, "s:80", &corev1.ServiceProxyOptions{}, failing{t}); !apierrors.IsBadRequest(err) {
		t.Errorf("loopback: %v", err)
	}
}
