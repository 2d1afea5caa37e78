package extender

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

func nodes() []*corev1.Node {
	return []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"slices": "3"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"why": "me"}}}
}

// End to end over TLS: complete nodes are sent, and the returned ones are those that were sent.
func TestOverTLS(t *testing.T) {
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderArgs
		if err := json.NewDecoder(r.Body).Decode(&args); err != nil || r.URL.Path != "/x/filter" ||
			r.Header.Get("Content-Type") != "application/json" || args.Nodes == nil || args.NodeNames != nil ||
			args.Pod.Annotations["why"] != "me" || args.Nodes.Items[0].Annotations["slices"] != "3" {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, `{"nodes":{"items":[{"metadata":{"name":"b"}}]},"failedNodes":{"a":"full"}}`)
	}))
	defer web.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	for name, test := range map[string]struct {
		tls   *configv1.ExtenderTLSConfig
		https bool
		err   string
	}{
		"its authority":             {&configv1.ExtenderTLSConfig{CAData: ca, ServerName: "example.com"}, false, ""},
		"another name":              {&configv1.ExtenderTLSConfig{CAData: ca, ServerName: "wrong.test"}, false, "not wrong.test"},
		"no authority":              {nil, false, "unknown authority"},
		"not verified":              {&configv1.ExtenderTLSConfig{Insecure: true}, false, ""},
		"enableHTTPS, nothing more": {nil, true, ""},
	} {
		c, err := New(configv1.Extender{URLPrefix: web.URL + "/x/", FilterVerb: "filter", TLSConfig: test.tls,
			EnableHTTPS: test.https}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := c.Filter(t.Context(), pod(), nodes())
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %s", name, err, test.err)
			}
			continue
		}
		if err != nil || len(got.Nodes) != 1 || got.Nodes[0].Name != "b" || got.Failed["a"] != "full" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, tls := range map[string]*configv1.ExtenderTLSConfig{
		"a missing file": {CAFile: "/nowhere/ca.crt"}, "a broken key": {CertData: []byte("x"), KeyData: []byte("y")}} {
		if _, err := New(configv1.Extender{URLPrefix: "https://x", TLSConfig: tls}, nil); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Responses of a hostile or broken server are errors, and redirects are not followed.
func TestHostileResponses(t *testing.T) {
	reached := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer elsewhere.Close()
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		err    string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, "code 307"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
			"invalid character"},
		"nothing":        {func(http.ResponseWriter, *http.Request) {}, "EOF"},
		"half an answer": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"nodes":`) }, "EOF"},
		"invented nodes": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"nodes":{"items":[{"metadata":{"name":"z"}}]}}`)
		}, `"z" which is not found`},
		"closed at once": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			text := strings.Repeat(" ", 1<<20)
			for range 300 {
				if _, err := fmt.Fprint(w, text); err != nil {
					return
				}
			}
		}, "to filter is longer than 167"},
		"never an answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "context canceled"},
	} {
		web := httptest.NewServer(http.HandlerFunc(test.answer))
		c, err := New(configv1.Extender{URLPrefix: web.URL, FilterVerb: "filter",
			HTTPTimeout: metav1.Duration{Duration: time.Hour}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if name == "never an answer" {
			cancel()
		}
		_, err = c.Filter(ctx, pod(), nodes())
		cancel()
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, want %s", name, err, test.err)
		}
		web.Close()
	}
	if reached {
		t.Error("the pod was sent to another server")
	}
}

// Texts of an extender are shortened: they become part of conditions, events, and the log.
func TestLongReasons(t *testing.T) {
	answer := ""
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
	defer web.Close()
	c, err := New(configv1.Extender{URLPrefix: web.URL, FilterVerb: "filter", BindVerb: "bind"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("é", 1<<20)
	answer = `{"error":"` + text + `"}`
	_, failed := c.Filter(t.Context(), pod(), nodes())
	unbound := c.Bind(t.Context(), &corev1.Binding{})
	answer = `{"failedNodes":{"a":"` + text + `"},"failedAndUnresolvableNodes":{"b":"` + text + `"}}`
	got, err := c.Filter(t.Context(), pod(), nodes())
	if err != nil || failed == nil || unbound == nil {
		t.Fatal(err, failed, unbound)
	}
	for _, s := range []string{failed.Error(), unbound.Error(), got.Failed["a"], got.Unresolvable["b"]} {
		if len(s) > 1100 || !strings.HasPrefix(s, "ééé") || !strings.HasSuffix(s, "é ...") {
			t.Errorf("%d bytes: %.20q", len(s), s)
		}
	}
}

func TestInterested(t *testing.T) {
	with := func(change func(*corev1.PodSpec)) *corev1.Pod { p := pod(); change(&p.Spec); return p }
	one := corev1.ResourceList{"example.com/slice": resource.MustParse("1")}
	for name, test := range map[string]struct {
		managed []configv1.ExtenderManagedResource
		pod     *corev1.Pod
		want    bool
	}{
		"of everything": {nil, pod(), true},
		"of nothing that is asked for": {[]configv1.ExtenderManagedResource{{Name: "example.com/slice"}}, with(func(s *corev1.PodSpec) {
			cpu := corev1.ResourceList{"cpu": resource.MustParse("1")}
			s.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: cpu}}}
		}), false},
		"of a request": {[]configv1.ExtenderManagedResource{{Name: "example.com/slice"}}, with(func(s *corev1.PodSpec) {
			s.Containers = []corev1.Container{{}, {Resources: corev1.ResourceRequirements{Requests: one}}}
		}), true},
		"of a limit of an init container": {[]configv1.ExtenderManagedResource{{Name: "example.com/slice"}}, with(func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: one}}}
		}), true},
	} {
		c, err := New(configv1.Extender{ManagedResources: test.managed}, http.DefaultTransport)
		if err != nil || c.Interested(test.pod) != test.want {
			t.Errorf("%s: %t, %v", name, !test.want, err)
		}
	}
}
