// Package plan plans what the helper does to become a container's process: which cgroups and
// namespaces it enters, what it mounts where, which user, capabilities, and security profiles it
// takes, and what it executes.
//
// The native runtime drives it: it fills in a Container, gets a Program, and answers the one
// question of a helper, which is about the user in the image's files (Program.Answer). Planning is
// pure: it must never access the host, read a clock, or keep state between two calls. csrc/helper.c
// executes programs.
package plan

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
	"carob/internal/runtime/native/wire"
)

// Container describes everything that a container sees from inside. Program and ExecProgram turn it
// into operations.
type Container struct {
	ID       string
	Config   *cri.ContainerConfig
	Image    imagespec.Image
	Hostname string // for its environment; "" for none

	Groups  *cgroups.Hierarchies
	Cgroup  string                // path below each hierarchy
	RootDir string                // where the root is mounted, in the helper's own view only
	RootFS  []mount.Mount         // what makes the root
	Mounted bool                  // the root is mounted already, and its helper gets it
	Shm     string                // the pod's /dev/shm
	Etc     map[string]string     // the pod's files: container path → host path
	Images  map[string]ImageMount // container path → an image volume

	UserNS           string // path of the pod's user namespace, "" for the host's
	RootUID, RootGID uint32 // the host's ids of the container's root

	Caps      Capabilities
	Devices   []Device
	Filter    *Filter      // nil: unconfined
	AppArmor  string       // profile to exec under; "" for none
	SELinux   string       // label to exec under; "" for none
	FileLabel string       // of the container's own files; "" for none
	Hooks     *specs.Hooks // nil: none
	Late      bool         // it starts beside processes of others, which see it as late as possible
	Waits     bool         // its helper runs before its cgroups are made (but that of memory), and waits for them
}

