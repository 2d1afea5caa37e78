// monitor is the parent of everything that runs in one pod.
//
// It starts the helper for each container and exec, writes the containers' logs
// in CRI form, keeps their exit codes on disk and serves terminals and attach
// streams. carob tells it what to do over a unix socket and may die and come
// back at any time; nothing here depends on it.
//
//	waiting ──SETUP──> pod ──QUIT──> gone       waiting ──carob gone──> gone
//	container: running ──reaped──> exited ──output drained──> forgotten
//
// One thread, one poll loop. It never reads what a container wrote except to
// copy it, and never blocks on a client.
#define _GNU_SOURCE
#include "common.h"

#include <linux/capability.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

// Keep in step with monitor.go.
enum {
	M_SETUP = 1, M_START, M_EXEC, M_KILL, M_REOPEN, M_ATTACH, M_RESIZE, M_LIST, M_QUIT,
	R_DONE = 32, R_EXIT, R_EXEC_EXIT, R_POD_EXIT,
};
enum { PID_NEW, PID_POD, PID_TARGET, PID_HOST };
enum { STDIN = 1, STDIN_ONCE = 2, TTY = 4, OOM_FD = 8, CGROUP_FD = 16, LISTEN_FD = 32, NETNS_FD = 64, POD_PID = 128 };
enum { CHUNK = 16384, FDS = 10, STUCK_SECONDS = 10 };
// Frames of an attach stream: one byte of kind, then data.
enum { F_STDOUT = 1, F_STDERR = 2, F_STDIN = 0, F_RESIZE = 1, F_CLOSE = 2 };

struct stream {
	int fd;
	uint32_t len;
	char *buf; // CHUNK bytes, made when first needed
};

struct container {
	struct container *next;
	char id[65];
	char *log_path;
	pid_t pid;
	int pidfd, in, console, log, dir, oom, once, tty, exited;
	struct stream out[2]; // stdout (or the terminal), stderr
};

struct child { // an exec
	struct child *next;
	pid_t pid;
	int pidfd, console, conn;
	uint32_t seq;
};

struct conn {
	struct conn *next;
	int fd, dead;
	struct container *attached;
	char *out, *in; // a frame the client, the container did not take yet
	uint32_t out_len, in_len;
	time_t stuck;
};

static struct container *containers;
static struct child *children;
static struct conn *conns;
static int listener = -1, ready, pod_pidfd = -1, own_pidns = -1, null_fd;
static pid_t pod_pid;

static int64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void *grab(size_t n)
{
	void *p = calloc(1, n);
	if (!p)
		_exit(111);
	return p;
}

// ---- log: "2026-11-21T01:02:03.000000000Z stdout F text"

static char *digits(char *p, int64_t v, int width)
{
	for (int i = width; i--; v /= 10)
		p[i] = '0' + v % 10;
	return p + width;
}

static void log_line(struct container *c, int err, char tag, char *s, size_t n)
{
	static time_t second = -1;
	static char stamp[21];
	struct timespec t;
	char h[64], *p = h;
	if (c->log < 0)
		return;
	clock_gettime(CLOCK_REALTIME, &t);
	if (t.tv_sec != second) {
		struct tm m;
		char *q = stamp;
		gmtime_r(&t.tv_sec, &m);
		q = digits(q, m.tm_year + 1900, 4), *q++ = '-';
		q = digits(q, m.tm_mon + 1, 2), *q++ = '-';
		q = digits(q, m.tm_mday, 2), *q++ = 'T';
		q = digits(q, m.tm_hour, 2), *q++ = ':';
		q = digits(q, m.tm_min, 2), *q++ = ':';
		q = digits(q, m.tm_sec, 2), *q++ = '.';
		second = t.tv_sec;
	}
	memcpy(p, stamp, 20);
	p = digits(p + 20, t.tv_nsec, 9);
	memcpy(p, err ? "Z stderr " : "Z stdout ", 9);
	p += 9;
	*p++ = tag;
	*p++ = ' ';
	struct iovec v[3] = {{h, p - h}, {s, n}, {"\n", 1}};
	// A full disk loses lines, as with every runtime; it must not stop the container.
	if (writev(c->log, v, 3) < 0)
		return;
}

