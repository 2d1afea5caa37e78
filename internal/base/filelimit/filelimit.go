// Package filelimit divides the files that the process may have open among its parts: API server, etcd, runtime, and
// gateway share one limit, and no client of one part may take what the others need.
package filelimit

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Most is the file with the highest limit that the kernel lets a process set.
const Most = "/proc/sys/fs/nr_open"

// Fit lowers the limits of open files of this process to the number in a file, Most, if the hard one is higher: the
// administrator has lowered that number since. Neither carob nor a container could change its soft limit otherwise,
// also not within the hard one. Then it executes the program anew, as the first thing that it does: Go raises its own
// soft limit at the start only, and gives its children the one that it had.
func Fit(most string) error {
	text, err := os.ReadFile(most)
	if err != nil {
		return fmt.Errorf("limits of open files: %w", err)
	}
	highest, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("limits of open files: %s: %w", most, err)
	}
	var process unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
		return fmt.Errorf("limits of open files: %w", err)
	}
	if process.Max <= highest {
		return nil
	}
	process.Cur, process.Max = min(process.Cur, highest), highest
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
		return fmt.Errorf("limits of open files: %w", err)
	}
	return fmt.Errorf("executing carob anew: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// Share returns one of so many equal parts of the files that the process may have open. The limit can change while the
// process runs, so each call reads it.
func Share(parts uint64) int64 {
	const most = 1 << 30 // about what the kernel allows
	var process unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
		return most // it fails for wrong arguments only
	}
	return int64(min(process.Cur/parts, most)) //nolint:gosec // at most 2^30
}
