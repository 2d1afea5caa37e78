package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/state"
)

var Bg = context.Background()

func TestContainerLife(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("life")
	id := w.run(sb, sbc, "main",
		shell(
			"trap 'echo bye; exit 7' TERM; echo out; echo err >&2; echo ready > /tmp/ready; while :; do sleep 0.05; done"))
	w.until(id, "/tmp/ready")
	x, err := w.exec(id, "sh", "-c", "echo hello; hostname; id -u; echo oops >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if string(x.Stdout) != "hello\nlife\n0\n" || string(x.Stderr) != "oops\n" || x.ExitCode != 3 {
		t.Errorf("exec answered %q, %q, %d", x.Stdout, x.Stderr, x.ExitCode)
	}
	w.stop(id, 20)
	st := w.wait(id)
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 7 || st.Reason != "Error" ||
		st.StartedAt < st.CreatedAt || st.FinishedAt < st.StartedAt ||
		st.ImageRef != "busybox@sha256:feed" || st.ImageId != "sha256:busybox" ||
		st.Image.Image != "docker.io/library/busybox:1" || st.User.GetLinux().GetUid() != 0 {
		t.Errorf("status %+v", st)
	}
	got := w.log(sbc, "main")
	for _, line := range []string{"stdout F out\n", "stderr F err\n", "stdout F bye\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("log %q lacks %q", got, line)
		}
	}
	for range 2 { // removal is idempotent
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.r.StopPodSandbox(Bg, &cri.StopPodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.r.PodSandboxStatus(Bg, &cri.PodSandboxStatusRequest{PodSandboxId: sb})
	if err != nil || s.Status.State != cri.PodSandboxState_SANDBOX_NOTREADY || s.Status.Network.Ip != "" {
		t.Errorf("stopped sandbox: %v, %v", s, err)
	}
	for range 2 {
		if _, err := w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.r.ContainerStatus(Bg,
		&cri.ContainerStatusRequest{ContainerId: id}); status.Code(err) != codes.NotFound {
		t.Errorf("removed container: %v", err)
	}
	for _, dir := range []string{w.cfg.RootDir + "/sandboxes", w.cfg.RootDir + "/containers",
		w.cfg.StateDir + "/sandboxes", filepath.Join(w.dir, "layers"), filepath.Join(w.dir, "netns")} {
		if names, _ := dirNames(dir); len(names) > 0 {
			t.Errorf("%s still holds %v", dir, names)
		}
	}
	if group := w.r.groups.Of("memory", w.cfg.CgroupRoot+"/life/"+id); exists(group) {
		t.Errorf("%s is still there", group)
	}
}

// until waits for a file inside a container.
func (w *world) until(id, path string) {
	w.tb.Helper()
	for range 200 {
		if x, err := w.exec(id, "test", "-e", path); err == nil && x.ExitCode == 0 {
			return
		}
	}
	w.tb.Fatalf("%s did not come", path)
}

func (w *world) stop(id string, seconds int64) {
	w.tb.Helper()
	if _, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id, Timeout: seconds}); err != nil {
		w.tb.Fatal(err)
	}
}

func TestExitCodes(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("exit")
	for name, c := range map[string]struct {
		script string
		code   int32
		reason string
	}{
		"zero":    {"exit 0", 0, "Completed"},
		"three":   {"exit 3", 3, "Error"},
		"segv":    {"exec sh -c 'kill -SEGV $$; sleep 5'", 0, ""}, // PID 1 ignores signals that it has no handler for
		"missing": {"nosuch", 127, "Error"},
		"oom":     {"head -c 64m /dev/zero | tail -c 64m | wc -c; x=$(head -c 64m /dev/zero | tr '\\0' x); echo $x | wc -c", 0, "OOMKilled"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.reason == "" {
				t.Skip("needs a signal from outside")
			}
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			id := w.run(sb, sbc, name, shell(c.script), func(cc *cri.ContainerConfig) {
				cc.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
			})
			st := w.wait(id)
			if st.Reason != c.reason || c.reason != "OOMKilled" && st.ExitCode != c.code {
				t.Errorf("code %d, reason %q; log %s", st.ExitCode, st.Reason, w.log(sbc, name))
			}
		})
	}
}

