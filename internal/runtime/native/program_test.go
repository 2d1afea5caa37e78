package native

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	"carob/internal/runtime/native/cgroups"
)

func TestRecordsSurviveTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record{code: rapid.Uint32().Draw(t, "code"), flags: rapid.Uint32().Draw(t, "flags"), seq: rapid.Uint32().Draw(t, "seq")}
		for i := range r.n {
			r.n[i] = rapid.Int64().Draw(t, "n")
			r.s[i] = string(rapid.SliceOf(rapid.Byte()).Draw(t, "s"))
		}
		b := r.append(nil)
		if len(b)%8 != 0 || int(binary.LittleEndian.Uint32(b[4:])) != len(b) {
			t.Fatalf("size %d of %d", binary.LittleEndian.Uint32(b[4:]), len(b))
		}
		back, err := parseRecord(b)
		if err != nil || back != r {
			t.Fatalf("%+v came back as %+v, %v", r, back, err)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	r := record{code: replyDone, s: [4]string{"text"}}
	f.Add(r.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) { parseRecord(b) })
}

// TestFailures: the words users know from runc.
func TestFailures(t *testing.T) {
	p := &program{}
	p.write("/proc/self/oom_score_adj", "-5")
	p.mount("tmpfs", "tmpfs", "/dev", "", 0)
	p.attach(0, "/proc/net", procNever)
	p.cwd("/nowhere")
	p.lookup([]string{"sh"}, nil)
	p.exec()
	for _, c := range []struct {
		report []byte
		want   string
		code   int32
	}{
		{reportOf('E', 0, unix.EACCES, 0, ""), `write "-5" to "/proc/self/oom_score_adj": permission denied`, 0},
		{reportOf('E', 1, unix.ENOENT, 0, ""), `error mounting "tmpfs" to rootfs at "/dev": no such file or directory`, 0},
		{reportOf('E', 1, unix.ELOOP, 0, ""), `error mounting "tmpfs" to rootfs at "/dev": the image has a symbolic link there, which must be a directory`, 0},
		{reportOf('E', 2, unix.EPERM, 0, ""), `error mounting to rootfs at "/proc/net": it is inside /proc, or would replace it by something else`, 0},
		{reportOf('E', 3, unix.ENOENT, 0, ""), `chdir to cwd ("/nowhere") set in config.json failed: no such file or directory`, 0},
		{reportOf('E', 4, unix.ENOENT, 1, "sh"), `exec: "sh": executable file not found in $PATH`, 127},
		{reportOf('E', 4, unix.EACCES, 2, "/x"), `exec: "/x": permission denied`, 126},
		{reportOf('E', 5, unix.ENOEXEC, 3, "/bin/sh"), "exec /bin/sh: exec format error", 126},
		{reportOf('E', 99, unix.ENOEXEC, 0, ""), "container program ended without an exec", 0},
		{reportOf('F', 0, 0, 0, "root:x:0:0"), "the helper sent a file that nobody asked for", 0},
		{reportOf('L', 0, 0, 0, ""), "the helper has a listener for seccomp that nobody asked for", 0},
	} {
		for cut := range c.report { // a helper that was killed while it reported
			d := dialogue{program: p}
			if n, err := d.take(c.report[:cut], io.Discard); n != 0 || err != nil {
				t.Fatalf("%d of %d bytes are %d, %v", cut, len(c.report), n, err)
			}
		}
		d := dialogue{program: p}
		_, err := d.take(c.report, io.Discard)
		if err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if e, ok := errors.AsType[*execError](err); ok != (c.code != 0) || ok && e.exitCode() != c.code {
			t.Errorf("%v: exit code of %T", err, err)
		}
	}
}

func reportOf(kind byte, op int, errno unix.Errno, stage int, detail string) []byte {
	var b []byte
	for _, v := range []uint32{uint32(kind), uint32(op), uint32(errno), uint32(stage), uint32(len(detail))} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, detail...)
}

// TestDialogue: the helper sends two files and gets the rest of its program.
func TestDialogue(t *testing.T) {
	p := &program{}
	p.chdir("/")
	p.ask(func(p *program, files [][]byte) (*identity, error) {
		id, home, err := resolveUser(files[0], files[1], wantedUser{spec: "app", gid: -1})
		if err == nil {
			p.lookup([]string{"sh"}, withHome(nil, home))
			p.exec()
		}
		return id, err
	}, "/etc/passwd", "/etc/group")
	var answer bytes.Buffer
	d := dialogue{program: p}
	reports := append(reportOf('F', 1, 0, 0, "app:x:1000:1001::/home/app:"), reportOf('F', 1, 0, 1, "extra:x:2000:app\n")...)
	if n, err := d.take(reports, &answer); n != len(reports) || err != nil {
		t.Fatal(n, err)
	}
	if want := (&identity{UID: 1000, GID: 1001, Groups: []uint32{1001, 2000}}); !cmp.Equal(d.id, want) {
		t.Errorf("%+v", d.id)
	}
	rest := answer.Bytes()
	if n := int(binary.LittleEndian.Uint32(rest)); n != len(rest)-4 {
		t.Fatalf("length %d of %d", n, len(rest)-4)
	}
	if r, err := parseRecord(rest[4:]); err != nil || r.code != opLookup || r.s[1] != "\x0e\x00\x00\x00HOME=/home/app\x00" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := d.take(reportOf('E', 3, unix.ENOENT, 3, "sh"), &answer); err == nil || err.Error() != "exec sh: no such file or directory" {
		t.Errorf("a failure after the answer: %v", err)
	}
	d = dialogue{program: p}
	p.ops = p.ops[:2]
	if _, err := d.take(append(reportOf('F', 1, 0, 0, ""), reportOf('F', 1, 0, 1, "")...), &answer); err == nil || err.Error() != "unable to find user app: no matching entries in passwd file" {
		t.Errorf("an image that does not know the user: %v", err)
	}
}

