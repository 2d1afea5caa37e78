// Package detached mounts the root of a container before the container exists: an overlay that is
// attached to no mount namespace, with the mount points that the container will need.
//
// The image store drives it, and hands the descriptor to the helper of the container, which attaches
// it. It must never change what is outside of the overlay: every path is resolved inside it, whatever
// symbolic links the image contains.
package detached

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Overlay is what Mount mounts.
type Overlay struct {
	Lower       []string // directories, topmost first
	Upper, Work string
	NoIndex     bool     // with index=off
	Points      []string // paths inside; a slash at the end means a directory
}

// longestValue is the limit of the kernel for the value of one option of fsconfig(2), without the zero byte.
const longestValue = 255

// mode is that of a mount point, as the helper makes it.
const mode = 0o755

// Mount mounts the overlay and makes its mount points; a point that cannot be made is left to the helper.
// A mount that was not attached ends when its last descriptor is closed. An error means that
// the kernel or the host has no such mounts, or that a path is too long for them.
func Mount(o Overlay) (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("opening an overlay: %w", err)
	}
	defer unix.Close(fs)
	for _, opt := range o.options() {
		if len(opt[1]) > longestValue {
			return nil, fmt.Errorf("option %s of an overlay: %w", opt[0], unix.ENAMETOOLONG)
		}
		if err := unix.FsconfigSetString(fs, opt[0], opt[1]); err != nil {
			return nil, fmt.Errorf("option %s of an overlay: %w", opt[0], err)
		}
	}
	if err := unix.FsconfigSetFlag(fs, "volatile"); err != nil { // see images.mounts
		return nil, fmt.Errorf("option volatile of an overlay: %w", err)
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("making an overlay: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mounting an overlay: %w", err)
	}
	for _, p := range o.Points {
		_ = makePoint(fd, p) // the helper makes it, or reports why it can't
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}

func (o Overlay) options() [][2]string {
	list := [][2]string{{"source", "overlay"}}
	if joined := strings.Join(o.Lower, ":"); len(joined) <= longestValue {
		list = append(list, [2]string{"lowerdir", joined})
	} else { // Linux 6.7
		for _, dir := range o.Lower {
			list = append(list, [2]string{"lowerdir+", dir})
		}
	}
	if o.NoIndex {
		list = append(list, [2]string{"index", "off"})
	}
	return append(list, [2]string{"upperdir", o.Upper}, [2]string{"workdir", o.Work})
}

// makePoint makes a file or directory, with its parents.
func makePoint(root int, point string) error {
	name := path.Join("/", point)
	fd, err := open(root, name)
	if errors.Is(err, unix.ENOENT) && name != "/" {
		fd, err = makeAt(root, name, strings.HasSuffix(point, "/"))
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// makeAt makes a file or directory that is missing, and opens it. A symbolic link that leads to
// nothing is an error.
func makeAt(root int, name string, directory bool) (int, error) {
	parent, err := open(root, path.Dir(name))
	if errors.Is(err, unix.ENOENT) {
		parent, err = makeAt(root, path.Dir(name), true)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	base := path.Base(name)
	if directory {
		err = unix.Mkdirat(parent, base, mode)
	} else {
		var made int
		if made, err = unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			mode); err == nil {
			err = unix.Close(made)
		}
	}
	if err == nil {
		err = unix.Fchmodat(parent, base, mode, 0) // whatever our umask is
	}
	if err != nil {
		return -1, err
	}
	return open(root, name)
}

func open(root int, name string) (int, error) {
	return unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}
