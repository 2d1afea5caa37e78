package credentials

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// world is a directory with a plugin, "p", that does what a script says and counts its runs.
type world struct {
	dir     string
	plugins *Plugins
}

func (w *world) runs() int {
	text, _ := os.ReadFile(filepath.Join(w.dir, "runs"))
	return strings.Count(string(text), "\n")
}

// requests is the last request of the plugin.
func (w *world) requests() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "asked"))
	return string(text)
}

func newWorld(t *testing.T, script, provider string) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	write(t, filepath.Join(w.dir, "p"), "#!/bin/sh\necho run >>"+w.dir+"/runs\ncat >"+w.dir+"/asked\n"+script, 0o700)
	write(t, filepath.Join(w.dir, "c.yaml"), `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: p
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.example.com", "docker.io/library"]
  defaultCacheDuration: 1h
  args: [a b]
  env: [{name: GREETING, value: "hello world"}]
`+provider, 0o600)
	var err error
	if w.plugins, err = Load(filepath.Join(w.dir, "c.yaml"), w.dir); err != nil {
		t.Fatal(err)
	}
	return w
}

func answer(kind, more string) string {
	return `echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"` +
		kind + `",` + more + `"auth":{"*.example.com":{"username":"u","password":"'"$GREETING $1"'"},` +
		`"r.example.com/team":{"username":"team","password":"t"}}}'`
}

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"},
	Spec: corev1.PodSpec{ServiceAccountName: "sa"}}

// S13.5–S13.7: the plugin gets the image, its arguments, and variables; the longest pattern of its response comes
// first; a response is cached for the image, the registry, or all, and for the duration that it specifies.
func TestPlugin(t *testing.T) {
	for _, tt := range []struct {
		kind, more string
		runs       int // of three images of one registry, one of another, and the first again
	}{
		{"Image", "", 4}, {"Registry", "", 2}, {"Global", "", 1}, {"Global", `"cacheDuration":"0s",`, 5},
	} {
		w := newWorld(t, answer(tt.kind, tt.more), "")
		got := w.plugins.For(t.Context(), pod, "r.example.com/team/a")
		if len(got) != 2 || got[0].Username != "team" || got[1].Password != "hello world a b" || got[0].Account != nil {
			t.Fatalf("%+v", got)
		}
		want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1",` +
			`"image":"r.example.com/team/a"`
		if !strings.HasPrefix(w.requests(), want) {
			t.Errorf("asked %s, want %s…", w.requests(), want)
		}
		for _, image := range []string{"r.example.com/b", "r.example.com/c", "s.example.com/d", "r.example.com/team/a"} {
			if got := w.plugins.For(t.Context(), pod, image); len(got) == 0 {
				t.Errorf("%s: nothing", image)
			}
		}
		if got := w.runs(); got != tt.runs {
			t.Errorf("%s %s: %d runs, want %d", tt.kind, tt.more, got, tt.runs)
		}
		if got := w.plugins.For(t.Context(), pod, "elsewhere.org/a"); got != nil || w.runs() != tt.runs {
			t.Errorf("an image of nobody: %v", got)
		}
	}
}

// A plugin that fails in any way is skipped, and the wait for it is limited.
func TestBadPlugins(t *testing.T) {
	ok := answer("Image", "")
	for name, script := range map[string]string{
		"fails":             "echo trouble >&2; exit 3",
		"says nothing":      "true",
		"no JSON":           "echo hello",
		"other version":     strings.Replace(ok, "io/v1", "io/v1beta1", 1),
		"no cache key":      strings.Replace(ok, "Image", "Sometimes", 1),
		"too long":          "head -c 3000000 /dev/zero | tr '\\0' ' '; " + ok,
		"not even a script": "\x00",
	} {
		w := newWorld(t, script, "")
		failures := 0
		w.plugins.Observed = func(_ string, _ time.Duration, failed bool) {
			if failed {
				failures++
			}
		}
		if got := w.plugins.For(t.Context(), pod, "r.example.com/a"); got != nil || failures != 1 {
			t.Errorf("%s: %v, %d failures", name, got, failures)
		}
	}
	// One whose child keeps its output open ends all the same.
	w := newWorld(t, answer("Image", "")+"\nsleep 5 &\nexit 0", "")
	_ = w.plugins.For(t.Context(), pod, "r.example.com/a")
	// A caller that stops waiting gets an error at once; the run itself continues, and its response is cached.
	w = newWorld(t, "while [ ! -e $0.go ]; do :; done\n"+answer("Image", ""), "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.plugins.For(ctx, pod, "r.example.com/a"); got != nil {
		t.Error(got)
	}
	write(t, filepath.Join(w.dir, "p.go"), "", 0o600)
	if got := w.plugins.For(t.Context(), pod, "r.example.com/a"); len(got) != 1 || w.runs() != 1 {
		t.Errorf("%v after %d runs", got, w.runs())
	}
}

// Equal questions at one time are one run.
func TestEqualRequestsShareARun(t *testing.T) {
	w := newWorld(t, "while [ ! -e $0.go ]; do :; done\n"+answer("Image", ""), "")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got := w.plugins.For(t.Context(), pod, "r.example.com/a"); len(got) != 1 {
				t.Error(got)
			}
		})
	}
	write(t, filepath.Join(w.dir, "p.go"), "", 0o600)
	wg.Wait()
	if got := w.runs(); got != 1 {
		t.Errorf("%d runs", got)
	}
}

// accounts has the service account sa of the namespace ns.
type accounts struct {
	annotations map[string]string
	token       string
}

func (a *accounts) Account(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if namespace != "ns" || name != "sa" {
		return nil, errors.New("there is no such account")
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "uid-1", Annotations: a.annotations}}, nil
}

