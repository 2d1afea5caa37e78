package native

import (
	"errors"
	"fmt"
	"path"
	"sort"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerPlan is everything that decides what a container looks like from
// inside. program turns it into operations; nothing here touches the host.
type containerPlan struct {
	id       string
	config   *cri.ContainerConfig
	image    imagespec.Image
	hostname string

	groups  *cgroups
	cgroup  string
	rootDir string        // where the root is mounted, in the helper's own view only
	rootfs  []mount.Mount // what makes the root
	shm     string        // the pod's /dev/shm
	etc     map[string]string
	images  map[string]imageMount // container path → an image volume

	userns    string // path of the pod's user namespace, "" for the host's
	usernsIDs IDMap

	caps     capabilities
	devices  []device
	filter   *filter // nil: unconfined
	apparmor string  // profile to exec under; "" for none
	selinux  string
}

// imageMount is an image that a container mounts.
type imageMount struct {
	mounts  []mount.Mount
	staging string // where they are mounted, in the helper's own view
	subPath string
}

type filter struct {
	bpf   []byte
	flags uint
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const stdFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

const attrSafe = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// argvOf is the command of a container: CRI's command and args over the
// image's entrypoint and cmd.
func argvOf(c *cri.ContainerConfig, image *imagespec.ImageConfig) ([]string, error) {
	command, args := c.GetCommand(), c.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = image.Cmd
		}
		command = image.Entrypoint
	}
	argv := append(append([]string{}, command...), args...)
	if len(argv) == 0 {
		return nil, errors.New("no command specified")
	}
	return argv, nil
}

// envOf is the environment: what the runtime gives, the image, the container;
// a later value of a name replaces an earlier one in its place.
func envOf(c *cri.ContainerConfig, image *imagespec.ImageConfig, hostname string) []string {
	var env []string
	at := map[string]int{}
	set := func(kv string) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			env[i] = kv
			return
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	set(defaultPath)
	if hostname != "" {
		set("HOSTNAME=" + hostname)
	}
	if c.GetTty() {
		set("TERM=xterm")
	}
	for _, kv := range image.Env {
		set(kv)
	}
	for _, kv := range c.GetEnvs() {
		set(kv.Key + "=" + string(kv.Value))
	}
	return env
}

// userOf is the user a container asks for, as user[:group], and its group if
// that is given apart (-1 if not). CRI's ids win over its name, both over the image.
func userOf(sc *cri.LinuxContainerSecurityContext, image *imagespec.ImageConfig) (user string, gid int64) {
	gid = -1
	user = image.User
	switch {
	case sc.GetRunAsUser() != nil:
		user = fmt.Sprint(sc.RunAsUser.Value)
		if sc.GetRunAsGroup() == nil {
			return user, gid // the group is that of the user in the image
		}
	case sc.GetRunAsUsername() != "":
		user = sc.RunAsUsername
	}
	if sc.GetRunAsGroup() != nil {
		gid = sc.RunAsGroup.Value
		user, _, _ = strings.Cut(user, ":")
	}
	return user, gid
}

func cwdOf(c *cri.ContainerConfig, image *imagespec.ImageConfig) string {
	for _, d := range []string{c.GetWorkingDir(), image.WorkingDir} {
		if d != "" {
			return path.Join("/", d)
		}
	}
	return "/"
}

