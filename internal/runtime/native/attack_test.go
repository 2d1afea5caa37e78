package native

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attack is what this binary does inside a container. Each attempt prints one line: "blocked: …"
// with the kernel's reason, or "ESCAPED: …".
func attack(name string) {
	runtime.LockOSThread()
	f, ok := attacks[name]
	if !ok {
		fmt.Println("ESCAPED: no attack", name)
		return
	}
	f()
	fmt.Println("done")
}

var attacks = map[string]func(){
	"victim": attackVictim, "euid": func() { fmt.Println(os.Geteuid()) }, "overwrite": attackOverwrite,
	"swap":         attackSwap,
	"kernel-files": attackKernelFiles, "devices": attackDevices, "cgroups": attackCgroups, "null": attackNull,
	"mounts":     attackMounts,
	"own-userns": attackOwnUserNS, "inside-own-userns": attackInsideOwnUserNS,
	"processes": attackProcesses, "pod-init": attackPodInit,
	"abstract-sockets": attackSockets, "ipc": attackIPC, "ping": attackPing,
	"keyrings": attackKeyrings, "descriptors": attackDescriptors, "net": attackNet, "bomb": attackBomb,
	"peek": attackPeek, "race": attackRace,
}

// must records an attempt that must fail.
func must(what string, err error) {
	if err == nil {
		fmt.Println("ESCAPED:", what)
		return
	}
	fmt.Printf("blocked: %s: %v\n", what, err)
}

// can records a control: something that a container may do. If it fails, the attack proves nothing.
func can(what string, err error) {
	if err != nil {
		fmt.Printf("ESCAPED: the control failed: %s: %v\n", what, err)
	}
}

func overwrite(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

func attackKernelFiles() {
	for _, p := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
		"/proc/sys/vm/panic_on_oom", "/proc/sys/fs/binfmt_misc/register",
		"/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/sys/power/state",
		"/sys/kernel/mm/transparent_hugepage/enabled",
		"/sys/module/printk/parameters/time", "/sys/fs/cgroup/memory/release_agent", "/sys/kernel/security/lockdown",
		"/proc/acpi/wakeup",
	} {
		must("write "+p, overwrite(p, "1"))
	}
	for _, p := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi/scsi",
		"/sys/firmware/dmi/tables/DMI"} {
		b := make([]byte, 64)
		f, err := os.Open(p)
		n := 0
		if err == nil {
			n, err = f.Read(b)
			f.Close()
		}
		if n == 0 && err == nil {
			err = errors.New("is empty")
		}
		must("read "+p, err)
	}
	for _, p := range []string{"/proc/kcore", "/proc/sys", "/sys/firmware", "/proc/sysrq-trigger", "/sys",
		"/dev/null"} {
		must("unmount "+p, unix.Unmount(p, unix.MNT_DETACH))
		must("remount "+p, unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	}
	must("chmod the mask of /proc/keys", os.Chmod("/proc/keys", 0o600))
	must("chown the mask of /proc/keys", os.Chown("/proc/keys", 1, 1))
	must("reach the old root by pivot_root", unix.PivotRoot("/", "/tmp"))
	must("reach the host by ..", reachable("/../../../../../../work"))
	must("syslog", func() error { _, err := unix.Klogctl(10, nil); return dmesg(err) }())
	must("load a module", unix.FinitModule(0, "", 0))
	must("kexec", errnoOf(unix.Syscall(unix.SYS_KEXEC_LOAD, 0, 0, 0)))
	must("set the clock", unix.Settimeofday(&unix.Timeval{Sec: 1}))
	must("reboot", unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF))
	must("swapoff", errnoOf(unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(&[]byte("/x\x00")[0])), 0, 0)))
	must("open by handle", openByHandle())
	must("bpf", errnoOf(unix.Syscall(unix.SYS_BPF, 0, 0, 0)))
	if runtime.GOARCH == "amd64" {
		const iopl = 172 // other processors have no such call, nor has x/sys its name there
		must("io ports", errnoOf(unix.Syscall(iopl, 3, 0, 0)))
	}
}

func dmesg(err error) error {
	if err == nil {
		return errors.New("its size only, which anybody may ask")
	}
	return err
}

func reachable(path string) error {
	_, err := os.Stat(path)
	return err
}

