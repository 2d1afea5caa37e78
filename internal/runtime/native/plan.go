package native

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/runtime/native/cgroups"
	"carob/internal/runtime/native/seccomp"
)

// containerPlan is everything that decides what a container looks like from
// inside. program turns it into operations; nothing here touches the host.
type containerPlan struct {
	id       string
	config   *cri.ContainerConfig
	image    imagespec.Image
	hostname string

	groups  *cgroups.Hierarchies
	cgroup  string
	rootDir string        // where the root is mounted, in the helper's own view only
	rootfs  []mount.Mount // what makes the root
	shm     string        // the pod's /dev/shm
	etc     map[string]string
	images  map[string]imageMount // container path → an image volume

	userns    string // path of the pod's user namespace, "" for the host's
	usernsIDs IDMap

	caps      capabilities
	devices   []device
	filter    *filter      // nil: unconfined
	apparmor  string       // profile to exec under; "" for none
	selinux   string       // label to exec under; "" for none
	fileLabel string       // of the container's own files; "" for none
	hooks     *specs.Hooks // nil: none
	late      bool         // it starts among processes of others, so they see it as late as can be
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
	agent *seccompAgent // decides some calls; nil when the filter decides all
	forks bool          // it lets the helper do what it does about fork
}

func newFilter(p *seccomp.Program) *filter {
	f := &filter{bpf: p.BPF, flags: p.Flags, forks: p.Allows(unix.SYS_CLONE, unix.CLONE_PARENT|uint64(unix.SIGCHLD)) && p.Allows(unix.SYS_IOCTL, 0, unix.TIOCSCTTY)}
	for _, call := range []int{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_SETSID, unix.SYS_EXIT_GROUP} {
		f.forks = f.forks && p.Allows(call)
	}
	return f
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
func userOf(sc *cri.LinuxContainerSecurityContext, image *imagespec.ImageConfig) (user string, gid int64, err error) {
	gid = -1
	if n := sc.GetRunAsGroup().GetValue(); n < 0 || n > math.MaxInt32 {
		return "", 0, fmt.Errorf("run_as_group %d: %w", n, errIDRange)
	}
	user = image.User
	switch {
	case sc.GetRunAsUser() != nil:
		user = fmt.Sprint(sc.RunAsUser.Value)
		if sc.GetRunAsGroup() == nil {
			return user, gid, nil // the group is that of the user in the image
		}
	case sc.GetRunAsUsername() != "":
		user = sc.RunAsUsername
	}
	if sc.GetRunAsGroup() != nil {
		gid = sc.RunAsGroup.Value
		user, _, _ = strings.Cut(user, ":")
	}
	return user, gid, nil
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
	pidns := -1
	if pl.late {
		p.enter()
		pidns = p.open("/proc/self/ns/pid_for_children", unix.O_RDONLY)
	}
	cpu := pl.joinGroups(p)
	// Lowering it needs CAP_SYS_RESOURCE; a host that withholds it is degraded, not broken.
	p.write("/proc/self/oom_score_adj", fmt.Sprint(c.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()

	flags := unix.CLONE_NEWNS
	if pl.groups.V2 {
		flags |= unix.CLONE_NEWCGROUP
	}
	p.unshare(flags)
	userns := -1
	if pl.userns != "" {
		userns = p.open(pl.userns, unix.O_RDONLY)
	}
	late := pl.openLate(p, cpu)
	late.fork = pl.late
	null := p.tree("/dev/null", false)
	p.attr(null, unix.MOUNT_ATTR_RDONLY, unix.MS_PRIVATE, false, noUserNS) // or its root could change the host's mode
	// Sources are opened while our mounts are still peers of the host's, so
	// that a shared one stays one.
	volumes, err := pl.openVolumes(p)
	if err != nil {
		return nil, err
	}
	etc, etcAttr := map[string]int{}, uint64(0)
	if sc.GetReadonlyRootfs() {
		etcAttr = unix.MOUNT_ATTR_RDONLY
	}
	for _, target := range slices.Sorted(maps.Keys(pl.etc)) {
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
	if err := pl.openImages(p, volumes); err != nil {
		return nil, err
	}
	if err := pl.mountRoot(p, userns); err != nil {
		return nil, err
	}
	pl.mountSystem(p, sc.GetPrivileged(), shm, views, pidns)
	for _, target := range slices.Sorted(maps.Keys(etc)) {
		p.attr(etc[target], etcAttr, unix.MS_PRIVATE, false, userns)
		p.attach(etc[target], target, procNever)
	}
	for _, v := range volumes {
		pl.attachVolume(p, v, userns)
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
	enter := func(p *program) {
		p.pivot()
		pl.confine(p, sc, null)
		p.keyring("_ses." + pl.id)
		p.optional() // the quota of keys is small on some hosts; runc goes on, too
	}
	if sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
		return nil, errors.New("run_as_group needs run_as_user or run_as_username")
	}
	if p.slots > maxSlots {
		return nil, fmt.Errorf("%d mounts are too many for one container", len(c.Mounts))
	}
	want := wantedUser{extra: sc.GetSupplementalGroups(), strict: sc.GetSupplementalGroupsPolicy() == cri.SupplementalGroupsPolicy_Strict}
	if want.spec, want.gid, err = userOf(sc, &pl.image.Config); err != nil {
		return nil, err
	}
	if err := want.check(); err != nil {
		return nil, err // no matter what the image's files say
	}
	whoAmI := func(p *program) {
		enter(p)
		p.ask(func(p *program, files [][]byte) (*identity, error) {
			id, home, err := resolveUser(files[0], files[1], want)
			if err != nil {
				return nil, err
			}
			if c.Tty {
				p.tty(0, 0, true, id.UID)
			}
			if pl.userns != "" {
				p.setns(userns, unix.CLONE_NEWUSER)
				// Again, so that the user namespace owns them: a container with
				// CAP_SYS_ADMIN may mount, but not undo a mount of ours.
				p.unshare(flags)
			}
			pl.become(p, sc, late, id, cwd, argv, withHome(env, home))
			return id, nil
		}, "/etc/passwd", "/etc/group")
	}
	if pl.hooks == nil {
		whoAmI(p)
	} else {
		// Hooks want to see the host's files, users come from the container's: the helper first waits
		// with a question about nothing, a directory, and asks for the files when it is inside.
		p.ask(func(p *program, _ [][]byte) (*identity, error) {
			whoAmI(p)
			return nil, nil
		}, "/")
	}
	// What comes after the answer is known already but for the user: say now what can't be said then.
	if _, err := packed(argv); err != nil {
		p.fail(fmt.Errorf("argument of the command: %w", err))
	}
	_, err = packedEnv(env)
	p.fail(err)
	return p, p.err
}

// joinGroups enters the container's cgroups of version 1: the monitor's clone
// put us into that of version 2. The one that shares out processor time is only opened, and
// its slot answered, -1 for none: what we do until the exec must neither
// wait behind all else for a pod that asked for no processor, nor be paid from a small quota.
func (pl *containerPlan) joinGroups(p *program) (cpu int) {
	cpu = -1
	e := pl.groups.Entry(pl.cgroup)
	for i, tasks := range e.Tasks {
		if i == e.CPU {
			cpu = p.open(tasks, unix.O_WRONLY)
		} else {
			p.write(tasks, "0")
		}
	}
	return cpu
}

// late are slots of the files that take what the process is confined to at its
// exec; opened while /proc and /sys are the host's, since a container's may be anything.
type late struct {
	cpu, apparmor, selinux int

	fork bool // at the end it becomes a process that those of the container see
}

func (pl *containerPlan) openLate(p *program, cpu int) (l late) {
	l.cpu = cpu
	if pl.apparmor != "" {
		l.apparmor = p.open("/proc/self/attr/apparmor/exec", unix.O_WRONLY)
	}
	if pl.selinux != "" {
		l.selinux = p.open("/proc/self/attr/exec", unix.O_WRONLY)
	}
	return l
}

func withHome(env []string, home string) []string {
	for _, kv := range env {
		if strings.HasPrefix(kv, "HOME=") {
			return env
		}
	}
	if home == "" {
		home = "/"
	}
	return append(slices.Clip(env), "HOME="+home)
}

// become ends every program: from root in the container's file system to the
// user's process. The order of seccomp is runc's, so that profiles written for
// it hold: before the credentials change unless no_new_privs lets it be last.
func (pl *containerPlan) become(p *program, sc *cri.LinuxContainerSecurityContext, l late, id *identity, cwd string, argv, env []string) {
	p.stdio(id)
	if l.cpu >= 0 {
		p.writeSlot(l.cpu, "0")
	}
	if pl.apparmor != "" {
		p.writeSlot(l.apparmor, "exec "+pl.apparmor)
	}
	if pl.selinux != "" {
		p.writeSlot(l.selinux, pl.selinux)
	}
	if l.fork {
		p.shed()
	}
	nnp := sc.GetNoNewPrivs()
	if pl.filter != nil && l.fork && !pl.filter.forks && !nnp {
		p.fork() // the filter would not let it later
		l.fork = false
	}
	if pl.filter != nil && !nnp {
		p.seccomp(pl.filter.bpf, pl.filter.flags)
	}
	p.cwd(cwd)
	p.optional() // as root it may be closed to us; the user is asked again
	p.creds(id, pl.caps)
	p.cwd(cwd)
	if nnp {
		p.noNewPrivs()
	}
	p.lookup(argv, env)
	if l.fork && (pl.filter == nil || !nnp || !pl.filter.forks) {
		p.fork()
		l.fork = false
	}
	if pl.filter != nil && nnp {
		p.seccomp(pl.filter.bpf, pl.filter.flags)
	}
	if l.fork {
		p.fork()
	}
	p.exec()
}

// execProgram is one more process in a running container; with fork the container sees
// it as late as can be.
func (pl *containerPlan) execProgram(argv []string, tty bool, rows, cols uint32, id identity, fork bool) *program {
	sc := pl.config.GetLinux().GetSecurityContext()
	p := &program{}
	if fork {
		p.enter()
	}
	cpu := pl.joinGroups(p)
	p.write("/proc/self/oom_score_adj", fmt.Sprint(pl.config.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()
	late := pl.openLate(p, cpu)
	late.fork = fork
	kinds := unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	if pl.groups.V2 {
		kinds |= unix.CLONE_NEWCGROUP
	}
	p.join(kinds)
	env := envOf(pl.config, &pl.image.Config, pl.hostname)
	if tty && !pl.config.Tty {
		env = append(env, "TERM=xterm")
	}
	p.ask(func(p *program, files [][]byte) (*identity, error) {
		// Who it is was decided at the start; the image's file only knows the home.
		_, home, err := resolveUser(files[0], nil, wantedUser{spec: fmt.Sprint(id.UID), gid: int64(id.GID), strict: true})
		if err != nil {
			return nil, err
		}
		if tty {
			p.tty(rows, cols, false, id.UID)
		}
		if pl.userns != "" {
			p.join(unix.CLONE_NEWUSER)
		}
		pl.become(p, sc, late, &id, cwdOf(pl.config, &pl.image.Config), argv, withHome(env, home))
		return &id, nil
	}, "/etc/passwd")
	return p
}

// confine hides and closes what a container must not see or change.
func (pl *containerPlan) confine(p *program, sc *cri.LinuxContainerSecurityContext, null int) {
	if !sc.GetPrivileged() {
		for _, m := range sc.GetMaskedPaths() {
			p.mask(m, null)
		}
		for _, r := range sc.GetReadonlyPaths() {
			p.readonly(r)
		}
	}
	if sc.GetReadonlyRootfs() {
		p.attrPath("/", unix.MOUNT_ATTR_RDONLY)
	}
}
