// Package openapi serves the OpenAPI documents of the API, generated at build time by
// tools/cmd/openapi and embedded compressed. On request, it joins them with documents that exist
// only at run time (custom resources, aggregated API servers). The API server installs it. It must
// never build a document of the built-in kinds: that would cost a tenth of a second at the start
// and tens of megabytes.
package openapi

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed all:documents
var documents embed.FS

// Mux registers the handlers.
type Mux interface {
	Handle(path string, h http.Handler)
	HandlePrefix(path string, h http.Handler)
}

const (
	protoV2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	protoV3 = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"

	jsonMedia = "application/json"
)

// Install serves /openapi/v2 and /openapi/v3: the documents generated at build time, joined with
// the sources' documents at the time of the request.
func Install(mux Mux, sources ...Source) error {
	v2 := &document{base: "v2", proto: protoV2}
	if err := v2.load(); err != nil {
		return err
	}
	index := &document{base: "v3"}
	if err := index.load(); err != nil {
		return err
	}
	entries, err := documents.ReadDir("documents/v3")
	if err != nil {
		return fmt.Errorf("read the OpenAPI documents: %w", err)
	}
	groups := map[string]*document{}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), ".json.gz")
		if !ok {
			continue
		}
		d := &document{base: "v3/" + base, proto: protoV3}
		if err := d.load(); err != nil {
			return err
		}
		groups[strings.ReplaceAll(base, "_", "/")] = d
	}
	joined := &joiner{sources: sources, v2: v2, index: index, groups: groups, made: map[string]*made{}}
	mux.Handle("/openapi/v2", http.HandlerFunc(joined.serveV2))
	mux.Handle("/openapi/v3", http.HandlerFunc(joined.serveIndex))
	mux.HandlePrefix("/openapi/v3/", http.HandlerFunc(joined.serveV3))
	return nil
}

// document is one OpenAPI document. Its bytes stay in the binary until requested, because kubectl
// requests it rarely, and copies of all documents would need megabytes of heap.
type document struct {
	base  string // path below documents without extension
	proto string // media type of the protobuf form; empty if there is none
	etag  string
}

// load checks that the document exists and reads its hash.
func (d *document) load() error {
	if d.proto != "" {
		if _, err := fs.Stat(documents, d.file(".pb.gz")); err != nil {
			return fmt.Errorf("read the OpenAPI documents: %w", err)
		}
	}
	b, err := documents.ReadFile(d.file(".json.gz"))
	if err != nil {
		return fmt.Errorf("read the OpenAPI documents: %w", err)
	}
	d.etag = Hash(b)
	return nil
}

func (d *document) file(extension string) string { return path.Join("documents", d.base+extension) }

// Hash identifies the content of a compressed document by gzip's checksum and length, which are its
// last eight bytes.
func Hash(compressed []byte) string { return fmt.Sprintf("%X", compressed[len(compressed)-8:]) }

// compressed returns a form of the document as embedded.
func (d *document) compressed(proto bool) ([]byte, error) {
	if proto {
		return documents.ReadFile(d.file(".pb.gz"))
	}
	return documents.ReadFile(d.file(".json.gz"))
}

// ServeHTTP writes the form that the client accepts, compressed if it accepts that.
func (d *document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer(w, r, d.etag, d.proto, d.compressed)
}

// answer writes a document of the given hash; proto is the media type of its protobuf form (empty
// if there is none), and compressed returns a form.
func answer(w http.ResponseWriter, r *http.Request, hash, proto string, compressed func(proto bool) ([]byte, error)) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the OpenAPI documents are read only", http.StatusMethodNotAllowed)
		return
	}
	inProto, media, tag := false, jsonMedia, `"`+hash+`"`
	switch accepts(r.Header.Get("Accept"), proto) {
	case "":
		w.WriteHeader(http.StatusNotAcceptable)
		return
	case proto:
		inProto, media, tag = true, proto, `"`+hash+`-pb"`
	}
	h := w.Header()
	h.Set("Content-Type", media)
	h.Set("Vary", "Accept, Accept-Encoding")
	h.Set("Etag", tag)
	if requested := r.URL.Query().Get("hash"); requested != "" {
		if requested != hash {
			u := *r.URL
			u.RawQuery = "hash=" + hash
			http.Redirect(w, r, u.String(), http.StatusMovedPermanently)
			return
		}
		h.Set("Cache-Control", "public, immutable")
		h.Set("Expires", "Tue, 19 Jan 2038 03:14:07 GMT")
	}
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, err := compressed(inProto)
	if err != nil {
		for _, k := range []string{"Cache-Control", "Expires", "Etag", "Content-Type"} {
			h.Del(k)
		}
		http.Error(w, "the OpenAPI document cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		_, _ = w.Write(body) // the client has disconnected
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		http.Error(w, "the OpenAPI document is damaged", http.StatusInternalServerError)
		return
	}
	_, _ = io.Copy(w, z) // the client has disconnected
}

// accepts returns the first media type of an Accept header that a document has: JSON, or its
// protobuf form, also by its older name with an @. It is empty if there is none.
func accepts(accept, proto string) string {
	if strings.TrimSpace(accept) == "" || proto == "" { // the index has one form, whatever is requested
		return jsonMedia
	}
	for clause := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(clause, ";")
		switch media = strings.ToLower(strings.TrimSpace(media)); {
		case media == jsonMedia, media == "application/*", media == "*/*":
			return jsonMedia
		case strings.Replace(media, "@", ".", 1) == strings.ToLower(proto):
			return proto
		}
	}
	return ""
}
