package native

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the status says of the user: the primary group, then the image's groups
// unless strict, then the supplementary ones, each once (L4.32).
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

// TestResolveUser: whose words count for what (CRI, and runc for the messages).
func TestResolveUser(t *testing.T) {
	const passwd = "# comment\nroot:x:0:0:root:/root:/bin/sh\nbroken:x:one:2\napp:x:1000:1001:app:/home/app:/bin/sh\n1000:x:5:6::/five:\nshort:x\nbig:x:4294967296:1\nbare:x:7:8" +
		"\n4294967296:x:0:0::/root:\n-1:x:0:0\n+1000:x:0:0\nwide:x:50:4294967296\nmember:x:60:61::/h\x00LD_PRELOAD=/x:"
	const group = "root:x:0:root\napp:x:1001:\nextra:x:2000:other,app\nnear:x:2001:apps\nagain:x:2000:app\nbad:x:x:apps\n4294967296:x:0:\nhuge:x:4294967296:member\n"
	const ids = ": ids are numbers from 0 to 2147483647"
	for _, c := range []struct {
		want   wantedUser
		id     identity
		home   string
		failed string
	}{
		{wantedUser{gid: -1}, identity{0, 0, []uint32{0}}, "/root", ""},
		{wantedUser{spec: "app", gid: -1}, identity{1000, 1001, []uint32{1001, 2000}}, "/home/app", ""},
		{wantedUser{spec: "1000", gid: -1}, identity{1000, 1001, []uint32{1001, 2000}}, "/home/app", ""}, // a number is a number
		{wantedUser{spec: "app", gid: -1, strict: true, extra: []int64{9, 1001}}, identity{1000, 1001, []uint32{1001, 9}}, "/home/app", ""},
		{wantedUser{spec: "app:extra", gid: -1}, identity{1000, 2000, []uint32{2000}}, "/home/app", ""},
		{wantedUser{spec: "app:77", gid: -1}, identity{1000, 77, []uint32{77, 2000}}, "/home/app", ""},
		{wantedUser{spec: "app", gid: 78}, identity{1000, 78, []uint32{78, 2000}}, "/home/app", ""},
		{wantedUser{spec: "4711", gid: -1}, identity{4711, 0, []uint32{0}}, "", ""},
		{wantedUser{spec: "bare", gid: -1}, identity{7, 8, []uint32{8}}, "", ""},
		{wantedUser{spec: ":extra", gid: -1}, identity{0, 2000, []uint32{2000, 0}}, "/root", ""},
		{wantedUser{spec: "nobody", gid: -1}, identity{}, "", "unable to find user nobody: no matching entries in passwd file"},
		{wantedUser{spec: "broken", gid: -1}, identity{}, "", `the image's passwd file gives user broken the ids "one" and "2"` + ids},
		{wantedUser{spec: "big", gid: -1}, identity{}, "", `the image's passwd file gives user big the ids "4294967296" and "1"` + ids},
		{wantedUser{spec: "2147483648", gid: -1}, identity{}, "", "user or group 2147483648" + ids},
		{wantedUser{spec: "4294967296", gid: -1}, identity{}, "", "user or group 4294967296" + ids}, // a name of passwd's that is root
		{wantedUser{spec: "+1000", gid: -1}, identity{}, "", "user or group +1000" + ids},
		{wantedUser{spec: "-1", gid: -1}, identity{}, "", "user or group -1" + ids},
		{wantedUser{spec: "app:4294967296", gid: -1}, identity{}, "", "user or group 4294967296" + ids}, // a name of group's that is root's
		{wantedUser{spec: "app", gid: 1 << 32}, identity{}, "", "group 4294967296" + ids},
		{wantedUser{spec: "app", gid: -1, extra: []int64{1 << 32}}, identity{}, "", "group 4294967296" + ids},
		{wantedUser{spec: "app", gid: -1, extra: []int64{-1}}, identity{}, "", "group -1" + ids},
		{wantedUser{spec: "50", gid: -1}, identity{}, "", `the image's passwd file gives user 50 the ids "50" and "4294967296"` + ids},
		{wantedUser{spec: "member", gid: -1}, identity{}, "", `the image's group file gives group huge the id "4294967296"` + ids},
		{wantedUser{spec: "member", gid: -1, strict: true}, identity{60, 61, []uint32{61}}, "", ""},
		{wantedUser{spec: "member:huge", gid: -1, strict: true}, identity{}, "", `the image's group file gives group huge the id "4294967296"` + ids},
		{wantedUser{spec: "app:none", gid: -1}, identity{}, "", "unable to find group none: no matching entries in group file"},
	} {
		id, home, err := resolveUser([]byte(passwd), []byte(group), c.want)
		if c.failed != "" {
			if err == nil || err.Error() != c.failed {
				t.Errorf("%+v: %v, want %q", c.want, err, c.failed)
			}
			continue
		}
		if err != nil || !cmp.Equal(*id, c.id) || home != c.home {
			t.Errorf("%+v: %+v %q %v, want %+v %q", c.want, id, home, err, c.id, c.home)
		}
	}
}

