// helper runs one program of operations and becomes the user's process.
//
// It is started by the pod's monitor in the child's namespaces, reads the
// program from FD_SPEC and executes one operation after the other. It decides
// nothing: the program was planned and checked in Go (program.go). The first
// operation that fails ends it with a report on FD_STATUS; when FD_STATUS closes
// without a report of a failure, the user's process runs.
#define _GNU_SOURCE
#include "common.h"
#include "users.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <grp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <termios.h>

// Keep in step with spec.go.
enum {
	OP_WRITE = 1, OP_UNSHARE, OP_SETNS, OP_JOIN, OP_PROPAGATE, OP_TREE, OP_TREE_IN, OP_ATTR, OP_IDMAP,
	OP_ATTACH, OP_MOUNT, OP_ROOT, OP_MKNOD, OP_SYMLINK, OP_MKDIR, OP_PIVOT, OP_MASK, OP_READONLY,
	OP_ATTR_PATH, OP_USER, OP_CREDS, OP_NO_NEW_PRIVS, OP_SECCOMP, OP_CWD, OP_TTY, OP_KEYRING,
	OP_LOOKUP, OP_EXEC, OP_GATE, OP_CHDIR, OP_OPEN,
};

enum { OPTIONAL = 1 }; // record.flags: a failure is not one

struct mount_attributes {
	uint64_t set, clr, propagation, userns;
};

struct report {
	uint32_t kind; // 'E' failure, 'U' resolved user, 'X' all is done but the exec
	uint32_t op;
	int32_t err;
	uint32_t stage;
	uint32_t len; // of what follows
};

static struct {
	uint32_t index;
	int root;
	int slot[256];
	uid_t owner; // of what we make in the root
	gid_t owner_group;
	struct user user;
	char path[4096]; // what OP_LOOKUP found
	char **argv, **envp;
} S;

static void report(uint32_t kind, int err, uint32_t stage, const void *data, uint32_t len)
{
	char b[sizeof(struct report) + 8192];
	struct report r = {kind, S.index, err, stage, len > 8192 ? 8192 : len};
	memcpy(b, &r, sizeof r);
	if (r.len)
		memcpy(b + sizeof r, data, r.len);
	if (write(FD_STATUS, b, sizeof r + r.len) < 0)
		_exit(126);
}

static void die(int err, uint32_t stage, const char *detail)
{
	report('E', err, stage, detail, detail ? strlen(detail) : 0);
	_exit(125);
}

static char *fdpath(int fd, char *b)
{
	memcpy(b, "/proc/self/fd/", 14);
	utoa(fd, b + 14);
	return b;
}

// ---- names inside the container's root, before it is the root

enum kind { EXISTING, DIRECTORY, FILE_ };

static int open_in(int root, const char *path, uint64_t flags)
{
	struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
	for (int i = 0;; i++) {
		int fd = syscall(SYS_openat2, root, *path ? path : "/", &how, sizeof how);
		if (fd >= 0 || errno != EAGAIN || i > 32) // EAGAIN: a rename elsewhere raced with ".."
			return fd;
	}
}