// TestPlanKeepsItsOrder: what must never move in a container's program.
func TestPlanKeepsItsOrder(t *testing.T) {
	groups := &cgroups.Hierarchies{Tree: []cgroups.Hierarchy{{Name: "memory", Mount: "/cg/memory", Controllers: []string{"memory"}}}}
	for _, nnp := range []bool{false, true} {
		pl := &containerPlan{
			id: "x", groups: groups, cgroup: "/c", rootDir: "/r", filter: &filter{bpf: make([]byte, 8)},
			config: &cri.ContainerConfig{
				Command: []string{"sh"}, Tty: true,
				Mounts: []*cri.Mount{{HostPath: "/h", ContainerPath: "/a/b"}, {HostPath: "/g", ContainerPath: "/a"}},
				Linux:  &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NoNewPrivs: nnp, MaskedPaths: []string{"/proc/keys"}, ReadonlyRootfs: true}},
			},
		}
		p, err := pl.program()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.answer([][]byte{nil, nil}); err != nil {
			t.Fatal(err)
		}
		var order []string
		names := map[uint32]string{opUnshare: "unshare", opPropagate: "slave", opPivot: "pivot", opMask: "mask", opAsk: "user", opTTY: "tty", opCreds: "creds", opSeccomp: "seccomp", opNoNewPrivs: "nnp", opLookup: "lookup", opExec: "exec"}
		for _, o := range p.ops {
			switch n := names[o.code]; {
			case n != "":
				order = append(order, n)
			case o.code == opAttach && strings.HasPrefix(o.s[0], "/a"):
				order = append(order, o.s[0])
			}
		}
		want := "unshare slave /a /a/b pivot mask user tty seccomp creds lookup exec"
		if nnp {
			want = "unshare slave /a /a/b pivot mask user tty creds nnp lookup seccomp exec"
		}
		if got := strings.Join(order, " "); got != want {
			t.Errorf("nnp %v:\ngot  %s\nwant %s", nnp, got, want)
		}
		if o := p.ops[0]; o.code != opWrite || o.s[0] != "/cg/memory/c/tasks" {
			t.Errorf("the first operation is not the cgroup's: %+v", o)
		}
	}
}

// samplePrograms use every operation but those of an exec's end.
func samplePrograms(tb testing.TB) []*program {
	tb.Helper()
	groups := &cgroups.Hierarchies{Tree: []cgroups.Hierarchy{{Name: "cpu,cpuacct", Mount: "/cg/cpu", Controllers: []string{"cpu", "cpuacct"}}}}
	pl := &containerPlan{
		id: "x", groups: groups, cgroup: "/c", rootDir: "/r", filter: &filter{bpf: make([]byte, 16)}, apparmor: "p", selinux: "l", shm: "/shm", userns: "/u",
		etc:    map[string]string{"/etc/hosts": "/e"},
		images: map[string]imageMount{"/img": {mounts: []mount.Mount{{Type: "bind", Source: "/i"}}, staging: "/s", subPath: "a/b"}},
		rootfs: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/1:/2", "upperdir=/u", "uidmap=x"}}},
		config: &cri.ContainerConfig{
			Command: []string{"sh", "-c", "true"}, Tty: true, WorkingDir: "/w/d",
			Mounts: []*cri.Mount{{HostPath: "/h", ContainerPath: "/a/b", Readonly: true}, {ContainerPath: "/img", Image: &cri.ImageSpec{Image: "i"}}},
			Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
				NoNewPrivs: true, MaskedPaths: []string{"/proc/keys"}, ReadonlyPaths: []string{"/proc/sys"}, ReadonlyRootfs: true, SupplementalGroups: []int64{5, 6},
			}},
		},
	}
	p, err := pl.program()
	if err != nil {
		tb.Fatal(err)
	}
	shared := *pl
	shared.late = true
	q, err := shared.program()
	if err != nil {
		tb.Fatal(err)
	}
	gate := &program{}
	gate.gate()
	return []*program{p, q, pl.execProgram([]string{"/bin/ls"}, true, 24, 80, identity{UID: 1, GID: 2, Groups: []uint32{2, 3}}, true), gate}
}
