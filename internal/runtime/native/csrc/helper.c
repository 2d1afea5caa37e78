// helper runs one program of operations and becomes the user's process.
//
// It is started by the pod's monitor in the child's namespaces, reads the
// program from FD_SPEC and executes one operation after the other. It decides
// nothing: the program was planned and checked in Go (package plan). The first
// operation that fails ends it with a report on FD_STATUS; when FD_STATUS closes
// without a report of a failure, the user's process runs.
#include "common.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <termios.h>

// Keep in step with plan/program.go.
enum {
	OP_OPEN = 1, OP_WRITE, OP_UNSHARE, OP_SETNS, OP_JOIN, OP_PROPAGATE, OP_CHDIR, OP_TREE, OP_TREE_IN, OP_ATTR,
	OP_ATTACH_HOST, OP_MOUNT_HOST, OP_ROOT, OP_ATTACH, OP_MOUNT, OP_MKNOD, OP_SYMLINK, OP_MKDIR, OP_ATTR_PATH,
	OP_PIVOT, OP_MASK, OP_READONLY, OP_FILES, OP_KEYRING, OP_TTY, OP_STDIO, OP_SECCOMP, OP_CWD, OP_CREDS,
	OP_NO_NEW_PRIVS, OP_LOOKUP, OP_EXEC, OP_GATE, OP_ENTER, OP_PROC, OP_SHED, OP_FORK, OP_TAKE,
};

enum { OPTIONAL = 1 }; // message.flags: a failure is not one
enum { PROC_NEVER, PROC_ONLY, PROC_FREE }; // what OP_ATTACH does about the file system of /proc
enum { HANDLES = 256, MAX_FILE = 4 << 20, MAX_ANSWER = 64 << 20 };
// of open_tree, move_mount, mount_setattr
enum { CLONE_TREE = 1, FROM_EMPTY = 4, TO_EMPTY = 0x40, READ_ONLY = 1, MAP_IDS = 0x100000 };

struct report {
	// 'E' failure, 'F' a file of the image, 'L' listener of the seccomp filter, 'P' the helper continues as process
	// err, 'X' everything is done except the exec
	uint32_t kind;
	uint32_t op;
	int32_t err;
	uint32_t stage;
	uint32_t len; // of what follows
};

static struct {
	char *at, *end; // the rest of the program
	uint32_t index;
	int root, handle[HANDLES];
	char path[4096]; // the path that OP_LOOKUP found
	char **argv, **envp;
	int news, gate[2], late, tty;
} S;

static int write_all(const void *p, size_t size)
{
	for (ssize_t n; size; p += n, size -= n)
		if ((n = write(FD_STATUS, p, size)) <= 0)
			return -1;
	return 0;
}

static void report(uint32_t kind, int err, uint32_t stage, const char *data, uint32_t len)
{
	struct report r = {kind, S.index, err, stage, len};
	if ((write_all(&r, sizeof r) < 0 || write_all(data, len) < 0) && kind != 'P' && kind != 'X')
		_exit(126); // carob is gone; the next one gets the result of P and X from the monitor
}

static void news(uint32_t kind, uint32_t value)
{
	uint32_t b[2] = {kind, value};
	if (S.news >= 0 && write(S.news, b, sizeof b) < 0)
		return; // no process receives it then
}

static void die(int err, uint32_t stage, const char *detail)
{
	report('E', err, stage, detail, detail ? strlen(detail) : 0);
	_exit(125);
}

static void *grab(size_t n)
{
	void *p = calloc(1, n);
	if (!p)
		die(ENOMEM, 0, NULL);
	return p;
}

static int *handle(int64_t i)
{
	if (i < 0 || i >= HANDLES)
		die(EBADSLT, 0, NULL);
	return &S.handle[i];
}

