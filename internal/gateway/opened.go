package gateway

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// opened counts the connections of clients at all ports.
type opened struct {
	atomic.Int64
	most int64 // and of requests at the same time
}

// Limits of what clients can have open. They have a part of the descriptors of the process, too, because the API server
// and etcd have the same ones: connections may take a quarter, those to backends for requests another one, and sessions
// of UDP another one: a session lasts half a minute, and clients of DNS begin many.
const (
	connections   = 60000
	shareClients  = 4
	shareSessions = 4
)

// descriptors is a part of what the process may have open.
func descriptors(share uint64) int64 {
	var process unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &process); err != nil {
		return connections
	}
	return int64(min(process.Cur/share, 1<<30)) //nolint:gosec // at most 2^30
}
