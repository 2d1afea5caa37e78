// Starts the helper, reaps processes, and stores their exit codes.
#include "monitor.h"

#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifdef __aarch64__
enum { ARCH = AUDIT_ARCH_AARCH64 };
#else
enum { ARCH = AUDIT_ARCH_X86_64 };
#endif

struct container *containers;
struct child *children;
int listener = -1, ready, pod_pidfd = -1, own_pidns = -1, null_fd;
pid_t pod_pid;
struct rlimit files;
struct spare spare = {{.pidfd = -1, .news = -1}, {-1, -1}};

// The capabilities of a pod's monitor: to signal processes of any user, and during a clone to create and enter PID
// namespaces of processes. The helper gets all capabilities of root by its exec.
enum { MAY = 1 << CAP_KILL, MAY_CLONE = 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_PTRACE };
static uint32_t may; // MAY and MAY_CLONE as far as the host allows them; 0: nothing was dropped

static int allow(uint32_t effective)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2] = {{effective & may, may, 0}, {0, 0, 0}};
	return may ? syscall(SYS_capset, &h, d) : 0;
}

// drop removes every other capability, and prevents other processes from inspecting the monitor, which may have more
// rights than they. If an exec does not give root its capabilities, the helper needs all of the monitor's.
static int drop(void)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || syscall(SYS_capget, &h, d) < 0)
		return -1;
	if (geteuid() == 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 && !(prctl(PR_GET_SECUREBITS) & SECBIT_NOROOT))
		may = d[0].permitted & (MAY | MAY_CLONE);
	return allow(MAY);
}

// become executes the helper with the given descriptors as its first ones. It may run in the monitor's memory, in which
// it must change nothing, also not what a sanitizer notes about the stack.
__attribute__((no_sanitize_address)) static int become(void *fds)
{
	int *want = fds;
	sigset_t none;
	sigemptyset(&none);
	signal(SIGPIPE, SIG_DFL); // the only one that the monitor ignores
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	for (int i = 0; i < 9; i++) // move it to a high number first
		if (want[i] >= 0 && (want[i] = fcntl(want[i], F_DUPFD_CLOEXEC, 64)) < 0)
			_exit(113);
	for (int i = 0; i < 9; i++)
		if (want[i] >= 0)
			dup3(want[i], i, i == FD_HELPER ? O_CLOEXEC : 0);
	setrlimit(RLIMIT_NOFILE, &files);
	char *argv[] = {"carob-init", NULL}, *envp[] = {NULL};
	syscall(SYS_execveat, FD_HELPER, "", argv, envp, AT_EMPTY_PATH);
	_exit(114);
}

// spawn starts the helper with fd[0..4] as its first descriptors in the given PID namespace; returns the pid or -1.
static pid_t spawn(struct life *l, int helper, int spec, int status, const int stdio[3], int console, int pidmode,
                   int pidns, int target, int cgroup, int flags)
{
	struct clone_args a = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&l->pidfd, .exit_signal = SIGCHLD};
	int news[2] = {-1, -1};
	char stack[8192] __attribute__((aligned(16)));
	l->late = flags & LATE;
	l->begun = !(flags & NEWS); // a carob of the first protocol does not request it
	if (l->late) // the helper enters it itself, after it has closed its descriptors
		target = pidns, pidns = -1;
	if (flags & NEWS && (pipe2(news, O_CLOEXEC) < 0 || nonblocking(news[0]) < 0))
		return keep(keep(-1, news[0]), news[1]);
	if (pidmode == PID_NEW)
		a.flags |= CLONE_NEWPID;
	if (cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = cgroup;
	}
	int want[9] = {stdio[0], stdio[1], stdio[2], spec, status, console, target, helper, news[1]};
	pid_t p = -1;
	if (allow(MAY | MAY_CLONE) == 0 && (pidns < 0 || setns(pidns, CLONE_NEWPID) == 0)) {
		// Without a copy of the memory where no process can see the child before its exec, or stop it in a cgroup.
		if (pidns < 0 && cgroup < 0)
			p = clone(become, stack + sizeof stack, a.flags | CLONE_VM | CLONE_VFORK | SIGCHLD, want, &l->pidfd);
		else if ((p = syscall(SYS_clone3, &a, sizeof a)) == 0)
			become(want);
	}
	int e = errno;
	l->pid = p;
	l->news = p < 0 ? keep(-1, news[0]) : news[0];
	keep(0, news[1]);
	if ((pidns >= 0 && setns(own_pidns, CLONE_NEWPID) < 0) || allow(MAY) < 0)
		_exit(112); // later children would be created in a container
	errno = e;
	return p;
}

