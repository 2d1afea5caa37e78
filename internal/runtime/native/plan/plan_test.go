package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
)

// TestPlanKeepsItsOrder: operations whose order in a container's program must never change.
func TestPlanKeepsItsOrder(t *testing.T) {
	groups := &cgroups.Hierarchies{Tree: []cgroups.Hierarchy{{Name: "memory", Mount: "/cg/memory",
		Controllers: []string{"memory"}}}}
	for _, nnp := range []bool{false, true} {
		pl := &Container{
			ID: "x", Groups: groups, Cgroup: "/c", RootDir: "/r", Filter: &Filter{BPF: make([]byte, 8)},
			Config: &cri.ContainerConfig{
				Command: []string{"sh"}, Tty: true,
				Mounts: []*cri.Mount{{HostPath: "/h", ContainerPath: "/a/b"}, {HostPath: "/g", ContainerPath: "/a"}},
				Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NoNewPrivs: nnp,
					MaskedPaths: []string{"/proc/keys"}, ReadonlyRootfs: true}},
			},
		}
		p, err := pl.Program()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.Answer([][]byte{nil, nil}); err != nil {
			t.Fatal(err)
		}
		var order []string
		names := map[uint32]string{OpUnshare: "unshare", OpPropagate: "slave", OpPivot: "pivot", OpMask: "mask",
			OpFiles: "user", OpTTY: "tty", OpCreds: "creds", OpSeccomp: "seccomp", OpNoNewPrivs: "nnp",
			OpLookup: "lookup", OpExec: "exec"}
		for _, o := range p.Ops {
			switch n := names[o.Code]; {
			case o.Code == OpFiles && o.S[0] == "":
				order = append(order, "answer")
			case n != "":
				order = append(order, n)
			case o.Code == OpAttach && strings.HasPrefix(o.S[0], "/a"):
				order = append(order, o.S[0])
			}
		}
		want := "unshare slave /a /a/b pivot user mask answer tty seccomp creds lookup exec"
		if nnp {
			want = "unshare slave /a /a/b pivot user mask answer tty creds nnp lookup seccomp exec"
		}
		if got := strings.Join(order, " "); got != want {
			t.Errorf("nnp %v:\ngot  %s\nwant %s", nnp, got, want)
		}
		if o := p.Ops[0]; o.Code != OpWrite || o.S[0] != "/cg/memory/c/tasks" {
			t.Errorf("the first operation is not the cgroup's: %+v", o)
		}
	}
}

// TestPoints: the places of mounts in the root, but for those within other mounts, and those that only the helper
// can tell to be files.
func TestPoints(t *testing.T) {
	image := &cri.ImageSpec{Image: "i"}
	pl := &Container{Etc: map[string]string{"/etc/hosts": "/s/hosts", "/etc/hostname": "/s/hostname"},
		Config: &cri.ContainerConfig{Mounts: []*cri.Mount{
			{HostPath: "/file", ContainerPath: "/data/../config"}, {HostPath: "/dir", ContainerPath: "data/"},
			{HostPath: "/dir", ContainerPath: "/data/below"}, {HostPath: "/dir", ContainerPath: "/database"},
			{HostPath: "/file", ContainerPath: "/dev/termination-log"}, {HostPath: "/file", ContainerPath: "/etc/hosts"},
			{Image: image, ContainerPath: "/whole"}, {Image: image, ContainerPath: "/part", ImageSubPath: "x"},
		}}}
	want := []string{"/config", "/data/", "/database/", "/dev/", "/etc/hostname", "/etc/hosts", "/proc/", "/sys/",
		"/whole/"}
	if got := pl.Points(func(p string) bool { return p == "/file" }); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMountedRoot: a root that is mounted already is received where the helper would have mounted it.
func TestMountedRoot(t *testing.T) {
	for _, mounted := range []bool{false, true} {
		pl := &Container{RootDir: "/root", Mounted: mounted,
			RootFS: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/a", "upperdir=/u"}}}}
		p := &Program{}
		if err := pl.mountRoot(p, noUserNS); err != nil {
			t.Fatal(err)
		}
		var codes []uint32
		for _, op := range p.Ops {
			codes = append(codes, op.Code)
		}
		want := []uint32{OpMountHost, OpRoot}
		if mounted {
			want = []uint32{OpTake, OpAttachHost, OpRoot}
		}
		if !slices.Equal(codes, want) {
			t.Errorf("mounted %v: operations %v, want %v", mounted, codes, want)
		}
	}
}

func TestShortOverlay(t *testing.T) {
	dir, data := shortenOverlay(
		"index=off,lowerdir=/var/lib/carob/s/1/fs:/var/lib/carob/s/2/fs,upperdir=/var/lib/carob/rw/x/fs,workdir=/var/lib/carob/rw/x/work")
	if dir != "/var/lib/carob" || data != "index=off,lowerdir=s/1/fs:s/2/fs,upperdir=rw/x/fs,workdir=rw/x/work" {
		t.Errorf("%q, %q", dir, data)
	}
	if dir, data := shortenOverlay("lowerdir=/a:/b"); dir != "/" || data != "lowerdir=/a:/b" {
		t.Errorf("%q, %q", dir, data)
	}
}

func TestCapabilities(t *testing.T) {
	const all = uint64(allCapabilities)
	for _, c := range []struct {
		caps       *cri.Capability
		privileged bool
		host, want uint64
	}{
		{nil, false, all, 0xa80425fb},
		{nil, true, all, all},
		{nil, true, all &^ (1 << unix.CAP_SYS_RAWIO), all &^ (1 << unix.CAP_SYS_RAWIO)},
		{&cri.Capability{AddCapabilities: []string{"SYS_TIME"}}, false, all, 0xa80425fb | 1<<unix.CAP_SYS_TIME},
		{&cri.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"net_raw"}}, false, all,
			all &^ (1 << unix.CAP_NET_RAW)},
		{&cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"CAP_CHOWN"}}, false, all,
			1 << unix.CAP_CHOWN},
	} {
		got, err := CapabilitySets(c.caps, c.privileged, c.host)
		if err != nil || got.Bounding != c.want || got.Effective != c.want || got.Ambient != 0 {
			t.Errorf("%v: %#x, want %#x, %v", c.caps, got.Bounding, c.want, err)
		}
	}
}

// FuzzMountOptions parses the options of mounts as the image store returns them.
func FuzzMountOptions(f *testing.F) {
	for _, text := range []string{"ro,nosuid,lowerdir=/a:/b,upperdir=/c,workdir=/d", "loop,X-containerd.x",
		"lowerdir="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if o, err := parseOptions(strings.Split(text, ",")); err == nil && o.recursive && !o.bind {
			t.Errorf("%q: %+v", text, o)
		}
		_, _ = shortenOverlay(text)
	})
}
