package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/plan"
)

// Host returns the nodes that a CRI device names: one, or all below a directory.
func Host(d *cri.Device) ([]plan.Device, error) {
	access := d.Permissions
	if access == "" {
		access = "rwm"
	}
	path, err := filepath.EvalSymlinks(d.HostPath)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", d.HostPath, err)
	}
	target := d.ContainerPath
	if target == "" {
		target = d.HostPath
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("device %s: %w", d.HostPath, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if dev, ok := deviceFrom(path, target, access, &st); ok {
			return []plan.Device{dev}, nil
		}
		return nil, fmt.Errorf("%s is not a device", d.HostPath)
	}
	return Below(path, target, access)
}

func deviceFrom(path, target, access string, st *unix.Stat_t) (plan.Device, bool) {
	if t := st.Mode & unix.S_IFMT; t != unix.S_IFCHR && t != unix.S_IFBLK {
		return plan.Device{}, false
	}
	return plan.Device{
		Path: target, Host: path, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Access: access,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev),
	}, true
}

// Below lists the device nodes in a directory, without those of the host's own terminals and
// mounts.
func Below(dir, target, access string) ([]plan.Device, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("devices of %s: %w", dir, err)
	}
	var out []plan.Device
	for _, e := range entries {
		switch e.Name() {
		case "pts", "shm", "fd", "mqueue", "console", ".lxc", ".lxd-mounts", ".udev":
			continue
		}
		path, to := dir+"/"+e.Name(), target+"/"+e.Name()
		if e.IsDir() {
			below, err := Below(path, to, access)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			out = append(out, below...)
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue // removed since the listing
		}
		if d, ok := deviceFrom(path, to, access, &st); ok {
			out = append(out, d)
		}
	}
	return out, nil
}
