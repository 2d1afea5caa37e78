package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
)

// fake is a backend.
type fake struct {
	res     func() *http.Response
	err     error
	early   int
	hints   []string // fields of early; nil: one
	got     string   // the request
	release func() error
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		text, _ = io.ReadAll(r.Body)
		f.release = func() error { _, err := r.Body.Read(make([]byte, 1)); return err }
	}
	f.got = fmt.Sprint(r.Method, " ", r.URL, " ", r.Host, " ", lines(r.Header), " ", r.ContentLength, " ", string(text),
		" ", lines(r.Trailer))
	if f.early > 0 {
		h := textproto.MIMEHeader{}
		for i := 0; i+1 < len(f.hints); i += 2 {
			h.Add(f.hints[i], f.hints[i+1])
		}
		if len(h) == 0 {
			h.Set("Link", "x")
		}
		if err := early(r)(f.early, h); err != nil {
			return nil, err
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.res(), nil
}

// early takes an informational response.
func early(r *http.Request) func(code int, h textproto.MIMEHeader) error {
	if pass := EarlyOf(r.Context()); pass != nil {
		return pass
	}
	return httptrace.ContextClientTrace(r.Context()).Got1xxResponse
}

// recorder records an answer, and what comes before it.
type recorder struct {
	*httptest.ResponseRecorder
	early []string
}

func (r *recorder) WriteHeader(code int) {
	if code < http.StatusOK {
		r.early = append(r.early, fmt.Sprint(code, lines(r.Header())))
		return
	}
	r.ResponseRecorder.WriteHeader(code)
}

// lines are the fields of a header in their order.
func lines(h http.Header) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&out, "%s=%q ", name, h[name])
	}
	return out.String()
}

func rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	Forwarded(pr)
	pr.Out.Header.Add("X-Added", "more")
}

// theirs is rewrite for the ReverseProxy.
func theirs(pr *httputil.ProxyRequest) {
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	pr.SetXForwarded()
	pr.Out.Header.Add("X-Added", "more")
}

// backend is a Backend with the functions above.
type backend struct{ http.RoundTripper }

func (backend) Rewrite(pr *httputil.ProxyRequest)                      { rewrite(pr) }
func (backend) Answer(res *http.Response)                              { change(res) }
func (backend) Fail(w http.ResponseWriter, r *http.Request, err error) { fail(w, r, err) }

func change(res *http.Response) { res.Header.Add("X-Answer", "changed") }

func fail(w http.ResponseWriter, _ *http.Request, _ error) {
	http.Error(w, "failed", http.StatusBadGateway)
}

// compare passes a request on in both ways, and returns what backend and client got if it is the same.
func compare(t *testing.T, r func() *http.Request, f fake) (got, answered string) {
	t.Helper()
	one := func(serve func(f *fake, w http.ResponseWriter, r *http.Request)) (string, string) {
		f, w := f, &recorder{ResponseRecorder: httptest.NewRecorder()}
		in := r()
		before := lines(in.Header)
		panicked := func() (p any) {
			defer func() { p = recover() }()
			serve(&f, w, in)
			return nil
		}()
		if after := lines(in.Header); before != after {
			t.Errorf("the client's header was changed: %s, before %s", after, before)
		}
		if f.release != nil {
			if err := f.release(); err == nil || errors.Is(err, io.EOF) {
				t.Error("the body can be read after the request")
			}
		}
		res := w.Result()
		return f.got, fmt.Sprint(w.early, res.StatusCode, " ", lines(res.Header), " ", w.Body, " ",
			lines(res.Trailer), " ", w.Flushed, " ", panicked)
	}
	got, answered = one(func(f *fake, w http.ResponseWriter, r *http.Request) {
		Serve(r.Context(), w, r, backend{f})
	})
	want, wanted := one(func(f *fake, w http.ResponseWriter, r *http.Request) {
		p := httputil.ReverseProxy{Rewrite: theirs, Transport: f, ErrorHandler: fail, ErrorLog: noLog,
			ModifyResponse: func(res *http.Response) error { change(res); untyped(w.Header(), res); return nil }}
		p.ServeHTTP(w, r)
	})
	if got != want {
		t.Errorf("the backend got\n%s\nwant\n%s", got, want)
	}
	if answered != wanted {
		t.Errorf("the client got\n%s\nwant\n%s", answered, wanted)
	}
	return got, answered
}

