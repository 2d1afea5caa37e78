package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"carob/internal/base/testwait"
)

// h2conn is a connection of HTTP/2 whose frames a test writes itself.
type h2conn struct {
	net.Conn
	*http2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
	done chan struct{} // closed when the server has closed the connection
}

func dialH2(t *testing.T, to string) *h2conn {
	t.Helper()
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	h := &h2conn{Conn: c, Framer: http2.NewFramer(c, c), done: make(chan struct{})}
	h.enc = hpack.NewEncoder(&h.buf)
	if err := h.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.done)
		_, _ = io.Copy(io.Discard, c)
	}()
	return h
}

// block is the header block of a request, with more fields.
func (h *h2conn) block(fields ...string) []byte {
	h.buf.Reset()
	all := append([]string{":method", "GET", ":scheme", "http", ":authority", "x.example.com", ":path", "/"}, fields...)
	for i := 0; i+1 < len(all); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	return bytes.Clone(h.buf.Bytes())
}

func (h *h2conn) closed(t *testing.T) {
	t.Helper()
	select {
	case <-h.done:
	case <-time.After(30 * time.Second):
		t.Error("the connection is still open")
	}
}

// Rapid reset (CVE-2023-44487): a client that begins requests and cancels them at once gets no more of them to the
// backend than other clients, and the others are served.
func TestRapidReset(t *testing.T) {
	var running, most atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fine" {
			return
		}
		n := running.Add(1)
		defer running.Add(-1)
		for {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-r.Context().Done()
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	h := dialH2(t, l.http)
	sent := 0
	for id := uint32(1); id < 40000; id += 2 {
		if h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.block(), EndStream: true,
			EndHeaders: true}) != nil || h.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			break // the server has had enough
		}
		sent++
		if id%2000 == 1 {
			status, text, _ := l.get("GET", "x.example.com", "/fine", nil)
			want(t, "another client", status, text, 200)
		}
	}
	_ = h.Conn.Close()
	if m := most.Load(); m > streamsOfOne+10 {
		t.Errorf("%d requests were at the backend at the same time, %d were sent", m, sent)
	}
	testwait.For(t, "the end of all requests", func() bool { return running.Load() == 0 })
	testwait.For(t, "no request in flight", func() bool { return l.seen.figures.inFlight.Load() == 0 })
}

// A header that never ends (CVE-2023-45288), and one that grows when it is unpacked.
func TestHeaderBombsOfHTTP2(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	endless := dialH2(t, l.http)
	err := endless.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: endless.block()})
	more := bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 3000) // literal fields
	for n := 0; err == nil && n < 10000; n++ {
		err = endless.WriteContinuation(1, false, more)
	}
	if err == nil {
		t.Error("the server took 150 MB of headers")
	}
	endless.closed(t)
	grows := dialH2(t, l.http)
	block := grows.block("x-long", strings.Repeat("y", 3000)) // from here on one byte of the table
	block = append(block, bytes.Repeat([]byte{0x80 | 62}, 12000)...)
	if err := grows.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true,
		EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	status, text, _ := l.get("GET", "x.example.com", "/", nil)
	want(t, "another client", status, text, 200)
}

// What HTTP/2 may carry and HTTP/1.1 may not does not become a second request at the backend.
func TestSmugglingFromHTTP2(t *testing.T) {
	var got atomic.Pointer[[]string]
	got.Store(&[]string{})
	note := func(r *http.Request) {
		for {
			old := got.Load()
			now := append(slices.Clone(*old), fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Host, " ", r.Header))
			if got.CompareAndSwap(old, &now) {
				return
			}
		}
	}
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		note(r)
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	const evil = "GET /evil HTTP/1.1\r\nHost: x.example.com\r\n\r\n"
	for _, fields := range [][]string{
		{"x", "y\r\n\r\n" + evil}, {"x", "y\nevil: 1"}, {"x", "y\x00z"}, {"x\r\nevil", "1"}, {"evil: 1\r\nx", "y"},
		{"transfer-encoding", "chunked"}, {"connection", "close, evil"}, {"content-length", "5"},
		{"content-length", "0", "content-length", "44"}, {":path", "/evil"}, {"Upper", "evil"}, {"", "evil"},
		{"host", "evil.example.com"}, {"te", "evil"}, {"proxy-connection", "evil"}, {"keep-alive", "evil"},
	} {
		h := dialH2(t, l.http)
		if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.block(fields...),
			EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if err := h.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
			t.Fatal(err)
		}
		status, text, _ := l.get("GET", "x.example.com", "/fine", nil)
		want(t, "another client", status, text, 200)
		_ = h.Conn.Close()
	}
	for _, pseudo := range [][2]string{{":path", "/ HTTP/1.1\r\nevil: 1\r\nx: "}, {":path", "evil"},
		{":method", "GET /evil HTTP/1.1\r\nx: "}, {":authority", "x.example.com\r\nevil: 1"},
		{":authority", "x.example.com/evil"}, {":scheme", "http://evil/"}} {
		h := dialH2(t, l.http)
		h.buf.Reset()
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x.example.com"},
			{":path", "/"}} {
			if f[0] == pseudo[0] {
				f = pseudo
			}
			_ = h.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.buf.Bytes(), EndStream: true,
			EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		_, _, _ = l.get("GET", "x.example.com", "/fine", nil)
		_ = h.Conn.Close()
	}
	testwait.For(t, "the end of all requests", func() bool { return l.seen.figures.inFlight.Load() == 0 })
	for _, r := range *got.Load() {
		if strings.Contains(strings.ToLower(r), "evil") {
			t.Errorf("the backend got %q", r)
		}
	}
}