func errnoOf(_, _ uintptr, e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// openByHandle is CVE-2014-9357 ("shocker"): inode 2 is the root of a host's ext4.
func openByHandle() error {
	mount, err := unix.Open("/etc/hostname", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func attackDevices() {
	for _, d := range []struct {
		what         string
		kind         uint32
		major, minor uint32
	}{
		{"memory", unix.S_IFCHR, 1, 1}, {"ports", unix.S_IFCHR, 1, 4}, {"kmsg", unix.S_IFCHR, 1, 11},
		{"the host's disk", unix.S_IFBLK, 254, 0},
		{"loop0", unix.S_IFBLK, 7, 0}, {"fuse", unix.S_IFCHR, 10, 229}, {"tun", unix.S_IFCHR, 10, 200},
		{"the host's console", unix.S_IFCHR, 5, 1}, {"tty1", unix.S_IFCHR, 4, 1},
	} {
		path := fmt.Sprintf("/tmp/dev-%d-%d", d.major, d.minor)
		err := unix.Mknod(path, d.kind|0o666, int(unix.Mkdev(d.major, d.minor)))
		if err == nil {
			var fd int
			if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
				unix.Close(fd)
			}
			if errors.Is(err, unix.ENXIO) { // the cgroup allowed a device that does not exist
				err = nil
			}
		}
		must("open "+d.what, err)
	}
	can("write /dev/null", overwrite("/dev/null", "x"))
}

func attackCgroups() {
	groups, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if unified, _ := filepath.Glob("/sys/fs/cgroup/cgroup.procs"); len(unified) > 0 {
		groups = append(groups, unified...)
	}
	if err != nil || len(groups) == 0 {
		fmt.Println("ESCAPED: the control failed: no cgroup is to be seen")
	}
	for _, g := range groups {
		dir := filepath.Dir(g)
		must("join "+g, overwrite(g, "0"))
		must("make a group in "+dir, os.Mkdir(dir+"/mine", 0o755))
		for _, f := range []string{"release_agent", "notify_on_release", "memory.limit_in_bytes", "pids.max",
			"devices.allow", "cgroup.subtree_control"} {
			if _, err := os.Stat(dir + "/" + f); err == nil {
				must("write "+dir+"/"+f, overwrite(dir+"/"+f, "1"))
			}
		}
		must("the group above "+dir, reachable(dir+"/../../cgroup.procs"))
		must("remount "+dir, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	}
	os.Mkdir("/tmp/cg", 0o755)
	for _, kind := range []string{"memory", "devices", "rdma", "none,name=x"} {
		err := unix.Mount("cgroup", "/tmp/cg", "cgroup", 0, kind)
		must("mount cgroup "+kind, err)
	}
}

// attackNull tries to open the host's /dev/null, whose mode matters to every process of the host.
func attackNull() {
	for fd := range 3 {
		var st, own unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			unix.Stat("/dev/null", &own)
			var err error
			if st.Dev == own.Dev {
				err = errors.New("is the container's own")
			}
			must(fmt.Sprintf("hold the host's device by descriptor %d", fd), err)
			unix.Fchmod(fd, 0o660) // the test checks the host's afterwards
			unix.Fchown(fd, 12345, 12345)
		}
	}
	os.Chmod("/dev/null", 0o600)
	os.Chmod("/proc/keys", 0o600)
}

func attackMounts() {
	must("write into a read-only volume", os.WriteFile("/ro/x", nil, 0o644))
	must("write below a recursively read-only volume", os.WriteFile("/ro/below/x", nil, 0o644))
	for _, p := range []string{"/ro", "/ro/below", "/etc/hosts"} {
		flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
		if p == "/etc/hosts" {
			flags |= unix.MS_NOEXEC // it is writable, but nothing may be changed without the right to mount
		}
		err := unix.Mount("", p, "", flags, "")
		if p == "/etc/hosts" && err == nil {
			continue // the pod's own, in the pod's user namespace
		}
		must("remount "+p, err)
		if ids, _ := os.ReadFile("/proc/self/uid_map"); p == "/etc/hosts" && !strings.Contains(string(ids), " 4294967295") {
			continue // the same, where AppArmor refuses the remount: it knows no mount_setattr
		}
		must("mount_setattr "+p,
			unix.MountSetattr(unix.AT_FDCWD, p, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
	}
	must("unmount /ro/below", unix.Unmount("/ro/below", unix.MNT_DETACH))
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/ro", unix.OPEN_TREE_CLONE)
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		unix.Close(fd)
	}
	must("a writable copy of /ro", err)
	// A link inside a read-only volume cannot be created; one elsewhere leads to nothing new.
	os.Symlink("/ro/../../../../../..", "/tmp/up")
	must("the host by a link", reachable("/tmp/up/work"))
}

// attackOwnUserNS goes on in a child: this program has threads, which cannot enter a user namespace.
func attackOwnUserNS() {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), "ATTACK=inside-own-userns")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	one := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: one(os.Getuid()), GidMappings: one(os.Getgid())}
	if err := child.Start(); err != nil {
		must("a user namespace", err)
		return
	}
	can("attack from an own user namespace", child.Wait())
}

