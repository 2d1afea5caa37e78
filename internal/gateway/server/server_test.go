package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/gateway/server"
)

// lab is a server, with net/http for the connections that it passes on.
type lab struct {
	*server.Server
	at     string
	passed chan net.Conn
	ln     net.Listener

	mu    sync.Mutex
	count int // connections that were passed
}

// Accept implements net.Listener, for net/http.
func (l *lab) Accept() (net.Conn, error) {
	c, ok := <-l.passed
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *lab) Close() error   { return nil }
func (l *lab) Addr() net.Addr { return l.ln.Addr() }

func newLab(t *testing.T, h http.Handler, change ...func(*server.Server)) *lab {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{at: ln.Addr().String(), ln: ln, passed: make(chan net.Conn, 100)}
	l.Server = &server.Server{Handler: h, Context: context.WithoutCancel(t.Context()), HeaderTime: time.Minute,
		IdleTime: time.Minute,
		Pass: func(c net.Conn) {
			l.mu.Lock()
			l.count++
			l.mu.Unlock()
			l.passed <- c
		}}
	for _, c := range change {
		c(l.Server)
	}
	other := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	var all sync.WaitGroup
	all.Go(func() { _ = other.Serve(l) })
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				l.Serve(c, tcp)
			}
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		now, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		l.Shutdown(now)
		close(l.passed)
		_ = other.Close()
		all.Wait()
	})
	return l
}

func (l *lab) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c, bufio.NewReader(c)
}

// echo has a path for each kind of response.
func echo(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	long := strings.Repeat("0123456789", 10_000)
	switch r.URL.Path {
	case "/echo":
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %q %d %d %q %v", r.Method, r.URL, r.Host, r.Header, r.ContentLength, len(body), body,
			err)
	case "/long":
		_, _ = io.WriteString(w, long)
	case "/announced":
		h.Set("Content-Length", fmt.Sprint(len(long)))
		h.Set("Content-Type", "text/x")
		_, _ = io.WriteString(w, long[:10])
		_, _ = io.WriteString(w, long[10:])
	case "/nothing":
	case "/204":
		h.Set("Content-Length", "7")
		w.WriteHeader(http.StatusNoContent)
		_, _ = io.WriteString(w, "ignored")
	case "/304":
		h.Set("Content-Type", "text/x")
		h.Set("Etag", "x")
		w.WriteHeader(http.StatusNotModified)
	case "/hints":
		h.Set("Link", "</x>")
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		_, _ = io.WriteString(w, "after")
	case "/trailer":
		h.Set("Trailer", "X-One, X-Missing")
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush()
		h.Set("X-One", "1")
		h.Set(http.TrailerPrefix+"X-Two", "2")
	case "/flushes":
		for range 3 {
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
		}
	case "/unknown":
		w.WriteHeader(299)
	case "/close":
		h.Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
	case "/odd":
		h["Bad Name"], h["X-Lines"], h["Date"] = []string{"x"}, []string{"a\r\nb: c", " d "}, []string{"today"}
		_, _ = io.WriteString(w, "<html>")
	case "/short":
		h.Set("Content-Length", "10")
		_, _ = io.WriteString(w, "12345")
	case "/more":
		h.Set("Content-Length", "5")
		_, _ = io.WriteString(w, "12345")
		if _, err := io.WriteString(w, "6"); !errors.Is(err, http.ErrContentLength) {
			panic(err)
		}
	case "/panic":
		_, _ = io.WriteString(w, long)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	default:
		http.NotFound(w, r)
	}
}

// exchanged is all that a server sends for some bytes, in a form that can be compared: one connection.
func exchanged(t *testing.T, at, send string) string {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	go func() { _, _ = io.WriteString(c, send) }()
	r := bufio.NewReader(c)
	var out strings.Builder
	for {
		method := http.MethodGet
		if strings.HasPrefix(send, http.MethodHead) {
			method = http.MethodHead
		}
		res, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			out.WriteString("closed")
			return out.String()
		}
		body, err := io.ReadAll(res.Body)
		if date := res.Header.Get("Date"); date != "" && date != "today" {
			_, bad := http.ParseTime(date)
			res.Header.Set("Date", fmt.Sprint(bad))
		}
		fmt.Fprintf(&out, "%s %v %d %v %v %q %v %v\n", res.Status, res.Header, res.ContentLength, res.TransferEncoding,
			res.Close, body, err, res.Trailer)
		if strings.Contains(string(body), "GET /last ") || strings.HasPrefix(res.Status, "404") {
			return out.String()
		}
	}
}

