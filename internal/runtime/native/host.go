package native

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"carob/internal/base/openfile"
	"carob/internal/runtime/native/plan"
)

// findHostFacts finds out what this host, and carob's own privileges, allow.
func findHostFacts() hostFacts {
	f := hostFacts{caps: boundingSet()}
	if b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil &&
		strings.HasPrefix(string(b), "Y") {
		f.apparmor = exists("/sys/kernel/security/apparmor")
	}
	f.selinux = exists("/sys/fs/selinux/enforce")
	f.foreignProc = mountsForeignProc()
	return f
}

func mountsForeignProc() bool {
	fd, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	ns, err := os.Open("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	defer ns.Close()
	return unix.FsconfigSetFd(fd, "pidns", openfile.FD(ns)) == nil
}

func boundingSet() uint64 {
	var set uint64
	for i := range plan.CapabilityNames {
		if v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(i), 0, 0, 0); err == nil && v == 1 {
			set |= 1 << i
		}
	}
	return set
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
