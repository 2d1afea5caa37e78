package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func logs(s *suite) {
	p := s.pod()
	const long = 40000
	_, st := p.run("web",
		shell(fmt.Sprintf("echo one; echo two >&2; printf '%%0%dd\\n' 7; echo; printf unfinished", long)))
	s.want("exit code", st.ExitCode, int32(0))
	s.want("stderr", p.output("web", "stderr"), "two\n")
	out := p.output("web", "stdout")
	want := "one\n" + strings.Repeat("0", long-1) + "7\n\nunfinished"
	if strings.TrimSuffix(out, "\n") != want { // the last line may be marked as complete
		s.Errorf("stdout has %d bytes, want %d: %.40q … %q", len(out), len(want), out, out[max(0, len(out)-20):])
	}
	parts := 0
	var last logLine
	for _, l := range p.log("web") {
		if len(l.text) > 16<<10 {
			s.Errorf("a log line of %d bytes: longer than 16 KiB must be split", len(l.text))
		}
		if !l.full {
			parts++
		}
		if l.stream == last.stream && l.at.Before(last.at) {
			s.Errorf("time runs backwards: %s after %s", l.at, last.at)
		}
		last = l
	}
	if parts < 2 {
		s.Errorf("%d partial lines for %d bytes", parts, long)
	}
	// The main process exits first; what its child still writes is kept.
	out, _ = p.run("orphan", shell("(sleep 0.1; echo late) & echo early"))
	if !strings.HasPrefix(out, "early\n") {
		s.Errorf("stdout %q", out)
	}
}

func logReopen(s *suite) {
	p := s.pod()
	id := p.start("web", shell("echo first; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo second; exec sleep 1000"))
	file := filepath.Join(p.config.LogDirectory, "web.log")
	s.until("the first line", func() bool { return p.output("web", "stdout") == "first\n" })
	if err := os.Rename(file, file+".1"); err != nil {
		s.Fatal(err)
	}
	if _, err := s.Runtime.ReopenContainerLog(s.Context(),
		&cri.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		s.Fatal(err)
	}
	s.exec(id, "touch", "/tmp/go")
	s.until("the new file has the second line", func() bool {
		_, err := os.Stat(file)
		return err == nil && p.output("web", "stdout") == "second\n"
	})
	if old := s.readLog(file + ".1"); len(old) != 1 || old[0].text != "first" {
		s.Errorf("the rotated file: %v", old)
	}
}

func envAndDirectory(s *suite) {
	p := s.pod()
	out, _ := p.run("web", shell(`echo "$A|$EMPTY|$PATH|$HOSTNAME"; pwd; hostname`), func(c *cri.ContainerConfig) {
		c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("x=y z")}, {Key: "EMPTY"},
			{Key: "A", Value: []byte("last wins")}}
		c.WorkingDir = "/made/on/demand"
	})
	lines := strings.Split(out, "\n")
	if len(lines) != 4 {
		s.Fatalf("output %q", out)
	}
	if parts := strings.Split(lines[0], "|"); parts[0] != "last wins" || parts[1] != "" ||
		!strings.Contains(parts[2], "/bin") || parts[3] != p.config.Hostname {
		s.Errorf("environment %q", parts)
	}
	s.want("directory", lines[1], "/made/on/demand")
	s.want("host name", lines[2], p.config.Hostname)
}

func users(s *suite) {
	p := s.pod()
	for i, c := range []struct {
		change func(*cri.LinuxContainerSecurityContext)
		id     string
	}{
		{func(*cri.LinuxContainerSecurityContext) {}, "0 0"},
		{func(sc *cri.LinuxContainerSecurityContext) { sc.RunAsUser = &cri.Int64Value{Value: 1234} }, "1234 0"},
		{func(sc *cri.LinuxContainerSecurityContext) {
			sc.RunAsUser, sc.RunAsGroup = &cri.Int64Value{Value: 1234}, &cri.Int64Value{Value: 99}
		}, "1234 99"},
		{func(sc *cri.LinuxContainerSecurityContext) { sc.RunAsUsername = "www-data" }, "33 33"},
	} {
		name := fmt.Sprint("c", i)
		out, _ := p.run(name, shell("echo $(id -u) $(id -g)"),
			func(cfg *cri.ContainerConfig) { c.change(cfg.Linux.SecurityContext) })
		s.want(name, strings.TrimSpace(out), c.id)
	}
	out, _ := p.run("groups", shell("id -G"), func(cfg *cri.ContainerConfig) {
		cfg.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1234}
		cfg.Linux.SecurityContext.SupplementalGroups = []int64{77, 78}
	})
	for _, g := range []string{"77", "78"} {
		if !strings.Contains(" "+strings.TrimSpace(out)+" ", " "+g+" ") {
			s.Errorf("groups %q lack %s", out, g)
		}
	}
}