// A confined first process for a PID namespace that containers share: it reaps processes and keeps the namespace. The
// monitor must not be it, as it has access to the host's files.
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
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
	    mount("tmpfs", "/proc", "tmpfs", flags, "size=0k,nr_inodes=2,mode=555") < 0 || chdir("/proc") < 0 ||
	    syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
	    mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
		_exit(115);
	for (int i = 0; prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++)
		;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_setresgid, 65535, 65535, 65535) < 0 || syscall(SYS_setresuid, 65535, 65535, 65535) < 0 ||
	    syscall(SYS_capset, &h, d) < 0)
		_exit(116);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0); // the change of ids cleared it; this process ends with the monitor
	if (getppid() != 0) // 0: the parent is outside the namespace; otherwise the monitor has ended
		_exit(117);
	struct sock_filter calls[] = { // from here on, only reap
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 0, 6),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigtimedwait, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_wait4, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_restart_syscall, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof calls / sizeof *calls, calls};
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) < 0 && errno != EINVAL) // the kernel does not support it
		_exit(118);
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
	int n = snprintf(b, sizeof b, "%d %d %lld\n", code, oom, (long long)at);
	// carob created the file with more bytes than this, so that the write succeeds on a full disk
	int f = openat(c->dir, "exit.tmp", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (f < 0)
		return; // the directory is gone: the exit is not needed any more
	if (write(f, b, n) == n)
		renameat(c->dir, "exit.tmp", c->dir, "exit");
	close(f);
}

// Receives the terminal's master side from the helper.
int take_console(int sock)
{
	int fd = take_fd(sock, MSG_DONTWAIT);
	if (fd >= 0)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return fd < 0 && errno == EAGAIN ? -2 : fd;
}

// read_news reads the reports of a helper; returns whether the process as which it continues is still unknown.
int read_news(struct life *l)
{
	uint32_t b[2];
	siginfo_t i;
	for (ssize_t n; l->news >= 0 && (n = read(l->news, b, sizeof b)) >= 0;) {
		if (n != sizeof b) {
			shut(&l->news);
			l->late = 0;
		} else if (b[0] != NEWS_PID) {
			l->begun = b[0] == NEWS_EXEC;
		} else if (l->late) {
			int fd = syscall(SYS_pidfd_open, b[1], 0);
			if (fd < 0 || waitid(P_PIDFD, fd, &i, WEXITED | WNOHANG | WNOWAIT) < 0) // not a child of the monitor
				fd = keep(-1, fd);
			else
				close(l->pidfd), l->pidfd = fd, l->pid = b[1];
			l->late = 0;
		}
	}
	return l->late;
}

int signal_life(struct life *l, int sig)
{
	read_news(l);
	return syscall(SYS_pidfd_send_signal, l->pidfd, sig, NULL, 0);
}