func TestStop(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("stop")
	ignoresTERM := shell("trap '' TERM; touch /tmp/ready; while :; do sleep 1000; done")
	t.Run("kill after the grace", func(t *testing.T) {
		id := w.run(sb, sbc, "grace", ignoresTERM)
		w.until(id, "/tmp/ready")
		w.stop(id, 1)
		if st := w.wait(id); st.ExitCode != 137 || st.Reason != "Error" {
			t.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
		}
	})
	t.Run("a cancelled stop kills nobody, a shorter one takes effect", func(t *testing.T) {
		id := w.run(sb, sbc, "short", ignoresTERM)
		w.until(id, "/tmp/ready")
		ctx, cancel := context.WithCancel(Bg)
		long := make(chan error)
		go func() {
			_, err := w.r.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 3600})
			long <- err
		}()
		cancel()
		if err := <-long; status.Code(err) != codes.Canceled {
			t.Errorf("cancelled stop: %v", err)
		}
		if c, _ := w.r.container(id); !c.running() {
			t.Error("a cancelled stop killed the container")
		}
		go func() {
			_, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id, Timeout: 3600})
			long <- err
		}()
		w.stop(id, 1)
		if err := <-long; err != nil {
			t.Errorf("the longer stop: %v", err)
		}
	})
	t.Run("a process that is not ready for the signal yet", func(t *testing.T) {
		id := w.run(sb, sbc, "early",
			shell("until test -e /tmp/go; do :; done; trap 'exit 7' TERM; while :; do :; done"))
		done := make(chan error)
		go func() {
			_, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id, Timeout: 30})
			done <- err
		}()
		if _, err := w.exec(id, "touch", "/tmp/go"); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if st := w.wait(id); st.ExitCode != 7 {
			t.Errorf("code %d", st.ExitCode)
		}
	})
	t.Run("the image's signal", func(t *testing.T) {
		w.cfg.Images.(*dirImages).image.StopSignal = "SIGRTMIN+3"
		id := w.run(sb, sbc, "signal", shell("trap 'exit 42' 37; touch /tmp/ready; while :; do sleep 0.05; done"))
		w.until(id, "/tmp/ready")
		w.stop(id, 20)
		if st := w.wait(id); st.ExitCode != 42 {
			t.Errorf("code %d", st.ExitCode)
		}
	})
	t.Run("an unknown container", func(t *testing.T) { w.stop("nosuch", 1) })
}

// TestRestart: containers keep running when carob is killed, and those that exited meanwhile have
// their exit codes (L12).
func TestRestart(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("restart")
	lives := w.run(sb, sbc, "lives",
		shell("trap 'echo bye; exit 5' TERM; touch /tmp/ready; while :; do sleep 0.05; done"))
	w.until(lives, "/tmp/ready")
	gate := filepath.Join(w.dir, "gate")
	if err := os.Mkdir(gate, 0o755); err != nil {
		t.Fatal(err)
	}
	ends := w.run(sb, sbc, "ends", shell("while ! test -e /gate/open; do sleep 0.02; done; exit 9"),
		func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/gate", HostPath: gate}}
		})
	created := w.create(sb, sbc, "created", shell("echo later"))
	gone, gsc := w.sandbox("gone")
	lost := w.run(gone, gsc, "lost", shell("sleep 1000"))
	goneSandbox, _ := w.r.sandbox(gone)
	goneMonitor := goneSandbox.rec.Monitor
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	// Only the monitor is left to record the exit.
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, "the monitor records the exit", func() bool {
		_, ok, _ := state.LoadExit(w.r.containerDir(ends))
		return ok
	})
	unix.Kill(goneMonitor, unix.SIGKILL)
	// Unfinished objects of a carob that was killed.
	os.Mkdir(w.r.sandboxDir("half"), 0o700)
	os.Mkdir(w.r.containerDir("half"), 0o700)
	w.open()

	if st := w.wait(ends); st.ExitCode != 9 || st.Reason != "Error" {
		t.Errorf("ended meanwhile: code %d, reason %q", st.ExitCode, st.Reason)
	}
	if st := w.wait(lost); st.ExitCode != 255 || st.Reason != "Unknown" {
		t.Errorf("lost its monitor: code %d, reason %q", st.ExitCode, st.Reason)
	}
	if st, _ := w.r.PodSandboxStatus(Bg,
		&cri.PodSandboxStatusRequest{
			PodSandboxId: gone}); st.GetStatus().GetState() != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox without a monitor: %v", st)
	}
	if x, err := w.exec(lives, "echo", "still"); err != nil || string(x.Stdout) != "still\n" {
		t.Errorf("exec after the restart: %v, %v", x, err)
	}
	w.stop(lives, 20)
	if st := w.wait(lives); st.ExitCode != 5 {
		t.Errorf("stopped after the restart: code %d", st.ExitCode)
	}
	w.start(created)
	if st := w.wait(created); st.ExitCode != 0 {
		t.Errorf("created before, started after: code %d, %s", st.ExitCode, st.Message)
	}
	if exists(w.r.sandboxDir("half")) || exists(w.r.containerDir("half")) {
		t.Error("half-made things were kept")
	}
	if _, err := w.r.RunPodSandbox(Bg,
		&cri.RunPodSandboxRequest{Config: sbc}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same sandbox again: %v", err)
	}
}

