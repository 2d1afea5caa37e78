package filelimit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A share follows the limit as it is now, and no limit is a large one.
func TestShare(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		limit, parts uint64
		want         int64
	}{{100, 4, 25}, {103, 4, 25}, {3, 4, 0}, {64, 1, 64}} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: c.limit, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		if got := Share(c.parts); got != c.want {
			t.Errorf("one of %d parts of %d files: %d, want %d", c.parts, c.limit, got, c.want)
		}
	}
}

// fitted and lowered tell a process of TestFit the file with the highest limit, and its soft limit.
const fitted, lowered = "CAROB_TEST_NR_OPEN", "CAROB_TEST_SOFT"

// A process whose hard limit is higher than the kernel's highest gets that one, raises its own soft limit, and its
// children have the soft limit that it was started with, or the highest if that is lower.
func TestFit(t *testing.T) {
	if most := os.Getenv(fitted); most != "" {
		fit(t, most)
		return
	}
	for _, c := range []struct {
		soft       int
		most, want string
	}{
		{200, "2000", "[1999 2000] [200 2000]"},
		{200, "100", "[100 100] [100 100]"},
		{200, "3000", "[200 3000] [200 3000]"},
		{200, "1048576", "[200 3000] [200 3000]"},
	} {
		most := filepath.Join(t.TempDir(), "nr_open")
		if err := os.WriteFile(most, []byte(c.most+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", `ulimit -n 3000 && exec "$0" -test.run '^TestFit$'`, os.Args[0])
		cmd.Env = append(os.Environ(), fitted+"="+most, lowered+"="+strconv.Itoa(c.soft))
		out, err := cmd.CombinedOutput()
		if got, _, _ := strings.Cut(string(out), "\n"); err != nil || got != c.want {
			t.Errorf("%d, at most %s: got %q, want %q, %v\n%s", c.soft, c.most, got, c.want, err, out)
		}
	}
}

// fit is a process of TestFit. It shows its limits and a child's.
func fit(t *testing.T, most string) {
	t.Helper()
	var process unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
		t.Fatal(err)
	}
	if process.Max == 3000 { // as Go leaves it if the hard limit is too high: not raised
		soft, err := strconv.ParseUint(os.Getenv(lowered), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		process.Cur = soft
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
			t.Fatal(err)
		}
	}
	if err := Fit(most); err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	child, err := exec.Command("cat", "/proc/self/limits").Output()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%v %v\n", limits(own), limits(child))
}

// limits are the limits of open files in a process's file.
func limits(text []byte) []string {
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			return strings.Fields(rest)[:2]
		}
	}
	return nil
}
