package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"carob/internal/base/testwait"
	"carob/internal/gateway/proxy"
)

// frame is a frame of a WebSocket (RFC 6455, section 5.2): its first byte has FIN, RSV1 to 3, and the opcode.
type frame struct {
	first   byte
	payload []byte
}

const (
	fin, compressed                     = 0x80, 0x40
	continuation, text, binaryData      = 0, 1, 2
	closing, ping, pong            byte = 8, 9, 10
)

// write sends a frame, masked as a client's, or plain as a server's.
func (f frame) write(w io.Writer, masked bool) error {
	out := []byte{f.first}
	bit := byte(0)
	if masked {
		bit = 0x80
	}
	switch n := len(f.payload); {
	case n < 126:
		out = append(out, bit|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, bit|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, bit|127), uint64(n))
	}
	if !masked {
		_, err := w.Write(append(out, f.payload...))
		return err
	}
	key := [4]byte{1, 2, 3, 4}
	out = append(out, key[:]...)
	for i, c := range f.payload {
		out = append(out, c^key[i%4])
	}
	_, err := w.Write(out)
	return err
}

func readFrame(r io.Reader) (f frame, err error) {
	var head [2]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := uint64(head[1] & 0x7f)
	if size := map[uint64]int{126: 2, 127: 8}[n]; size > 0 {
		long := make([]byte, 8)
		if _, err = io.ReadFull(r, long[8-size:]); err != nil {
			return f, err
		}
		n = binary.BigEndian.Uint64(long)
	}
	var key [4]byte
	if head[1]&0x80 != 0 {
		if _, err = io.ReadFull(r, key[:]); err != nil {
			return f, err
		}
	}
	f = frame{head[0], make([]byte, n)}
	if _, err = io.ReadFull(r, f.payload); err != nil {
		return f, err
	}
	for i := range f.payload {
		f.payload[i] ^= key[i%4]
	}
	return f, nil
}

