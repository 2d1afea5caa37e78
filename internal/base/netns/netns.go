// Package netns runs code in network namespaces and keeps them alive under file names.
//
// Pod networks and the native runtime use it. It must never leave a thread in a foreign namespace
// to other code: what runs in a namespace has its own thread, which ends with it.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f on a thread in the namespace at path. f must not leave its goroutine; sockets and files
// that it opens can be used anywhere afterwards.
func Do(path string, f func() error) error {
	return onOwnThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		ns.Close()
		if err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return f()
	})
}

// DoNew runs f on a thread in a new namespace. The namespace ends with f unless f pins Current or
// keeps a socket of it.
func DoNew(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it. It never uses the main thread, which cannot
// end: it would stay in the namespace for good, and /proc would show that namespace for the whole
// process.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOwnThread(f) // holding the main thread ensures that it is not chosen again
			return
		}
		done <- f() // stays locked: the thread ends with this goroutine
	}()
	return <-done
}

// Current is the path of the namespace of the thread that opens it.
const Current = "/proc/thread-self/ns/net"

// Pin keeps the namespace at source alive under a file name, which must not exist.
func Pin(source, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("pin network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("pin network namespace at %s: %w", path, err)
	}
	return nil
}

// Unpin releases a namespace, even if it is already gone; the kernel removes its devices in the
// background.
func Unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted
		}
		if err != nil {
			return fmt.Errorf("unpin network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin network namespace: %w", err)
	}
	return nil
}

// Pinned reports whether a namespace is alive at path; after a reboot it is not.
func Pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
