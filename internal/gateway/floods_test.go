package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"carob/internal/base/testwait"
)

// heap is what is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// blockWithoutTable is the header block of a request, without a table.
func blockWithoutTable(path string) []byte {
	var out bytes.Buffer
	enc := hpack.NewEncoder(&out)
	enc.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "x.example.com"},
		{":path", path}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return out.Bytes()
}

// Floods of frames that cost the server more than the client, from clients that read nothing: the memory that they take
// is bounded, and others are served.
func TestFloodsOfHTTP2(t *testing.T) {
	l := newLab(t)
	l.service("a", "", at(echo(t, "a").URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	for what, flood := range map[string]func(h *http2.Framer, block []byte, i uint32) error{
		"settings": func(h *http2.Framer, _ []byte, i uint32) error {
			return h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i % 65535})
		},
		"sizes of the table": func(h *http2.Framer, _ []byte, i uint32) error {
			return h.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: i * 65537})
		},
		"pings": func(h *http2.Framer, _ []byte, i uint32) error { return h.WritePing(false, [8]byte{byte(i)}) },
		"empty continuations": func(h *http2.Framer, block []byte, i uint32) error {
			if i == 0 {
				return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			}
			return h.WriteContinuation(1, false, nil)
		},
		"windows": func(h *http2.Framer, _ []byte, _ uint32) error { return h.WriteWindowUpdate(0, 1) },
		"priorities": func(h *http2.Framer, _ []byte, i uint32) error {
			return h.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3})
		},
		"requests that are refused": func(h *http2.Framer, _ []byte, i uint32) error {
			return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: []byte{0x88},
				EndHeaders: true, EndStream: true})
		},
		"empty data": func(h *http2.Framer, block []byte, i uint32) error {
			if i == 0 {
				return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true})
			}
			return h.WriteData(1, false, nil)
		},
	} {
		before := heap()
		c, err := net.Dial("tcp", l.http)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		h := http2.NewFramer(c, nil)
		err = h.WriteSettings()
		block := blockWithoutTable("/")
		for i := uint32(0); i < 50000 && err == nil; i++ {
			_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second)) // the server may have stopped reading
			err = flood(h, block, i)
		}
		if grown := heap() - before; grown > 8<<20 {
			t.Errorf("%s: %d bytes of memory", what, grown)
		}
		status, text, _ := l.get("GET", "x.example.com", "/", nil)
		want(t, "another client during "+what, status, text, 200)
		_ = c.Close()
	}
	testwait.For(t, "the end of all requests", func() bool { return l.seen.figures.inFlight.Load() == 0 })
	testwait.For(t, "the end of all connections", func() bool { return l.open.Load() <= 1 }) // that of the other client
}

// A header whose few bytes unpack to 36 MB is refused, and takes no such memory.
func TestUnpackedHeaderIsBounded(t *testing.T) {
	l := newLab(t)
	var reached atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer backend.Close()
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h := dialH2(t, l.http)
	block := h.block("x-long", strings.Repeat("y", 3000))
	for range 12000 {
		block = append(block, 0x80|62)
	}
	if err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true,
		EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteGoAway(0, http2.ErrCodeNo, nil); err != nil {
		t.Fatal(err)
	}
	h.closed(t)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 || reached.Load() > 0 {
		t.Errorf("%d bytes were allocated, the backend got %d requests", n, reached.Load())
	}
}

// Clients that ask for 100 MB each and read hardly anything cost a bounded amount of memory, also by HTTP/2, and the
// others are served. (When they are cut off: TestSlowClients, TestSlowStreams.)
func TestSlowReadersAreBounded(t *testing.T) {
	const readers, most = 50, 512 << 10 // bytes of a request, with the backend's side, which is in the same process
	l := newLab(t)
	var waiting atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/large" {
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(100<<20))
		waiting.Add(1)
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 100<<20))
	}))
	defer backend.Close()
	l.service("a", "", at(backend.URL, "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	requests := map[string]int64{"HTTP/1.1": 1, "HTTP/2, ten streams": 10}
	for what, send := range map[string]func(c net.Conn) error{
		"HTTP/1.1": func(c net.Conn) error {
			_, err := io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x.example.com\r\n\r\n")
			return err
		},
		"HTTP/2, ten streams": func(c net.Conn) error {
			if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
				return err
			}
			f := http2.NewFramer(c, nil)
			if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}); err != nil {
				return err
			}
			if err := f.WriteWindowUpdate(0, 1<<31-1-65535); err != nil {
				return err
			}
			for id := uint32(1); id < 20; id += 2 {
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, EndHeaders: true,
					BlockFragment: blockWithoutTable("/large")}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		before, received := heap(), waiting.Load()
		var all []net.Conn
		for range readers {
			c, err := net.Dial("tcp", l.http)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := send(c); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		testwait.For(t, "the answers", func() bool { return waiting.Load() >= received+readers*requests[what] })
		status, text, _ := l.get("GET", "x.example.com", "/", nil)
		want(t, "another client, "+what, status, text, 200)
		grown := heap() - before
		t.Logf("%s: %d bytes for each of %d readers", what, grown/readers, readers)
		if grown > readers*requests[what]*most {
			t.Errorf("%s: %d bytes for %d readers", what, grown, readers)
		}
		for _, c := range all {
			_ = c.Close()
		}
		testwait.For(t, "the end of all requests", func() bool { return l.seen.figures.inFlight.Load() == 0 })
	}
}
