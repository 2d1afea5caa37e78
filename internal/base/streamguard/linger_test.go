package streamguard

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// hijacked is a ResponseWriter of a connection.
type hijacked struct {
	http.ResponseWriter

	conn net.Conn
}

func (hijacked) Header() http.Header { return http.Header{} }

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// tcp is a connection, from both ends.
func tcp(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	return server, client
}

// A client whose input is not read gets all output and its end, not a reset.
func TestUnreadInput(t *testing.T) {
	for name, hijack := range map[string]func(w http.ResponseWriter) (net.Conn, func()){
		"guard": func(w http.ResponseWriter) (net.Conn, func()) {
			g := New(w, func(string) int { return 1 })
			c, _, err := g.Hijack()
			if err != nil {
				t.Fatal(err)
			}
			return c, g.Close
		},
		"lingering": func(w http.ResponseWriter) (net.Conn, func()) {
			c, _, err := Lingering{w}.Hijack()
			if err != nil {
				t.Fatal(err)
			}
			return c, func() { _ = c.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := tcp(t)
			conn, closeAgain := hijack(hijacked{conn: server})
			if _, err := client.Write(make([]byte, 1<<16)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte("output")); err != nil {
				t.Fatal(err)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			closeAgain()
			if got, err := io.ReadAll(client); string(got) != "output" || err != nil {
				t.Errorf("the client got %q, %v", got, err)
			}
		})
	}
}

// A client that opens too many streams is cut off at once.
func TestRefusedClientDoesNotLinger(t *testing.T) {
	server, client := tcp(t)
	conn, _, err := New(hijacked{conn: server}, func(string) int { return 0 }).Hijack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write(frames(t, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); !errors.Is(err, ErrTooMany) {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection is open: %v", err)
	}
}

// silent is a connection whose peer neither sends nor closes.
type silent struct {
	net.Conn

	deadline time.Time
	closed   chan struct{}
}

func (*silent) CloseWrite() error { return nil }

func (s *silent) SetReadDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *silent) Read([]byte) (int, error) {
	time.Sleep(time.Until(s.deadline))
	return 0, os.ErrDeadlineExceeded
}

func (s *silent) Close() error {
	close(s.closed)
	return nil
}

// A peer that never closes its side keeps the connection for some time only.
func TestLingerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := &silent{closed: make(chan struct{})}, time.Now()
		linger(s)
		<-s.closed
		if d := time.Since(began); d != lingerFor {
			t.Errorf("closed after %v", d)
		}
	})
}
