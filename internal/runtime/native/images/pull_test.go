package images

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// testRegistry is a registry on the loopback address that requires user and password.
type testRegistry struct {
	host string
}

func startRegistry(t *testing.T, user, password string,
	mangle func(http.ResponseWriter, *http.Request) bool) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if u, p, _ := req.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if mangle != nil && req.Method == http.MethodGet && mangle(w, req) {
			return
		}
		h.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

func (r *testRegistry) push(t *testing.T, repository string, im v1.Image, user, password string) {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im, remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
}

func TestPull(t *testing.T) {
	im := imageOf(t, "www-data", map[string]string{"one": "1"}, map[string]string{"two": "2"})
	reg := startRegistry(t, "anna", "secret", nil)
	reg.push(t, "team/app:v1", im, "anna", "secret")
	closed := httptest.NewServer(nil)
	closed.Close()
	auth := &cri.AuthConfig{Username: "anna", Password: "secret"}

	for _, c := range []struct {
		name, ref string
		auth      *cri.AuthConfig
		code      codes.Code
		message   string
	}{
		{"with password", reg.host + "/team/app:v1", auth, codes.OK, ""},
		{"with packed credentials", reg.host + "/team/app:v1", &cri.AuthConfig{Auth: "YW5uYTpzZWNyZXQ="}, codes.OK, ""},
		{"for this server", reg.host + "/team/app:v1",
			&cri.AuthConfig{Username: "anna", Password: "secret", ServerAddress: "http://" + reg.host}, codes.OK, ""},
		{"for another server", reg.host + "/team/app:v1",
			&cri.AuthConfig{Username: "anna", Password: "secret", ServerAddress: "https://quay.io"},
			codes.PermissionDenied, "no basic auth credentials"},
		{"without", reg.host + "/team/app:v1", nil, codes.PermissionDenied,
			"pull access denied, repository does not exist or may require authorization"},
		{"wrong password", reg.host + "/team/app:v1", &cri.AuthConfig{Username: "anna", Password: "x"},
			codes.PermissionDenied, "401 Unauthorized"},
		{"unknown tag", reg.host + "/team/app:v2", auth, codes.NotFound, "not found"},
		{"no registry", strings.TrimPrefix(closed.URL, "http://") + "/app:v1", nil, codes.Unavailable,
			"RegistryUnavailable: failed to pull"},
		{"malformed name", "No Such/Name", nil, codes.InvalidArgument, "failed to parse image reference"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t, Config{})
			resp, err := s.PullImage(t.Context(),
				&cri.PullImageRequest{Image: &cri.ImageSpec{Image: c.ref}, Auth: c.auth})
			if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.message) {
				t.Fatalf("got %v, want %v with %q", err, c.code, c.message)
			}
			if err != nil {
				expectEmpty(t, s)
				return
			}
			digest, err := im.Digest()
			if err != nil {
				t.Fatal(err)
			}
			got := imageStatus(t, s, resp.ImageRef)
			got.Size = 0
			want := &cri.Image{Id: got.Id, RepoTags: []string{c.ref},
				RepoDigests: []string{reg.host + "/team/app@" + digest.String()},
				Username:    "www-data", Spec: &cri.ImageSpec{Image: got.Id}}
			if got.String() != want.String() {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if found := imageStatus(t, s, want.RepoDigests[0]); found == nil {
				t.Error("not found by digest")
			}
			dir := mounted(t, s, "c1", resp.ImageRef, false)
			if body, err := os.ReadFile(filepath.Join(dir, "two")); err != nil || string(body) != "2" {
				t.Errorf("content %q, %v", body, err)
			}
		})
	}
}

// --registry-config: a mirror answers for a registry that cannot be reached.
func TestPullThroughMirror(t *testing.T) {
	mirror := startRegistry(t, "", "", nil)
	mirror.push(t, "library/busybox:latest", imageOf(t, "", map[string]string{"one": "1"}), "", "")
	hosts := t.TempDir()
	for dir, server := range map[string]string{"docker.io": "https://registry-1.docker.io",
		"registry.invalid": "https://registry.invalid"} {
		if err := os.MkdirAll(filepath.Join(hosts, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("server = %q\n\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", server,
			mirror.host)
		if err := os.WriteFile(filepath.Join(hosts, dir, "hosts.toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, Config{RegistryConfig: hosts})
	for _, ref := range []string{"busybox", "registry.invalid/library/busybox:latest"} {
		var lines []string
		id, err := s.Pull(t.Context(), ref, nil, func(m string) { lines = append(lines, m) })
		if err != nil {
			t.Fatal(err)
		}
		if got := imageStatus(t, s, ref); got == nil || got.Id != id {
			t.Errorf("%s: %v", ref, got)
		}
		if len(lines) < 2 || !strings.HasPrefix(lines[0], "resolving") {
			t.Errorf("progress: %q", lines)
		}
	}
}

// A registry that accepts the request and then sends nothing fails the pull, not the node.
func TestStalledPull(t *testing.T) {
	hang := make(chan struct{})
	reg := startRegistry(t, "", "", func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		select {
		case <-hang:
		case <-req.Context().Done():
		}
		return true
	})
	reg.push(t, "app:v1", imageOf(t, "", map[string]string{"one": "1"}), "", "")
	defer close(hang)
	s := openStore(t, Config{StallTimeout: 50 * time.Millisecond})
	_, err := s.Pull(t.Context(), reg.host+"/app:v1", nil, nil)
	if status.Code(err) != codes.Unavailable || !strings.Contains(fmt.Sprint(err), "RegistryUnavailable") {
		t.Errorf("got %v", err)
	}
	expectEmpty(t, s)
}

func TestCancelledPull(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reg := startRegistry(t, "", "", func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		cancel()
		<-req.Context().Done()
		return true
	})
	reg.push(t, "app:v1", imageOf(t, "", map[string]string{"one": "1"}), "", "")
	s := openStore(t, Config{})
	if _, err := s.Pull(ctx, reg.host+"/app:v1", nil, nil); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	expectEmpty(t, s)
	if _, err := s.Pull(t.Context(), reg.host+"/app:v2", nil, nil); status.Code(err) != codes.NotFound {
		t.Errorf("the store is unusable after a cancelled pull: %v", err)
	}
}
