package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func securityContext(f func(*cri.LinuxContainerSecurityContext)) func(*cri.ContainerConfig) {
	return func(c *cri.ContainerConfig) { f(c.Linux.SecurityContext) }
}

func TestWhatAContainerSees(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("inside")
	for name, c := range map[string]struct {
		script string
		change func(*cri.ContainerConfig)
		want   string
	}{
		"hostname": {script: "hostname; cat /etc/hostname; echo $HOSTNAME", want: "inside\ninside\ninside"},
		"pid":      {script: "echo $$", want: "1"},
		"env": {
			script: "echo $IMAGE $MINE; echo $PATH; echo $HOME",
			change: func(c *cri.ContainerConfig) {
				c.Envs = []*cri.KeyValue{{Key: "MINE", Value: []byte("a b")}, {Key: "IMAGE", Value: []byte("no")}}
			},
			want: "no a b\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/root",
		},
		"workdir": {
			script: "pwd; ls -ld . | awk '{print $1, $3}'",
			change: func(c *cri.ContainerConfig) { c.WorkingDir = "/made/for/me" },
			want:   "/made/for/me\ndrwxr-xr-x root",
		},
		"user": {
			script: "id; echo $HOME",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1000}
			}),
			want: "uid=1000(app) gid=1001(app) groups=1001(app),2000(extra)\n/home/app",
		},
		"usergroup": {
			script: "id",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 4242}, &cri.Int64Value{Value: 77}
				s.SupplementalGroups = []int64{9, 77}
			}),
			want: "uid=4242 gid=77 groups=9,77",
		},
		"strict": {
			script: "id",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUsername, s.SupplementalGroups = "app", []int64{5}
				s.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
			}),
			want: "uid=1000(app) gid=1001(app) groups=5,1001(app)",
		},
		"capabilities": {script: "grep Cap /proc/self/status | awk '{print $2}'",
			want: "0000000000000000\n00000000a80425fb\n00000000a80425fb\n00000000a80425fb\n0000000000000000"},
		"dropped": {
			script: "grep CapBnd /proc/self/status | awk '{print $2}'",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"},
					AddCapabilities: []string{"NET_BIND_SERVICE"}}
			}),
			want: "0000000000000400",
		},
		"ambient": {
			script: "grep -E 'CapEff|CapAmb' /proc/self/status | awk '{print $2}'",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1000}
				s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"},
					AddAmbientCapabilities: []string{"CAP_NET_RAW"}}
			}),
			want: "0000000000002000\n0000000000002000",
		},
		"nnp": {
			script: "grep -E 'NoNewPrivs|^Seccomp:' /proc/self/status | awk '{print $2}'",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.NoNewPrivs, s.Seccomp = true, &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
			}),
			want: "1\n2",
		},
		"seccomp": {
			script: "unshare -U true 2>&1; grep -E 'NoNewPrivs|^Seccomp:' /proc/self/status | awk '{print $2}'",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
			}),
			want: "unshare: unshare(0x10000000): Operation not permitted\n0\n2",
		},
		"masked":   {script: "wc -c < /proc/keys; ls /sys/firmware | wc -l", want: "0\n0"},
		"readonly": {script: "echo 1 > /proc/sys/vm/swappiness 2>/dev/null || echo refused; mkdir /sys/fs/cgroup/x 2>/dev/null || echo refused", want: "refused\nrefused"},
		"rootfs": {
			script: "touch /x 2>&1; touch /dev/shm/y && echo shm; touch /tmp/z 2>/dev/null || echo tmp",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }),
			want:   "touch: /x: Read-only file system\nshm\ntmp",
		},
		"devices": {
			script: "ls /dev | tr '\\n' ' '; head -c 3 /dev/zero | wc -c; mknod /tmp/m b 1 0 && cat /tmp/m 2>&1 | head -c 100",
			want:   "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero 3\ncat: can't open '/tmp/m': Operation not permitted",
		},
		"descriptors": {script: "ls /proc/self/fd | wc -l; readlink /proc/self/fd/0", want: "4\n/dev/null"},
		"stdout-again": {
			script: "echo again > /dev/stdout",
			change: securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1000}
			}),
			want: "again",
		},
		"nothing-of-the-host": {script: "wc -l < /proc/self/mountinfo; ls -d /work /host 2>/dev/null; grep -c . /proc/self/cgroup | grep -v x >/dev/null && echo ok", want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			change := c.change
			if change == nil {
				change = func(*cri.ContainerConfig) {}
			}
			got := w.output(sb, sbc, name, c.script, change)
			if name == "nothing-of-the-host" {
				if strings.Contains(got, "/work") || !strings.Contains(got, "ok") {
					t.Errorf("got %q", got)
				}
				return
			}
			if strings.TrimRight(got, " ") != strings.TrimRight(c.want, " ") {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestMounts(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("mounts")
	host := filepath.Join(w.dir, "host")
	for _, d := range []string{"data/below", "outside"} {
		if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(host, "data")
	os.WriteFile(filepath.Join(data, "f"), []byte("text\n"), 0o644)
	if err := unix.Mount("below", filepath.Join(data, "below"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(data, "below"), unix.MNT_DETACH)
	// Links in the image must not lead a mount out of the root.
	image := w.cfg.Images.(*dirImages).root
	os.Symlink("/../../.."+filepath.Join(host, "outside"), filepath.Join(image, "evil"))
	os.Symlink("/run/target", filepath.Join(image, "dangling"))
	got := w.output(sb, sbc, "m", `
cat /rw/f; echo new > /rw/new && echo written
echo no > /ro/no 2>/dev/null || echo refused; touch /ro/below/yes && echo not-recursive
touch /rro/below/no 2>/dev/null || echo refused
cat /one; ls /evil; ls /run/target; cat /etc/hosts
touch /rw/x && chmod +x /noexec/f 2>/dev/null; /noexec/f 2>/dev/null || echo no-exec
mount | grep -c ' /made '`, func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{
			{ContainerPath: "/ro", HostPath: data, Readonly: true},
			{ContainerPath: "/rw", HostPath: data},
			{ContainerPath: "/rro", HostPath: data, Readonly: true, RecursiveReadOnly: true},
			{ContainerPath: "/one", HostPath: filepath.Join(data, "f")},
			{ContainerPath: "/evil/in", HostPath: data},
			{ContainerPath: "/dangling", HostPath: data},
			{ContainerPath: "/etc/hosts", HostPath: filepath.Join(data, "f")},
			{ContainerPath: "/noexec", HostPath: data, MountOptions: []string{"noexec", "ro"}},
			{ContainerPath: "/made", HostPath: filepath.Join(host, "made")},
		}
	})
	want := "text\nwritten\nrefused\nnot-recursive\nrefused\ntext\nin\nbelow\nf\nnew\ntext\nno-exec\n1"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for what, m := range map[string]*cri.Mount{
		"writable": {RecursiveReadOnly: true},
		"follows the host": {RecursiveReadOnly: true, Readonly: true,
			Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		"both ways": {RecursiveReadOnly: true, Readonly: true,
			Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		"option": {MountOptions: []string{"suid"}},
		"root":   {ContainerPath: "/"},
	} {
		m.HostPath = data
		if m.ContainerPath == "" {
			m.ContainerPath = "/m"
		}
		_, err := w.r.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
			Config: containerConfig(sbc, "bad", func(c *cri.ContainerConfig) { c.Mounts = []*cri.Mount{m} })})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("mount %s: %v", what, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Join(host, "outside")); len(entries) > 0 {
		t.Error("a mount target was made outside of the container")
	}
}

func TestMountPropagation(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "shared")
	os.MkdirAll(filepath.Join(dir, "fromhost"), 0o755)
	os.MkdirAll(filepath.Join(dir, "frompod"), 0o755)
	if err := unix.Mount("shared", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"fromhost", "frompod"} {
		os.Mkdir(filepath.Join(dir, d), 0o755)
	}
	sb, sbc := w.sandbox("prop", func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	id := w.run(sb, sbc, "c", shell("sleep 1000"), func(c *cri.ContainerConfig) {
		c.Linux.SecurityContext.Privileged = true
		c.Mounts = []*cri.Mount{
			{ContainerPath: "/private", HostPath: dir},
			{ContainerPath: "/slave", HostPath: dir, Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{ContainerPath: "/peer", HostPath: dir, Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		}
	})
	if err := unix.Mount("late", filepath.Join(dir, "fromhost"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(filepath.Join(dir, "fromhost"), unix.MNT_DETACH)
	x, err := w.exec(id, "sh", "-c",
		"grep -c fromhost /proc/mounts; mount -t tmpfs pod /peer/frompod; grep fromhost /proc/mounts | awk '{print $2}' | sort")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(x.Stdout); got != "2\n/peer/fromhost\n/slave/fromhost\n" {
		t.Errorf("in the container: %q %q", got, x.Stderr)
	}
	mounts, _ := os.ReadFile("/proc/mounts")
	if !strings.Contains(string(mounts), dir+"/frompod") {
		t.Error("a mount of the pod did not reach the host through bidirectional propagation")
	}
	unix.Unmount(filepath.Join(dir, "frompod"), unix.MNT_DETACH)
}

// A privileged container may have the host's /dev, a directory of it, or one device as a volume, as pods of CSI drivers
// do: it starts, and makes no device there.
func TestDevicesAsVolumes(t *testing.T) {
	w := newWorld(t)
	dev := filepath.Join(w.dir, "dev")
	bus := filepath.Join(w.dir, "bus")
	for _, err := range []error{os.Mkdir(dev, 0o755), os.Mkdir(bus, 0o755),
		unix.Mknod(filepath.Join(dev, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(filepath.Join(dev, "loop-control"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 237)))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sb, sbc := w.sandbox("dev", func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	for name, mounts := range map[string][]*cri.Mount{
		"all":       {{ContainerPath: "/dev", HostPath: dev}},
		"unclean":   {{ContainerPath: "/dev/.", HostPath: dev}},
		"directory": {{ContainerPath: "/dev/net", HostPath: bus}},
		"device":    {{ContainerPath: "/dev/loop-control", HostPath: "/dev/loop-control"}},
	} {
		w.run(sb, sbc, name, shell("sleep 1000"), func(c *cri.ContainerConfig) {
			c.Linux.SecurityContext.Privileged, c.Mounts = true, mounts
		})
	}
	for dir, want := range map[string]int{dev: 2, bus: 0} {
		if list, err := os.ReadDir(dir); err != nil || len(list) != want {
			t.Errorf("%s has %v, %v", dir, list, err)
		}
	}
}

// A mount that cannot propagate as requested is rejected, as in containerd: otherwise a pod would
// wait for mounts that never appear, without an error.
func TestMountPropagationRefused(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "a b") // mountinfo writes it as a\040b
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("x", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := os.Mkdir(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	sb, sbc := w.sandbox("prop", func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	n := 0
	for _, c := range []struct {
		set         []uintptr // how the host's mount is made
		path        string
		propagation cri.MountPropagation
		want        string
	}{
		{[]uintptr{unix.MS_PRIVATE}, dir, cri.MountPropagation_PROPAGATION_PRIVATE, ""},
		{[]uintptr{unix.MS_PRIVATE}, dir, cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			"is not a shared or slave mount"},
		{[]uintptr{unix.MS_PRIVATE}, dir + "/below", cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			"is not a shared or slave mount"},
		{[]uintptr{unix.MS_PRIVATE}, dir + "/made", cri.MountPropagation_PROPAGATION_BIDIRECTIONAL,
			"is not a shared mount"},
		{[]uintptr{unix.MS_UNBINDABLE}, dir, cri.MountPropagation_PROPAGATION_BIDIRECTIONAL, "is not a shared mount"},
		{[]uintptr{unix.MS_SHARED}, dir, cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, ""},
		{[]uintptr{unix.MS_SHARED}, dir + "/below", cri.MountPropagation_PROPAGATION_BIDIRECTIONAL, ""},
	} {
		for _, flag := range c.set {
			if err := unix.Mount("", dir, "", flag, ""); err != nil {
				t.Fatal(err)
			}
		}
		n++
		cfg := containerConfig(sbc, fmt.Sprintf("c%d", n), shell("true"),
			securityContext(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }),
			func(cc *cri.ContainerConfig) {
				cc.Mounts = []*cri.Mount{{ContainerPath: "/m", HostPath: c.path, Propagation: c.propagation}}
			})
		_, err := w.r.CreateContainer(t.Context(),
			&cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg, SandboxConfig: sbc})
		if c.want == "" && err != nil || c.want != "" &&
			(status.Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), fmt.Sprintf("path %q is mounted on", c.path)) ||
				!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v %s %s: %v", c.set, c.path, c.propagation, err)
		}
	}
	const info = "27 1 254:0 / / rw shared:5 - ext4 /dev/vda rw\n30 27 0:3 / /a rw master:1 propagate_from:2 - tmpfs shared:9 rw\n31 27 0:3 / /b rw - tmpfs shared:1 rw\nshort\n"
	for id, want := range map[uint64]string{27: "/ true false", 30: "/a false true", 31: "/b false false",
		3: " false false"} {
		point, shared, slave := propagationOf([]byte(info), id)
		if got := fmt.Sprint(point, " ", shared, slave); got != want {
			t.Errorf("mount %d: %q, want %q", id, got, want)
		}
	}
}

// A privileged container starts in a sandbox created before the pod had one if the request declares that the pod has
// one now (kubectl debug --profile=sysadmin), and is rejected otherwise.
func TestPrivilegedLater(t *testing.T) {
	w := newWorld(t)
	sb, made := w.sandbox("later")
	now := proto.Clone(made).(*cri.PodSandboxConfig)
	now.Linux.SecurityContext.Privileged = true
	privileged := securityContext(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true })
	if got := w.output(sb, now, "debugger",
		"grep CapEff /proc/self/status; test -w /proc/sys/kernel/domainname && echo writable",
		privileged); strings.Contains(got, "CapEff:\t00000000") || !strings.Contains(got, "writable") {
		t.Errorf("it is not privileged: %q", got)
	}
	for what, config := range map[string]*cri.PodSandboxConfig{"the request says no": made, "it says nothing": nil} {
		_, err := w.r.CreateContainer(t.Context(),
			&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: config,
				Config: containerConfig(made, "no", privileged)})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStartErrors(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("errors")
	for name, c := range map[string]struct {
		change func(*cri.ContainerConfig)
		want   string
	}{
		"path": {func(c *cri.ContainerConfig) { c.Command = []string{"nosuch"} },
			`exec: "nosuch": executable file not found in $PATH`},
		"slash": {func(c *cri.ContainerConfig) { c.Command = []string{"/bin/nosuch"} },
			`exec: "/bin/nosuch": stat /bin/nosuch: no such file or directory`},
		"dir": {func(c *cri.ContainerConfig) { c.Command = []string{"/etc"} }, `exec: "/etc": is a directory`},
		"noexec": {func(c *cri.ContainerConfig) { c.Command = []string{"/etc/noexec"} },
			`exec: "/etc/noexec": permission denied`},
		"user": {securityContext(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUsername = "ghost" }),
			"unable to find user ghost: no matching entries in passwd file"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			id := w.create(sb, sbc, name, c.change)
			_, err := w.r.StartContainer(context.Background(), &cri.StartContainerRequest{ContainerId: id})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			st := w.wait(id)
			if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 128 || st.Reason != "StartError" ||
				!strings.Contains(st.Message, c.want) {
				t.Errorf("status %+v", st)
			}
			if _, err := w.r.StartContainer(context.Background(),
				&cri.StartContainerRequest{ContainerId: id}); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("second start: %v", err)
			}
		})
	}
	t.Run("create", func(t *testing.T) {
		for what, change := range map[string]func(*cri.ContainerConfig){
			"an unknown capability": securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.Capabilities = &cri.Capability{AddCapabilities: []string{"FLY"}}
			}),
			"an unknown image": func(c *cri.ContainerConfig) { c.Image.Image = "nothere" },
			"a missing profile": securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost,
					LocalhostRef: "/nothere.json"}
			}),
			"privilege": securityContext(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }),
		} {
			_, err := w.r.CreateContainer(context.Background(),
				&cri.CreateContainerRequest{PodSandboxId: sb, SandboxConfig: sbc,
					Config: containerConfig(sbc, "refused", change)})
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.NotFound {
				t.Errorf("%s: %v", what, err)
			}
			if text := status.Convert(err).Message(); strings.Contains(text, "rpc error") {
				t.Errorf("%s: %s", what, text)
			}
		}
		if list, _ := w.r.ListContainers(context.Background(),
			&cri.ListContainersRequest{}); len(list.Containers) != 5 {
			t.Errorf("%d containers stay", len(list.Containers))
		}
	})
}
