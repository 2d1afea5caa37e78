package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/core/httproute"
	"carob/internal/gateway/resend"
)

// inMemory is a backend without a network.
type inMemory struct {
	serve func(r *http.Request) (*http.Response, error)
}

func (b inMemory) RoundTrip(r *http.Request) (*http.Response, error) { return b.serve(r) }
func (inMemory) CloseIdleConnections()                               {}

// paced is a body whose parts arrive after a while each.
type paced struct {
	parts int
	each  time.Duration
}

func (b *paced) Read(p []byte) (int, error) {
	time.Sleep(b.each)
	if b.parts--; b.parts < 0 {
		return 0, io.EOF
	}
	return copy(p, "x"), nil
}

func (*paced) Close() error { return nil }

// The read timeout of an Ingress is that of the backend: an upload that takes longer goes on, and so does one whose
// client pauses. A backend that does not read, does not respond, or stops within its response is ended.
func TestReadTimeoutOfUploads(t *testing.T) {
	const limit = time.Second
	respond := func(r *http.Request, body io.Reader) *http.Response {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body), Request: r}
	}
	silent := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	for what, c := range map[string]struct {
		serve func(*http.Request) (*http.Response, error)
		fails bool
		took  time.Duration
	}{
		"a long upload": {func(r *http.Request) (*http.Response, error) {
			_, err := io.Copy(io.Discard, r.Body)
			time.Sleep(limit / 2)
			return respond(r, http.NoBody), err
		}, false, 11*3*limit + limit/2},
		"a backend that does not respond": {func(r *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, r.Body)
			return silent(r)
		}, true, 11*3*limit + limit},
		"a backend that does not read": {silent, true, limit},
		"a backend that stops reading": {func(r *http.Request) (*http.Response, error) {
			_, _ = r.Body.Read(make([]byte, 1))
			return silent(r)
		}, true, 3*limit + limit},
		"a backend that responds before the end of the body, and stops": {
			func(r *http.Request) (*http.Response, error) {
				go func() { _, _ = io.Copy(io.Discard, r.Body) }()
				time.Sleep(limit / 2)
				body, w := io.Pipe()
				go func() {
					<-r.Context().Done()
					_ = w.CloseWithError(r.Context().Err())
				}()
				return respond(r, body), nil
			}, true, limit/2 + limit},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := httptest.NewRequest(http.MethodPut, "/", http.NoBody).WithContext(t.Context())
				in.Body = &paced{parts: 10, each: 3 * limit}
				x := &exchange{in: in, met: httproute.Result{Rule: &httproute.Rule{ReadTimeout: limit}},
					body: &resend.Body{ReadCloser: in.Body}}
				out := in.Clone(t.Context())
				out.Body, out.GetBody = x.body.Attempt(), x.body.Again
				to := &Target{host: "backend", traffic: newTraffic(),
					transports: map[mode]*keptTransport{{}: {transport: inMemory{c.serve}}}}
				begun := time.Now()
				res, err := x.attempt(out, to, mode{})
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				if took := time.Since(begun); took != c.took || (err != nil) != c.fails {
					t.Errorf("after %v: %v; want after %v", took, err, c.took)
				}
				if c.fails && res == nil && !errors.Is(err, errReadTimeout) {
					t.Error(err)
				}
				time.Sleep(100 * limit) // whoever still reads ends
			})
		})
	}
}
