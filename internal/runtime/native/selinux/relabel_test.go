package selinux

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A tree is labelled completely, and nothing outside of it.
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
	if err := Relabel(volume, label); err != nil {
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
		if Relabel(host, label) == nil {
			t.Errorf("%s was relabelled", host)
		}
	}
	if err := Relabel(filepath.Join(dir, "missing"), label); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}
