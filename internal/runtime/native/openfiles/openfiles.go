// Package openfiles reads files of the kernel, and keeps them open between reads. To open and close a file of a cgroup
// takes eight microseconds, to read an open one takes one. The native runtime reads the files of a scrape with it. It
// handles files and the ids of their owners, not containers.
package openfiles

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/base/filelimit"
)

const (
	// most is the maximum number of files that stay open, and a share of what the process may open: the rest is for
	// others.
	most, share = 4096, 4
	// idle is after how long without a read all files are closed.
	idle = 5 * time.Minute
)

// Files are open files. A file stays open until its owner ends, until it cannot be read any more, or until five
// minutes after the last read of any file. Those above the limit are opened for each read. The zero value is ready for
// use, and safe for concurrent use.
type Files struct {
	count atomic.Int64 // of files that stay open

	mu     sync.Mutex
	owners map[string]*owner
	read   time.Time   // of the last file
	timer  *time.Timer // runs while there are owners
	closed bool
}

// owner is what owns files, e.g. a container.
type owner struct {
	mu   sync.Mutex
	fds  map[string]int // by path
	gone bool           // no file stays open any more
}

// Open opens a file of the kernel for Read.
func Open(path string) (int, error) {
	fd, err := ignoringInterrupts(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

// ReadOnce reads a file. os.ReadFile would add each to the poller and make its path absolute twice; statistics of all
// containers read thousands.
func ReadOnce(path string) (string, error) {
	fd, err := Open(path)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	text, err := readAll(fd)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// Read returns the text of a file as it is now. open opens it if it is not open. Whoever reads for an owner that may
// have ended must call Forget if it has.
func (f *Files) Read(id, path string, open func(path string) (int, error)) (string, error) {
	o := f.of(id)
	o.mu.Lock()
	defer o.mu.Unlock()
	fd, kept := o.fds[path]
	if !kept {
		var err error
		if fd, err = open(path); err != nil {
			return "", err
		}
		if kept = !o.gone && f.mayKeep(); kept {
			o.fds[path] = fd
		} else {
			defer unix.Close(fd) //nolint:errcheck // nothing was written
		}
	}
	text, err := readAll(fd)
	if err != nil {
		if kept { // the file is gone
			delete(o.fds, path)
			f.close(fd)
		}
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// of returns the owner, and notes that something is read.
func (f *Files) of(id string) *owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return &owner{gone: true}
	}
	o := f.owners[id]
	if o == nil {
		if f.owners == nil {
			f.owners = map[string]*owner{}
		}
		o = &owner{fds: map[string]int{}}
		f.owners[id] = o
	}
	f.read = time.Now()
	if f.timer == nil {
		f.timer = time.AfterFunc(idle, f.expire)
	}
	return o
}

// mayKeep counts one more open file, if the limit allows it.
func (f *Files) mayKeep() bool {
	if f.count.Add(1) <= min(most, filelimit.Share(share)) {
		return true
	}
	f.count.Add(-1)
	return false
}

// expire closes all files if none was read for a while.
func (f *Files) expire() {
	f.mu.Lock()
	left := idle - time.Since(f.read)
	if left > 0 || f.closed {
		if !f.closed {
			f.timer.Reset(left)
		}
		f.mu.Unlock()
		return
	}
	all := f.owners
	f.owners, f.timer = nil, nil
	f.mu.Unlock()
	for _, o := range all {
		f.end(o)
	}
}

// Forget closes the files of an owner that has ended, if there are any.
func (f *Files) Forget(id string) {
	f.mu.Lock()
	o := f.owners[id]
	delete(f.owners, id)
	f.mu.Unlock()
	if o != nil {
		f.end(o)
	}
}

// Close closes all files. Later reads open and close theirs.
func (f *Files) Close() {
	f.mu.Lock()
	all := f.owners
	f.owners, f.closed = nil, true
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	for _, o := range all {
		f.end(o)
	}
}

func (f *Files) end(o *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = true
	for _, fd := range o.fds {
		f.close(fd)
	}
	o.fds = nil
}

func (f *Files) close(fd int) {
	_ = unix.Close(fd) // nothing was written
	f.count.Add(-1)
}

// buffers are what files are read into.
var buffers = sync.Pool{New: func() any { return new([8192]byte) }}

// readAll reads a file from its beginning.
func readAll(fd int) (string, error) {
	buffer := buffers.Get().(*[8192]byte)
	defer buffers.Put(buffer)
	text, used := "", 0
	for at := int64(0); ; {
		n, err := ignoringInterrupts(func() (int, error) { return unix.Pread(fd, buffer[used:], at) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			return text + string(buffer[:used]), nil
		}
		at += int64(n)
		if used += n; used == len(buffer) {
			text, used = text+string(buffer[:]), 0
		}
	}
}

func ignoringInterrupts(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