func TestMonitorDeath(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("death")
	id := w.run(sb, sbc, "c", shell("sleep 1000"))
	s, _ := w.r.sandbox(sb)
	if err := unix.Kill(s.rec.Monitor, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st := w.wait(id); st.ExitCode != 255 && st.ExitCode != 137 {
		t.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
	}
}

// TestMonitorDiesDuringStop: a stop of a pod whose monitor is killed at the same time kills what is left.
func TestMonitorDiesDuringStop(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("dies")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	m := s.line()
	func() { // what StopPodSandbox does
		s.stopping.Lock()
		defer s.stopping.Unlock()
		if err := unix.Kill(m.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-m.Gone()
		if err := w.r.stopLocked(Bg, s); err != nil {
			t.Error(err)
		}
	}()
	if st := w.wait(id); st.ExitCode != unknownExit {
		t.Errorf("the container ended with %d", st.ExitCode)
	}
	w.emptied()
}

// TestLostLine: a lost connection to a running monitor has no other consequence.
func TestLostLine(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("line")
	id := w.run(sb, sbc, "c", shell("trap 'exit 3' TERM; touch /tmp/ready; while :; do sleep 0.05; done"))
	w.until(id, "/tmp/ready")
	s, _ := w.r.sandbox(sb)
	old := s.line()
	old.Close()
	testwait.For(t, "another line", func() bool { return s.line() != old })
	w.stop(id, 20)
	if st := w.wait(id); st.ExitCode != 3 {
		t.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
	}
}

func TestSharedProcesses(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("share", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	})
	one := w.run(sb, sbc, "one", shell("sleep 1000 & sleep 2000 & wait"))
	out := w.output(sb, sbc,
		"two", `for s in 1000 2000; do while ! ps -o args | grep -q "^sleep $s"; do sleep 0.02; done; done
ps -o args | grep ^sleep; ls /proc/1/root/ 2>&1 | head -1`)
	for _, want := range []string{"sleep 1000", "sleep 2000"} {
		if !strings.Contains(out, want) {
			t.Errorf("processes %q lack %q", out, want)
		}
	}
	if !strings.Contains(out, "ermission denied") {
		t.Errorf("the first process shows files: %q", out)
	}
	// Orphaned processes become children of the pod's first process, which reaps them; no container
	// has PID 1.
	orphans := w.run(sb, sbc, "orphans",
		shell("for i in 1 2 3 4 5; do sh -c 'sleep 0.01 & sleep 0.02 & exit'; done; exec sleep 4000"))
	testwait.For(w.tb, "orphans are reaped", func() bool {
		x, err := w.exec(orphans, "sh", "-c", "ps -o stat,args; readlink /proc/1/exe")
		return err == nil && strings.Contains(string(x.Stdout), "sleep 4000") &&
			!strings.Contains(string(x.Stdout), "Z ") && !strings.Contains(string(x.Stdout), "sleep 0.0")
	})
	w.stop(orphans, 0)
	w.stop(one, 0)
	if st := w.wait(one); st.ExitCode != 137 {
		t.Errorf("code %d", st.ExitCode)
	}
	if pids := w.r.groups.PIDs(w.cfg.CgroupRoot + "/share"); len(pids) != 0 {
		t.Errorf("processes %v outlive their container", pids)
	}
	// A debug container joins the namespace of its target.
	target := w.run(sb, sbc, "target", shell("sleep 3000"), securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions.Pid = cri.NamespaceMode_CONTAINER
	}))
	out = w.output(sb, sbc, "debug", "while ! ps -o args | grep '^sleep 3000'; do sleep 0.02; done",
		securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions.Pid, s.NamespaceOptions.TargetId = cri.NamespaceMode_TARGET, target
		}))
	if out != "sleep 3000" {
		t.Errorf("debug container sees %q", out)
	}
}

