package openapi

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

type mux struct{ *http.ServeMux }

func (m mux) HandlePrefix(path string, h http.Handler) { m.Handle(path, h) }

func serve(t *testing.T) http.Handler {
	t.Helper()
	m := mux{http.NewServeMux()}
	if err := Install(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func get(h http.Handler, url string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Every path in the index leads to a document with that hash, in both forms.
func TestIndex(t *testing.T) {
	h := serve(t)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(get(h, "/openapi/v3").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"api/v1", "apis/apps/v1", "apis/rbac.authorization.k8s.io/v1", "version"} {
		if _, ok := index.Paths[want]; !ok {
			t.Errorf("%s is not described", want)
		}
	}
	for name, p := range index.Paths {
		for _, accept := range []string{"application/json", protoV3} {
			w := get(h, p.ServerRelativeURL, "Accept", accept)
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != accept ||
				!strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
				t.Errorf("%s as %s: %d, %v", name, accept, w.Code, w.Header())
			}
		}
	}
}

func TestV2(t *testing.T) {
	h := serve(t)
	w := get(h, "/openapi/v2", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Definitions map[string]any
		Paths       map[string]any
	}
	if err := json.NewDecoder(z).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if doc.Definitions["io.k8s.api.core.v1.Pod"] == nil ||
		doc.Paths["/api/v1/namespaces/{namespace}/pods/{name}/status"] == nil {
		t.Errorf("%d definitions, %d paths", len(doc.Definitions), len(doc.Paths))
	}
	again := get(h, "/openapi/v2", "If-None-Match", w.Header().Get("Etag"))
	if again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("unchanged: %d", again.Code)
	}
	if w := get(h, "/openapi/v3/api/v1?hash=OLD"); w.Code != http.StatusMovedPermanently {
		t.Errorf("an old hash: %d", w.Code)
	}
	if w := get(h, "/openapi/v3/apis/none/v1"); w.Code != http.StatusNotFound {
		t.Errorf("an unknown group: %d", w.Code)
	}
}
