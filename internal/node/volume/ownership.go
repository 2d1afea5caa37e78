package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// groupBits are what the group of a volume may do (S4.71).
const (
	groupBits    = 0o660
	groupDirBits = 0o2110
)

// giveToGroup changes the group of all files of a volume, the content of a directory before the directory itself. Links
// are changed, never followed; other mounts are not entered. With onMismatch, a volume whose root has the group already
// is not changed.
func giveToGroup(ctx context.Context, root string, group int64, onMismatch bool) error {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	const wanted = groupBits | groupDirBits
	if onMismatch && int64(st.Gid) == group && st.Mode&wanted == wanted {
		return nil
	}
	if err := giveTree(ctx, fd, int(group), 0); err != nil {
		return fmt.Errorf("set the group of %s to %d: %w", root, group, err)
	}
	return give(fd, int(group))
}

// maxGiveDepth bounds the descriptors that giveTree holds; deeper files, which only an attack makes, keep their group.
const maxGiveDepth = 512

func giveTree(ctx context.Context, dir, group, depth int) error {
	var buf [16384]byte
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.ReadDirent(dir, buf[:])
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := giveEntry(ctx, dir, name, group, depth); err != nil && ctx.Err() != nil {
				return err
			}
			// A failure does not affect other files (S4.71): files may be removed meanwhile.
		}
	}
}

func giveEntry(ctx context.Context, dir int, name string, group, depth int) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && depth < maxGiveDepth {
		inner, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = giveTree(ctx, inner, group, depth+1)
		unix.Close(inner)
		if err != nil {
			return err
		}
	}
	return give(fd, group)
}

// give changes the group of the file of a descriptor.
func give(fd, group int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int64(st.Gid) != int64(group) {
		if err := unix.Fchownat(fd, "", -1, group, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	var want uint32 = groupBits
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil
	case unix.S_IFDIR:
		want |= groupDirBits
	}
	mode := st.Mode & 0o7777
	if mode|want == mode {
		return nil
	}
	// By its descriptor, which may be an O_PATH descriptor.
	err := unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode|want, 0)
	if errors.Is(err, unix.EROFS) {
		return nil
	}
	return err
}
