package native

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// groupAhead is the cgroup of a sandbox's first container, made beside the
// sandbox's network and files: making one takes a lock of the kernel that the
// whole host shares, and so no start waits for it. The container's id is chosen
// with it.
type groupAhead struct {
	id, cgroup string
	taken      bool // covered by the sandbox's lock
	done       chan struct{}
	err        error // valid when done
}

// aheadFile holds the path of such a group, in the sandbox's directory of this boot. It
// is there before the group, so that a next carob removes one that nobody took.
const aheadFile = "first-cgroup"

// makeAhead begins to make the group of the first container. A systemd scope can't
// be made without a process; of a parent that can't be used CreateContainer tells.
func (r *Runtime) makeAhead(s *sandbox) {
	id := newID()
	group, err := r.cgroupOf(s, id)
	if err != nil || r.cfg.SystemdCgroups {
		return
	}
	g := &groupAhead{id: id, cgroup: group, done: make(chan struct{})}
	s.ahead = g
	go func() {
		defer close(g.done)
		if g.err = os.WriteFile(filepath.Join(r.runDir(s.rec.ID), aheadFile), []byte(group), 0o600); g.err == nil {
			g.err = r.groups.make(group)
		}
	}()
}

// takeAhead is for the first container that is created; nil for all others.
func (s *sandbox) takeAhead() *groupAhead {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead == nil || s.ahead.taken {
		return nil
	}
	s.ahead.taken = true
	return s.ahead
}

// ready waits until the group is made; false when there is none or it failed.
func (g *groupAhead) ready() bool {
	if g == nil {
		return false
	}
	<-g.done
	return g.err == nil
}

// endAhead removes the group of a sandbox in which nothing runs any more, whether a
// container took it or not. It may be repeated.
func (r *Runtime) endAhead(s *sandbox) error {
	if s.ahead == nil {
		return nil
	}
	<-s.ahead.done
	return r.groups.end(s.ahead.cgroup)
}

// findAhead finds the group that an earlier carob made and no container took.
func (r *Runtime) findAhead(s *sandbox) error {
	b, err := os.ReadFile(filepath.Join(r.runDir(s.rec.ID), aheadFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range r.containersOf(s.rec.ID) {
		if c.rec.Cgroup == string(b) {
			return nil
		}
	}
	s.ahead = &groupAhead{cgroup: string(b), taken: true, done: make(chan struct{})}
	close(s.ahead.done)
	return nil
}
