package native

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/wire"
)

// What the client of an attach has sent before it was killed reaches the container, whole and in its order: it has not
// read its output, the container reads late, and writes meanwhile.
func TestInputOfGoneClient(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("gone")
	id := w.run(sb, sbc, "c",
		shell("echo hello; while ! test -e /tmp/go; do sleep 0.01; done; echo begun; sha256sum"),
		func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
	conn, err := monitor.DialConn(w.r.runDir(sb))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const attach = 6 // M_ATTACH
	if _, err := conn.Write((&wire.Message{Code: attach, S: [4]string{id}}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1<<10)); err != nil { // the answer
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Read(func(fd uintptr) bool { // hello has arrived, and stays unread
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 64), unix.MSG_PEEK)
		return !errors.Is(err, unix.EAGAIN)
	})
	sum, frames := sha256.New(), 0
	random := rand.NewChaCha8([32]byte{})
	failed := raw.Write(func(fd uintptr) bool { // as much as the container, the monitor, and the kernel take
		for {
			frame := make([]byte, 16<<10) // it begins with the kind of input
			_, _ = random.Read(frame[1:])
			if _, err := unix.SendmsgN(int(fd), frame, nil, nil, unix.MSG_DONTWAIT); err != nil {
				return true
			}
			_, _ = sum.Write(frame[1:])
			frames++
		}
	})
	if err := errors.Join(err, failed, conn.Close()); err != nil {
		t.Fatal(err)
	}
	if x, err := w.exec(id, "touch", "/tmp/go"); err != nil || x.ExitCode != 0 {
		t.Fatal(x, err)
	}
	if st := w.wait(id); st.ExitCode != 0 {
		t.Errorf("code %d", st.ExitCode)
	}
	if got, want := w.log(sbc, "c"), hex.EncodeToString(sum.Sum(nil)); !strings.Contains(got, want) {
		t.Errorf("%d frames with the sum %s; the log is %q", frames, want, got)
	}
}

// Clients that are killed one after the other do not stay with the monitor because the container reads nothing.
func TestGoneClientsAreForgotten(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("forgotten")
	id := w.run(sb, sbc, "c", shell("sleep 1000"), func(c *cri.ContainerConfig) { c.Stdin = true })
	sandbox, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t, fmt.Sprint(sandbox.rec.Monitor))
	for range 5 {
		// More than the container's pipe takes.
		ctx, cancel := context.WithCancel(t.Context())
		in := &signalled{Reader: io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), neverReader{ctx}),
			after: 100 << 10, reached: make(chan struct{})}
		done := make(chan error, 1)
		go func() { done <- w.r.Streams().Attach(ctx, id, in, newPipe(), nil, false, nil) }()
		<-in.reached
		cancel()
		<-done
	}
	testwait.For(t, "the monitor forgets all but one", func() bool {
		return descriptors(t, fmt.Sprint(sandbox.rec.Monitor)) <= before+1
	})
}

// signalled is a reader that reports when so many bytes were read.
type signalled struct {
	io.Reader

	after   int
	reached chan struct{}
}

func (s *signalled) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if s.after > 0 && s.after <= n {
		close(s.reached)
	}
	s.after -= n
	return n, err
}

// neverReader has nothing to read until its context ends.
type neverReader struct{ context.Context }

func (r neverReader) Read([]byte) (int, error) {
	<-r.Done()
	return 0, r.Err()
}

// A client without input that leaves does not end the input of a container whose input ends with its first client.
func TestWatchingClientLeaves(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("watch")
	id := w.run(sb, sbc, "c", shell("while read x; do echo got $x; done; echo eof"),
		func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
	inR, inW := io.Pipe()
	out, done := newPipe(), make(chan error, 1)
	go func() { done <- w.r.Streams().Attach(Bg, id, inR, out, nil, false, nil) }()
	ctx, cancel := context.WithCancel(Bg)
	watching, watched := newPipe(), make(chan error, 1)
	go func() { watched <- w.r.Streams().Attach(ctx, id, nil, watching, nil, false, nil) }()
	testwait.For(t, "a client that watches", func() bool {
		fmt.Fprintln(inW, "one")
		return strings.Contains(watching.String(), "got one")
	})
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.inside(id) // the monitor has handled its end before
	fmt.Fprintln(inW, "two")
	out.expect(t, "got two\n")
	inW.Close()
	out.expect(t, "eof\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A pod takes so many clients at once; one that leaves makes room for another.
func TestMostAttached(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("most")
	id := w.run(sb, sbc, "c", shell("while read x; do echo got $x; done"),
		func(c *cri.ContainerConfig) { c.Stdin = true })
	s, ended := w.r.Streams(), make(chan error)
	ctx, cancel := context.WithCancel(Bg)
	leave := make([]context.CancelFunc, mostAttached)
	for i := range leave {
		var one context.Context
		one, leave[i] = context.WithCancel(ctx)
		go func() { ended <- s.Attach(one, id, nil, newPipe(), nil, false, nil) }()
	}
	sandbox, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "all clients", func() bool { return sandbox.attached.Load() == mostAttached })
	attach := func() error { return s.Attach(Bg, id, strings.NewReader("word\n"), newPipe(), nil, false, nil) }
	if err := attach(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	leave[0]()
	<-ended
	if err := attach(); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	cancel()
	for range mostAttached - 1 {
		<-ended
	}
}