func (a *accounts) Token(_ context.Context, _ *corev1.Pod, audience string) (string, error) {
	return a.token + " for " + audience, nil
}

// S13.9, S13.10: a plugin that requires it gets a token of the pod's service account and its annotations.
func TestServiceAccounts(t *testing.T) {
	const attributes = `
  tokenAttributes:
    serviceAccountTokenAudience: registry
    cacheType: %s
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [role]
    optionalServiceAccountAnnotationKeys: [extra]
`
	w := newWorld(t, answer("Global", ""), fmt.Sprintf(attributes, "ServiceAccount"))
	a := &accounts{token: "token-1", annotations: map[string]string{"role": "reader", "unrelated": "x"}}
	w.plugins.Accounts = a
	got := w.plugins.For(t.Context(), pod, "s.example.com/a")
	if len(got) != 1 || got[0].UID != "uid-1" || got[0].Account.String() != "ns/sa" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{`"serviceAccountToken":"token-1 for registry"`,
		`"serviceAccountAnnotations":{"role":"reader"}`} {
		if !strings.Contains(w.requests(), want) {
			t.Errorf("%s lacks %s", w.requests(), want)
		}
	}
	a.token = "token-2" // the cache is for the account, not the token
	_ = w.plugins.For(t.Context(), pod, "s.example.com/a")
	if w.runs() != 1 {
		t.Errorf("%d runs for one account", w.runs())
	}
	a.annotations = map[string]string{"role": "writer"}
	_ = w.plugins.For(t.Context(), pod, "s.example.com/a")
	if w.runs() != 2 {
		t.Errorf("%d runs after an annotation has changed", w.runs())
	}
	a.annotations = nil
	other := pod.DeepCopy()
	other.Spec.ServiceAccountName = ""
	for name, p := range map[string]*corev1.Pod{"without the annotation": pod, "without an account": other} {
		if got := w.plugins.For(t.Context(), p, "s.example.com/a"); got != nil || w.runs() != 2 {
			t.Errorf("%s: %v, %d runs", name, got, w.runs())
		}
	}

	// The token itself is not a password, unless it is what the cache is for.
	for kind, want := range map[string]int{"ServiceAccount": 0, "Token": 1} {
		w := newWorld(t, strings.Replace(answer("Image", ""), `'"$GREETING $1"'`, "token-1 for registry", 1),
			fmt.Sprintf(attributes, kind))
		w.plugins.Accounts = &accounts{token: "token-1", annotations: map[string]string{"role": "r"}}
		if got := w.plugins.For(t.Context(), pod, "s.example.com/a"); len(got) != want {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

// S13.12: the hash is over the length and the text of each file, so that it is also upstream's.
func TestHash(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p"), "", 0o700)
	const text = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{name: p, " +
		"apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [a.b], defaultCacheDuration: 1h}]"
	write(t, filepath.Join(dir, "c.yaml"), text, 0o600)
	p, err := Load(filepath.Join(dir, "c.yaml"), dir)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("sha256:%x", sha256.Sum256(append([]byte{0, 0, 0, 0, 0, 0, 0, byte(len(text))}, text...)))
	if p.Hash != want {
		t.Errorf("%s, want %s", p.Hash, want)
	}
}

// A configuration that is wrong names what is.
func TestLoadRefusesInvalidConfigurations(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p"), "", 0o700)
	write(t, filepath.Join(dir, "plain"), "", 0o600)
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"
	const good = "providers: [{name: p, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [a.b], " +
		"defaultCacheDuration: 1h}]"
	config := filepath.Join(dir, "c.yaml")
	load := func(text string) error {
		write(t, config, text, 0o600)
		_, err := Load(config, dir)
		return err
	}
	if err := load(head + good); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                "is not a CredentialProviderConfig",
		head:              "at least 1 item in plugins is required",
		head + "other: 1": "unknown field",
		head + strings.Replace(good, "name: p", "name: ../p", 1):                    "must be a file name",
		head + strings.Replace(good, "name: p", "name: plain", 1):                   "did not exist",
		head + strings.Replace(good, "name: p", "name: gone", 1):                    "did not exist",
		head + strings.Replace(good, "io/v1", "io/v7", 1):                           "apiVersion",
		head + strings.Replace(good, "[a.b]", "[]", 1):                              "matchImages",
		head + strings.Replace(good, "[a.b]", "['https://a']", 1):                   "without scheme",
		head + strings.Replace(good, "1h", "-1h", 1):                                "must not be negative",
		head + strings.Replace(good, ", defaultCacheDuration: 1h", "", 1):           "defaultCacheDuration is required",
		head + strings.Replace(good, "}]", ", env: [{name: 'a=b', value: c}]}]", 1): "is not a variable",
		head + strings.Replace(good, "}]", ", tokenAttributes: {}}]", 1):            "serviceAccountTokenAudience is required",
		head + good + "\n" + good:                                                   "already set",
		head + strings.Replace(good, "}]", "}, {name: p}]", 1):                      "duplicate provider name \"p\"",
	} {
		if err := load(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(dir, "missing"), dir); err == nil ||
		!strings.Contains(err.Error(), "unable to access path") {
		t.Error(err)
	}
	write(t, config, head+good, 0o600)
	if _, err := Load(config, filepath.Join(dir, "missing")); err == nil ||
		!strings.Contains(err.Error(), "plugin binary directory") {
		t.Error(err)
	}
	empty := t.TempDir()
	if _, err := Load(empty, dir); err == nil || !strings.Contains(err.Error(), "no configuration files found") {
		t.Error(err)
	}
}
