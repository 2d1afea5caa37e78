package gateway

import (
	"errors"
	"syscall"
)

// isShortage reports whether the host has no more descriptors or memory for a connection.
func isShortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
