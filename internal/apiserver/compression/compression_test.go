package compression

import (
	"bytes"
	stdgzip "compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { Serve(w, r, next.ServeHTTP) })
}

// text returns n bytes that gzip shortens.
func text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a long answer\n", i)
	}
	return b.Bytes()[:n]
}

// write returns a handler that writes an answer in pieces.
func write(pieces ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if e := r.Header.Get(acceptEncoding); e != "" {
			panic("next sees Accept-Encoding: " + e)
		}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusOK)
		for _, p := range pieces {
			if n, err := w.Write(p); n != len(p) || err != nil {
				panic(fmt.Sprint(n, err))
			}
		}
	}
}

// get sends a GET request over a real connection, and returns the answer with its body as it was sent.
func get(t *testing.T, h http.Handler, accepted string) (*http.Response, []byte) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	client := s.Client()
	client.Transport.(*http.Transport).DisableCompression = true //nolint:forcetypeassert // httptest's
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if accepted != "" {
		req.Header.Set(acceptEncoding, accepted)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func unpack(t *testing.T, packed []byte) []byte {
	t.Helper()
	z, err := stdgzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// The same answers are compressed as by the library: those whose first write is longer than 128 KiB, and those that
// begin with a write of at most four bytes and are longer in all.
func TestLongAnswers(t *testing.T) {
	long := text(1 << 20)
	parts := slices.Collect(slices.Chunk(long, 1000))
	for name, c := range map[string]struct {
		pieces [][]byte
		packed bool
	}{
		"nothing":                    {nil, false},
		"empty":                      {[][]byte{{}}, false},
		"short":                      {[][]byte{long[:10]}, false},
		"the longest":                {[][]byte{long[:longest]}, false},
		"one byte more":              {[][]byte{long[:longest+1]}, true},
		"long":                       {[][]byte{long}, true},
		"two that are long together": {[][]byte{long[:longest], long[longest:]}, false},
		"short in parts":             {[][]byte{long[:1], long[1:2], long[2:30]}, false},
		"longest in parts":           {[][]byte{long[:4], long[4:100], long[100:longest]}, false},
		"one byte more in parts":     {[][]byte{long[:4], long[4:longest], long[longest : longest+1]}, true},
		"two parts":                  {[][]byte{long[:1], long[1:]}, true},
		"many parts":                 {append([][]byte{{}}, parts...), true},
	} {
		t.Run(name, func(t *testing.T) {
			want := bytes.Join(c.pieces, nil)
			for _, accepted := range []string{"gzip", "deflate, gzip ,br", "", "deflate", "gzipped"} {
				next := write(c.pieces...)
				h := handler(next)
				if !strings.Contains(accepted, "gzip") || accepted == "gzipped" {
					h = handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						r.Header.Del(acceptEncoding)
						next(w, r)
					}))
				}
				resp, got := get(t, h, accepted)
				packed := c.packed && strings.Contains(accepted, "gzip") && accepted != "gzipped"
				if (resp.Header.Get(contentEncoding) == encoding) != packed ||
					(resp.Header.Get("Vary") == acceptEncoding) != packed {
					t.Fatalf("%q: header %v, compressed should be %v", accepted, resp.Header, packed)
				}
				if packed {
					if len(got) > len(want)/2 {
						t.Errorf("%d bytes are sent for %d", len(got), len(want))
					}
					got = unpack(t, got)
				}
				if !bytes.Equal(got, want) || resp.Header.Get("Content-Type") != "text/plain" {
					t.Errorf("%q: %d bytes, header %v, want %d bytes", accepted, len(got), resp.Header, len(want))
				}
			}
		})
	}
}

// Answers that are compressed at once, one after the other and at the same time, do not mix.
func TestCompressorsAreUsedAgain(t *testing.T) {
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			want := append([]byte(fmt.Sprint(i)), text(longest+i*10_000)...)
			if _, got := get(t, handler(write(want[:1], want[1:])), encoding); !bytes.Equal(unpack(t, got), want) {
				t.Error("another answer")
			}
		})
	}
}

func TestUntouched(t *testing.T) {
	long := text(longest * 2)
	send := func(status int, header, value string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set(header, value)
			}
			w.WriteHeader(status)
			if status != http.StatusNotModified {
				_, _ = w.Write(long)
			}
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want int // length
	}{
		"an error":     {send(http.StatusInternalServerError, "", ""), len(long)},
		"not modified": {send(http.StatusNotModified, "Etag", `"x"`), 0},
		"encoded":      {send(http.StatusOK, contentEncoding, "br"), len(long)},
		"flushed first": {func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Flush()
			_, _ = w.Write(long)
		}, len(long)},
		"flushed early": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(long[:1])
			http.NewResponseController(w).Flush()
			_, _ = w.Write(long[1:])
		}, len(long)},
	} {
		t.Run(name, func(t *testing.T) {
			resp, got := get(t, handler(c.h), encoding)
			if e := resp.Header.Get(contentEncoding); e == encoding || len(got) != c.want ||
				!bytes.Equal(got, long[:c.want]) {
				t.Errorf("%d bytes, encoding %q, want %d as they are", len(got), e, c.want)
			}
		})
	}
}

