package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"carob/internal/base/securepath"
)

// checkPeriod is how often the size of a growing log is checked (L0.51).
const checkPeriod = 10 * time.Second

const (
	defaultMaxSize  = 10 << 20
	defaultMaxFiles = 5
)

// Reopener is the call of a runtime that rotation needs.
type Reopener interface {
	ReopenContainerLog(context.Context, *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error)
}

// Rotator rotates the logs of running containers by size (L3.155). Logs without writes cost nothing:
//
//	quiet ──first write (inotify)──▶ growing, looked at every 10 s ──no growth since the last look──▶ quiet
//
// The exported fields are set before Run. Add and Remove may come from any goroutine.
type Rotator struct {
	Runtime  Reopener
	MaxSize  int64 // bytes; 10 Mi when zero
	MaxFiles int   // in total; 5 when zero
	Logger   klog.Logger

	once sync.Once
	wake chan struct{}

	mu   sync.Mutex
	logs map[string]*rotating // by container id
}

type rotating struct {
	path    string
	size    int64 // at the last look
	growing bool
}

func (r *Rotator) init() {
	r.once.Do(func() {
		r.wake = make(chan struct{}, 1)
		r.logs = make(map[string]*rotating)
	})
}

// Add starts to watch the log of a running container; adding it again is harmless.
func (r *Rotator) Add(containerID, path string) {
	r.init()
	r.mu.Lock()
	_, known := r.logs[containerID]
	if !known {
		r.logs[containerID] = &rotating{path: path, size: -1, growing: true} // the first look decides
	}
	r.mu.Unlock()
	if !known {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Remove ends what Add began.
func (r *Rotator) Remove(containerID string) {
	r.init()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.logs, containerID)
}

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	r.init()
	w, err := fsnotify.NewWatcher()
	var events <-chan fsnotify.Event
	var lost <-chan error
	if err == nil {
		defer w.Close()
		events, lost = w.Events, w.Errors
	} else { // all processes of a user together have 128 instances, and pods may be of this user
		r.Logger.Error(err, "Container logs cannot be watched; all of them are checked every 10 seconds")
		w = nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	planned := false // a check is planned
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-events:
			if r.grew(w, ev.Name) && !planned {
				planned = true
				timer.Reset(checkPeriod)
			}
		case err := <-lost:
			r.Logger.V(2).Info("Watching container logs", "err", err)
		case <-r.wake:
			if !planned {
				planned = true
				timer.Reset(checkPeriod)
			}
		case <-timer.C:
			if planned = r.look(ctx, w); planned {
				timer.Reset(checkPeriod)
			}
		}
	}
}

// grew records that a quiet log is written again and ends the watch: one event is enough.
func (r *Rotator) grew(w *fsnotify.Watcher, path string) bool {
	_ = w.Remove(path) // may be gone already
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for _, l := range r.logs {
		if l.path == path {
			l.growing, found = true, true
		}
	}
	return found
}

// look rotates the growing logs that are too long, and reports whether it must check again. Without a watcher, no log
// becomes quiet.
func (r *Rotator) look(ctx context.Context, w *fsnotify.Watcher) (again bool) {
	r.mu.Lock()
	growing := make(map[string]*rotating)
	for id, l := range r.logs {
		if l.growing {
			growing[id] = l
		}
	}
	r.mu.Unlock()
	for id, l := range growing {
		info, err := os.Lstat(l.path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed by others, or an agent ended between rename and reopen
			if err := r.reopen(ctx, id); err != nil {
				r.Logger.Error(err, "The missing log of a container cannot be created again", "path", l.path)
			}
			again = true
			continue
		case err != nil:
			again = true
			continue
		case info.Size() >= r.maxSize():
			if err := r.rotate(ctx, id, l.path, time.Now()); err != nil {
				r.Logger.Error(err, "Rotating a container log failed", "path", l.path)
			}
			again = true
			continue
		case info.Size() != l.size:
			l.size, again = info.Size(), true
			continue
		}
		if w == nil {
			again = true
			continue
		}
		// Quiet: wait for a write. One may have happened before the watch existed.
		if err := w.Add(l.path); err != nil {
			again = true
			continue
		}
		if info, err = os.Lstat(l.path); err != nil || info.Size() != l.size {
			_ = w.Remove(l.path) // may be gone already
			again = true
			continue
		}
		r.mu.Lock()
		l.growing = false
		r.mu.Unlock()
	}
	return again
}