static int send_fd(int sock, void *data, size_t n, int fd)
{
	char buf[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {data, n};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = buf, .msg_controllen = sizeof buf};
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	return sendmsg(sock, &h, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int is_on(int fd, unsigned magic)
{
	struct statfs s;
	return fstatfs(fd, &s) == 0 && (unsigned)s.f_type == magic;
}

// ---- names inside the container's root

enum kind { EXISTING, DIRECTORY, FILE_ };

static int open_in(int root, const char *path, uint64_t resolve)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve};
	for (int i = 0;; i++) {
		int fd = syscall(SYS_openat2, root, *path ? path : "/", &how, sizeof how);
		if (fd >= 0 || errno != EAGAIN || i > 32) // EAGAIN: a rename elsewhere raced with ".."
			return fd;
	}
}

static int in_root(const char *path, enum kind kind, mode_t mode, int depth);

// parent_in_root opens the directory of path (created if missing) and sets *base to the last element of path.
static int parent_in_root(const char *path, char p[4096], char **base, int depth)
{
	size_t n = strlen(path);
	if (n >= 4096)
		return errno = ENAMETOOLONG, -1;
	memcpy(p, path, n + 1);
	while (n && p[n - 1] == '/')
		p[--n] = 0;
	*base = strrchr(p, '/');
	if (*base)
		*(*base)++ = 0;
	else
		*base = p;
	if (!**base || !strcmp(*base, ".") || !strcmp(*base, ".."))
		return errno = EINVAL, -1;
	return *base == p ? open_in(S.root, "/", 0) : in_root(p, DIRECTORY, 0755, depth + 1);
}

// in_root returns an O_PATH descriptor of path inside the root; missing directories and files are created. Symbolic
// links never lead out of the root.
static int in_root(const char *path, enum kind kind, mode_t mode, int depth)
{
	char p[4096], link[4096], *base;
	if (depth > 40)
		return errno = ELOOP, -1;
	int fd = open_in(S.root, path, 0), r;
	if (fd >= 0 || errno != ENOENT || kind == EXISTING)
		return fd;
	int parent = parent_in_root(path, p, &base, depth);
	if (parent < 0)
		return -1;
	if (kind == DIRECTORY)
		r = mkdirat(parent, base, mode);
	else if ((r = openat(parent, base, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, mode)) >= 0)
		close(r);
	if (r < 0 && errno != EEXIST)
		return keep(-1, parent);
	fd = open_in(S.root, path, 0);
	ssize_t k = fd < 0 && errno == ENOENT ? readlinkat(parent, base, link, sizeof link - 1) : -1;
	if (k <= 0)
		return keep(fd, parent);
	link[k] = 0; // a dangling link: create its target
	close(parent);
	size_t m = *link == '/' || base == p ? 0 : strlen(p);
	if (m + 2 + k > sizeof p)
		return errno = ENAMETOOLONG, -1;
	p[m] = '/';
	memcpy(p + m + 1, link, k + 1);
	return in_root(p, kind, mode, depth + 1);
}

// ---- mounts

static int set_attr(int fd, unsigned at, uint64_t set, uint64_t propagation, int userns)
{
	struct mount_attr a = {.attr_set = set, .propagation = propagation};
	if (userns >= 0) {
		a.attr_set |= MAP_IDS;
		a.userns_fd = userns;
	}
	return syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | at, &a, sizeof a);
}

static int open_tree_at(int dir, const char *path, unsigned at)
{
	return syscall(SYS_open_tree, dir, path, O_CLOEXEC | CLONE_TREE | (*path ? 0 : AT_EMPTY_PATH) | at);
}

// place moves a detached tree onto what target is open on; both are closed.
static int place(int tree, int target)
{
	int r = target < 0 ? -1 : syscall(SYS_move_mount, tree, "", target, "", FROM_EMPTY | TO_EMPTY);
	return keep(keep(r, target), tree);
}

// mount_on mounts on the file of fd and closes fd; afterwards that file is the working directory.
static int mount_on(int fd, const char *src, const char *type, unsigned long flags, const char *data)
{
	return keep(fchdir(fd) < 0 ? -1 : mount(src, ".", type, flags, data), fd);
}

