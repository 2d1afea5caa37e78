package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A rule's retry: codes, attempts, timeouts of attempts, connections that end without a response, and bodies.
func TestRetries(t *testing.T) {
	port := freePort(t)
	l := newStreamLab(t, gatewayv1.HTTPProtocolType, port)
	var requests atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		text, _ := io.ReadAll(r.Body)
		if n > 2 {
			fmt.Fprintf(w, "%d bytes", len(text))
			return
		}
		switch r.URL.Path {
		case "/500":
			w.WriteHeader(http.StatusInternalServerError)
		case "/404":
			w.WriteHeader(http.StatusNotFound)
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/late":
			<-r.Context().Done()
		}
	}))
	defer backend.Close()
	l.service("a", "", at(backend.URL, "pa"))
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}}
	route.Spec.ParentRefs = parent()
	rule := gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: toService("a", 1)}},
		Retry: &gatewayv1.HTTPRouteRetry{Attempts: new(2), Backoff: new(gatewayv1.Duration("1ms"))}}
	rule.Retry.Codes = []gatewayv1.HTTPRouteRetryStatusCode{500, 503}
	late := *rule.DeepCopy()
	late.Matches = []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Value: new("/late")}}}
	late.Timeouts = &gatewayv1.HTTPRouteTimeouts{BackendRequest: new(gatewayv1.Duration("20ms"))}
	late.Retry.Attempts = new(1000) // a slow machine needs some
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{rule, late}
	l.world.HTTPRoutes = []*gatewayv1.HTTPRoute{route}
	l.update()
	for _, c := range []struct {
		method, path string
		body         io.Reader
		requests     int64
		status       int
		text         string
	}{
		{"GET", "/500", nil, 3, 200, "0 bytes"}, {"POST", "/500", strings.NewReader("twelve bytes"), 3, 200, "12 bytes"},
		{"POST", "/500", strings.NewReader(strings.Repeat("x", 100<<10)), 1, 500, ""}, // too large to be kept
		{"POST", "/500", io.MultiReader(strings.NewReader("?")), 1, 500, ""},          // of unknown length
		{"GET", "/404", nil, 1, 404, ""}, {"POST", "/reset", strings.NewReader("four"), 3, 200, "4 bytes"},
		{"GET", "/late", nil, 3, 200, "0 bytes"},
	} {
		requests.Store(0)
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+port.String()+c.path, c.body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != c.status || string(text) != c.text || err != nil ||
			requests.Load() != c.requests && (c.path != "/late" || requests.Load() < c.requests) {
			t.Errorf("%s %s: %s, %q after %d requests, want %d, %q after %d: %v", c.method, c.path, res.Status, text,
				requests.Load(), c.status, c.text, c.requests, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	// When none succeeds, the client gets the last response.
	route = route.DeepCopy()
	route.Spec.Rules[0].Retry.Attempts = new(1)
	l.world.HTTPRoutes = []*gatewayv1.HTTPRoute{route}
	l.update()
	requests.Store(0)
	if got := statusOf(t, "http://"+port.String()+"/500"); got != 500 || requests.Load() != 2 {
		t.Errorf("%d after %d requests", got, requests.Load())
	}
}