// in_root answers an O_PATH descriptor of path inside the root; what is missing
// is made. Symbolic links never lead out of the root.
static int in_root(const char *path, enum kind kind, mode_t mode, int depth)
{
	char p[4096], link[4096];
	size_t n = strlen(path);
	if (depth > 40 || n >= sizeof p)
		return errno = ELOOP, -1;
	int fd = open_in(S.root, path, O_PATH);
	if (fd >= 0 || errno != ENOENT || kind == EXISTING)
		return fd;
	memcpy(p, path, n + 1);
	while (n && p[n - 1] == '/')
		p[--n] = 0;
	char *base = strrchr(p, '/');
	int parent;
	if (base) {
		*base++ = 0;
		parent = in_root(p, DIRECTORY, 0755, depth + 1);
	} else {
		base = p;
		parent = open_in(S.root, "/", O_PATH);
	}
	if (parent < 0)
		return -1;
	int r = -1;
	if (!strcmp(base, "..") || !strcmp(base, ".") || !*base)
		errno = EINVAL;
	else if (kind == DIRECTORY)
		r = mkdirat(parent, base, mode);
	else if ((r = openat(parent, base, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, mode)) >= 0)
		close(r);
	if (r < 0 && errno != EEXIST) {
		close(parent);
		return -1;
	}
	if (r >= 0 && (S.owner || S.owner_group) && fchownat(parent, base, S.owner, S.owner_group, AT_SYMLINK_NOFOLLOW) < 0) {
		close(parent);
		return -1;
	}
	fd = open_in(S.root, path, O_PATH);
	if (fd < 0 && errno == ENOENT) { // a dangling link: make what it points at
		ssize_t k = readlinkat(parent, base, link, sizeof link - 1);
		if (k > 0) {
			link[k] = 0;
			if (*link != '/') {
				size_t m = base == p ? 0 : strlen(p);
				if (m + 1 + k >= sizeof p) {
					close(parent);
					return errno = ENAMETOOLONG, -1;
				}
				p[m] = '/';
				memcpy(p + m + 1, link, k + 1);
				fd = in_root(p, kind, mode, depth + 1);
			} else
				fd = in_root(link, kind, mode, depth + 1);
		}
	}
	int e = errno;
	close(parent);
	errno = e;
	return fd;
}

// parent_in_root opens the directory of path (made if missing) and tells the last name.
static int parent_in_root(const char *path, char *p, size_t size, char **base)
{
	size_t n = strlen(path);
	if (n >= size)
		return errno = ENAMETOOLONG, -1;
	memcpy(p, path, n + 1);
	char *b = strrchr(p, '/');
	if (!b)
		return errno = EINVAL, -1;
	*b = 0;
	*base = b + 1;
	return in_root(p, DIRECTORY, 0755, 0);
}

// ---- mounts

static int set_attr(int fd, const char *path, unsigned at, uint64_t set, uint64_t clr, uint64_t propagation, int userns)
{
	struct mount_attributes a = {set, clr, propagation, userns < 0 ? 0 : userns};
	return syscall(SYS_mount_setattr, fd, path, at, &a, sizeof a);
}

static int attach(int tree, int target)
{
	return syscall(SYS_move_mount, tree, "", target, "", 0x4 | 0x40 /* both paths are empty */);
}

static int op_attach(int tree, const char *target, mode_t mode)
{
	struct stat st;
	if (fstat(tree, &st) < 0)
		return -1;
	int t = in_root(target, S_ISDIR(st.st_mode) ? DIRECTORY : FILE_, mode, 0);
	if (t < 0)
		return -1;
	int r = attach(tree, t);
	close(t);
	return r;
}

static int op_mount(const char *src, const char *type, const char *target, const char *data, int64_t flags, int inside, mode_t mode)
{
	char b[40];
	if (!inside)
		return mount(src, target, *type ? type : NULL, flags, *data ? data : NULL);
	int t = in_root(target, DIRECTORY, mode, 0);
	if (t < 0)
		return -1;
	int r = mount(src, fdpath(t, b), *type ? type : NULL, flags, *data ? data : NULL);
	int e = errno;
	close(t);
	errno = e;
	return r;
}

// masked: a directory becomes an empty read-only one, a file reads as /dev/null.
static int op_mask(const char *path)
{
	if (mount("/dev/null", path, NULL, MS_BIND, NULL) == 0 || errno == ENOENT)
		return 0;
	if (errno != ENOTDIR)
		return -1;
	return mount("tmpfs", path, "tmpfs", MS_RDONLY, "size=0k,nr_inodes=2");
}

static int op_readonly(const char *path)
{
	int t = syscall(SYS_open_tree, AT_FDCWD, path, O_CLOEXEC | 1 /* OPEN_TREE_CLONE */ | AT_RECURSIVE);
	if (t < 0)
		return errno == ENOENT ? 0 : -1;
	if (set_attr(t, "", AT_EMPTY_PATH | AT_RECURSIVE, 1 /* MOUNT_ATTR_RDONLY */, 0, 0, -1) < 0)
		return -1;
	int r = syscall(SYS_move_mount, t, "", AT_FDCWD, path, 0x4);
	close(t);
	return r;
}

