package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

func names(t *testing.T, body []byte) []string {
	t.Helper()
	var list []string
	for tr := tar.NewReader(bytes.NewReader(body)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.Name)
	}
}

func TestPackIsReproducibleAndOrdered(t *testing.T) {
	build := func() []byte {
		l := tree{}
		l.hardlink("bin/ls", "bin/busybox")
		l.file("bin/busybox", 0o755, []byte("program"))
		l.symlink("bin", "usr/bin")
		l.text("etc/passwd", "root:x:0:0::/root:/bin/sh")
		var buf bytes.Buffer
		if err := l.pack(&buf); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	first := build()
	want := []string{"bin", "etc/", "etc/passwd", "usr/", "usr/bin/", "usr/bin/busybox", "usr/bin/ls"}
	if got := names(t, first); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for range 5 {
		if !bytes.Equal(first, build()) {
			t.Fatal("the same tree is packed differently")
		}
	}
}

// A package's /lib must not replace the link of the layer below (merged /usr).
func TestPackagesKeepMergedUsr(t *testing.T) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./lib/x.so", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "./usr/share/doc/x/copyright", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	l := tree{}
	if err := l.addTar(&buf); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := l.pack(&packed); err != nil {
		t.Fatal(err)
	}
	if got, want := names(t, packed.Bytes()), []string{"usr/", "usr/lib/", "usr/lib/x.so"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCatalogueIsUnambiguous(t *testing.T) {
	owner := map[string]string{}
	for _, n := range Names() {
		for _, ref := range Refs(n) {
			if other := owner[ref]; other != "" {
				t.Errorf("%s is both %s and %s", ref, other, n)
			}
			owner[ref] = n
		}
	}
	// What the documents' manifests and commands name.
	for _, ref := range []string{"docker.io/library/busybox:latest", "docker.io/library/busybox:1.32.0",
		"docker.io/library/busybox:1.30",
		documents + "/busybox:unstable-uclibc", documents + "/nginx:stable-perl", documents + "/myapp:v1.0",
		documents + "/pod-test:v0.1",
		documents + "/mysql:8.0.41-debian", documents + "/wordpress:php8.1-apache",
		"docker.io/nicolaka/netshoot:latest", "registry.k8s.io/pause:3.10"} {
		if owner[ref] == "" {
			t.Errorf("no image is called %s", ref)
		}
	}
}
