// Package removetree removes directories that containers have written to.
//
// The volume manager and the image store use it for what a pod leaves. It must never follow a link, never enter a
// mount, and need few descriptors, however deep the directories are.
package removetree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inside makes openat2 fail if a path leads out of its directory.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// maxDepth bounds the descriptors that All holds. Deeper directories, which only
// an attack makes, are moved to the top first.
const maxDepth = 64

// maxUnmounts bounds how often one place is unmounted: mounts can be stacked.
const maxUnmounts = 32

// All deletes a directory or file with everything in it; there may be none. It never follows a link and never enters a
// mount: what is mounted inside the tree is detached.
func All(path string) error { return While(context.Background(), path) }

// While is All until ctx ends: then a part of the tree is left.
func While(ctx context.Context, path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	r := remover{stop: ctx.Err}
	if err := r.entry(parent, filepath.Base(path), 0); err != nil {
		return fmt.Errorf("removing %s: %w", path, err)
	}
	return nil
}

type remover struct {
	stop func() error // an error as soon as no more may be removed
	top  int          // descriptor of the tree's root
}

// entry deletes name in the directory fd.
func (r *remover) entry(fd int, name string, depth int) error {
	if err := r.stop(); err != nil {
		return err
	}
	for range maxUnmounts {
		err := unix.Unlinkat(fd, name, 0)
		switch {
		case err == nil || errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EISDIR):
			if err = r.dir(fd, name, depth); err == nil || errors.Is(err, unix.ENOENT) {
				return nil
			}
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EXDEV) {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := detach(fd, name); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: still mounted after %d unmounts", name, maxUnmounts)
}

func (r *remover) dir(parent int, name string, depth int) error {
	if depth > maxDepth {
		// A name that cannot be there: a container may have made any that it can foresee.
		return unix.Renameat(parent, name, r.top, ".carob-deep-"+rand.Text())
	}
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: inside,
	})
	if err != nil {
		return err
	}
	if depth == 0 {
		r.top = fd
	}
	defer unix.Close(fd)
	var buf [4096]byte
	removed := false
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if err != nil {
			return &os.PathError{Op: "readdir", Path: name, Err: err}
		}
		if n == 0 {
			err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
			if !removed || !errors.Is(err, unix.ENOTEMPTY) {
				return err
			}
			// Reading a directory may skip entries if others are deleted meanwhile.
			if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
				return err
			}
			removed = false
			continue
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, n := range names {
			if err := r.entry(fd, n, depth+1); err != nil {
				return err
			}
			removed = true
		}
	}
}

// detach unmounts name in the directory fd; the data behind the mount stays.
func detach(fd int, name string) error {
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: name, Err: err}
	}
	return nil
}