func TestHostNamespaces(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("host", func(c *cri.PodSandboxConfig) {
		c.Hostname = ""
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Network: cri.NamespaceMode_NODE,
			Pid: cri.NamespaceMode_NODE, Ipc: cri.NamespaceMode_NODE}
	})
	got := w.output(sb, sbc, "c", "for n in net pid ipc uts; do readlink /proc/self/ns/$n; done; hostname")
	var want []string
	for _, n := range []string{"net", "pid", "ipc", "uts"} {
		l, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, l)
	}
	host, _ := os.Hostname()
	if got != strings.Join(append(want, host), "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSysctls(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("sysctl", func(c *cri.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.conf.lo.forwarding": "0",
			"kernel/msgmax": "9000"}
	})
	if got := w.output(sb, sbc, "c",
		"cat /proc/sys/kernel/shm_rmid_forced /proc/sys/kernel/msgmax /proc/sys/net/ipv4/ip_unprivileged_port_start"); got != "1\n9000\n0" {
		t.Errorf("got %q", got)
	}
	_, err := w.r.RunPodSandbox(Bg,
		&cri.RunPodSandboxRequest{Config: w.sandboxConfig("bad", func(c *cri.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel.no_such_thing": "1"}
		})})
	if err == nil || !strings.Contains(err.Error(), "no_such_thing") {
		t.Errorf("unknown sysctl: %v", err)
	}
	if l, _ := w.r.ListPodSandbox(Bg, &cri.ListPodSandboxRequest{}); len(l.Items) != 1 {
		t.Errorf("%d sandboxes", len(l.Items))
	}
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("logs")
	id := w.run(sb, sbc, "c", shell("head -c 40000 /dev/zero | tr '\\0' x; echo; printf unfinished"))
	w.wait(id)
	x := strings.Repeat("x", 16384)
	want := "stdout P " + x + "\nstdout P " + x + "\nstdout F " + x[:40000-2*16384] + "\nstdout P unfinished\n"
	if got := w.log(sbc, "c"); got != want {
		t.Errorf("log of %d bytes, want %d", len(got), len(want))
	}
	id = w.run(sb, sbc, "rotated",
		shell("echo one; touch /tmp/ready; while ! test -e /tmp/go; do sleep 0.02; done; echo two"))
	w.until(id, "/tmp/ready")
	path := filepath.Join(sbc.LogDirectory, "rotated.log")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.ReopenContainerLog(Bg, &cri.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	w.exec(id, "touch", "/tmp/go")
	w.wait(id)
	if got := w.log(sbc, "rotated"); got != "stdout F two\n" {
		t.Errorf("new log %q", got)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(Bg)
	defer cancel()
	events := make(chan *cri.ContainerEventResponse, 100)
	go w.r.ContainerEvents(ctx, func(e *cri.ContainerEventResponse) { events <- e })
	testwait.For(t, "a subscriber", w.r.events.wanted)
	sb, sbc := w.sandbox("events")
	id := w.run(sb, sbc, "c", shell("exit 2"))
	w.wait(id)
	w.r.RemovePodSandbox(Bg, &cri.RemovePodSandboxRequest{PodSandboxId: sb})
	want := []string{"sandbox CREATED", "sandbox STARTED", "c CREATED", "c STARTED", "c STOPPED", "sandbox STOPPED",
		"c DELETED", "sandbox DELETED"}
	for _, w := range want {
		select {
		case e := <-events:
			what := "c"
			if e.ContainerId == sb {
				what = "sandbox"
			} else if e.ContainerId != id {
				what = e.ContainerId
			}
			got := what + " " + strings.TrimSuffix(strings.TrimPrefix(e.ContainerEventType.String(), "CONTAINER_"),
				"_EVENT")
			if got != w || e.PodSandboxStatus.GetId() != sb || e.CreatedAt == 0 {
				t.Fatalf("event %s, want %s", got, w)
			}
			if w == "c STOPPED" && (len(e.ContainersStatuses) != 1 || e.ContainersStatuses[0].ExitCode != 2) {
				t.Errorf("event %v", e)
			}
		case <-time.After(testwait.Limit):
			t.Fatalf("no event %s", w)
		}
	}
}

func TestListsAndStats(t *testing.T) {
	w := newWorld(t)
	a, ac := w.sandbox("a")
	b, _ := w.sandbox("b")
	one := w.run(a, ac, "one", shell("sleep 1000"), func(c *cri.ContainerConfig) {
		c.Labels = map[string]string{"x": "1"}
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, CpuShares: 512}
	})
	two := w.run(a, ac, "two", shell("exit 0"))
	w.wait(two)
	ids := func(f *cri.ContainerFilter) string {
		l, err := w.r.ListContainers(Bg, &cri.ListContainersRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range l.Containers {
			names = append(names, c.Metadata.Name)
		}
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		f    *cri.ContainerFilter
		want string
	}{
		{nil, "two one"},
		{&cri.ContainerFilter{Id: one[:12]}, "one"},
		{&cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_EXITED}}, "two"},
		{&cri.ContainerFilter{PodSandboxId: b}, ""},
		{&cri.ContainerFilter{LabelSelector: map[string]string{"x": "1"}}, "one"},
	} {
		if got := ids(c.f); got != c.want {
			t.Errorf("%v: %q, want %q", c.f, got, c.want)
		}
	}
	l, _ := w.r.ListPodSandbox(Bg,
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"app": "b"}}})
	if len(l.Items) != 1 || l.Items[0].Id != b {
		t.Errorf("sandboxes %v", l)
	}
	st, err := w.r.ContainerStats(Bg, &cri.ContainerStatsRequest{ContainerId: one})
	if err != nil || st.Stats.Memory.UsageBytes.Value == 0 || st.Stats.Cpu.UsageCoreNanoSeconds.Value == 0 ||
		st.Stats.Memory.AvailableBytes.Value > 32<<20 {
		t.Errorf("stats %v, %v", st, err)
	}
	all, _ := w.r.ListContainerStats(Bg, &cri.ListContainerStatsRequest{})
	if len(all.Stats) != 1 {
		t.Errorf("%d stats", len(all.Stats))
	}
	ps, err := w.r.PodSandboxStats(Bg, &cri.PodSandboxStatsRequest{PodSandboxId: a})
	if err != nil || len(ps.Stats.Linux.Containers) != 1 || ps.Stats.Linux.Network == nil {
		t.Errorf("pod stats %v, %v", ps, err)
	}
	if _, err := w.r.UpdateContainerResources(Bg,
		&cri.UpdateContainerResourcesRequest{ContainerId: one,
			Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}); err != nil {
		t.Fatal(err)
	}
	cs, _ := w.r.ContainerStatus(Bg, &cri.ContainerStatusRequest{ContainerId: one})
	if r := cs.Status.Resources.Linux; r.MemoryLimitInBytes != 64<<20 || r.CpuShares != 512 {
		t.Errorf("resources %v", r)
	}
	u := w.r.groups.Measure(w.cfg.CgroupRoot + "/a/" + one)
	if u.Limit != 64<<20 {
		t.Errorf("limit %d", u.Limit)
	}
}