func (r *Rotator) maxSize() int64 {
	if r.MaxSize > 0 {
		return r.MaxSize
	}
	return defaultMaxSize
}

func (r *Rotator) maxFiles() int {
	if r.MaxFiles > 0 {
		return max(r.MaxFiles, 2)
	}
	return defaultMaxFiles
}

// rotate moves the log away and has the runtime begin a new one. Older files are compressed; the
// newest stays uncompressed, because it may still be written or followed.
func (r *Rotator) rotate(ctx context.Context, id, path string, now time.Time) error {
	root, name := place(path)
	dir, err := securepath.OpenDir(root, filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	old, err := rotated(path)
	if err != nil {
		return err
	}
	return errors.Join(r.tidy(dir, old), r.begin(ctx, dir, id, path, now))
}

// tidy removes and compresses older files. One that it cannot change (the disk is full, or a directory has the name)
// does not end the rotation: the log would grow without a limit.
func (r *Rotator) tidy(dir *os.File, old []string) error {
	var errs []error
	if excess := len(old) - (r.maxFiles() - 2); excess > 0 {
		for _, name := range old[:excess] {
			errs = append(errs, remove(dir, name), remove(dir, name+compressed))
		}
		old = old[excess:]
	}
	for _, name := range old {
		if !strings.HasSuffix(name, compressed) {
			if err := compress(dir, name); err != nil {
				errs = append(errs, fmt.Errorf("compressing %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// begin moves the log away and has the runtime begin a new one.
func (r *Rotator) begin(ctx context.Context, dir *os.File, id, path string, now time.Time) error {
	away := path + "." + now.UTC().Format(rotatedTime)
	if _, err := os.Lstat(away); err == nil {
		return nil // a second rotation within a second: the next check does it
	}
	if err := rename(dir, path, away); err != nil {
		return err
	}
	if err := r.reopen(ctx, id); err != nil {
		if _, statErr := os.Lstat(path); errors.Is(statErr, fs.ErrNotExist) {
			err = errors.Join(err, rename(dir, away, path))
		}
		return err
	}
	return nil
}

// reopen has the runtime write to a new file at the path of the log.
func (r *Rotator) reopen(ctx context.Context, id string) error {
	if _, err := r.Runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("reopening the log of container %s: %w", id, err)
	}
	return nil
}

// Remove removes a container log and its rotated files (L3.155, L3.156). Programs that can write to the logs may put
// links there: what these lead to is not the container's and stays, and the link goes with the directory of the pod.
func Remove(path string) error {
	root, name := place(path)
	dir, err := securepath.OpenDir(root, filepath.Dir(name))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	list := os.NewFile(uintptr(fd), filepath.Dir(path))
	names, err := list.Readdirnames(-1)
	errs := []error{err, list.Close()}
	for _, n := range names {
		if n == filepath.Base(path) || strings.HasPrefix(n, filepath.Base(path)+".") {
			errs = append(errs, remove(dir, filepath.Join(filepath.Dir(path), n)))
		}
	}
	return errors.Join(errs...)
}

// remove removes a file of the directory that is open, if it is there.
func remove(dir *os.File, path string) error {
	if err := unix.Unlinkat(int(dir.Fd()), filepath.Base(path), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// rename renames a file within the directory that is open.
func rename(dir *os.File, from, to string) error {
	fd := int(dir.Fd())
	if err := unix.Renameat(fd, filepath.Base(from), fd, filepath.Base(to)); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// compress replaces a file by its compressed form; after a crash at least one of them is complete.
func compress(dir *os.File, path string) (err error) {
	in, err := openFile(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	tmp := path + unfinished
	if err := remove(dir, tmp); err != nil { // from an interrupted compression, or planted
		return err
	}
	root, name := place(tmp)
	out, err := securepath.Open(root, name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(dir, tmp))
		}
	}()
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	err = errors.Join(err, z.Close())
	if err == nil {
		at := unix.NsecToTimespec(info.ModTime().UnixNano()) // exactly: readers find the file by it
		err = errors.Join(unix.UtimesNanoAt(int(dir.Fd()), filepath.Base(tmp), []unix.Timespec{at, at},
			unix.AT_SYMLINK_NOFOLLOW), out.Sync())
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := rename(dir, tmp, path+compressed); err != nil {
		return err
	}
	return remove(dir, path)
}
