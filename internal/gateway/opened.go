package gateway

import "sync/atomic"

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