// A pod without a cgroup of its own, such as one of crictl, uses what its containers use.
func TestStatsWithoutParent(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("plain", func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	for _, name := range []string{"a", "b"} {
		w.until(w.run(sb, sbc, name, shell("touch /up; exec sleep 1000")), "/up")
	}
	resp, err := w.r.PodSandboxStats(Bg, &cri.PodSandboxStatsRequest{PodSandboxId: sb})
	if err != nil {
		t.Fatal(err)
	}
	l := resp.Stats.Linux
	var cpu, set uint64
	for _, c := range l.Containers {
		cpu += c.Cpu.UsageCoreNanoSeconds.Value
		set += c.Memory.WorkingSetBytes.Value
	}
	if len(l.Containers) != 2 || cpu == 0 || l.Cpu.UsageCoreNanoSeconds.Value != cpu ||
		l.Memory.WorkingSetBytes.Value != set || l.Cpu.Timestamp == 0 {
		t.Errorf("%d containers use %d ns and %d bytes, their pod %v, %v", len(l.Containers), cpu, set, l.Cpu, l.Memory)
	}
}

func TestUserNamespace(t *testing.T) {
	w := newWorld(t)
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	sb, sbc := w.sandbox("userns", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	})
	data := filepath.Join(w.dir, "data")
	os.Mkdir(data, 0o755)
	script := "id -u; ls -ld $PWD | awk '{print $3}'; awk '{print $1,$2,$3}' /proc/self/uid_map; ls -ld /etc /dev/null /data | awk '{print $3}'; echo x > /etc/new && echo wrote; echo y > /data/y && echo wrote; echo > /dev/null && echo null"
	got := w.output(sb, sbc, "c", script,
		securityContext(func(s *cri.LinuxContainerSecurityContext) { s.NamespaceOptions.UsernsOptions = userns }),
		func(c *cri.ContainerConfig) {
			c.WorkingDir = "/new/dir"
			c.Mounts = []*cri.Mount{{ContainerPath: "/data", HostPath: data, UidMappings: ids, GidMappings: ids}}
		})
	want := "0\nroot\n0 700000 65536\nroot\nroot\nroot\nwrote\nwrote\nnull"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(data, "y"), &st); err != nil || st.Uid != 0 {
		t.Errorf("file in an idmapped volume belongs to %d, %v", st.Uid, err)
	}
	id := w.run(sb, sbc, "x", shell("sleep 100"))
	x, err := w.exec(id, "sh", "-c", "id -u; cat /proc/self/uid_map")
	if err != nil || !strings.Contains(string(x.Stdout), "700000") {
		t.Errorf("exec %q %q, %v", x.GetStdout(), x.GetStderr(), err)
	}
}

