package logfile

import (
	"os"
	"path/filepath"
	"testing"
)

// The end of a file is whole lines.
func TestEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]string{100: "one\ntwo\nthree\n", 14: "one\ntwo\nthree\n", 12: "two\nthree\n",
		7: "three\n"} {
		if got, err := End(file, most); err != nil || string(got) != want {
			t.Errorf("%d bytes: %q, %v", most, got, err)
		}
	}
	if _, err := End(file+".missing", 1); !os.IsNotExist(err) {
		t.Error(err)
	}
}
