package native

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/openfile"
	"carob/internal/base/testwait"
	"carob/internal/runtime/native/cgroups"
)

// TestMain makes this binary the attacker when a test mounts it into a container
// (attack_test.go).
func TestMain(m *testing.M) {
	if name := os.Getenv("ATTACK"); name != "" {
		attack(name)
		os.Exit(0)
	}
	if dir := os.Getenv("CAROB_NATIVE_PROGRAMS"); dir != "" {
		if err := usePrograms(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// The paths that a kubelet masks and makes read-only in each container.
var (
	kubeMasked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	kubeReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// attacker makes a container run an attack like a pod without a securityContext: as root, with the
// default capabilities, and without a seccomp profile.
func attacker(name string, change ...func(*cri.ContainerConfig)) func(*cri.ContainerConfig) {
	return func(c *cri.ContainerConfig) {
		self, _ := os.Executable()
		c.Command = []string{"/attack"}
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "ATTACK", Value: []byte(name)})
		c.Mounts = append(c.Mounts, &cri.Mount{ContainerPath: "/attack", HostPath: self, Readonly: true})
		c.Linux.SecurityContext.MaskedPaths, c.Linux.SecurityContext.ReadonlyPaths = kubeMasked, kubeReadonly
		for _, f := range change {
			f(c)
		}
	}
}

// needAttacker skips where this binary can't run in a container.
func needAttacker(t *testing.T) {
	t.Helper()
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Section(".interp") != nil {
		t.Skip("the attacker is this test binary, which is linked dynamically: set CGO_ENABLED=0")
	}
}

// checkAttempts checks the output of an attacker: each attempt is a line, "blocked: …" or "ESCAPED: …", and
// the last line is "done".
func (w *world) checkAttempts(sbc *cri.PodSandboxConfig, id, name string) []string {
	w.tb.Helper()
	st := w.wait(id)
	text := w.log(sbc, name)
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "stdout F "), "stderr F ")
		if strings.HasPrefix(line, "ESCAPED") {
			w.tb.Errorf("%s: %s", name, line)
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 || lines[len(lines)-1] != "done" {
		w.tb.Errorf("%s did not come to its end (exit %d):\n%s", name, st.ExitCode, text)
	}
	return lines
}

func addCaps(names ...string) func(*cri.ContainerConfig) {
	return securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.Capabilities = &cri.Capability{AddCapabilities: names}
	})
}

