package native

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/testwait"
	"carob/internal/runtime/native/devices"
)

// TestCDIDevices: what a CDI specification defines reaches the container, requested in the field of
// CRI or by annotation; what is not possible is rejected with the reason.
func TestCDIDevices(t *testing.T) {
	w := newWorld(t)
	w.r.cfg.CDIDirs = []string{t.TempDir()}
	data := filepath.Join(w.dir, "driver")
	os.Mkdir(data, 0o755)
	os.WriteFile(filepath.Join(data, "lib"), []byte("driver\n"), 0o644)
	spec := fmt.Sprintf(`{"cdiVersion": "0.7.0", "kind": "vendor.com/gpu", "containerEdits": {"env": ["DRIVER=yes"]}, "devices": [
		{"name": "0", "containerEdits": {"env": ["GPU=0"],
			"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/full", "permissions": "rw", "fileMode": 384, "uid": 7}],
			"mounts": [{"hostPath": %q, "containerPath": "/usr/lib/gpu", "options": ["ro", "nosuid", "nodev", "bind"]}],
			"additionalGids": [4711]}},
		{"name": "inside", "containerEdits": {"hooks": [{"hookName": "startContainer", "path": "/bin/true"}]}},
		{"name": "relative", "containerEdits": {"hooks": [{"hookName": "poststop", "path": "bin/true"}]}}]}`, data)
	if err := os.WriteFile(filepath.Join(w.r.cfg.CDIDirs[0], "vendor.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	sb, sbc := w.sandbox("cdi")
	for name, change := range map[string]func(*cri.ContainerConfig){
		"field": func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.com/gpu=0"}} },
		"annotation": func(c *cri.ContainerConfig) {
			c.Annotations = map[string]string{"cdi.k8s.io/plugin": "vendor.com/gpu=0"}
		},
	} {
		got := w.output(sb, sbc, name,
			"echo $DRIVER $GPU; cat /usr/lib/gpu/lib; touch /usr/lib/gpu/x 2>/dev/null || echo refused; stat -c '%t %T %a %u' /dev/gpu0; head -c 2 /dev/gpu0 | wc -c; id -G", change)
		if want := "yes 0\ndriver\nrefused\n1 7 600 7\n2\n0 3000 4711"; got != want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, want)
		}
	}
	for device, want := range map[string]codes.Code{"vendor.com/gpu=9": codes.InvalidArgument,
		"vendor.com/gpu=inside": codes.Unimplemented, "vendor.com/gpu=relative": codes.InvalidArgument,
		"nonsense": codes.InvalidArgument} {
		_, err := w.r.CreateContainer(Bg,
			&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
				Config: containerConfig(sbc, "no", func(c *cri.ContainerConfig) {
					c.CDIDevices = []*cri.CDIDevice{{Name: device}}
				})})
		if status.Code(err) != want {
			t.Errorf("%s: %v, want %v", device, err, want)
		}
	}
	// CRI clients may omit everything that is specific to Linux.
	bare, _, _, err := devices.InjectCDI(&cri.ContainerConfig{}, []string{"vendor.com/gpu=0"}, w.r.cfg.CDIDirs)
	if groups := bare.GetLinux().GetSecurityContext().GetSupplementalGroups(); err != nil || len(groups) != 1 ||
		groups[0] != 4711 {
		t.Errorf("a container without a security context: groups %v, %v", groups, err)
	}
}