static int open_log(struct container *c)
{
	shut(&c->log);
	if (!*c->log_path)
		return 0;
	c->log = open(c->log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
	return c->log < 0 ? -1 : 0;
}

// ---- clients

static void reply(int fd, uint32_t code, uint32_t seq, int64_t a, int64_t b, int64_t c, const char *id, uint32_t len)
{
	char buf[sizeof(struct record) + 8192] = {0};
	struct record *r = (struct record *)buf;
	if (len > 8000)
		len = 8000;
	*r = (struct record){.code = code, .seq = seq, .n = {a, b, c}, .len = {len}};
	memcpy(r + 1, id, len);
	r->size = (sizeof *r + len + 4 + 7) & ~7;
	send(fd, buf, r->size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void broadcast(uint32_t code, int64_t a, int64_t b, int64_t c, const char *id)
{
	for (struct conn *k = conns; k; k = k->next)
		if (!k->attached && !k->dead)
			reply(k->fd, code, 0, a, b, c, id, strlen(id));
}

static int attached_stuck(struct container *c)
{
	for (struct conn *k = conns; k; k = k->next)
		if (k->attached == c && k->out_len)
			return 1;
	return 0;
}

static void fan_out(struct container *c, char kind, char *s, size_t n)
{
	for (struct conn *k = conns; k; k = k->next) {
		if (k->attached != c || k->dead)
			continue;
		struct iovec v[2] = {{&kind, 1}, {s, n}};
		struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
		if (sendmsg(k->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			continue;
		if ((errno != EAGAIN && errno != ENOBUFS) || k->out_len) {
			k->dead = 1;
			continue;
		}
		if (!k->out)
			k->out = grab(CHUNK + 1);
		k->out[0] = kind;
		memcpy(k->out + 1, s, n);
		k->out_len = n + 1;
		k->stuck = now(CLOCK_MONOTONIC) / 1000000000;
	}
}

// pump moves one read of a container's output; 0 at its end, -1 when nothing is there
static int pump(struct container *c, int i)
{
	struct stream *s = &c->out[i];
	if (!s->buf)
		s->buf = grab(CHUNK);
	ssize_t n = read(s->fd, s->buf + s->len, CHUNK - s->len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -1;
	if (n <= 0) { // EIO is how a terminal says that nobody holds it
		if (s->len)
			log_line(c, i, 'P', s->buf, s->len);
		if (c->console == s->fd)
			c->console = -1;
		shut(&s->fd);
		free(s->buf);
		s->buf = NULL;
		s->len = 0;
		return 0;
	}
	fan_out(c, i ? F_STDERR : F_STDOUT, s->buf + s->len, n);
	s->len += n;
	char *p = s->buf, *e = s->buf + s->len, *nl;
	while ((nl = memchr(p, '\n', e - p))) {
		log_line(c, i, 'F', p, nl - p);
		p = nl + 1;
	}
	if (e - p == CHUNK) {
		log_line(c, i, 'P', p, CHUNK);
		p = e;
	}
	memmove(s->buf, p, e - p);
	s->len = e - p;
	return 1;
}

// ---- processes

// spawn starts the helper with fd[0..4] as its first descriptors and the given
// PID namespace; answers the pid or -1.
static pid_t spawn(int helper, int spec, int status, const int stdio[3], int console, int target, int pidmode, int pidns, int cgroup, int *pidfd)
{
	struct clone_args a = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)pidfd, .exit_signal = SIGCHLD};
	if (pidmode == PID_NEW)
		a.flags |= CLONE_NEWPID;
	else if (pidns >= 0 && setns(pidns, CLONE_NEWPID) < 0)
		return -1;
	if (cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = cgroup;
	}
	pid_t p = syscall(SYS_clone3, &a, sizeof a);
	int e = errno;
	if (p != 0) {
		if (pidns >= 0 && setns(own_pidns, CLONE_NEWPID) < 0)
			_exit(112); // we would put later children into a container
		errno = e;
		return p;
	}
	int want[8] = {stdio[0], stdio[1], stdio[2], spec, status, console, target, helper};
	sigset_t none;
	sigemptyset(&none);
	signal(SIGPIPE, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	for (int i = 0; i < 8; i++) // out of the way first
		if (want[i] >= 0 && (want[i] = fcntl(want[i], F_DUPFD_CLOEXEC, 64)) < 0)
			_exit(113);
	for (int i = 0; i < 8; i++)
		if (want[i] >= 0)
			dup3(want[i], i, i == FD_HELPER || i == FD_TARGET || i == FD_STATUS ? O_CLOEXEC : 0);
	// exec would close these two
	fcntl(FD_STATUS, F_SETFD, 0);
	fcntl(FD_TARGET, F_SETFD, 0);
	char *argv[] = {"carob-init", NULL}, *envp[] = {NULL};
	syscall(SYS_execveat, FD_HELPER, "", argv, envp, AT_EMPTY_PATH);
	_exit(114);
}

// A confined first process for a PID namespace that containers share: it reaps
// and holds. It must not be us: we see the host's files.
static void pod_init(void)
{
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, "pod-init", 0, 0, 0);
	setsid();
	syscall(SYS_close_range, 0, ~0U, 0);
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2] = {{0, 0, 0}, {0, 0, 0}};
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 || mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0k,nr_inodes=2,mode=555") < 0 ||
	    chdir("/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
		_exit(115);
	for (int i = 0; prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++)
		;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_setresgid, 65535, 65535, 65535) < 0 || syscall(SYS_setresuid, 65535, 65535, 65535) < 0 || syscall(SYS_capset, &h, d) < 0)
		_exit(116);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); // the change of ids cleared it; the pod ends with us
	if (getppid() != 0) // 0: our parent is outside; anything else has taken its place
		_exit(117);
	for (;;) {
		int sig;
		if (sigwait(&all, &sig) == 0 && sig == SIGTERM)
			_exit(0);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

static int oom_killed(int fd)
{
	char b[2048], *p;
	ssize_t n = fd < 0 ? 0 : pread(fd, b, sizeof b - 1, 0);
	if (n <= 0)
		return 0;
	b[n] = 0;
	// v1: memory.oom_control, v2: memory.events
	return (p = strstr(b, "oom_kill ")) && p[9] >= '1' && p[9] <= '9';
}

static void record_exit(struct container *c, int code, int oom, int64_t at)
{
	char b[80];
	size_t n = utoa(code, b);
	b[n++] = ' ';
	b[n++] = '0' + oom;
	b[n++] = ' ';
	n += utoa(at, b + n);
	b[n++] = '\n';
	int f = openat(c->dir, "exit.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (f < 0)
		return; // the directory is gone: nobody asks any more
	if (write(f, b, n) == (ssize_t)n)
		renameat(c->dir, "exit.tmp", c->dir, "exit");
	close(f);
}

// The helper's answer to a request for a terminal: its master side.
static int take_console(int sock)
{
	char b, ctl[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&b, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	int fd = -1;
	if (recvmsg(sock, &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0)
		return errno == EAGAIN ? -2 : -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
	if (fd >= 0)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return fd;
}

static void reap(void)
{
	int w;
	pid_t p;
	while ((p = waitpid(-1, &w, WNOHANG | __WALL)) > 0) {
		int code = WIFEXITED(w) ? WEXITSTATUS(w) : 128 + WTERMSIG(w);
		if (p == pod_pid) {
			pod_pid = 0;
			shut(&pod_pidfd);
			broadcast(R_POD_EXIT, code, now(CLOCK_REALTIME), 0, "");
			continue;
		}
		struct container *c = containers;
		while (c && c->pid != p)
			c = c->next;
		if (c) {
			int64_t at = now(CLOCK_REALTIME);
			int oom = oom_killed(c->oom);
			if (c->tty && c->out[0].fd < 0 && c->console >= 0) {
				int t = take_console(c->console);
				shut(&c->console);
				c->out[0].fd = t < 0 ? -1 : t;
			}
			for (int i = 0; i < 2; i++) // what it wrote comes before its end
				for (int k = 0; k < 256 && c->out[i].fd >= 0 && pump(c, i) > 0; k++)
					;
			record_exit(c, code, oom, at);
			c->exited = 1;
			c->pid = 0;
			shut(&c->pidfd);
			shut(&c->in);
			shut(&c->oom);
			shut(&c->dir);
			broadcast(R_EXIT, code, at, oom, c->id);
			continue;
		}
		for (struct child **k = &children; *k; k = &(*k)->next)
			if ((*k)->pid == p) {
				struct child *x = *k;
				reply(x->conn, R_EXEC_EXIT, x->seq, code, now(CLOCK_REALTIME), 0, "", 0);
				*k = x->next;
				close(x->pidfd);
				free(x);
				break;
			}
	}
}

// ---- requests

static struct container *find(const char *id)
{
	struct container *c = containers;
	while (c && strcmp(c->id, id))
		c = c->next;
	return c;
}

static int nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int refuse(int e, int *fd, int n)
{
	while (n-- > 0)
		close(fd[n]);
	return errno = e, -1;
}

static int start(struct record *m, char *s[4], int *fd, int nfd, int64_t *pid)
{
	// fds: helper, spec, status, directory [, oom][, cgroup]; strings: id, log, target
	int cgroup = -1, i = 4, stdio[3] = {null_fd, null_fd, null_fd}, sock[2] = {-1, -1};
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, r = -1, pidns = -1;
	if (m->len[0] != 64 || find(s[0]))
		return refuse(EEXIST, fd + 3, nfd - 3);
	if (m->n[1] == PID_POD)
		pidns = pod_pidfd;
	if (m->n[1] == PID_TARGET) {
		struct container *t = find(s[2]);
		pidns = t ? t->pidfd : -1;
	}
	if ((m->n[1] == PID_POD || m->n[1] == PID_TARGET) && pidns < 0)
		return refuse(ESRCH, fd + 3, nfd - 3);
	struct container *c = grab(sizeof *c);
	strcpy(c->id, s[0]);
	c->log_path = strdup(s[1]);
	c->pidfd = c->in = c->console = c->log = c->oom = c->out[0].fd = c->out[1].fd = -1;
	c->once = !!(m->n[0] & STDIN_ONCE);
	c->tty = !!(m->n[0] & TTY);
	c->dir = fd[3];
	if (m->n[0] & OOM_FD)
		c->oom = fd[i++];
	if (m->n[0] & CGROUP_FD)
		cgroup = fd[i++];
	if (!c->log_path || open_log(c) < 0)
		goto out;
	if (c->tty) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) < 0)
			goto out;
		stdio[0] = stdio[1] = stdio[2] = null_fd;
	} else {
		if ((m->n[0] & STDIN) && (pipe2(in, O_CLOEXEC) < 0 || nonblocking(in[1]) < 0))
			goto out;
		if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || nonblocking(out[0]) < 0 || nonblocking(err[0]) < 0)
			goto out;
		stdio[0] = in[0] >= 0 ? in[0] : null_fd;
		stdio[1] = out[1];
		stdio[2] = err[1];
	}
	r = c->pid = spawn(fd[0], fd[1], fd[2], stdio, sock[1], -1, m->n[1], pidns, cgroup, &c->pidfd);
out:;
	int e = errno;
	close(in[0]), close(out[1]), close(err[1]), close(sock[1]);
	if (cgroup >= 0)
		close(cgroup);
	if (r < 0) {
		close(in[1]), close(out[0]), close(err[0]), close(sock[0]);
		shut(&c->log), shut(&c->oom), shut(&c->dir);
		free(c->log_path);
		free(c);
		return errno = e, -1;
	}
	c->in = in[1];
	c->out[0].fd = c->tty ? -1 : out[0];
	c->out[1].fd = err[0];
	c->console = c->tty ? sock[0] : -1; // a socket until the helper sent the terminal
	c->next = containers;
	containers = c;
	*pid = r;
	return 0;
}

static int exec_in(struct record *m, char *s[4], int *fd, int nfd, int conn, int64_t *pid)
{
	// fds: helper, spec, status, stdin, stdout, stderr or console [, cgroup]
	struct container *c = find(s[0]);
	if (!c || c->exited)
		return refuse(ESRCH, fd + 3, nfd - 3);
	int tty = m->n[0] & TTY, stdio[3] = {tty ? null_fd : fd[3], tty ? null_fd : fd[4], tty ? null_fd : fd[5]};
	int cgroup = m->n[0] & CGROUP_FD ? fd[6] : -1;
	struct child *x = grab(sizeof *x);
	x->pid = spawn(fd[0], fd[1], fd[2], stdio, tty ? fd[5] : -1, c->pidfd, PID_TARGET, c->pidfd, cgroup, &x->pidfd);
	int e = errno;
	for (int i = 3; i < (cgroup >= 0 ? 7 : 6); i++)
		close(fd[i]);
	if (x->pid < 0) {
		free(x);
		return errno = e, -1;
	}
	x->seq = m->seq;
	x->conn = conn;
	x->next = children;
	children = x;
	*pid = x->pid;
	return 0;
}

static int put(const char *path, const char *s)
{
	int f = open(path, O_WRONLY | O_CLOEXEC);
	int r = f < 0 ? -1 : write(f, s, strlen(s));
	int e = errno;
	if (f >= 0)
		close(f);
	errno = e;
	return r < 0 ? -1 : 0;
}

// setup makes the monitor a pod's: namespaces, host name, sysctls, socket. The
// text that explains a failure is left in *what.
static int setup(struct record *m, char *s[4], int *fd, int n, const char **what)
{
	int i = 0;
	int l = m->n[0] & LISTEN_FD && i < n ? fd[i++] : -1, net = m->n[0] & NETNS_FD && i < n ? fd[i++] : -1;
	*what = "namespaces";
	if (net >= 0 && (setns(net, CLONE_NEWNET) < 0 || close(net) < 0))
		return -1;
	if (unshare(m->n[1]) < 0)
		return -1;
	*what = "host name";
	if (m->n[1] & CLONE_NEWUTS && m->len[0] && sethostname(s[0], m->len[0]) < 0)
		return -1;
	char *p = s[1], *e = s[1] + m->len[1]; // path, value, path, value …
	while (p < e) {
		char *v = p + strlen(p) + 1;
		*what = p;
		if (v >= e || put(p, v) < 0)
			return -1;
		p = v + strlen(v) + 1;
	}
	if (m->n[0] & POD_PID) {
		*what = "process namespace";
		struct clone_args a = {.flags = CLONE_PIDFD | CLONE_NEWPID | CLONE_NEWNS, .pidfd = (uintptr_t)&pod_pidfd, .exit_signal = SIGCHLD};
		pid_t q = syscall(SYS_clone3, &a, sizeof a);
		if (q == 0)
			pod_init();
		if (q < 0)
			return -1;
		pod_pid = q;
	}
	listener = l;
	ready = 1;
	return 0;
}

static void request(struct conn *k, char *b, size_t n, int *fd, int nfd)
{
	struct record *m = (struct record *)b;
	char *s[4];
	int r = -1, kept = 0;
	int64_t value = 0;
	const char *what = "";
	size_t at = sizeof *m;
	for (int i = 0; n >= sizeof *m && i < 4; i++) {
		s[i] = b + at;
		if (m->len[i] > n || (at += (size_t)m->len[i] + 1) > n || s[i][m->len[i]])
			n = 0;
	}
	if (n < sizeof *m) {
		k->dead = 1;
		goto out;
	}
	struct container *c = m->code == M_SETUP || m->code == M_START ? NULL : find(s[0]);
	errno = ESRCH;
	switch (m->code) {
	case M_SETUP:
		kept = nfd;
		r = setup(m, s, fd, nfd, &what);
		break;
	case M_START:
		errno = EINVAL;
		if (nfd >= 4 + !!(m->n[0] & OOM_FD) + !!(m->n[0] & CGROUP_FD)) {
			r = start(m, s, fd, nfd, &value);
			nfd = 3; // it took the others
		}
		break;
	case M_EXEC:
		errno = EINVAL;
		if (nfd >= 6 + !!(m->n[0] & CGROUP_FD)) {
			r = exec_in(m, s, fd, nfd, k->fd, &value);
			nfd = 3;
		}
		break;
	case M_KILL: // a container, or with n[1] the exec of that number
		if (m->n[1]) {
			for (struct child *x = children; x; x = x->next)
				if (x->conn == k->fd && x->seq == m->n[1])
					r = syscall(SYS_pidfd_send_signal, x->pidfd, (int)m->n[0], NULL, 0);
		} else if (c && !c->exited)
			r = syscall(SYS_pidfd_send_signal, c->pidfd, (int)m->n[0], NULL, 0);
		break;
	case M_REOPEN:
		r = c ? open_log(c) : -1;
		break;
	case M_RESIZE:
		if (c && c->tty && c->out[0].fd >= 0) {
			struct winsize w = {.ws_row = m->n[0], .ws_col = m->n[1]};
			r = ioctl(c->out[0].fd, TIOCSWINSZ, &w);
		}
		break;
	case M_ATTACH:
		if (c && !c->exited) {
			reply(k->fd, R_DONE, m->seq, 0, c->tty, c->in >= 0 || c->tty, "", 0);
			k->attached = c;
			goto out;
		}
		break;
	case M_LIST: {
		char ids[8000];
		uint32_t len = 0;
		for (c = containers; c; c = c->next)
			if (!c->exited && len + 65 < sizeof ids) {
				memcpy(ids + len, c->id, 64);
				ids[len + 64] = '\n';
				len += 65;
			}
		reply(k->fd, R_DONE, m->seq, 0, getpid(), pod_pid, ids, len);
		goto out;
	}
	case M_QUIT:
		reply(k->fd, R_DONE, m->seq, 0, 0, 0, "", 0);
		_exit(0);
	default:
		errno = ENOSYS;
	}
	reply(k->fd, R_DONE, m->seq, r < 0 ? errno : 0, value, 0, what, strlen(what));
out:
	for (int i = kept; i < nfd; i++)
		close(fd[i]);
}

// flush_input gives the container what it did not take before; 1 when done
static int flush_input(struct conn *k)
{
	struct container *c = k->attached;
	int to = c->tty ? c->out[0].fd : c->in;
	while (k->in_len && to >= 0) {
		ssize_t n = write(to, k->in, k->in_len);
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0) {
			if (!c->tty)
				shut(&c->in);
			break;
		}
		memmove(k->in, k->in + n, k->in_len -= n);
	}
	k->in_len = 0;
	return 1;
}

static void input(struct conn *k, char *b, size_t n)
{
	struct container *c = k->attached;
	switch (b[0]) {
	case F_STDIN:
		if (n > 1 && n - 1 <= 2 * CHUNK) {
			if (!k->in)
				k->in = grab(2 * CHUNK);
			memcpy(k->in, b + 1, k->in_len = n - 1);
			flush_input(k);
		}
		break;
	case F_RESIZE:
		if (n >= 9 && c->tty && c->out[0].fd >= 0) {
			uint32_t v[2];
			memcpy(v, b + 1, 8);
			struct winsize w = {.ws_row = v[0], .ws_col = v[1]};
			ioctl(c->out[0].fd, TIOCSWINSZ, &w);
		}
		break;
	case F_CLOSE:
		if (c->once)
			shut(&c->in);
	}
}

static void receive(struct conn *k)
{
	static char b[65536] __attribute__((aligned(8)));
	char ctl[CMSG_SPACE(FDS * sizeof(int))];
	struct iovec v = {b, sizeof b};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	int fd[FDS], nfd = 0;
	ssize_t n = recvmsg(k->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		k->dead = 1;
		return;
	}
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		nfd = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fd, CMSG_DATA(c), nfd * sizeof(int));
	}
	if (k->attached)
		input(k, b, n);
	else
		request(k, b, n, fd, nfd);
}

