package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"carob/internal/base/removetree"
)

// RemoveTree deletes a directory or file. It never follows a link and never enters a mount: what is mounted
// inside is detached. It may be repeated, and stops when ctx ends.
func RemoveTree(ctx context.Context, path string) error { return removetree.While(ctx, path) }

// maxLoopTries limits how often another process may take the free loop device first.
const maxLoopTries = 32

// attachLoop returns the loop device of a file, "/dev/loopN"; it is attached unless one is.
func attachLoop(file *os.File) (string, error) {
	devices, err := loopsOf(int(file.Fd()))
	if err != nil {
		return "", err
	}
	if len(devices) > 0 {
		return devices[0], nil
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	for range maxLoopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", &os.PathError{Op: "find a free loop device", Path: file.Name(), Err: err}
		}
		path := "/dev/loop" + strconv.Itoa(n)
		if err := makeLoopNode(path, n); err != nil {
			return "", err
		}
		device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd())}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		device.Close()
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, unix.EBUSY) { // another process took the device first
			return "", &os.PathError{Op: "attach " + file.Name() + " to", Path: path, Err: err}
		}
	}
	return "", fmt.Errorf("attach %s to a loop device: no device is free", file.Name())
}

// makeLoopNode creates the node of a loop device where nothing else does: the device was created
// a moment ago.
func makeLoopNode(path string, n int) error {
	const major = 7
	err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(n))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

// loopsOf are the loop devices backed by a file, whatever its name is now.
func loopsOf(fd int) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, b := range bound {
		path := "/dev/" + strings.Split(b, "/")[3]
		device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it went
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		device.Close()
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			out = append(out, path)
		}
	}
	return out, nil
}

// LoopsResized updates the size of the loop devices backed by a file whose size has changed.
func LoopsResized(fd int) error { return eachLoop(fd, "resize", unix.LOOP_SET_CAPACITY) }

// LoopsDetached detaches the loop devices backed by a file. A device that is still open is detached when its last user
// closes it.
func LoopsDetached(fd int) error { return eachLoop(fd, "detach", unix.LOOP_CLR_FD) }

func eachLoop(fd int, what string, request uint) error {
	devices, err := loopsOf(fd)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range devices {
		device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.IoctlSetInt(int(device.Fd()), request, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, &os.PathError{Op: what, Path: path, Err: err})
		}
		device.Close()
	}
	return errors.Join(errs...)
}