// ---- credentials

static int op_user(const char *spec, const uint32_t *extra, uint32_t nextra, int64_t gid, int strict)
{
	const char *missing;
	int r = resolve_user(&S.user, spec, extra, nextra, gid, strict, &missing);
	if (r > 0)
		die(ENOENT, r, missing);
	if (r < 0)
		return -1;
	uint32_t out[3 + 1024] = {S.user.uid, S.user.gid, S.user.ngroups};
	memcpy(out + 3, S.user.groups, S.user.ngroups * 4);
	report('U', 0, 0, out, (3 + S.user.ngroups) * 4);
	return 0;
}

static int op_creds(uint64_t bounding, uint64_t caps, uint64_t inheritable, uint64_t ambient)
{
	struct stat st;
	for (int i = 0; i < 3; i++) // so that the user can open /dev/stdout again
		if (S.user.uid && fstat(i, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) && fchown(i, S.user.uid, S.user.gid) < 0 &&
		    errno != EPERM && errno != EINVAL && errno != EROFS)
			return -1;
	for (int i = 0; i < 64; i++)
		if (!(bounding >> i & 1) && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) < 0) {
			if (errno == EINVAL)
				break; // the kernel knows no higher one
			return -1;
		}
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setgroups(S.user.ngroups, S.user.groups) < 0 || setresgid(S.user.gid, S.user.gid, S.user.gid) < 0 ||
	    setresuid(S.user.uid, S.user.uid, S.user.uid) < 0 || prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) < 0)
		return -1;
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2], now[2];
	if (syscall(SYS_capget, &h, now) < 0)
		return -1;
	for (int i = 0; i < 2; i++) { // never more than we have: a host may withhold some
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

// ---- terminal

static int op_tty(unsigned rows, unsigned cols, int console)
{
	int one = 0;
	int m = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (m < 0 || ioctl(m, TIOCSPTLCK, &one) < 0)
		return -1;
	int s = ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (s < 0)
		return -1;
	struct winsize w = {.ws_row = rows, .ws_col = cols};
	if (rows && cols)
		ioctl(m, TIOCSWINSZ, &w);
	if (fchown(s, S.user.uid, -1) < 0 && errno != EPERM && errno != EINVAL)
		return -1;
	if (console) {
		char b[40];
		int f = open("/dev/console", O_CREAT | O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		if (f >= 0)
			close(f);
		if (mount(fdpath(s, b), "/dev/console", NULL, MS_BIND, NULL) < 0)
			return -1;
	}
	char c = 'T', buf[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec v = {&c, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = buf, .msg_controllen = sizeof buf};
	struct cmsghdr *cm = CMSG_FIRSTHDR(&h);
	cm->cmsg_level = SOL_SOCKET;
	cm->cmsg_type = SCM_RIGHTS;
	cm->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cm), &m, sizeof m);
	if (sendmsg(FD_CONSOLE, &h, MSG_NOSIGNAL) < 0 || ioctl(s, TIOCSCTTY, 0) < 0)
		return -1;
	for (int i = 0; i < 3; i++)
		if (dup2(s, i) < 0)
			return -1;
	close(FD_CONSOLE);
	return close(m);
}

// ---- exec

static char **list(char *s, uint32_t len)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < len; i++)
		n += !s[i];
	char **v = calloc(n + 3, sizeof *v);
	if (!v)
		die(ENOMEM, 0, NULL);
	char *e = s + len;
	for (uint32_t i = 0; s < e; i++, s += strlen(s) + 1)
		v[i] = s;
	return v;
}

