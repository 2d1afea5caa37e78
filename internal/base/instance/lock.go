package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Owner is the content of the lock file, written by the running carob.
type Owner struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Version string    `json:"version"`
	URL     string    `json:"url"`
	Ready   bool      `json:"ready"`
	// Standalone: URL is that of the node agent, there is no API server.
	Standalone bool `json:"standalone,omitempty"`
}

// Lock is the lock of one carob on its data directory. The kernel releases it when the process
// ends, however it ends.
type Lock struct{ f *os.File }

// HeldError means that another carob has locked the data directory.
type HeldError struct {
	DataDir string
	Owner   Owner
}

func (e *HeldError) Error() string {
	if e.Owner.URL == "" {
		return fmt.Sprintf("another command of carob works on %s (pid %d): try again when it has ended", e.DataDir,
			e.Owner.PID)
	}
	return fmt.Sprintf(
		"carob is already running on %s (pid %d, %s): use `carob down --data-dir %s` first, or another --data-dir",
		e.DataDir, e.Owner.PID, e.Owner.URL, e.DataDir)
}

// CheckRoot returns an error unless the process runs as root, which creating containers requires.
func CheckRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("carob runs containers and needs root: use sudo")
	}
	return nil
}

// Acquire locks the data directory for this process; the error is a *HeldError if another process
// has locked it.
func Acquire(path string, o Owner) (*Lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	l, err := lock(f)
	if err != nil {
		return nil, err
	}
	return l, l.Write(o)
}

// AcquireReadOnly locks a data directory on a file system that turned read-only: the lock file does not show the owner.
func AcquireReadOnly(path string) (*Lock, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	return lock(f)
}

// lock locks an open file, or closes it.
func lock(f *os.File) (*Lock, error) {
	err := flock(f)
	if err == nil {
		return &Lock{f}, nil
	}
	defer f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		held, _ := readOwner(f)
		return nil, &HeldError{DataDir: filepath.Dir(f.Name()), Owner: held}
	}
	return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
}

// lockPatience is the time for processes that only check the lock (Running), or that were just
// killed and still free their memory.
const lockPatience = 300 * time.Millisecond

func flock(f *os.File) error {
	late := time.After(lockPatience)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-late:
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Write replaces the owner in the lock file.
func (l *Lock) Write(o Owner) error {
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode lock owner: %w", err)
	}
	b = append(b, '\n')
	if _, err := l.f.WriteAt(b, 0); err != nil { // over the old content: a reader finds one of the two at the beginning
		return fmt.Errorf("write lock file: %w", err)
	}
	if err := l.f.Truncate(int64(len(b))); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}

// Release unlocks the data directory.
func (l *Lock) Release() { _ = l.f.Close() }

// Running returns the process that has locked the data directory; ok is false if there is none.
func Running(path string) (o Owner, ok bool, err error) {
	f, err := os.Open(path) // not for writing: the disk may have turned read-only
	if errors.Is(err, os.ErrNotExist) {
		return Owner{}, false, nil
	}
	if err != nil {
		return Owner{}, false, fmt.Errorf("open lock file: %w", err)
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return Owner{}, false, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return Owner{}, false, fmt.Errorf("check lock file: %w", err)
	}
	o, err = readOwner(f)
	return o, true, err
}

func readOwner(f *os.File) (Owner, error) {
	var o Owner
	err := json.NewDecoder(io.NewSectionReader(f, 0, 1<<16)).Decode(&o)
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the process has the lock and is about to write
		return Owner{}, fmt.Errorf("read lock file: %w", err)
	}
	return o, nil
}
