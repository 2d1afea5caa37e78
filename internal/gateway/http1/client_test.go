package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/base/testwait"
)

// backend responds to requests by a script, in virtual time.
type backend struct {
	t       *testing.T
	answers []func(c net.Conn, r *http.Request) // of each request, in the order in which they come

	mu    sync.Mutex
	dials int
	got   []string // method, target, host, and body of each request
}

func (b *backend) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	b.mu.Lock()
	b.dials++
	b.mu.Unlock()
	go func() {
		defer far.Close()
		r := bufio.NewReader(far)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			b.mu.Lock()
			if len(b.answers) == 0 {
				b.t.Errorf("%s %s was not expected", req.Method, req.RequestURI)
				b.mu.Unlock()
				return
			}
			answer := b.answers[0]
			b.answers = b.answers[1:]
			b.mu.Unlock()
			body, _ := io.ReadAll(req.Body)
			b.mu.Lock()
			b.got = append(b.got, fmt.Sprint(req.Method, " ", req.RequestURI, " ", req.Host, " ", string(body)))
			b.mu.Unlock()
			answer(far, req)
		}
	}()
	return near, nil
}

// writes returns a function that writes a text.
func writes(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, text) }
}

// ends writes a text and closes the connection.
func ends(text string) func(net.Conn, *http.Request) {
	return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, text); _ = c.Close() }
}

func request(ctx context.Context, method, target, body string) *http.Request {
	u, err := url.ParseRequestURI(target)
	if err != nil {
		panic(err)
	}
	u.Scheme, u.Host = "http", "10.0.0.1:80"
	r := (&http.Request{Method: method, URL: u, Host: "a.example.com", Header: http.Header{}}).WithContext(ctx)
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return r
}

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// Both clients of the gateway give the same answers, and use a connection again in the same cases.
func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, method, body string
		first              func(net.Conn, *http.Request)
		want               string // status and body, or a part of the error
		dials              int    // with a second request afterwards
	}{
		{"length", "GET", "", writes(fine), "200 ok", 1},
		{"a body", "POST", "some text", writes(fine), "200 ok", 1},
		{"HEAD", "HEAD", "", writes("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"), "200 ", 1},
		{"no content", "GET", "", writes("HTTP/1.1 204 No Content\r\n\r\n"), "204 ", 1},
		{"not modified", "GET", "", writes("HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"), "304 ", 1},
		{"empty", "GET", "", writes("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "200 ", 1},
		{"chunks", "GET", "", writes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
			"200 abc", 1},
		{"a trailer", "GET", "", writes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n" +
			"3\r\nabc\r\n0\r\nX-T: v\r\n\r\n"), "200 abc [v]", 1},
		{"until the end", "GET", "", ends("HTTP/1.1 200 OK\r\n\r\nabc"), "200 abc", 2},
		{"the server closes", "GET", "", writes("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
			"200 ok", 2},
		{"HTTP/1.0", "GET", "", writes("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"), "200 ok", 2},
		{"hints", "GET", "", writes("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fine), "103 [x] 200 ok", 1},
		{"cut in the body", "GET", "", ends("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), "unexpected EOF", 2},
		{"cut in a chunk", "GET", "", ends("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "unexpected EOF", 2},
		{"cut in the header", "GET", "", ends("HTTP/1.1 200 OK\r\nContent-"), "malformed", 2},
		{"no answer", "GET", "", ends(""), "EOF", 2},
		{"no HTTP", "GET", "", ends("220 mail\r\n\r\n"), "malformed", 2},
		{"two lengths", "GET", "", ends("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!"), "Content-Length", 2},
		{"a huge header", "GET", "", ends("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 5000) + "\r\n\r\n"), "4096 bytes", 2},
		{"an endless line", "GET", "", ends("HTTP/1.1 " + strings.Repeat("2", 9000)), "4096 bytes", 2},
	} {
		for name, make := range map[string]func(*backend) http.RoundTripper{
			"http1": func(b *backend) http.RoundTripper {
				return New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096,
					Early: func(ctx context.Context) func(int, textproto.MIMEHeader) error {
						return httptrace.ContextClientTrace(ctx).Got1xxResponse
					}})
			},
			"net/http": func(b *backend) http.RoundTripper {
				return &http.Transport{DialContext: b.dial, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
					MaxResponseHeaderBytes: 4096, DisableCompression: true}
			},
		} {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := &backend{t: t, answers: []func(net.Conn, *http.Request){tc.first, writes(fine)}}
					tr := make(b)
					got := roundTrip(tr, request(t.Context(), tc.method, "/p?q=1", tc.body))
					if !strings.Contains(got, tc.want) {
						t.Errorf("%q, want %q", got, tc.want)
					}
					synctest.Wait()
					if got := roundTrip(tr, request(t.Context(), "GET", "/second", "")); got != "200 ok" {
						t.Errorf("the second request: %q", got)
					}
					want := []string{tc.method + " /p?q=1 a.example.com " + tc.body, "GET /second a.example.com "}
					if !slices.Equal(b.got, want) {
						t.Errorf("the backend got %q, want %q", b.got, want)
					}
					if b.dials != tc.dials {
						t.Errorf("%d connections, want %d", b.dials, tc.dials)
					}
					tr.(interface{ CloseIdleConnections() }).CloseIdleConnections()
				})
			})
		}
	}
}

// roundTrip is a response in one line.
func roundTrip(tr http.RoundTripper, r *http.Request) string {
	var out strings.Builder
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			fmt.Fprint(&out, code, " ", h["Link"], " ")
			return nil
		}}))
	res, err := tr.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		return err.Error()
	}
	fmt.Fprint(&out, res.StatusCode, " ", string(body))
	if v := res.Trailer["X-T"]; v != nil {
		fmt.Fprint(&out, " ", v)
	}
	return out.String()
}

