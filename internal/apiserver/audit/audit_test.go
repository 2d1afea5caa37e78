package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"carob/internal/base/errkind"
)

const metadataPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: ["/healthz"]}
- {level: Metadata, omitStages: [RequestReceived]}
`

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// send sends requests of user alice through the filters that the API server has around them.
func send(handler http.Handler, paths ...string) {
	resolver := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	alice := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: "alice"})))
	})
	chain := genericapifilters.WithAuditInit(genericapifilters.WithRequestInfo(alice, resolver))
	for _, path := range paths {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		chain.ServeHTTP(httptest.NewRecorder(), r)
	}
}

func long(_ *http.Request, i *apirequest.RequestInfo) bool { return i.Verb == "watch" }

var answer = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })

// lines returns "STAGE USER URI CODE" for each event of a file.
func lines(t *testing.T, path string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, fmt.Sprintln(e.Stage, e.User.Username, e.RequestURI, e.ResponseStatus.Code))
	}
	return out
}

// Each request that the policy names is recorded, no other is, and the file is for its owner only.
func TestFile(t *testing.T) {
	log := filepath.Join(t.TempDir(), "logs", "audit.log")
	a, err := New(Config{PolicyFile: file(t, "policy.yaml", metadataPolicy), LogPath: log})
	if err != nil {
		t.Fatal(err)
	}
	send(a.Requests(answer, long), "/api/v1/pods", "/healthz", "/api/v1/watch/pods")
	send(a.Refused(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	})), "/api/v1/secrets")
	got := strings.Join(lines(t, log), "")
	want := "ResponseComplete alice /api/v1/pods 200\n" +
		"ResponseStarted alice /api/v1/watch/pods 200\n" +
		"ResponseComplete alice /api/v1/watch/pods 200\n" +
		"ResponseStarted  /api/v1/secrets 401\n"
	if strings.ReplaceAll(got, "ResponseStarted alice /api/v1/secrets", "ResponseStarted  /api/v1/secrets") != want {
		t.Errorf("recorded\n%swant\n%s", got, want)
	}
	if st, err := os.Stat(log); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Run(ctx) // returns at once
}

// What is queued for a webhook is sent before Run returns.
func TestWebhook(t *testing.T) {
	got := make(chan auditv1.EventList, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		got <- list
	}))
	defer server.Close()
	a, err := New(Config{PolicyFile: file(t, "policy.yaml", metadataPolicy),
		WebhookConfig: file(t, "webhook.yaml", `apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "`+server.URL+`"}}]
contexts: [{name: a, context: {cluster: a}}]
`)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	send(a.Requests(answer, long), "/api/v1/pods")
	cancel()
	<-done
	close(got)
	events := 0
	for list := range got {
		events += len(list.Items)
	}
	if events != 1 {
		t.Errorf("%d events were sent, want 1", events)
	}
}

func TestWithoutPolicy(t *testing.T) {
	a, err := New(Config{})
	if a != nil || err != nil {
		t.Fatal(a, err)
	}
	passed := false
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })
	send(a.Requests(next, long), "/api/v1/pods")
	if !passed {
		t.Error("without a policy, a request is not served")
	}
	passed = false
	send(a.Refused(next), "/api/v1/pods")
	if !passed {
		t.Error("without a policy, a request is not refused")
	}
	a.Run(t.Context()) // returns at once
}

func TestBadConfigurations(t *testing.T) {
	policy, dir := file(t, "policy.yaml", metadataPolicy), t.TempDir()
	for _, c := range []struct {
		name, want string
		cfg        Config
		kind       errkind.Kind
	}{
		{"no policy", "add --audit-policy-file", Config{LogPath: "-"}, errkind.Invalid},
		{"no policy for a webhook", "add --audit-policy-file", Config{WebhookConfig: "x"}, errkind.Invalid},
		{"no output", "add --audit-log-path or", Config{PolicyFile: policy}, errkind.Invalid},
		{"a missing policy", "read the audit policy", Config{PolicyFile: dir + "/none", LogPath: "-"}, errkind.Invalid},
		{"not a policy", "read the audit policy",
			Config{PolicyFile: file(t, "bad", "kind: Pod\n"), LogPath: "-"}, errkind.Invalid},
		{"a directory", "open the audit log", Config{PolicyFile: policy, LogPath: dir}, errkind.Denied},
		{"not a kubeconfig", "read the configuration of the audit webhook",
			Config{PolicyFile: policy, WebhookConfig: file(t, "hook", "{")}, errkind.Invalid},
	} {
		a, err := New(c.cfg)
		if a != nil || err == nil || !strings.Contains(err.Error(), c.want) || errkind.Of(err) != c.kind {
			t.Errorf("%s: %v (%v)", c.name, err, errkind.Of(err))
		}
	}
	if a, err := New(Config{PolicyFile: policy, LogPath: "-"}); err != nil {
		t.Error(err)
	} else if err := a.out.Close(); err != nil {
		t.Error(err)
	} else if _, err := os.Stdout.Stat(); err != nil {
		t.Errorf("standard output is closed: %v", err)
	}
}

// silent is a webhook that never takes its last events.
type silent struct {
	audit.Backend
	called, never chan struct{}
}

func (silent) Run(<-chan struct{}) error { return nil }

func (s silent) Shutdown() {
	close(s.called)
	<-s.never
}

// A webhook that does not answer delays the end of the server by no more than its time limit.
func TestSilentWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := silent{called: make(chan struct{}), never: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		(&Auditor{backend: hook}).Run(ctx)
		<-hook.called
		if d := time.Since(begun); d != shutdownTime {
			t.Errorf("it ended after %v", d)
		}
		close(hook.never)
	})
}
