package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Every mutant can be made of the sources as they stand: a text that is gone or
// not the only one would test nothing.
func TestMutantsApply(t *testing.T) {
	mutants, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < 40 {
		t.Errorf("only %d mutants", len(mutants))
	}
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join("..", "..", folder, m.file))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.mutate(source); err != nil {
			t.Errorf("%s: %s: %v", m.file, m.what, err)
		}
	}
}

func TestKiller(t *testing.T) {
	for _, c := range []struct{ out, want string }{
		{"--- FAIL: TestTranscripts (0.1s)\n    --- FAIL: TestTranscripts/crash_loop (0.0s)\n", "crash_loop"},
		{"    sim_test.go:37: seed 37 at +21m1.55s: no-start-when-over: nothing …\n--- FAIL: TestSeeds\n", "sim no-start-when-over"},
		{"panic: test timed out", "a timeout"},
		{"panic: runtime error", "a test"},
	} {
		if got := killer([]byte(c.out)); got != c.want {
			t.Errorf("killer of %q is %q, not %q", c.out, got, c.want)
		}
	}
}