// webSocketEcho sends back each frame as it came. After a close frame, or the client's half close, it sends the number
// of frames, and ends.
func webSocketEcho(t *testing.T, results chan<- string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			if r.Method == http.MethodPost {
				body, _ := io.ReadAll(r.Body)
				results <- string(body)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, webSocketPage)
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: %s\r\n", base64.StdEncoding.EncodeToString(sum[:]))
		for _, h := range []string{"Sec-Websocket-Protocol", "Sec-Websocket-Extensions"} {
			if v := r.Header.Values(h); len(v) > 0 && r.URL.Path != "/browser" {
				fmt.Fprintf(conn, "%s: %s\r\n", h, strings.Join(v, ", "))
			}
		}
		fmt.Fprint(conn, "\r\n")
		for n := 0; ; n++ {
			f, err := readFrame(rw)
			if err != nil {
				_ = frame{fin | text, fmt.Appendf(nil, "%d frames, then %v", n, err)}.write(conn, false)
				return
			}
			if f.write(conn, false) != nil || f.first&15 == closing {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// webSocket opens one through the gateway.
func webSocket(t *testing.T, at string, headers ...string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "GET /echo HTTP/1.1\r\nHost: x.example.com\r\nConnection: keep-alive, Upgrade\r\n"+
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n",
		strings.Join(append(headers, ""), "\r\n"))
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols ||
		res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("%+v %v", res, err)
	}
	return conn, r, res
}

// Frames go through as they are: parts of messages with control frames between them, all sizes, close codes, compressed
// ones after the negotiation of it, and what no frame should be. A half close is passed on.
func TestWebSockets(t *testing.T) {
	l := newLab(t)
	l.service("a", "kubernetes.io/ws", at(webSocketEcho(t, nil), "pa"))
	l.ingress("x.example.com", nil, "/=a")
	l.update()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	for what, frames := range map[string][]frame{
		"sizes": {{fin | text, nil}, {fin | text, big[:125]}, {fin | text, big[:126]}, {fin | binaryData, big[:65535]},
			{fin | binaryData, big[:65536]}, {fin | binaryData, big}},
		"fragments": {{text, []byte("a")}, {fin | ping, []byte("p")}, {continuation, nil}, {fin | pong, nil},
			{continuation, big}, {fin | ping, big[:125]}, {fin | continuation, []byte("z")}},
		"compressed":     {{fin | compressed | text, []byte{0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00}}},
		"reserved":       {{fin | 0x30 | 3, []byte("x")}, {fin | 15, nil}},
		"no UTF-8":       {{fin | text, []byte{0xff, 0xc0}}},
		"close":          {{fin | closing, []byte{0x03, 0xe8, 'b', 'y', 'e'}}},
		"own close code": {{fin | closing, []byte{0x0f, 0xa0}}},
		"bare close":     {{fin | closing, nil}},
	} {
		conn, r, res := webSocket(t, l.http, "Sec-WebSocket-Protocol: a, b",
			"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
		if res.Header.Get("Sec-Websocket-Extensions") != "permessage-deflate; client_max_window_bits" ||
			res.Header.Get("Sec-Websocket-Protocol") != "a, b" {
			t.Errorf("%s: %v", what, res.Header)
		}
		sent := make(chan error, 1)
		go func() {
			for _, f := range frames {
				if err := f.write(conn, true); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i, want := range frames {
			got, err := readFrame(r)
			if err != nil || got.first != want.first || !bytes.Equal(got.payload, want.payload) {
				t.Fatalf("%s: frame %d is %x with %d bytes, %v", what, i, got.first, len(got.payload), err)
			}
		}
		if err := <-sent; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if frames[len(frames)-1].first&15 == closing {
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("%s: after the close: %v", what, err)
			}
			_ = conn.Close()
			continue
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		last, err := readFrame(r)
		if want := fmt.Sprintf("%d frames, then EOF", len(frames)); string(last.payload) != want || err != nil {
			t.Errorf("%s: after half of the connection was closed: %q %v, want %q", what, last.payload, err, want)
		}
	}
	testwait.For(t, "all have ended", func() bool { return !l.busy("pa") })
}

// busy reports whether a pod has requests in flight.
func (l *lab) busy(pod string) bool {
	l.traffic.mu.Lock()
	defer l.traffic.mu.Unlock()
	for _, t := range l.traffic.targets {
		if string(t.Pod) == pod && t.requests.Load() > 0 {
			return true
		}
	}
	return false
}

// A client that reads nothing stops its server, not others, and costs no memory beyond buffers of the kernel and of one
// copy. What it did not read is there when it reads.
func TestSlowReaderOfWebSocket(t *testing.T) {
	l := newLab(t)
	const size, count = 1 << 20, 64
	sent := make(chan int, count)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		for i := range count {
			if (frame{fin | binaryData, bytes.Repeat([]byte{byte(i)}, size)}).write(conn, false) != nil {
				return
			}
			sent <- i
		}
	}))
	t.Cleanup(backend.Close)
	l.service("a", "kubernetes.io/ws", at(backend.URL, "pa"))
	l.service("b", "", at(echo(t, "b").URL, "pb"))
	l.ingress("x.example.com", nil, "/=a")
	l.ingress("y.example.com", nil, "/=b")
	l.update()
	_, r, _ := webSocket(t, l.http)
	<-sent // it has begun
	status, body, _ := l.get("GET", "y.example.com", "/", nil)
	want(t, "another client", status, body, 200, "b GET")
	if n := len(sent); n > count/2 {
		t.Errorf("%d MiB were taken from the server for a client that reads nothing", n)
	}
	for i := range count {
		f, err := readFrame(r)
		if err != nil || len(f.payload) != size || f.payload[0] != byte(i) || f.payload[size-1] != byte(i) {
			t.Fatalf("frame %d: %d bytes, %v", i, len(f.payload), err)
		}
	}
}

// A client that does not close a connection that its server has closed is left after a while without a word.
func TestClientsOfClosedServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := net.Pipe()
		defer client.Close()
		u := &proxy.UpgradedClient{Conn: halfPipe{conn}, Patience: slowClient}
		read := make(chan time.Duration, 10)
		go func() {
			defer close(read)
			for began := time.Now(); ; {
				if _, err := u.Read(make([]byte, 8)); err != nil {
					return
				}
				read <- time.Since(began)
			}
		}()
		time.Sleep(time.Hour) // while the server has not closed it, silence is allowed
		began := time.Now()
		if err := u.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(slowClient - time.Second)
			if _, err := client.Write([]byte("more")); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for range read {
			n++
		}
		if took := time.Since(began); n != 3 || took != 3*(slowClient-time.Second)+slowClient {
			t.Errorf("%d reads in %v", n, took)
		}
	})
}

// halfPipe has a direction that can be closed.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// webSocketPage opens a WebSocket and shows what came back.
const webSocketPage = `<!doctype html><title>echo</title><script>
const s = new WebSocket("ws://" + location.host + "/browser"), got = [], big = "x".repeat(300000)
s.onopen = () => { s.send("hello"); s.send(big); s.send(new Uint8Array([1, 2, 3]).buffer) }
s.binaryType = "arraybuffer"
s.onmessage = e => {
  got.push(typeof e.data == "string" ? e.data.length + (e.data == big ? " x" : " " + e.data) :
    "bytes " + new Uint8Array(e.data).join(","))
  if (got.length == 3) s.close(4001, "done")
}
s.onclose = e => fetch("/result", {method: "POST", body: got.join("; ") + "; closed " + e.code + " " + e.reason})
</script>`

// A browser (BROWSER=chromium) exchanges messages with an echo server through the gateway.
func TestWebSocketOfBrowser(t *testing.T) {
	program := os.Getenv("BROWSER")
	if program == "" {
		t.Skip("BROWSER names no browser")
	}
	results := make(chan string, 1)
	l := newLab(t)
	l.service("a", "", at(webSocketEcho(t, results), "pa"))
	l.ingress("", nil, "/=a")
	l.update()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", "http://"+l.http+"/")
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its own processes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-results:
		if got != "5 hello; 300000 x; bytes 1,2,3; closed 4001 done" {
			t.Errorf("the browser says %q", got)
		}
	case <-ctx.Done():
		t.Error("the browser says nothing")
	}
	cancel()
	_ = cmd.Wait()
}