// Whatever a client sends, it gets what net/http would send. The last request of each connection has the path /last,
// which shows whether the connection is still used.
func TestSameAsNetHTTP(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plain := &http.Server{Handler: http.HandlerFunc(echo), ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = plain.Serve(ln) }()
	defer plain.Close()
	const last = "GET /last HTTP/1.1\r\nHost: x\r\n\r\n"
	get := func(line string, fields ...string) string {
		return line + " HTTP/1.1\r\nHost: x\r\n" + strings.Join(append(fields, ""), "\r\n") + "\r\n"
	}
	post := func(path, body string, fields ...string) string {
		return get("POST "+path, append(fields, fmt.Sprintf("Content-Length: %d", len(body)))...) + body
	}
	large := strings.Repeat("x", 100_000)
	cases := []string{
		get("GET /echo?a=b%20c;d", "X-A: 1", "x-a:  2\t", "User-Agent: t", "Cookie: a", "Cookie: b"),
		post("/echo", "hello"), post("/echo", large), post("/echo", "", "Connection: keep-alive"),
		post("/nothing", "unread"), post("/nothing", large), post("/long", large), post("/nope", "unread"),
		get("PUT /echo", "Content-Length: 3") + "abc" + get("DELETE /echo") + get("OPTIONS /echo") + get("PATCH /echo"),
		get("GET /echo", "Content-Length: 3") + "abc",
		get("GET /long"), get("GET /announced"), get("GET /nothing"), get("GET /204"), get("GET /304"),
		get("GET /trailer"), get("GET /flushes"), get("GET /unknown"), get("GET /close"),
		get("GET /odd"), get("GET /short"), get("GET /more"), get("GET /panic"),
		get("GET /echo", "Connection: close"), get("GET /echo", "Connection: Close"),
		get("GET /echo", "Connection: keep-alive, close"), get("GET /echo", "Pragma: no-cache"),
		get("GET //double/echo"), get("GET /a/../echo"), get("GET /%2e%2e"), get("GET /echo#fragment"),
		// For net/http:
		"GET /echo HTTP/1.0\r\nHost: x\r\n\r\n", "GET /echo HTTP/1.0\r\n\r\n",
		get("POST /echo", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n",
		get("POST /echo", "Transfer-Encoding: chunked", "Content-Length: 3") + "5\r\nhello\r\n0\r\n\r\n",
		get("POST /echo", "Expect: 100-continue", "Content-Length: 3") + "abc", get("GET http://y/echo"),
		get("TRACE /echo"), get("UNKNOWN /echo"), "GET /echo HTTP/1.1\nHost: x\n\n",
		// Not valid:
		"GET /echo HTTP/1.1\r\n\r\n", get("GET /echo", "Host: y"), "GET /echo HTTP/1.1\r\nHost: a b\r\n\r\n",
		get("GET /echo", "Content-Length: 1", "Content-Length: 2") + "ab", get("GET /echo", "Content-Length: -1"),
		get("GET /echo", "Content-Length: +1") + "a", get("GET /echo", "X A: 1"), get("GET /echo", "X-A : 1"),
		get("GET /echo", "X-A: 1", " folded"), get("GET /echo", "X-A: \x01"), get("GET /echo", "X-A: a\rb"),
		get("GET /echo", "noColon"), get("GET /ec ho"), get("GET /echo\x01"), get("GET  /echo"), get("GET /%zz"),
		get("GET /echo", "X-A: 1\nX-B: 2"), "GET /echo HTTP/1.1 \r\nHost: x\r\n\r\n",
		"GET /echo HTTP/1.2\r\nHost: x\r\n\r\n", "nonsense\r\n\r\n", get("GET /echo", "X-L: "+large[:20_000]),
		get("GET /echo", strings.Split(strings.TrimSuffix(strings.Repeat("X-N: 1\n", 200), "\n"), "\n")...),
	}
	for _, send := range cases {
		if got, want := exchanged(t, l.at, send+last), exchanged(t, ln.Addr().String(), send+last); got != want {
			t.Errorf("%.120q:\n%.700s\nnot\n%.700s", send, got, want)
		}
	}
	for _, path := range []string{"/echo", "/long", "/announced", "/nothing", "/204", "/304", "/nope"} {
		send := "HEAD " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
		if got, want := exchanged(t, l.at, send), exchanged(t, ln.Addr().String(), send); got != want {
			t.Errorf("HEAD %s:\n%s\nnot\n%s", path, got, want)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count < 20 || l.count > 50 {
		t.Errorf("%d connections of %d were passed on", l.count, len(cases))
	}
}

// An informational response precedes the final one.
func TestHints(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	c, r := l.dial(t)
	_, _ = io.WriteString(c, "GET /hints HTTP/1.1\r\nHost: x\r\n\r\n")
	for _, want := range []int{http.StatusEarlyHints, http.StatusOK} {
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != want || (res.Header.Get("Link") == "") != (want == http.StatusOK) {
			t.Fatal(res, err)
		}
	}
}

// A response of known length is sent when its last byte is written: the client need not wait for the end of the
// handler.
func TestWholeResponseIsSent(t *testing.T) {
	read := make(chan struct{})
	l := newLab(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "4")
		for _, part := range []string{"o", "", "kay"} {
			_, _ = io.WriteString(w, part)
		}
		select {
		case <-read:
		case <-r.Context().Done():
		}
	}))
	c, in := l.dial(t)
	for range 2 { // the connection can be used again
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(res.Body); string(text) != "okay" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		read <- struct{}{}
	}
}

