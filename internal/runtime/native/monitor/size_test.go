package monitor

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestSizeOfC: the code in C, which runs as root, stays small.
func TestSizeOfC(t *testing.T) {
	const most = 2250
	total := 0
	for _, pattern := range []string{"../csrc/*.c", "../csrc/*.h"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			total += bytes.Count(b, []byte("\n"))
		}
	}
	if total > most {
		t.Errorf("helper and monitor have %d lines together, more than %d: move a decision into the program made in Go",
			total, most)
	}
}
