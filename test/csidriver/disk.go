package csidriver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// copyVolume copies the data of a volume or snapshot: the files of a directory, or the content of a file.
func copyVolume(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return copyDirectory(from, to)
	}
	return copyFile(from, to, info.Mode().Perm())
}

func copyDirectory(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			err = os.MkdirAll(target, 0o700)
		case d.Type() == fs.ModeSymlink:
			var text string
			if text, err = os.Readlink(path); err == nil {
				err = os.Symlink(text, target)
			}
		case d.Type().IsRegular():
			err = copyFile(path, target, info.Mode().Perm())
		default:
			return nil // a socket or a pipe has no data
		}
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		// The owner first: a change of it removes the bits that the mode sets again.
		return errors.Join(os.Lchown(target, int(st.Uid), int(st.Gid)), unix.Chmod(target, st.Mode&0o7777))
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// attachLoop attaches a file to a free loop device.
func attachLoop(file string) (string, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = control.Close() }()
	for range 32 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(n)
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil &&
			!errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("make %s: %w", path, err)
		}
		device, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{Fd: uint32(f.Fd())})
		_ = device.Close()
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) { // another process took the device first
			return "", fmt.Errorf("attach %s to %s: %w", file, path, err)
		}
	}
	return "", errors.New("no loop device stays free")
}

// loopOf is the loop device of a file, which is attached unless it has one.
func loopOf(file string) (string, error) {
	found := ""
	if err := loops(file, func(device *os.File) error {
		found = device.Name()
		return nil
	}); err != nil {
		return "", err
	}
	if found != "" {
		return found, nil
	}
	return attachLoop(file)
}

// eachLoop sends a request to each loop device of a file.
func eachLoop(file string, request uint) error {
	return loops(file, func(device *os.File) error { return unix.IoctlSetInt(int(device.Fd()), request, 0) })
}

// loops calls f with each loop device of a file.
func loops(file string, f func(device *os.File) error) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, b := range bound {
		device, err := os.OpenFile("/dev/"+strings.Split(b, "/")[3], os.O_RDWR, 0)
		if err != nil {
			continue // it is gone
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			err = f(device)
		}
		_ = device.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return err
		}
	}
	return nil
}
