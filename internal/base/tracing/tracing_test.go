package tracing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRead has files that kube-apiserver takes, and files that it refuses.
func TestRead(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	for _, c := range []struct{ name, text, refused string }{
		{"nothing said", head, ""},
		{"all", head + "endpoint: 127.0.0.1:4317\nsamplingRatePerMillion: 1000000\n", ""},
		{"v1beta1", strings.Replace(head, "/v1", "/v1beta1", 1) + "samplingRatePerMillion: 0\n", ""},
		{"v1alpha1", strings.Replace(head, "/v1", "/v1alpha1", 1), ""},
		{"a socket", head + "endpoint: unix:///run/otel.sock\n", ""},
		{"JSON", `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"TracingConfiguration","endpoint":"dns://a:1"}`, ""},
		{"unknown field", head + "sampling: 1\n", "unknown field"},
		{"repeated field", head + "endpoint: a:1\nendpoint: b:1\n", "already set"},
		{"rate", head + "samplingRatePerMillion: 1000001\n", "less than or equal to one million"},
		{"negative rate", head + "samplingRatePerMillion: -1\n", "must be positive"},
		{"scheme", head + "endpoint: http://127.0.0.1:4317\n", "unsupported scheme"},
		{"not a URL", head + "endpoint: \"dn%2s://a:1\"\n", "parse"},
		{"other kind", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n", "TracingConfiguration"},
		{"other version", "apiVersion: apiserver.config.k8s.io/v2\nkind: TracingConfiguration\n", "no kind"},
		{"empty, as upstream", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "tracing.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Read(file)
			switch {
			case c.refused == "" && err != nil:
				t.Fatal(err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Fatalf("%v, want an error with %q", err, c.refused)
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Fatal("a file that is not there was read")
	}
}
