// Package securepath opens regular files below a directory that untrusted users may write to. It
// follows no symbolic link and opens no pipe or device. Container logs are such files, because a
// pod may mount the host's /var/log. IsMounted reports mount points, which removals must not cross.
package securepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

var (
	errLink    = errors.New("path contains a symbolic link, which is not followed here")
	errSpecial = errors.New("not a regular file")
)

// Open opens the regular file name, a path relative to root, with O_* flags; perm is for a file
// that O_CREAT creates. Symbolic links are followed in root, but not below it. Its errors are
// *fs.PathError with the full path.
func Open(root, name string, flags int, perm os.FileMode) (*os.File, error) {
	whole := filepath.Join(root, name)
	dir, err := directory(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	// Opening a pipe must not block; a regular file never does.
	fd, err := openat(dir, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, perm)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: whole, Err: err}
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errSpecial
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: whole, Err: err}
	}
	return os.NewFile(uintptr(fd), whole), nil
}

// MkdirAll creates the directory name, a path relative to root, and its parents below root.
func MkdirAll(root, name string, perm os.FileMode) error {
	at, err := directory(root)
	if err != nil {
		return err
	}
	for part := range strings.SplitSeq(filepath.Clean(name), "/") {
		next := -1
		if err = unix.Mkdirat(at, part, uint32(perm.Perm())); err == nil || errors.Is(err, unix.EEXIST) {
			next, err = openat(at, part, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
		if err != nil {
			return &fs.PathError{Op: "mkdir", Path: filepath.Join(root, name), Err: err}
		}
		at = next
	}
	unix.Close(at)
	return nil
}

// OpenDir opens the directory name, a path relative to root, for calls that take its descriptor.
func OpenDir(root, name string) (*os.File, error) {
	dir, err := directory(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	whole := filepath.Join(root, name)
	fd, err := openat(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: whole, Err: err}
	}
	return os.NewFile(uintptr(fd), whole), nil
}

func directory(root string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	return fd, nil
}

func openat(dir int, name string, flags int, perm os.FileMode) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: inside}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm.Perm())
	}
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(dir, strings.TrimPrefix(filepath.Clean(name), "/"), how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN) && tries < 32: // a concurrent rename
		case errors.Is(err, unix.ELOOP):
			return -1, fmt.Errorf("%w (%w)", errLink, err)
		case errors.Is(err, unix.ENXIO): // a pipe without a reader, a socket
			return -1, errSpecial
		default:
			return fd, err
		}
	}
}
