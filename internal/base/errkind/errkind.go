// Package errkind gives errors a kind that callers can branch on without knowing the source of the
// error. It is a leaf package: any package may import it, and it imports only the standard library.
// It never logs, retries, or formats for users.
package errkind

import (
	"errors"
	"fmt"
)

// Kind is the kind of a failure; it decides what a caller may do.
type Kind uint8

const (
	// Unknown is the kind of every error without a kind.
	Unknown Kind = iota
	// Invalid means that the caller's input is wrong; the same call fails again.
	Invalid
	// NotFound means that the named object does not exist.
	NotFound
	// AlreadyExists means that the named object exists and should not.
	AlreadyExists
	// InUse means that another process or object uses it.
	InUse
	// Unavailable means that the failure is temporary; a later attempt may succeed.
	Unavailable
	// Denied means that the caller lacks a right (file mode, capability, policy).
	Denied
	// Exhausted means that a resource ran out: disk, memory, addresses, ports.
	Exhausted
	// Corrupt means that stored data cannot be read in the expected format.
	Corrupt
	// Unsupported means that this host or this build cannot do it.
	Unsupported
)

var names = [...]string{
	Unknown: "unknown", Invalid: "invalid", NotFound: "not found", AlreadyExists: "already exists", InUse: "in use",
	Unavailable: "unavailable", Denied: "denied", Exhausted: "exhausted", Corrupt: "corrupt",
	Unsupported: "unsupported",
}

// String returns the kind in lower-case words.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// kinded is an error with a kind; its message is the wrapped error's alone.
type kinded struct {
	kind Kind
	err  error
}

func (e *kinded) Error() string { return e.err.Error() }
func (e *kinded) Unwrap() error { return e.err }

// Errorf is fmt.Errorf, including %w, with a kind.
func Errorf(kind Kind, format string, args ...any) error {
	return &kinded{kind: kind, err: fmt.Errorf(format, args...)}
}

// Of returns the outermost kind in err's tree, or Unknown.
func Of(err error) Kind {
	if k, ok := errors.AsType[*kinded](err); ok {
		return k.kind
	}
	return Unknown
}

// Is reports whether err's outermost kind is kind.
func Is(err error, kind Kind) bool { return err != nil && Of(err) == kind }
