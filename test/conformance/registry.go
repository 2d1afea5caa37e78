package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// registry serves the images of OCI archives by loopback, to be pulled under all
// their names: some tests always pull.
type registry struct {
	dir   string // of a hosts.toml that makes it the mirror of all registries
	srv   *http.Server
	named map[string]string // path:tag of an image to the digest of its manifest
	types map[string]string // media types of manifests by digest
	blobs map[string]*io.SectionReader
	files []*os.File
}

func startRegistry(archives []string) (*registry, error) {
	r := &registry{named: map[string]string{}, types: map[string]string{}, blobs: map[string]*io.SectionReader{}}
	for _, name := range archives {
		if err := r.add(name); err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", name, err), r.Close())
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if r.dir, err = os.MkdirTemp("", "carob-conformance-hosts-"); err != nil {
		return nil, errors.Join(err, l.Close(), r.Close())
	}
	hosts := filepath.Join(r.dir, "_default", "hosts.toml")
	err = os.MkdirAll(filepath.Dir(hosts), 0o755)
	if err == nil {
		err = os.WriteFile(hosts,
			fmt.Appendf(nil, "[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", l.Addr()), 0o644)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), r.Close())
	}
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go r.srv.Serve(l)
	return r, nil
}

// Close ends the server; the archives stay.
func (r *registry) Close() error {
	var all []error
	if r.srv != nil {
		all = append(all, r.srv.Close())
	}
	for _, f := range r.files {
		all = append(all, f.Close())
	}
	return errors.Join(append(all, os.RemoveAll(r.dir))...)
}

// add notes where in an archive its blobs are.
func (r *registry) add(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	r.files = append(r.files, f)
	var index struct {
		Manifests []struct {
			Digest, MediaType string
			Annotations       map[string]string
		}
	}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if sum, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && sum != "" {
			at, err := f.Seek(0, io.SeekCurrent) // a tar's reader is never ahead of its file
			if err != nil {
				return err
			}
			r.blobs["sha256:"+sum] = io.NewSectionReader(f, at, h.Size)
		}
		if h.Name == "index.json" {
			if err := json.NewDecoder(t).Decode(&index); err != nil {
				return err
			}
		}
	}
	for _, m := range index.Manifests {
		_, path, ok := strings.Cut(m.Annotations["io.containerd.image.name"], "/")
		if !ok || r.blobs[m.Digest] == nil {
			return fmt.Errorf("image %q has no name or no manifest", m.Annotations["io.containerd.image.name"])
		}
		r.named[path], r.types[m.Digest] = m.Digest, m.MediaType
	}
	return nil
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	if path == "" {
		return
	}
	digest, kind := "", "application/octet-stream"
	if name, ref, ok := strings.Cut(path, "/manifests/"); ok {
		if digest = r.named[name+":"+ref]; digest == "" && r.types[ref] != "" {
			digest = ref
		}
		kind = r.types[digest]
	} else if _, ref, ok := strings.Cut(path, "/blobs/"); ok {
		digest = ref
	}
	blob := r.blobs[digest]
	if blob == nil {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeContent(w, q, "", time.Time{}, io.NewSectionReader(blob, 0, blob.Size()))
}