// Nothing may hide or replace the kernel's files below /proc: a process confines itself by writing to them.
static int op_attach(int tree, const char *target, mode_t mode, int proc)
{
	struct stat st;
	if (fstat(tree, &st) < 0)
		return -1;
	int t = in_root(target, S_ISDIR(st.st_mode) ? DIRECTORY : FILE_, mode, 0);
	if (t >= 0 && (proc == PROC_ONLY ? !is_on(tree, PROC_SUPER_MAGIC)
	                                 : proc == PROC_NEVER && is_on(t, PROC_SUPER_MAGIC))) {
		close(t);
		return errno = EPERM, -1;
	}
	return place(tree, t);
}

// op_mount mounts a file system in the root. Its mount point must be a directory of the image itself: a volume that is
// mounted later could redirect a link.
static int op_mount(char *s[4], unsigned long flags, mode_t mode)
{
	int t = in_root(s[2], DIRECTORY, mode, 0);
	if (t < 0)
		return -1;
	close(t);
	if ((t = open_in(S.root, s[2], RESOLVE_NO_SYMLINKS)) < 0)
		return -1;
	return mount_on(t, s[0], s[1], flags, s[3]);
}

// masked: a directory becomes an empty read-only one, a file becomes the host's /dev/null; the container's could be
// replaced.
static int op_mask(const char *path, int null)
{
	struct stat st;
	int t = open_in(S.root, path, 0);
	if (t < 0 || fstat(t, &st) < 0)
		return errno == ENOENT ? 0 : -1;
	if (S_ISDIR(st.st_mode))
		return mount_on(t, "tmpfs", "tmpfs", MS_RDONLY, "size=0k,nr_inodes=2");
	int tree = open_tree_at(null, "", 0);
	if (tree < 0 && errno == EINVAL) // before Linux 6.15 only an attached mount can be copied: the first file gets it
		tree = fcntl(null, F_DUPFD_CLOEXEC, 0);
	return tree < 0 ? keep(-1, t) : place(tree, t);
}

// op_proc mounts the /proc of a PID namespace that the helper is not in (Linux 6.17).
static int op_proc(const char *path, int pidns)
{
	int t = in_root(path, DIRECTORY, 0755, 0), fs = syscall(SYS_fsopen, "proc", 1 /* FSOPEN_CLOEXEC */);
	if (t < 0 || fs < 0)
		return -1;
	close(t);
	if (syscall(SYS_fsconfig, fs, 5 /* FSCONFIG_SET_FD */, "pidns", NULL, pidns) < 0 ||
	    syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) < 0)
		return keep(-1, fs);
	int tree = syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, 0xe /* MOUNT_ATTR_NOSUID, NODEV, NOEXEC */);
	keep(0, fs);
	return tree < 0 ? -1 : place(tree, open_in(S.root, path, RESOLVE_NO_SYMLINKS));
}

static int op_readonly(const char *path)
{
	int t = open_in(S.root, path, 0);
	if (t < 0)
		return errno == ENOENT ? 0 : -1;
	int tree = open_tree_at(t, "", AT_RECURSIVE);
	return tree < 0 || set_attr(tree, AT_RECURSIVE, READ_ONLY, 0, -1) < 0 ? -1 : place(tree, t);
}

// ---- the process

// op_files sends files of the image (or none) and continues with the program that it receives: Go decides what depends
// on the files. Only regular files of this root are sent: no link of /proc is followed. If the rest of the program was
// planned for a content of the only file, s[1], that there is another one is sent, and the helper ends.
static int op_files(struct message *o, char *s[4])
{
	struct open_how how = {O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0, RESOLVE_NO_MAGICLINKS};
	uint32_t size;
	int later = o->n[0], planned = o->n[1];
	for (uint32_t i = 0; i < (planned ? 1 : 4) && *s[i]; i++) {
		struct stat st;
		size_t want = 0, n = 0;
		int fd = syscall(SYS_openat2, AT_FDCWD, s[i], &how, sizeof how);
		if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
			want = st.st_size > MAX_FILE ? MAX_FILE : st.st_size;
		struct report *r = grab(sizeof *r + want); // and the file, so that carob wakes once
		for (ssize_t k; n < want && (k = read(fd, (char *)(r + 1) + n, want - n)) > 0;)
			n += k;
		int same = keep(planned && n == o->len[1] && !memcmp(r + 1, s[1], n), fd);
		*r = (struct report){'F', S.index, 0, i, n = planned ? 0 : n}; // it is read after the end: it must not wait
		if (!same && (write_all(r, sizeof *r + n) < 0 || planned))
			_exit(126);
		free(r);
		later |= same;
	}
	if (later)
		return 0;
	if (recv(FD_STATUS, &size, sizeof size, MSG_WAITALL) != sizeof size || size > MAX_ANSWER)
		return errno = ECONNRESET, -1;
	S.at = grab(size);
	S.end = S.at + size;
	return recv(FD_STATUS, S.at, size, MSG_WAITALL) == size ? 0 : -1;
}