// Bytes after a response would be taken for the response to another client's request.
func TestTwoAnswers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first func(net.Conn, *http.Request)
	}{
		{"at once", writes(fine + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")},
		{"after a HEAD-like answer",
			writes("HTTP/1.1 304 Not Modified\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t, answers: []func(net.Conn, *http.Request){tc.first, writes(fine)}}
				c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
				_ = roundTrip(c, request(t.Context(), "GET", "/", ""))
				if got := roundTrip(c, request(t.Context(), "GET", "/", "")); got != "200 ok" || b.dials != 2 {
					t.Errorf("the second request: %q on connection %d", got, b.dials)
				}
				c.CloseIdleConnections()
			})
		})
	}
}

// On real sockets an idle connection is checked before it is used: the backend has closed it, or has sent something.
func TestIdleConnectionIsCheckedBeforeUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	responded := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			far, err := ln.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(far)
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(far, fine)
				switch n {
				case 0:
					_ = far.Close()
				case 1:
					<-responded // the answer was taken
					_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
				}
				if n < 2 {
					responded <- struct{}{}
				}
			}
		}
	}()
	var d net.Dialer
	c := New(Config{Dial: d.DialContext, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
	defer c.CloseIdleConnections()
	post := func(body string) string {
		r := request(t.Context(), "POST", "/", body)
		r.URL.Host = ln.Addr().String()
		return roundTrip(c, r)
	}
	// A POST is not repeated: it fails if it is sent on a connection that was closed.
	for i, want := range []string{"200 ok", "200 ok", "200 ok", "200 ok"} {
		if got := post("text"); got != want {
			t.Fatalf("request %d: %q, want %q", i, got, want)
		}
		switch i {
		case 0:
			<-responded // closed
		case 1:
			responded <- struct{}{}
			<-responded // sent more
		}
		testwait.For(t, "the connection to be idle", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.idle) == 1
		})
	}
}

// A request whose end comes before its answer, or within it, ends its connection.
func TestCancel(t *testing.T) {
	for _, part := range []string{"", "HTTP/1.1 200 OK\r\nContent-", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes(part), writes(fine)}}
				c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
				why := errors.New("the client has left")
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() { synctest.Wait(); cancel(why) }()
				if got := roundTrip(c, request(ctx, "GET", "/", "")); got != why.Error() {
					t.Errorf("%q, want %q", got, why)
				}
				cancel(nil)
				if got := roundTrip(c, request(t.Context(), "GET", "/", "")); got != "200 ok" || b.dials != 2 {
					t.Errorf("the second request: %q on connection %d", got, b.dials)
				}
				c.CloseIdleConnections()
			})
		})
	}
}