// A declared length is that of the answer before compression.
func TestContentLength(t *testing.T) {
	long := text(longest * 2)
	resp, got := get(t, handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(contentLength, fmt.Sprint(len(long)))
		_, _ = w.Write(long)
	})), encoding)
	if resp.ContentLength == int64(len(long)) || !bytes.Equal(unpack(t, got), long) {
		t.Errorf("length %d, %d bytes", resp.ContentLength, len(got))
	}
}

// What a handler flushes in the middle of a compressed answer reaches the client before the rest is written.
func TestFlushOfCompressed(t *testing.T) {
	long := text(longest * 2)
	seen := make(chan struct{})
	s := httptest.NewServer(handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(long)
		http.NewResponseController(w).Flush()
		select {
		case <-seen:
			_, _ = io.WriteString(w, "the rest")
		case <-r.Context().Done():
		}
	})))
	t.Cleanup(s.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client().Do(req) // unpacks
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len(long))
	if _, err := io.ReadFull(resp.Body, first); err != nil || !bytes.Equal(first, long) {
		t.Fatal("not what was flushed", err)
	}
	close(seen)
	if rest, err := io.ReadAll(resp.Body); string(rest) != "the rest" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// broken is a connection whose client is gone after some bytes.
type broken struct {
	http.ResponseWriter
	left int
}

var errGone = errors.New("gone")

func (b *broken) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errGone
	}
	b.left -= len(p)
	return len(p), nil
}

// The handler sees that the client is gone, and the next answer is complete.
func TestClientIsGone(t *testing.T) {
	random := make([]byte, 8<<20) // hardly shorter when compressed
	for i, x := 0, uint32(1); i < len(random); i++ {
		x = x*1664525 + 1013904223
		random[i] = byte(x >> 24)
	}
	for _, left := range []int{0, 5, chunk, 1 << 20} {
		var err error
		h := handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for p := range slices.Chunk(random, 1<<20) {
				if _, err = w.Write(p); err != nil {
					return
				}
			}
		}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set(acceptEncoding, encoding)
		h.ServeHTTP(&broken{httptest.NewRecorder(), left}, r)
		if !errors.Is(err, errGone) {
			t.Errorf("after %d bytes: %v", left, err)
		}
		long := text(longest + 1)
		if _, got := get(t, handler(write(long)), encoding); !bytes.Equal(unpack(t, got), long) {
			t.Error("the next answer differs")
		}
	}
}

// A panic before anything is sent still becomes an answer of those who handle it, and later it cuts the answer short.
func TestPanic(t *testing.T) {
	for name, c := range map[string]struct {
		before []byte
		want   int
	}{"before the header is sent": {[]byte("x"), http.StatusInternalServerError},
		"in a compressed answer": {text(longest * 2), http.StatusOK}} {
		rec := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set(acceptEncoding, encoding)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
				rec.WriteHeader(http.StatusInternalServerError) // the first one counts
			}()
			handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(c.before)
				panic("test")
			})).ServeHTTP(rec, r)
		}()
		if rec.Code != c.want {
			t.Errorf("%s: status %d, want %d", name, rec.Code, c.want)
		}
	}
}

// Only lists are compressed: watches, other verbs and methods reach next as they came.
func TestLists(t *testing.T) {
	for _, c := range []struct {
		method string
		info   *apirequest.RequestInfo
		hidden bool
	}{
		{http.MethodGet, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "list"}, true},
		{http.MethodHead, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "list"}, false},
		{http.MethodGet, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "watch"}, false},
		{http.MethodGet, &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get"}, false},
		{http.MethodGet, &apirequest.RequestInfo{Verb: "list"}, false},
		{http.MethodGet, nil, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/", http.NoBody)
		r.Header.Set(acceptEncoding, encoding)
		if c.info != nil {
			r = r.WithContext(apirequest.WithRequestInfo(r.Context(), c.info))
		}
		w := httptest.NewRecorder()
		Lists(http.HandlerFunc(func(inner http.ResponseWriter, got *http.Request) {
			if hidden := got.Header.Get(acceptEncoding) == ""; hidden != c.hidden || (got != r) != c.hidden ||
				(inner != http.ResponseWriter(w)) != c.hidden {
				t.Errorf("%s %+v: the request is changed: %v", c.method, c.info, hidden)
			}
		})).ServeHTTP(w, r)
		if r.Header.Get(acceptEncoding) == "" {
			t.Error("the request of the caller has changed")
		}
	}
}

// BenchmarkCompressed compresses an answer of 3 MB in parts of 32 KiB, as lists are written.
func BenchmarkCompressed(b *testing.B) {
	long := text(3 << 20)
	h := handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(long[:4])
		for p := range slices.Chunk(long[4:], 32<<10) {
			_, _ = w.Write(p)
		}
	}))
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", http.NoBody)
	r.Header.Set(acceptEncoding, encoding)
	for b.Loop() {
		h.ServeHTTP(&broken{httptest.NewRecorder(), 1 << 30}, r)
	}
}
