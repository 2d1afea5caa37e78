// Package csrctest builds the C programs of the native runtime for tests: with sanitizers, and as
// harnesses whose effects on the host are stubbed. Tests of native and of monitor use it; it must
// never be linked into carob.
package csrctest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Sanitised compiles files of csrc with the address and undefined-behaviour sanitizers into
// dir/name, and returns the log file of their findings. It skips the test if no compiler supports
// them.
func Sanitised(tb testing.TB, dir, name string, files ...string) (program, log string) {
	tb.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		tb.Skip("no gcc")
	}
	csrc := sources(tb)
	program, log = filepath.Join(dir, name), filepath.Join(dir, "sanitizer.log")
	args := []string{
		"-std=gnu11", "-g", "-O1", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-fno-omit-frame-pointer",
		"-DSANITIZER_LOG=\"" + log + "\"", "-o", program, filepath.Join(csrc, "fuzz", "sanitizer.c"),
	}
	for _, s := range files {
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

// sources returns the folder csrc. A test runs in the folder of its package, at or beneath native. The path in the
// binary is no help: it is built with -trimpath.
func sources(tb testing.TB) string {
	tb.Helper()
	at, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if csrc := filepath.Join(at, "csrc"); isDir(csrc) {
			return csrc
		}
		if at == filepath.Dir(at) {
			tb.Fatal("no folder csrc beside the test or above it")
		}
		at = filepath.Dir(at)
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