// op_stdio makes the user the owner of its streams: it owns the pipes, so that it can open /dev/stdout again; the
// host's /dev/null, whose mode root could change, is replaced by the container's.
static int op_stdio(uid_t uid, gid_t gid)
{
	struct stat st;
	for (int i = 0; i < 3; i++) {
		if (fstat(i, &st) < 0)
			return -1;
		if ((S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) && uid && fchown(i, uid, gid) < 0 && errno != EPERM &&
		    errno != EINVAL && errno != EROFS)
			return -1;
		if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)) {
			int fd = open("/dev/null", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
			if (fd < 0 || fstat(fd, &st) < 0 || st.st_rdev != makedev(1, 3) || keep(dup2(fd, i), fd) < 0)
				return errno = ENODEV, -1;
		}
	}
	return 0;
}

static int op_creds(char *s, uint32_t len, uint64_t bounding, uint64_t caps, uint64_t inheritable, uint64_t ambient)
{
	uint32_t *id = grab(len + 8), n = len / 4; // user, group, further groups
	memcpy(id, s, len);
	for (int i = 0; i < 64; i++)
		if (!(bounding >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0) {
			if (errno == EINVAL)
				break; // the kernel has no higher one
			return -1;
		}
	if (n < 2 || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setgroups(n - 2, id + 2) < 0 ||
	    setresgid(id[1], id[1], id[1]) < 0 || setresuid(id[0], id[0], id[0]) < 0 ||
	    prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) < 0)
		return -1;
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2], now[2];
	if (syscall(SYS_capget, &h, now) < 0)
		return -1;
	for (int i = 0; i < 2; i++) { // never more than the helper has: a host may withhold some
		uint32_t have = now[i].permitted;
		d[i].permitted = d[i].effective = (uint32_t)(caps >> 32 * i) & have;
		d[i].inheritable = (uint32_t)(inheritable >> 32 * i) & have;
	}
	if (syscall(SYS_capset, &h, d) < 0)
		return -1;
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (int i = 0; i < 64; i++)
		if (ambient >> i & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0) < 0)
			return -1;
	return 0;
}

static int op_seccomp(const char *code, uint32_t len, unsigned flags)
{
	struct sock_fprog prog = {len / sizeof(struct sock_filter), memcpy(grab(len + 8), code, len)};
	struct report r = {'L', S.index, 0, 0, 0};
	int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
	if (fd < 0 || !(flags & SECCOMP_FILTER_FLAG_NEW_LISTENER))
		return fd;
	return keep(send_fd(FD_STATUS, &r, sizeof r, fd), fd);
}

// op_tty does not trust the files below the container's /dev: the terminal must come from a devpts, and is mounted on
// /dev/console by its descriptor.
static int op_tty(unsigned short rows, unsigned short cols, int console, uid_t uid)
{
	int one = 0, m = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (m < 0)
		return -1;
	if (!is_on(m, DEVPTS_SUPER_MAGIC))
		return errno = ENODEV, -1;
	if (fcntl(m, F_SETFL, O_RDWR) < 0 || ioctl(m, TIOCSPTLCK, &one) < 0)
		return -1;
	int s = ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (s < 0)
		return -1;
	struct winsize w = {.ws_row = rows, .ws_col = cols};
	if (rows && cols)
		ioctl(m, TIOCSWINSZ, &w);
	if (fchown(s, uid, -1) < 0 && errno != EPERM && errno != EINVAL)
		return -1;
	if (console) {
		int t = in_root("/dev/console", FILE_, 0600, 0), tree = open_tree_at(s, "", 0);
		if (tree < 0 || place(tree, t) < 0)
			return -1;
	}
	S.tty = 1;
	if (send_fd(FD_CONSOLE, "T", 1, m) < 0 || (!S.late && ioctl(s, TIOCSCTTY, 0) < 0))
		return -1;
	for (int i = 0; i < 3; i++)
		if (dup2(s, i) < 0)
			return -1;
	return close(m);
}

