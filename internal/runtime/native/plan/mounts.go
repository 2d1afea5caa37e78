package plan

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type volume struct {
	mount  *cri.Mount
	handle int
	target string
}

// openVolumes plans the container's own mounts, parents first, and opens those that come from the
// host.
func (pl *Container) openVolumes(p *Program) ([]volume, error) {
	list := append([]*cri.Mount{}, pl.Config.Mounts...)
	depth := func(m *cri.Mount) int { return strings.Count(path.Clean(m.ContainerPath), "/") }
	sort.SliceStable(list, func(i, j int) bool { return depth(list[i]) < depth(list[j]) })
	var out []volume
	for _, m := range list {
		v := volume{mount: m, target: path.Join("/", m.ContainerPath)}
		if v.target == "/" {
			return nil, fmt.Errorf("mount of %q: the container's root cannot be mounted over", m.HostPath)
		}
		if m.RecursiveReadOnly && !m.Readonly {
			return nil, fmt.Errorf("mount of %q: recursive_read_only needs readonly", m.HostPath)
		}
		if m.RecursiveReadOnly && m.Propagation != cri.MountPropagation_PROPAGATION_PRIVATE {
			// Otherwise a later mount of the host below it would be writable.
			return nil, fmt.Errorf("mount of %q: recursive_read_only needs private propagation, not %s", m.HostPath,
				m.Propagation)
		}
		for _, o := range m.MountOptions {
			if _, ok := VolumeOptions[o]; !ok {
				return nil, fmt.Errorf("mount of %q: option %q is not supported", m.HostPath, o)
			}
		}
		if _, ok := pl.Images[m.ContainerPath]; !ok {
			v.handle = p.tree(m.HostPath, true)
		}
		out = append(out, v)
	}
	return out, nil
}

// openImages mounts image volumes in the helper's mount namespace, which by then propagates nothing
// to the host, and opens the requested parts.
func (pl *Container) openImages(p *Program, volumes []volume) error {
	for i := range volumes {
		im, ok := pl.Images[volumes[i].mount.ContainerPath]
		if !ok {
			continue
		}
		for _, m := range im.Mounts {
			if err := hostMount(p, pl.labelled(m), im.Staging); err != nil {
				return err
			}
		}
		volumes[i].handle = p.treeIn(im.Staging, im.SubPath)
	}
	return nil
}

// VolumeOptions are the mount options that a volume may have, as MOUNT_ATTR_*.
var VolumeOptions = map[string]uint64{
	"rw": 0, "ro": unix.MOUNT_ATTR_RDONLY, "noexec": unix.MOUNT_ATTR_NOEXEC, "nosuid": unix.MOUNT_ATTR_NOSUID,
	"nodev": unix.MOUNT_ATTR_NODEV, "noatime": unix.MOUNT_ATTR_NOATIME,
}

// attachVolume sets the attributes of a mount and attaches it.
func (pl *Container) attachVolume(p *Program, v volume, userns int) {
	var set uint64
	if v.mount.Readonly {
		set = unix.MOUNT_ATTR_RDONLY
	}
	for _, o := range v.mount.MountOptions {
		set |= VolumeOptions[o]
	}
	propagation := uint64(unix.MS_PRIVATE)
	switch v.mount.Propagation {
	case cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		propagation = unix.MS_SLAVE
	case cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		propagation = unix.MS_SHARED
	}
	p.attr(v.handle, 0, propagation, true, noUserNS)
	if set != 0 {
		p.attr(v.handle, set, 0, v.mount.RecursiveReadOnly, noUserNS)
	}
	if len(v.mount.UidMappings)+len(v.mount.GidMappings) > 0 {
		p.attr(v.handle, 0, 0, true, userns)
	}
	p.Attach(v.handle, v.target, procRule(v.target))
}

// procFiles may be replaced, as with runc: lxcfs and similar programs provide them.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime", "/proc/loadavg",
	"/proc/slabinfo", "/proc/sys/kernel/ns_last_pid", "/proc/sys/crypto/fips_enabled",
}

// procRule is what may be mounted at or below /proc: another /proc over the whole, files with
// numbers, nothing else.
func procRule(target string) int64 {
	switch {
	case target == "/proc":
		return ProcOnly
	case slices.Contains(procFiles, target):
		return ProcFree
	}
	return ProcNever
}

// hostMount mounts in the helper's own view of the host.
func hostMount(p *Program, m mount.Mount, target string) error {
	o, err := parseOptions(m.Options)
	if err != nil {
		return err
	}
	if m.Type == "bind" || m.Type == "rbind" || o.bind {
		handle := p.tree(m.Source, o.recursive || m.Type == "rbind")
		p.attr(handle, o.attr, unix.MS_PRIVATE, false, noUserNS)
		p.attachHost(handle, target)
		return nil
	}
	if len(o.data) > 3500 && m.Type == "overlay" {
		// mount(2) accepts only one page: shorten the paths by their common directory.
		dir, data := shortenOverlay(o.data)
		p.Chdir(dir)
		o.data = data
		if len(o.data) > 4000 {
			return fmt.Errorf("mounting the image: the options of %d bytes do not fit into a page", len(o.data))
		}
	}
	p.mountHost(m.Source, m.Type, target, o.data, o.flags)
	return nil
}

