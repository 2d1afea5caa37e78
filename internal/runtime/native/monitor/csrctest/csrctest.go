// Package csrctest builds the C programs of the native runtime for tests: with sanitizers, and as
// harnesses whose effects on the host are stubbed. Tests of native and of monitor use it; it must
// never be linked into carob.
package csrctest

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Sanitised compiles files of csrc with the address and undefined-behaviour sanitizers into
// dir/name, and returns the log file of their findings. It skips the test if no compiler supports
// them.
func Sanitised(tb testing.TB, dir, name string, sources ...string) (program, log string) {
	tb.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		tb.Skip("no gcc")
	}
	_, self, _, _ := runtime.Caller(0)
	csrc := filepath.Join(filepath.Dir(self), "..", "..", "csrc")
	program, log = filepath.Join(dir, name), filepath.Join(dir, "sanitizer.log")
	args := []string{
		"-std=gnu11", "-g", "-O1", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-fno-omit-frame-pointer",
		"-DSANITIZER_LOG=\"" + log + "\"", "-o", program, filepath.Join(csrc, "fuzz", "sanitizer.c"),
	}
	for _, s := range sources {
		args = append(args, filepath.Join(csrc, s))
	}
	out, err := exec.Command(gcc, args...).CombinedOutput()
	if err != nil && bytes.Contains(out, []byte("cannot find")) {
		tb.Skipf("gcc has no sanitizers here: %s", out)
	}
	if err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	return program, log
}