func request(method, body string, fields ...string) func() *http.Request {
	return func() *http.Request {
		r := httptest.NewRequest(method, "http://a.example.com/p%2Fq?x=1;y", nil)
		if body != "" {
			r.Body, r.ContentLength = &once{Reader: strings.NewReader(body)}, int64(len(body))
		}
		for i := 0; i+1 < len(fields); i += 2 {
			r.Header.Add(fields[i], fields[i+1])
		}
		return r
	}
}

// contextOfServer is that of a request that net/http's server serves: only then a ReverseProxy panics.
func contextOfServer(r *http.Request) context.Context {
	return context.WithValue(r.Context(), http.ServerContextKey, &http.Server{ReadHeaderTimeout: time.Hour})
}

type once struct{ io.Reader }

func (o *once) Close() error { return nil }

func response(status int, length int64, body string, fields ...string) func() *http.Response {
	return func() *http.Response {
		res := &http.Response{StatusCode: status, ContentLength: length, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader(body))}
		for i := 0; i+1 < len(fields); i += 2 {
			res.Header.Add(fields[i], fields[i+1])
		}
		return res
	}
}

type broken struct{ io.Reader }

func (b broken) Read(p []byte) (int, error) {
	if n, err := b.Reader.Read(p); err == nil {
		return n, nil
	}
	return 0, io.ErrUnexpectedEOF
}

// What backends and clients get is what net/http/httputil's ReverseProxy gives them.
func TestSameAsReverseProxy(t *testing.T) {
	fine := func() *http.Response { return response(200, 2, "ok", "Content-Length", "2")() }
	for _, tc := range []struct {
		name string
		r    func() *http.Request
		f    fake
		want string // a part of what both got
	}{
		{"plain", request("GET", "", "Accept", "*/*"), fake{res: fine}, "200"},
		{"a body", request("POST", "text", "User-Agent", "x"), fake{res: fine}, " 4 text"},
		{"hop by hop", request("GET", "", "Connection", "keep-alive, x-secret", "X-Secret", "1", "Keep-Alive", "1",
			"Proxy-Authorization", "x", "Te", "trailers, deflate", "Transfer-Encoding", "x", "Proxy-Connection", "x"),
			fake{res: fine}, `Te=["trailers"]`},
		{"connection names what is needed", request("GET", "", "Connection", "close, X-Forwarded-For, Host, X-Added"),
			fake{res: fine}, "X-Forwarded-For="},
		{"claims", request("GET", "", "X-Forwarded-For", "1.2.3.4", "Forwarded", "for=1.2.3.4", "X-Forwarded-Proto",
			"https", "X-Forwarded-Host", "evil"), fake{res: fine}, `X-Forwarded-For=["192.0.2.1"]`},
		{"many values", request("GET", "", "X-Added", "a", "X-Added", "b"), fake{res: fine}, `["a" "b" "more"]`},
		{"an answer for one connection", request("GET", ""), fake{res: response(200, 2, "ok",
			"Connection", "X-Hop, close", "X-Hop", "1", "Keep-Alive", "x", "Set-Cookie", "a", "Set-Cookie", "b",
			"Trailer", "x", "Upgrade", "h2c")}, `Set-Cookie=["a" "b"]`},
		{"a stream", request("GET", ""), fake{res: response(200, -1, "data")}, "true"},
		{"events", request("GET", ""), fake{res: response(200, 4, "data", "Content-Type",
			"Text/Event-Stream; charset=utf-8")}, "true"},
		{"no events", request("GET", ""), fake{res: response(200, 4, "data", "Content-Type",
			"application/text/event-stream")}, "false"},
		{"hints", request("GET", ""), fake{res: fine, early: 103}, `[103Link=["x"]`},
		{"no backend", request("GET", ""), fake{err: errors.New("no backend")}, "502"},
		{"no body", request("HEAD", ""), fake{res: func() *http.Response {
			return &http.Response{StatusCode: http.StatusNotModified, Body: http.NoBody,
				Header: http.Header{"Content-Length": {"7"}}}
		}}, "304"},
		{"another protocol", request("GET", ""), fake{res: response(101, 0, "", "Upgrade", "x")}, "502"},
		{"trailers", request("GET", ""), fake{res: func() *http.Response {
			res := response(200, -1, "data")()
			res.Trailer = http.Header{"X-T": {"v"}}
			return res
		}}, `X-T=["v"]`},
		{"a broken answer", func() *http.Request {
			r := request("GET", "")()
			return r.WithContext(contextOfServer(r))
		}, fake{res: func() *http.Response {
			res := response(200, 9, "")()
			res.Body = io.NopCloser(broken{strings.NewReader("data")})
			return res
		}}, http.ErrAbortHandler.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, answered := compare(t, tc.r, tc.f)
			if all := got + "\n" + answered; !strings.Contains(all, tc.want) {
				t.Errorf("%s\nhas no %s", all, tc.want)
			}
		})
	}
}

