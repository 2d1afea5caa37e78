package remotedisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is the files of the kernel and of udev: / except in tests.
type machine struct{ root string }

func (m machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.root}, elem...)...)
}

// Names that the kernel gives.
var (
	scsiHost    = regexp.MustCompile(`^host([0-9]{1,9})$`)
	iscsiParts  = regexp.MustCompile(`^(session|connection)[0-9:]{1,20}$`)
	blockDevice = regexp.MustCompile(`^[a-z0-9!_-]{1,64}$`)
)

// names are the entries of a directory, sorted; a missing one has none.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, nil
}

func attribute(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}

// session is a session of this machine with a target.
type session struct {
	host    int
	dir     string   // in sysfs
	portals []string // HOST:PORT of its connections, as configured and as they are now
}

// sessions are the sessions with a target.
func (m machine) sessions(target string) ([]session, error) {
	var list []session
	base := m.path("sys/class/iscsi_host")
	hosts, err := names(base)
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		found := scsiHost.FindStringSubmatch(host)
		if found == nil {
			continue
		}
		number, err := strconv.Atoi(found[1])
		if err != nil {
			continue
		}
		device := filepath.Join(base, host, "device")
		children, err := names(device)
		if err != nil {
			return nil, err
		}
		for _, name := range children {
			dir := filepath.Join(device, name)
			if !iscsiParts.MatchString(name) ||
				attribute(filepath.Join(dir, "iscsi_session", name, "targetname")) != target {
				continue
			}
			s := session{host: number, dir: dir}
			connections, err := names(dir)
			if err != nil {
				return nil, err
			}
			for _, c := range connections {
				at := filepath.Join(dir, c, "iscsi_connection", c)
				if !iscsiParts.MatchString(c) {
					continue
				}
				for _, pair := range [][2]string{{"persistent_address", "persistent_port"}, {"address", "port"}} {
					address, port := attribute(filepath.Join(at, pair[0])), attribute(filepath.Join(at, pair[1]))
					if address != "" && port != "" {
						if strings.Contains(address, ":") {
							address = "[" + strings.Trim(address, "[]") + "]"
						}
						s.portals = append(s.portals, address+":"+port)
					}
				}
			}
			list = append(list, s)
		}
	}
	return list, nil
}

// lunDevices are the names of the block devices of a LUN of a target: sda.
func (m machine) lunDevices(target string, lun int32) ([]string, error) {
	all, err := m.sessions(target)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, s := range all {
		children, err := names(s.dir)
		if err != nil {
			return nil, err
		}
		for _, c := range children {
			if !strings.HasPrefix(c, "target") {
				continue
			}
			address := strings.TrimPrefix(c, "target") + ":" + strconv.Itoa(int(lun)) // HOST:CHANNEL:TARGET:LUN
			devices, err := names(filepath.Join(s.dir, c, address, "block"))
			if err != nil {
				return nil, err
			}
			list = append(list, devices...)
		}
	}
	return slices.DeleteFunc(list, func(n string) bool { return !blockDevice.MatchString(n) }), nil
}

// fcDevices are the names of the block devices of a disk of Fibre Channel.
func (m machine) fcDevices(d *FC) ([]string, error) {
	var list []string
	add := func(link string) error {
		device, err := m.resolve(link)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !slices.Contains(list, device) {
			list = append(list, device)
		}
		return err
	}
	if len(d.WWNs) > 0 {
		dir := m.path("dev/disk/by-path")
		links, err := names(dir)
		if err != nil {
			return nil, err
		}
		for _, w := range d.WWNs {
			own := fmt.Sprintf("fc-0x%s-lun-%d", w, d.LUN)
			for _, l := range links {
				if l == own || strings.HasPrefix(l, "pci-") && strings.HasSuffix(l, "-"+own) {
					if err := add(filepath.Join(dir, l)); err != nil {
						return nil, err
					}
				}
			}
		}
		return list, nil
	}
	for _, w := range d.WWIDs {
		if err := add(m.path("dev/disk/by-id", "scsi-"+w)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// resolve is the name of the device below /dev that a link names.
func (m machine) resolve(link string) (string, error) {
	target, err := filepath.EvalSymlinks(link)
	if err != nil {
		return "", err
	}
	dev, err := filepath.EvalSymlinks(m.path("dev"))
	if err != nil {
		return "", err
	}
	name, err := filepath.Rel(dev, target)
	if err != nil || !blockDevice.MatchString(name) {
		return "", fmt.Errorf("%s is no link to a device", link)
	}
	return name, nil
}

// multipath is the device of multipathd above one of the devices; "": none. Others of the device mapper, such as
// logical volumes, do not count.
func (m machine) multipath(devices []string) (string, error) {
	all, err := names(m.path("sys/block"))
	if err != nil {
		return "", err
	}
	for _, dm := range all {
		if !strings.HasPrefix(dm, "dm-") ||
			!strings.HasPrefix(attribute(m.path("sys/block", dm, "dm/uuid")), "mpath-") {
			continue
		}
		for _, d := range devices {
			if _, err := os.Stat(m.path("sys/block", dm, "slaves", d)); err == nil {
				return dm, nil
			}
		}
	}
	return "", nil
}

// write writes to a file of the kernel.
func (m machine) write(text string, elem ...string) error {
	f, err := os.OpenFile(m.path(elem...), os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// free returns an error if a device is still in use: mounted, or opened exclusively. It writes what is cached.
func (m machine) free(name string) error {
	path := m.path("dev", name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "check that nothing uses", Path: path, Err: err}
	}
	err = unix.IoctlSetInt(fd, unix.BLKFLSBUF, 0)
	_ = unix.Close(fd)
	if err != nil && !errors.Is(err, unix.ENOTTY) {
		return &os.PathError{Op: "flush", Path: path, Err: err}
	}
	return nil
}
