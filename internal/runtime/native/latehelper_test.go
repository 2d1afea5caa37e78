package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
)

// execGate delays each exec of a helper, in the open of its file, until the test decides (fanotify).
type execGate struct {
	t      *testing.T
	events *os.File
}

// lateHelpers makes the world's next helpers wait in their exec.
func lateHelpers(t *testing.T, w *world) *execGate {
	t.Helper()
	path := filepath.Join(w.dir, "helper")
	if err := os.WriteFile(path, helperProgram, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	high, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		t.Fatal(err)
	}
	old, err := w.r.programs.Helper()
	if err != nil {
		t.Fatal(err)
	}
	late := os.NewFile(uintptr(high), "helper")
	w.r.programs.UseHelper(late)
	t.Cleanup(func() {
		w.r.programs.UseHelper(old)
		late.Close()
	})
	group, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK,
		unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		err = unix.FanotifyMark(group, unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC_PERM, unix.AT_FDCWD, path)
	}
	if err != nil {
		t.Skip("this kernel lets no program decide about an exec: ", err)
	}
	g := &execGate{t, os.NewFile(uintptr(group), "fanotify")}
	t.Cleanup(func() { g.events.Close() }) // what still waits goes on
	return g
}

// next returns the process that waits in its exec, and what decides about it.
func (g *execGate) next() (pid int, decide func(response uint32)) {
	g.t.Helper()
	b := make([]byte, unsafe.Sizeof(unix.FanotifyEventMetadata{}))
	if err := g.events.SetReadDeadline(time.Now().Add(testwait.Limit)); err != nil {
		g.t.Fatal(err)
	}
	n, err := g.events.Read(b)
	if err != nil || n != len(b) {
		g.t.Fatal("no helper waits in its exec: ", n, err)
	}
	event := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&b[0]))
	return int(event.Pid), func(response uint32) {
		answer := binary.NativeEndian.AppendUint32(nil, uint32(event.Fd))
		_, err := g.events.Write(binary.NativeEndian.AppendUint32(answer, response))
		if err = errors.Join(err, unix.Close(int(event.Fd))); err != nil {
			g.t.Error(err)
		}
	}
}

// TestLateHelper: the process that becomes the helper may wait in its exec, in the monitor's memory while the monitor
// waits for it. Whatever happens to one of them meanwhile, the pod goes on afterwards, and nothing is left.
func TestLateHelper(t *testing.T) {
	type result struct {
		x   *cri.ExecSyncResponse
		err error
	}
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, w *world, monitor, helper int, other string)
		response  uint32
		want      string // of the error; empty: the command runs
		lost      bool   // the pod
	}{
		"late":    {response: unix.FAN_ALLOW},
		"refused": {response: unix.FAN_DENY, want: "exec failed"},
		"killed": {response: unix.FAN_ALLOW, want: "exec failed",
			meanwhile: func(t *testing.T, w *world, _, helper int, _ string) {
				if err := unix.Kill(helper, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}},
		"another container ends": {response: unix.FAN_ALLOW,
			meanwhile: func(t *testing.T, w *world, _, _ int, other string) {
				c, err := w.r.container(other)
				if err == nil {
					err = unix.Kill(c.record().Pid, unix.SIGKILL)
				}
				if err != nil {
					t.Error(err)
				}
			}},
		"the monitor is killed": {response: unix.FAN_ALLOW, want: "exec failed", lost: true,
			meanwhile: func(t *testing.T, w *world, monitor, _ int, _ string) {
				if err := unix.Kill(monitor, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.withoutPool() // a helper that is started ahead would wait, too; emptied starts it again
			sb, sbc := w.sandbox("late")
			id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
			other := w.run(sb, sbc, "other", shell("exec sleep 1000"))
			s, err := w.r.sandbox(sb)
			if err != nil {
				t.Fatal(err)
			}
			monitor := s.line().PID()
			gate := lateHelpers(t, w)
			results := make(chan result, 1)
			go func() {
				x, err := w.exec(id, "echo", "hello")
				results <- result{x, err}
			}()
			helper, decide := gate.next()
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", helper))
			if err != nil || !strings.Contains(exe, "carob-monitor") {
				t.Errorf("the process that waits is %q, %v, not one that the monitor has started", exe, err)
			}
			if c.meanwhile != nil {
				c.meanwhile(t, w, monitor, helper, other)
			}
			decide(c.response)
			r := <-results
			switch {
			case c.want == "" && (r.err != nil || string(r.x.GetStdout()) != "hello\n"):
				t.Errorf("got %q, %v", r.x.GetStdout(), r.err)
			case c.want != "" && (r.err == nil || !strings.Contains(r.err.Error(), c.want)):
				t.Errorf("got %v, %v, not an error with %q", r.x, r.err, c.want)
			}
			if name == "another container ends" {
				if st := w.wait(other); st.ExitCode != killedExit {
					t.Errorf("the other container has the code %d", st.ExitCode)
				}
			}
			if !c.lost {
				go func() { // of the next exec
					_, decide := gate.next()
					decide(unix.FAN_ALLOW)
				}()
				w.inside(id)
			}
			w.emptied()
			testwait.For(t, "the helper ends", func() bool { return !exists(fmt.Sprintf("/proc/%d", helper)) })
		})
	}
}