static void add_conn(int fd)
{
	struct conn *k = grab(sizeof *k);
	k->fd = fd;
	k->next = conns;
	conns = k;
}

static void accept_one(void)
{
	struct ucred u;
	socklen_t l = sizeof u;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &l) < 0 || (u.uid != 0 && u.uid != geteuid()))
		close(fd);
	else
		add_conn(fd);
}

// ---- the loop

static void sweep(void)
{
	for (struct conn **p = &conns; *p;) {
		struct conn *k = *p;
		if (k->out_len && now(CLOCK_MONOTONIC) / 1000000000 - k->stuck > STUCK_SECONDS)
			k->dead = 1;
		if (k->attached && k->attached->exited && k->attached->out[0].fd < 0 && k->attached->out[1].fd < 0 && !k->out_len)
			k->dead = 1;
		if (!k->dead) {
			p = &k->next;
			continue;
		}
		if (k->attached && k->attached->once)
			shut(&k->attached->in);
		for (struct child *x = children; x; x = x->next)
			if (x->conn == k->fd) { // whoever asked for this exec is gone
				syscall(SYS_pidfd_send_signal, x->pidfd, SIGKILL, NULL, 0);
				x->conn = -1;
			}
		*p = k->next;
		close(k->fd);
		free(k->in);
		free(k->out);
		free(k);
	}
	for (struct container **p = &containers; *p;) {
		struct container *c = *p;
		int used = 0;
		for (struct conn *k = conns; k; k = k->next)
			used |= k->attached == c;
		if (!c->exited || used || c->out[0].fd >= 0 || c->out[1].fd >= 0) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		shut(&c->log);
		shut(&c->console);
		free(c->log_path);
		free(c);
	}
}

