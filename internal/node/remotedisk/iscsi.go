package remotedisk

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Waits, as upstream's.
const (
	deviceWait    = 30 * time.Second // for the device of a portal
	multipathWait = 10 * time.Second // for the device above several
	minPaths      = 2                // are enough if others fail twice
	minAttempts   = 2
	maxAttempts   = 5
)

// Exit statuses of iscsiadm.
const (
	sessionNotFound = 2
	sessionExists   = 15
	nothingFound    = 21
)

var transportName = regexp.MustCompile(`(?m)^iface\.transport_name = (.*)$`)

// settings are what an interface takes over from the one that it is a copy of.
var settings = regexp.MustCompile(`(?m)^(iface\.[a-z0-9_.]+) = ([A-Za-z0-9._:/-]+)$`)

// iscsiadm runs the program. Arguments do not appear in errors.
func (m *Manager) iscsiadm(ctx context.Context, what string, args ...string) (string, error) {
	out, err := m.cfg.Run(ctx, "iscsiadm", args...)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("iscsi: the node has no iscsiadm (package open-iscsi): %w", err)
	}
	if err != nil {
		return out, fmt.Errorf("iscsi: %s: %w: %.512s", what, err, strings.TrimSpace(out))
	}
	return out, nil
}

// failedWith reports whether a program ended with one of the exit statuses.
func failedWith(err error, statuses ...int) bool {
	e, ok := errors.AsType[*exec.ExitError](err)
	return ok && slices.Contains(statuses, e.ExitCode())
}