// TestUserNamespaceVolumeInVolume: what a mount needs in a volume of a pod with a user namespace, and the working
// directory, are created there as the pod's root user, whoever owns the directory.
func TestUserNamespaceVolumeInVolume(t *testing.T) {
	w := newWorld(t)
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	sb, sbc := w.sandbox("userns", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	})
	var mounts []*cri.Mount
	volume := func(target string, mode os.FileMode, owner int) string {
		dir := filepath.Join(w.dir, strings.ReplaceAll(target, "/", "-"))
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, mode), os.Chown(dir, owner, owner)); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, &cri.Mount{ContainerPath: target, HostPath: dir, UidMappings: ids, GidMappings: ids})
		return dir
	}
	outer := volume("/data", 0o777, 0)
	volume("/data/in/side", 0o755, 0)
	closed := volume("/closed", 0o700, 1000)
	volume("/closed/inside", 0o755, 0)
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, []byte("content\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts = append(mounts,
		&cri.Mount{ContainerPath: "/data/file", HostPath: file, UidMappings: ids, GidMappings: ids, Readonly: true},
		&cri.Mount{ContainerPath: "/in/the/image", HostPath: file, UidMappings: ids, GidMappings: ids})
	got := w.output(sb, sbc, "c", "pwd; cat /data/file; touch /data/in/side/x && echo wrote;"+
		"ls -lnd /data/in /data/work /closed/inside /in/the | awk '{print $3, $4}'; "+
		"mkdir /tmp/d && chown 5 /tmp/d && chmod 700 /tmp/d && su -s /bin/sh app -c 'ls /tmp/d 2>/dev/null || echo refused'",
		securityContext(func(s *cri.LinuxContainerSecurityContext) { s.NamespaceOptions.UsernsOptions = userns }),
		func(c *cri.ContainerConfig) { c.Mounts, c.WorkingDir = mounts, "/data/work" })
	want := "/data/work\ncontent\nwrote\n0 0\n0 0\n0 0\n0 0\nrefused"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, p := range []string{filepath.Join(outer, "in"), filepath.Join(outer, "work"), filepath.Join(outer, "file"),
		filepath.Join(closed, "inside")} {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, %v", p, st.Uid, st.Gid, err)
		}
	}
}

