package openfile

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFD(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if n := FD(f); n < 0 {
		t.Errorf("an open file has descriptor %d", n)
	}
	f.Close()
	if n := FD(f); n != -1 {
		t.Errorf("a closed file has descriptor %d", n)
	}
}

// The connection outlives the file, and only a unix socket has one.
func TestUnixConn(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, n := range pair {
		f := os.NewFile(uintptr(n), "pair")
		if conns[i], err = UnixConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		defer conns[i].Close()
	}
	if _, err := conns[0].Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	if n, err := conns[1].Read(b); err != nil || string(b[:n]) != "hello" {
		t.Errorf("%q, %v", b[:n], err)
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if c, err := UnixConn(plain); err == nil {
		t.Errorf("a plain file is %v", c)
	}
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(tcp), "tcp")
	defer f.Close()
	if c, err := UnixConn(f); err == nil {
		t.Errorf("a TCP socket is %v", c)
	}
}

func TestMemoryFile(t *testing.T) {
	f, err := MemoryFile("plan", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
	if err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
	// From Linux 6.3 on it is sealed against execution; before, the flag is left out.
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err == nil && seals&0x20 == 0 {
		var u unix.Utsname
		_ = unix.Uname(&u)
		t.Logf("not sealed against execution on %s", unix.ByteSliceToString(u.Release[:]))
	}
}