void reap(void)
{
	siginfo_t i = {0};
	while (waitid(P_ALL, 0, &i, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 && i.si_pid) {
		pid_t p = i.si_pid;
		int w, late = 0, known = p == pod_pid;
		for (struct container *c = containers; c; c = c->next)
			late |= read_news(&c->life), known |= c->life.pid == p;
		for (struct child *x = children; x; x = x->next)
			late |= read_news(&x->life), known |= x->life.pid == p;
		known |= p == spare.life.pid;
		if (!known && late)
			return; // its helper is about to report it, and then ends
		if (waitpid(p, &w, __WALL) != p)
			return;
		i.si_pid = 0;
		int code = WIFEXITED(w) ? WEXITSTATUS(w) : 128 + WTERMSIG(w);
		if (p == pod_pid) {
			pod_pid = 0;
			shut(&pod_pidfd);
			broadcast(R_POD_EXIT, code, now(CLOCK_REALTIME), 0, "");
			continue;
		}
		if (p == spare.life.pid)
			forget_spare();
		struct container *c = containers;
		while (c && c->life.pid != p)
			c = c->next;
		if (c) {
			int64_t at = now(CLOCK_REALTIME);
			int oom = oom_killed(c->oom);
			if (c->tty && c->out[0].fd < 0 && c->console >= 0) {
				int t = take_console(c->console);
				shut(&c->console);
				c->out[0].fd = t < 0 ? -1 : t;
			}
			for (int i = 0; i < 2; i++) // its output is handled before its end
				for (int k = 0; k < 256 && c->out[i].fd >= 0 && pump(c, i) > 0; k++)
					;
			if (c->life.begun) // only the end of the user's process is stored on disk
				record_exit(c, code, oom, at);
			c->exited = 1;
			c->aged = seconds();
			c->life.pid = 0;
			shut(&c->life.pidfd);
			shut(&c->life.news);
			shut(&c->in);
			shut(&c->oom);
			shut(&c->dir);
			if (c->life.begun)
				broadcast(R_EXIT, code, at, oom, c->id);
			continue;
		}
		for (struct child **k = &children; *k; k = &(*k)->next)
			if ((*k)->life.pid == p) {
				struct child *x = *k;
				reply(x->conn, R_EXEC_EXIT, x->seq, code, now(CLOCK_REALTIME), 0, "", 0);
				*k = x->next;
				close(x->life.pidfd);
				shut(&x->life.news);
				free(x);
				break;
			}
	}
}

struct container *find(const char *id)
{
	struct container *c = containers;
	while (c && strcmp(c->id, id))
		c = c->next;
	return c;
}

static int refuse(int e, int *fd, int n)
{
	while (n-- > 0)
		close(fd[n]);
	return errno = e, -1;
}

static int output(int out[2], int err[2])
{
	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
		return -1;
	return nonblocking(out[0]) < 0 || nonblocking(err[0]) < 0 ? -1 : 0;
}

// forget_spare closes the descriptors of the spare helper. It ends when its connection to carob is closed.
void forget_spare(void)
{
	spare.life.pid = 0;
	shut(&spare.life.pidfd), shut(&spare.life.news), shut(&spare.out[0]), shut(&spare.out[1]);
}

// prepare starts the spare helper. It gets the monitor's pidfd, to join the namespaces that will be the pod's by then.
int prepare(int *fd, int64_t *pid)
{
	// fds: helper, status
	int out[2] = {-1, -1}, err[2] = {-1, -1}, r = -1;
	if (spare.life.pid)
		return errno = EEXIST, -1;
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	if (self >= 0 && output(out, err) == 0)
		r = spawn(&spare.life, fd[0], -1, fd[1], (int[3]){null_fd, out[1], err[1]}, -1, PID_NEW, -1, self, -1, NEWS);
	keep(0, self), keep(0, out[1]), keep(0, err[1]);
	if (r < 0) {
		spare.life.pid = 0; // it has no pidfd
		return keep(keep(-1, out[0]), err[0]);
	}
	spare.out[0] = out[0], spare.out[1] = err[0];
	*pid = r;
	return 0;
}

int start(struct message *m, char *s[4], int *fd, int nfd, int64_t *pid)
{
	// fds: [helper, spec, status,] directory [, oom][, cgroup][, log]; strings: id, log, target
	int own = m->n[0] & PREPARED ? 0 : 3;
	int cgroup = -1, log = -1, i = own + 1, stdio[3] = {null_fd, null_fd, null_fd}, sock[2] = {-1, -1};
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, r = -1, pidns = -1;
	if (m->len[0] != 64 || find(s[0]))
		return refuse(EEXIST, fd + own, nfd - own);
	if (!own && (!spare.life.pid || m->n[1] != PID_NEW || m->n[0] & (STDIN | TTY | CGROUP_FD | LATE)))
		return refuse(ESRCH, fd, nfd);
	if (m->n[1] == PID_POD)
		pidns = pod_pidfd;
	if (m->n[1] == PID_TARGET) {
		struct container *t = find(s[2]);
		pidns = t && !t->exited ? t->life.pidfd : -1;
	}
	if ((m->n[1] == PID_POD || m->n[1] == PID_TARGET) && pidns < 0)
		return refuse(ESRCH, fd + own, nfd - own);
	struct container *c = grab(sizeof *c);
	strcpy(c->id, s[0]);
	c->log_path = strdup(s[1]);
	c->life.pidfd = c->life.news = c->in = c->console = c->log = c->oom = c->out[0].fd = c->out[1].fd = -1;
	c->once = !!(m->n[0] & STDIN_ONCE);
	c->tty = !!(m->n[0] & TTY);
	c->hold = !!(m->n[0] & (STDIN | TTY));
	c->dir = fd[own];
	if (m->n[0] & OOM_FD)
		c->oom = fd[i++];
	if (m->n[0] & CGROUP_FD)
		cgroup = fd[i++];
	if (m->n[0] & LOG_FD)
		log = fd[i++];
	if (!c->log_path || open_log(c, log) < 0)
		goto out;
	log = -1;
	if (!own) {
		c->life = spare.life, out[0] = spare.out[0], err[0] = spare.out[1];
		spare = (struct spare){{.pidfd = -1, .news = -1}, {-1, -1}};
		r = c->life.pid;
		goto out;
	}
	if (c->tty) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) < 0)
			goto out;
	} else {
		if ((m->n[0] & STDIN) && (pipe2(in, O_CLOEXEC) < 0 || nonblocking(in[1]) < 0))
			goto out;
		if (output(out, err) < 0)
			goto out;
		stdio[0] = in[0] >= 0 ? in[0] : null_fd;
		stdio[1] = out[1];
		stdio[2] = err[1];
	}
	r = spawn(&c->life, fd[0], fd[1], fd[2], stdio, sock[1], m->n[1], pidns, -1, cgroup, m->n[0]);
