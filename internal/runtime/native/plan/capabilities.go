package plan

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Capabilities are the sets a process gets, one bit per capability.
type Capabilities struct {
	Bounding, Effective, Inheritable, Ambient uint64
}

// CapabilityNames in the kernel's order.
var CapabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

const allCapabilities = 1<<41 - 1

// defaultCapabilities are those of every CRI runtime.
const defaultCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FSETID | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_MKNOD | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_KILL |
	1<<unix.CAP_AUDIT_WRITE

func capabilityBit(name string) (uint64, error) {
	short := strings.TrimPrefix(strings.ToUpper(name), "CAP_")
	for i, n := range CapabilityNames {
		if n == short {
			return 1 << i, nil
		}
	}
	return 0, fmt.Errorf("unknown capability %q", name)
}

// CapabilitySets returns the sets for a security context. host limits them: a capability that the
// host does not have is left out.
func CapabilitySets(c *cri.Capability, privileged bool, host uint64) (Capabilities, error) {
	set := uint64(defaultCapabilities)
	if privileged {
		set = allCapabilities
	}
	var ambient uint64
	// ALL first, then single names: "drop ALL, add X" and "add ALL, drop X" both work, whatever the
	// order of the lists.
	if has(c.GetAddCapabilities(), "ALL") {
		set = allCapabilities
	}
	if has(c.GetDropCapabilities(), "ALL") {
		set = 0
	}
	for _, change := range []struct {
		names []string
		apply func(bit uint64)
	}{
		{c.GetAddCapabilities(), func(b uint64) { set |= b }},
		{c.GetDropCapabilities(), func(b uint64) { set &^= b }},
		{c.GetAddAmbientCapabilities(), func(b uint64) { ambient |= b; set |= b }},
	} {
		for _, name := range change.names {
			if strings.EqualFold(name, "ALL") {
				continue
			}
			b, err := capabilityBit(name)
			if err != nil {
				return Capabilities{}, err
			}
			change.apply(b)
		}
	}
	set &= host
	ambient &= host
	return Capabilities{Bounding: set, Effective: set, Inheritable: ambient, Ambient: ambient}, nil
}

func has(list []string, name string) bool {
	for _, s := range list {
		if strings.EqualFold(s, name) {
			return true
		}
	}
	return false
}
