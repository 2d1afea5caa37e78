package native

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSelinuxLabels(t *testing.T) {
	for _, tc := range []struct {
		o              *cri.SELinuxOption
		process, files string
	}{
		{nil, "", ""},
		{&cri.SELinuxOption{User: "u"}, "", ""},
		{&cri.SELinuxOption{Level: "s0:c1,c2"}, "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"},
		{&cri.SELinuxOption{User: "u", Role: "r", Type: "spc_t"}, "u:r:spc_t:s0", "system_u:object_r:container_file_t:s0"},
	} {
		if p, f := selinuxLabels(tc.o); p != tc.process || f != tc.files {
			t.Errorf("%v: %q, %q", tc.o, p, f)
		}
	}
}

// The container's own mounts have its label: image, image volume, /dev and the
// directory of cgroups. A bind mount has none to give.
func TestSelinuxMounts(t *testing.T) {
	pl := &containerPlan{
		id: "x", groups: &cgroups{tree: []hierarchy{{name: "cpu", mount: "/cg/cpu", controllers: []string{"cpu"}}}}, cgroup: "/c", rootDir: "/r", fileLabel: "u:r:t:s0:c1,c2",
		images: map[string]imageMount{"/img": {mounts: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/3:/4"}}}, staging: "/s"}},
		rootfs: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/1:/2", "upperdir=/u"}}},
		config: &cri.ContainerConfig{Command: []string{"true"}, Mounts: []*cri.Mount{{ContainerPath: "/img", Image: &cri.ImageSpec{Image: "i"}}}, Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{}}},
	}
	for want, label := range map[int]string{4: "u:r:t:s0:c1,c2", 0: ""} {
		pl.fileLabel = label
		p, err := pl.program()
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(encode(p.ops), []byte(`context="u:r:t:s0:c1,c2"`)); got != want {
			t.Errorf("label %q: %d mounts with it, want %d", label, got, want)
		}
	}
}

// A tree is labelled to its last file, and nothing outside of it.
func TestRelabel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("labels need root")
	}
	const label = "system_u:object_r:container_file_t:s0"
	dir := t.TempDir()
	volume, outside := filepath.Join(dir, "volume"), filepath.Join(dir, "outside")
	if err := os.MkdirAll(filepath.Join(volume, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{outside, filepath.Join(volume, "a", "b", "file")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(volume, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(volume, "up")); err != nil {
		t.Fatal(err)
	}
	if err := relabelTree(volume, label); err != nil {
		t.Fatal(err)
	}
	labelOf := func(path string) string {
		buf := make([]byte, 256)
		n, err := unix.Lgetxattr(path, "security.selinux", buf)
		if err != nil {
			return ""
		}
		return string(bytes.TrimRight(buf[:n], "\x00"))
	}
	for _, in := range []string{"", "a", "a/b", "a/b/file", "a/link", "up"} {
		if got := labelOf(filepath.Join(volume, in)); got != label {
			t.Errorf("%q has label %q", in, got)
		}
	}
	for _, out := range []string{outside, dir} {
		if got := labelOf(out); got == label {
			t.Errorf("%s outside of the volume was labelled", out)
		}
	}
	for _, host := range []string{"/", "/etc", "/usr/share/", "/var/lib"} {
		if relabelTree(host, label) == nil {
			t.Errorf("%s was relabelled", host)
		}
	}
	if err := relabelTree(filepath.Join(dir, "missing"), label); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}
