// The monitor's protocol, with arbitrary input from connections, and the ends of processes that it did or did not
// start.
#include "fuzz.h"

#include "../monitor.h"
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

static pid_t next_pid, ended_pid;

static pid_t stub_clone(int *pidfd)
{
	if (byte() % 8 == 0)
		return errno = EAGAIN, -1;
	*pidfd = null_device();
	return next_pid++;
}

static long stub_syscall(long number, ...)
{
	if (number == SYS_clone3) {
		va_list l;
		va_start(l, number);
		struct clone_args *a = va_arg(l, struct clone_args *);
		va_end(l);
		return stub_clone((int *)(uintptr_t)a->pidfd);
	}
	return number == SYS_openat2 || number == SYS_pidfd_open ? null_device() : 0;
}

static pid_t one_end(int *status)
{
	pid_t p = ended_pid;
	ended_pid = 0;
	*status = byte() << 8;
	return p;
}

static int peek_end(siginfo_t *i)
{
	i->si_pid = ended_pid;
	return 0;
}

static int put_nothing(const char *path, const char *s, size_t n)
{
	return strlen(path) + strnlen(s, n) > 3 ? 0 : -1; // both are read to their ends
}

#define main monitor_main
#define syscall stub_syscall
#define clone(run, stack, flags, fds, pidfd) stub_clone(pidfd)
#define open(path, ...) (strlen(path) % 7 == 6 ? (errno = ENOSPC, -1) : null_device())
#define openat(...) null_device()
#define renameat(...) 0
#define setns(...) 0
#define unshare(...) 0
#define sethostname(s, n) (strnlen(s, n) == (size_t)-2)
#define waitpid(a, status, c) one_end(status)
#define waitid(a, b, info, c) peek_end(info)
#define put put_nothing
#define _exit(code) longjmp(ended, 1)
#include "../log.c"
#include "../process.c"
#include "../monitor.c"
#undef main

static void run_script(void)
{
	int ours[4] = {-1, -1, -1, -1};
	containers = NULL;
	children = NULL;
	conns = NULL;
	forget_spare();
	listener = pod_pidfd = -1;
	ready = 0;
	pod_pid = 0;
	next_pid = 1000;
	null_fd = null_device();
	own_pidns = null_device();
	while (script < script_end) {
		int op = byte(), i = byte() % 4, pair[2];
		if (op % 8 == 0) { // the end of a process
			ended_pid = 1000 + i;
			reap();
		} else if (op % 8 == 1) {
			shut(&ours[i]);
		} else if (op % 8 == 3) { // a report of a helper
			char b[24];
			if (pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0)
				return;
			if (write(pair[1], b, take(b, byte() % sizeof b)) < 0)
				return;
			struct container *c = containers;
			while (c && c->life.news < 0)
				c = c->next;
			if (c) {
				dup2(pair[0], c->life.news);
				read_news(&c->life);
			}
			close(pair[0]);
			close(pair[1]);
		} else {
			uint16_t n = 0;
			char b[65536], ctl[CMSG_SPACE(FDS * sizeof(int))] = {0};
			int fds[FDS], nfd = byte() % (FDS + 1);
			take(&n, sizeof n);
			struct iovec v = {b, take(b, n)};
			if (ours[i] < 0) {
				if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
					return;
				ours[i] = pair[0];
				add_conn(pair[1]);
			}
			struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
			for (int j = 0; j < nfd; j++)
				fds[j] = null_device();
			if (nfd) {
				h.msg_control = ctl;
				h.msg_controllen = CMSG_SPACE(nfd * sizeof(int));
				struct cmsghdr *c = CMSG_FIRSTHDR(&h);
				c->cmsg_level = SOL_SOCKET;
				c->cmsg_type = SCM_RIGHTS;
				c->cmsg_len = CMSG_LEN(nfd * sizeof(int));
				memcpy(CMSG_DATA(c), fds, nfd * sizeof(int));
			}
			sendmsg(ours[i], &h, MSG_NOSIGNAL | MSG_DONTWAIT);
			for (int j = 0; j < nfd; j++)
				close(fds[j]);
		}
		for (struct conn *k = conns; k; k = k->next) {
			if (k->in_len)
				flush_input(k);
			if (!k->in_len)
				receive(k);
			if (byte() % 8 == 0)
				lose(k);
		}
		for (struct container *c = containers; c; c = c->next)
			for (int j = 0; j < 2; j++)
				if (c->out[j].fd >= 0)
					pump(c, j);
		sweep();
	}
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN); // as the monitor's main does
	return serve();
}
