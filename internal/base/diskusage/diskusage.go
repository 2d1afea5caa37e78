// Package diskusage measures what is in a directory that others write to at the same time.
//
// The node's eviction and the native runtime use it for what containers write. It must count everything however a
// container arranges it: names of any length, directories of any depth, files that come and go.
package diskusage

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is what a directory with everything in it takes on its file system.
type Usage struct{ Bytes, Inodes int64 }

// Of measures a directory. It follows neither links nor mounts. What can't be read, or goes away meanwhile, counts
// nothing. It fails if the directory itself can't be opened, or when ctx ends; then the result is what was found so
// far.
func Of(ctx context.Context, dir string) (Usage, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|flags, 0)
	if err != nil {
		return Usage{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	w := walk{buffer: make([]byte, 32<<10)}
	defer w.close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Usage{}, errors.Join(&os.PathError{Op: "stat", Path: dir, Err: err}, unix.Close(fd))
	}
	w.device = st.Dev
	w.count(&st)
	w.enter(fd, st.Ino)
	for len(w.levels) > 0 {
		if err := ctx.Err(); err != nil {
			return w.used, fmt.Errorf("measure %s: %w", dir, err)
		}
		w.next()
	}
	return w.used, nil
}

const flags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// mostOpen is how many directories are open at a time. Deeper ones are left through "..", if that is still the
// directory that was entered from.
const mostOpen = 64

// walk is a walk in depth. The directory at the end of levels is always open.
type walk struct {
	device uint64
	levels []level
	seen   map[uint64]struct{} // files with several names
	used   Usage
	buffer []byte
}

type level struct {
	fd   int // negative: closed
	ino  uint64
	dirs []string // not entered yet
}

func (w *walk) close() {
	for i := range w.levels {
		if w.levels[i].fd >= 0 {
			_ = unix.Close(w.levels[i].fd)
		}
	}
}

func (w *walk) count(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if _, again := w.seen[st.Ino]; again {
			return
		}
		if w.seen == nil {
			w.seen = map[uint64]struct{}{}
		}
		w.seen[st.Ino] = struct{}{}
	}
	w.used.Bytes += st.Blocks * 512
	w.used.Inodes++
}

// next enters the next directory below the last one, or leaves it.
func (w *walk) next() {
	last := &w.levels[len(w.levels)-1]
	n := len(last.dirs)
	if n == 0 {
		w.leave()
		return
	}
	name := last.dirs[n-1]
	last.dirs = last.dirs[:n-1]
	fd, err := unix.Openat(last.fd, name, unix.O_RDONLY|flags, 0)
	if err != nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != w.device {
		_ = unix.Close(fd)
		return
	}
	if len(w.levels) > mostOpen {
		_ = unix.Close(last.fd)
		last.fd = -1
	}
	w.enter(fd, st.Ino)
}

// leave goes back to a directory above: to the one that the last one was entered from or, if that has changed, to one
// that is still open.
func (w *walk) leave() {
	end := len(w.levels) - 1
	fd := w.levels[end].fd
	w.levels = w.levels[:end]
	defer func() { _ = unix.Close(fd) }()
	if end == 0 || w.levels[end-1].fd >= 0 {
		return
	}
	above := &w.levels[end-1]
	up, err := unix.Openat(fd, "..", unix.O_RDONLY|flags, 0)
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(up, &st); err == nil && st.Dev == w.device && st.Ino == above.ino {
			above.fd = up
			return
		}
		_ = unix.Close(up)
	}
	for len(w.levels) > 0 && w.levels[len(w.levels)-1].fd < 0 {
		w.levels = w.levels[:len(w.levels)-1]
	}
}

// enter counts what is directly in a directory, and makes it the last level.
func (w *walk) enter(fd int, ino uint64) {
	l := level{fd: fd, ino: ino}
	for {
		n, err := unix.ReadDirent(fd, w.buffer)
		if err != nil || n <= 0 {
			break
		}
		_, _, names := unix.ParseDirent(w.buffer[:n], -1, nil)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != w.device {
				continue
			}
			w.count(&st)
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				l.dirs = append(l.dirs, name)
			}
		}
	}
	w.levels = append(w.levels, l)
}
