package native

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
)

// The user in the status: the primary group, then the image's groups unless the policy is strict,
// then the supplementary ones, each once (L4.32).
func TestStatusOfUser(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("users")
	for name, c := range map[string]struct {
		change func(*cri.LinuxContainerSecurityContext)
		gid    int64
		groups []int64
	}{
		"image": {func(s *cri.LinuxContainerSecurityContext) {}, 1001, []int64{1001, 2000}},
		"merged": {func(s *cri.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{60000, 5, 2000} },
			1001, []int64{1001, 2000, 60000, 5}},
		"strict": {func(s *cri.LinuxContainerSecurityContext) {
			s.SupplementalGroups, s.SupplementalGroupsPolicy = []int64{60000}, cri.SupplementalGroupsPolicy_Strict
		}, 1001, []int64{1001, 60000}},
		"primary-twice": {func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsGroup, s.SupplementalGroups = &cri.Int64Value{Value: 77}, []int64{9, 77, 8}
		}, 77, []int64{77, 2000, 9, 8}},
		"primary-of-image": {func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsGroup, s.SupplementalGroups = &cri.Int64Value{Value: 2000}, []int64{9}
		}, 2000, []int64{2000, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{tb: t, dir: w.dir, cfg: w.cfg, r: w.r}
			id := w.run(sb, sbc, name, securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1000}
				c.change(s)
			}))
			u := w.wait(id).GetUser().GetLinux()
			if u.GetUid() != 1000 || u.GetGid() != c.gid || !slices.Equal(u.GetSupplementalGroups(), c.groups) {
				t.Errorf("got %v, want gid %d, groups %v", u, c.gid, c.groups)
			}
		})
	}
}

// An image does not run if its user is a number that is too large for the kernel and also a name of
// root in its passwd file: not as root, not at all. The same holds for anything else that is not a
// valid ID.
func TestInvalidUserIDs(t *testing.T) {
	w := newWorld(t)
	images := w.cfg.Images.(*dirImages)
	for name, text := range map[string]string{
		"etc/passwd": "4294967296:x:0:0:root:/root:/bin/sh\n-1:x:0:0::/:\nover:x:4294967296:0::/:\nof:x:1000:4294967296::/:\n",
		"etc/group":  "4294967296:x:0:\nover:x:4294967296:\n",
	} {
		if err := os.WriteFile(filepath.Join(images.root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sb, sbc := w.sandbox("ids")
	n := 0
	for _, c := range []struct {
		image  string
		change func(*cri.LinuxContainerSecurityContext)
	}{
		{"4294967296", func(*cri.LinuxContainerSecurityContext) {}},
		{"4294967296:4294967296", func(*cri.LinuxContainerSecurityContext) {}},
		{"-1", func(*cri.LinuxContainerSecurityContext) {}},
		{"over", func(*cri.LinuxContainerSecurityContext) {}},
		{"of", func(*cri.LinuxContainerSecurityContext) {}},
		{"1000:4294967296", func(*cri.LinuxContainerSecurityContext) {}},
		{"1000:over", func(*cri.LinuxContainerSecurityContext) {}},
		{"1000", func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1 << 32} }},
		{"1000", func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: -1} }},
		{"1000", func(s *cri.LinuxContainerSecurityContext) { s.RunAsUsername = "4294967296" }},
		{"1000", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 1}, &cri.Int64Value{Value: 1 << 32}
		}},
		{"1000", func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 1}, &cri.Int64Value{Value: -2}
		}},
		{"1000", func(s *cri.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{1 << 32} }},
		{"1000", func(s *cri.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{-1} }},
	} {
		images.image.User = c.image
		n++
		name := fmt.Sprintf("c%d", n)
		cfg := containerConfig(sbc, name, shell("id; echo ran"), securityContext(c.change))
		resp, err := w.r.CreateContainer(t.Context(),
			&cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg, SandboxConfig: sbc})
		if err == nil {
			_, err = w.r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: resp.ContainerId})
		}
		if err == nil || !strings.Contains(err.Error(), plan.ErrIDRange.Error()) {
			t.Errorf("image user %q, %v: %v", c.image, cfg.Linux.SecurityContext, err)
		}
		if b, _ := os.ReadFile(filepath.Join(sbc.LogDirectory, name+".log")); len(b) > 0 {
			t.Errorf("image user %q ran: %s", c.image, b)
		}
	}
}