func mounts(s *suite) {
	dir := s.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from the host\n"), 0o644); err != nil {
		s.Fatal(err)
	}
	p := s.pod()
	out, _ := p.run("web",
		shell(
			"cat /rw/file /ro/file /one; echo made > /rw/new && echo wrote; echo x 2>/dev/null > /ro/new || echo refused"), func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{
				{HostPath: dir, ContainerPath: "/rw"},
				{HostPath: dir, ContainerPath: "/ro", Readonly: true},
				{HostPath: filepath.Join(dir, "file"), ContainerPath: "/one", Readonly: true},
			}
		})
	s.want("output", out, strings.Repeat("from the host\n", 3)+"wrote\nrefused\n")
	if body, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(body) != "made\n" {
		s.Errorf("what the container wrote: %q, %v", body, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		s.Errorf("removing a container must not touch its mounts: %v", err)
	}
	// /dev/shm is the pod's, /dev has the usual devices.
	out, st := p.run("dev",
		shell(
			"test -c /dev/null && test -c /dev/zero && test -c /dev/urandom && test -e /dev/stdout && test -d /dev/pts && test -w /dev/shm && echo complete"))
	if strings.TrimSpace(out) != "complete" || st.ExitCode != 0 {
		s.Errorf("/dev is not complete (code %d)", st.ExitCode)
	}
}

func readOnlyRoot(s *suite) {
	p := s.pod()
	out, _ := p.run("web", shell("touch /new 2>/dev/null || echo refused; touch /dev/shm/x && echo shm"),
		func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.ReadonlyRootfs = true
		})
	s.want("output", out, "refused\nshm\n")
	// Each container has a writable layer of its own.
	p.run("first", shell("echo 1 > /own"))
	out, _ = p.run("second", shell("test -e /own && echo shared || echo private"))
	s.want("layer", out, "private\n")
}

func capabilities(s *suite) {
	p := s.pod()
	effective := func(name string, change func(*cri.LinuxContainerSecurityContext)) string {
		out, _ := p.run(name, shell("grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status"),
			func(c *cri.ContainerConfig) { change(c.Linux.SecurityContext) })
		return strings.Join(strings.Fields(out), " ")
	}
	const defaults = "00000000a80425fb" // the fourteen default capabilities
	s.want("defaults", effective("defaults", func(*cri.LinuxContainerSecurityContext) {}),
		"CapEff: "+defaults+" NoNewPrivs: 0 Seccomp: 2")
	s.want("none", effective("none", func(sc *cri.LinuxContainerSecurityContext) {
		sc.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		sc.NoNewPrivs = true
	}), "CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2")
	s.want("one", effective("one", func(sc *cri.LinuxContainerSecurityContext) {
		sc.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"},
			AddCapabilities: []string{"NET_BIND_SERVICE"}}
	}), "CapEff: 0000000000000400 NoNewPrivs: 0 Seccomp: 2")
	s.want("not root",
		effective("user", func(sc *cri.LinuxContainerSecurityContext) { sc.RunAsUser = &cri.Int64Value{Value: 1000} }),
		"CapEff: 0000000000000000 NoNewPrivs: 0 Seccomp: 2")
	s.want("unconfined", effective("unconfined", func(sc *cri.LinuxContainerSecurityContext) {
		sc.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	}), "CapEff: "+defaults+" NoNewPrivs: 0 Seccomp: 0")
	out, _ := p.run("masked",
		shell("head -c 1 /proc/kcore | wc -c; echo 1 2>/dev/null > /proc/sys/kernel/hostname || echo refused"),
		func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.MaskedPaths, c.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/kcore"},
				[]string{"/proc/sys"}
		})
	s.want("masked and read-only paths", strings.Join(strings.Fields(out), " "), "0 refused")
}

func outOfMemory(s *suite) {
	p := s.pod()
	_, st := p.run("web", shell("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}"),
		func(c *cri.ContainerConfig) {
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 20 << 20,
				MemorySwapLimitInBytes: 20 << 20,
				CpuPeriod:              100000, CpuQuota: 100000, CpuShares: 100}
		})
	if st.ExitCode == 0 || st.Reason != "OOMKilled" {
		s.Errorf("code %d, reason %q", st.ExitCode, st.Reason)
	}
}

