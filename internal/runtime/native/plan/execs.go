package plan

import (
	"slices"
	"sync"
)

// mostKept is the size of the largest passwd file that is kept for the next exec.
const mostKept = 16 << 10

// Execs is what is kept for the next exec in a container. Probes run the same commands again and again. The zero value
// knows nothing.
type Execs struct {
	mu     sync.Mutex
	passwd []byte // the file as the last exec found it; nil: not known
	last   [2]planned
}

// planned is a command that was planned for the passwd file. None of it is changed.
type planned struct {
	pl   *Container
	argv []string
	fork bool
	p    *Program
	code []byte
}

// Planned is the program of a command for the passwd file that the last exec found, and its encoding; nil: the file is
// not known.
func (e *Execs) Planned(pl *Container, argv []string, user *Identity, fork bool) (*Program, []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.passwd == nil {
		return nil, nil
	}
	for _, k := range e.last {
		if k.pl == pl && k.fork == fork && slices.Equal(k.argv, argv) {
			return k.p, k.code
		}
	}
	p := pl.ExecProgram(argv, false, 0, 0, *user, fork, e.passwd)
	code, err := p.Encode()
	if err != nil {
		return p, nil
	}
	e.last = [2]planned{{pl, slices.Clone(argv), fork, p, code}, e.last[0]}
	return p, code
}

// Keep keeps the passwd file that an exec has found; nil, or a large one: it is not known any more.
func (e *Execs) Keep(file []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.passwd, e.last = nil, [2]planned{}
	if len(file) <= mostKept {
		e.passwd = file
	}
}