// program is the plan as operations.
func (pl *containerPlan) program() (*program, error) {
	c, sc := pl.config, pl.config.GetLinux().GetSecurityContext()
	argv, err := argvOf(c, &pl.image.Config)
	if err != nil {
		return nil, err
	}
	env := envOf(c, &pl.image.Config, pl.hostname)
	p := &program{}
	if !pl.groups.v2 { // on v2 the monitor's clone put us there already
		for _, procs := range pl.groups.procs(pl.cgroup) {
			p.write(procs, "0")
		}
	}
	// Lowering it needs CAP_SYS_RESOURCE; a host that withholds it is degraded, not broken.
	p.write("/proc/self/oom_score_adj", fmt.Sprint(c.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()

	flags := unix.CLONE_NEWNS
	if pl.groups.v2 {
		flags |= unix.CLONE_NEWCGROUP
	}
	p.unshare(flags)
	userns := -1
	if pl.userns != "" {
		userns = p.open(pl.userns)
	}
	// Sources are opened while our mounts are still peers of the host's, so
	// that a shared one stays one.
	volumes, err := pl.openVolumes(p)
	if err != nil {
		return nil, err
	}
	etc := map[string]int{}
	for _, target := range sortedKeys(pl.etc) {
		if !mountsAt(c.Mounts, target) {
			etc[target] = p.tree(pl.etc[target], false)
		}
	}
	shm := -1
	if pl.shm != "" && !mountsAt(c.Mounts, "/dev/shm") {
		shm = p.tree(pl.shm, false)
	}
	views := pl.openCgroupView(p)
	p.propagate(unix.MS_REC | unix.MS_SLAVE)
	if err := pl.mountRoot(p); err != nil {
		return nil, err
	}
	pl.mountSystem(p, sc.GetPrivileged(), shm, views)
	for _, target := range sortedKeys(etc) {
		p.attr(etc[target], 0, 0, unix.MS_PRIVATE, false)
		p.attach(etc[target], target)
	}
	for _, v := range volumes {
		p.attach(v.slot, v.target)
	}
	made := map[string]bool{"/dev/ptmx": true}
	for _, d := range defaultDevices {
		made[d.path] = true
	}
	for _, d := range pl.devices {
		if !made[d.path] {
			made[d.path] = true
			p.mknod(d.path, d.mode, d.major, d.minor, d.uid, d.gid)
		}
	}
	cwd := cwdOf(c, &pl.image.Config)
	p.mkdir(cwd, 0o755)
	p.optional() // chdir tells what is wrong with it
	p.pivot()
	pl.confine(p, sc)
	user, gid := userOf(sc, &pl.image.Config)
	strict := sc.GetSupplementalGroupsPolicy() == cri.SupplementalGroupsPolicy_Strict
	p.user(user, gid, sc.GetSupplementalGroups(), strict)
	p.keyring("_ses." + pl.id)
	p.optional() // the quota of keys is small on some hosts; runc goes on, too
	if c.Tty {
		p.tty(0, 0, true)
	}
	if pl.userns != "" {
		p.setns(userns, unix.CLONE_NEWUSER)
	}
	pl.become(p, sc, cwd, argv, env)
	if p.slots > maxSlots {
		return nil, fmt.Errorf("%d mounts are too many for one container", len(c.Mounts))
	}
	return p, nil
}

// become ends every program: from root in the container's file system to the
// user's process. The order of seccomp is runc's, so that profiles written for
// it hold: before the credentials change unless no_new_privs lets it be last.
func (pl *containerPlan) become(p *program, sc *cri.LinuxContainerSecurityContext, cwd string, argv, env []string) {
	if pl.apparmor != "" {
		p.write("/proc/self/attr/apparmor/exec", "exec "+pl.apparmor)
	}
	if pl.selinux != "" {
		p.write("/proc/self/attr/exec", pl.selinux)
	}
	nnp := sc.GetNoNewPrivs()
	if pl.filter != nil && !nnp {
		p.seccomp(pl.filter.bpf, pl.filter.flags)
	}
	p.cwd(cwd)
	p.optional() // as root it may be closed to us; the user is asked again
	p.creds(pl.caps)
	p.cwd(cwd)
	if nnp {
		p.noNewPrivs()
	}
	p.lookup(argv, env)
	if pl.filter != nil && nnp {
		p.seccomp(pl.filter.bpf, pl.filter.flags)
	}
	p.exec()
}

// execProgram is one more process in a running container.
func (pl *containerPlan) execProgram(argv []string, tty bool, rows, cols uint32, id identity) *program {
	sc := pl.config.GetLinux().GetSecurityContext()
	p := &program{}
	if !pl.groups.v2 {
		for _, procs := range pl.groups.procs(pl.cgroup) {
			p.write(procs, "0")
		}
	}
	p.write("/proc/self/oom_score_adj", fmt.Sprint(pl.config.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()
	kinds := unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	if pl.groups.v2 {
		kinds |= unix.CLONE_NEWCGROUP
	}
	p.join(kinds)
	env := envOf(pl.config, &pl.image.Config, pl.hostname)
	if tty && !pl.config.Tty {
		env = append(env, "TERM=xterm")
	}
	groups := make([]int64, len(id.Groups))
	for i, g := range id.Groups {
		groups[i] = int64(g)
	}
	// Numbers only: what the image's files say now no longer matters, except for HOME.
	p.user(fmt.Sprint(id.UID), int64(id.GID), groups, true)
	if tty {
		p.tty(rows, cols, false)
	}
	if pl.userns != "" {
		p.join(unix.CLONE_NEWUSER)
	}
	pl.become(p, sc, cwdOf(pl.config, &pl.image.Config), argv, env)
	return p
}

type volume struct {
	slot   int
	target string
}

// openVolumes opens the sources of the container's own mounts, parents first.
func (pl *containerPlan) openVolumes(p *program) ([]volume, error) {
	list := append([]*cri.Mount{}, pl.config.Mounts...)
	depth := func(m *cri.Mount) int { return strings.Count(path.Clean(m.ContainerPath), "/") }
	sort.SliceStable(list, func(i, j int) bool { return depth(list[i]) < depth(list[j]) })
	var out []volume
	for _, m := range list {
		target := path.Join("/", m.ContainerPath)
		if target == "/" {
			return nil, fmt.Errorf("mount of %q: the container's root can't be mounted over", m.HostPath)
		}
		var slot int
		if im, ok := pl.images[m.ContainerPath]; ok {
			for _, mnt := range im.mounts {
				if err := hostMount(p, mnt, im.staging); err != nil {
					return nil, err
				}
			}
			slot = p.treeIn(im.staging, im.subPath)
		} else {
			slot = p.tree(m.HostPath, true)
		}
		var set uint64
		if m.Readonly {
			set = unix.MOUNT_ATTR_RDONLY
		}
		for _, o := range m.MountOptions {
			switch o {
			case "ro":
				set |= unix.MOUNT_ATTR_RDONLY
			case "noexec":
				set |= unix.MOUNT_ATTR_NOEXEC
			case "nosuid":
				set |= unix.MOUNT_ATTR_NOSUID
			case "nodev":
				set |= unix.MOUNT_ATTR_NODEV
			case "noatime":
				set |= unix.MOUNT_ATTR_NOATIME
			}
		}
		if m.RecursiveReadOnly && !m.Readonly {
			return nil, fmt.Errorf("mount of %q: recursive_read_only needs readonly", m.HostPath)
		}
		propagation := uint64(unix.MS_PRIVATE)
		switch m.Propagation {
		case cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			propagation = unix.MS_SLAVE
		case cri.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			propagation = unix.MS_SHARED
		}
		p.attr(slot, 0, 0, propagation, true)
		if set != 0 {
			p.attr(slot, set, 0, 0, m.RecursiveReadOnly)
		}
		if pl.userns != "" && len(m.UidMappings)+len(m.GidMappings) > 0 {
			p.idmap(slot, pl.userns)
		}
		out = append(out, volume{slot, target})
	}
	return out, nil
}

// hostMount mounts in the helper's own view of the host.
func hostMount(p *program, m mount.Mount, target string) error {
	o, err := parseOptions(m.Options)
	if err != nil {
		return err
	}
	if m.Type == "bind" || m.Type == "rbind" || o.bind {
		slot := p.tree(m.Source, o.recursive || m.Type == "rbind")
		p.attr(slot, o.attr, 0, unix.MS_PRIVATE, false)
		p.attachHost(slot, target)
		return nil
	}
	if len(o.data) > 3500 && m.Type == "overlay" {
		// One page is all that mount(2) takes: shorten the paths by their common directory.
		dir, data := shortenOverlay(o.data)
		p.chdir(dir)
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

// parseOptions splits options as fstab has them into flags and data.
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

// shortenOverlay makes the directories of overlay options relative to the
// longest directory that all of them share.
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

// mountRoot makes the container's root and enters it.
func (pl *containerPlan) mountRoot(p *program) error {
	for _, m := range pl.rootfs {
		m, err := pl.mapLayers(p, m)
		if err != nil {
			return err
		}
		if err := hostMount(p, m, pl.rootDir); err != nil {
			return err
		}
	}
	uid, gid := pl.usernsIDs.hostRoot()
	p.root(pl.rootDir, uid, gid)
	return nil
}

// mapLayers shows the layers of an overlay with the ids of the pod's user
// namespace: each lower directory becomes an idmapped mount over itself, in
// the helper's own view. Options uidmap and gidmap are containerd's way of asking.
func (pl *containerPlan) mapLayers(p *program, m mount.Mount) (mount.Mount, error) {
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
	if pl.userns == "" {
		return m, errors.New("the image's layers ask for a user namespace that the pod does not have")
	}
	for _, o := range options {
		if lowers, ok := strings.CutPrefix(o, "lowerdir="); ok {
			for _, dir := range strings.Split(lowers, ":") {
				slot := p.tree(dir, false)
				p.attr(slot, 0, 0, unix.MS_PRIVATE, false)
				p.idmap(slot, pl.userns)
				p.attachHost(slot, dir)
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

// openCgroupView opens the container's own cgroups (version 1).
func (pl *containerPlan) openCgroupView(p *program) map[string]int {
	views := map[string]int{}
	if pl.groups.v2 || mountsAt(pl.config.Mounts, "/sys/fs/cgroup") {
		return views
	}
	for i := range pl.groups.tree {
		h := &pl.groups.tree[i]
		views[h.name] = p.tree(h.mount+pl.cgroup, false)
	}
	return views
}

// mountSystem makes /proc, /dev, /sys and what belongs into them.
func (pl *containerPlan) mountSystem(p *program, privileged bool, shm int, views map[string]int) {
	mounts := pl.config.Mounts
	uid, gid := pl.usernsIDs.hostRoot()
	owner := ""
	if pl.userns != "" {
		owner = fmt.Sprintf(",uid=%d,gid=%d", uid, gid)
	}
	if !mountsAt(mounts, "/proc") {
		p.mount("proc", "proc", "/proc", "", stdFlags)
	}
	if !mountsAt(mounts, "/dev") {
		p.mount("tmpfs", "tmpfs", "/dev", "mode=755,size=65536k"+owner, unix.MS_NOSUID|unix.MS_STRICTATIME)
		for _, d := range defaultDevices {
			p.mknod(d.path, d.mode, d.major, d.minor, uid, gid)
		}
		for _, l := range [][2]string{
			{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
			{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"}, {"/proc/kcore", "/dev/core"},
		} {
			p.symlink(l[0], l[1])
		}
		p.mount("devpts", "devpts", "/dev/pts", fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,gid=%d", gid+5), unix.MS_NOSUID|unix.MS_NOEXEC)
	}
	if !mountsAt(mounts, "/dev/mqueue") {
		p.mount("mqueue", "mqueue", "/dev/mqueue", "", stdFlags)
	}
	if shm >= 0 {
		p.attr(shm, 0, 0, unix.MS_PRIVATE, false)
		p.attach(shm, "/dev/shm")
	}
	if mountsAt(mounts, "/sys") {
		return
	}
	ro, attr := uintptr(unix.MS_RDONLY), uint64(unix.MOUNT_ATTR_RDONLY)
	if privileged {
		ro, attr = 0, 0
	}
	p.mount("sysfs", "sysfs", "/sys", "", stdFlags|ro)
	switch {
	case mountsAt(mounts, "/sys/fs/cgroup"):
	case pl.groups.v2:
		p.mount("cgroup", "cgroup2", "/sys/fs/cgroup", "", stdFlags|unix.MS_RELATIME|ro)
	default:
		p.mount("cgroup", "tmpfs", "/sys/fs/cgroup", "mode=755"+owner, stdFlags)
		for _, name := range sortedKeys(views) {
			p.attr(views[name], attrSafe|attr, 0, unix.MS_PRIVATE, false)
			p.attach(views[name], "/sys/fs/cgroup/"+name)
			for _, c := range strings.Split(name, ",") {
				if c != name { // cpu -> cpu,cpuacct
					p.symlink(name, "/sys/fs/cgroup/"+c)
				}
			}
		}
		if attr != 0 {
			p.attrPath("/sys/fs/cgroup", attr, 0, true)
		}
	}
}

// confine hides and closes what a container must not see or change.
func (pl *containerPlan) confine(p *program, sc *cri.LinuxContainerSecurityContext) {
	if !sc.GetPrivileged() {
		for _, m := range sc.GetMaskedPaths() {
			p.mask(m)
		}
		for _, r := range sc.GetReadonlyPaths() {
			p.readonly(r)
		}
	}
	if sc.GetReadonlyRootfs() {
		p.attrPath("/", unix.MOUNT_ATTR_RDONLY, 0, false)
	}
}
