package plan

import (
	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/seccomp"
)

// Filter is a compiled seccomp profile.
type Filter struct {
	BPF   []byte
	flags uint
	Agent *SeccompAgent // decides some calls; nil if the filter decides all
	forks bool          // it allows the system calls that the helper makes around fork
}

// SeccompAgent decides the calls that a profile leaves to SCMP_ACT_NOTIFY: a program of the host
// that listens at the profile's listenerPath (OCI runtime-spec, "containerProcessState").
type SeccompAgent struct {
	Path     string // of its socket
	Metadata string // the profile's listenerMetadata
}

// NewFilter creates the filter of a profile; the caller adds its agent.
func NewFilter(p *seccomp.Program) *Filter {
	f := &Filter{BPF: p.BPF, flags: p.Flags, forks: p.Allows(unix.SYS_CLONE, unix.CLONE_PARENT|uint64(unix.SIGCHLD)) &&
		p.Allows(unix.SYS_IOCTL, 0, unix.TIOCSCTTY)}
	for _, call := range []int{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_SETSID, unix.SYS_EXIT_GROUP} {
		f.forks = f.forks && p.Allows(call)
	}
	return f
}