// TestCDIHooks: hooks run where and when the OCI runtime-spec requires, in order, and with the
// container's state. A hook that fails fails the start, with its output.
func TestCDIHooks(t *testing.T) {
	w := newWorld(t)
	w.cfg.CDIDirs = []string{t.TempDir()}
	w.r.cfg.CDIDirs = w.cfg.CDIDirs
	notes := filepath.Join(w.dir, "notes")
	// The root is at the path in config.json of the bundle, and writable only there.
	const find = `s=$(cat); b=${s#*'"bundle":"'}; b=${b%%'"'*}; c=$(cat $b/config.json); r=${c#*'"root":{"path":"'}; r=${r%%'"'*}; `
	note := func(name string) string {
		return `s=$(cat); x=${s#*'"status":"'}; echo ` + name + ` ${x%%'"'*} $VENDOR >> ` + notes
	}
	hook := func(name, script string) map[string]any {
		return map[string]any{"hookName": name, "path": "/bin/sh", "args": []string{"sh", "-c", script},
			"env": []string{"VENDOR=v", "PATH=/usr/bin:/bin"}}
	}
	device := func(name string, hooks ...map[string]any) map[string]any {
		return map[string]any{"name": name, "containerEdits": map[string]any{"hooks": hooks}}
	}
	spec, err := json.Marshal(map[string]any{"cdiVersion": "0.7.0", "kind": "vendor.com/gpu", "devices": []any{
		device("0", hook("prestart", note("prestart")), hook("createRuntime", note("runtime")),
			hook("createContainer",
				find+`echo by a hook > $r/etc/made; test -d $r/proc/1 && echo mounts > $r/etc/mounts; echo container >> `+notes),
			hook("poststart", note("poststart")), hook("poststop", note("poststop"))),
		device("fails", hook("createContainer", "echo no driver here >&2; exit 3")),
		device("late", hook("poststart", "exit 3"), hook("poststop", "exit 3")),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.r.cfg.CDIDirs[0], "vendor.json"), spec, 0o644); err != nil {
		t.Fatal(err)
	}
	gpu := func(name string) func(*cri.ContainerConfig) {
		return func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.com/gpu=" + name}} }
	}
	sb, sbc := w.sandbox("hooks")
	id := w.run(sb, sbc, "c", shell("cat /etc/made /etc/mounts; exec sleep 1000"), gpu("0"))
	testwait.For(w.tb, "the container sees what the hook made",
		func() bool { return w.log(sbc, "c") == "stdout F by a hook\nstdout F mounts\n" })
	if x, err := w.exec(id, "cat", "/etc/made"); err != nil || string(x.Stdout) != "by a hook\n" {
		t.Errorf("exec: %v, %v", x, err)
	}
	if err := w.r.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.stop(id, 0)
	for range 2 {
		if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
	if got, err := os.ReadFile(notes); err != nil ||
		string(got) != "prestart creating v\nruntime creating v\ncontainer\npoststart running v\npoststop stopped v\n" {
		t.Errorf("hooks noted %q, %v", got, err)
	}
	if exists(filepath.Join(w.r.rootDir(), "etc")) {
		t.Error("the hook wrote to the host")
	}
	failing := w.create(sb, sbc, "fails", shell("exit 0"), gpu("fails"))
	if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: failing}); err == nil ||
		!strings.Contains(err.Error(), "running hook /bin/sh: exit status 3: no driver here") {
		t.Errorf("a hook that fails: %v", err)
	}
	if st := w.wait(failing); st.ExitCode != 128 || st.Reason != "StartError" {
		t.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
	}
	late := w.run(sb, sbc, "late", shell("exit 4"), gpu("late"))
	if st := w.wait(late); st.ExitCode != 4 {
		t.Errorf("after a hook that fails too late: code %d", st.ExitCode)
	}
	if _, err := w.r.RemoveContainer(Bg, &cri.RemoveContainerRequest{ContainerId: late}); err != nil {
		t.Error(err)
	}
}

// TestSeccompAgent: an agent decides the calls that a profile leaves to it, for the container's
// process and for an exec.
func TestSeccompAgent(t *testing.T) {
	w := newWorld(t)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	states := make(chan specs.ContainerProcessState, 4)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
			n, on, _, _, err := c.(*net.UnixConn).ReadMsgUnix(b, oob)
			c.Close()
			var state specs.ContainerProcessState
			if err == nil && json.Unmarshal(b[:n], &state) == nil {
				if msgs, err := unix.ParseSocketControlMessage(oob[:on]); err == nil && len(msgs) == 1 {
					if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
						go refuseAll(fds[0])
					}
				}
				states <- state
			}
		}
	}()
	write := func(name, listener string) string {
		path := filepath.Join(w.dir, name)
		text := fmt.Sprintf(`{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "listenerPath": %q, "listenerMetadata": "mine",
			"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY"}]}`, listener)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	profile := func(path string) func(*cri.ContainerConfig) {
		return securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: path}
		})
	}
	sb, sbc := w.sandbox("agent")
	id := w.run(sb, sbc, "c", shell("mkdir /tmp/x 2>&1; sleep 1000"), profile(write("good.json", socket)))
	if s := <-states; s.State.ID != id || s.Metadata != "mine" || s.State.Status != specs.StateCreating || s.Pid <= 0 ||
		len(s.Fds) != 1 || s.Fds[0] != specs.SeccompFdName {
		t.Errorf("the agent was told %+v", s)
	}
	x, err := w.exec(id, "sh", "-c", "mkdir /tmp/y 2>&1; echo end")
	if err != nil || !strings.Contains(string(x.Stdout), "Too many levels of symbolic links") ||
		!strings.HasSuffix(string(x.Stdout), "end\n") {
		t.Errorf("exec: %q, %v; the agent answers ELOOP", x.GetStdout(), err)
	}
	if s := <-states; s.State.Status != specs.StateRunning {
		t.Errorf("for an exec the agent was told %+v", s)
	}
	testwait.For(w.tb, "the container tells of ELOOP, too",
		func() bool { return strings.Contains(w.log(sbc, "c"), "Too many levels of symbolic links") })
	// No agent listens, or the profile names no socket.
	lost := w.create(sb, sbc, "lost", shell("true"), profile(write("lost.json", socket+".none")))
	if _, err := w.r.StartContainer(Bg, &cri.StartContainerRequest{ContainerId: lost}); err == nil ||
		!strings.Contains(err.Error(), "seccomp agent") {
		t.Errorf("an agent that is not there: %v", err)
	}
	_, err = w.r.CreateContainer(Bg,
		&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
			Config: containerConfig(sbc, "no", profile(write("none.json", "")))})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "listenerPath") {
		t.Errorf("no agent named: %v", err)
	}
}

