package monitor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/wire"
)

// A connection to a monitor receives the exits of all containers from the beginning. Such an event
// before the answer to an attach is not the answer: exit code 1 is not an error, and 0 not a
// success.
func TestContainerEndsBeforeAttachResponds(t *testing.T) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(t.TempDir(), "sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct {
		code, answer int64
		out          string
		want         error
	}{{1, 0, "held", nil}, {0, 0, "held", nil}, {0, int64(unix.ESRCH), "", unix.ESRCH}} {
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				served <- err
				return
			}
			defer conn.Close()
			_, err = conn.Read(make([]byte, 4096))
			for _, m := range []wire.Message{{Code: eventExit, N: [4]int64{tc.code}, S: [4]string{"other"}},
				{Code: replyDone, N: [4]int64{tc.answer}}} {
				_, werr := conn.Write(m.Append(nil))
				err = errors.Join(err, werr)
			}
			if tc.answer == 0 {
				_, werr := conn.Write(append([]byte{frameStdout}, "held"...))
				err = errors.Join(err, werr)
			}
			served <- err
		}()
		conn, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := Attach(t.Context(), conn, "c1", nil, &out, nil, nil); out.String() != tc.out ||
			!errors.Is(err, tc.want) {
			t.Errorf("another container ended with %d, the answer is %d: %q, %v", tc.code, tc.answer, out.String(), err)
		}
		conn.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A client that was too slow gets an error after the output that it still received.
func TestSlowAttachFails(t *testing.T) {
	client, monitor := connected(t)
	for _, packet := range [][]byte{(&wire.Message{Code: replyDone}).Append(nil),
		append([]byte{frameStdout}, "first"...), {frameDropped}} {
		if _, err := monitor.Write(packet); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	err := Attach(t.Context(), client, "c1", nil, &out, nil, nil)
	if out.String() != "first" || !errors.Is(err, ErrSlow) {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// If a monitor closes a connection with unread input, the output that it sent before is not lost.
func TestOutputBeforeUnreadInput(t *testing.T) {
	client, monitor := connected(t)
	for _, packet := range []string{"first", "second"} {
		if _, err := monitor.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Write([]byte{frameClose}); err != nil {
		t.Fatal(err)
	}
	monitor.Close()
	b := make([]byte, 64)
	for _, want := range []string{"first", "second", ""} {
		if n, err := readFrame(client, b); string(b[:n]) != want || (want != "" && err != nil) {
			t.Errorf("%q, %v; want %q", b[:n], err, want)
		}
	}
}

// connected returns the two ends of a connection.
func connected(t *testing.T) (client, monitor *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "line")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return conns[0], conns[1]
}