func sharedNamespaces(s *suite) {
	p := s.pod()
	a := p.start("a", shell("echo mine > /dev/shm/note; nc -l -p 7009 -e echo hello & exec sleep 1000"))
	b := p.start("b", shell("exec sleep 1000"))
	s.until("the note is there", func() bool {
		out, _, _ := s.exec(b, "cat", "/dev/shm/note")
		return out == "mine\n"
	})
	for _, ns := range []string{"net", "ipc", "uts"} {
		x, _, _ := s.exec(a, "readlink", "/proc/self/ns/"+ns)
		y, _, _ := s.exec(b, "readlink", "/proc/self/ns/"+ns)
		host, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			s.Fatal(err)
		}
		if x != y || strings.TrimSpace(x) == host {
			s.Errorf("%s: %q and %q, the host's is %q", ns, x, y, host)
		}
	}
	for _, ns := range []string{"pid", "mnt"} {
		x, _, _ := s.exec(a, "readlink", "/proc/self/ns/"+ns)
		y, _, _ := s.exec(b, "readlink", "/proc/self/ns/"+ns)
		if x == y {
			s.Errorf("%s is shared: %q", ns, x)
		}
	}
	if s.Network {
		ip := s.sandboxStatus(p.id).Status.Network.Ip
		if out, _, _ := s.exec(b, "ip", "-o", "addr"); !strings.Contains(out, ip+"/") {
			s.Errorf("status says %s, the pod has %q", ip, out)
		}
	}
}

func podPIDNamespace(s *suite) {
	p := s.pod(func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD })
	p.start("a", shell("exec sleep 1001"))
	b := p.start("b", shell("exec sleep 1002"))
	out, _, _ := s.exec(b, "ps")
	for _, want := range []string{"sleep 1001", "sleep 1002"} {
		if !strings.Contains(out, want) {
			s.Errorf("processes of the pod: %q lack %q", out, want)
		}
	}
}

func hostNetwork(s *suite) {
	p := s.pod(func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
		c.Hostname = ""
	})
	id := p.start("web", shell("exec sleep 1000"))
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		s.Fatal(err)
	}
	out, _, _ := s.exec(id, "readlink", "/proc/self/ns/net")
	s.want("network namespace", strings.TrimSpace(out), host)
	name, err := os.Hostname()
	if err != nil {
		s.Fatal(err)
	}
	out, _, _ = s.exec(id, "hostname")
	s.want("host name", strings.TrimSpace(out), name)
}

func stats(s *suite) {
	p := s.pod()
	id := p.start("web", shell("head -c 300000 /dev/zero > /filled; echo ready; exec sleep 1000"))
	s.until("the file is there", func() bool { return p.output("web", "stdout") == "ready\n" })
	s.until("use is measured", func() bool {
		resp, err := s.Runtime.ContainerStats(s.Context(), &cri.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			s.Fatal(err)
		}
		st := resp.Stats
		return st.GetAttributes().GetId() == id && st.GetCpu().GetUsageCoreNanoSeconds().GetValue() > 0 &&
			st.GetMemory().GetWorkingSetBytes().GetValue() > 0 &&
			st.GetWritableLayer().GetUsedBytes().GetValue() >= 300000
	})
	list, err := s.Runtime.ListContainerStats(s.Context(),
		&cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{PodSandboxId: p.id}})
	if err != nil || len(list.Stats) != 1 {
		s.Errorf("stats of the pod's containers: %v, %v", list, err)
	}
}

func images(s *suite) {
	ctx := s.Context()
	st, err := s.Runtime.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: s.Image}})
	if err != nil || st.Image == nil || !strings.HasPrefix(st.Image.Id, "sha256:") || st.Image.Size == 0 {
		s.Fatalf("image %s: %v, %v", s.Image, st, err)
	}
	none, err := s.Runtime.ImageStatus(ctx,
		&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: "docker.io/library/not-here:1"}})
	if err != nil || none.Image != nil {
		s.Errorf("an image that isn't here: %v, %v", none, err)
	}
	list, err := s.Runtime.ListImages(ctx, &cri.ListImagesRequest{})
	found := false
	for _, im := range list.GetImages() {
		found = found || im.Id == st.Image.Id
	}
	if err != nil || !found {
		s.Errorf("%s is not among %v, %v", st.Image.Id, list, err)
	}
	if _, err := s.Runtime.RemoveImage(ctx,
		&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "docker.io/library/not-here:1"}}); err != nil {
		s.Errorf("remove an image that isn't here: %v", err)
	}
	fs, err := s.Runtime.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
	if err != nil || len(fs.ImageFilesystems) == 0 || fs.ImageFilesystems[0].GetFsId().GetMountpoint() == "" {
		s.Errorf("file system of the images: %v, %v", fs, err)
	}
}

func version(s *suite) {
	v, err := s.Runtime.Version(s.Context(), &cri.VersionRequest{})
	if err != nil || v.RuntimeName == "" || v.RuntimeVersion == "" || v.RuntimeApiVersion != "v1" {
		s.Errorf("version %v, %v", v, err)
	}
	st, err := s.Runtime.Status(s.Context(), &cri.StatusRequest{})
	if err != nil {
		s.Fatal(err)
	}
	for _, want := range []string{"RuntimeReady", "NetworkReady"} {
		ok := false
		for _, c := range st.GetStatus().GetConditions() {
			ok = ok || c.Type == want && c.Status
		}
		if !ok {
			s.Errorf("%s is not true: %v", want, st.Status)
		}
	}
}