// TestAttacksFromContainer runs each attack in a container of its own.
func TestAttacksFromContainer(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	plain, plainCfg := w.sandbox("plain")
	mapped, mappedCfg := w.sandbox("mapped",
		func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns })
	shared, sharedCfg := w.sandbox("shared", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	})
	neighbour, neighbourCfg := w.sandbox("neighbour")
	w.run(neighbour, neighbourCfg, "victim", attacker("victim"))
	inUserNS := securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions.UsernsOptions = userns
	})
	ro := filepath.Join(w.dir, "ro")
	os.MkdirAll(filepath.Join(ro, "below"), 0o777)
	if err := unix.Mount("tmpfs", filepath.Join(ro, "below"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(filepath.Join(ro, "below"), unix.MNT_DETACH) })
	readonly := func(c *cri.ContainerConfig) {
		c.Mounts = append(c.Mounts,
			&cri.Mount{ContainerPath: "/ro", HostPath: ro, Readonly: true, RecursiveReadOnly: true})
	}
	victim, _ := w.r.sandbox(neighbour)
	hostPIDs := func(c *cri.ContainerConfig) {
		c.Envs = append(c.Envs,
			&cri.KeyValue{Key: "PIDS", Value: fmt.Append(nil, os.Getpid(), " ", victim.rec.Monitor)})
	}
	null := hostNull(t)
	for _, c := range []struct {
		name   string
		sb     string
		sbc    *cri.PodSandboxConfig
		change []func(*cri.ContainerConfig)
	}{
		{"kernel-files", plain, plainCfg, nil},
		{"kernel-files", mapped, mappedCfg, []func(*cri.ContainerConfig){inUserNS}},
		{"devices", plain, plainCfg, nil},
		{"devices", mapped, mappedCfg, []func(*cri.ContainerConfig){inUserNS}},
		{"cgroups", plain, plainCfg, nil},
		{"cgroups", mapped, mappedCfg, []func(*cri.ContainerConfig){inUserNS, addCaps("SYS_ADMIN")}},
		{"null", plain, plainCfg, nil},
		{"mounts", plain, plainCfg, []func(*cri.ContainerConfig){readonly}},
		{"mounts", mapped, mappedCfg, []func(*cri.ContainerConfig){inUserNS, readonly, addCaps("SYS_ADMIN")}},
		{"own-userns", plain, plainCfg, []func(*cri.ContainerConfig){readonly}},
		{"processes", plain, plainCfg, []func(*cri.ContainerConfig){hostPIDs, addCaps("SYS_PTRACE")}},
		{"pod-init", shared, sharedCfg, []func(*cri.ContainerConfig){
			securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.NamespaceOptions.Pid = cri.NamespaceMode_POD
			})}},
		{"pod-init", shared, sharedCfg, []func(*cri.ContainerConfig){ // as the first process' own user
			securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.NamespaceOptions.Pid, s.RunAsUser, s.RunAsGroup = cri.NamespaceMode_POD,
					&cri.Int64Value{Value: 65535}, &cri.Int64Value{Value: 65535}
			}), func(*cri.ContainerConfig) {}}},
		{"abstract-sockets", plain, plainCfg, nil},
		{"ipc", plain, plainCfg, nil},
		{"keyrings", plain, plainCfg, nil},
		{"descriptors", plain, plainCfg, nil},
		{"descriptors", plain, plainCfg, []func(*cri.ContainerConfig){func(c *cri.ContainerConfig) { c.Stdin = true }}},
		{"net", plain, plainCfg, nil},
	} {
		name := fmt.Sprintf("%s-%s-%d", c.name, c.sbc.Metadata.Name, len(c.change))
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			id := w.run(c.sb, c.sbc, name, append([]func(*cri.ContainerConfig){attacker(c.name)}, c.change...)...)
			t.Log(strings.Join(w.checkAttempts(c.sbc, id, name), "\n"))
		})
	}
	if now := hostNull(t); now != null {
		t.Errorf("the host's /dev/null was %v, is %v", null, now)
	}
}

func hostNull(t *testing.T) [3]uint32 {
	var st unix.Stat_t
	if err := unix.Stat("/dev/null", &st); err != nil {
		t.Fatal(err)
	}
	return [3]uint32{st.Mode, st.Uid, st.Gid}
}

// TestSetuid: with no_new_privs, a setuid program of the image runs as its caller; without it,
// setuid works (so the test can fail).
func TestSetuid(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	sb, sbc := w.sandbox("setuid")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(w.dir, "image", "bin", "become-root")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(program, 0o755|os.ModeSetuid)
	for _, nnp := range []bool{true, false} {
		name, want := fmt.Sprint("nnp-", nnp), map[bool]string{true: "1000", false: "0"}[nnp]
		id := w.run(sb, sbc, name, attacker("euid"), securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.NoNewPrivs = &cri.Int64Value{Value: 1000}, nnp
		}), func(c *cri.ContainerConfig) { c.Command = []string{"become-root"} })
		if got := w.checkAttempts(sbc, id, name)[0]; got != want {
			t.Errorf("no_new_privs %v: effective user %s, want %s", nnp, got, want)
		}
	}
}