func attackInsideOwnUserNS() {
	try := func(what string, err error) { must("in an own user namespace: "+what, err) }
	try("set the pod's host name", unix.Sethostname([]byte("mine")))
	can("all capabilities", errnoOf(unix.Syscall(unix.SYS_UNSHARE, unix.CLONE_NEWUTS, 0, 0)))
	can("a directory", os.MkdirAll("/tmp/m", 0o755))
	try("a new /proc without masks", unix.Mount("proc", "/tmp/m", "proc", 0, ""))
	try("a new /sys that is writable", unix.Mount("sysfs", "/tmp/m", "sysfs", 0, ""))
	try("unmount a mask", unix.Unmount("/proc/kcore", unix.MNT_DETACH))
	try("unmount /proc/sys", unix.Unmount("/proc/sys", unix.MNT_DETACH))
	try("remount /proc/sys", unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	try("remount /ro", unix.Mount("", "/ro", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	try("mount a disk", unix.Mount("/dev/vda", "/tmp/m", "ext4", 0, ""))
	try("write core_pattern", overwriteRaw("/proc/sys/kernel/core_pattern"))
	try("write the release agent", func() error {
		unix.Unshare(unix.CLONE_NEWCGROUP)
		if err := unix.Mount("cgroup", "/tmp/m", "cgroup", 0, "memory"); err != nil {
			return err
		}
		defer unix.Unmount("/tmp/m", unix.MNT_DETACH)
		return overwriteRaw("/tmp/m/release_agent")
	}())
}

func overwriteRaw(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("/x"))
	return err
}

func attackProcesses() {
	entries, _ := os.ReadDir("/proc")
	self := os.Getpid()
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != self {
			fmt.Println("ESCAPED: sees process", pid)
		}
	}
	if self != 1 {
		fmt.Println("ESCAPED: the control failed: process", self, "should be the first")
	}
	for f := range strings.FieldsSeq(os.Getenv("PIDS")) {
		pid, _ := strconv.Atoi(f)
		must("signal host process "+f, unix.Kill(pid, 0))
		must("trace host process "+f, unix.PtraceSeize(pid))
		_, err := unix.PidfdOpen(pid, 0)
		must("a pidfd of host process "+f, err)
		b := make([]byte, 8)
		_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}},
			[]unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
		must("memory of host process "+f, err)
	}
	for _, ns := range []string{"mnt", "pid", "net", "user", "cgroup"} {
		must("the parent of namespace "+ns, func() error {
			f, err := os.Open("/proc/self/ns/" + ns)
			if err != nil {
				return err
			}
			defer f.Close()
			const nsGetParent = 0xb702
			_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nsGetParent, 0)
			if e == 0 {
				return nil
			}
			return e
		}())
	}
}

// attackPeek tries to look into processes of carob that it can see.
func attackPeek() {
	for f := range strings.FieldsSeq(os.Getenv("PIDS")) {
		pid, _ := strconv.Atoi(f)
		can("see process "+f, reachable("/proc/"+f))
		for _, name := range []string{"root/etc", "cwd/etc", "exe", "environ", "maps", "mem", "fd/0", "ns/mnt",
			"ns/net"} {
			p := "/proc/" + f + "/" + name
			_, err := os.Stat(p)
			if name == "environ" || name == "maps" || name == "mem" {
				_, err = os.ReadFile(p)
			}
			must(p, err)
		}
		must("trace "+f, unix.PtraceSeize(pid))
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			_, err = unix.PidfdGetfd(fd, 0, 0)
			must("descriptor 0 of "+f, err)
		}
		b := make([]byte, 8)
		_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 8}},
			[]unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
		must("memory of "+f, err)
	}
}

