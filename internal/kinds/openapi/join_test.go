package openapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"carob/internal/base/testwait"
)

// documentsOf is a source with documents of OpenAPI v3.
type documentsOf map[string]Document

func (d documentsOf) V3() map[string]Document { return d }
func (d documentsOf) V2() []Document          { return nil }

// A document that is fetched from a server that does not respond keeps no request for another one waiting, nor one for
// the index.
func TestSlowDocumentHoldsUpNoOther(t *testing.T) {
	fetching, release := make(chan struct{}), make(chan struct{})
	m := mux{http.NewServeMux()}
	if err := Install(m, documentsOf{
		"apis/slow.example/v1": {Hash: "1", JSON: func() ([]byte, error) {
			close(fetching)
			<-release
			return []byte("{}"), nil
		}},
		"apis/other.example/v1": {Hash: "1", JSON: func() ([]byte, error) { return []byte("{}"), nil }},
	}); err != nil {
		t.Fatal(err)
	}
	request := func(path string) chan *httptest.ResponseRecorder {
		out := make(chan *httptest.ResponseRecorder, 1)
		go func() { out <- get(m, path) }()
		return out
	}
	slow := request("/openapi/v3/apis/slow.example/v1")
	<-fetching
	for _, path := range []string{"/openapi/v3/apis/other.example/v1", "/openapi/v3"} {
		select {
		case w := <-request(path):
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d", path, w.Code)
			}
		case <-time.After(testwait.Limit):
			t.Errorf("%s waits for another document", path)
		}
	}
	close(release)
	if w := <-slow; w.Code != http.StatusOK || w.Body.String() != "{}" {
		t.Errorf("the slow document: %d %s", w.Code, w.Body)
	}
}
