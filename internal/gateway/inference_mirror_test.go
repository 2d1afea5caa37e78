package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A copy of an inference request has the body that the server gets, also one whose length the client did not announce,
// and the server still gets it.
func TestMirroredInference(t *testing.T) {
	l := newInferenceLab(t)
	l.server(1, answering)
	got := make(chan string, 1)
	copies := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(text)
	}))
	defer copies.Close()
	l.service("copies", "", at(copies.URL, "copies"))
	l.world.HTTPRoutes[0].Spec.Rules[0].Filters = []gatewayv1.HTTPRouteFilter{{
		Type: gatewayv1.HTTPRouteFilterRequestMirror, RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{
			BackendRef: gatewayv1.BackendObjectReference{Name: "copies", Port: new(gatewayv1.PortNumber(80))}}}}
	l.serveNow()
	const body = `{"model":"m","prompt":"hello"}`
	for what, r := range map[string]io.Reader{"of known length": strings.NewReader(body),
		"chunked": io.MultiReader(strings.NewReader(body))} {
		status, text, _ := l.get("POST", "x", "/v1/completions", r)
		want(t, what, status, text, 200, `"length":30`, `hello`)
		if copied := <-got; copied != "POST /v1/completions "+body {
			t.Errorf("%s: the copy is %q", what, copied)
		}
	}
	status, text, _ := l.get("GET", "x", "/v1/models", nil)
	want(t, "without a body", status, text, 200)
	if copied := <-got; copied != "GET /v1/models " {
		t.Errorf("the copy is %q", copied)
	}
}