// attackRace watches for processes that appear in its PID namespace and takes what it can before
// they become the user's: the host's root directory, more capabilities, a file.
func attackRace() {
	runtime.UnlockOSThread()
	mine := capsOf("self")
	seen := map[string]int{}
	var known [65536]uint8
	for self := os.Getpid(); ; {
		if _, err := os.Stat("/tmp/stop"); err == nil {
			break
		}
		dir, err := os.Open("/proc")
		if err != nil {
			continue
		}
		names, _ := dir.Readdirnames(-1)
		dir.Close()
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == self || pid >= len(known) || known[pid] > 40 {
				continue
			}
			known[pid]++
			if reachable("/proc/"+name+"/root") != nil {
				continue
			}
			seen["blocked: looked at a process"]++
			if reachable("/proc/"+name+"/root"+os.Getenv("VICTIM")) == nil ||
				reachable("/proc/"+name+"/cwd"+os.Getenv("VICTIM")) == nil {
				seen["ESCAPED: a process with the host's root"]++
			}
			if caps := capsOf(name); caps&^mine != 0 {
				seen[fmt.Sprintf("ESCAPED: a process with more capabilities: %x", caps&^mine)]++
			}
			fds, _ := os.ReadDir("/proc/" + name + "/fd")
			for _, fd := range fds {
				link := "/proc/" + name + "/fd/" + fd.Name()
				target, err := os.Readlink(link)
				var st unix.Stat_t
				if err == nil && unix.Stat(link, &st) == nil &&
					(strings.HasSuffix(target, "/cgroup.procs") || reachable(link+os.Getenv("VICTIM")) == nil) {
					seen["ESCAPED: an open "+target]++
				}
			}
		}
	}
	for what, n := range seen {
		fmt.Println(what, "–", n, "times")
	}
}

// capsOf returns the effective capabilities of a process, or none if it is gone.
func capsOf(pid string) uint64 {
	b, _ := os.ReadFile("/proc/" + pid + "/status")
	_, rest, _ := strings.Cut(string(b), "CapEff:\t")
	line, _, _ := strings.Cut(rest, "\n")
	caps, _ := strconv.ParseUint(line, 16, 64)
	return caps
}

func attackPodInit() {
	for _, f := range []string{"root", "root/etc", "cwd", "exe", "environ", "mem", "maps", "fd/0", "ns/mnt", "ns/pid"} {
		p := "/proc/1/" + f
		var err error
		switch {
		case strings.HasPrefix(f, "root"), f == "cwd":
			_, err = os.ReadDir(p)
		case f == "exe" || strings.HasPrefix(f, "ns/"):
			_, err = os.Readlink(p)
		default:
			var b []byte
			if b, err = os.ReadFile(p); err == nil && len(b) == 0 {
				err = errors.New("is empty")
			}
		}
		must(p, err)
	}
	must("trace the pod's first process", unix.PtraceSeize(1))
	if b, err := os.ReadFile("/proc/1/comm"); err != nil || strings.TrimSpace(string(b)) != "pod-init" {
		fmt.Printf("ESCAPED: the control failed: the first process is %q, %v\n", b, err)
	}
}

const attackSocket = "@carob-isolation-test"

// attackVictim is a pod with secrets and files that others would like to read.
func attackVictim() {
	l, err := net.Listen("unix", attackSocket)
	can("listen", err)
	c, err := net.Dial("unix", attackSocket)
	can("reach the socket from the same pod", err)
	c.Close()
	_, _, e := unix.Syscall(unix.SYS_SHMGET, 0xca20b, 4096, 0o666|unix.IPC_CREAT)
	if e != 0 {
		can("shared memory", e)
	}
	_, err = unix.AddKey("user", "carob-secret", []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING)
	can("a key", err)
	os.WriteFile("/dev/shm/secret", []byte("x"), 0o644)
	t, err := net.Listen("tcp", "127.0.0.1:7777")
	can("listen on loopback", err)
	fmt.Println("ready")
	time.Sleep(time.Hour)
	l.Close()
	t.Close()
}

func attackSockets() {
	_, err := net.Dial("unix", attackSocket)
	must("the neighbour's abstract socket", err)
	b, _ := os.ReadFile("/proc/net/unix")
	if bytes.Contains(b, []byte(attackSocket)) {
		fmt.Println("ESCAPED: /proc/net/unix shows the neighbour's socket")
	}
}

// attackPing pings the loopback address over an ICMP echo socket, and tries what CAP_NET_RAW
// allows.
func attackPing() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	can("a socket for echoes", err)
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	can("send an echo", unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1, 'h', 'i'}, 0, to))
	can("patience", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	b := make([]byte, 64)
	n, _, err := unix.Recvfrom(fd, b, 0)
	can("the answer", err)
	if n != 10 || b[0] != 0 || string(b[8:n]) != "hi" {
		fmt.Printf("ESCAPED: the control failed: the answer is %v\n", b[:n])
	}
	for what, s := range map[string][3]int{"raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"packet": {unix.AF_PACKET, unix.SOCK_RAW, 0}, "cooked": {unix.AF_PACKET, unix.SOCK_DGRAM, 0}} {
		_, err := unix.Socket(s[0], s[1], s[2])
		must("a "+what+" socket", err)
	}
}

