package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/monitor"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/wire"
)

// preparedWorld is a world whose next sandbox has a helper that waits.
func preparedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	if !w.r.preparesHelpers() {
		t.Skip("this host starts no helpers ahead")
	}
	w.ready()
	return w
}

// ready waits until the next sandbox has a helper that waits.
func (w *world) ready() {
	w.tb.Helper()
	testwait.For(w.tb, "a monitor waits", func() bool { return w.r.pool.Len() > 0 })
}

// helperOf returns the process of the helper that waits in a sandbox.
func (w *world) helperOf(sb string) int {
	w.tb.Helper()
	s, err := w.r.sandbox(sb)
	if err != nil {
		w.tb.Fatal(err)
	}
	pids := childrenOf(w.tb, s.line().PID())
	if len(pids) != 1 {
		w.tb.Fatalf("the monitor has the children %v, not one helper", pids)
	}
	return pids[0]
}

func childrenOf(tb testing.TB, pid int) []int {
	tb.Helper()
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		tb.Fatal(err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(list)) {
		var child int
		if _, err := fmt.Sscan(f, &child); err != nil {
			tb.Fatal(err)
		}
		pids = append(pids, child)
	}
	return pids
}

// TestPreparedHelper: the first container of a pod is the helper that was started before the pod was
// known, and differs in nothing from the second one, whose helper was not.
func TestPreparedHelper(t *testing.T) {
	w := preparedWorld(t)
	sb, sbc := w.sandbox("ahead")
	helper := w.helperOf(sb)
	first := w.run(sb, sbc, "c1", shell("exec sleep 1000"))
	if pid := w.inside(first); pid != helper {
		t.Errorf("the container's process is %d, the helper that waited %d", pid, helper)
	}
	second := w.run(sb, sbc, "c2", shell("exec sleep 1000"))
	facts := func(id string) string {
		var b strings.Builder
		pid := w.inside(id)
		for _, ns := range []string{"net", "ipc", "uts", "user", "cgroup"} {
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(link + "\n")
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			for _, key := range []string{"Umask", "PPid", "Uid", "Gid", "Groups", "Sig", "Shd", "Cap", "NoNew", "Seccomp",
				"Cpus_allowed:"} {
				if strings.HasPrefix(line, key) && !strings.HasPrefix(line, "SigQ") {
					b.WriteString(line)
				}
			}
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(strings.ReplaceAll(string(groups), id, "ID"))
		// The shell is pid 2 there; 1 has what the helper left.
		x, err := w.exec(id, "sh", "-c", "hostname; cat /proc/1/oom_score_adj; ls /sys/class/net /dev; "+
			"ls /proc/1/fd; readlink /proc/1/fd/* | sed 's/[0-9]\\+//'; awk '{print $2, $3, $4}' /proc/1/mounts | "+
			"sed 's/layers.*//; s/,.*//' | sort; readlink /proc/1/ns/pid | wc -c; ls /proc | grep '^1$'")
		if err != nil || x.ExitCode != 0 {
			t.Fatalf("%v, %v", x, err)
		}
		b.Write(x.Stdout)
		return b.String()
	}
	w.images.mountAhead(false)
	third := w.run(sb, sbc, "c3", shell("exec sleep 1000"))
	a, b, c := facts(first), facts(second), facts(third)
	if a != b {
		t.Errorf("the first container:\n%s\nthe second one:\n%s", a, b)
	}
	if b != c {
		t.Errorf("the root of this container was mounted ahead:\n%s\nand of this one it was not:\n%s", b, c)
	}
	for name, id := range map[string]string{"ahead": first, "not ahead": third} {
		if got := w.layerOf(t, id); got != w.layerOf(t, second) {
			t.Errorf("the layer of a container whose root was mounted %s has:\n%s", name, got)
		}
	}
}

// layerOf lists what is in the writable layer of a container, with modes and owners.
func (w *world) layerOf(t *testing.T, id string) string {
	t.Helper()
	var b strings.Builder
	root := filepath.Join(w.images.dir, id, "u")
	if err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		fmt.Fprintf(&b, "%s %o %d %d\n", strings.TrimPrefix(p, root), st.Mode, st.Uid, st.Gid)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRootIsLost: a helper that does not get the root that was mounted ahead ends with a clear error, or when its
// start is cancelled, and the next start mounts it.
func TestRootIsLost(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("lost")
	w.images.instead = func() *os.File {
		f, err := os.Open(w.images.root) // no mount
		if err != nil {
			t.Error(err)
		}
		return f
	}
	id := w.create(sb, sbc, "nomount", shell("exec sleep 1000"))
	if _, err := w.r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id}); err == nil ||
		!strings.Contains(err.Error(), "container setup, operation") {
		t.Errorf("a directory instead of a mount: %v", err)
	}
	w.images.instead = nil
	ctx, cancel := context.WithCancel(t.Context())
	w.r.alter = func(p *plan.Program) { // it waits for a second one, that never comes
		p.Ops = slices.DeleteFunc(p.Ops, func(m wire.Message) bool { return m.Code == plan.OpGate })
		p.Ops = slices.Insert(p.Ops, 0, wire.Message{Code: plan.OpTake, N: [4]int64{255}},
			wire.Message{Code: plan.OpTake, N: [4]int64{254}})
		cancel()
	}
	id = w.create(sb, sbc, "never", shell("exec sleep 1000"))
	if _, err := w.r.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id}); err == nil {
		t.Error("a helper without its root is started")
	}
	w.r.alter = nil
	w.inside(w.run(sb, sbc, "next", shell("exec sleep 1000")))
}

