package apiserver

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"carob/internal/base/pki"
	"carob/internal/base/testwait"
)

// withHeader sends a header with each request.
type withHeader struct {
	name, value string
	next        http.RoundTripper
}

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(w.name, w.value)
	return w.next.RoundTrip(r)
}

// A request has a span. It continues the trace of an administrator; whoever is not trusted gets a trace of their own,
// so that they cannot have their requests recorded or write into the traces of others.
func TestTraces(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	cfg := newConfig(t, t.TempDir())
	cfg.Traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	r := startWith(t, cfg)
	const id = "0af7651916cd43dd8448eb211c80319c"
	remote := func(pair pki.KeyPair) *restclient.Config {
		return &restclient.Config{Host: "https://" + r.cfg.Listener.Addr().String(), TLSClientConfig: restclient.
			TLSClientConfig{CAData: r.pki.CAPEM, CertData: pair.CertPEM, KeyData: pair.KeyPEM}}
	}
	other, err := r.pki.Issue(pki.Request{CommonName: "somebody", Organizations: []string{"team"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		client    *restclient.Config
		continues bool
	}{
		"in the process":   {r.ClientConfig("admin", user.SystemPrivilegedGroup), true},
		"an administrator": {remote(r.pki.Admin.Pair()), true},
		"somebody":         {remote(other), false},
		"other in process": {r.ClientConfig("somebody", "team"), false},
	} {
		c.client.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return withHeader{"Traceparent", "00-" + id + "-b7ad6b7169203331-01", next}
		})
		k, err := kubernetes.NewForConfig(c.client)
		if err != nil {
			t.Fatal(err)
		}
		node := strings.ReplaceAll(name, " ", "-")
		_, _ = k.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}) // allowed or not
		var trace string
		testwait.For(t, "the span of "+name, func() bool { // it ends after the answer
			for _, s := range recorder.Ended() {
				if slices.ContainsFunc(s.Attributes(), func(kv attribute.KeyValue) bool {
					return strings.Contains(kv.Value.String(), node)
				}) {
					trace = s.SpanContext().TraceID().String()
				}
			}
			return trace != ""
		})
		if (trace == id) != c.continues {
			t.Errorf("%s: the span is of the trace %s; want the client's: %v", name, trace, c.continues)
		}
	}
}
