package native

import (
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
	const passwd = "# comment\nroot:x:0:0:root:/root:/bin/sh\nbroken:x:one:2\napp:x:1000:1001:app:/home/app:/bin/sh\n1000:x:5:6::/five:\nshort:x\nbig:x:4294967296:1\nbare:x:7:8"
	const group = "root:x:0:root\napp:x:1001:\nextra:x:2000:other,app\nnear:x:2001:apps\nagain:x:2000:app\nbad:x:x:app\n"
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
		{wantedUser{spec: "broken", gid: -1}, identity{}, "", "unable to find user broken: no matching entries in passwd file"},
		{wantedUser{spec: "big", gid: -1}, identity{}, "", "unable to find user big: no matching entries in passwd file"},
		{wantedUser{spec: "2147483648", gid: -1}, identity{}, "", "unable to find user 2147483648: no matching entries in passwd file"},
		{wantedUser{spec: "-1", gid: -1}, identity{}, "", "unable to find user -1: no matching entries in passwd file"},
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
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		id, _, err := resolveUser([]byte(passwd), []byte(group), wantedUser{spec: spec, gid: -1})
		if err != nil {
			return
		}
		if len(id.Groups) == 0 || id.Groups[0] != id.GID {
			t.Fatalf("the primary group %d is not the first of %v", id.GID, id.Groups)
		}
		if name, _, _ := strings.Cut(spec, ":"); id.UID == 0 && strings.Trim(name, "0") != "" && !strings.Contains("\n"+passwd, "\n"+name+":") {
			t.Fatalf("%q is root", spec)
		}
	})
}
