package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	for want, ask := range map[string]func() error{
		`httproutes.gateway.networking.k8s.io "nope" not found`: func() error {
			_, err := x.route(t.Context(), "/apis/gateway.networking.k8s.io/v1", "httproutes", "HTTPRoute")
			return err
		},
		`"nope" not found`: func() error { _, err := x.inferencePool(t.Context()); return err },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
