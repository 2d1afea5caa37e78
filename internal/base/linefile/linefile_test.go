package linefile

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{"": false, "a\n": false, "a": true, "a\nb": true, "\n\n": false} {
		path := filepath.Join(dir, "log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, half, err := Open(path, 0o600)
		if err != nil || half != want {
			t.Errorf("%q: half %t, %v", text, half, err)
			continue
		}
		if _, err := f.WriteString("more"); err != nil {
			t.Error(err)
		}
		_ = f.Close()
		if got, _ := os.ReadFile(path); string(got) != text+"more" {
			t.Errorf("%q became %q", text, got)
		}
	}
	f, half, err := Open(filepath.Join(dir, "new"), 0o600)
	if err != nil || half {
		t.Fatal(half, err)
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Error(st.Mode(), err)
	}
	_ = f.Close()
	if _, _, err := Open(filepath.Join(dir, "none", "log"), 0o600); err == nil {
		t.Error("a file in a directory that does not exist is opened")
	}
}

// What is not a file is not read: a read of a pipe would take what is meant for its reader, or wait.
func TestOpenPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := reader.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	f, half, err := Open(path, 0o600)
	if err != nil || half {
		t.Fatal(half, err)
	}
	_ = f.Close()
}
