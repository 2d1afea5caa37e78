// Package filelimit divides the files that the process may have open among its parts: API server, etcd, runtime, and
// gateway share one limit, and no client of one part may take what the others need.
package filelimit

import "golang.org/x/sys/unix"

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
