package native

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
)

// A pod's monitor hangs: execs end with their timeouts, and the lists of all containers do not wait for it, although a
// stop of its container does. When it goes on, nothing that was requested meanwhile is left.
func TestMonitorThatHangs(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("hung")
	id := w.run(sb, sbc, "c", shell("trap 'exit 7' TERM; while :; do sleep 0.1; done"))
	run := func(cmd ...string) error {
		_, err := w.r.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Timeout: 1, Cmd: cmd})
		return err
	}
	if err := run("sh", "-c", "exit 0"); err != nil {
		t.Fatal(err)
	}
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	hung := c.sandbox.rec.Monitor
	if err := unix.Kill(hung, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(hung, unix.SIGCONT) }()
	for _, cmd := range []string{"sleep 7801", "sleep 7802", "exec sleep 7803"} {
		if err := run("sh", "-c", cmd); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s: %v", cmd, err)
		}
	}

	stopped := make(chan error, 1)
	go func() {
		_, err := w.r.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 300})
		stopped <- err
	}()
	testwait.For(t, "the signal is sent", func() bool {
		if _, err := w.r.ListContainers(t.Context(), &cri.ListContainersRequest{}); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stopSent
	})
	select {
	case err := <-stopped:
		t.Errorf("the list waited for the end of the stop: %v", err)
	default:
	}
	if err := unix.Kill(hung, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if st := w.wait(id); st.ExitCode != 7 {
		t.Errorf("it ended with %d", st.ExitCode)
	}

	id = w.run(sb, sbc, "d", shell("sleep 1000"))
	if err := unix.Kill(hung, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := run("sh", "-c", "sleep 7804; true"); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	}
	if err := unix.Kill(hung, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the end of all that was started too late", func() bool {
		x, err := w.exec(id, "ps", "-o", "args")
		return err == nil && !strings.Contains(string(x.Stdout), "7804")
	})
}