static const char *env(const char *name)
{
	size_t n = strlen(name);
	for (char **e = S.envp; *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=')
			return *e + n + 1;
	return NULL;
}

static int executable(const char *p)
{
	struct stat st;
	if (stat(p, &st) < 0)
		return -1;
	if (S_ISDIR(st.st_mode))
		return errno = EISDIR, -1;
	return faccessat(AT_FDCWD, p, X_OK, AT_EACCESS);
}

// stages of a failure: 1 not in $PATH, 2 a name with a slash, 3 the exec itself
static void op_lookup(void)
{
	const char *name = S.argv[0], *path = env("PATH");
	size_t n = strlen(name);
	if (strchr(name, '/')) {
		if (executable(name) < 0)
			die(errno, 2, name);
		if (n >= sizeof S.path)
			die(ENAMETOOLONG, 2, name);
		strcpy(S.path, name);
		return;
	}
	for (const char *p = path ? path : ""; n && *p;) {
		const char *c = strchrnul(p, ':');
		size_t k = c - p;
		if (k + n + 2 < sizeof S.path) {
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

static int run(struct record *o)
{
	char *s[4], *p = (char *)(o + 1);
	for (int i = 0; i < 4; i++) {
		s[i] = p;
		p += o->len[i] + 1;
	}
	int64_t *n = o->n;
	switch (o->code) {
	case OP_WRITE: {
		int fd = open(s[0], O_WRONLY | O_CLOEXEC);
		ssize_t k = fd < 0 ? -1 : write(fd, s[1], o->len[1]);
		int e = errno;
		if (fd >= 0)
			close(fd);
		errno = e;
		return k < 0 ? -1 : 0;
	}
	case OP_UNSHARE:
		return unshare(n[0]);
	case OP_OPEN:
		return (S.slot[n[0]] = open(s[0], O_RDONLY | O_CLOEXEC)) < 0 ? -1 : 0;
	case OP_SETNS:
		return setns(S.slot[n[1]], n[0]);
	case OP_JOIN:
		return setns(FD_TARGET, n[0]);
	case OP_PROPAGATE:
		return mount(NULL, "/", NULL, n[0], NULL);
	case OP_TREE:
		return (S.slot[n[0]] = syscall(SYS_open_tree, AT_FDCWD, s[0], O_CLOEXEC | 1 | (n[1] ? AT_RECURSIVE : 0))) < 0 ? -1 : 0;
	case OP_TREE_IN: { // s[1] below the directory s[0], without a way out
		int root = open(s[0], O_PATH | O_CLOEXEC | O_DIRECTORY), fd;
		if (root < 0 || (fd = open_in(root, s[1], O_PATH)) < 0)
			return -1;
		S.slot[n[0]] = syscall(SYS_open_tree, fd, "", O_CLOEXEC | 1 | AT_EMPTY_PATH);
		close(fd);
		close(root);
		return S.slot[n[0]] < 0 ? -1 : 0;
	}
	case OP_ATTR:
		return set_attr(S.slot[n[0]], "", AT_EMPTY_PATH | (n[3] & 1 ? AT_RECURSIVE : 0), n[1], n[2], n[3] & ~1, -1);
	case OP_IDMAP: {
		int u = open(s[0], O_RDONLY | O_CLOEXEC);
		int r = u < 0 ? -1 : set_attr(S.slot[n[0]], "", AT_EMPTY_PATH | AT_RECURSIVE, 0x100000 /* MOUNT_ATTR_IDMAP */, 0, 0, u);
		int e = errno;
		if (u >= 0)
			close(u);
		errno = e;
		return r;
	}
	case OP_ATTACH: {
		int r = n[1] ? op_attach(S.slot[n[0]], s[0], n[2]) : syscall(SYS_move_mount, S.slot[n[0]], "", AT_FDCWD, s[0], 0x4);
		int e = errno;
		close(S.slot[n[0]]);
		errno = e;
		return r;
	}
	case OP_MOUNT:
		return op_mount(s[0], s[1], s[2], s[3], n[0], n[1], n[2]);
	case OP_ROOT:
		S.owner = n[0];
		S.owner_group = n[1];
		return chdir(s[0]) < 0 || (S.root = open(".", O_PATH | O_CLOEXEC | O_DIRECTORY)) < 0 ? -1 : 0;
	case OP_CHDIR:
		return chdir(s[0]);
	case OP_MKNOD: {
		char b[4096], *base;
		int d = parent_in_root(s[0], b, sizeof b, &base), r;
		if (d < 0)
			return -1;
		mode_t um = umask(0);
		r = mknodat(d, base, n[0], n[1]);
		umask(um);
		if (r == 0 && (n[2] || n[3]))
			r = fchownat(d, base, n[2], n[3], AT_SYMLINK_NOFOLLOW);
		int e = errno;
		close(d);
		errno = e;
		return r;
	}
	case OP_SYMLINK: {
		char b[4096], *base;
		int d = parent_in_root(s[1], b, sizeof b, &base);
		int r = d < 0 ? -1 : symlinkat(s[0], d, base), e = errno;
		if (d >= 0)
			close(d);
		errno = e;
		return r < 0 && errno != EEXIST ? -1 : 0;
	}
	case OP_MKDIR: {
		int d = in_root(s[0], DIRECTORY, n[0], 0);
		return d < 0 ? -1 : close(d);
	}
	case OP_PIVOT:
		return fchdir(S.root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0 ? -1 : 0;
	case OP_MASK:
		return op_mask(s[0]);
	case OP_READONLY:
		return op_readonly(s[0]);
	case OP_ATTR_PATH: {
		int t = n[3] ? in_root(s[0], EXISTING, 0, 0) : open(s[0], O_PATH | O_CLOEXEC);
		int r = t < 0 ? -1 : set_attr(t, "", AT_EMPTY_PATH, n[0], n[1], n[2], -1), e = errno;
		if (t >= 0)
			close(t);
		errno = e;
		return r;
	}
	case OP_USER:
		return op_user(s[0], memcpy(malloc(o->len[1] + 4), s[1], o->len[1]), o->len[1] / 4, n[0], n[1]);
	case OP_CREDS:
		return op_creds(n[0], n[1], n[2], n[3]);
	case OP_NO_NEW_PRIVS:
		return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	case OP_SECCOMP: {
		struct sock_filter *f = memcpy(malloc(o->len[0] + 8), s[0], o->len[0]);
		struct sock_fprog prog = {o->len[0] / 8, f};
		return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, n[0], &prog);
	}
	case OP_CWD: {
		char b[4096];
		if (chdir(s[0]) < 0)
			return -1;
		if (!getcwd(b, sizeof b) || b[0] != '/') // a directory outside our root (CVE-2024-21626)
			return errno = EXDEV, -1;
		return 0;
	}
	case OP_TTY:
		return op_tty(n[0], n[1], n[2]);
	case OP_KEYRING:
		return syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, *s[0] ? s[0] : NULL) < 0 ? -1 : 0;
	case OP_LOOKUP: {
		S.argv = list(s[0], o->len[0]);
		S.envp = list(s[1], o->len[1]);
		if (!env("HOME")) {
			char *h = malloc(sizeof S.user.home + 8);
			char **e = S.envp;
			while (*e)
				e++;
			strcpy(h, "HOME=");
			strcat(h, *S.user.home ? S.user.home : "/");
			*e = h;
		}
		op_lookup();
		return 0;
	}
	case OP_EXEC:
		report('X', 0, 0, NULL, 0);
		close_on_exec_from(3);
		execve(S.path, S.argv, S.envp);
		die(errno, 3, S.path);
		return -1;
	case OP_GATE: {
		char c;
		return read(FD_STATUS, &c, 1) == 1 ? 0 : -1;
	}
	}
	return errno = ENOSYS, -1;
}

int main(void)
{
	struct stat st;
	// Processes of the container must not look into us once we are among them.
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (fstat(FD_SPEC, &st) < 0 || fcntl(FD_STATUS, F_SETFD, FD_CLOEXEC) < 0)
		_exit(126);
	char *p = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, FD_SPEC, 0), *end = p + st.st_size;
	if (p == MAP_FAILED)
		die(errno, 0, NULL);
	close(FD_SPEC);
	umask(022);
	for (; p < end; S.index++) {
		struct record *o = (struct record *)p;
		if (run(o) < 0 && !(o->flags & OPTIONAL))
			die(errno, 0, NULL);
		p += o->size;
	}
	die(ENOEXEC, 0, NULL);
}
