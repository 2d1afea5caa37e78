package apiserver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kms "k8s.io/kms/pkg/service"

	"carob/internal/base/testwait"
)

// keyServer is a KMS v2 plugin (k8s.io/kms/apis/v2) that only reverses bytes. It has its earlier
// keys until they are removed.
type keyServer struct {
	mu        sync.Mutex
	key       string
	forgotten map[string]bool
	ill       bool
	calls     map[string]int
}

func (k *keyServer) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func mirrored(b []byte) []byte {
	out := make([]byte, len(b))
	for i, x := range b {
		out[len(b)-1-i] = x ^ 0xff
	}
	return out
}

func (k *keyServer) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls["encrypt"]++
	if k.ill {
		return nil, errors.New("the vault is closed")
	}
	return &kms.EncryptResponse{Ciphertext: mirrored(data), KeyID: k.key,
		Annotations: map[string][]byte{"by.example.org": []byte("test")}}, nil
}

func (k *keyServer) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls["decrypt"]++
	if k.ill || k.forgotten[r.KeyID] || string(r.Annotations["by.example.org"]) != "test" {
		return nil, fmt.Errorf("no key %q", r.KeyID)
	}
	return mirrored(r.Ciphertext), nil
}

func (k *keyServer) Status(context.Context) (*kms.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls["status"]++
	if k.ill {
		return &kms.StatusResponse{Version: "v2", Healthz: "the vault is closed", KeyID: k.key}, nil
	}
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.key}, nil
}

// serveKeys listens until the test ends, or the returned function is called.
func serveKeys(t *testing.T, socket string, k *keyServer) (stop func()) {
	t.Helper()
	s := kms.NewGRPCService(socket, time.Second, k)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ListenAndServe() // ends with Close
	}()
	testwait.Until(t, "the key server listens", func() error {
		_, err := os.Stat(socket)
		return err
	})
	stop = sync.OnceFunc(func() { s.Close(); <-done })
	t.Cleanup(stop)
	return stop
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

const encryptionHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"

func secretbox(name string, fill byte) string {
	key := strings.Repeat(string(rune(fill)), 32)
	return fmt.Sprintf("  - secretbox: {keys: [{name: %s, secret: %s}]}\n", name,
		base64.StdEncoding.EncodeToString([]byte(key)))
}

// kept returns what the engine has stored for a secret.
func (r *running) kept(t *testing.T, name string) string {
	t.Helper()
	got, err := r.engine.Client.Client.Get(t.Context(), "/registry/secrets/default/"+name)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return string(got.Kvs[0].Value)
}

