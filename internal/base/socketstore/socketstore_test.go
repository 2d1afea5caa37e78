package socketstore

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The child of TestOpen prints what it was handed.
func TestMain(m *testing.M) {
	if os.Getenv("FDSTORE_CHILD") == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("LISTEN_PID") == "self" {
		_ = os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	s := Open("carob-")
	if ln := s.Listener("carob-a", os.Getenv("ADDRESS")); ln != nil {
		os.Stdout.WriteString("taken ")
	}
	if s.Has("other") {
		os.Stdout.WriteString("foreign ")
	}
	if os.Getenv("LISTEN_FDS") != "" {
		os.Stdout.WriteString("inherited ")
	}
}

func TestOpen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct{ pid, fds, names, address, want string }{
		{"self", "1", "carob-a", ln.Addr().String(), "taken"},
		{"self", "2", "other:carob-a", ln.Addr().String(), "taken"},
		{"1", "1", "carob-a", ln.Addr().String(), ""}, // for another process
		{"self", "1", "carob-a", "127.0.0.1:1", ""},   // another address
		{"self", "x", "carob-a", ln.Addr().String(), ""},
		{"self", "-1", "carob-a", ln.Addr().String(), ""},
		{"self", "99999999", "carob-a", ln.Addr().String(), ""},
		{"self", "1", "", ln.Addr().String(), ""},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.ExtraFiles = []*os.File{f, f}
		cmd.Env = append(os.Environ(), "FDSTORE_CHILD=1", "LISTEN_PID="+c.pid, "LISTEN_FDS="+c.fds,
			"LISTEN_FDNAMES="+c.names, "ADDRESS="+c.address)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%+v: %q %v", c, out, err)
		}
	}
}

func TestName(t *testing.T) {
	if got := Name("x-", "[fd00::1]:80"); got != "x-fd00__1_80" {
		t.Error(got)
	}
	s := &Store{manager: "/nowhere"}
	if err := s.Forget("a\nFDSTORE=1\nx"); err == nil {
		t.Error("a name with a line break was sent")
	}
}
