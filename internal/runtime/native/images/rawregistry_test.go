package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// rawRegistry serves the bytes that a test gives it, and may break any answer.
type rawRegistry struct {
	host     string
	contents map[string][]byte // by digest and by tag
	types    map[string]string
	// answer returns true if it has answered the request itself.
	answer   func(w http.ResponseWriter, req *http.Request, what string, body []byte) bool
	requests atomic.Int32
}

func newRawRegistry(t *testing.T) *rawRegistry {
	t.Helper()
	r := &rawRegistry{contents: map[string][]byte{}, types: map[string]string{}}
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

func (r *rawRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.requests.Add(1)
	what := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
	body, ok := r.contents[what]
	if r.answer != nil && r.answer(w, req, what, body) {
		return
	}
	switch {
	case req.URL.Path == "/v2/":
	case !ok:
		http.NotFound(w, req)
	default:
		if m := r.types[what]; m != "" {
			w.Header().Set("Content-Type", m)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
		}
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(body))
	}
}

// add stores a blob and returns its descriptor.
func (r *rawRegistry) add(mediaType string, body []byte) imagespec.Descriptor {
	d := imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(body), Size: int64(len(body))}
	r.contents[d.Digest.String()] = body
	return d
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// image tags an image of the given archives as app:v1. Change may damage its parts.
func (r *rawRegistry) image(archives [][]byte, change ...func(*imagespec.Image, *imagespec.Manifest)) string {
	config := imagespec.Image{RootFS: imagespec.RootFS{Type: "layers"}}
	config.OS, config.Architecture, _ = strings.Cut(hostPlatform(), "/")
	m := imagespec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest}
	for _, a := range archives {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(a); err != nil {
			panic(err)
		}
		if err := z.Close(); err != nil {
			panic(err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(a))
		m.Layers = append(m.Layers, r.add(imagespec.MediaTypeImageLayerGzip, packed.Bytes()))
	}
	for _, f := range change {
		f(&config, &m)
	}
	if m.Config.Digest == "" {
		m.Config = r.add(imagespec.MediaTypeImageConfig, marshal(config))
	}
	return r.tag(marshal(m))
}

// tag creates a manifest app:v1 and returns its reference.
func (r *rawRegistry) tag(manifest []byte) string {
	for _, n := range []string{"v1", digest.FromBytes(manifest).String()} {
		r.contents[n], r.types[n] = manifest, imagespec.MediaTypeImageManifest
	}
	return r.host + "/app:v1"
}

// entry is a file of an archive.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}, body}
}

func link(kind byte, name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: kind, Linkname: to, Mode: 0o777}, ""}
}

func archiveOf(entries ...entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.Header); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}
