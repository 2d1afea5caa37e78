package e2e

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	server "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// registry serves the test images on loopback under every name they have; dir
// holds a hosts.toml that makes it the mirror of all registries.
type registry struct {
	dir  string
	srv  *http.Server
	addr string
}

const refAnnotation = "io.containerd.image.name"

func startRegistry(archives string) (*registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "carob-e2e-hosts-")
	if err != nil {
		return nil, err
	}
	r := &registry{dir: dir, addr: l.Addr().String(),
		srv: &http.Server{Handler: server.New(server.Logger(log.New(io.Discard, "", 0)))}}
	go r.srv.Serve(l)
	toml := fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.addr)
	if err := os.MkdirAll(filepath.Join(dir, "_default"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "_default", "hosts.toml"), []byte(toml), 0o644); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(archives, "*.tar"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no images in %s: use `make images`", archives)
	}
	for _, f := range files {
		if err := r.push(f); err != nil {
			return nil, fmt.Errorf("push %s: %w", f, err)
		}
	}
	return r, nil
}

func (r *registry) Close() {
	_ = r.srv.Close()
	_ = os.RemoveAll(r.dir)
}

// push loads an OCI archive and stores it under the path of each of its names.
func (r *registry) push(archive string) error {
	dir, err := os.MkdirTemp("", "carob-e2e-layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := untar(archive, dir); err != nil {
		return err
	}
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range m.Manifests {
		full := d.Annotations[refAnnotation]
		_, path, ok := strings.Cut(full, "/")
		if !ok {
			continue
		}
		ref, err := name.ParseReference(r.addr+"/"+path, name.Insecure)
		if err != nil {
			return err
		}
		img, err := idx.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, img); err != nil {
			return err
		}
	}
	return nil
}

func untar(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, 0o755)
		} else {
			err = writeFrom(to, tr)
		}
		if err != nil {
			return err
		}
	}
}

func writeFrom(to string, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, r); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