// The end of a finished request does not affect the next request on its connection.
func TestLateCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes(fine), writes(fine)}}
		c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
		ctx, cancel := context.WithCancel(t.Context())
		_ = roundTrip(c, request(ctx, "GET", "/", ""))
		cancel()
		synctest.Wait()
		if got := roundTrip(c, request(t.Context(), "GET", "/", "")); got != "200 ok" || b.dials != 1 {
			t.Errorf("%q on connection %d", got, b.dials)
		}
		c.CloseIdleConnections()
	})
}

// A connection whose request was cancelled when its answer had been read, but not been taken, is closed: it must not be
// used again, because the next request on it would fail.
func TestCancelWithAnswerInBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes(fine), writes(fine)}}
		c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
		ctx, cancel := context.WithCancel(t.Context())
		res, err := c.RoundTrip(request(ctx, "GET", "/", ""))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "ok" {
			t.Errorf("%q %v", body, err)
		}
		_ = res.Body.Close()
		c.mu.Lock()
		idle := len(c.idle)
		c.mu.Unlock()
		if idle != 0 {
			t.Error("the closed connection is kept")
		}
		if got := roundTrip(c, request(t.Context(), "POST", "/", "text")); got != "200 ok" || b.dials != 2 {
			t.Errorf("the next request: %q on connection %d", got, b.dials)
		}
		c.CloseIdleConnections()
	})
}

type badReader struct{ err error }

func (b badReader) Read([]byte) (int, error) { return 0, b.err }
func (b badReader) Close() error             { return nil }

// A body that ends too early ends the connection: the backend must not take what comes next for the rest.
func TestBrokenBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, answers: []func(net.Conn, *http.Request){
			func(c net.Conn, _ *http.Request) { _ = c.Close() }, writes(fine)}}
		c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
		bad := errors.New("the client's body is broken")
		r := request(t.Context(), "PUT", "/", "")
		r.Body, r.ContentLength = badReader{bad}, 10
		if _, err := c.RoundTrip(r); !errors.Is(err, bad) {
			t.Errorf("%v, want %v", err, bad)
		}
		r = request(t.Context(), "PUT", "/", "short")
		r.ContentLength = 10
		b.answers = []func(net.Conn, *http.Request){ends(""), writes(fine)}
		if _, err := c.RoundTrip(r); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v, want %v", err, io.ErrUnexpectedEOF)
		}
		c.CloseIdleConnections()
	})
}

// pausedBody is a body whose second half arrives when a test releases it.
type pausedBody struct {
	*strings.Reader
	open chan struct{}
	once bool
}

func (g *pausedBody) Read(p []byte) (int, error) {
	if g.once {
		<-g.open
	}
	g.once = true
	return g.Reader.Read(p[:min(len(p), 5)])
}

func (g *pausedBody) Close() error { return nil }

// An answer that comes before the request has been sent is passed on at once. Its connection is used again when the
// request has been sent, and not before.
func TestEarlyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		dials := 0
		c := New(Config{MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				mu.Lock()
				defer mu.Unlock()
				dials++
				go func() {
					defer far.Close()
					r := bufio.NewReader(far)
					for {
						req, err := http.ReadRequest(r)
						if err != nil {
							return
						}
						_, _ = io.WriteString(far, fine)
						_, _ = io.Copy(io.Discard, req.Body)
					}
				}()
				return near, nil
			}})
		body := &pausedBody{Reader: strings.NewReader("0123456789"), open: make(chan struct{})}
		r := request(t.Context(), "POST", "/", "")
		r.Body, r.ContentLength = body, 10
		for n, want := range []int{1, 2, 2} {
			if n < 2 {
				if got := roundTrip(c, r); got != "200 ok" || dials != want {
					t.Errorf("request %d: %q on connection %d", n, got, dials)
				}
				r = request(t.Context(), "GET", "/", "")
				continue
			}
			close(body.open)
			synctest.Wait()
			c.mu.Lock()
			idle := len(c.idle)
			c.mu.Unlock()
			if idle != 2 {
				t.Errorf("%d connections are kept, want 2", idle)
			}
		}
		c.CloseIdleConnections()
	})
}