// op_enter chooses the PID namespace of the process that op_fork makes.
static int op_enter(void)
{
	if (setns(FD_TARGET, CLONE_NEWPID) < 0 || pipe2(S.gate, O_CLOEXEC) < 0)
		return -1;
	return S.late = 1;
}

// op_shed closes all descriptors that the forked process must not expose: all but its streams and the connections to
// carob and the monitor.
static int op_shed(void)
{
	unsigned from = 3;
	for (int next; from < ~0U; from = next + 1) {
		next = -1;
		for (int i = 0; i < 4; i++) {
			int fd = i < 2 ? S.gate[i] : i == 2 ? FD_STATUS : FD_NEWS;
			if ((unsigned)fd >= from && (next < 0 || fd < next))
				next = fd;
		}
		if (next != (int)from && syscall(SYS_close_range, from, next < 0 ? ~0U : next - 1U, 0) < 0)
			return -1;
		if (next < 0)
			break;
	}
	S.root = -1;
	memset(S.handle, -1, sizeof S.handle);
	return 0;
}

// op_fork continues as a process of the PID namespace, and as a child of the monitor. From here on, the container's
// processes can see and trace the helper, so it must not hold anything any more that they do not have.
static int op_fork(void)
{
	char b = 0;
	if (!S.late)
		return errno = EINVAL, -1;
	pid_t p = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
	if (p < 0)
		return -1;
	if (p > 0) {
		news(NEWS_PID, p);
		report('P', p, 0, NULL, 0);
		syscall(SYS_close_range, 0, 2, 0); // its output must end with the command
		_exit(write(S.gate[1], &b, 1) == 1 ? 0 : 126);
	}
	close(S.gate[1]);
	if (read(S.gate[0], &b, 1) != 1) // the parent was killed before it reported this process
		_exit(126);
	close(S.gate[0]);
	setsid();
	return S.tty ? ioctl(0, TIOCSCTTY, 0) : 0;
}

static char **list(char *s, uint32_t len)
{
	char **v = grab((len / 5 + 2) * sizeof *v), *e = s + len; // a string takes five bytes or more
	for (uint32_t n = 0; s < e; n++)
		if (!(v[n] = next_string(&s, e)))
			die(EBADMSG, 0, NULL);
	return v;
}

static int executable(const char *p)
{
	struct stat st;
	if (stat(p, &st) < 0)
		return -1;
	if (S_ISDIR(st.st_mode))
		return errno = EISDIR, -1;
	int r = faccessat(AT_FDCWD, p, X_OK, AT_EACCESS); // a filter may be older than faccessat2
	return r < 0 && (errno == ENOSYS || errno == EPERM) ? syscall(SYS_faccessat, AT_FDCWD, p, X_OK) : r;
}

// stages of a failure: 1 not in $PATH, 2 a name with a slash, 3 the exec itself
static void op_lookup(const char *path)
{
	const char *name = S.argv[0] ? S.argv[0] : "";
	size_t n = strlen(name);
	if (strchr(name, '/')) {
		if (n >= sizeof S.path)
			die(ENAMETOOLONG, 2, name);
		if (executable(name) < 0)
			die(errno, 2, name);
		strcpy(S.path, name);
		return;
	}
	for (const char *p = path; n && *p;) {
		const char *c = strchrnul(p, ':');
		size_t k = c - p;
		if (k + n + 3 <= sizeof S.path) {
			memcpy(S.path, p, k);
			if (!k)
				S.path[k++] = '.';
			S.path[k] = '/';
			strcpy(S.path + k + 1, name);
			if (executable(S.path) == 0)
				return;
		}
		p = *c ? c + 1 : c;
	}
	die(ENOENT, 1, name);
}

