package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"sync/atomic"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/testwait"
)

// A client gets nothing of the response to a copy of its request, neither its informational responses nor the final
// one, whichever comes first.
func TestResponsesToCopies(t *testing.T) {
	for _, protocol := range []string{"", "kubernetes.io/h2c"} {
		at80 := freePort(t)
		l := newStreamLab(t, gatewayv1.HTTPProtocolType, at80)
		release, copied := make(chan struct{}), make(chan struct{})
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</backend>")
			w.WriteHeader(http.StatusEarlyHints)
			<-release
			_, _ = io.WriteString(w, "from the backend")
		}))
		t.Cleanup(backend.Close)
		copies := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</copy>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusTeapot)
			close(copied)
		}))
		copies.Config.Protocols = &http.Protocols{}
		copies.Config.Protocols.SetHTTP1(true)
		copies.Config.Protocols.SetUnencryptedHTTP2(true)
		copies.Start()
		t.Cleanup(copies.Close)
		l.service("backend", "", at(backend.URL, "pa"))
		l.service("copies", protocol, at(copies.URL, "pb"))
		r := &gatewayv1.HTTPRoute{}
		r.Namespace, r.Name, r.Spec.ParentRefs = "default", "r", parent()
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{
			Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestMirror,
				RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: gatewayv1.BackendObjectReference{
					Name: "copies", Port: new(gatewayv1.PortNumber(80))}}}},
			BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: toService("backend", 1)}}}}
		l.world.HTTPRoutes = []*gatewayv1.HTTPRoute{r}
		l.update()
		var links []string
		var early atomic.Int64
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				links = append(links, h["Link"]...)
				early.Add(1)
				return nil
			}})
		go func() {
			<-copied
			testwait.For(t, "the copy has ended", func() bool { return len(l.mirrors.slots) == 0 && early.Load() > 0 })
			close(release)
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at80.String()+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || string(text) != "from the backend" {
			t.Errorf("%q: %s %q %v", protocol, res.Status, text, err)
		}
		if !slices.Equal(links, []string{"</backend>"}) {
			t.Errorf("%q: the client got early hints %q", protocol, links)
		}
	}
}
