package monitor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/plan"
	"carob/internal/runtime/native/wire"
)

// TestFailures: the messages that users know from runc.
func TestFailures(t *testing.T) {
	p := &plan.Program{}
	p.Write("/proc/self/oom_score_adj", "-5")
	p.Mount("tmpfs", "tmpfs", "/dev", "", 0)
	p.Attach(0, "/proc/net", plan.ProcNever)
	p.Cwd("/nowhere")
	p.Lookup([]string{"sh"}, nil)
	p.Exec()
	for _, c := range []struct {
		report []byte
		want   string
		code   int32
	}{
		{reportOf('E', 0, unix.EACCES, 0, ""), `write "-5" to "/proc/self/oom_score_adj": permission denied`, 0},
		{reportOf('E', 1, unix.ENOENT, 0, ""), `error mounting "tmpfs" to rootfs at "/dev": no such file or directory`,
			0},
		{reportOf('E', 1, unix.ELOOP, 0, ""),
			`error mounting "tmpfs" to rootfs at "/dev": the image has a symbolic link there, which must be a directory`, 0},
		{reportOf('E', 2, unix.EPERM, 0, ""),
			`error mounting to rootfs at "/proc/net": it is inside /proc, or would replace it by something else`, 0},
		{reportOf('E', 3, unix.ENOENT, 0, ""),
			`chdir to cwd ("/nowhere") set in config.json failed: no such file or directory`, 0},
		{reportOf('E', 4, unix.ENOENT, 1, "sh"), `exec: "sh": executable file not found in $PATH`, 127},
		{reportOf('E', 4, unix.EACCES, 2, "/x"), `exec: "/x": permission denied`, 126},
		{reportOf('E', 5, unix.ENOEXEC, 3, "/bin/sh"), "exec /bin/sh: exec format error", 126},
		{reportOf('E', 99, unix.ENOEXEC, 0, ""), "container program ended without an exec", 0},
		{reportOf('F', 0, 0, 0, "root:x:0:0"), "the helper sent a file that was not requested", 0},
		{reportOf('L', 0, 0, 0, ""), "the helper sent a seccomp listener that was not requested", 0},
	} {
		for cut := range c.report { // a helper that was killed while it reported
			d := Session{Program: p}
			if n, err := d.take(c.report[:cut], io.Discard); n != 0 || err != nil {
				t.Fatalf("%d of %d bytes are %d, %v", cut, len(c.report), n, err)
			}
		}
		d := Session{Program: p}
		_, err := d.take(c.report, io.Discard)
		if err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
		if e, ok := errors.AsType[*plan.ExecError](err); ok != (c.code != 0) || ok && e.ExitCode() != c.code {
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

// TestSession: the helper sends two files and gets the rest of its program.
func TestSession(t *testing.T) {
	p := &plan.Program{}
	p.Chdir("/")
	p.RequestFiles(func(p *plan.Program, files [][]byte) (*plan.Identity, error) {
		if len(files[0]) == 0 {
			return nil, errors.New("no such user")
		}
		p.Lookup([]string{"sh"}, []string{"FILES=" + string(files[0]) + "," + string(files[1])})
		p.Exec()
		return &plan.Identity{UID: 1000, GID: 1001}, nil
	}, "/etc/passwd", "/etc/group")
	var answer bytes.Buffer
	d := Session{Program: p}
	reports := append(reportOf('F', 1, 0, 0, "passwd"), reportOf('F', 1, 0, 1, "group")...)
	if n, err := d.take(reports, &answer); n != len(reports) || err != nil {
		t.Fatal(n, err)
	}
	if want := (&plan.Identity{UID: 1000, GID: 1001}); !cmp.Equal(d.User, want) {
		t.Errorf("%+v", d.User)
	}
	rest := answer.Bytes()
	if n := int(binary.LittleEndian.Uint32(rest)); n != len(rest)-4 {
		t.Fatalf("length %d of %d", n, len(rest)-4)
	}
	if r, err := wire.Parse(rest[4:]); err != nil || r.Code != plan.OpLookup ||
		r.S[1] != "\x12\x00\x00\x00FILES=passwd,group\x00" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := d.take(reportOf('E', 3, unix.ENOENT, 3, "sh"), &answer); err == nil ||
		err.Error() != "exec sh: no such file or directory" {
		t.Errorf("a failure after the answer: %v", err)
	}
	d = Session{Program: p}
	p.Ops = p.Ops[:2]
	if _, err := d.take(append(reportOf('F', 1, 0, 0, ""), reportOf('F', 1, 0, 1, "")...), &answer); err == nil ||
		err.Error() != "no such user" {
		t.Errorf("an image that does not know the user: %v", err)
	}
}

// TestSessionGoesOn: a helper continues after its question. It gets the answer once it has sent its files, and failures
// before it reads the answer are reported with its own text.
func TestSessionGoesOn(t *testing.T) {
	p := samplePrograms(t)[0]
	request := slices.IndexFunc(p.Ops, func(m wire.Message) bool { return m.Code == plan.OpFiles })
	mask := slices.IndexFunc(p.Ops, func(m wire.Message) bool { return m.Code == plan.OpMask })
	last := p.Ops[len(p.Ops)-1]
	if request >= mask || mask >= len(p.Ops)-1 || last.Code != plan.OpFiles || last.S[0] != "" {
		t.Fatalf("it requests files at %d, masks at %d and waits with %+v at %d", request, mask, last, len(p.Ops)-1)
	}
	var answer bytes.Buffer
	launched := 0
	d := Session{Program: p, Launching: func(*plan.Identity) error { launched++; return nil }}
	for i, file := range []string{"root:x:0:0:root:/root:/bin/sh\n", ""} {
		if answer.Len() > 0 {
			t.Error("it is answered before it has sent all files")
		}
		if _, err := d.take(reportOf('F', request, 0, i, file), &answer); err != nil {
			t.Fatal(err)
		}
	}
	if rest := answer.Bytes(); len(rest) < 4 || int(binary.LittleEndian.Uint32(rest)) != len(rest)-4 || launched != 1 {
		t.Errorf("an answer of %d bytes, launched %d times", len(rest), launched)
	}
	if _, err := d.take(reportOf('F', request, 0, 0, "again"), &answer); err == nil {
		t.Error("it is answered twice")
	}
	_, err := d.take(reportOf('E', mask, unix.EACCES, 0, ""), &answer)
	if err == nil || !strings.Contains(err.Error(), "/proc/keys") {
		t.Errorf("a failure after the answer: %v", err)
	}
}

// samplePrograms use every operation except those at the end of an exec.
func samplePrograms(tb testing.TB) []*plan.Program {
	tb.Helper()
	groups := &cgroups.Hierarchies{Tree: []cgroups.Hierarchy{{Name: "cpu,cpuacct", Mount: "/cg/cpu",
		Controllers: []string{"cpu", "cpuacct"}}}}
	pl := &plan.Container{
		ID: "x", Groups: groups, Cgroup: "/c", RootDir: "/r", Filter: &plan.Filter{BPF: make([]byte, 16)},
		AppArmor: "p", SELinux: "l", Shm: "/shm", UserNS: "/u",
		Etc: map[string]string{"/etc/hosts": "/e"},
		Images: map[string]plan.ImageMount{"/img": {Mounts: []mount.Mount{{Type: "bind", Source: "/i"}}, Staging: "/s",
			SubPath: "a/b"}},
		RootFS: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/1:/2", "upperdir=/u", "uidmap=x"}}},
		Config: &cri.ContainerConfig{
			Command: []string{"sh", "-c", "true"}, Tty: true, WorkingDir: "/w/d",
			Mounts: []*cri.Mount{{HostPath: "/h", ContainerPath: "/a/b", Readonly: true},
				{ContainerPath: "/img", Image: &cri.ImageSpec{Image: "i"}}},
			Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
				NoNewPrivs: true, MaskedPaths: []string{"/proc/keys"}, ReadonlyPaths: []string{"/proc/sys"},
				ReadonlyRootfs: true, SupplementalGroups: []int64{5, 6},
			}},
		},
	}
	p, err := pl.Program()
	if err != nil {
		tb.Fatal(err)
	}
	shared := *pl
	shared.Late = true
	q, err := shared.Program()
	if err != nil {
		tb.Fatal(err)
	}
	gate := &plan.Program{}
	gate.Gate()
	user := plan.Identity{UID: 1, GID: 2, Groups: []uint32{2, 3}}
	return []*plan.Program{p, q, pl.ExecProgram([]string{"/bin/ls"}, true, 24, 80, user, true, nil),
		pl.ExecProgram([]string{"/bin/ls"}, false, 0, 0, user, true, []byte("u:x:1:2::/u:\n\x00")), gate}
}
