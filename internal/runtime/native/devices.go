package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
)

// device is a node in a container's /dev.
type device struct {
	path         string // in the container
	host         string // where it comes from; bound from there in a user namespace
	mode         uint32 // type and permissions
	major, minor uint32
	uid, gid     uint32
	access       string // of "rwm"
}

// defaultDevices are the nodes every container has.
var defaultDevices = []device{
	{path: "/dev/null", host: "/dev/null", mode: unix.S_IFCHR | 0o666, major: 1, minor: 3},
	{path: "/dev/zero", host: "/dev/zero", mode: unix.S_IFCHR | 0o666, major: 1, minor: 5},
	{path: "/dev/full", host: "/dev/full", mode: unix.S_IFCHR | 0o666, major: 1, minor: 7},
	{path: "/dev/random", host: "/dev/random", mode: unix.S_IFCHR | 0o666, major: 1, minor: 8},
	{path: "/dev/urandom", host: "/dev/urandom", mode: unix.S_IFCHR | 0o666, major: 1, minor: 9},
	{path: "/dev/tty", host: "/dev/tty", mode: unix.S_IFCHR | 0o666, major: 5, minor: 0},
}

// rulesOf are the rules for a container's devices.
func rulesOf(devices []device, privileged bool) []cgroups.DeviceRule {
	if privileged {
		return cgroups.AllDevices
	}
	rules := cgroups.DefaultDevices
	for _, d := range devices {
		kind := byte('c')
		if d.mode&unix.S_IFMT == unix.S_IFBLK {
			kind = 'b'
		}
		rules = append(slices.Clip(rules), cgroups.DeviceRule{Kind: kind, Major: int64(d.major), Minor: int64(d.minor), Access: d.access})
	}
	return rules
}

// hostDevices finds the nodes that a CRI device names: one, or all below a directory.
func hostDevices(d *cri.Device) ([]device, error) {
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
			return []device{dev}, nil
		}
		return nil, fmt.Errorf("%s is not a device", d.HostPath)
	}
	return devicesBelow(path, target, access)
}

func deviceFrom(path, target, access string, st *unix.Stat_t) (device, bool) {
	if t := st.Mode & unix.S_IFMT; t != unix.S_IFCHR && t != unix.S_IFBLK {
		return device{}, false
	}
	return device{
		path: target, host: path, mode: st.Mode, uid: st.Uid, gid: st.Gid, access: access,
		major: unix.Major(st.Rdev), minor: unix.Minor(st.Rdev),
	}, true
}

// devicesBelow lists a directory of nodes, without what belongs to the host's
// own terminals and mounts.
func devicesBelow(dir, target, access string) ([]device, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("devices of %s: %w", dir, err)
	}
	var out []device
	for _, e := range entries {
		switch e.Name() {
		case "pts", "shm", "fd", "mqueue", "console", ".lxc", ".lxd-mounts", ".udev":
			continue
		}
		path, to := dir+"/"+e.Name(), target+"/"+e.Name()
		if e.IsDir() {
			below, err := devicesBelow(path, to, access)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			out = append(out, below...)
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue // unplugged since the listing
		}
		if d, ok := deviceFrom(path, to, access, &st); ok {
			out = append(out, d)
		}
	}
	return out, nil
}
