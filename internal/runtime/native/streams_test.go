package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/output"
)

// Containers and commands in them ignore no signal, also if carob, started by nohup, ignores one.
func TestNoIgnoredSignals(t *testing.T) {
	signal.Ignore(unix.SIGHUP, unix.SIGUSR2)
	defer signal.Reset(unix.SIGHUP, unix.SIGUSR2)
	w := newWorld(t)
	sb, sbc := w.sandbox("signals")
	id := w.run(sb, sbc, "c", func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sleep", "1000"}, nil })
	x, err := w.exec(id, "grep", "-h", "^SigIgn", "/proc/self/status", "/proc/1/status")
	if want := strings.Repeat("SigIgn:\t0000000000000000\n", 2); err != nil || string(x.Stdout) != want {
		t.Errorf("got %q %q, %v", x.GetStdout(), x.GetStderr(), err)
	}
}

func TestExecSync(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("exec")
	id := w.run(sb, sbc, "c", shell("sleep 1000"), securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUser, s.NoNewPrivs = &cri.Int64Value{Value: 1000}, true
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}), func(c *cri.ContainerConfig) { c.WorkingDir = "/home/app" })
	t.Run("as the container", func(t *testing.T) {
		x, err := w.exec(id, "sh", "-c",
			"id; pwd; echo $HOME; grep -E 'CapBnd|CapEff|NoNewPrivs|^Seccomp:' /proc/self/status | awk '{print $2}'; ls /proc/self/fd | wc -l")
		want := "uid=1000(app) gid=1001(app) groups=1001(app),2000(extra)\n/home/app\n/home/app\n0000000000000000\n00000000a80425fb\n1\n2\n4\n"
		if err != nil || string(x.Stdout) != want {
			t.Errorf("got %q %q, %v", x.GetStdout(), x.GetStderr(), err)
		}
		a, _ := os.ReadFile("/proc/self/cgroup")
		x, err = w.exec(id, "cat", "/proc/self/cgroup")
		// With cgroup v2 only, the container's own cgroup is the root of what it sees.
		if err != nil || !strings.Contains(string(x.Stdout), id) && string(x.Stdout) != "0::/\n" {
			t.Errorf("exec is in %s, we are in %s", x.GetStdout(), a)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		_, err := w.r.ExecSync(Bg,
			&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "sleep 777 & sleep 778"}, Timeout: 1})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("error %v", err)
		}
		testwait.For(t, "the end of the command after its timeout", func() bool { // it has been killed
			x, err := w.exec(id, "sh", "-c", "ps -o args | grep 'sleep 778' | grep -v grep")
			return err == nil && len(x.Stdout) == 0
		})
	})
	t.Run("not found", func(t *testing.T) {
		_, err := w.exec(id, "nosuch")
		if err == nil || !strings.Contains(err.Error(), `exec: "nosuch": executable file not found in $PATH`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("output", func(t *testing.T) {
		x, err := w.exec(id, "sh", "-c", "head -c 20000000 /dev/zero")
		if err != nil || len(x.Stdout) != output.Most {
			t.Errorf("%d bytes, %v", len(x.GetStdout()), err)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				x, err := w.exec(id, "sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i))
				if err != nil || string(x.Stdout) != fmt.Sprintf("%d\n", i) || int(x.ExitCode) != i {
					t.Errorf("%d: %v, %v", i, x, err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("something left behind holds the streams", func(t *testing.T) {
		x, err := w.exec(id, "sh", "-c", "echo first; sleep 500 & exit 4")
		if err != nil || string(x.Stdout) != "first\n" || x.ExitCode != 4 {
			t.Errorf("%v, %v", x, err)
		}
	})
	t.Run("it holds them until the timeout, which is that of most probes", func(t *testing.T) {
		var x *cri.ExecSyncResponse
		var err error
		for range 5 { // a process that takes longer than a second on a busy machine is killed by the timeout
			x, err = w.r.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Timeout: 1,
				Cmd: []string{"sh", "-c", "echo first; sleep 500 & exit 4"}})
			if err == nil {
				break
			}
		}
		if err != nil || string(x.Stdout) != "first\n" || x.ExitCode != 4 {
			t.Errorf("%v, %v", x, err)
		}
	})
	w.stop(id, 0)
	if _, err := w.exec(id, "true"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("exec in an exited container: %v", err)
	}
}

// pipe is a stream that a client reads.
type pipe struct {
	mu sync.Mutex
	b  bytes.Buffer
	ch chan struct{}
}

func newPipe() *pipe { return &pipe{ch: make(chan struct{}, 1000)} }

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.b.Write(b)
	select {
	case p.ch <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (p *pipe) Close() error { return nil }

func (p *pipe) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

func (p *pipe) expect(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(testwait.Limit)
	for !strings.Contains(p.String(), text) {
		select {
		case <-p.ch:
		case <-deadline:
			t.Fatalf("got %q, want %q in it", p.String(), text)
		}
	}
}

// leavingClient disconnects after the first data that it receives.
type leavingClient struct {
	*pipe
	left bool
}

func (c *leavingClient) Write(b []byte) (int, error) {
	c.mu.Lock()
	gone := c.left
	c.left = true
	c.mu.Unlock()
	if gone {
		return 0, io.ErrClosedPipe
	}
	return c.pipe.Write(b)
}

func TestStreamExec(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("stream")
	id := w.run(sb, sbc, "c", shell("sleep 1000"))
	s := w.r.Streams()
	t.Run("stdin ends", func(t *testing.T) {
		out, errs := newPipe(), newPipe()
		err := s.Exec(Bg, id, []string{"sh", "-c", "wc -c; echo e >&2; exit 6"}, strings.NewReader("12345"), out, errs,
			false, nil)
		var e utilexec.CodeExitError
		if ok := asExit(err, &e); !ok || e.Code != 6 || strings.TrimSpace(out.String()) != "5" ||
			errs.String() != "e\n" {
			t.Errorf("%v, %q, %q", err, out, errs)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		out := newPipe()
		inR, inW := io.Pipe()
		sizes := make(chan remotecommand.TerminalSize, 1)
		sizes <- remotecommand.TerminalSize{Width: 132, Height: 43}
		done := make(chan error)
		go func() { done <- s.Exec(Bg, id, []string{"sh"}, inR, out, nil, true, sizes) }()
		fmt.Fprintln(inW,
			"test -t 0 && echo is-a-$((1+1))-tty; while ! stty size | grep 43; do sleep 0.02; done; echo $TERM; while ! stty size | grep 25; do sleep 0.02; done; exit 3")
		out.expect(t, "is-a-2-tty")
		out.expect(t, "43 132")
		out.expect(t, "xterm")
		sizes <- remotecommand.TerminalSize{Width: 80, Height: 25} // the user resizes the window
		out.expect(t, "25 80")
		var e utilexec.CodeExitError
		if err := <-done; !asExit(err, &e) || e.Code != 3 {
			t.Errorf("%v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(Bg)
		out := newPipe()
		done := make(chan error)
		go func() {
			done <- s.Exec(ctx, id, []string{"sh", "-c", "echo on; sleep 999"}, nil, out, nil, false, nil)
		}()
		out.expect(t, "on")
		cancel()
		if err := <-done; err == nil {
			t.Error("no error")
		}
	})
	t.Run("what is left behind writes on", func(t *testing.T) {
		out := newPipe()
		err := s.Exec(Bg, id, []string{"sh", "-c", "(sleep 1.3; echo late) & echo first; exit 3"}, nil, out, nil, false,
			nil)
		var e utilexec.CodeExitError
		if !asExit(err, &e) || e.Code != 3 || out.String() != "first\nlate\n" {
			t.Errorf("%v, %q", err, out)
		}
	})
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprint("nobody reads what is left behind, terminal ", tty), func(t *testing.T) {
			out := &leavingClient{pipe: newPipe()}
			err := s.Exec(Bg, id, []string{"sh", "-c", "trap '' HUP; sleep 700 & echo first"}, nil, out, nil, tty, nil)
			if err != nil || !strings.HasPrefix(out.String(), "first") {
				t.Errorf("%v, %q", err, out)
			}
		})
	}
	t.Run("a client that leaves", func(t *testing.T) {
		out := &leavingClient{pipe: newPipe()}
		err := s.Exec(Bg, id, []string{"sh", "-c", "while echo line; do :; done; exit 9"}, nil, out, nil, false, nil)
		var e utilexec.CodeExitError
		if !asExit(err, &e) || e.Code != 128+13 && e.Code != 9 {
			t.Errorf("a process whose output nobody takes: %v", err)
		}
	})
	t.Run("not found", func(t *testing.T) {
		message := newPipe()
		err := s.Exec(Bg, id, []string{"nosuch"}, nil, newPipe(), message, false, nil)
		var e utilexec.CodeExitError
		if !asExit(err, &e) || e.Code != 127 ||
			message.String() != "exec: \"nosuch\": executable file not found in $PATH\n" {
			t.Errorf("%v, %q", err, message)
		}
	})
}

func asExit(err error, e *utilexec.CodeExitError) bool {
	return errors.As(err, e)
}

func TestAttach(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("attach")
	s := w.r.Streams()
	t.Run("streams", func(t *testing.T) {
		id := w.run(sb, sbc, "plain", shell("while read x; do echo got $x; echo err $x >&2; done; echo eof"),
			func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
		out, errs := newPipe(), newPipe()
		inR, inW := io.Pipe()
		done := make(chan error)
		go func() { done <- s.Attach(Bg, id, inR, out, errs, false, nil) }()
		fmt.Fprintln(inW, "one")
		out.expect(t, "got one\n")
		errs.expect(t, "err one\n")
		inW.Close()
		out.expect(t, "eof\n")
		if err := <-done; err != nil {
			t.Error(err)
		}
		if st := w.wait(id); st.ExitCode != 0 {
			t.Errorf("code %d", st.ExitCode)
		}
		if got := w.log(sbc, "plain"); !strings.Contains(got, "stdout F got one\n") ||
			!strings.Contains(got, "stderr F err one\n") {
			t.Errorf("log %q", got)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		id := w.run(sb, sbc, "tty",
			func(c *cri.ContainerConfig) { c.Command, c.Stdin, c.Tty = []string{"sh"}, true, true })
		out := newPipe()
		inR, inW := io.Pipe()
		sizes := make(chan remotecommand.TerminalSize, 1)
		sizes <- remotecommand.TerminalSize{Width: 100, Height: 33}
		done := make(chan error)
		go func() { done <- s.Attach(Bg, id, inR, out, nil, true, sizes) }()
		fmt.Fprintln(inW,
			"while ! stty size | grep 33; do sleep 0.02; done; test -c /dev/console && echo con$((40+2)); exit 4")
		out.expect(t, "33 100")
		out.expect(t, "con42")
		<-done
		if st := w.wait(id); st.ExitCode != 4 {
			t.Errorf("code %d", st.ExitCode)
		}
	})
	t.Run("one after the other", func(t *testing.T) {
		id := w.run(sb, sbc, "again", shell("while read x; do echo got $x; done; echo eof"),
			func(c *cri.ContainerConfig) { c.Stdin = true })
		watching, watched := newPipe(), make(chan error)
		ctx, cancel := context.WithCancel(Bg)
		go func() { watched <- s.Attach(ctx, id, nil, watching, nil, false, nil) }()
		testwait.For(t, "a client that watches", func() bool { // it is attached when it sees something
			return s.Attach(Bg, id, strings.NewReader("zero\n"), newPipe(), nil, false, nil) == nil &&
				strings.Contains(watching.String(), "got zero")
		})
		for _, word := range []string{"one", "two"} {
			// Without stdin_once, the end of a client's input ends the attach, and does not close the container's
			// (kubectl run --leave-stdin-open).
			if err := s.Attach(Bg, id, strings.NewReader(word+"\n"), newPipe(), nil, false, nil); err != nil {
				t.Error(err)
			}
			watching.expect(t, "got "+word+"\n")
		}
		cancel() // nothing else ends the attach of a client without input
		if err := <-watched; !errors.Is(err, context.Canceled) || strings.Contains(watching.String(), "eof") {
			t.Errorf("a client that only watches: %v, %q", err, watching)
		}
		if !w.running(id) {
			t.Error("it has ended with its clients")
		}
	})
	t.Run("a large input that leaves the container's open", func(t *testing.T) {
		id := w.run(sb, sbc, "open", shell("head -c 3145728 | wc -c; cat"),
			func(c *cri.ContainerConfig) { c.Stdin = true })
		watching := newPipe()
		go s.Attach(Bg, id, nil, watching, nil, false, nil)
		input := strings.NewReader(strings.Repeat("x", 3<<20))
		if err := s.Attach(Bg, id, input, newPipe(), nil, false, nil); err != nil {
			t.Error(err)
		}
		watching.expect(t, "3145728") // all of it, though its client has gone
	})
	t.Run("a large input", func(t *testing.T) {
		id := w.run(sb, sbc, "large", shell("wc -c"),
			func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
		out := newPipe()
		go s.Attach(Bg, id, strings.NewReader(strings.Repeat("x", 3<<20)), out, nil, false, nil)
		out.expect(t, "3145728")
		w.wait(id)
	})
}

// TestAttachLate: the output of an interactive container is not lost for a client that attaches a
// moment too late, even if the container has exited, nor for one that reads slowly when it exits.
func TestAttachLate(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("late")
	s := w.r.Streams()
	interactive := func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }
	t.Run("late, while it runs", func(t *testing.T) {
		for _, tty := range []bool{false, true} {
			id := w.run(sb, sbc, fmt.Sprint("late", tty),
				shell("echo early; echo problem >&2; touch /tmp/said; read x; echo got $x"), interactive,
				func(c *cri.ContainerConfig) { c.Tty = tty })
			w.inside(id)
			for range 1000 { // until it has written everything
				if x, err := w.exec(id, "test", "-e", "/tmp/said"); err == nil && x.ExitCode == 0 {
					break
				}
			}
			out, errs := newPipe(), newPipe()
			if err := s.Attach(Bg, id, strings.NewReader("word\n"), out, errs, tty, nil); err != nil {
				t.Error(err)
			}
			got := strings.ReplaceAll(out.String(), "\r", "")
			if !tty && (got != "early\ngot word\n" || errs.String() != "problem\n") || tty &&
				!strings.HasPrefix(got, "early\nproblem\n") {
				t.Errorf("terminal %v: %q, %q", tty, got, errs)
			}
		}
	})
	t.Run("late, after its end", func(t *testing.T) {
		for i := range 10 {
			id := w.run(sb, sbc, fmt.Sprint("ended", i), shell("echo hi; echo there >&2"), interactive)
			w.wait(id)
			out, errs := newPipe(), newPipe()
			if err := s.Attach(Bg, id, strings.NewReader(""), out, errs, false, nil); err != nil ||
				out.String() != "hi\n" || errs.String() != "there\n" {
				t.Errorf("%v, %q, %q", err, out, errs)
			}
			if err := s.Attach(Bg, id, nil, newPipe(), nil, false, nil); status.Code(err) != codes.FailedPrecondition {
				// kubectl reads the log then
				t.Errorf("a second client: %v", err)
			}
		}
		id := w.run(sb, sbc, "deaf", shell("echo hi")) // not interactive: its log has it
		w.wait(id)
		if err := s.Attach(Bg, id, nil, newPipe(), nil, false, nil); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a container without input: %v", err)
		}
	})
	t.Run("late, after much", func(t *testing.T) {
		id := w.run(sb, sbc, "much",
			shell(`seq 100000; a=$(seq 1000 1999); for i in 1 2 3 4 5 6 7 8 9; do echo "$a"; echo "$a" >&2; done
				echo 9000; echo 9000 >&2; echo end`), interactive)
		w.wait(id)
		out, errs := newPipe(), newPipe()
		if err := s.Attach(Bg, id, nil, out, errs, false, nil); err != nil {
			t.Fatal(err)
		}
		if n := len(out.String()) + len(errs.String()); n > 64<<10 || n < 32<<10 ||
			!strings.HasSuffix(out.String(), "9000\nend\n") || !strings.HasSuffix(errs.String(), "9000\n") {
			t.Errorf("%d bytes, the last are %q", n, out.String()[max(0, len(out.String())-20):])
		}
	})
	t.Run("a slow client at the end", func(t *testing.T) {
		slowSB, sbc := w.sandbox("slow")
		// what the kernel and the monitor can buffer together
		id := w.run(slowSB, sbc, "slow", shell("read x; seq 36000"), interactive)
		out := &slowClient{pipe: newPipe(), go_: make(chan struct{})}
		inR, inW := io.Pipe()
		done := make(chan error)
		go func() { done <- s.Attach(Bg, id, inR, out, nil, false, nil) }()
		fmt.Fprintln(inW, "go")
		w.wait(id)
		if err := w.r.LogShown(Bg, id); err != nil { // to another client: this one still gets the rest
			t.Error(err)
		}
		stopped := make(chan error, 1)
		go func() { // as the agent does after the last container has exited
			_, err := w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: slowSB})
			stopped <- err
		}()
		close(out.go_)
		if err := errors.Join(<-done, <-stopped); err != nil {
			t.Error(err)
		}
		var want strings.Builder
		for i := range 36000 {
			fmt.Fprintln(&want, i+1)
		}
		if got := out.String(); got != want.String() {
			t.Errorf("%d of %d bytes, the last are %q", len(got), want.Len(), got[max(0, len(got)-10):])
		}
	})
}

// TestAttachAfterLog: the first client of an interactive container gets the output that no log has
// shown: once, and completely. TestAttachLate covers a container whose log was never read.
func TestAttachAfterLog(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("shown")
	s := w.r.Streams()
	interactive := func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }
	waitFile := func(id, file string) {
		t.Helper()
		for range 1000 {
			if x, err := w.exec(id, "test", "-e", file); err == nil && x.ExitCode == 0 {
				return
			}
		}
		t.Fatalf("no %s", file)
	}
	shown := func(id string, times int) {
		t.Helper()
		for range times {
			if err := w.r.LogShown(Bg, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	attach := func(id string, tty bool) (string, string) {
		t.Helper()
		out, errs := newPipe(), newPipe()
		if err := s.Attach(Bg, id, strings.NewReader("word\n"), out, errs, tty, nil); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out.String(), "\r", ""), errs.String()
	}
	// In each step, the container prints something and waits for the next.
	const script = "echo one; echo problem >&2; touch /tmp/1; until test -e /tmp/go; do sleep 0.01; done; echo two; echo again >&2; touch /tmp/2; read x; echo got $x"
	for _, tty := range []bool{false, true} {
		for times := range 3 {
			id := w.run(sb, sbc, fmt.Sprint("running", tty, times), shell(script), interactive,
				func(c *cri.ContainerConfig) { c.Tty = tty })
			w.inside(id)
			waitFile(id, "/tmp/1")
			shown(id, times)
			w.exec(id, "touch", "/tmp/go")
			waitFile(id, "/tmp/2")
			out, errs := attach(id, tty)
			wantOut, wantErr := "two\n", "again\n"
			if tty {
				wantOut, wantErr = "two\nagain\n", ""
			}
			if times == 0 {
				wantOut, wantErr = map[bool]string{false: "one\n", true: "one\nproblem\n"}[tty]+wantOut,
					map[bool]string{false: "problem\n"}[tty]+wantErr
			}
			if !strings.HasPrefix(out, wantOut) || !tty && out != wantOut+"got word\n" || errs != wantErr {
				t.Errorf("terminal %v, shown %d times: %q, %q", tty, times, out, errs)
			}
		}
		t.Run(fmt.Sprintf("all was shown, terminal %v", tty), func(t *testing.T) {
			id := w.run(sb, sbc, fmt.Sprint("all", tty), shell("echo one; touch /tmp/1; read x; echo got $x"),
				interactive, func(c *cri.ContainerConfig) { c.Tty = tty })
			w.inside(id)
			waitFile(id, "/tmp/1")
			shown(id, 1)
			if out, _ := attach(id, tty); strings.Contains(out, "one") || !strings.HasSuffix(out, "got word\n") {
				t.Errorf("%q", out)
			}
		})
		t.Run(fmt.Sprintf("the log has no unfinished line, terminal %v", tty), func(t *testing.T) {
			id := w.run(sb, sbc, fmt.Sprint("prompt", tty),
				shell("echo one; printf 'name? '; touch /tmp/1; read x; echo got $x"), interactive,
				func(c *cri.ContainerConfig) { c.Tty = tty })
			w.inside(id)
			waitFile(id, "/tmp/1")
			shown(id, 2)
			if out, _ := attach(id, tty); !strings.HasPrefix(out, "name? ") || !strings.HasSuffix(out, "got word\n") {
				t.Errorf("%q", out)
			}
		})
	}
	t.Run("it has ended", func(t *testing.T) {
		for i, command := range []string{"echo hi; printf there", "true"} {
			id := w.run(sb, sbc, fmt.Sprint("ended", i), shell(command), interactive)
			w.wait(id)
			shown(id, 2)
			if out, errs := attach(id, false); out != "" || errs != "" {
				// a client that got its URL before the exit is not rejected
				t.Errorf("%s: %q, %q", command, out, errs)
			}
			if err := s.Attach(Bg, id, nil, newPipe(), nil, false, nil); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("a second client: %v", err)
			}
			shown(id, 1) // it is forgotten
		}
	})
}

// TestLogShown: a call about a shown log never fails because of the state of a container or its
// monitor.
func TestLogShown(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("told")
	for i, c := range []func(*cri.ContainerConfig){func(*cri.ContainerConfig) {},
		func(c *cri.ContainerConfig) { c.Stdin = true }, func(c *cri.ContainerConfig) { c.Tty = true }} {
		id := w.run(sb, sbc, fmt.Sprint("c", i), shell("sleep 1000"), c)
		if err := w.r.LogShown(Bg, id); err != nil {
			t.Errorf("running: %v", err)
		}
		w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id})
		if err := w.r.LogShown(Bg, id); err != nil {
			t.Errorf("stopped: %v", err)
		}
		if i == 2 {
			w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb})
			if err := w.r.LogShown(Bg, id); err != nil {
				t.Errorf("without a monitor: %v", err)
			}
		}
	}
	if err := w.r.LogShown(Bg, strings.Repeat("0", 64)); status.Code(err) != codes.NotFound {
		t.Errorf("no such container: %v", err)
	}
}

// slowClient reads nothing until it may.
type slowClient struct {
	*pipe
	go_ chan struct{}
}

func (c *slowClient) Write(b []byte) (int, error) {
	<-c.go_
	return c.pipe.Write(b)
}

func TestPortForward(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("port")
	id := w.run(sb, sbc, "c", shell("while :; do echo hello | nc -l -p 8080; done"))
	for range 200 { // until it listens
		if x, err := w.exec(id, "sh", "-c", "grep -q 1F90 /proc/net/tcp /proc/net/tcp6"); err == nil &&
			x.ExitCode == 0 {
			break
		}
	}
	a, b := io.Pipe()
	out := newPipe()
	if err := w.r.Streams().PortForward(Bg, sb, 8080, &duplex{Reader: a, WriteCloser: out}); err != nil {
		t.Fatal(err)
	}
	b.Close()
	out.expect(t, "hello")
	if err := w.r.Streams().PortForward(Bg, sb, 9, &duplex{Reader: a, WriteCloser: out}); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("closed port: %v", err)
	}
}

type duplex struct {
	io.Reader
	io.WriteCloser
}
