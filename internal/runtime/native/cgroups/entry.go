package cgroups

import (
	"os"
)

// Entry is how a process with one thread enters a cgroup without cgroup.procs. A write to that file
// holds the lock of all cgroups for an RCU grace period, 5–20 ms, unless another write happened
// just before. A thread that moves itself by writing "0" to tasks does not wait (Linux 5.5), nor
// does a process that is created in its cgroup.
type Entry struct {
	Tasks   []string // version 1: the files to write "0" to
	CPU     int      // which of them is the cpu controller's; -1 for none
	Memory  int      // which of them is the memory controller's; -1 for none
	unified string   // version 2: the directory to clone the process into; "" for none
}

// Later means that a process can enter the group after its start, before the group exists.
func (e *Entry) Later() bool { return e.unified == "" }

// Open opens the directory to clone the process into; nil for none.
func (e *Entry) Open() (*os.File, error) {
	if e.unified == "" {
		return nil, nil
	}
	return os.Open(e.unified)
}
