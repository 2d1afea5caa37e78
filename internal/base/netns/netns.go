// Package netns runs code inside network namespaces and keeps them alive under
// file names.
//
// Pod networks and the native runtime use it. It must never leave a thread in a
// foreign namespace to code that does not expect it: what runs inside has a
// thread of its own, which ends with it.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f on a thread inside the namespace at path. f must not leave its
// goroutine: sockets and files that it makes can be used anywhere afterwards.
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

// DoNew runs f on a thread inside a new namespace, which ends with f unless f
// pins Current or keeps a socket of it.
func DoNew(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread runs f on a thread that ends with it. The main thread never ends, so
// it is left alone: a namespace that it had entered would stay for good, and be
// the whole process's in /proc.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOwnThread(f) // while we hold the main thread it can't be chosen again
			return
		}
		done <- f() // and stay locked: the thread ends with this goroutine
	}()
	return <-done
}

// Current is the path of the namespace of the thread that opens it.
const Current = "/proc/thread-self/ns/net"

// Pin keeps the namespace at source alive under a file name, which must be free.
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

// Unpin lets a namespace go, also one that is gone already; the kernel removes its
// devices in the background.
func Unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted (any more)
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

// Pinned reports whether a namespace is alive at path; after a reboot it isn't.
func Pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