// TestPreparedHelperLost: a helper that has ended before it was needed, at whatever time, costs
// nothing but the time of a new one.
func TestPreparedHelperLost(t *testing.T) {
	w, arm := brokenWorld(t)
	if !w.r.preparesHelpers() {
		t.Skip("this host starts no helpers ahead")
	}
	kill := func(helper int) { // and wait for its end
		fd, err := unix.PidfdOpen(helper, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
			t.Error(err)
		}
		ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ended, int(testwait.Limit.Milliseconds()))
		for errors.Is(err, unix.EINTR) { // the Go runtime sends signals to its threads
			n, err = unix.Poll(ended, int(testwait.Limit.Milliseconds()))
		}
		if n != 1 {
			t.Error("it does not end", err)
		}
	}
	for name, lose := range map[string]func(sb string, helper int){
		"before": func(sb string, helper int) {
			kill(helper)
			s, err := w.r.sandbox(sb)
			if err != nil {
				t.Fatal(err)
			}
			testwait.For(t, "the monitor has seen it", func() bool { return len(childrenOf(t, s.line().PID())) == 0 })
		},
		"while the program is planned": func(_ string, helper int) {
			arm(&breaker{at: StepStartProgram, do: func(string) error { kill(helper); return nil }})
		},
		"just before it gets it": func(_ string, helper int) {
			w.r.alter = func(*plan.Program) { w.r.alter = nil; kill(helper) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w.tb = t
			w.ready()
			sb, sbc := w.sandbox(strings.ReplaceAll(name, " ", "-"))
			helper := w.helperOf(sb)
			lose(sb, helper)
			id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
			if pid := w.inside(id); pid == helper {
				t.Error("it runs in a helper that was killed")
			}
			if _, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
				t.Fatal(err)
			}
		})
	}
	w.tb = t
	w.emptied()
}