// The same for any header of a request and an answer.
func FuzzHeaders(f *testing.F) {
	f.Add("Connection", "X-Forwarded-For, close", "Te", "trailers", "Connection", "Content-Length", true)
	f.Add("connection", "te\x00, ,", "X-Forwarded-For", "a", "Trailer", "X", false)
	f.Add("Keep-Alive", "", "Connection", "Connection, keep-Alive", "upgrade", "h2c", false)
	f.Fuzz(func(t *testing.T, name, value, other, more, back, text string, stream bool) {
		length := int64(2)
		if stream {
			length = -1
		}
		for _, n := range []string{name, other, back} {
			if http.CanonicalHeaderKey(n) == "Upgrade" || !httpguts.ValidHeaderFieldName(n) {
				return // left to the ReverseProxy; no server lets others in
			}
		}
		compare(t, request("GET", "", name, value, other, more), fake{res: func() *http.Response {
			return response(200, length, "ok", back, text)()
		}})
	})
}

// Adding a value for a backend does not write to the client's header, with any capacity of its slice.
func TestClientHeaderIsNotChanged(t *testing.T) {
	r := request("GET", "")()
	values := append(make([]string, 0, 4), "one")
	r.Header["X-Added"] = values
	f := fake{res: response(200, 2, "ok")}
	Serve(r.Context(), httptest.NewRecorder(), r, backend{&f})
	if !strings.Contains(f.got, `X-Added=["one" "more"]`) || values[:2][1] != "" {
		t.Errorf("the backend got %s, the client's values are %q", f.got, values[:2])
	}
}

// However many large answers are on their way, at most some of them have a large buffer.
func TestLargeBuffersAreBounded(t *testing.T) {
	var b buffers
	var puts []func()
	sizes := map[int]int{}
	for range mostLarge + 10 {
		buf, put := b.get(1 << 20)
		puts = append(puts, put)
		sizes[len(buf)]++
	}
	if sizes[largeBytes] != mostLarge || sizes[bufferBytes] != 10 {
		t.Errorf("buffers by size: %v", sizes)
	}
	for _, size := range []int64{-1, 0, bufferBytes} {
		buf, put := b.get(size)
		if put(); len(buf) != bufferBytes {
			t.Errorf("%d bytes for an answer of %d", len(buf), size)
		}
	}
	for _, put := range puts {
		put()
	}
	if buf, put := b.get(1 << 20); len(buf) != largeBytes {
		t.Errorf("%d bytes when none is in use", len(buf))
	} else {
		put()
	}
	if n := b.inUse.Load(); n != 0 {
		t.Errorf("%d are in use", n)
	}
}