static int run(struct message *o, char *s[4])
{
	char b[4096], *base;
	int64_t *n = o->n;
	int fd;
	switch (o->code) {
	case OP_OPEN:
		return *handle(n[0]) = open(s[0], n[1] | O_CLOEXEC | O_NOCTTY);
	case OP_WRITE: // to a handle, or to a path
		return *s[0] ? put(s[0], s[1], o->len[1]) : write(*handle(n[0]), s[1], o->len[1]);
	case OP_UNSHARE:
		return unshare(n[0]);
	case OP_SETNS:
		return setns(*handle(n[1]), n[0]);
	case OP_JOIN:
		return setns(FD_TARGET, n[0]);
	case OP_PROPAGATE:
		return mount(NULL, "/", NULL, n[0], NULL);
	case OP_CHDIR:
		return chdir(s[0]);
	case OP_TREE:
		return *handle(n[0]) = open_tree_at(AT_FDCWD, s[0], n[1] ? AT_RECURSIVE : 0);
	case OP_TREE_IN: { // s[1] below the directory s[0]; it must not lead out
		int root = open(s[0], O_PATH | O_CLOEXEC | O_DIRECTORY);
		if (root < 0 || (fd = open_in(root, s[1], 0)) < 0)
			return keep(-1, root);
		return keep(*handle(n[0]) = open_tree_at(fd, "", 0), keep(fd, root));
	}
	case OP_ATTR:
		return set_attr(*handle(n[0]), n[3] & 1 ? AT_RECURSIVE : 0, n[1], n[3] & ~1, n[2] < 0 ? -1 : *handle(n[2]));
	case OP_ATTACH_HOST:
		return keep(syscall(SYS_move_mount, *handle(n[0]), "", AT_FDCWD, s[0], FROM_EMPTY), *handle(n[0]));
	case OP_MOUNT_HOST:
		return mount(s[0], s[2], s[1], n[0], s[3]);
	case OP_ROOT: // The root user of the container, with the rights of this one, owns what is created from now on: a
		// volume that shows other IDs has no place for this one. Entering the user namespace takes the flag back.
		if ((n[0] || n[1]) && prctl(PR_SET_SECUREBITS, prctl(PR_GET_SECUREBITS) | SECBIT_NO_SETUID_FIXUP) < 0)
			return -1;
		syscall(SYS_setfsgid, n[1]);
		syscall(SYS_setfsuid, n[0]);
		return chdir(s[0]) < 0 ? -1 : (S.root = open(".", O_PATH | O_CLOEXEC | O_DIRECTORY));
	case OP_ATTACH:
		return op_attach(*handle(n[0]), s[0], n[1], n[2]);
	case OP_MOUNT:
		return op_mount(s, n[0], n[1]);
	case OP_MKNOD:
		if ((fd = parent_in_root(s[0], b, &base, 0)) < 0)
			return -1;
		return keep(mknodat(fd, base, n[0], n[1]) < 0 ? -1 : fchownat(fd, base, n[2], n[3], AT_SYMLINK_NOFOLLOW), fd);
	case OP_SYMLINK:
		if ((fd = parent_in_root(s[1], b, &base, 0)) < 0)
			return -1;
		return keep(symlinkat(s[0], fd, base) < 0 && errno != EEXIST ? -1 : 0, fd);
	case OP_MKDIR:
		return (fd = in_root(s[0], DIRECTORY, n[0], 0)) < 0 ? -1 : close(fd);
	case OP_ATTR_PATH:
		return (fd = in_root(s[0], EXISTING, 0, 0)) < 0 ? -1 : keep(set_attr(fd, 0, n[0], 0, -1), fd);
	case OP_PIVOT:
		if (fchdir(S.root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
			return -1;
		return chdir("/");
	case OP_MASK:
		return op_mask(s[0], *handle(n[0]));
	case OP_READONLY:
		return op_readonly(s[0]);
	case OP_FILES:
		return op_files(o, s);
	case OP_KEYRING:
		return syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, *s[0] ? s[0] : NULL) < 0 ? -1 : 0;
	case OP_TTY:
		return op_tty(n[0], n[1], n[2], n[3]);
	case OP_STDIO:
		return op_stdio(n[0], n[1]);
	case OP_SECCOMP:
		return op_seccomp(s[0], o->len[0], n[0]);
	case OP_CWD:
		if (chdir(s[0]) < 0)
			return -1;
		if (!getcwd(b, sizeof b) || b[0] != '/') // a directory outside the root (CVE-2024-21626)
			return errno = EXDEV, -1;
		return 0;
	case OP_CREDS:
		return op_creds(s[0], o->len[0], n[0], n[1], n[2], n[3]);
	case OP_NO_NEW_PRIVS:
		return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	case OP_LOOKUP:
		S.argv = list(s[0], o->len[0]);
		S.envp = list(s[1], o->len[1]);
		op_lookup(s[2]);
		return 0;
	case OP_EXEC:
		umask(022);
		news(NEWS_EXEC, 0); // the monitor first: it reports the end of each process that carob considers started
		report('X', 0, 0, NULL, 0);
		syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
		execve(S.path, S.argv, S.envp);
		fd = errno;
		news(NEWS_FAILED, 0);
		die(fd, 3, S.path);
		break;
	case OP_GATE:
		return read(FD_STATUS, b, 1) == 1 ? 0 : -1;
	case OP_ENTER:
		return op_enter();
	case OP_PROC:
		return op_proc(s[0], *handle(n[0]));
	case OP_SHED:
		return op_shed();
	case OP_FORK:
		return op_fork();
	case OP_TAKE: // a mount that carob made ahead
		return *handle(n[0]) = take_fd(FD_STATUS, 0);
	}
	return errno = ENOSYS, -1;
}

static void nothing(int signal) { (void)signal; }

// warm takes the page faults of later steps in advance, while no pod waits for this helper. If that fails, they occur
// later.
static void warm(void)
{
	extern char __executable_start[], etext[], edata[], end[];
	uintptr_t first = (uintptr_t)__executable_start & ~4095UL, data = (uintptr_t)edata & ~4095UL;
	volatile char stack[12 * 4096];
	for (size_t i = 0; i < sizeof stack; i += 4096)
		stack[i] = 0;
	madvise((void *)first, (uintptr_t)etext - first, 22 /* MADV_POPULATE_READ */);
	madvise((void *)data, (uintptr_t)end - data, 23 /* MADV_POPULATE_WRITE */);
}

int main(void)
{
	struct stat st;
	S.news = fcntl(FD_NEWS, F_SETFD, FD_CLOEXEC) < 0 ? -1 : FD_NEWS;
	signal(SIGPIPE, nothing); // carob may be gone; an exec takes this back
	// Processes of the container must not inspect the helper once it is in their PID namespace.
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */) < 0) // a container's filter may refuse it later
		_exit(126);
	memset(S.handle, -1, sizeof S.handle);
	S.root = -1;
	if (fstat(FD_SPEC, &st) < 0) { // started ahead: carob sends a program, or closes the connection
		warm();
		if (op_files(&(struct message){0}, (char *[4]){"", "", "", ""}) < 0)
			_exit(126);
	} else {
		S.at = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, FD_SPEC, 0);
		if (S.at == MAP_FAILED)
			die(errno, 0, NULL);
		S.end = S.at + st.st_size;
		close(FD_SPEC);
	}
	umask(0); // modes are exactly as planned
	for (; S.at < S.end; S.index++) {
		struct message *o = (struct message *)S.at;
		char *s[4];
		if (parse(o, S.end - S.at, s) < 0)
			die(errno, 0, NULL);
		S.at += o->size; // OP_FILES changes the position
		if (run(o, s) < 0 && !(o->flags & OPTIONAL))
			die(errno, 0, NULL);
	}
	die(ENOEXEC, 0, NULL);
}
