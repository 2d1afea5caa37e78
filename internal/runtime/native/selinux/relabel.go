// Package selinux labels files for containers. The runtime drives it when a container starts. It
// must never label a directory of the host, or follow a container's link out of a volume.
package selinux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// systemDirs belong to the host: with a container's label, the host would stop working.
var systemDirs = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root",
	"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib", "/var/log"}

// Relabel labels path and everything below it on its file system. A container may change the tree
// meanwhile: no link out of it is followed.
func Relabel(path, label string) error {
	path = filepath.Clean(path)
	if slices.Contains(systemDirs, path) || strings.HasPrefix(path, "/usr/") || strings.HasPrefix(path, "/etc/") {
		return errors.New("a directory of the host is not relabelled")
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // some of the pod's files are shared between pods
	}
	if err != nil {
		return err
	}
	return relabelAt(fd, label)
}

// relabelAt labels the file of a descriptor, and closes it.
func relabelAt(fd int, label string) error {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	// The path through /proc names the object itself, wherever its own path leads now.
	here := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Setxattr(here, "security.selinux", []byte(label), 0); err != nil && !errors.Is(err, unix.ENOTSUP) &&
		!errors.Is(err, unix.EROFS) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	list, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(list), "")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			below, err := unix.Openat2(fd, name,
				&unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
					Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
				continue // gone, or mounted there
			}
			if err != nil {
				return err
			}
			if err := relabelAt(below, label); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
