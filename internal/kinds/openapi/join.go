package openapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
)

// Source provides documents of kinds that are not built in.
type Source interface {
	// V3 returns the documents by path ("apis/GROUP/VERSION").
	V3() map[string]Document
	// V2 returns parts of the single document of OpenAPI v2.
	V2() []Document
}

// Document is a document or a part of one.
type Document struct {
	// Hash changes with the document. It is cheap to call.
	Hash string
	// JSON builds the document; it may take long.
	JSON func() ([]byte, error)
}

// joiner serves the static documents together with those of the sources. It caches the result,
// compressed, until the hash changes.
type joiner struct {
	sources   []Source
	v2, index *document
	groups    map[string]*document

	mu   sync.Mutex       // never held while a document is built
	made map[string]*made // by path
}

// made is a document with a hash.
type made struct {
	hash string

	mu          sync.Mutex // never held while the document is built
	json, proto form
}

// form is one format of a document.
type form struct {
	text    []byte   // compressed; nil until it was built
	running *attempt // nil: it is not being built
}

// attempt is one attempt to build a format. Its result is set before done is closed.
type attempt struct {
	done chan struct{}
	text []byte
	err  error
}

// of returns the document at path with the given hash, which may not have been built yet.
func (j *joiner) of(path, hash string) *made {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.made[path]
	if m == nil || m.hash != hash {
		m = &made{hash: hash}
		j.made[path] = m
	}
	return m
}

// in returns a format of the document, built once. Other requests for it wait meanwhile, and get the same result or
// error: each waits for one attempt at most. Those for other documents do not wait.
func (m *made) in(ctx context.Context, asProto bool, text func() ([]byte, error),
	parse func([]byte) (proto.Message, error)) ([]byte, error) {
	inJSON, err := m.once(ctx, &m.json, func() ([]byte, error) {
		b, err := text()
		if err != nil {
			return nil, err
		}
		return compress(b)
	})
	if err != nil || !asProto {
		return inJSON, err
	}
	return m.once(ctx, &m.proto, func() ([]byte, error) {
		b, err := expand(inJSON)
		if err != nil {
			return nil, err
		}
		parsed, err := parse(b)
		if err != nil {
			return nil, fmt.Errorf("parse the document: %w", err)
		}
		if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(parsed); err != nil {
			return nil, err
		}
		return compress(b)
	})
}

// once builds a format in the caller's goroutine, or waits for who builds it.
func (m *made) once(ctx context.Context, f *form, build func() ([]byte, error)) ([]byte, error) {
	m.mu.Lock()
	if f.text != nil {
		defer m.mu.Unlock()
		return f.text, nil
	}
	if a := f.running; a != nil {
		m.mu.Unlock()
		select {
		case <-a.done:
			return a.text, a.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	a := &attempt{done: make(chan struct{}), err: errors.New("the request that built it failed")}
	f.running = a
	m.mu.Unlock()
	defer func() { // also after a panic, which ends only this request
		m.mu.Lock()
		f.text, f.running = a.text, nil
		m.mu.Unlock()
		close(a.done)
	}()
	a.text, a.err = build()
	return a.text, a.err
}

// forget drops the cache of documents that are gone.
func (j *joiner) forget(gone func(path string) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p := range j.made {
		if gone(p) {
			delete(j.made, p)
		}
	}
}

func (j *joiner) extra() map[string]Document {
	out := map[string]Document{}
	for _, s := range j.sources {
		for path, d := range s.V3() {
			if j.groups[path] == nil {
				out[path] = d
			}
		}
	}
	return out
}

func (j *joiner) serveIndex(w http.ResponseWriter, r *http.Request) {
	extra := j.extra()
	j.forget(func(p string) bool { _, ok := extra[p]; return !ok && p != v2Path })
	if len(extra) == 0 {
		j.index.ServeHTTP(w, r)
		return
	}
	hash := sha256.New()
	fmt.Fprintln(hash, j.index.etag)
	for _, p := range sortedKeys(extra) {
		fmt.Fprintln(hash, p, extra[p].Hash)
	}
	answer(w, r, fmt.Sprintf("%X", hash.Sum(nil)[:16]), "", func(bool) ([]byte, error) {
		type entry struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		}
		var doc struct {
			Paths map[string]entry `json:"paths"`
		}
		if err := j.index.unmarshal(&doc); err != nil {
			return nil, err
		}
		for p, d := range extra {
			doc.Paths[p] = entry{"/openapi/v3/" + p + "?hash=" + d.Hash}
		}
		b, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		return compress(b)
	})
}

func (j *joiner) serveV3(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	if d := j.groups[path]; d != nil {
		d.ServeHTTP(w, r)
		return
	}
	d, ok := j.extra()[path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	answer(w, r, d.Hash, protoV3, func(asProto bool) ([]byte, error) {
		return j.of(path, d.Hash).in(r.Context(), asProto, d.JSON,
			func(b []byte) (proto.Message, error) { return openapi_v3.ParseDocument(b) })
	})
}

const v2Path = "v2"

func (j *joiner) serveV2(w http.ResponseWriter, r *http.Request) {
	var parts []Document
	for _, s := range j.sources {
		parts = append(parts, s.V2()...)
	}
	if len(parts) == 0 {
		j.v2.ServeHTTP(w, r)
		return
	}
	sum := sha256.New()
	fmt.Fprintln(sum, j.v2.etag)
	for _, p := range parts {
		fmt.Fprintln(sum, p.Hash)
	}
	hash := fmt.Sprintf("%X", sum.Sum(nil)[:16])
	answer(w, r, hash, protoV2, func(asProto bool) ([]byte, error) {
		return j.of(v2Path, hash).in(r.Context(), asProto, func() ([]byte, error) { return j.mergeV2(parts) },
			func(b []byte) (proto.Message, error) { return openapi_v2.ParseDocument(b) })
	})
}

// mergeV2 adds the paths and definitions of parts to the static document. Definitions that both
// have, such as ObjectMeta, are equal; the first one is used. A part that cannot be built is left
// out: one bad definition must not hide all others.
func (j *joiner) mergeV2(parts []Document) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := j.v2.unmarshal(&doc); err != nil {
		return nil, err
	}
	merged := map[string]map[string]json.RawMessage{}
	members := []string{"paths", "definitions"}
	for _, m := range members {
		var v map[string]json.RawMessage
		if err := json.Unmarshal(doc[m], &v); err != nil {
			return nil, fmt.Errorf("read the OpenAPI document: %w", err)
		}
		merged[m] = v
	}
	for _, p := range parts {
		text, err := p.JSON()
		if err != nil {
			continue
		}
		var part map[string]json.RawMessage
		if json.Unmarshal(text, &part) != nil {
			continue
		}
		for _, m := range members {
			var v map[string]json.RawMessage
			if json.Unmarshal(part[m], &v) != nil {
				continue
			}
			for k, x := range v {
				if _, ok := merged[m][k]; !ok {
					merged[m][k] = x
				}
			}
		}
	}
	for _, m := range members {
		b, err := json.Marshal(merged[m])
		if err != nil {
			return nil, err
		}
		doc[m] = b
	}
	return json.Marshal(doc)
}

// unmarshal reads a static document.
func (d *document) unmarshal(into any) error {
	z, err := d.compressed(false)
	if err != nil {
		return fmt.Errorf("read the OpenAPI documents: %w", err)
	}
	b, err := expand(z)
	if err != nil {
		return fmt.Errorf("read the OpenAPI documents: %w", err)
	}
	return json.Unmarshal(b, into)
}

func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func expand(z []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
