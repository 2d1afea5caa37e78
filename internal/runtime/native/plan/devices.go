package plan

import (
	"slices"

	"golang.org/x/sys/unix"

	"carob/internal/runtime/native/cgroups"
)

// Device is a node in a container's /dev.
type Device struct {
	Path         string // in the container
	Host         string // its source; bind-mounted from there in a user namespace
	Mode         uint32 // type and permissions
	Major, Minor uint32
	UID, GID     uint32 // of its owner in the pod
	Access       string // of "rwm"
}

// defaultDevices are the device nodes of every container.
var defaultDevices = []Device{
	{Path: "/dev/null", Host: "/dev/null", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3},
	{Path: "/dev/zero", Host: "/dev/zero", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 5},
	{Path: "/dev/full", Host: "/dev/full", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 7},
	{Path: "/dev/random", Host: "/dev/random", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 8},
	{Path: "/dev/urandom", Host: "/dev/urandom", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 9},
	{Path: "/dev/tty", Host: "/dev/tty", Mode: unix.S_IFCHR | 0o666, Major: 5, Minor: 0},
}

// DeviceRules returns the cgroup rules for a container's devices.
func DeviceRules(devices []Device, privileged bool) []cgroups.DeviceRule {
	if privileged {
		return cgroups.AllDevices
	}
	rules := cgroups.DefaultDevices
	for _, d := range devices {
		kind := byte('c')
		if d.Mode&unix.S_IFMT == unix.S_IFBLK {
			kind = 'b'
		}
		rules = append(slices.Clip(rules),
			cgroups.DeviceRule{Kind: kind, Major: int64(d.Major), Minor: int64(d.Minor), Access: d.Access})
	}
	return rules
}
