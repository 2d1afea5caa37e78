package apiserver

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// connections is how many are open at once; releases are tested with 10000.
const connections = "CONNECTIONS"

// header encodes the fields of a request as a header block.
func header(t *testing.T, fields ...string) []byte {
	t.Helper()
	var b strings.Builder
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	return []byte(b.String())
}

// A client that floods a connection with frames that cost it nothing is disconnected, or uses a
// limited amount of memory; other clients are served meanwhile.
func TestFloods(t *testing.T) {
	r := start(t, t.TempDir())
	c := r.remote(t, r.pki.Admin.Pair())
	list := header(t, ":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/api/v1/pods")
	watch := header(t, ":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/api/v1/configmaps?watch=1")
	request := func(s *streams, block []byte) error {
		id := s.next
		s.next += 2
		if err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true,
			EndStream: true}); err != nil {
			return err
		}
		return s.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	for name, frame := range map[string]func(s *streams) error{
		"requests taken back": func(s *streams) error { return request(s, list) },
		"watches taken back":  func(s *streams) error { return request(s, watch) },
		"pings":               func(s *streams) error { return s.WritePing(false, [8]byte{1}) },
		"settings": func(s *streams) error {
			return s.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15})
		},
		"priorities": func(s *streams) error {
			return s.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 7})
		},
		"empty data": func(s *streams) error { return s.WriteData(1, false, nil) },
		"headers without end": func(s *streams) error {
			if s.next == 1 {
				s.next = 3
				return s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: list})
			}
			return s.WriteContinuation(1, false, header(t, "x-more", strings.Repeat("x", 4000)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, goroutines := heap(), runtime.NumGoroutine()
			s := r.dialStreams(t)
			flooded := make(chan int, 1)
			go func() {
				n := 0
				for n < 20_000 && frame(s) == nil {
					n++
				}
				_ = s.conn.CloseWrite() // it may be disconnected
				flooded <- n
			}()
			go func() { _, _ = io.Copy(io.Discard, s.conn) }() // what is answered
			for range 20 {
				if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
					t.Error(err)
				}
			}
			n := <-flooded
			if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			grown, more := heap()-before, runtime.NumGoroutine()-goroutines
			t.Logf("%d frames: %d MB, %d goroutines more", n, grown>>20, more)
			// maxStreams requests of one connection run at a time, on several goroutines each.
			if grown > 300<<20 || more > 10*maxStreams {
				t.Errorf("%d MB, %d goroutines more", grown>>20, more)
			}
		})
	}
}

// Pipelined requests are answered in their order.
func TestPipelined(t *testing.T) {
	r := start(t, t.TempDir())
	const n = 200
	c := r.dial(t)
	go func() {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "GET /api/v1/namespaces/default/configmaps/c%d HTTP/1.1\r\nHost: h\r\n\r\n", i)
		}
		_, _ = io.WriteString(c, b.String()) // the answers show it
	}()
	in := bufio.NewReader(c)
	for i := range n {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusNotFound ||
			!strings.Contains(string(text), fmt.Sprintf(`\"c%d\" not found`, i)) {
			t.Fatalf("answer %d: %s %s %v", i, resp.Status, text, err)
		}
	}
}

// Many connections that sent a request and are now idle use little memory each, and other clients
// are served.
func TestManyConnections(t *testing.T) {
	n := 300
	if x, err := strconv.Atoi(os.Getenv(connections)); err == nil {
		n = x
	}
	r := start(t, t.TempDir())
	c := r.remote(t, r.pki.Admin.Pair())
	if _, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	before := heap()
	for range n {
		conn := r.dial(t)
		send(t, conn, "GET /version HTTP/1.1\r\nHost: h\r\n\r\n")
		if resp := answer(t, conn); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	each := (heap() - before) / int64(n)
	t.Logf("%d connections: %d KB each, both ends together", n, each>>10)
	if each > 150<<10 {
		t.Errorf("a connection costs %d KB", each>>10)
	}
	if _, err := r.remote(t, r.pki.Admin.Pair()).CoreV1().Namespaces().Get(t.Context(), "default",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