// ImageMount is an image that a container mounts.
type ImageMount struct {
	Mounts  []mount.Mount
	Staging string // where they are mounted, in the helper's own view
	SubPath string
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// StdFlags are the mount flags of file systems without programs and devices.
const StdFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

const attrSafe = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// Command returns the command of a container: CRI's command and args, or else the image's
// entrypoint and cmd.
func Command(c *cri.ContainerConfig, image *imagespec.ImageConfig) ([]string, error) {
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

// Environment returns the environment: the runtime's variables, the image's, the container's. A
// later value of a name replaces an earlier one in its place.
func Environment(c *cri.ContainerConfig, image *imagespec.ImageConfig, hostname string) []string {
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

// userOf returns the user that a container requests, as user[:group], and its group if that is
// given separately (-1 if not). CRI's IDs have precedence over its name, both over the image.
func userOf(sc *cri.LinuxContainerSecurityContext, image *imagespec.ImageConfig) (user string, gid int64, err error) {
	gid = -1
	if n := sc.GetRunAsGroup().GetValue(); n < 0 || n > math.MaxInt32 {
		return "", 0, fmt.Errorf("run_as_group %d: %w", n, ErrIDRange)
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

// WorkingDir is where the command starts: CRI's directory, or else the image's, or "/".
func WorkingDir(c *cri.ContainerConfig, image *imagespec.ImageConfig) string {
	for _, d := range []string{c.GetWorkingDir(), image.WorkingDir} {
		if d != "" {
			return path.Join("/", d)
		}
	}
	return "/"
}

// Program is the plan as operations.
func (pl *Container) Program() (*Program, error) {
	c, sc := pl.Config, pl.Config.GetLinux().GetSecurityContext()
	argv, err := Command(c, &pl.Image.Config)
	if err != nil {
		return nil, err
	}
	env := Environment(c, &pl.Image.Config, pl.Hostname)
	p := &Program{}
	pidns := -1
	if pl.Late {
		p.enter()
		pidns = p.open("/proc/self/ns/pid_for_children", unix.O_RDONLY)
	}
	cpu, joined := -1, -1
	if pl.Waits {
		joined = pl.joinMemory(p) // it exists already
	} else {
		cpu = pl.joinGroups(p, -1)
	}
	// Lowering it requires CAP_SYS_RESOURCE; on a host that does not give it, the limit stays.
	p.Write("/proc/self/oom_score_adj", fmt.Sprint(c.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()

	flags := unix.CLONE_NEWNS
	if pl.Groups.V2 {
		flags |= unix.CLONE_NEWCGROUP
	}
	p.unshare(flags)
	userns := -1
	if pl.UserNS != "" {
		userns = p.open(pl.UserNS, unix.O_RDONLY)
	}
	late := pl.openLate(p, cpu)
	late.fork = pl.Late
	null := p.tree("/dev/null", false)
	// Otherwise its root user could change the host's mode.
	p.attr(null, unix.MOUNT_ATTR_RDONLY, unix.MS_PRIVATE, false, noUserNS)
	// Sources are opened while the helper's mounts are still peers of the host's, so that a shared
	// one stays shared.
	volumes, err := pl.openVolumes(p)
	if err != nil {
		return nil, err
	}
	etc, etcAttr := map[string]int{}, uint64(0)
	if sc.GetReadonlyRootfs() {
		etcAttr = unix.MOUNT_ATTR_RDONLY
	}
	for _, target := range slices.Sorted(maps.Keys(pl.Etc)) {
		if !mountsAt(c.Mounts, target) {
			etc[target] = p.tree(pl.Etc[target], false)
		}
	}
	shm := -1
	if pl.Shm != "" && !mountsAt(c.Mounts, "/dev/shm") {
		shm = p.tree(pl.Shm, false)
	}
	p.propagate(unix.MS_REC | unix.MS_SLAVE)
	if err := pl.openImages(p, volumes); err != nil {
		return nil, err
	}
	if err := pl.mountRoot(p, userns); err != nil {
		return nil, err
	}
	if pl.Waits { // the other cgroups were made meanwhile
		p.Gate()
		late.cpu = pl.joinGroups(p, joined)
	}
	views := pl.openCgroupView(p)
	pl.mountSystem(p, sc.GetPrivileged(), shm, views, pidns)
	for _, target := range slices.Sorted(maps.Keys(etc)) {
		p.attr(etc[target], etcAttr, unix.MS_PRIVATE, false, userns)
		p.Attach(etc[target], target, ProcNever)
	}
	for _, v := range volumes {
		pl.attachVolume(p, v, userns)
	}
	made := map[string]bool{"/dev/ptmx": true}
	for _, d := range defaultDevices {
		made[d.Path] = true
	}
	for _, d := range pl.Devices {
		if !made[d.Path] && !mountedOver(c.Mounts, d.Path) {
			made[d.Path] = true
			p.mknod(d.Path, d.Mode, d.Major, d.Minor, d.UID, d.GID)
		}
	}
	cwd := WorkingDir(c, &pl.Image.Config)
	if strings.ContainsRune(cwd, 0) {
		return nil, fmt.Errorf("working directory of the image: %w: %q", wire.ErrNUL, cwd)
	}
	p.mkdir(cwd, 0o755)
	p.optional() // Chdir reports what is wrong with it
	if sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
		return nil, errors.New("run_as_group needs run_as_user or run_as_username")
	}
	if p.handles > maxHandles {
		return nil, fmt.Errorf("%d mounts are too many for one container", len(c.Mounts))
	}
	want := wantedUser{extra: sc.GetSupplementalGroups(),
		strict: sc.GetSupplementalGroupsPolicy() == cri.SupplementalGroupsPolicy_Strict}
	if want.Spec, want.GID, err = userOf(sc, &pl.Image.Config); err != nil {
		return nil, err
	}
	if err := want.check(); err != nil {
		return nil, err // independent of the image's files
	}
	whoAmI := func(p *Program) {
		p.pivot()
		p.send(func(p *Program, files [][]byte) (*Identity, error) {
			id, home, err := resolveUser(files[0], files[1], want)
			if err != nil {
				return nil, err
			}
			if c.Tty {
				p.tty(0, 0, true, id.UID)
			}
			if pl.UserNS != "" {
				p.setns(userns, unix.CLONE_NEWUSER)
				// Again, so that they belong to the user namespace: a container with CAP_SYS_ADMIN
				// may mount, but not undo a mount of the runtime.
				p.unshare(flags)
			}
			pl.become(p, sc, late, id, cwd, argv, withHome(env, home))
			return id, nil
		}, "/etc/passwd", "/etc/group")
		// The rest is planned meanwhile.
		pl.confine(p, sc, null)
		p.keyring("_ses." + pl.ID)
		p.optional() // the quota of keys is small on some hosts; runc ignores the error, too
		p.await()
	}
	if pl.Hooks == nil {
		whoAmI(p)
	} else {
		// Hooks must see the host's files, but users come from the container's: the helper first waits with a question
		// that requests only a directory, and requests the files when it is inside.
		p.RequestFiles(func(p *Program, _ [][]byte) (*Identity, error) {
			whoAmI(p)
			return nil, nil
		}, "/")
	}
	// Only the user is unknown before the answer: report errors now that could not be reported
	// then.
	if _, err := wire.Pack(argv); err != nil {
		p.fail(fmt.Errorf("argument of the command: %w", err))
	}
	_, err = packedEnv(env)
	p.fail(err)
	return p, p.err
}

// joinGroups enters the container's cgroups of version 1 but one; the monitor's clone has put the helper
// into that of version 2. The cgroup that divides CPU time is only opened, and its handle returned
// (-1 for none): what the helper does before the exec must neither wait behind everything else for
// a pod without CPU requests, nor be charged to a small quota.
func (pl *Container) joinGroups(p *Program, but int) (cpu int) {
	cpu = -1
	e := pl.Groups.Entry(pl.Cgroup)
	for i, tasks := range e.Tasks {
		switch {
		case i == e.CPU:
			cpu = p.open(tasks, unix.O_WRONLY)
		case i != but:
			p.Write(tasks, "0")
		}
	}
	return cpu
}

// joinMemory enters the cgroup that accounts for memory, before anything that takes any. It returns
// which of the groups that is (-1 for none).
func (pl *Container) joinMemory(p *Program) int {
	e := pl.Groups.Entry(pl.Cgroup)
	if e.Memory >= 0 {
		p.Write(e.Tasks[e.Memory], "0")
	}
	return e.Memory
}

// late are handles of the files to which the process writes its confinement at its exec. They are
// opened while /proc and /sys are the host's, because a container's may be anything.
type late struct {
	cpu, apparmor, selinux int

	fork bool // at the end it becomes a process that the container's processes can see
}

func (pl *Container) openLate(p *Program, cpu int) (l late) {
	l.cpu = cpu
	if pl.AppArmor != "" {
		l.apparmor = p.open("/proc/self/attr/apparmor/exec", unix.O_WRONLY)
	}
	if pl.SELinux != "" {
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

// become ends every program: from root in the container's file system to the user's process.
// Seccomp is loaded in runc's order, so that profiles written for runc work: before the credentials
// change, unless no_new_privs allows loading it last.
func (pl *Container) become(p *Program, sc *cri.LinuxContainerSecurityContext, l late, id *Identity, cwd string, argv,
	env []string) {
	p.stdio(id)
	if l.cpu >= 0 {
		p.writeHandle(l.cpu, "0")
	}
	if pl.AppArmor != "" {
		p.writeHandle(l.apparmor, "exec "+pl.AppArmor)
	}
	if pl.SELinux != "" {
		p.writeHandle(l.selinux, pl.SELinux)
	}
	if l.fork {
		p.shed()
	}
	nnp := sc.GetNoNewPrivs()
	if pl.Filter != nil && l.fork && !pl.Filter.forks && !nnp {
		p.fork() // the filter would not allow it later
		l.fork = false
	}
	if pl.Filter != nil && !nnp {
		p.seccomp(pl.Filter.BPF, pl.Filter.flags)
	}
	p.Cwd(cwd)
	p.optional() // root may not be allowed to enter it; it is tried again as the user
	p.creds(id, pl.Caps)
	p.Cwd(cwd)
	if nnp {
		p.noNewPrivs()
	}
	p.Lookup(argv, env)
	if l.fork && (pl.Filter == nil || !nnp || !pl.Filter.forks) {
		p.fork()
		l.fork = false
	}
	if pl.Filter != nil && nnp {
		p.seccomp(pl.Filter.BPF, pl.Filter.flags)
	}
	if l.fork {
		p.fork()
	}
	p.Exec()
}

// ExecProgram is an additional process in a running container; with fork, the container sees it as
// late as possible. passwd is the image's file of users as an earlier exec found it, nil if it is not known: then the
// helper asks. It ends if the file has changed.
func (pl *Container) ExecProgram(argv []string, tty bool, rows, cols uint32, id Identity, fork bool,
	passwd []byte) *Program {
	sc := pl.Config.GetLinux().GetSecurityContext()
	p := &Program{}
	if fork {
		p.enter()
	}
	cpu := pl.joinGroups(p, -1)
	p.Write("/proc/self/oom_score_adj", fmt.Sprint(pl.Config.GetLinux().GetResources().GetOomScoreAdj()))
	p.optional()
	late := pl.openLate(p, cpu)
	late.fork = fork
	kinds := unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	if pl.Groups.V2 {
		kinds |= unix.CLONE_NEWCGROUP
	}
	p.join(kinds)
	env := Environment(pl.Config, &pl.Image.Config, pl.Hostname)
	if tty && !pl.Config.Tty {
		env = append(env, "TERM=xterm")
	}
	rest := func(p *Program, files [][]byte) (*Identity, error) {
		// The user was resolved at the start of the container; the image's files are only read for
		// the home directory.
		_, home, err := resolveUser(files[0], nil,
			wantedUser{Spec: fmt.Sprint(id.UID), GID: int64(id.GID), strict: true})
		if err != nil {
			return nil, err
		}
		if tty {
			p.tty(rows, cols, false, id.UID)
		}
		if pl.UserNS != "" {
			p.join(unix.CLONE_NEWUSER)
		}
		pl.become(p, sc, late, &id, WorkingDir(pl.Config, &pl.Image.Config), argv, withHome(env, home))
		return &id, nil
	}
	if passwd == nil {
		p.RequestFiles(rest, "/etc/passwd")
	} else {
		p.planFor(rest, "/etc/passwd", passwd)
	}
	return p
}

// confine masks, and makes read-only, what a container must not see or change.
func (pl *Container) confine(p *Program, sc *cri.LinuxContainerSecurityContext, null int) {
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