// What an image's files say never makes a user root who was not asked for.
func FuzzResolveUser(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:", "app:x:1001:app,root", "app:app")
	f.Add("app:x:+0:-0", "app:x:0x0:app", "app")
	f.Add("4294967296:x:0:0", "4294967296:x:0:", "4294967296:4294967296")
	f.Add("app:x:4294967296:4294967296::/h\x00A=b", "huge:x:4294967296:app", "app:huge")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		id, home, err := resolveUser([]byte(passwd), []byte(group), wantedUser{spec: spec, gid: -1})
		if err != nil {
			return
		}
		for _, n := range append([]uint32{id.UID}, id.Groups...) {
			if n > math.MaxInt32 {
				t.Fatalf("%q has the id %d", spec, n)
			}
		}
		if strings.Contains(home, "\x00") {
			t.Fatalf("the home %q is two words for C", home)
		}
		if len(id.Groups) == 0 || id.Groups[0] != id.GID {
			t.Fatalf("the primary group %d is not the first of %v", id.GID, id.Groups)
		}
		if name, _, _ := strings.Cut(spec, ":"); id.UID == 0 && strings.Trim(name, "0") != "" && (isNumber(name) || !strings.Contains("\n"+passwd, "\n"+name+":")) {
			t.Fatalf("%q is root", spec)
		}
	})
}

// An image whose user is a number that the kernel can't hold, and whose passwd file has it as the
// name of root, does not run: not as root, not at all. Nor does anything else that is no id.
func TestUsersThatAreNoIDs(t *testing.T) {
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
		resp, err := w.r.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg, SandboxConfig: sbc})
		if err == nil {
			_, err = w.r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: resp.ContainerId})
		}
		if err == nil || !strings.Contains(err.Error(), errIDRange.Error()) {
			t.Errorf("image user %q, %v: %v", c.image, cfg.Linux.SecurityContext, err)
		}
		if b, _ := os.ReadFile(filepath.Join(sbc.LogDirectory, name+".log")); len(b) > 0 {
			t.Errorf("image user %q ran: %s", c.image, b)
		}
	}
}

// Users and groups are those of the container's files: also when hooks of devices run before its
// root is entered, and whatever links the image, or what runs in the container, puts there.
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
	sb, sbc := w.sandbox("users", func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_NODE })

	if got := w.output(sb, sbc, "hooks", "id -u; id -g", hooks, user("app")); got != "1000\n1001" {
		t.Errorf("a user of the image, with hooks: %q", got)
	}
	refused := func(name string, change ...func(*cri.ContainerConfig)) {
		t.Helper()
		// "daemon" is a user of every host, and of no image here.
		id := w.create(sb, sbc, name, append([]func(*cri.ContainerConfig){shell("id"), user("daemon")}, change...)...)
		_, err := w.r.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(), "unable to find user daemon: no matching entries in passwd file") {
			t.Errorf("%s: a user of the host: %v", name, err)
		}
	}
	refused("host-user")
	refused("host-user-hooks", hooks)
	host := fmt.Sprintf("/proc/%d", os.Getpid()) // a process with the host's root, as a container in the host's PID namespace sees it
	for _, link := range []string{host + "/root/etc/passwd", "../../../.." + host + "/cwd/" + strings.Repeat("../", 16) + "etc/passwd", "../../../../../../../../etc/passwd-"} {
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
	// An exec looks for its home again, in what has run since.
	id := w.run(sb, sbc, "exec", shell("sleep 1000"), hostPID, securityContext(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1} }))
	if x, err := w.exec(id, "sh", "-c", "echo $HOME"); err != nil || string(x.Stdout) != "/\n" {
		t.Errorf("the home of the host's user 1 is seen: %q, %v", x.GetStdout(), err)
	}
}
