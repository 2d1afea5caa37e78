package accesslog

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file that was renamed belongs to the program that renamed it.
func TestRotatedAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	f := &logFile{path: path}
	defer f.close()
	write := func(text string) {
		t.Helper()
		f.checked = time.Time{}
		if err := f.write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	for p, want := range map[string]string{path + ".1": "one\n", path: "two\n"} {
		if got, err := os.ReadFile(p); err != nil || string(got) != want {
			t.Errorf("%s has %q (%v), want %q", p, got, err, want)
		}
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	f.checked = time.Time{}
	if err := f.write([]byte("three\n")); err == nil {
		t.Error("no error although the directory has gone")
	}
}
