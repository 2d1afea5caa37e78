package securepath

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	outside, real, dir := t.TempDir(), t.TempDir(), t.TempDir()
	root := filepath.Join(dir, "root") // a link to the root itself is set by the administrator
	for _, err := range []error{
		os.Symlink(real, root), os.MkdirAll(filepath.Join(real, "pod", "c"), 0o755),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600),
		os.WriteFile(filepath.Join(real, "pod", "c", "0.log"), []byte("log"), 0o600),
		os.Symlink(filepath.Join(outside, "secret"), filepath.Join(real, "pod", "c", "last")),
		os.Symlink("0.log", filepath.Join(real, "pod", "c", "near")),
		os.Symlink(outside, filepath.Join(real, "pod", "dir")),
		os.Symlink(outside, filepath.Join(real, "away")),
		os.Symlink(filepath.Join(outside, "made"), filepath.Join(real, "pod", "c", "dangling")),
		unix.Mkfifo(filepath.Join(real, "pod", "c", "pipe"), 0o600),
		os.Mkdir(filepath.Join(real, "pod", "c", "directory"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(root, "pod/c/0.log", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "log" {
		t.Errorf("%q, %v", b, err)
	}
	f.Close()
	for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT} {
		for _, name := range []string{
			"pod/c/last", "pod/c/near", "pod/dir/secret", "away/secret", "away/made", "pod/c/dangling", "../secret",
			"pod/../../" + filepath.Base(outside) + "/secret",
			"pod/c/pipe", "pod/c/directory",
		} {
			f, err := Open(root, name, flags, 0o600)
			if err == nil {
				f.Close()
				t.Errorf("ESCAPED: %s was opened with %#o", name, flags)
			}
			if p, ok := errors.AsType[*fs.PathError](err); err != nil && (!ok || !strings.HasPrefix(p.Path, dir)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := Open(root, "pod/c/none", unix.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is missing: %v", err)
	}
	if f, err = Open(root, "pod/c/new", unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o640); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("made as %v, %v", st.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(outside, "made")); err == nil {
		t.Error("ESCAPED: a file was made outside")
	}
}

func TestMkdirAll(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := MkdirAll(root, "a/b/c", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(filepath.Join(root, "a/b/c")); err != nil || !st.IsDir() {
		t.Error(err)
	}
	if err := MkdirAll(root, "link/x", 0o755); err == nil {
		t.Error("a link was followed")
	}
	if err := MkdirAll(root, "../x", 0o755); err == nil {
		t.Error("it climbs out")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("ESCAPED: %v, %v", left, err)
	}
}
