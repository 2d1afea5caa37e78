package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRegistry(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "a.tar")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range map[string]string{
		"index.json":        `{"manifests":[{"digest":"sha256:aa","mediaType":"application/x-manifest","annotations":{"io.containerd.image.name":"registry.example/some/image:1"}}]}`,
		"blobs/sha256/aa":   "the manifest",
		"blobs/sha256/bb":   strings.Repeat("a layer ", 1000),
		"oci-layout":        "{}",
		"something/else":    "x",
		"blobs/sha256/last": "y",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644,
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(archive, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := startRegistry([]string{archive})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	hosts, err := os.ReadFile(filepath.Join(r.dir, "_default", "hosts.toml"))
	if err != nil {
		t.Fatal(err)
	}
	base := strings.Split(string(hosts), `"`)[1]
	for path, want := range map[string]string{
		"":                                "200  0",
		"some/image/manifests/1":          "200 application/x-manifest 12",
		"some/image/manifests/sha256:aa":  "200 application/x-manifest 12",
		"some/image/blobs/sha256:bb":      "200 application/octet-stream 8000",
		"some/image/manifests/2":          "404 text/plain; charset=utf-8 19",
		"other/image/manifests/1":         "404 text/plain; charset=utf-8 19",
		"some/image/manifests/sha256:bb":  "404 text/plain; charset=utf-8 19",
		"some/image/blobs/sha256:unknown": "404 text/plain; charset=utf-8 19",
	} {
		res, err := http.Get(base + "/v2/" + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if got := fmt.Sprintf("%d %s %d", res.StatusCode, res.Header.Get("Content-Type"), len(body)); got != want ||
			err != nil {
			t.Errorf("%q: %s, not %s, %v", path, got, want, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.dir); err == nil {
		t.Error("the folder is left")
	}
}
