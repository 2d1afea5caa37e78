package bodies_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"carob/internal/gateway/bodies"
	"carob/internal/gateway/http1"
)

// budget is what all bodies of a test may have.
type budget struct{ used, most int64 }

func (b *budget) reserve(n int64) bool {
	if n > 0 && b.used+n > b.most {
		return false
	}
	b.used += n
	return true
}

// fill makes a body of so many bytes.
func fill(t *testing.T, with byte, size int, from *budget) *bodies.Body {
	t.Helper()
	b := &bodies.Body{Reserve: from.reserve}
	for size > 0 {
		if len(b.Free()) == 0 && !b.Grow(int64(len(b.Bytes()))*4+1) {
			t.Fatal("the body got no memory")
		}
		n := copy(b.Free(), bytes.Repeat([]byte{with}, size))
		b.Add(n)
		size -= n
	}
	return b
}

// A body keeps its bytes while it grows, and gives back all that it reserved. More than the limit is refused, and what
// was there before stays.
func TestGrow(t *testing.T) {
	from := &budget{most: 8 << 20}
	for _, size := range []int{1, 8 << 10, 8<<10 + 1, 100_000, 3 << 20} {
		b := fill(t, 'x', size, from)
		if got := b.Bytes(); len(got) != size || strings.Trim(string(got), "x") != "" {
			t.Errorf("%d bytes of %d, or others", len(got), size)
		}
		if from.used < int64(size) {
			t.Errorf("%d bytes are reserved for %d", from.used, size)
		}
		if b.Grow(9 << 20) {
			t.Error("a body got more than all may have")
		}
		if len(b.Bytes()) != size {
			t.Error("the body changed")
		}
		b.Release()
		b.Release()
		if from.used != 0 || b.Begun() || b.Bytes() != nil || b.Free() != nil {
			t.Errorf("%d bytes are still reserved", from.used)
		}
	}
}

// The memory of a body that a reader still uses does not become that of another body.
func TestOpenReader(t *testing.T) {
	from := &budget{most: 64 << 20}
	read := func(b *bodies.Body) io.ReadCloser { return b.Reader(b.Bytes()) }
	for what, leave := range map[string]func(b *bodies.Body) (kept []byte){
		"not closed": func(b *bodies.Body) []byte {
			r, _ := read(b).(http1.Parts)
			return r.Rest()[0]
		},
		"one of two is closed, and again": func(b *bodies.Body) []byte {
			one, other := read(b), read(b)
			_ = one.Close()
			_ = one.Close()
			r, _ := other.(http1.Parts)
			return r.Rest()[0]
		},
		"read by others": func(b *bodies.Body) []byte {
			r := read(b)
			kept := b.Bytes()
			_, _ = r.Read(make([]byte, 1)) // the rest may be read at any time
			_ = r.Close()
			return kept
		},
		"lost": func(b *bodies.Body) []byte { b.Lose(); return b.Bytes() },
	} {
		b := fill(t, 'a', 100_000, from)
		kept := leave(b)
		b.Release()
		for range 8 {
			other := fill(t, 'b', 100_000, from)
			defer other.Release()
		}
		if got := strings.Trim(string(kept), "a"); got != "" {
			t.Errorf("%s: %d bytes were overwritten", what, len(got))
		}
	}
	b := fill(t, 'a', 10, from)
	r := read(b)
	_ = r.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a closed reader was read")
	}
	b.Release()
	if r := b.Reader([]byte("x")); r != nil {
		t.Error("a body without memory has a reader")
	}
}

// Memory is used again when the body and its readers have ended.
func TestReuse(t *testing.T) {
	from := &budget{most: 64 << 20}
	allocated := func(lose bool) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			b := bodies.Body{Reserve: from.reserve}
			b.Grow(200_000)
			if lose {
				b.Lose()
			}
			_ = b.Reader(b.Free()[:10]).Close()
			b.Release()
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / 100
	}
	if kept, lost := allocated(false), allocated(true); kept > 100_000 || lost < 200_000 {
		t.Errorf("%d bytes are allocated for a body, %d for one that is lost", kept, lost)
	}
}

// A server that answers before it has read the body gets its bytes, even if the request has ended and other requests
// came.
func TestAnswerBeforeTheBody(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const size = 1 << 20
	read, result := make(chan struct{}), make(chan string, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			result <- err.Error()
			return
		}
		defer c.Close()
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(16 << 10)
		}
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			result <- err.Error()
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-read
		got, err := io.ReadAll(req.Body)
		if err != nil || len(got) != size {
			result <- "the body ended early"
			return
		}
		result <- strings.Trim(string(got), "a")
	}()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if tcp, ok := c.(*net.TCPConn); ok {
			err = tcp.SetWriteBuffer(16 << 10)
		}
		return c, err
	}
	client := http1.New(http1.Config{Dial: dial, MostIdle: 4, IdleTime: time.Minute, HeaderBytes: 1 << 16})
	defer client.CloseIdleConnections()
	from := &budget{most: 64 << 20}
	b := fill(t, 'a', size, from)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var closed atomic.Bool
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Body, req.ContentLength = &noted{b.Reader(b.Bytes()).(http1.Parts), &closed}, size
	res, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	b.Release()
	if closed.Load() {
		t.Fatal("the system took the whole body at once: the test needs a larger one")
	}
	for range 8 {
		other := fill(t, 'b', size, from)
		defer other.Release()
	}
	close(read)
	if got := <-result; got != "" {
		t.Errorf("the server got %.40q", got)
	}
}

// noted remembers that a body was closed.
type noted struct {
	http1.Parts
	closed *atomic.Bool
}

func (n *noted) Close() error {
	n.closed.Store(true)
	return n.Parts.Close()
}
