package plan

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestResolveUser: the precedence of CRI's fields and the image's files (CRI, and runc for the
// messages).
func TestResolveUser(t *testing.T) {
	const passwd = "# comment\nroot:x:0:0:root:/root:/bin/sh\nbroken:x:one:2\napp:x:1000:1001:app:/home/app:/bin/sh\n1000:x:5:6::/five:\nshort:x\nbig:x:4294967296:1\nbare:x:7:8" +
		"\n4294967296:x:0:0::/root:\n-1:x:0:0\n+1000:x:0:0\nwide:x:50:4294967296\nmember:x:60:61::/h\x00LD_PRELOAD=/x:"
	const group = "root:x:0:root\napp:x:1001:\nextra:x:2000:other,app\nnear:x:2001:apps\nagain:x:2000:app\nbad:x:x:apps\n4294967296:x:0:\nhuge:x:4294967296:member\n"
	const ids = ": ids are numbers from 0 to 2147483647"
	for _, c := range []struct {
		want   wantedUser
		id     Identity
		home   string
		failed string
	}{
		{wantedUser{GID: -1}, Identity{0, 0, []uint32{0}}, "/root", ""},
		{wantedUser{Spec: "app", GID: -1}, Identity{1000, 1001, []uint32{1001, 2000}}, "/home/app", ""},
		// a number is a number
		{wantedUser{Spec: "1000", GID: -1}, Identity{1000, 1001, []uint32{1001, 2000}}, "/home/app", ""},
		{wantedUser{Spec: "app", GID: -1, strict: true, extra: []int64{9, 1001}},
			Identity{1000, 1001, []uint32{1001, 9}}, "/home/app", ""},
		{wantedUser{Spec: "app:extra", GID: -1}, Identity{1000, 2000, []uint32{2000}}, "/home/app", ""},
		{wantedUser{Spec: "app:77", GID: -1}, Identity{1000, 77, []uint32{77, 2000}}, "/home/app", ""},
		{wantedUser{Spec: "app", GID: 78}, Identity{1000, 78, []uint32{78, 2000}}, "/home/app", ""},
		{wantedUser{Spec: "4711", GID: -1}, Identity{4711, 0, []uint32{0}}, "", ""},
		{wantedUser{Spec: "bare", GID: -1}, Identity{7, 8, []uint32{8}}, "", ""},
		{wantedUser{Spec: ":extra", GID: -1}, Identity{0, 2000, []uint32{2000, 0}}, "/root", ""},
		{wantedUser{Spec: "nobody", GID: -1}, Identity{}, "",
			"unable to find user nobody: no matching entries in passwd file"},
		{wantedUser{Spec: "broken", GID: -1}, Identity{}, "",
			`the image's passwd file gives user broken the ids "one" and "2"` + ids},
		{wantedUser{Spec: "big", GID: -1}, Identity{}, "",
			`the image's passwd file gives user big the ids "4294967296" and "1"` + ids},
		{wantedUser{Spec: "2147483648", GID: -1}, Identity{}, "", "user or group 2147483648" + ids},
		// a name of passwd's that is root
		{wantedUser{Spec: "4294967296", GID: -1}, Identity{}, "", "user or group 4294967296" + ids},
		{wantedUser{Spec: "+1000", GID: -1}, Identity{}, "", "user or group +1000" + ids},
		{wantedUser{Spec: "-1", GID: -1}, Identity{}, "", "user or group -1" + ids},
		// a name of group's that is root's
		{wantedUser{Spec: "app:4294967296", GID: -1}, Identity{}, "", "user or group 4294967296" + ids},
		{wantedUser{Spec: "app", GID: 1 << 32}, Identity{}, "", "group 4294967296" + ids},
		{wantedUser{Spec: "app", GID: -1, extra: []int64{1 << 32}}, Identity{}, "", "group 4294967296" + ids},
		{wantedUser{Spec: "app", GID: -1, extra: []int64{-1}}, Identity{}, "", "group -1" + ids},
		{wantedUser{Spec: "50", GID: -1}, Identity{}, "",
			`the image's passwd file gives user 50 the ids "50" and "4294967296"` + ids},
		{wantedUser{Spec: "member", GID: -1}, Identity{}, "",
			`the image's group file gives group huge the id "4294967296"` + ids},
		{wantedUser{Spec: "member", GID: -1, strict: true}, Identity{60, 61, []uint32{61}}, "", ""},
		{wantedUser{Spec: "member:huge", GID: -1, strict: true}, Identity{}, "",
			`the image's group file gives group huge the id "4294967296"` + ids},
		{wantedUser{Spec: "app:none", GID: -1}, Identity{}, "",
			"unable to find group none: no matching entries in group file"},
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

// Of a file that is too large, the helper sends the beginning, maybe with half a line: half a number is no ID, and the
// error says what was read.
func TestUserOfLargeFile(t *testing.T) {
	const half = "app:x:1000:10" // of app:x:1000:1001::/home/app:
	filler := strings.Repeat("#", MaxFile-len("\n"+half))
	for _, c := range []struct{ passwd, group, spec, failed string }{
		{filler + "\n" + half, "", "app",
			"unable to find user app: no matching entries in the first 4 MiB of the passwd file"},
		{"", filler + "\n" + half, "0:app",
			"unable to find group app: no matching entries in the first 4 MiB of the group file"},
		{filler[1:] + "\n" + half, "", "app", ""}, // a whole file
		{"app:x:1000:10\n" + filler, "", "app", ""},
		{strings.Repeat("#", MaxFile), "", "1000", ""},
	} {
		id, _, err := resolveUser([]byte(c.passwd), []byte(c.group), wantedUser{Spec: c.spec, GID: -1})
		switch {
		case c.failed != "" && (err == nil || err.Error() != c.failed):
			t.Errorf("%s: %v, want %q", c.spec, err, c.failed)
		case c.failed == "" && (err != nil || id.UID != 1000):
			t.Errorf("%s: %v %v, want user 1000", c.spec, id, err)
		}
	}
}

// The image's files never make a user root who did not request it.
func FuzzResolveUser(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:", "app:x:1001:app,root", "app:app")
	f.Add("app:x:+0:-0", "app:x:0x0:app", "app")
	f.Add("4294967296:x:0:0", "4294967296:x:0:", "4294967296:4294967296")
	f.Add("app:x:4294967296:4294967296::/h\x00A=b", "huge:x:4294967296:app", "app:huge")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		id, home, err := resolveUser([]byte(passwd), []byte(group), wantedUser{Spec: spec, GID: -1})
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
		if name, _, _ := strings.Cut(spec, ":"); id.UID == 0 && strings.Trim(name, "0") != "" &&
			(isNumber(name) || !strings.Contains("\n"+passwd, "\n"+name+":")) {
			t.Fatalf("%q is root", spec)
		}
	})
}
