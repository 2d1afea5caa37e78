package native

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container whose level would be another mount option, another string for C or a line of its own is refused
// when it is created, whatever the host.
func TestSelinuxRefused(t *testing.T) {
	w := newWorld(t)
	sb, sbc := w.sandbox("labels")
	for _, enabled := range []bool{false, true} {
		w.r.host.selinux = enabled
		for _, level := range []string{"s0\",upperdir=/etc,x=\"", `s0,rootcontext="a`, "s0\x00,suid", "s0\n", "s0 c1", strings.Repeat("s", 513)} {
			cfg := containerConfig(sbc, "c", shell("id"), securityContext(func(s *cri.LinuxContainerSecurityContext) {
				s.SelinuxOptions = &cri.SELinuxOption{Level: level}
			}))
			if _, err := w.r.CreateContainer(t.Context(), &cri.CreateContainerRequest{PodSandboxId: sb, Config: cfg, SandboxConfig: sbc}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("level %q: %v", level, err)
			}
		}
	}
	w.r.host.selinux = false
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