// attachISCSI logs in to all portals of a target, and returns the devices of a LUN, one for each path.
func (m *Manager) attachISCSI(ctx context.Context, d *ISCSI, s Secrets) (devices []string, err error) {
	out, err := m.iscsiadm(ctx, "read interface "+d.Interface, "-m", "iface", "-I", d.Interface, "-o", "show")
	if err != nil {
		return nil, err
	}
	transport := ""
	if found := transportName.FindStringSubmatch(out); found != nil {
		transport = strings.TrimSpace(found[1])
	}
	if transport == "" {
		return nil, fmt.Errorf("could not parse iface file for %s", d.Interface)
	}
	if d.Initiator != "" {
		if err := m.cloneInterface(ctx, d, out); err != nil {
			return nil, err
		}
	}
	paths := map[string]string{} // device by portal
	var last error
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		for _, portal := range d.Portals {
			if paths[portal] != "" {
				continue
			}
			device, err := m.attachPath(ctx, d, s, portal, transport)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				last = err
				continue
			}
			paths[portal] = device
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("failed to get any path for iscsi disk, last err seen: %w", last)
		}
		if len(paths) == len(d.Portals) || len(paths) >= minPaths && attempt >= minAttempts {
			break
		}
	}
	for _, portal := range d.Portals {
		if device := paths[portal]; device != "" && !slices.Contains(devices, device) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// cloneInterface makes the interface of a volume with its own initiator's name.
func (m *Manager) cloneInterface(ctx context.Context, d *ISCSI, shown string) error {
	iface := d.iface()
	if _, err := m.iscsiadm(ctx, "create interface "+iface, "-m", "iface", "-I", iface, "-o", "new"); err != nil &&
		!failedWith(err, sessionExists) {
		return err
	}
	for _, set := range settings.FindAllStringSubmatch(shown, -1) {
		name, value := set[1], set[2]
		if name == "iface.iscsi_ifacename" || name == "iface.initiatorname" {
			continue
		}
		if _, err := m.iscsiadm(ctx, "set up interface "+iface, "-m", "iface", "-I", iface, "-o", "update", "-n", name,
			"-v", value); err != nil {
			return err
		}
	}
	_, err := m.iscsiadm(ctx, "set up interface "+iface, "-m", "iface", "-I", iface, "-o", "update", "-n",
		"iface.initiatorname", "-v", d.Initiator)
	return err
}

// attachPath logs in to a portal unless there is a session, and waits for the device of the LUN.
func (m *Manager) attachPath(ctx context.Context, d *ISCSI, s Secrets, portal, transport string) (string, error) {
	host, ok, err := m.hostOf(d.Target, portal)
	if err != nil {
		return "", err
	}
	if !ok {
		if err := m.login(ctx, d, s, portal); err != nil {
			return "", err
		}
		if host, ok, err = m.hostOf(d.Target, portal); err != nil {
			return "", err
		}
		if !ok {
			return "", fmt.Errorf("iscsi: no session with portal %s after the login", portal)
		}
	}
	// Only this LUN: the kernel must not get disks that no volume names.
	if err := m.machine.write("0 0 "+strconv.Itoa(int(d.LUN)), "sys/class/scsi_host", "host"+strconv.Itoa(host),
		"scan"); err != nil {
		return "", fmt.Errorf("iscsi: scan for LUN %d: %w", d.LUN, err)
	}
	address := strings.NewReplacer("[", "", "]", "").Replace(portal) // as udev spells it
	name := fmt.Sprintf("ip-%s-iscsi-%s-lun-%d", address, d.Target, d.LUN)
	dir := m.machine.path("dev/disk/by-path")
	device := ""
	found, err := poll(ctx, deviceWait, func() (bool, error) {
		links, _ := names(dir) // without a disk there is no directory yet
		for _, l := range links {
			if l != name && (transport == "tcp" || !strings.HasPrefix(l, "pci-") || !strings.HasSuffix(l, "-"+name)) {
				continue
			}
			target, err := m.machine.resolve(filepath.Join(dir, l))
			if err == nil {
				device = target
				return true, nil
			}
		}
		return false, nil // the link may come or go at any moment
	})
	if err != nil {
		return "", err
	}
	if !found {
		//nolint:staticcheck // upstream's words
		return "", fmt.Errorf("Timed out waiting for device at path %s after %ds",
			filepath.Join("/dev/disk/by-path", name), int(deviceWait.Seconds()))
	}
	return device, nil
}

// hostOf is the number of the SCSI host of a session with a portal of a target.
func (m *Manager) hostOf(target, portal string) (int, bool, error) {
	all, err := m.machine.sessions(target)
	for _, s := range all {
		if slices.Contains(s.portals, portal) {
			return s.host, true, err
		}
	}
	return 0, false, err
}

// login discovers a target at a portal and makes a session with it.
func (m *Manager) login(ctx context.Context, d *ISCSI, s Secrets, portal string) error {
	iface := d.iface()
	discovery := []string{"-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", iface}
	node := []string{"-m", "node", "-p", portal, "-T", d.Target, "-I", iface}
	do := func(what string, base []string, args ...string) error {
		_, err := m.iscsiadm(ctx, what, slices.Concat(base, args)...)
		return err
	}
	set := func(base []string, name, value string) error {
		return do("set "+name+" for portal "+portal, base, "-o", "update", "-n", name, "-v", value)
	}
	chap := func(base []string, method string, names []string) error {
		if err := set(base, method, "CHAP"); err != nil {
			return err
		}
		for _, name := range names {
			if v := s.Values[name]; len(v) > 0 {
				// Neither the value nor what the program writes about it may be in an error.
				if _, err := m.cfg.Run(ctx, "iscsiadm", slices.Concat(base, []string{"-o", "update", "-n", name, "-v",
					string(v)})...); err != nil {
					return fmt.Errorf("iscsi: set %s for portal %s: %w", name, portal, err)
				}
			}
		}
		return nil
	}
	_ = do("record portal "+portal, discovery, "-o", "new") // there may be a record
	if s.Discovery {
		if err := chap(discovery, "discovery.sendtargets.auth.authmethod", chapDiscovery); err != nil {
			return err
		}
	}
	if err := do("discover the targets of portal "+portal, discovery, "--discover"); err != nil {
		_ = do("forget portal "+portal, discovery, "-o", "delete")
		return err
	}
	_ = set(node, "node.session.scan", "manual") // older programs do not know it
	if s.Session {
		if err := chap(node, "node.session.auth.authmethod", chapSession); err != nil {
			return err
		}
	}
	if err := do("log in to portal "+portal, node, "--login"); err != nil && !failedWith(err, sessionExists) {
		_ = do("forget the target at portal "+portal, node, "-o", "delete")
		return err
	}
	_ = set(node, "node.startup", "manual") // a start of the machine must not wait for the target
	return nil
}

// logout ends the sessions with a target that no volume uses any more.
func (m *Manager) logout(ctx context.Context, d *ISCSI) error {
	iface := d.iface()
	for _, portal := range d.Portals {
		base := []string{"-m", "node", "-p", portal, "-T", d.Target, "-I", iface}
		for _, step := range []struct {
			what string
			args []string
		}{{"log out of portal ", []string{"--logout"}}, {"forget the target at portal ", []string{"-o", "delete"}}} {
			_, err := m.iscsiadm(ctx, step.what+portal, slices.Concat(base, step.args)...)
			if errors.Is(err, exec.ErrNotFound) { // then no session was made, either
				return nil
			}
			if err != nil && !failedWith(err, sessionNotFound, nothingFound) {
				return err
			}
		}
	}
	if d.Initiator == "" {
		return nil
	}
	_, err := m.iscsiadm(ctx, "delete interface "+iface, "-m", "iface", "-I", iface, "-o", "delete")
	if failedWith(err, sessionNotFound, nothingFound) {
		err = nil
	}
	return err
}