// refuseAll answers each call with ELOOP, an error that mkdir does not return here otherwise.
func refuseAll(fd int) {
	defer unix.Close(fd)
	const (
		notifRecv = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
		notifSend = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
	)
	for {
		var req [80]byte
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifRecv,
			uintptr(unsafe.Pointer(&req[0]))); e == unix.EINTR {
			continue
		} else if e != 0 {
			return
		}
		var resp [24]byte
		copy(resp[:8], req[:8])
		loop := -int32(unix.ELOOP)
		binary.NativeEndian.PutUint32(resp[16:], uint32(loop))
		// the caller may have exited
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), notifSend, uintptr(unsafe.Pointer(&resp[0])))
	}
}

// TestMetrics: each metric of a pod and its containers has a descriptor with the same number of
// labels.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("metrics")
	id := w.run(sb, sbc, "c", shell("sleep 1000"))
	all, err := w.r.ListPodSandboxMetrics(Bg, nil)
	if err != nil || len(all.PodMetrics) != 1 || all.PodMetrics[0].PodSandboxId != sb ||
		len(all.PodMetrics[0].ContainerMetrics) != 1 || all.PodMetrics[0].ContainerMetrics[0].ContainerId != id {
		t.Fatalf("%v, %v", all, err)
	}
	descriptors, err := w.r.ListMetricDescriptors(Bg, nil)
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, d := range descriptors.Descriptors {
		labels[d.Name] = d.LabelKeys
	}
	found := map[string]uint64{}
	for _, m := range append(all.PodMetrics[0].Metrics, all.PodMetrics[0].ContainerMetrics[0].Metrics...) {
		if len(labels[m.Name]) != len(m.LabelValues) {
			t.Errorf("%s has labels %q, described as %q", m.Name, m.LabelValues, labels[m.Name])
		}
		found[m.Name] = m.Value.Value
	}
	if found[memoryUsage.name] == 0 || found[startSeconds.name] == 0 || found[processes.name] == 0 {
		t.Errorf("%v", found)
	}
}

// TestRuntimeHandlers: the handlers listed in Status are accepted, all others are rejected.
func TestRuntimeHandlers(t *testing.T) {
	w := newWorld(t)
	st, err := w.r.Status(Bg, &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range st.RuntimeHandlers {
		if _, err := w.r.RunPodSandbox(Bg,
			&cri.RunPodSandboxRequest{Config: w.sandboxConfig(fmt.Sprint("h", i)),
				RuntimeHandler: h.Name}); err != nil {
			t.Errorf("handler %q: %v", h.Name, err)
		}
	}
	if _, err := w.r.RunPodSandbox(Bg,
		&cri.RunPodSandboxRequest{Config: w.sandboxConfig("gvisor"),
			RuntimeHandler: "gvisor"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown handler: %v", err)
	}
}

// TestPodFilesInUserNamespace: files that the runtime adds to a pod belong to the pod's root user.
func TestPodFilesInUserNamespace(t *testing.T) {
	w := newWorld(t)
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 700000, Length: 65536}}
	userns := &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	sb, sbc := w.sandbox("owned",
		func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns })
	got := w.output(sb, sbc, "c",
		"stat -c %u:%g /etc/hostname /etc/hosts /etc/resolv.conf; touch /etc/hosts && echo writable",
		securityContext(func(s *cri.LinuxContainerSecurityContext) { s.NamespaceOptions.UsernsOptions = userns }))
	if want := "0:0\n0:0\n0:0\nwritable"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	got = w.output(sb, sbc, "ro", "touch /etc/hosts 2>/dev/null || echo refused",
		securityContext(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions.UsernsOptions, s.ReadonlyRootfs = userns, true
		}))
	if got != "refused" {
		t.Errorf("with a read-only root: %q", got)
	}
}

// TestOldMonitor: a pod keeps its monitor across upgrades, so this runtime must work with the
// monitor of the first release.
func TestOldMonitor(t *testing.T) {
	if os.Getenv("CAROB_NATIVE_PROGRAMS") != "" {
		t.Skip("this is the inner run")
	}
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	dir := t.TempDir()
	buildOldMonitor(t, dir)
	innerRun(t, dir,
		"^(TestContainerLife|TestExitCodes|TestStop|TestRestart|TestLostLine|TestSharedProcesses|TestSysctls|TestLogs|TestUserNamespace|TestExecSync|TestStreamExec|TestAttach|TestLogShown|TestStartErrors)$",
		// It cannot distinguish the end of a client's input from the end of the container's.
		"-test.skip", "^TestAttach$/^(one_after_the_other|a_large_input_that_leaves_the_container's_open)$")
}

// TestPodResources: a pod's new limits are in force when the agent reports them; only an unknown
// pod is an error.
func TestPodResources(t *testing.T) {
	w := newWorld(t)
	sb, _ := w.sandbox("pod")
	for id, want := range map[string]codes.Code{sb: codes.OK, strings.Repeat("0", 64): codes.NotFound} {
		if _, err := w.r.UpdatePodSandboxResources(Bg,
			&cri.UpdatePodSandboxResourcesRequest{PodSandboxId: id,
				Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}}); status.Code(err) != want {
			t.Errorf("%s: %v, want %s", id[:8], err, want)
		}
	}
}