// TestOverwriteHelper is CVE-2019-5736: an image whose program is the one that starts it, and a
// container process that waits for a program of the runtime and writes to it.
func TestOverwriteHelper(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	sb, sbc := w.sandbox("overwrite", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_CONTAINER
	})
	evil := filepath.Join(w.dir, "image", "bin", "evil")
	if err := os.WriteFile(evil, []byte("#!/proc/self/exe\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	id := w.run(sb, sbc, "scan", attacker("overwrite"), addCaps("SYS_PTRACE"))
	for range 40 {
		w.exec(id, "evil")
		w.exec(id, "true")
		if !w.running(id) {
			break
		}
	}
	if _, err := w.exec(id, "touch", "/tmp/stop"); err != nil {
		t.Fatal(err)
	}
	lines := w.checkAttempts(sbc, id, "scan")
	t.Log(strings.Join(lines, "\n"))
	if !strings.HasPrefix(lines[0], "blocked: ") {
		t.Errorf("the attacker never met a helper: %q", lines)
	}
	// Whatever it did, the helper still works.
	if x, err := w.exec(w.run(sb, sbc, "after", shell("sleep 100")), "echo", "fine"); err != nil ||
		string(x.Stdout) != "fine\n" {
		t.Errorf("%v %v", x, err)
	}
}

// TestLogLinks: a pod that can write to the host's log directory creates links and pipes in place
// of log files. Nothing is written through them, neither at the start nor at a rotation.
func TestLogLinks(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(w.dir, "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(outside, "c.log")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	sb, sbc := w.sandbox("links")
	log := filepath.Join(sbc.LogDirectory, "c.log")
	for what, trap := range map[string]func() error{
		"a link":          func() error { return os.Symlink(victim, log) },
		"a dangling link": func() error { return os.Symlink(filepath.Join(outside, "new"), log) },
		"a pipe":          func() error { return unix.Mkfifo(log, 0o600) },
		"the pod's own dir": func() error {
			return errors.Join(os.RemoveAll(sbc.LogDirectory), os.Symlink(outside, sbc.LogDirectory))
		},
	} {
		id := w.create(sb, sbc, "c", shell("echo theirs"))
		if err := trap(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id}); err == nil ||
			!strings.Contains(err.Error(), "opening the container's log") {
			t.Errorf("%s: start: %v", what, err)
		}
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(sbc.LogDirectory); err != nil {
			t.Fatal(err)
		}
		id = w.run(sb, sbc, "c", shell("while read x; do echo $x; done"),
			func(c *cri.ContainerConfig) { c.Stdin = true })
		if err := errors.Join(os.Rename(log, log+".1"), trap()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.r.ReopenContainerLog(Bg, &cri.ReopenContainerLogRequest{ContainerId: id}); err == nil {
			t.Errorf("%s: a rotation went through it", what)
		}
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(sbc.LogDirectory); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, sbc.LogDirectory); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.CreateContainer(Bg,
		&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
			Config: containerConfig(sbc, "c",
				func(c *cri.ContainerConfig) { c.LogPath = "below/c.log" })}); err == nil {
		t.Error("a directory was made through a link")
	}
	entries, err := os.ReadDir(outside)
	if b, rerr := os.ReadFile(victim); err != nil || len(entries) != 1 || rerr != nil || string(b) != "mine" {
		t.Errorf("ESCAPED: %v, %v, %q, %v", entries, err, b, rerr)
	}
}

// unsealed is a program in memory as sealed by a kernel before 6.3: its owner can change its mode.
func unsealed(t *testing.T, program []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("carob-init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(fd), "carob-init")
	defer w.Close()
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestHelperModeChanged: where a chmod of the helper is not sealed, the next start uses a new
// helper.
func TestHelperModeChanged(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("mode")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	for _, mode := range []uint32{0, 0o700, 0o666} {
		old := unsealed(t, helperProgram)
		if err := unix.Fchmod(openfile.FD(old), mode); err != nil {
			t.Fatal(err)
		}
		w.r.programs.UseHelper(old)
		w.inside(id)
		if st := w.wait(w.run(sb, sbc, fmt.Sprint("c", mode), shell("exit 5"))); st.ExitCode != 5 {
			t.Errorf("mode %#o: %v", mode, st)
		}
		if h, err := w.r.programs.Helper(); err != nil || h == old {
			t.Errorf("mode %#o: the helper that nobody can execute stays: %v", mode, err)
		}
	}
	h, err := w.r.programs.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if seals, err := unix.FcntlInt(uintptr(openfile.FD(h)), unix.F_GET_SEALS, 0); err != nil ||
		seals&unix.F_SEAL_SEAL == 0 {
		t.Errorf("seals %#x, %v", seals, err)
	} else if err := unix.Fchmod(openfile.FD(h), 0); (err == nil) != (seals&0x20 == 0 /* F_SEAL_EXEC */) {
		t.Errorf("chmod of a helper with seals %#x: %v", seals, err)
	}
}

// TestRaceForRoot: a container with SYS_PTRACE watches for processes that are being created in its
// PID namespace, by an exec and by the start of a container that shares it. It must never see one
// with the host's root, with more capabilities than its own, or with a file of the host.
func TestRaceForRoot(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	victim := func(c *cri.ContainerConfig) {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "VICTIM", Value: []byte(w.dir)})
	}
	defaults := securityContext(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	})
	for name, c := range map[string]struct {
		pid    cri.NamespaceMode
		change func(*cri.ContainerConfig)
	}{
		"own":           {cri.NamespaceMode_CONTAINER, func(*cri.ContainerConfig) {}},
		"own-filter":    {cri.NamespaceMode_CONTAINER, defaults},
		"shared":        {cri.NamespaceMode_POD, func(*cri.ContainerConfig) {}},
		"shared-filter": {cri.NamespaceMode_POD, defaults},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			sb, sbc := w.sandbox(name,
				func(s *cri.PodSandboxConfig) { s.Linux.SecurityContext.NamespaceOptions.Pid = c.pid })
			id := w.run(sb, sbc, "race", attacker("race"), victim, c.change, addCaps("SYS_PTRACE"))
			for i := range 40 {
				if x, err := w.exec(id, "true"); err != nil || x.ExitCode != 0 {
					t.Fatal(x, err)
				}
				if c.pid == cri.NamespaceMode_POD && w.r.host.foreignProc && i%4 == 0 {
					other := w.run(sb, sbc, fmt.Sprint("other", i), shell("test $(readlink /proc/self) -gt 1"),
						c.change)
					if st := w.wait(other); st.ExitCode != 0 {
						t.Errorf("another container: %v", st)
					}
				}
			}
			if _, err := w.exec(id, "touch", "/tmp/stop"); err != nil {
				t.Fatal(err)
			}
			lines := w.checkAttempts(sbc, id, "race")
			t.Log(strings.Join(lines, "\n"))
			if len(lines) < 2 {
				t.Error("it saw no process: nothing was raced")
			}
		})
	}
}

