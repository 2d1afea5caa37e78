package podcgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// makeAll creates a new group of version 1 below an existing one, in a third of the time of the
// library, which checks every cpuset up to the root. It returns false if the library must create
// missing parents.
func makeAll(dirs map[string]string) bool {
	if len(dirs) == 0 {
		return false
	}
	for controller, dir := range dirs {
		if controller == "devices" { // the runtime's (SkipDevices)
			continue
		}
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return false
		}
		if controller != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // no process may enter before they are set
			value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err != nil || len(bytes.TrimSpace(value)) == 0 {
				return false
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return false
			}
		}
	}
	return true
}

// removeEmpty removes the directories of an empty group, for example that of a pod whose containers were removed. It
// returns false if something is left.
func removeEmpty(dirs map[string]string) bool {
	empty := true
	for _, dir := range dirs {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			empty = false
		}
	}
	return empty
}

// kill ends every process below the directories.
func kill(dirs map[string]string) error {
	var errs []error
	for _, controller := range slices.Sorted(maps.Keys(dirs)) {
		dir := dirs[controller]
		// cgroup v2 kills a whole tree at once, including processes that fork meanwhile.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err == nil {
			continue
		}
		pids, err := cgroups.GetAllPids(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
			}
		}
	}
	return errors.Join(errs...)
}
