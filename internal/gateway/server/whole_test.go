package server_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"carob/internal/gateway/server"
)

// A read of a body that is wanted as a whole can be ended at any time, and the client gets an answer. For a body that
// has arrived, this has no effect, also on the next request of the connection.
func TestWhole(t *testing.T) {
	failures := make(chan error, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w, ended := server.Parts(w, r, time.Hour)
		defer ended()
		stop := server.Whole(writer{w})
		_, err := io.ReadFull(r.Body, make([]byte, 4))
		if err == nil && r.URL.Path == "/before" {
			stop()
			stop()
		} else if err == nil && r.URL.Path == "/within" {
			over := make(chan struct{})
			defer func() { <-over }()
			go func() { defer close(over); stop(); stop() }()
		}
		_, err = io.Copy(io.Discard, r.Body)
		if err != nil {
			w.WriteHeader(http.StatusRequestTimeout)
		}
		stop()
		failures <- err
	})
	h2 := httptest.NewUnstartedServer(h)
	h2.Config.Protocols = &http.Protocols{}
	h2.Config.Protocols.SetUnencryptedHTTP2(true)
	h2.Start()
	defer h2.Close()
	h1 := "http://" + newLab(t, h).at
	for what, c := range map[string]struct {
		at     string
		length int64
		h2     bool
	}{
		"known":           {h1, 100, false},
		"chunked":         {h1, -1, false},
		"HTTP/2, known":   {h2.URL, 100, true},
		"HTTP/2, unknown": {h2.URL, -1, true},
	} {
		tr := &http.Transport{Protocols: &http.Protocols{}}
		tr.Protocols.SetHTTP1(!c.h2)
		tr.Protocols.SetUnencryptedHTTP2(c.h2)
		for _, path := range []string{"/arrives", "/arrives", "/before", "/within", "/arrives"} {
			body, more := io.Pipe()
			go func() {
				_, _ = io.WriteString(more, "some")
				if path == "/arrives" {
					_, _ = io.WriteString(more, strings.Repeat("x", 96))
					_ = more.Close()
				}
			}()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.at+path, body)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = c.length
			res, err := tr.RoundTrip(r)
			if err != nil {
				t.Fatalf("%s %s: %v", what, path, err)
			}
			_ = res.Body.Close()
			_ = more.Close()
			switch err := <-failures; {
			case path == "/arrives" && (err != nil || res.StatusCode != http.StatusOK):
				t.Errorf("%s: a body that has arrived: %d %v", what, res.StatusCode, err)
			case path != "/arrives" && (!errors.Is(err, os.ErrDeadlineExceeded) ||
				res.StatusCode != http.StatusRequestTimeout):
				t.Errorf("%s %s: %d %v", what, path, res.StatusCode, err)
			}
		}
		tr.CloseIdleConnections()
	}
	server.Whole(httptest.NewRecorder())() // a writer of somebody else
}

// writer wraps one.
type writer struct{ http.ResponseWriter }

func (w writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
