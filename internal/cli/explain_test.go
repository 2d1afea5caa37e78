package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"carob/internal/core/explain"
)

// In a terminal, a text that is longer than a line goes on below itself; for programs, each text is one line.
func TestExplainWraps(t *testing.T) {
	lines := explain.Lines{{Problem: true, Text: "container c waits: the registry did not answer\nin time"},
		{Text: "runs"}}
	for _, tt := range []struct {
		width int
		want  string
	}{
		{0, "! container c waits: the registry did not answer in time\n  runs\n"},
		{30, "! container c waits: the\n    registry did not answer in\n    time\n  runs\n"},
	} {
		var out strings.Builder
		if err := printLines(&out, lines, tt.width); err != nil || out.String() != tt.want {
			t.Errorf("%d: %v, got\n%swant\n%s", tt.width, err, out.String(), tt.want)
		}
	}
}

// What does not exist is named, also of kinds that the client does not know.
func TestExplainNamesWhatDoesNotExist(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		of := schema.GroupResource{Group: parts[2], Resource: parts[6]}
		status := apierrors.NewNotFound(of, parts[7]).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		if err := json.NewEncoder(w).Encode(&status); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	x := &explainer{c: c, namespace: "default", name: "nope"}
	for want, request := range map[string]func() error{
		`httproutes.gateway.networking.k8s.io "nope" not found`: func() error {
			_, err := x.route(t.Context(), "/apis/gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute")
			return err
		},
		`inferencepools.inference.networking.k8s.io "nope" not found`: func() error {
			_, err := x.inferencePool(t.Context())
			return err
		},
	} {
		if err := request(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// ResourceClaims and templates of a pod that do not exist are named; those that may not be read are not.
func TestExplainNamesMissingResourceClaims(t *testing.T) {
	code := map[string]int{"gone": http.StatusNotFound, "template": http.StatusNotFound, "made-x1": http.StatusNotFound,
		"secret": http.StatusForbidden, "there": http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code[name])
		reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusForbidden: "Forbidden"}[code[name]]
		body := `{"apiVersion":"v1","kind":"Status","reason":"` + reason + `"}`
		if reason == "" {
			body = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim"}`
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
		{Name: "a", ResourceClaimName: new("gone")}, {Name: "b", ResourceClaimName: new("secret")},
		{Name: "c", ResourceClaimName: new("there")}, {Name: "d", ResourceClaimTemplateName: new("template")},
		{Name: "e", ResourceClaimTemplateName: new("there")}}}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "e", ResourceClaimName: new("made-x1")}}
	got := strings.Join((&explainer{c: c}).missingResourceClaims(t.Context(), p), ", ")
	if want := "resource claim gone, resource claim template template, resource claim made-x1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// noWarnings fails the test: the user did not choose the versions that the command lists.
type noWarnings struct{ t *testing.T }

func (n noWarnings) HandleWarningHeader(_ int, _, text string) { n.t.Errorf("warning: %s", text) }

// What remains in a namespace that is being deleted is listed; events are not, nor what cannot be deleted.
func TestExplainNamespaceContents(t *testing.T) {
	answers := map[string]string{
		"/api/v1/namespaces/going": `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"going",` +
			`"deletionTimestamp":"2026-01-02T03:04:05Z"},"status":{"phase":"Terminating"}}`,
		"/api":  `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis": `{"kind":"APIGroupList","groups":[]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[` +
			`{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["list","delete"]},` +
			`{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["list","delete"]},` +
			`{"name":"bindings","namespaced":true,"kind":"Binding","verbs":["create"]},` +
			`{"name":"events","namespaced":true,"kind":"Event","verbs":["list","delete"]}]}`,
		"/api/v1/namespaces/going/configmaps": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",` +
			`"items":[{"metadata":{"name":"held","finalizers":["example.com/c"]}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/configmaps") {
			w.Header().Set("Warning", `299 - "this version is deprecated"`)
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusForbidden)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not for you","reason":"Forbidden",` +
				`"code":403}`
		}
		if _, err := w.Write([]byte(answer)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	c, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, WarningHandler: noWarnings{t}})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := (&explainer{c: c, name: "going"}).namespaceObject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := printLines(&text, lines[1:], 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"! configmaps/held waits for its finalizers to be removed: example.com/c",
		"! could not be listed: secrets: not for you"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
	if s := text.String(); strings.Contains(s, "events") || strings.Contains(s, "bindings") {
		t.Errorf("too much:\n%s", s)
	}
}