func TestUserNamespaceRefused(t *testing.T) {
	w := newWorld(t)
	good := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	for what, u := range map[string]*cri.UserNamespace{
		"no mappings": {Mode: cri.NamespaceMode_POD},
		"no groups":   {Mode: cri.NamespaceMode_POD, Uids: good},
		"root is absent": {Mode: cri.NamespaceMode_POD,
			Uids: []*cri.IDMapping{{ContainerId: 1, HostId: 700000, Length: 65536}}, Gids: good},
		"container mode": {Mode: cri.NamespaceMode_CONTAINER, Uids: good, Gids: good},
	} {
		cfg := w.sandboxConfig("refused",
			func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = u })
		if _, err := w.r.RunPodSandbox(t.Context(),
			&cri.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The namespaces of a pod belong to its user namespace: with the right capability, root of the
// container may do what root does in these namespaces, and nothing outside of them.
func TestUserNamespaceOwns(t *testing.T) {
	w := newWorld(t)
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	sb, sbc := w.sandbox("owner", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	})
	admin := securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions.UsernsOptions = userns
		s.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_ADMIN", "NET_ADMIN"}}
		s.ReadonlyPaths, s.MaskedPaths = []string{"/proc/sys"}, []string{"/proc/keys"}
	})
	for i, c := range [][2]string{
		{"hostname mine && hostname", "mine"},
		{"mount -t tmpfs none /tmp && touch /tmp/x && grep -c ' /tmp ' /proc/mounts", "1"},
		{"touch /dev/mqueue/x /dev/shm/x && echo made", "made"},
		{"ls -ld /dev/shm | awk '{print $3}'", "root"},
		{"mount -o remount,rw,bind /proc/sys 2>/dev/null || echo refused", "refused"},
		{"mount -o remount,rw,bind /sys 2>/dev/null || echo refused", "refused"},
		{"umount /proc/keys 2>/dev/null || echo refused", "refused"},
		{"chroot / sh -c 'echo 1 > /proc/sys/kernel/core_pattern' 2>/dev/null || echo refused", "refused"},
	} {
		if got := w.output(sb, sbc, fmt.Sprint("c", i), c[0], admin); got != c[1] {
			t.Errorf("%s\ngot  %q\nwant %q", c[0], got, c[1])
		}
	}
	// Both containers of a pod share one host name and their IPC objects, and so does an exec.
	id := w.run(sb, sbc, "x", shell("sleep 100"), admin)
	if x, err := w.exec(id, "sh", "-c", "hostname; mount -t tmpfs none /tmp && echo mounted"); err != nil ||
		string(x.Stdout) != "mine\nmounted\n" {
		t.Errorf("exec %q %q, %v", x.GetStdout(), x.GetStderr(), err)
	}
}

// TestMonitorMemory: the memory of a pod with one container beside its own processes. All monitors
// share the program's text.
func TestMonitorMemory(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("memory")
	w.run(sb, sbc, "c", shell("echo x; sleep 1000"))
	s, _ := w.r.sandbox(sb)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.rec.Monitor))
	if err != nil {
		t.Fatal(err)
	}
	var kb int
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			fmt.Sscan(rest, &kb)
		}
	}
	if kb == 0 || kb > 100 {
		t.Errorf("a monitor uses %d kB of its own", kb)
	}
}

func TestImageVolume(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("volume")
	got := w.output(sb, sbc, "c", "head -1 /all/etc/passwd; ls /part; touch /all/x 2>/dev/null || echo refused",
		func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{
				{ContainerPath: "/all", Image: &cri.ImageSpec{Image: "busybox"}, Readonly: true},
				{ContainerPath: "/part", Image: &cri.ImageSpec{Image: "busybox"}, ImageSubPath: "home", Readonly: true},
			}
		})
	if want := "root:x:0:0:root:/root:/bin/sh\napp\nrefused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err := w.r.CreateContainer(Bg,
		&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
			Config: containerConfig(sbc, "no", func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{{ContainerPath: "/all", Image: &cri.ImageSpec{Image: "nothere"}}}
			})})
	if err == nil || !strings.Contains(err.Error(), "ImageVolumeMountFailed") {
		t.Errorf("missing image: %v", err)
	}
}

// The statistics of pods have the size of a writable layer as the last walk found it; those of containers are measured.
func TestPodStatsDoNotWalkLayers(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("layers")
	id := w.run(sb, sbc, "c", shell("touch /up; exec sleep 1000"))
	w.until(id, "/up")
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	const known = 123 << 30
	c.layer.mu.Lock()
	c.layer.at, c.layer.used = time.Now().Add(time.Hour), Usage{Bytes: known}
	c.layer.mu.Unlock()
	pods, err := w.r.ListPodSandboxStats(Bg, &cri.ListPodSandboxStatsRequest{})
	if err != nil || len(pods.Stats) != 1 || len(pods.Stats[0].Linux.Containers) != 1 ||
		pods.Stats[0].Linux.Containers[0].WritableLayer.GetUsedBytes().GetValue() != known {
		t.Errorf("%v, %v", pods, err)
	}
	own, err := w.r.ListContainerStats(Bg, &cri.ListContainerStatsRequest{})
	if err != nil || len(own.Stats) != 1 || own.Stats[0].WritableLayer.GetUsedBytes().GetValue() == known {
		t.Errorf("%v, %v", own, err)
	}
}
