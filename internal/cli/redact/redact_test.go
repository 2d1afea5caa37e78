package redact

import (
	"encoding/base64"
	"strings"
	"testing"
)

// A secret is removed in each of its forms, and credentials by their form alone; other text stays.
func TestText(t *testing.T) {
	const secret = "s3cret \"value\""
	var r Redactor
	r.Add(secret)
	for _, text := range []string{secret, `s3cret \"value\"`, base64.StdEncoding.EncodeToString([]byte(secret)),
		"Authorization: Bearer abcdefgh.ijkl", "https://user:password@example.com",
		"mysql --db-password hunter2"} {
		if got := r.Text("before " + text); !strings.Contains(got, removed) || !strings.HasPrefix(got, "before ") {
			t.Errorf("%q is %q", text, got)
		}
	}
	if got := r.Text("pod web is ready"); got != "pod web is ready" {
		t.Errorf("other text is %q", got)
	}
}

// Values that users set are removed from objects, names stay.
func TestObject(t *testing.T) {
	var r Redactor
	got, err := r.Object(map[string]any{"data": map[string]any{"key": "short"},
		"env": []any{map[string]any{"name": "MODE", "value": "fast"}}, "kind": "Pod",
		"args": []any{"--db-password", "hunter2", "-v", "--use-token", "--all", "serve"}, "secretName": "tls",
		"annotations": map[string]any{"example.com/api-key": "planted", "team": "a"}, "port": 8080})
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{`"key"`, `"MODE"`, `"Pod"`, `"--db-password"`, `"-v"`, `"--all"`, `"serve"`, `"tls"`,
		`"example.com/api-key"`, `"a"`, "8080"} {
		if !strings.Contains(string(got), kept) {
			t.Errorf("%s is missing: %s", kept, got)
		}
	}
	for _, gone := range []string{"short", "fast", "hunter2", "planted"} {
		if strings.Contains(string(got), gone) {
			t.Errorf("%q is there: %s", gone, got)
		}
	}
}
