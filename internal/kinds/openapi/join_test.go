package openapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// Requests for a document that hangs wait for one attempt, not one after another: they get its error, and the next one
// tries again. Who does not wait any longer gets an answer at once.
func TestSlowDocumentIsFetchedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fetches atomic.Int32
		const wait = 30 * time.Second
		m := mux{http.NewServeMux()}
		if err := Install(m, documentsOf{"apis/slow.example/v1": {Hash: "1", JSON: func() ([]byte, error) {
			n := fetches.Add(1)
			time.Sleep(wait)
			switch n {
			case 1:
				return nil, errors.New("it hangs")
			case 2:
				panic("a document that crashes its reader")
			}
			return []byte("{}"), nil
		}}}); err != nil {
			t.Fatal(err)
		}
		request := func(ctx context.Context) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/openapi/v3/apis/slow.example/v1", nil)
			m.ServeHTTP(w, r)
			return w.Code
		}
		const failed = http.StatusInternalServerError
		for attempt, want := range []int{failed, failed, http.StatusOK} {
			began, codes := time.Now(), make([]int, 5)
			var all sync.WaitGroup
			for i := range codes {
				all.Go(func() {
					defer func() { // as the server does
						if recover() != nil {
							codes[i] = failed
						}
					}()
					codes[i] = request(t.Context())
				})
			}
			synctest.Wait()
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			if code := request(short); code != failed || time.Since(began) != time.Second {
				t.Errorf("who does not wait gets %d after %v", code, time.Since(began))
			}
			cancel()
			all.Wait()
			if n := int(fetches.Load()); n != attempt+1 || time.Since(began) != wait {
				t.Errorf("attempt %d: %d fetches, %v", attempt, n, time.Since(began))
			}
			for _, code := range codes {
				if code != want {
					t.Errorf("attempt %d: %v, want %d", attempt, codes, want)
				}
			}
		}
		if code := request(t.Context()); code != http.StatusOK || fetches.Load() != 3 {
			t.Errorf("then: %d, %d fetches", code, fetches.Load())
		}
	})
}