type mountOptions struct {
	flags           uintptr
	attr            uint64
	bind, recursive bool
	data            string
}

// parseOptions splits options in the format of fstab into flags and data.
func parseOptions(options []string) (mountOptions, error) {
	var o mountOptions
	var data []string
	for _, s := range options {
		switch s {
		case "ro":
			o.flags |= unix.MS_RDONLY
			o.attr |= unix.MOUNT_ATTR_RDONLY
		case "rw", "":
		case "nosuid":
			o.flags |= unix.MS_NOSUID
			o.attr |= unix.MOUNT_ATTR_NOSUID
		case "nodev":
			o.flags |= unix.MS_NODEV
			o.attr |= unix.MOUNT_ATTR_NODEV
		case "noexec":
			o.flags |= unix.MS_NOEXEC
			o.attr |= unix.MOUNT_ATTR_NOEXEC
		case "noatime":
			o.flags |= unix.MS_NOATIME
			o.attr |= unix.MOUNT_ATTR_NOATIME
		case "bind":
			o.bind = true
		case "rbind":
			o.bind, o.recursive = true, true
		default:
			if strings.HasPrefix(s, "loop") || strings.HasPrefix(s, "X-containerd.") {
				return o, fmt.Errorf("mount option %q is not supported", s)
			}
			data = append(data, s)
		}
	}
	o.data = strings.Join(data, ",")
	return o, nil
}

// shortenOverlay makes the directories of overlay options relative to the longest directory that
// all of them share.
func shortenOverlay(data string) (dir, short string) {
	var dirs []string
	options := strings.Split(data, ",")
	for _, o := range options {
		k, v, _ := strings.Cut(o, "=")
		if k == "lowerdir" || k == "upperdir" || k == "workdir" {
			dirs = append(dirs, strings.Split(v, ":")...)
		}
	}
	if len(dirs) == 0 {
		return "/", data
	}
	dir = path.Dir(dirs[0])
	for _, d := range dirs {
		if !path.IsAbs(d) {
			return "/", data
		}
		for dir != "/" && !strings.HasPrefix(d, dir+"/") {
			dir = path.Dir(dir)
		}
	}
	if dir == "/" {
		return dir, data
	}
	for i, o := range options {
		k, v, _ := strings.Cut(o, "=")
		if k == "lowerdir" || k == "upperdir" || k == "workdir" {
			parts := strings.Split(v, ":")
			for j := range parts {
				parts[j] = strings.TrimPrefix(parts[j], dir+"/")
			}
			options[i] = k + "=" + strings.Join(parts, ":")
		}
	}
	return dir, strings.Join(options, ",")
}

// mountRoot creates the container's root and enters it.
func (pl *Container) mountRoot(p *Program, userns int) error {
	rootFS := pl.RootFS
	if pl.Mounted {
		p.attachHost(p.take(), pl.RootDir)
		rootFS = nil
	}
	for _, m := range rootFS {
		m, err := pl.mapLayers(p, m, userns)
		if err != nil {
			return err
		}
		if err := hostMount(p, pl.labelled(m), pl.RootDir); err != nil {
			return err
		}
	}
	uid, gid := pl.RootUID, pl.RootGID
	p.root(pl.RootDir, uid, gid)
	return nil
}