// Requests arrive byte by byte, and several at once.
func TestPieces(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	one := "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	for _, size := range []int{1, 7, 1000} {
		c, r := l.dial(t)
		go func() {
			for rest := strings.Repeat(one, 5); rest != ""; {
				n := min(size, len(rest))
				_, _ = io.WriteString(c, rest[:n])
				rest = rest[n:]
			}
		}()
		for i := range 5 {
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("pieces of %d: response %d: %v", size, i, err)
			}
			if body, err := io.ReadAll(res.Body); err != nil || !bytes.Contains(body, []byte(`"hello" <nil>`)) {
				t.Errorf("pieces of %d: %s %v", size, body, err)
			}
		}
	}
}

// A client that leaves ends its request, whenever it leaves. A client that sends its next request early does not.
func TestClientLeaves(t *testing.T) {
	begun, ended, release := make(chan struct{}, 1), make(chan error, 1), make(chan struct{})
	l := newLab(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		begun <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-release:
		}
		ended <- r.Context().Err()
	}))
	for _, send := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"} {
		c, _ := l.dial(t)
		_, _ = io.WriteString(c, send)
		<-begun
		_ = c.Close()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%.4s: %v", send, err)
		}
		for _, parts := range [][]string{{send, "GET / HT"}, {send + "GET / HT", ""}} { // a part of the next request
			c, _ := l.dial(t)
			_, _ = io.WriteString(c, parts[0])
			<-begun
			_, _ = io.WriteString(c, parts[1])
			_ = c.Close()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%.80q: %v", parts, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%.80q: the request goes on", parts)
			}
		}
	}
	c, r := l.dial(t)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
	<-begun
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	release <- struct{}{}
	if err := <-ended; err != nil {
		t.Errorf("the request before the next one: %v", err)
	}
	<-begun
	release <- struct{}{}
	if err := <-ended; err != nil {
		t.Errorf("the next request: %v", err)
	}
	for range 2 {
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
	}
}

// Who never sends the rest of a header, or no further request, loses the connection.
func TestSilentClients(t *testing.T) {
	for what, send := range map[string]string{"nothing": "", "a part of a header": "GET / HTTP/1.1\r\nHo",
		"no second request": "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"} {
		l := newLab(t, http.HandlerFunc(echo), func(s *server.Server) {
			s.HeaderTime, s.IdleTime = 20*time.Millisecond, 20*time.Millisecond
		})
		c, r := l.dial(t)
		_, _ = io.WriteString(c, send)
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		testwait.For(t, what+": the end of the connection", l.Settled)
	}
}

// A goroutine that still reads the body when the handler returns reads nothing of the next request.
func TestLateReader(t *testing.T) {
	read := make(chan string, 1)
	l := newLab(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/late" {
			echo(w, r)
			return
		}
		reading := make(chan struct{})
		go func() {
			close(reading)
			got, err := io.ReadAll(r.Body)
			read <- fmt.Sprintf("%s %v", got, err != nil)
		}()
		<-reading
	}))
	c, r := l.dial(t)
	_, _ = io.WriteString(c, "POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc")
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res, err)
	}
	if got := <-read; got != "abc true" && got != " true" {
		t.Errorf("the handler's goroutine read %q", got)
	}
	if !res.Close { // the server waits for the rest, unless it saw the reader in time
		_, _ = io.WriteString(c, "defGET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
		if res, err = http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatal(res, err)
		}
	}
}

// A response to a request whose body is too long to be read arrives, although the client still sends.
func TestUnreadBody(t *testing.T) {
	l := newLab(t, http.HandlerFunc(echo))
	c, r := l.dial(t)
	_, _ = io.WriteString(c, "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
	go func() { _, _ = c.Write(make([]byte, 5_000_000)) }()
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusNotFound || !res.Close {
		t.Fatal(res, err)
	}
}

// Shutdown closes idle connections at once, and others after their request, or when its context ends.
func TestShutdown(t *testing.T) {
	begun, release := make(chan struct{}, 2), make(chan struct{})
	l := newLab(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/nothing" {
			return
		}
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	request := func(path string) *bufio.Reader {
		c, r := l.dial(t)
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		return r
	}
	quiet := request("/nothing")
	if res, err := http.ReadResponse(quiet, nil); err != nil || res.Close {
		t.Fatal(res, err)
	}
	testwait.For(t, "an idle connection", l.Settled)
	one, other := request("/"), request("/")
	<-begun
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	go func() { defer close(over); l.Shutdown(ctx) }()
	if _, err := quiet.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the idle connection: %v", err)
	}
	release <- struct{}{}
	// Either of the two is answered.
	answered := make(chan error, 2)
	for _, r := range []*bufio.Reader{one, other} {
		go func() {
			res, err := http.ReadResponse(r, nil)
			if err == nil && !res.Close {
				err = errors.New("the connection stays open")
			}
			answered <- err
		}()
	}
	if err := <-answered; err != nil {
		t.Errorf("the request that ended: %v", err)
	}
	select {
	case <-over:
		t.Error("Shutdown did not wait")
	default:
	}
	cancel()
	<-over
	if err := <-answered; err == nil {
		t.Error("the other request was answered")
	}
}
