package cgroups

import (
	"fmt"
)

// DeviceRule lets a container's cgroup use devices; -1 is any number.
type DeviceRule struct {
	Kind         byte // 'a', 'b', 'c'
	Major, Minor int64
	Access       string // of "rwm"
}

// AllDevices allows a cgroup to use every device.
var AllDevices = []DeviceRule{{'a', -1, -1, "rwm"}}

// DefaultDevices are allowed for every container: null, zero, full, random, urandom, and terminals.
// A container may also create any node.
var DefaultDevices = []DeviceRule{
	{'c', -1, -1, "m"}, {'b', -1, -1, "m"},
	{'c', 1, 3, "rwm"}, {'c', 1, 5, "rwm"}, {'c', 1, 7, "rwm"}, {'c', 1, 8, "rwm"}, {'c', 1, 9, "rwm"},
	{'c', 5, 0, "rwm"}, {'c', 5, 2, "rwm"}, {'c', 136, -1, "rwm"},
}

// LimitDevices allows the cgroup to use only the devices of the rules.
func (c *Hierarchies) LimitDevices(group string, rules []DeviceRule) error {
	if c.V2 {
		return attachDeviceFilter(c.Tree[0].Mount+group, rules)
	}
	dir := c.Of("devices", group)
	if dir == "" {
		return nil
	}
	if len(rules) == 1 && rules[0].Kind == 'a' {
		return writeFile(dir+"/devices.allow", "a")
	}
	if err := writeFile(dir+"/devices.deny", "a"); err != nil {
		return err
	}
	for _, r := range rules {
		if err := writeFile(dir+"/devices.allow", r.String()); err != nil {
			return err
		}
	}
	return nil
}

// String is the rule in the kernel's format: "c 1:3 rwm".
func (r DeviceRule) String() string {
	n := func(v int64) string {
		if v < 0 {
			return "*"
		}
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%c %s:%s %s", r.Kind, n(r.Major), n(r.Minor), r.Access)
}