int main(int argc, char **argv, char **envp)
{
	// The environment is nothing but the cgroup.procs files to join.
	(void)argc, (void)argv;
	sigset_t m;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, NULL);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_NAME, "carob-monitor", 0, 0, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	int sfd = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK);
	fcntl(3, F_SETFD, FD_CLOEXEC);
	for (int i = 0; envp[i]; i++)
		if (put(envp[i], "0") < 0)
			_exit(117);
	put("/proc/self/oom_score_adj", "-998"); // not permitted everywhere; then we live with it
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	own_pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	if (sfd < 0 || null_fd < 0 || own_pidns < 0 || chdir("/") < 0)
		_exit(118);
	add_conn(3);
	for (;;) {
		static struct pollfd *f;
		static void **who;
		static size_t cap;
		size_t n = 2;
		int pending = 0;
		for (struct conn *k = conns; k; k = k->next)
			n += 2;
		for (struct container *c = containers; c; c = c->next)
			n += 3;
		if (n > cap) {
			cap = n * 2;
			f = realloc(f, cap * sizeof *f);
			who = realloc(who, cap * sizeof *who);
			if (!f || !who)
				_exit(111);
		}
		f[0] = (struct pollfd){sfd, POLLIN, 0};
		f[1] = (struct pollfd){listener, POLLIN, 0};
		n = 2;
		for (struct conn *k = conns; k; k = k->next) {
			who[n] = k;
			pending |= k->out_len > 0;
			f[n++] = (struct pollfd){k->fd, (k->in_len ? 0 : POLLIN) | (k->out_len ? POLLOUT : 0), 0};
			who[n] = k;
			f[n++] = (struct pollfd){k->in_len ? (k->attached->tty ? k->attached->out[0].fd : k->attached->in) : -1, POLLOUT, 0};
		}
		size_t first = n;
		for (struct container *c = containers; c; c = c->next) {
			int held = attached_stuck(c);
			for (int i = 0; i < 2; i++) {
				who[n] = c;
				f[n++] = (struct pollfd){held ? -1 : c->out[i].fd, POLLIN, 0};
			}
			who[n] = c;
			f[n++] = (struct pollfd){c->tty && c->out[0].fd < 0 && !c->exited ? c->console : -1, POLLIN, 0};
		}
		if (poll(f, n, pending ? 1000 : -1) < 0 && errno != EINTR)
			_exit(119);
		for (size_t i = first; i < n; i += 3) {
			struct container *c = who[i];
			for (int j = 0; j < 2; j++)
				if (f[i + j].revents && c->out[j].fd >= 0)
					pump(c, j);
			if (f[i + 2].revents) {
				int t = take_console(c->console);
				if (t != -2) {
					shut(&c->console);
					c->out[0].fd = t;
				}
			}
		}
		for (size_t i = 2; i < first; i += 2) {
			struct conn *k = who[i];
			if (f[i].revents & POLLOUT && k->out_len && send(k->fd, k->out, k->out_len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
				k->out_len = 0;
			if (f[i + 1].revents)
				flush_input(k);
			if (f[i].revents & (POLLIN | POLLHUP | POLLERR))
				receive(k);
		}
		if (f[1].revents)
			accept_one();
		if (f[0].revents) {
			struct signalfd_siginfo si[8];
			while (read(sfd, si, sizeof si) > 0)
				;
			reap();
		}
		sweep();
		if (!conns && !ready)
			_exit(0);
	}
}
