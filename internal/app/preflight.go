package app

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"carob/internal/base/instance"
)

// minFree is the minimum free space of a data directory: etcd allocates its log at once.
const minFree = 256 << 20

// preflight returns in one line why carob cannot run here, before it creates anything.
func preflight(in instance.Instance) error {
	if err := instance.CheckRoot(); err != nil {
		return err
	}
	if err := kernel("/proc/filesystems", "/proc/self/ns", "/sys/fs/cgroup"); err != nil {
		return err
	}
	if err := os.MkdirAll(in.DataDir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w; choose another with --data-dir", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(in.DataDir, &fs); err != nil {
		return fmt.Errorf("check data directory: %w", err)
	}
	if fs.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("data directory %s is on a read-only file system: choose another with --data-dir", in.DataDir)
	}
	return hasSpace(in, fs.Bavail*uint64(fs.Bsize))
}

// hasSpace checks the free bytes of the data directory. If carob already runs there, that is the reason to name: it may
// have filled the disk, and does not need what a start needs.
func hasSpace(in instance.Instance, free uint64) error {
	if free >= minFree {
		return nil
	}
	if owner, running, err := instance.Running(in.LockFile); err == nil && running {
		return &instance.HeldError{DataDir: in.DataDir, Owner: owner}
	}
	return fmt.Errorf(
		"data directory %s has %d MB left, carob needs %d MB: free some space or choose another with --data-dir",
		in.DataDir, free>>20, uint64(minFree)>>20)
}

// kernel checks the kernel features that containers need.
func kernel(filesystems, namespaces, cgroup string) error {
	var missing []string
	if have, err := words(filesystems); err == nil && !have["overlay"] {
		// The module may be loaded at the first mount.
		if _, err := os.Stat("/sys/module/overlay"); err != nil && !modular("overlay") {
			missing = append(missing, "overlayfs (CONFIG_OVERLAY_FS)")
		}
	}
	for ns, config := range map[string]string{"net": "CONFIG_NET_NS", "pid": "CONFIG_PID_NS", "ipc": "CONFIG_IPC_NS",
		"uts": "CONFIG_UTS_NS", "mnt": "CONFIG_NAMESPACES"} {
		if _, err := os.Lstat(filepath.Join(namespaces, ns)); err != nil {
			missing = append(missing, ns+" namespaces ("+config+")")
		}
	}
	if entries, err := os.ReadDir(cgroup); err != nil || len(entries) == 0 {
		missing = append(missing, "control groups mounted on /sys/fs/cgroup")
	}
	if len(missing) > 0 {
		return fmt.Errorf("this kernel cannot run containers, it lacks: %s", strings.Join(missing, ", "))
	}
	return nil
}

func words(file string) (map[string]bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	have := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		for w := range strings.FieldsSeq(s.Text()) {
			have[w] = true
		}
	}
	return have, nil
}

// modular reports whether a kernel module of this name is installed.
func modular(name string) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	b, err := os.ReadFile(filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]), "modules.dep"))
	return err == nil && strings.Contains(string(b), "/"+name+".ko")
}

// listen opens a port; its errors name the flag to change.
func listen(what, flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf(
			"%s cannot listen on %s: address already in use; stop the process that listens there or choose another "+
				"address with %s", what, addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s cannot listen on %s: this machine does not have this address; choose another with %s",
			what, addr, flag)
	}
	return nil, fmt.Errorf("%s cannot listen on %s: %w", what, addr, err)
}