// TestMonitorGivesUp: the monitor of a pod has no capability that it does not need, containers
// started by it have all of theirs, and a container that can see the monitor cannot look into it.
func TestMonitorGivesUp(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	sb, _ := w.sandbox("victim")
	pods, podsCfg := w.sandbox("shared",
		func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD })
	host, hostCfg := w.sandbox("host", func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.Privileged, c.Linux.SecurityContext.NamespaceOptions.Pid = true, cri.NamespaceMode_NODE
	})
	s, err := w.r.sandbox(sb)
	if err != nil {
		t.Fatal(err)
	}
	status := func(pid int, name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "\n"+name+":")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	for name, want := range map[string]uint64{"CapEff": 1 << unix.CAP_KILL,
		"CapPrm": 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE, "CapInh": 0, "CapAmb": 0} {
		if got := status(s.rec.Monitor, name); got != fmt.Sprintf("%016x", want&w.r.host.caps) {
			t.Errorf("the monitor's %s is %s, not %016x", name, got, want)
		}
	}
	id := w.run(host, hostCfg, "all", shell("grep Cap /proc/self/status; exec sleep 1000"),
		securityContext(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }))
	if got := status(w.inside(id), "CapEff"); got != fmt.Sprintf("%016x", w.r.host.caps) {
		t.Errorf("a privileged container has %s of %x", got, w.r.host.caps)
	}
	victim := func(c *cri.ContainerConfig) {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "PIDS", Value: fmt.Append(nil, s.rec.Monitor)})
	}
	peek := w.run(host, hostCfg, "peek", attacker("peek"), victim)
	t.Log(strings.Join(w.checkAttempts(hostCfg, peek, "peek"), "\n"))
	w.inside(w.run(pods, podsCfg, "c", shell("sleep 0.01 & exec sleep 1000")))
	p, err := w.r.sandbox(pods)
	if err != nil {
		t.Fatal(err)
	}
	mon := p.line().PID()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", mon, mon))
	if err != nil {
		t.Fatal(err)
	}
	podInit := 0
	for child := range strings.FieldsSeq(string(children)) {
		if name, err := os.ReadFile("/proc/" + child + "/comm"); err == nil && string(name) == "pod-init\n" {
			podInit, _ = strconv.Atoi(child)
		}
	}
	if podInit == 0 {
		t.Fatalf("no pod-init among %q", children)
	}
	for name, want := range map[string]string{"CapEff": "0000000000000000", "CapBnd": "0000000000000000",
		"Seccomp": "2", "NoNewPrivs": "1"} {
		if got := status(podInit, name); got != want {
			t.Errorf("the first process of a shared namespace: %s is %s, not %s", name, got, want)
		}
	}
}