// Users and groups come from the container's files, also when hooks of devices run before its root
// is entered, and whatever links the image or a process in the container creates.
func TestUsersAreTheContainers(t *testing.T) {
	w := newWorld(t)
	w.cfg.CDIDirs = []string{t.TempDir()}
	w.r.cfg.CDIDirs = w.cfg.CDIDirs
	spec := `{"cdiVersion":"0.7.0","kind":"vendor.com/gpu","devices":[{"name":"0","containerEdits":{"hooks":[
		{"hookName":"createRuntime","path":"/bin/true"},{"hookName":"createContainer","path":"/bin/true"}]}}]}`
	if err := os.WriteFile(filepath.Join(w.r.cfg.CDIDirs[0], "vendor.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	hooks := func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.com/gpu=0"}} }
	user := func(name string) func(*cri.ContainerConfig) {
		return securityContext(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUsername = name })
	}
	hostPID := func(c *cri.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_NODE
	}
	etc := filepath.Join(w.cfg.Images.(*dirImages).root, "etc")
	sb, sbc := w.sandbox("users",
		func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_NODE })

	if got := w.output(sb, sbc, "hooks", "id -u; id -g", hooks, user("app")); got != "1000\n1001" {
		t.Errorf("a user of the image, with hooks: %q", got)
	}
	refused := func(name string, change ...func(*cri.ContainerConfig)) {
		t.Helper()
		// "daemon" is a user of every host, and of no image here.
		id := w.create(sb, sbc, name, append([]func(*cri.ContainerConfig){shell("id"), user("daemon")}, change...)...)
		_, err := w.r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(),
			"unable to find user daemon: no matching entries in passwd file") {
			t.Errorf("%s: a user of the host: %v", name, err)
		}
	}
	refused("host-user")
	refused("host-user-hooks", hooks)
	// a process with the host's root directory, as seen by a container in the host's PID namespace
	host := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, link := range []string{host + "/root/etc/passwd",
		"../../../.." + host + "/cwd/" + strings.Repeat("../", 16) + "etc/passwd",
		"../../../../../../../../etc/passwd-"} {
		if err := os.Remove(filepath.Join(etc, "passwd")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link, filepath.Join(etc, "passwd")); err != nil {
			t.Fatal(err)
		}
		name := strings.NewReplacer("/", "_", ".", "-").Replace(link)
		refused(name, hostPID)
		refused(name+"-hooks", hostPID, hooks)
	}
	// An exec looks up its home directory again, in the container's current files.
	id := w.run(sb, sbc, "exec", shell("sleep 1000"), hostPID,
		securityContext(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1} }))
	if x, err := w.exec(id, "sh", "-c", "echo $HOME"); err != nil || string(x.Stdout) != "/\n" {
		t.Errorf("the home of the host's user 1 is seen: %q, %v", x.GetStdout(), err)
	}
}

// The home directory of a command is that of the passwd file at its start, although the program of a second command is
// planned for the file as the first one found it.
func TestHomeAfterPasswdChanged(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("home")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	for _, c := range []struct{ change, want string }{
		{"true", "/root\n"},
		{"true", "/root\n"},
		{"echo root:x:0:0:root:/else:/bin/sh >/etc/passwd", "/root\n"},
		{"rm /etc/passwd", "/else\n"},
		{"mkdir /etc/passwd", "/\n"},
		{"rm -r /etc/passwd; head -c 1000000 /dev/zero >/etc/passwd; echo root:x:0:0::/far: >>/etc/passwd", "/\n"},
		{"true", "/far\n"},
		{"true", "/far\n"},
	} {
		if x, err := w.exec(id, "sh", "-c", "echo $HOME;"+c.change); err != nil || string(x.Stdout) != c.want ||
			x.ExitCode != 0 {
			t.Errorf("before %q: %q, %v, want %q", c.change, x, err, c.want)
		}
	}
}

// Other execs in the container may find another passwd file each time: a command that was planned for the wrong one is
// not planned again, but reads the file.
func TestPasswdThatChangesAgainAndAgain(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("again")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			c.execs.Keep([]byte("root:x:0:0::/other:\n"))
		}
	})
	defer others.Wait()
	defer cancel()
	for range 100 {
		if x, err := w.exec(id, "sh", "-c", "echo $HOME"); err != nil || string(x.Stdout) != "/root\n" {
			t.Errorf("%q, %v", x.GetStdout(), err)
		}
	}
}

// What a command reports is the same whether its helper requests the passwd file, as the first one does, or not.
func TestPlannedExec(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("planned")
	id := w.run(sb, sbc, "c", shell("exec sleep 1000"))
	c, err := w.r.container(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"echo out; echo err >&2; exit 3", "kill -9 $$", "exec /etc/passwd",
		"yes | head -c 300000", "(exec sleep 613) & echo soon"} {
		var reports []string
		for _, first := range []bool{true, false} {
			if first {
				c.execs.Keep(nil)
			}
			x, err := w.exec(id, "sh", "-c", command)
			reports = append(reports, fmt.Sprintf("%v %v", x, err))
			if p, _ := c.execs.Planned(c.plan, nil, &plan.Identity{}, false); p == nil {
				t.Errorf("%q: the passwd file is not known", command)
			}
		}
		if reports[0] != reports[1] {
			t.Errorf("%q: %.300s; planned: %.300s", command, reports[0], reports[1])
		}
	}
	for _, command := range [][]string{{"no-such-program"}, {"/etc/passwd"}} {
		c.execs.Keep(nil)
		_, without := w.exec(id, command...)
		_, planned := w.exec(id, command...)
		if without == nil || planned == nil || without.Error() != planned.Error() {
			t.Errorf("%q: %v; planned: %v", command, without, planned)
		}
	}
	_, err = w.r.ExecSync(t.Context(),
		&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "exec sleep 612"}, Timeout: 1})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if x, err := w.exec(id, "sh", "-c", "ps | grep -c 'sleep 61[2]'"); err != nil || string(x.Stdout) != "0\n" {
		t.Errorf("after a timeout: %v, %v", x, err)
	}
}