out:;
	int e = errno;
	keep(0, in[0]), keep(0, out[1]), keep(0, err[1]), keep(0, sock[1]), keep(0, cgroup), keep(0, log);
	if (r < 0) {
		keep(0, in[1]), keep(0, out[0]), keep(0, err[0]), keep(0, sock[0]);
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

int exec_in(struct message *m, char *s[4], int *fd, int nfd, int conn, int64_t *pid)
{
	// fds: helper, spec, status, stdin, stdout, stderr or console [, cgroup]
	struct container *c = find(s[0]);
	if (!c || c->exited)
		return refuse(ESRCH, fd + 3, nfd - 3);
	int tty = m->n[0] & TTY, stdio[3] = {tty ? null_fd : fd[3], tty ? null_fd : fd[4], tty ? null_fd : fd[5]};
	int cgroup = m->n[0] & CGROUP_FD ? fd[6] : -1;
	struct child *x = grab(sizeof *x);
	x->life.news = -1;
	spawn(&x->life, fd[0], fd[1], fd[2], stdio, tty ? fd[5] : -1, PID_TARGET, c->life.pidfd, c->life.pidfd, cgroup,
	      m->n[0]);
	int e = errno;
	for (int i = 3; i < (cgroup >= 0 ? 7 : 6); i++)
		close(fd[i]);
	if (x->life.pid <= 0) {
		free(x);
		return errno = e, -1;
	}
	x->seq = m->seq;
	x->conn = conn;
	x->next = children;
	children = x;
	*pid = x->life.pid;
	return 0;
}

// set_sysctl writes to a file below /proc/sys, and never through a link or a mount.
static int set_sysctl(const char *name, const char *value)
{
	uint64_t within = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
	struct open_how how = {.flags = O_WRONLY | O_CLOEXEC, .resolve = within};
	int dir = open("/proc/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = dir < 0 ? -1 : keep(syscall(SYS_openat2, dir, name, &how, sizeof how), dir);
	return fd < 0 ? -1 : keep(write(fd, value, strlen(value)) < 0 ? -1 : 0, fd);
}

// setup assigns the monitor to a pod: namespaces, host name, sysctls, socket. After a failure *what is the text that
// explains it.
int setup(struct message *m, char *s[4], int *fd, int n, const char **what)
{
	int i = 0;
	int l = m->n[0] & LISTEN_FD && i < n ? fd[i++] : -1, net = m->n[0] & NETNS_FD && i < n ? fd[i++] : -1;
	int owner = m->n[0] & OWNER_FD && i < n ? fd[i++] : -1; // namespaces that belong to the pod's user namespace
	*what = "namespaces";
	if (net >= 0 && (setns(net, CLONE_NEWNET) < 0 || close(net) < 0))
		return -1;
	if (owner >= 0 && ((m->n[2] && setns(owner, m->n[2]) < 0) || close(owner) < 0))
		return -1;
	if (unshare(m->n[1]) < 0)
		return -1;
	*what = "host name";
	if ((m->n[1] | m->n[2]) & CLONE_NEWUTS && m->len[0] && sethostname(s[0], m->len[0]) < 0)
		return -1;
	for (char *p = s[1], *e = s[1] + m->len[1]; p < e;) { // name, value, name, value …
		char *name = next_string(&p, e), *value = name ? next_string(&p, e) : NULL;
		*what = name ? name : "sysctls";
		if (!value || set_sysctl(name, value) < 0)
			return -1;
	}
	if (m->n[0] & POD_PID) {
		*what = "process namespace";
		uint64_t flags = CLONE_PIDFD | CLONE_NEWPID | CLONE_NEWNS;
		struct clone_args a = {.flags = flags, .pidfd = (uintptr_t)&pod_pidfd, .exit_signal = SIGCHLD};
		pid_t q = syscall(SYS_clone3, &a, sizeof a);
		if (q == 0)
			pod_init();
		if (q < 0)
			return -1;
		pod_pid = q;
	}
	*what = "capabilities";
	if (drop() < 0)
		return -1;
	listener = l;
	ready = 1;
	return 0;
}