func (w *world) running(id string) bool {
	c, err := w.r.container(id)
	return err == nil && c.running()
}

// TestWorkingDirectoryOfDescriptors is CVE-2024-21626: no descriptor of carob leads to the host's
// files.
func TestWorkingDirectoryOfDescriptors(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("cwd")
	for n := range 24 {
		name := fmt.Sprint("fd", n)
		id := w.create(sb, sbc, name, shell("cat /host-secret; ls -d ../../../../../../../etc/hostname.host; pwd"),
			func(c *cri.ContainerConfig) {
				c.WorkingDir = fmt.Sprintf("/proc/self/fd/%d", n)
			})
		_, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
		if err == nil {
			w.wait(id)
			if got := w.log(sbc, name); !strings.Contains(got, "stdout F /") || strings.Contains(got, "unreachable") {
				t.Errorf("%s: started at %q", name, got)
			}
		}
	}
	id := w.run(sb, sbc, "target", shell("sleep 1000"), func(c *cri.ContainerConfig) { c.WorkingDir = "/tmp/w" })
	// A directory that is replaced by a link to a descriptor before an exec.
	for n := range 24 {
		script := fmt.Sprintf("cd /; rm -rf /tmp/w; ln -s /proc/self/fd/%d /tmp/w", n)
		if x, err := w.exec(id, "sh", "-c", script); err == nil && x.ExitCode != 0 {
			t.Fatal(x)
		}
		x, err := w.exec(id, "readlink", "/proc/self/cwd")
		if err == nil && x.ExitCode == 0 && !strings.HasPrefix(string(x.Stdout), "/") {
			t.Errorf("fd %d: working directory %q", n, x.Stdout)
		}
		w.exec(id, "rm", "-f", "/tmp/w") // fails if the link leads to no directory
		if x, err := w.exec(id, "rm", "-f", "/tmp/w"); err != nil {
			c, _ := w.r.container(id)
			os.Remove(filepath.Join(w.dir, "layers", c.rec.ID, "u", "tmp", "w"))
			_ = x
		}
	}
}

// TestSwappedMountPoint is CVE-2021-30465: one container replaces a directory of a shared volume by
// a link while others mount something on it.
func TestSwappedMountPoint(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	sb, sbc := w.sandbox("swap")
	victim := filepath.Join(w.dir, "victim")
	vol, data := filepath.Join(w.dir, "vol"), filepath.Join(w.dir, "data")
	for _, d := range []string{victim, vol, data} {
		os.Mkdir(d, 0o777)
	}
	os.WriteFile(filepath.Join(data, "marker"), nil, 0o644)
	share := &cri.Mount{ContainerPath: "/vol", HostPath: vol}
	swapper := w.run(sb, sbc, "swapper", attacker("swap"), func(c *cri.ContainerConfig) {
		c.Mounts = append(c.Mounts, share)
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "VICTIM", Value: []byte(victim)})
	})
	var inside, refused int
	for i := range 60 {
		name := fmt.Sprint("mounter", i)
		id := w.create(sb, sbc, name,
			shell("echo started; test -e /vol/place/sub/marker -o -e "+victim+"/sub/marker && echo inside"),
			func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{share, {ContainerPath: "/vol/place/sub", HostPath: data}}
			})
		if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id}); err != nil {
			refused++
		} else {
			w.wait(id)
			if strings.Contains(w.log(sbc, name), "inside") {
				inside++
			}
		}
		left, err := os.ReadDir(victim)
		if err != nil || len(left) > 0 {
			t.Fatalf("round %d: the host's directory has %v, %v", i, left, err)
		}
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d saw their volume, %d were refused", inside, refused)
	if inside == 0 {
		t.Error("no container ever started: nothing was raced")
	}
	if _, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: swapper}); err != nil {
		t.Error(err)
	}
}

