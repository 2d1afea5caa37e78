package linefile

import (
	"os"
	"path/filepath"
	"strings"
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

// room is a disk that takes so many bytes more.
type room struct {
	text strings.Builder
	left int
}

func (r *room) Write(p []byte) (int, error) {
	n, err := min(r.left, len(p)), error(nil)
	if n < len(p) {
		err = unix.ENOSPC
	}
	r.left -= n
	r.text.Write(p[:n])
	return n, err
}

// However little a full disk takes, twice: no line continues a half of another one, no line that was whole is followed
// by an empty one, and what is reported as written is there.
func TestWriter(t *testing.T) {
	const lines = "one\ntwo\n"
	for first := range len(lines) + 1 {
		for second := range len(lines) + 2 {
			disk := &room{}
			w := &Writer{To: disk}
			want := ""
			for _, left := range []int{first, second, 1 << 10} {
				disk.left = left
				n, err := w.Write([]byte(lines))
				if (err == nil) != (n == len(lines)) {
					t.Fatalf("%d bytes were written: %v", n, err)
				}
				if want != "" && !strings.HasSuffix(want, "\n") && left > 0 {
					want += "\n"
				}
				want += lines[:n]
			}
			if got := disk.text.String(); got != want {
				t.Errorf("room for %d, then %d bytes: %q, want %q", first, second, got, want)
			}
		}
	}
}
