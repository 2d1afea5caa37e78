package streaming

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// upgraded begins a stream by hand: what follows the header is sent unchanged.
func upgraded(t *testing.T, address string, header ...string) net.Conn {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\n%s\r\n\r\n", u.RequestURI(), u.Host,
		strings.Join(header, "\r\n"))
	var got []byte
	for b := make([]byte, 1); !bytes.HasSuffix(got, []byte("\r\n\r\n")); got = append(got, b...) {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("%q: %v", got, err)
		}
	}
	if !bytes.HasPrefix(got, []byte("HTTP/1.1 101 ")) {
		t.Fatalf("%s", got)
	}
	return c
}

// frame is the beginning of a WebSocket frame that announces a payload of size bytes.
func frame(kind byte, masked bool, size uint64) []byte {
	b := []byte{0x80 | kind, 127}
	b = binary.BigEndian.AppendUint64(b, size)
	if masked {
		b[1] |= 0x80
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

// Clients that send something other than frames, or frames that are too large, are disconnected;
// they use a limited amount of memory, and other clients are served.
func TestBadStreams(t *testing.T) {
	s := start(t)
	exec := func() string {
		resp, err := s.GetExec(&cri.ExecRequest{ContainerId: "c", Cmd: []string{"cat"}, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Url
	}
	forward := func() string {
		resp, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "p", Port: []int32{80}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Url
	}
	spdy := func(protocol string) []string {
		return []string{"Upgrade: SPDY/3.1", "X-Stream-Protocol-Version: " + protocol}
	}
	socket := func(protocol string) []string {
		return []string{"Upgrade: websocket", "Sec-WebSocket-Version: 13",
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: " + protocol}
	}
	junk := bytes.Repeat([]byte("\x80\x03\x00\x01junk"), 4<<10)
	for _, c := range []struct {
		name   string
		url    func() string
		header []string
		sends  []byte
		more   int // bytes of zeros after it
	}{
		{"exec: no SPDY", exec, spdy("v4.channel.k8s.io"), junk, 0},
		{"exec: a SPDY frame without end", exec, spdy("v4.channel.k8s.io"), []byte{0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff},
			20 << 20},
		{"exec: SPDY data of no stream", exec, spdy("v4.channel.k8s.io"),
			[]byte{0, 0, 0, 9, 0, 0, 0, 4, 'd', 'a', 't', 'a'}, 0},
		{"port forward: no SPDY", forward, spdy("portforward.k8s.io"), junk, 0},
		{"exec: no WebSocket", exec, socket("v4.channel.k8s.io"), junk, 0},
		{"exec: an endless frame", exec, socket("v4.channel.k8s.io"), frame(2, true, 1<<62), 50 << 20},
		{"exec: a frame of a gigabyte", exec, socket("v4.channel.k8s.io"), frame(2, true, 1<<30), 50 << 20},
		{"exec: a frame for an unknown channel", exec, socket("v4.channel.k8s.io"),
			append(frame(2, true, 3), 200, 1, 1), 0},
		{"exec: a control frame that is too long", exec, socket("v4.channel.k8s.io"), frame(9, true, 1<<20), 2 << 20},
		{"exec: a frame without mask", exec, socket("v4.channel.k8s.io"), append(frame(2, false, 2), 0, 1), 0},
		{"port forward: a frame of a gigabyte", forward, socket("v4.channel.k8s.io"), frame(2, true, 1<<30), 50 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := memory()
			conn := upgraded(t, c.url(), c.header...)
			_, _ = conn.Write(c.sends) // it may be disconnected
			_, _ = conn.Write(make([]byte, c.more))
			_ = conn.(*net.TCPConn).CloseWrite()
			// SPDY clients have half a minute to open streams.
			if strings.HasPrefix(c.header[0], "Upgrade: websocket") {
				if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Error("it is not cut off")
				}
			}
			if grown := memory() - before; grown > 100<<20 {
				t.Errorf("%d MB more memory", grown>>20)
			}
			TestExec(t)
		})
	}
}

// memory is what is in use, and what was and is not collected yet, in bytes.
func memory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