func attackIPC() {
	_, _, e := unix.Syscall(unix.SYS_SHMGET, 0xca20b, 4096, 0o666)
	if e == 0 {
		must("the neighbour's shared memory", nil)
	} else {
		must("the neighbour's shared memory", e)
	}
	must("the neighbour's /dev/shm", reachable("/dev/shm/secret"))
}

func attackNet() {
	_, err := net.DialTimeout("tcp", "127.0.0.1:7777", 2*time.Second)
	must("the neighbour's loopback", err)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
	}
	must("the host's audit", err)
}

func attackKeyrings() {
	id, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 0, 0, 0)
	can("a session keyring", err)
	name, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
	can("describe the session keyring", err)
	if !strings.Contains(name, "_ses.") || strings.HasSuffix(name, "_ses.0") || strings.Contains(name, "_uid") {
		fmt.Println("ESCAPED: the session keyring is", name)
	}
	_, err = unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "carob-secret", 0)
	must("the neighbour's key", err)
	_, err = unix.RequestKey("user", "carob-secret", "", 0)
	must("the neighbour's key by request", err)
}

func attackDescriptors() {
	list, err := os.ReadDir("/proc/self/fd")
	can("list descriptors", err)
	for _, e := range list {
		n, _ := strconv.Atoi(e.Name())
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		// What this Go program itself opens: epoll, an eventfd, its CPU limit, and the directory
		// that it lists.
		if err != nil || n < 3 || strings.HasPrefix(target, "anon_inode:[event") ||
			strings.HasPrefix(target, "/proc/") || strings.HasPrefix(target, "/sys/fs/cgroup/cpu") {
			continue
		}
		fmt.Printf("ESCAPED: descriptor %d is %s\n", n, target)
	}
}

// sealsModes says whether the kernel has F_SEAL_EXEC (Linux 6.3).
func sealsModes() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return true
	}
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 3
}

// attackOverwrite waits for programs of the runtime to run in the container and writes to them.
func attackOverwrite() {
	self := os.Getpid()
	seen := map[string]int{}
	for {
		if _, err := os.Stat("/tmp/stop"); err == nil {
			break
		}
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == self {
				continue
			}
			exe := "/proc/" + e.Name() + "/exe"
			target, err := os.Readlink(exe)
			if err != nil || !strings.Contains(target, "carob") && !strings.Contains(target, "memfd") {
				continue
			}
			fd, err := unix.Open(exe, unix.O_PATH, 0)
			if err != nil {
				seen["blocked: open: "+err.Error()]++
				continue
			}
			if now, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || now != target {
				unix.Close(fd) // it has already become the container's own program
				continue
			}
			if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0); err != nil {
				seen["blocked: chmod: "+err.Error()]++
			} else if !sealsModes() {
				seen["blocked: chmod: before Linux 6.3 carob creates the program again"]++
			} else {
				seen["ESCAPED: nobody can execute "+target]++
			}
			for range 200 { // until the last process that uses it has ended
				w, werr := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_TRUNC, 0)
				if err = werr; err != nil {
					if errors.Is(err, unix.ETXTBSY) {
						time.Sleep(100 * time.Microsecond)
						continue
					}
					break
				}
				if _, err = unix.Write(w, []byte("#!/bin/sh\n")); err == nil {
					seen["ESCAPED: wrote to "+target]++
				}
				unix.Close(w)
				break
			}
			if err != nil {
				seen["blocked: write: "+err.Error()]++
			}
			unix.Close(fd)
		}
	}
	for what, n := range seen {
		fmt.Println(what, "–", n, "times")
	}
}

// attackSwap replaces /vol/place in turn by a directory and by a link to the host's directory.
func attackSwap() {
	victim := os.Getenv("VICTIM")
	os.Mkdir("/vol/real", 0o777)
	up := "/vol/link"
	os.Symlink(strings.Repeat("../", 12)+victim, up)
	for {
		os.Rename("/vol/real", "/vol/place")
		unix.Renameat2(unix.AT_FDCWD, up, unix.AT_FDCWD, "/vol/place", unix.RENAME_EXCHANGE)
		unix.Renameat2(unix.AT_FDCWD, up, unix.AT_FDCWD, "/vol/place", unix.RENAME_EXCHANGE)
		time.Sleep(50 * time.Microsecond)
	}
}

func attackBomb() {
	for {
		os.StartProcess("/bin/sleep", []string{"sleep", "100"}, &os.ProcAttr{})
	}
}
