package volume

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"carob/internal/base/testwait"
)

// program puts a program into a directory of its own, which is the PATH's first.
func program(t *testing.T, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeProgram(t, dir, name, text)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func writeProgram(t *testing.T, dir, name, text string) {
	t.Helper()
	text = "#!/bin/sh\n" + text + "\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
}

// A mount that never ends is ended with its pod, together with the program that it waits for and that holds its output.
func TestHangingMount(t *testing.T) {
	dir := program(t, "mount", `cd "${0%/*}"; sleep 1000 & echo $! >new; mv new pid; wait`)
	pid := filepath.Join(dir, "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mountOnce(ctx, filepath.Join(dir, "on"), "nfs", "server:/path", nil) }()
	testwait.For(t, "the program", func() bool { _, err := os.Stat(pid); return err == nil })
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "it has not ended") {
		t.Error(err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n <= 1 {
		t.Fatalf("%q: %v", text, err)
	}
	testwait.For(t, "the end of the program's child", func() bool {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(n) + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

// A program may leave a process that serves the mount, as those of FUSE do. What programs write is limited.
func TestProgramOutput(t *testing.T) {
	dir := program(t, "mount.x", `cd "${0%/*}"; sleep 1000 & echo $! >pid`)
	if err := run(t.Context(), "mount.x"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "pid")); err != nil {
		t.Error(err)
	} else if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n <= 1 ||
		syscall.Kill(n, syscall.SIGKILL) != nil {
		t.Errorf("the process that was left behind: %q, %v", text, err)
	}
	program(t, "mkfs.x", "head -c 50000000 /dev/zero | tr '\\0' x; exit 3")
	if err := run(t.Context(), "mkfs.x", "/dev/null"); err == nil ||
		err.Error() != "mkfs.x /dev/null: exit status 3: "+strings.Repeat("x", maxOutput) {
		t.Errorf("%.100v", err)
	}
}