// TestMountsOverTheKernel: no mount replaces the kernel's own files, whatever links the image has.
func TestMountsOverTheKernel(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("over")
	image := filepath.Join(w.dir, "image")
	os.Symlink("/proc", filepath.Join(image, "link"))
	os.Symlink("/proc/self/attr", filepath.Join(image, "deep"))
	data := filepath.Join(w.dir, "data")
	os.Mkdir(data, 0o777)
	os.WriteFile(filepath.Join(data, "file"), []byte("mine"), 0o644)
	for i, c := range []struct {
		m    *cri.Mount
		want string // part of the error; "" if it starts
	}{
		{&cri.Mount{ContainerPath: "/proc", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/proc/self", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/proc/sys/kernel", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/proc/version", HostPath: data + "/file"}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/link", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/link/sys", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/deep", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/tmp/../proc", HostPath: data}, "inside /proc"},
		{&cri.Mount{ContainerPath: "/", HostPath: data}, "root cannot be mounted over"},
		{&cri.Mount{ContainerPath: "/proc", HostPath: "/proc"}, ""},
		{&cri.Mount{ContainerPath: "/proc/meminfo", HostPath: data + "/file"}, ""},
	} {
		cfg := containerConfig(sbc, fmt.Sprint("c", i), shell("true"),
			func(k *cri.ContainerConfig) { k.Mounts = []*cri.Mount{c.m} })
		resp, err := w.r.CreateContainer(Bg,
			&cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg, SandboxConfig: sbc})
		if err == nil {
			_, err = w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: resp.ContainerId})
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s at %s: %v, want %q", c.m.HostPath, c.m.ContainerPath, err, c.want)
		}
	}
	for _, dir := range []string{"proc", "dev", "sys"} {
		os.Rename(filepath.Join(image, dir), filepath.Join(image, "was-"+dir))
		os.Symlink("/tmp/fake", filepath.Join(image, dir))
		id := w.create(sb, sbc, "linked-"+dir, shell("true"))
		_, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("an image whose /%s is a link: %v", dir, err)
		}
		os.Remove(filepath.Join(image, dir))
		os.Rename(filepath.Join(image, "was-"+dir), filepath.Join(image, dir))
	}
}

