// Package execs keeps what the next exec in a container needs: the passwd file as the last exec found it, and the
// commands that were planned for it. The runtime uses one Kept for each container. It must never plan for another file
// than the one that it returns a program for, and it neither starts nor reads anything.
package execs

import (
	"slices"
	"sync"

	"carob/internal/runtime/native/plan"
)

// mostKept is the size of the largest passwd file that is kept for the next exec.
const mostKept = 16 << 10

// Kept is what is kept for the next exec in a container. Probes run the same commands again and again. The zero value
// has nothing.
type Kept struct {
	mu     sync.Mutex
	passwd []byte // the file as the last exec found it; nil: not known
	last   [2]planned
}

// planned is a command that was planned for the passwd file. None of it is changed.
type planned struct {
	pl   *plan.Container
	argv []string
	fork bool
	p    *plan.Program
	code []byte
}

// Planned is the program of a command for the passwd file that the last exec found, and its encoding; nil: the file is
// not known.
func (k *Kept) Planned(pl *plan.Container, argv []string, user *plan.Identity, fork bool) (*plan.Program, []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.passwd == nil {
		return nil, nil
	}
	for _, c := range k.last {
		if c.pl == pl && c.fork == fork && slices.Equal(c.argv, argv) {
			return c.p, c.code
		}
	}
	p := pl.ExecProgram(argv, false, 0, 0, *user, fork, k.passwd)
	code, err := p.Encode()
	if err != nil {
		return p, nil
	}
	k.last = [2]planned{{pl, slices.Clone(argv), fork, p, code}, k.last[0]}
	return p, code
}

// Keep keeps the passwd file that an exec has found; nil, or a large one: it is not known any more.
func (k *Kept) Keep(file []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passwd, k.last = nil, [2]planned{}
	if len(file) <= mostKept {
		k.passwd = file
	}
}