// An upload is passed on as it comes: its size costs no memory. UPLOAD_GB is its size (0.1 without it).
func TestUploadIsNotKept(t *testing.T) {
	size := int64(100) << 20
	if gb, err := strconv.ParseFloat(os.Getenv("UPLOAD_GB"), 64); err == nil {
		size = int64(gb * (1 << 30))
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	defer backend.Close()
	l := newLab(t)
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	status, text, _ := l.get("PUT", "x.example.com", "/", io.LimitReader(zeros{}, size))
	runtime.ReadMemStats(&after)
	want(t, "the upload", status, text, 200, strconv.FormatInt(size, 10))
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("%d bytes were allocated for %d", n, size)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// IDLE_CONNECTIONS is how many there are (500 without it), from several addresses: one has 28,000 ports. An idle
// connection of HTTP/1.1 takes about 6 KB, with the client's side, which is in the same process.
func TestIdleConnections(t *testing.T) {
	n := 500
	if more, err := strconv.Atoi(os.Getenv("IDLE_CONNECTIONS")); err == nil {
		n = more
	}
	const others = 2048 // descriptors of the test
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if need := uint64(2*n + others); before.Cur < need {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: need, Max: max(need, before.Max)}); err != nil {
			n = int(before.Cur-others) / 2
			t.Logf("the limit of descriptors allows %d connections: %v", n, err)
		}
		t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
	}
	l := newLab(t)
	l.open.most = int64(n) + 1
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // pools are emptied by the second
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const request = "GET / HTTP/1.1\r\nHost: x.example.com\r\n\r\n"
	get := func(c net.Conn, answer []byte) error {
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		_, err := c.Read(answer)
		return err
	}
	conns := make([]net.Conn, n+1)
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	open := func(i int, answer []byte) (err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 78, 0, byte(i%8))}}
		if conns[i], err = d.DialContext(t.Context(), "tcp", l.http); err != nil {
			return err
		}
		return get(conns[i], answer)
	}
	if err := open(n, make([]byte, 4096)); err != nil { // what is made once
		t.Fatal(err)
	}
	empty := memory()
	var clients errgroup.Group
	for part := range 16 {
		clients.Go(func() error {
			answer := make([]byte, 4096)
			for i := part; i < n; i += 16 {
				if err := open(i, answer); err != nil {
					return fmt.Errorf("connection %d: %w", i, err)
				}
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "idle connections", func() bool { return l.seen.figures.inFlight.Load() == 0 })
	each := int64(memory()-empty) / int64(n)
	t.Logf("%d bytes for each of %d idle connections", each, n)
	if each > 20<<10 {
		t.Errorf("an idle connection takes %d bytes", each)
	}
	if open := l.open.Load(); open < int64(n) {
		t.Errorf("%d connections are counted", open)
	}
	if err := get(conns[0], make([]byte, 4096)); err != nil { // they are still served
		t.Error(err)
	}
}

// A query with a space is the client's mistake, not the backend's.
func TestSpaceInQuery(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at("127.0.0.1:1", "pa"))
	l.ingress("", nil, "/=a")
	l.update()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(&http.Request{Method: http.MethodGet, Header: http.Header{},
		URL: &url.URL{Scheme: "http", Host: l.http, Path: "/", RawQuery: "a= HTTP/1.1 b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Error(res.Status)
	}
}

// deviations are cases in which h2spec requires another error than Go's HTTP/2 server returns; it refuses all of these
// requests, too.
func deviations() []string {
	return []string{
		// It is HTTP/1.1 then, and gets 400.
		"Sends invalid connection preface",
		// Duplicate settings end the connection.
		"Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",
		// Both get 400.
		"Sends a HEADERS frame that contains the connection-specific header field",
		`Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`,
	}
}

// H2SPEC is the program of github.com/summerwind/h2spec: its cases pass. hack/nightly installs it.
func TestH2Spec(t *testing.T) {
	program := os.Getenv("H2SPEC")
	if program == "" {
		t.Skip("H2SPEC is not set")
	}
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("", nil, "/=a")
	l.update()
	host, port, _ := net.SplitHostPort(l.http)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "-h", host, "-p", port, "-P", "/", "-o", "5").CombinedOutput()
	_, failures, found := strings.Cut(string(out), "Failures:")
	if !strings.Contains(string(out), "tests, ") {
		t.Fatalf("h2spec did not run: %v\n%s", err, out)
	}
	for line := range strings.Lines(failures) {
		_, what, failed := strings.Cut(line, "× ")
		_, what, _ = strings.Cut(strings.TrimSpace(what), ": ")
		if found && failed && !slices.Contains(deviations(), what) {
			t.Errorf("failed: %s", what)
		}
	}
	t.Logf("%s", out[max(0, len(out)-80):])
}
