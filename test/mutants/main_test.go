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
		if _, err := weave(m.file, source, []mutant{m}); err != nil {
			t.Errorf("%s: %v", m.file, err)
		}
	}
}

func TestKilledBy(t *testing.T) {
	for _, c := range []struct{ out, want string }{
		{"--- FAIL: TestTranscripts (0.1s)\n    --- FAIL: TestTranscripts/crash_loop (0.0s)\n", "crash_loop"},
		{"    sim_test.go:37: no-start-when-over: nothing …\n        seed 37 at +21m1.55s\n--- FAIL: TestSeeds\n",
			"sim no-start-when-over"},
		{"panic: test timed out", "a timeout"},
		{"panic: runtime error", "a test"},
	} {
		if got := killedBy([]byte(c.out)); got != c.want {
			t.Errorf("killer of %q is %q, not %q", c.out, got, c.want)
		}
	}
}

func TestWeave(t *testing.T) {
	source := "package p\n\nfunc a() { b(1) }\n\nfunc c() int { return 2 }\n"
	got, err := weave("p.go", []byte(source),
		[]mutant{{number: 1, from: "b(1)", to: "b(0)"}, {number: 2, from: "return 2", to: "return 3"},
			{number: 3, from: " 2", to: " 4"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "package p\n\nfunc a() {\n\tswitch mutant {\n\tcase 1:\n b(0) \n\treturn\n\n\t}\n b(1) }\n\n" +
		"func c() int {\n\tswitch mutant {\n\tcase 2:\n return 3 \n\tcase 3:\n return 4 \n\t}\n return 2 }\n"
	if string(got) != want {
		t.Errorf("%s", got)
	}
	if _, err := weave("p.go", []byte(source), []mutant{{number: 1, from: "func a", to: "func d"}}); err == nil {
		t.Error("a text outside of a function is taken")
	}
}
