// Package logfile keeps a log file that is the standard error of this process small: it moves the full file aside, and
// puts a new one in the place of the descriptor. So the text of a panic, which the Go runtime writes to that
// descriptor, is in the current file.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
)

const (
	// Most is the size of a file in bytes from which it is moved aside.
	Most = 32 << 20
	// Old is how many files that were moved aside are kept.
	Old = 2
)

// Previous is the name of the n-th newest file that was moved aside, n from 1.
func Previous(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// Log writes to an open file. Make it with New.
type Log struct {
	out  *os.File
	most int64

	mu   sync.Mutex
	path string // of the file; empty while it is not rotated
}

// New returns a Log that writes to out.
func New(out *os.File) *Log { return &Log{out: out, most: Most} }

// Rotate rotates the file from now on, if it is the file at path. Only the process that owns that file may request it.
func (l *Log) Rotate(path string) {
	here, err := l.out.Stat()
	if err != nil || !here.Mode().IsRegular() {
		return
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return
	}
	if there, err := os.Lstat(path); err != nil || !os.SameFile(here, there) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.path = path
	l.makeRoom(0)
}

// Write writes p to the file, and first moves the file aside if p does not fit.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != "" {
		l.makeRoom(int64(len(p)))
	}
	return l.out.Write(p)
}

// makeRoom moves the file aside if n more bytes do not fit. If that fails, for example because the process has no free
// descriptor, the next write tries again; at twice the size, the file is emptied: the disk must not fill up. The size
// is read each time because the Go runtime and programs that inherited the descriptor write to the same file.
func (l *Log) makeRoom(n int64) {
	here, err := l.out.Stat()
	if err != nil || here.Size() == 0 || here.Size()+n <= l.most {
		return
	}
	if err := l.replace(here); err != nil && here.Size()+n > 2*l.most {
		_ = l.out.Truncate(0)
		_, _ = fmt.Fprintf(l.out, "The log file was emptied because it cannot be moved aside: %v\n", err)
	}
}

// replace makes the descriptor that of a new file. After a crash between two steps, path or an old name is missing,
// which the next start or rotation makes again.
func (l *Log) replace(here fs.FileInfo) error {
	fresh := l.path + ".new"
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// Another program, such as logrotate, may have moved the file: then what is at path is not ours to move.
	if there, err := os.Lstat(l.path); err == nil && os.SameFile(here, there) {
		for i := Old; i > 0; i-- {
			from := l.path
			if i > 1 {
				from = Previous(l.path, i-1)
			}
			if err := os.Rename(from, Previous(l.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := unix.Dup3(openfile.FD(f), openfile.FD(l.out), 0); err != nil {
		return err
	}
	return os.Rename(fresh, l.path)
}
