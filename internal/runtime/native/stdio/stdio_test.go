package stdio

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// inherited are the streams as a process has them, which outlive carob's copies.
func inherited(t *testing.T, s *Streams) (files [3]*os.File) {
	t.Helper()
	for i, f := range s.Theirs {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		files[i] = os.NewFile(uintptr(fd), fmt.Sprint(i))
	}
	return files
}

// The process reads what the caller sends, to its end, and the caller gets all output of both streams.
func TestPipes(t *testing.T) {
	var out, errs bytes.Buffer
	s, err := Open(Caller{In: strings.NewReader("question"), Out: &out, Err: &errs})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	process := inherited(t, s)
	if err := s.Copy(); err != nil {
		t.Fatal(err)
	}
	in, err := io.ReadAll(process[0])
	if err != nil || string(in) != "question" {
		t.Errorf("the process reads %q, %v", in, err)
	}
	for i, f := range process[1:] {
		fmt.Fprintf(f, "answer %d", i+1)
	}
	for _, f := range process {
		f.Close()
	}
	s.Drain(t.Context())
	if out.String() != "answer 1" || errs.String() != "answer 2" {
		t.Errorf("the caller gets %q and %q", &out, &errs)
	}
}

// Streams that nobody connects are /dev/null.
func TestNothingConnected(t *testing.T) {
	s, err := Open(Caller{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, f := range s.Theirs {
		if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil || name != os.DevNull {
			t.Errorf("stream %d is %s, %v", i, name, err)
		}
	}
	if err := s.Copy(); err != nil {
		t.Fatal(err)
	}
	s.Drain(t.Context())
}

// A client that sends sizes of its terminal as long as it lives holds no goroutine after the end of the process.
func TestSizesEndWithTheStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sizes := make(chan remotecommand.TerminalSize)
		s, err := Open(Caller{Resize: sizes})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Copy(); err != nil {
			t.Fatal(err)
		}
		sizes <- remotecommand.TerminalSize{Width: 80, Height: 25}
		s.Close() // the test fails if a goroutine is left
	})
}