// TestPreparedHelperRefused: the monitor gives a helper that waits to one container, and to none that
// it does not fit.
func TestPreparedHelperRefused(t *testing.T) {
	w := preparedWorld(t)
	sb, sbc := w.sandbox("refused")
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	m := s.line()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	start := func(flags, mode int) error {
		_, err := m.Start(monitor.ContainerStart{ID: newID(), Dir: dir, Flags: flags, PIDMode: mode, Prepared: true})
		return err
	}
	for _, bad := range []error{start(monitor.FlagTTY, monitor.PIDNew), start(monitor.FlagStdin, monitor.PIDNew),
		start(0, monitor.PIDHost)} {
		if !errors.Is(bad, unix.ESRCH) {
			t.Errorf("a container that it does not fit: %v", bad)
		}
	}
	if helper, err := w.r.programs.Helper(); err != nil || !errors.Is(m.Prepare(helper), unix.EEXIST) {
		t.Error("a second helper waits", err)
	}
	if err := start(0, monitor.PIDNew); err != nil { // it gets no program
		t.Error(err)
	}
	if err := start(0, monitor.PIDNew); !errors.Is(err, unix.ESRCH) {
		t.Errorf("used twice: %v", err)
	}
	helper := w.helperOf(sb)
	m.Drop()
	testwait.For(t, "it ends with its line", func() bool { return len(childrenOf(t, m.PID())) == 0 })
	if _, err := os.Stat(filepath.Join("/proc", fmt.Sprint(helper))); err == nil {
		t.Error("it is left")
	}
	w.run(sb, sbc, "c", shell("exec sleep 1000"))
}

// TestPreparedHelperNotNeeded: no helper waits for longer than until the first container of its pod
// starts, and none in a pod that ends.
func TestPreparedHelperNotNeeded(t *testing.T) {
	w := preparedWorld(t)
	ended := func(helper int) {
		t.Helper()
		testwait.For(t, "the helper ends", func() bool {
			_, err := os.Stat(filepath.Join("/proc", fmt.Sprint(helper)))
			return err != nil
		})
	}
	sb, sbc := w.sandbox("terminal")
	helper := w.helperOf(sb)
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"), func(c *cri.ContainerConfig) { c.Tty, c.Stdin = true, true })
	if w.inside(id) == helper {
		t.Error("a container with a terminal got it")
	}
	ended(helper)

	w.ready()
	sb, _ = w.sandbox("none")
	helper = w.helperOf(sb)
	if _, err := w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
		t.Fatal(err)
	}
	ended(helper)

	w.ready()
	sb, _ = w.sandbox("left")
	helper = w.helperOf(sb)
	if err := w.r.Close(); err != nil { // as when carob is killed: the kernel closes the line
		t.Fatal(err)
	}
	ended(helper)
	w.open()
	if s, err := w.r.sandbox(sb); err != nil || s.line() == nil {
		t.Errorf("the sandbox of a carob that ended: %v", err)
	}
}

// TestPreparedHelperWithUnexpectedInput: what a helper that waits gets but its program ends it, and the pod goes on.
func TestPreparedHelperWithUnexpectedInput(t *testing.T) {
	w := preparedWorld(t)
	take := string(wire.Encode([]wire.Message{{Code: plan.OpTake}}))
	noFile := string(binary.LittleEndian.AppendUint32(nil, uint32(len(take)))) + take
	for i, invalid := range []string{"\x01", "\xff\xff\xff\xff", "\x08\x00\x00\x00garbage!", noFile, noFile + "\x00"} {
		w.ready()
		sb, sbc := w.sandbox(fmt.Sprint("invalid", i))
		s, err := w.r.sandbox(sb)
		if err != nil {
			t.Fatal(err)
		}
		m := s.line()
		writeLine(t, m.Take().Line, invalid)
		testwait.For(t, "it ends", func() bool { return len(childrenOf(t, m.PID())) == 0 })
		w.run(sb, sbc, "c", shell("exec sleep 1000"))
	}
}

func writeLine(t *testing.T, line *net.UnixConn, text string) {
	t.Helper()
	if _, err := line.Write([]byte(text)); err != nil {
		t.Error(err)
	}
	if err := line.CloseWrite(); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { line.Close() })
}