// A backend that has closed an idle connection when the request was on its way gets it again, if it may.
func TestClosedMeanwhile(t *testing.T) {
	for _, tc := range []struct {
		method string
		again  bool
	}{{"GET", true}, {"HEAD", true}, {"DELETE", false}, {"POST", false}} {
		t.Run(tc.method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes(fine), ends(""),
					writes("HTTP/1.1 204 No Content\r\n\r\n")}}
				c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
				_ = roundTrip(c, request(t.Context(), "GET", "/", ""))
				got := roundTrip(c, request(t.Context(), tc.method, "/", ""))
				want := map[bool]int{false: 2, true: 3}[tc.again]
				if again := strings.HasPrefix(got, "204"); again != tc.again || len(b.got) != want {
					t.Errorf("%q after %q", got, b.got)
				}
				c.CloseIdleConnections()
			})
		})
	}
}

// Idle connections are closed after their time, each by itself, and at once after CloseIdleConnections. No
// timer is left.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		slow := func(c net.Conn, _ *http.Request) { <-hold; _, _ = io.WriteString(c, fine) }
		b := &backend{t: t, answers: []func(net.Conn, *http.Request){slow, slow, slow, writes(fine), slow}}
		c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
		idle := func() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.idle) }
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = roundTrip(c, request(t.Context(), "GET", "/", "")) })
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if n := idle(); n != 2 {
			t.Errorf("%d connections are kept, want 2", n)
		}
		time.Sleep(30 * time.Second)
		_ = roundTrip(c, request(t.Context(), "GET", "/", ""))
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if n := idle(); n != 1 {
			t.Errorf("%d connections after the time of one", n)
		}
		hold = make(chan struct{})
		wg.Go(func() { _ = roundTrip(c, request(t.Context(), "GET", "/", "")) })
		synctest.Wait()
		c.CloseIdleConnections()
		close(hold)
		wg.Wait()
		if n := idle(); n != 0 || c.timer != nil {
			t.Errorf("%d connections are kept when nobody waits for them", n)
		}
	})
}

// inMemory is a body that is written with the header.
type inMemory struct{ bytes.Reader }

func (*inMemory) Close() error { return nil }

func (m *inMemory) Rest() net.Buffers {
	rest, _ := io.ReadAll(&m.Reader)
	return net.Buffers{rest[:len(rest)/2], rest[len(rest)/2:]}
}

func TestBodyInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes(fine), ends("")}}
		c := New(Config{Dial: b.dial, MostIdle: 2, IdleTime: time.Minute, HeaderBytes: 4096})
		text := strings.Repeat("0123456789", 10_000)
		r := request(t.Context(), "POST", "/", text)
		body := &inMemory{}
		body.Reset([]byte(text))
		r.Body = body
		if got := roundTrip(c, r); got != "200 ok" || b.got[0] != "POST / a.example.com "+text {
			t.Errorf("%q after %d bytes", got, len(b.got[0]))
		}
		body.Reset([]byte("short"))
		if _, err := c.RoundTrip(r); !errors.Is(err, errLength) {
			t.Errorf("%v, want %v", err, errLength)
		}
		c.CloseIdleConnections()
	})
}

// A status below 100 is neither that of an informational response nor of an answer.
func TestStatusBelow100(t *testing.T) {
	b := &backend{t: t, answers: []func(net.Conn, *http.Request){writes("HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n")}}
	c := New(Config{Dial: b.dial, MostIdle: 1, IdleTime: time.Minute, HeaderBytes: 4096})
	if got := roundTrip(c, request(t.Context(), "GET", "/p", "")); !strings.Contains(got, "099") {
		t.Error(got)
	}
}