// Points returns where the container mounts something in its root, sorted; a slash at the end means a directory.
// isFile reports whether the source of a mount is no directory. What is inside of another mount is left out.
func (pl *Container) Points(isFile func(hostPath string) bool) []string {
	dirs := []string{"/dev", "/proc", "/sys"}
	var files []string
	for _, m := range pl.Config.Mounts {
		target := path.Join("/", m.ContainerPath)
		image := m.GetImage().GetImage() != ""
		switch {
		case image && m.ImageSubPath != "": // a file or a directory: the helper sees it
		case !image && isFile(m.HostPath):
			files = append(files, target)
		default:
			dirs = append(dirs, target)
		}
	}
	for target := range pl.Etc {
		files = append(files, target)
	}
	var points []string
	add := func(target, end string) {
		if !slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(target, d+"/") }) {
			points = append(points, target+end)
		}
	}
	for _, d := range dirs {
		add(d, "/")
	}
	for _, f := range files {
		add(f, "")
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// mapLayers shows the layers of an overlay with the IDs of the pod's user namespace: each lower
// directory becomes an idmapped mount over itself, in the helper's own mount namespace. The options
// uidmap and gidmap are containerd's way of requesting it.
func (pl *Container) mapLayers(p *Program, m mount.Mount, userns int) (mount.Mount, error) {
	var options []string
	mapped := false
	for _, o := range m.Options {
		if strings.HasPrefix(o, "uidmap=") || strings.HasPrefix(o, "gidmap=") {
			mapped = true
			continue
		}
		options = append(options, o)
	}
	if !mapped {
		return m, nil
	}
	if pl.UserNS == "" {
		return m, errors.New("the image's layers require a user namespace that the pod does not have")
	}
	for _, o := range options {
		if lowers, ok := strings.CutPrefix(o, "lowerdir="); ok {
			for dir := range strings.SplitSeq(lowers, ":") {
				handle := p.tree(dir, false)
				p.attr(handle, 0, unix.MS_PRIVATE, false, userns)
				p.attachHost(handle, dir)
			}
		}
	}
	m.Options = options
	return m, nil
}

func mountsAt(list []*cri.Mount, target string) bool {
	for _, m := range list {
		if path.Join("/", m.ContainerPath) == target {
			return true
		}
	}
	return false
}

// mountedOver reports whether a path in /dev is in a volume of the container: the host's /dev, one of its directories,
// or a device. Its devices are there already, and it is not the container's to change.
func mountedOver(list []*cri.Mount, device string) bool {
	for p := device; p != "/" && (p == "/dev" || strings.HasPrefix(p, "/dev/")); p = path.Dir(p) {
		if mountsAt(list, p) {
			return true
		}
	}
	return false
}

// openCgroupView opens the container's own cgroups (version 1).
func (pl *Container) openCgroupView(p *Program) map[string]int {
	views := map[string]int{}
	if pl.Groups.V2 || mountsAt(pl.Config.Mounts, "/sys/fs/cgroup") {
		return views
	}
	for i := range pl.Groups.Tree {
		h := &pl.Groups.Tree[i]
		views[h.Name] = p.tree(h.Mount+pl.Cgroup, false)
	}
	return views
}

// mountSystem creates /proc, /dev, /sys, and their content.
func (pl *Container) mountSystem(p *Program, privileged bool, shm int, views map[string]int, pidns int) {
	mounts := pl.Config.Mounts
	uid, gid := pl.RootUID, pl.RootGID
	owner := ""
	if pl.UserNS != "" {
		owner = fmt.Sprintf(",uid=%d,gid=%d", uid, gid)
	}
	if pl.FileLabel != "" {
		owner += "," + pl.context()
	}
	switch {
	case mountsAt(mounts, "/proc"):
	case pidns >= 0:
		p.proc("/proc", pidns)
	default:
		p.Mount("proc", "proc", "/proc", "", StdFlags)
	}
	if !mountsAt(mounts, "/dev") {
		p.Mount("tmpfs", "tmpfs", "/dev", "mode=755,size=65536k"+owner, unix.MS_NOSUID|unix.MS_STRICTATIME)
		for _, d := range defaultDevices {
			p.mknod(d.Path, d.Mode, d.Major, d.Minor, uid, gid)
		}
		for _, l := range [][2]string{
			{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
			{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"}, {"/proc/kcore", "/dev/core"},
		} {
			p.symlink(l[0], l[1])
		}
		p.Mount("devpts", "devpts", "/dev/pts", fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,gid=%d", gid+5),
			unix.MS_NOSUID|unix.MS_NOEXEC)
	}
	if !mountsAt(mounts, "/dev/mqueue") {
		p.Mount("mqueue", "mqueue", "/dev/mqueue", "", StdFlags)
	}
	if shm >= 0 {
		p.attr(shm, 0, unix.MS_PRIVATE, false, noUserNS)
		p.Attach(shm, "/dev/shm", ProcNever)
	}
	if mountsAt(mounts, "/sys") {
		return
	}
	ro, attr := uintptr(unix.MS_RDONLY), uint64(unix.MOUNT_ATTR_RDONLY)
	if privileged {
		ro, attr = 0, 0
	}
	p.Mount("sysfs", "sysfs", "/sys", "", StdFlags|ro)
	switch {
	case mountsAt(mounts, "/sys/fs/cgroup"):
	case pl.Groups.V2:
		p.Mount("cgroup", "cgroup2", "/sys/fs/cgroup", "", StdFlags|unix.MS_RELATIME|ro)
	default:
		p.Mount("cgroup", "tmpfs", "/sys/fs/cgroup", "mode=755"+owner, StdFlags)
		for _, name := range slices.Sorted(maps.Keys(views)) {
			p.attr(views[name], attrSafe|attr, unix.MS_PRIVATE, false, noUserNS)
			p.Attach(views[name], "/sys/fs/cgroup/"+name, ProcNever)
			for c := range strings.SplitSeq(name, ",") {
				if c != name { // cpu -> cpu,cpuacct
					p.symlink(name, "/sys/fs/cgroup/"+c)
				}
			}
		}
		if attr != 0 {
			p.attrPath("/sys/fs/cgroup", attr)
		}
	}
}
