package forward

import (
	"errors"
	"syscall"
)

// IsShortage reports whether the host has no more descriptors or memory for a connection.
func IsShortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
