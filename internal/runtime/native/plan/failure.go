package plan

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Failure formats a failed operation as users know it from runc.
func (p *Program) Failure(index int, stage uint32, errno unix.Errno, detail string) error {
	if index >= len(p.Ops) {
		return fmt.Errorf("container program ended without an exec")
	}
	o := &p.Ops[index]
	switch o.Code {
	case OpLookup, OpExec:
		switch {
		case stage == 1:
			return &ExecError{fmt.Sprintf("exec: %q: executable file not found in $PATH", detail), errno}
		case stage == 2 && errno == unix.ENOENT:
			return &ExecError{fmt.Sprintf("exec: %q: stat %s: %v", detail, detail, errno), errno}
		case stage == 2:
			return &ExecError{fmt.Sprintf("exec: %q: %v", detail, errno), errno}
		default:
			return &ExecError{fmt.Sprintf("exec %s: %v", detail, errno), errno}
		}
	case OpFiles:
		return fmt.Errorf("reading users and groups of the image: %w", errno)
	case OpTree, OpTreeIn:
		if o.Code == OpTreeIn && o.S[1] != "" { // in the view of an image, whose place says nothing to users
			if errno == unix.EXDEV || errno == unix.ELOOP {
				return fmt.Errorf("subPath %q leads out of its image volume: %w", o.S[1], errno)
			}
			return fmt.Errorf("subPath %q of an image volume: %w", o.S[1], errno)
		}
		return fmt.Errorf("opening mount source %q: %w", strings.TrimSuffix(o.S[0]+"/"+o.S[1], "/"), errno)
	case OpAttach:
		if errno == unix.EPERM && o.N[2] != ProcFree {
			return fmt.Errorf(
				"error mounting to rootfs at %q: it is inside /proc, or would replace it by something else", o.S[0])
		}
		return fmt.Errorf("error mounting to rootfs at %q: %w", o.S[0], errno)
	case OpMount:
		if errno == unix.ELOOP {
			return fmt.Errorf(
				"error mounting %q to rootfs at %q: the image has a symbolic link there, which must be a directory",
				o.S[0], o.S[2])
		}
		return fmt.Errorf("error mounting %q to rootfs at %q: %w", o.S[0], o.S[2], errno)
	case OpMountHost:
		return fmt.Errorf("error mounting %q at %q: %w", o.S[0], o.S[2], errno)
	case OpAttr:
		if o.N[2] >= 0 && errno == unix.EINVAL {
			return fmt.Errorf("showing %s with the IDs of the pod's user namespace: its file system cannot do that "+
				"on this kernel (tmpfs needs Linux 6.3): %w", p.named(o.N[0]), errno)
		}
		return fmt.Errorf("setting attributes of %s (set %#x, propagation %#x): %w", p.named(o.N[0]), o.N[1], o.N[3],
			errno)
	case OpCwd:
		if errno == unix.EXDEV {
			return fmt.Errorf("working directory %q is outside of the container", o.S[0])
		}
		return fmt.Errorf("chdir to cwd (%q) set in config.json failed: %w", o.S[0], errno)
	case OpWrite:
		return fmt.Errorf("write %q to %q: %w", o.S[1], o.S[0], errno)
	case OpStdio:
		return fmt.Errorf("giving the process its standard streams (/dev/null of the container): %w", errno)
	case OpSeccomp:
		return fmt.Errorf("error loading seccomp filter into kernel: %w", errno)
	case OpFork, OpEnter:
		return fmt.Errorf("making a process in the container's process namespace: %w", errno)
	case OpProc:
		return fmt.Errorf("error mounting \"proc\" to rootfs at %q: %w", o.S[0], errno)
	case OpTake:
		return fmt.Errorf("receiving the image's mount: %w", errno)
	case OpMknod:
		return fmt.Errorf("making device %q: %w", o.S[0], errno)
	case OpMkdir:
		return fmt.Errorf("making directory %q: %w", o.S[0], errno)
	case OpMask, OpReadonly:
		return fmt.Errorf("hiding or protecting %q: %w", o.S[0], errno)
	case OpCreds:
		return fmt.Errorf("setting user and capabilities: %w", errno)
	}
	return fmt.Errorf("container setup, operation %d (%s): %w", o.Code, strings.Trim(o.S[0]+" "+o.S[1], " \x00"), errno)
}

// ExecError means that the user's program could not be executed.
type ExecError struct {
	text  string
	errno unix.Errno
}

// Error is the message of runc.
func (e *ExecError) Error() string { return e.text }

// ExitCode is the exit code that a shell would return: 127 not found, 126 not executable.
func (e *ExecError) ExitCode() int32 {
	if e.errno == unix.ENOENT {
		return 127
	}
	return 126
}

// named names a mount as users know it: by its place in the container, or else by its source on the host.
func (p *Program) named(handle int64) string {
	name := fmt.Sprintf("mount %d", handle)
	for _, o := range p.Ops {
		switch {
		case o.N[0] != handle:
		case o.Code == OpTree || o.Code == OpTreeIn:
			name = strings.TrimSuffix(o.S[0]+"/"+o.S[1], "/")
		case o.Code == OpAttach:
			return o.S[0]
		}
	}
	return name
}