// TestForkBomb: processes that a container starts in its first moments count against the pod's
// limit.
func TestForkBomb(t *testing.T) {
	needAttacker(t)
	w := newWorld(t)
	sb, sbc := w.sandbox("bomb")
	const most = 24
	group := w.cfg.CgroupRoot + "/bomb"
	if err := w.r.groups.Make(group); err != nil {
		t.Fatal(err)
	}
	dir := w.r.groups.Of("pids", group)
	if dir == "" {
		t.Skip("no pids controller")
	}
	if err := os.WriteFile(dir+"/pids.max", fmt.Append(nil, most), 0); err != nil {
		t.Fatal(err)
	}
	var peak, outside atomic.Int64
	ctx, cancel := context.WithCancel(Bg)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			peak.Store(max(peak.Load(), numberIn(dir+"/pids.current")))
			outside.Store(max(outside.Load(), int64(len(cgroups.PIDsBelow(w.r.groups.Tree[0].Mount+w.r.monitors)))))
			time.Sleep(time.Millisecond)
		}
	}()
	id := w.run(sb, sbc, "c", attacker("bomb"))
	testwait.For(t, "the bomb reaches its limit", func() bool { return peak.Load() >= most })
	if _, err := w.r.StopContainer(Bg, &cri.StopContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	cancel()
	<-watched
	if p := peak.Load(); p != most {
		t.Errorf("at most %d processes, want the limit %d", p, most)
	}
	if n := outside.Load(); n > 4 { // the monitor and the next one, each with a helper before its first operation
		t.Errorf("%d processes in the monitors' cgroup", n)
	}
	if left := cgroups.PIDsBelow(dir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// TestSysctlWithNUL: a NUL in a value once ended the value, and the rest was read as another path
// and value, which the monitor wrote on the host as root. The runtime rejects it (native/monitor
// tests what a monitor does that gets it anyway).
func TestSysctlWithNUL(t *testing.T) {
	w := newWorld(t)
	victim := filepath.Join(w.dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, sysctls := range []map[string]string{
		{"kernel.shm_rmid_forced": "1\x00" + victim + "\x00theirs"},
		{"kernel.shm_rmid_forced": "1\x00" + victim + "\x00theirs\x00"},
		{"kernel.shm_rmid_forced\x001\x00" + victim: "theirs"},
	} {
		cfg := w.sandboxConfig(fmt.Sprint("nul", i), func(s *cri.PodSandboxConfig) { s.Linux.Sysctls = sysctls })
		_, err := w.r.RunPodSandbox(Bg, &cri.RunPodSandboxRequest{Config: cfg})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "NUL") {
			t.Errorf("%q: %v", sysctls, err)
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
		t.Errorf("ESCAPED: the host's file holds %q, %v", b, err)
	}
}

// TestStringsWithNUL: no other string of a pod or its image is cut at a NUL either.
func TestStringsWithNUL(t *testing.T) {
	w := newWorld(t)
	if _, err := w.r.RunPodSandbox(Bg,
		&cri.RunPodSandboxRequest{Config: w.sandboxConfig("host",
			func(s *cri.PodSandboxConfig) { s.Hostname = "a\x00b" })}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("host name: %v", err)
	}
	sb, sbc := w.sandbox("strings",
		func(s *cri.PodSandboxConfig) { s.Annotations = map[string]string{"text": "any\x00text"} })
	for what, change := range map[string]func(*cri.ContainerConfig){
		"args": func(c *cri.ContainerConfig) {
			c.Command = []string{"echo", "a\x00b"}
		},
		"envs.value": func(c *cri.ContainerConfig) {
			c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("secret\x00B=2")}}
		},
		"envs.key": func(c *cri.ContainerConfig) {
			c.Envs = []*cri.KeyValue{{Key: "A\x00", Value: []byte("secret")}}
		},
		"working_dir": func(c *cri.ContainerConfig) { c.WorkingDir = "/tmp\x00/x" },
		"log_path":    func(c *cri.ContainerConfig) { c.LogPath = "a\x00b" },
		"mounts.host_path": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: "/tmp\x00", ContainerPath: "/x"}}
		},
		"linux.security_context.masked_paths": securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.MaskedPaths = []string{"/proc/kcore\x00"}
		}),
		"linux.security_context.run_as_username": securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUsername = "app\x00"
		}),
	} {
		_, err := w.r.CreateContainer(Bg,
			&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
				Config: containerConfig(sbc, "c", change)})
		if what == "args" {
			what = "command"
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), what+": it holds a NUL") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	image := w.cfg.Images.(*dirImages)
	for what, change := range map[string]func(){
		"argument of the command":        func() { image.image.Cmd = []string{"echo", "a\x00b"} },
		"working directory of the image": func() { image.image.WorkingDir = "/a\x00b" },
		`environment variable "A"`:       func() { image.image.Env = []string{"A=secret\x00B=2"} },
	} {
		was := image.image
		change()
		_, err := w.r.CreateContainer(Bg,
			&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc, Config: containerConfig(sbc, "c")})
		image.image = was
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "NUL") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s of the image: %v", what, err)
		}
	}
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"),
		func(c *cri.ContainerConfig) { c.Labels = map[string]string{"a": "b\x00c"} })
	if x, err := w.exec(id, "echo", "a\x00b"); err == nil || !strings.Contains(err.Error(), "NUL") {
		t.Errorf("exec: %v, %v", x, err)
	}
}

// TestHostSysctls: a pod's sysctl never changes the host.
func TestHostSysctls(t *testing.T) {
	w := newWorld(t)
	host := func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network,
			c.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	}
	for i, c := range []struct {
		name   string
		change func(*cri.PodSandboxConfig)
	}{
		{"kernel.core_pattern", nil}, {"kernel/core_pattern", nil}, {"kernel.hostname", nil},
		{"vm.overcommit_memory", nil}, {"fs.file-max", nil},
		{"net/../kernel/core_pattern", nil}, {"net.ipv4.ip_forward", host}, {"kernel.shmmax", host},
		{"fs.mqueue.msg_max", host}, {"kernel.domainname", host},
	} {
		cfg := w.sandboxConfig(fmt.Sprint("sysctl", i), func(s *cri.PodSandboxConfig) {
			if c.change != nil {
				c.change(s)
			}
			s.Linux.Sysctls = map[string]string{c.name: "1"}
		})
		if _, err := w.r.RunPodSandbox(Bg,
			&cri.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