// touch rewrites a secret, which encrypts it with the current key.
func (r *running) touch(t *testing.T, name, label string) error {
	t.Helper()
	_, err := r.admin(t).CoreV1().Secrets("default").Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"touched":%q}}}`, label), metav1.PatchOptions{})
	return err
}

func (r *running) hide(t *testing.T, name, word string) {
	t.Helper()
	if _, err := r.admin(t).CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": word}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (r *running) word(t *testing.T, name string) (string, error) {
	t.Helper()
	got, err := r.admin(t).CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(got.Data["word"]), nil
}

// A KMS plugin encrypts keys, its state is a readiness check, later writes use its new key, and an
// error names what it cannot decrypt.
func TestKeyServer(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "kms.sock")
	keys := &keyServer{key: "first", calls: map[string]int{}, forgotten: map[string]bool{}}
	stop := serveKeys(t, socket, keys)
	config := filepath.Join(dir, "encryption.yaml")
	provider := fmt.Sprintf("  - kms: {apiVersion: v2, name: vault, endpoint: 'unix://%s', timeout: 3s}\n", socket)
	writeFile(t, config, encryptionHead+provider+"  - identity: {}\n")
	begin := func() *running {
		cfg := newConfig(t, filepath.Join(dir, "data"))
		cfg.EncryptionConfig = config
		return startWith(t, cfg)
	}
	r := begin()
	r.hide(t, "hidden", "opensesame")
	if got := r.kept(t, "hidden"); !strings.HasPrefix(got, "k8s:enc:kms:v2:vault:") ||
		strings.Contains(got, "opensesame") || !strings.Contains(got, "first") {
		t.Errorf("kept: %q", got)
	}
	for path, want := range map[string]int{"/readyz/kms-providers": http.StatusOK,
		"/healthz/kms-providers": http.StatusOK, "/livez/kms-providers": http.StatusNotFound} {
		if code, text := r.read(t, path); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	// After a restart, the plugin decrypts the key of stored objects again.
	r.stop()
	keys.set(func() { keys.calls["decrypt"] = 0 })
	r = begin()
	if got, err := r.word(t, "hidden"); err != nil || got != "opensesame" {
		t.Errorf("read again: %q, %v", got, err)
	}
	keys.set(func() {
		if keys.calls["decrypt"] == 0 {
			t.Error("nobody asked for the key")
		}
		keys.key = "second"
	})
	// The plugin's new key is found by its status: at once at the start, later within the library's
	// 20 seconds.
	r.stop()
	r = begin()
	if err := r.touch(t, "hidden", "x"); err != nil || !strings.Contains(r.kept(t, "hidden"), "second") {
		t.Errorf("with the new key: %.200q, %v", r.kept(t, "hidden"), err)
	}
	if got, err := r.word(t, "hidden"); err != nil || got != "opensesame" {
		t.Errorf("with the new key: %q, %v", got, err)
	}
	// Without the plugin the server is not ready, but it is live and serves what it has keys for.
	r.stop()
	keys.set(func() { keys.ill = true })
	cfg := newConfig(t, filepath.Join(dir, "data"))
	cfg.EncryptionConfig = config
	r = startWith(t, cfg)
	code, text, _ := r.raw(t, "GET", "/readyz?verbose", nil, nil)
	if code != http.StatusInternalServerError || !strings.Contains(text, "[-]kms-providers failed") {
		t.Errorf("readyz: %d %s", code, text)
	}
	if code, text := r.read(t, "/livez"); code != http.StatusOK {
		t.Errorf("livez: %d %s", code, text)
	}
	if _, err := r.word(t, "hidden"); err == nil {
		t.Errorf("a secret whose key is not to be had: %v", err)
	}
	if code, text, _ := r.raw(t, "POST", "/api/v1/namespaces/default/configmaps", nil,
		[]byte(`{"metadata":{"name":"plain"}}`)); code != http.StatusCreated {
		t.Errorf("what is not encrypted: %d %s", code, text)
	}
	stop()
	keys.set(func() { keys.ill = false })
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	serveKeys(t, socket, keys)
	testwait.For(t, "ready again",
		func() bool { code, _, _ := r.raw(t, "GET", "/readyz", nil, nil); return code == http.StatusOK })
	if got, err := r.word(t, "hidden"); err != nil || got != "opensesame" {
		t.Errorf("readable again: %q, %v", got, err)
	}
}

// The server follows the encryption configuration file: a new first key encrypts from then on; an
// invalid file changes nothing.
func TestEncryptionFollowsItsFile(t *testing.T) {
	cfg := newConfig(t, t.TempDir())
	cfg.EncryptionConfig = filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, cfg.EncryptionConfig, encryptionHead+secretbox("old", 1)+"  - identity: {}\n")
	r := startWith(t, cfg)
	r.hide(t, "hidden", "opensesame")
	if got := r.kept(t, "hidden"); !strings.HasPrefix(got, "k8s:enc:secretbox:v1:old:") {
		t.Fatalf("kept: %.40q", got)
	}
	n := 0
	until := func(prefix string) {
		t.Helper()
		testwait.For(t, prefix, func() bool {
			n++
			if err := r.touch(t, "hidden", fmt.Sprint(n)); err != nil {
				t.Fatal(err)
			}
			return strings.HasPrefix(r.kept(t, "hidden"), prefix)
		})
	}
	failures := func() string {
		_, text := r.read(t, "/metrics")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "apiserver_encryption_config_controller_automatic_reloads_total{") &&
				strings.Contains(line, `status="failure"`) {
				return line
			}
		}
		return ""
	}
	writeFile(t, cfg.EncryptionConfig, encryptionHead+secretbox("new", 2)+secretbox("old", 1)+"  - identity: {}\n")
	until("k8s:enc:secretbox:v1:new:")
	before := failures()
	writeFile(t, cfg.EncryptionConfig, "resources: no")
	testwait.For(t, "the bad content is seen", func() bool { return failures() != before })
	until("k8s:enc:secretbox:v1:new:")
	writeFile(t, cfg.EncryptionConfig, encryptionHead+"  - identity: {}\n"+secretbox("new", 2))
	until("k8s\x00")
	if got, err := r.word(t, "hidden"); err != nil || got != "opensesame" {
		t.Errorf("at last: %q, %v", got, err)
	}
}
