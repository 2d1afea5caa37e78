// monitor is the parent of all processes of one pod.
//
// It starts the helper for each container and exec, writes the containers' logs
// in CRI form, keeps their exit codes on disk and serves terminals and attach
// streams. carob sends it requests over a unix socket and may be killed and started again at any time; running
// containers do not depend on it.
//
//	waiting ──SETUP──> pod ──QUIT──> gone       waiting ──carob gone──> gone
//	container: running ──reaped──> exited ──output drained──> forgotten
//
// One thread, one poll loop. It never interprets the output of a container, only copies it, and never blocks on a
// client.
#include "monitor.h"

#include <sched.h>
#include <sys/signalfd.h>

static struct conn *conns;

// reply sends a message, or keeps it while the client is slow: each waits for an answer, or for the end of an exec.
void reply(int fd, uint32_t code, uint32_t seq, int64_t a, int64_t b, int64_t c, const char *id, uint32_t len)
{
	struct conn *k = conns;
	char buf[sizeof(struct message) + 8192] = {0};
	struct message *r = (struct message *)buf;
	if (len > 8000)
		len = 8000;
	*r = (struct message){.code = code, .flags = PROTOCOL, .seq = seq, .n = {a, b, c}, .len = {len}};
	memcpy(r + 1, id, len);
	r->size = (sizeof *r + len + 4 + 7) & ~7;
	while (k && k->fd != fd)
		k = k->next;
	if (!k || k->gone || (!k->out_len && send(fd, buf, r->size, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0))
		return;
	if ((k->dead |= k->out_len + r->size > UNREAD)) // it connects again and lists what is left
		return;
	if (!k->out)
		k->out = grab(UNREAD);
	memcpy(k->out + k->out_len, buf, r->size);
	k->out_len += r->size;
}

// send_kept sends what a client has not read: a frame if it is attached, otherwise messages.
static void send_kept(struct conn *k)
{
	uint32_t at = 0, n;
	for (; at < k->out_len; at += n) {
		n = k->attached ? k->out_len : ((struct message *)(k->out + at))->size;
		if (send(k->fd, k->out + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			break;
	}
	if (at < k->out_len)
		memmove(k->out, k->out + at, k->out_len -= at);
	else {
		free(k->out);
		k->out = NULL;
		k->out_len = 0;
	}
}

void broadcast(uint32_t code, int64_t a, int64_t b, int64_t c, const char *id)
{
	for (struct conn *k = conns; k; k = k->next)
		if (!k->attached && !k->dead)
			reply(k->fd, code, 0, a, b, c, id, strlen(id));
}

static int attached_stuck(struct container *c)
{
	for (struct conn *k = conns; k; k = k->next)
		if (k->attached == c && (k->out_len || k->replay))
			return 1;
	return 0;
}

static void drop_first(struct container *c)
{
	uint16_t n;
	memcpy(&n, c->held + c->held_at + 1, sizeof n);
	c->held_at += 3 + n;
	if (c->held_at == c->held_len)
		c->held_at = c->held_len = c->held_old = 0;
}

static void let_go(struct container *c)
{
	free(c->held);
	c->held = NULL;
	c->held_at = c->held_len = c->held_old = 0;
}

// age drops what was already there when it last did so, more than HOLD_SECONDS ago.
static void age(struct container *c)
{
	while (c->held_at < c->held_old)
		drop_first(c);
	c->held_old = c->held_len;
	c->aged = seconds();
	if (!c->held_len)
		let_go(c);
}

static void hold(struct container *c, char kind, const char *s, uint16_t n)
{
	uint16_t last = 0;
	if (!c->held) {
		c->held = grab(HELD);
		c->aged = seconds();
	}
	while (c->held_len && c->held_len - c->held_at + n + 3 > HELD)
		drop_first(c);
	if (c->held_len + n + 3 > HELD) {
		memmove(c->held, c->held + c->held_at, c->held_len -= c->held_at);
		c->held_last -= c->held_at;
		c->held_old -= c->held_old < c->held_at ? c->held_old : c->held_at;
		c->held_at = 0;
	}
	if (c->held_len)
		memcpy(&last, c->held + c->held_last + 1, sizeof last);
	if (!c->held_len || c->held_last < c->held_old || c->held[c->held_last] != kind || last + n > CHUNK) {
		c->held[c->held_last = c->held_len] = kind;
		c->held_len += 3;
		last = 0;
	}
	memcpy(c->held + c->held_len, s, n);
	c->held_len += n;
	last += n;
	memcpy(c->held + c->held_last + 1, &last, sizeof last);
}

// lose notes that a client is gone. What it has sent is still handled; of those that are gone, a container keeps one.
static void lose(struct conn *k)
{
	for (struct conn *o = k->attached ? conns : NULL; o; o = o->next)
		o->dead |= o->gone && o != k && o->attached == k->attached;
	free(k->out);
	k->out = NULL;
	k->out_len = k->replay = 0;
	k->gone = 1;
}

static void replay(struct conn *k)
{
	struct container *c = k->attached;
	while (k->replay && !k->out_len && c->held_len) {
		uint16_t n;
		char *f = c->held + c->held_at;
		memcpy(&n, f + 1, sizeof n);
		struct iovec v[2] = {{f, 1}, {f + 3, n}};
		struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
		if (sendmsg(k->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
			if (errno != EAGAIN && errno != ENOBUFS)
				lose(k);
			return;
		}
		k->stuck = seconds();
		drop_first(c);
	}
	if (k->replay && !c->held_len) {
		k->replay = 0;
		let_go(c);
	}
}

// drop_client ends a connection whose client has been too slow, and reports it: its socket takes one packet more than
// it had room for.
static void drop_client(struct conn *k)
{
	int n = 0;
	getsockopt(k->fd, SOL_SOCKET, SO_SNDBUF, &n, &(socklen_t){sizeof n});
	setsockopt(k->fd, SOL_SOCKET, SO_SNDBUF, &n, sizeof n); // the kernel doubles it
	send(k->fd, &(char){F_DROPPED}, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	k->dead = 1;
}

// settle sends attached clients the rest of their output before the monitor ends, for two seconds at most.
static void settle(void)
{
	int left = 1;
	for (time_t until = seconds() + 2; left && seconds() < until;) {
		left = 0;
		for (struct conn *k = conns; k; k = k->next) {
			if (!k->attached || k->dead)
				continue;
			send_kept(k);
			replay(k);
			left |= k->out_len || k->replay;
			if (k->out_len || k->replay)
				poll(&(struct pollfd){k->fd, POLLOUT, 0}, 1, 100);
		}
	}
}

void fan_out(struct container *c, char kind, char *s, size_t n)
{
	int clients = 0;
	for (struct conn *k = conns; k; k = k->next)
		clients += k->attached == c && !k->dead && !k->gone;
	if (c->hold && !clients)
		hold(c, kind, s, n);
	for (struct conn *k = conns; k; k = k->next) {
		if (k->attached != c || k->dead || k->gone)
			continue;
		if (k->replay || (k->out_len && clients == 1)) { // it ended meanwhile: otherwise its output would not be read
			hold(c, kind, s, n);
			k->replay = 1;
			continue;
		}
		struct iovec v[2] = {{&kind, 1}, {s, n}};
		struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
		if (sendmsg(k->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			continue;
		if (errno != EAGAIN && errno != ENOBUFS) {
			lose(k);
			continue;
		}
		if (k->out_len) {
			drop_client(k);
			continue;
		}
		if (!k->out)
			k->out = grab(CHUNK + 1);
		k->out[0] = kind;
		memcpy(k->out + 1, s, n);
		k->out_len = n + 1;
		k->stuck = seconds();
	}
}

static void request(struct conn *k, char *b, size_t n, int *fd, int nfd)
{
	struct message *m = (struct message *)b;
	char *s[4];
	int r = -1, kept = 0;
	int64_t value = 0;
	const char *what = "";
	if (parse(m, n, s) < 0) {
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
	case M_PREPARE:
		errno = EINVAL;
		if (nfd >= 2)
			r = prepare(fd, &value);
		break;
	case M_START: {
		int own = m->n[0] & PREPARED ? 0 : 3;
		errno = EINVAL;
		if (nfd >= own + 1 + !!(m->n[0] & OOM_FD) + !!(m->n[0] & CGROUP_FD) + !!(m->n[0] & LOG_FD)) {
			r = start(m, s, fd, nfd, &value);
			nfd = own; // it took the others
		}
		break;
	}
	case M_EXEC:
		errno = EINVAL;
		if (nfd >= 6 + !!(m->n[0] & CGROUP_FD)) {
			r = exec_in(m, s, fd, nfd, k->fd, &value);
			nfd = 3;
			if (r == 0 && m->n[0] & QUIET) // its end is the answer
				goto out;
		}
		break;
	case M_KILL: // a container, or with n[1] the exec of that number
		if (m->n[1]) {
			for (struct child *x = children; x; x = x->next)
				if (x->conn == k->fd && x->seq == m->n[1])
					r = signal_life(&x->life, m->n[0]);
		} else if (c && !c->exited)
			r = signal_life(&c->life, m->n[0]);
		break;
	case M_REOPEN:
		if (c && (r = open_log(c, nfd ? fd[0] : -1)) == 0)
			kept = nfd > 0;
		break;
	case M_ATTACH: // with n[0] without input
		if (c && (!c->exited || c->hold || c->held_len) && !k->out_len) {
			reply(k->fd, R_DONE, m->seq, 0, c->tty, c->in >= 0 || c->tty, "", 0);
			k->replay = c->held_len && !attached_stuck(c); // only one of several clients gets it
			k->attached = c;
			k->watches = !!m->n[0];
			c->hold = 0;
			k->stuck = seconds();
			replay(k);
			goto out;
		}
		break;
	case M_LIST: { // but the first n[0] of them
		char ids[8000];
		uint32_t len = 0;
		for (c = containers; c; c = c->next)
			if (!c->exited && m->n[0]-- <= 0 && len + 65 < sizeof ids) {
				memcpy(ids + len, c->id, 64);
				ids[len + 64] = '\n';
				len += 65;
			}
		reply(k->fd, R_DONE, m->seq, 0, getpid(), pod_pid, ids, len);
		goto out;
	}
	case M_BEGUN: // answered when the result is known
		if (c && !c->exited && !c->asker) {
			c->asker = k;
			c->asked = m->seq;
			goto out;
		}
		break;
	case M_SHOWN: // a client is shown the log, which has all held output except unfinished lines
		if (!c || attached_stuck(c))
			break;
		c->held_at = c->held_len = c->held_old = r = 0;
		for (int i = 0; i < 2; i++)
			if (c->hold && c->out[i].len)
				hold(c, i ? F_STDERR : F_STDOUT, c->out[i].buf, c->out[i].len);
		break;
	case M_QUIT:
		settle();
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

// flush_input writes the input to the container that it has not read yet; returns 1 when done
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
		k->leaving = !c->once;
	}
}

// receive reads one message; returns 0 if there is none
static int receive(struct conn *k)
{
	static char b[65536] __attribute__((aligned(8)));
	char ctl[CMSG_SPACE(FDS * sizeof(int))];
	struct iovec v = {b, sizeof b};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	int fd[FDS], nfd = 0;
	ssize_t n;
	do // what a client sent before it went comes after this error
		n = recvmsg(k->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == ECONNRESET);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		k->dead = 1;
		return 0;
	}
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		nfd = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fd, CMSG_DATA(c), nfd * sizeof(int));
	}
	if (!k->attached) {
		request(k, b, n, fd, nfd);
		return !k->attached && !k->dead && !k->out_len;
	}
	while (nfd)
		close(fd[--nfd]); // an attached client sends only bytes
	input(k, b, n);
	return 0;
}

// The oldest connection is first: requests of a carob that was killed are handled before those of the next one.
static void add_conn(int fd)
{
	struct conn *k = grab(sizeof *k), **p = &conns;
	while (*p)
		p = &(*p)->next;
	k->fd = fd;
	*p = k;
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

static void sweep(void)
{
	for (struct conn **p = &conns; *p;) {
		struct conn *k = *p;
		if (k->attached && !k->dead && (k->out_len || k->replay) && seconds() - k->stuck > STUCK_SECONDS)
			drop_client(k);
		if (k->attached && k->attached->exited && k->attached->out[0].fd < 0 && k->attached->out[1].fd < 0 &&
		    !k->out_len && !k->replay)
			k->dead = 1;
		k->dead |= k->leaving && !k->out_len && !k->replay;
		if (!k->dead) {
			p = &k->next;
			continue;
		}
		if (k->attached && k->attached->once && !k->watches)
			shut(&k->attached->in);
		for (struct child *x = children; x; x = x->next)
			if (x->conn == k->fd) { // the client of this exec is gone
				signal_life(&x->life, SIGKILL);
				x->conn = -1;
			}
		for (struct container *c = containers; c; c = c->next)
			if (c->asker == k)
				c->asker = NULL;
		*p = k->next;
		close(k->fd);
		free(k->in);
		free(k->out);
		free(k);
	}
	for (struct container **p = &containers; *p;) {
		struct container *c = *p;
		int used = 0;
		if (c->asker && (c->exited || (c->life.begun && c->life.news < 0))) {
			reply(c->asker->fd, R_DONE, c->asked, 0, c->life.begun, c->life.pid, "", 0);
			c->asker = NULL;
		}
		for (struct conn *k = conns; k; k = k->next)
			used |= k->attached == c;
		if (!used && seconds() - c->aged > HOLD_SECONDS) {
			c->hold &= !c->exited;
			c->held_old = c->exited ? c->held_len : c->held_old;
			age(c);
		}
		int alive = !c->exited || c->out[0].fd >= 0 || c->out[1].fd >= 0;
		if (!alive) {
			shut(&c->log);
			shut(&c->console);
		}
		if (alive || c->hold || c->held_len || used) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		let_go(c);
		free(c->log_path);
		free(c);
	}
}

int main(int argc, char **argv, char **envp)
{
	// The environment contains only the files of the cgroups to join.
	(void)argc, (void)argv;
	sigset_t m;
	sigemptyset(&m);
	sigaddset(&m, SIGCHLD);
	sigprocmask(SIG_BLOCK, &m, NULL);
	for (int s = 1; s <= 64; s++) // the parent of carob may ignore some (nohup); libc reserves two
		syscall(SYS_rt_sigaction, s, (char[64]){0}, NULL, 8);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_NAME, "carob-monitor", 0, 0, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	syscall(SYS_close_range, 4, ~0U, 0); // this program, and what carob has inherited
	int sfd = signalfd(-1, &m, SFD_CLOEXEC | SFD_NONBLOCK);
	// Where carob has a real-time policy, pods have none: the kernel refuses such a process in a cgroup without
	// real-time bandwidth, and a container could use the whole machine.
	int policy = sched_getscheduler(0);
	if (policy == SCHED_FIFO || policy == SCHED_RR)
		sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0}); // needs no rights
	for (int i = 0; envp[i]; i++)
		if (put(envp[i], "0", 1) < 0)
			_exit(117);
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		_exit(116);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){files.rlim_max, files.rlim_max}); // fails if fs.nr_open is lower now
	put("/proc/self/oom_score_adj", "-998", 4); // not permitted on all hosts; a failure is ignored
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	own_pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
	if (fcntl(3, F_SETFD, FD_CLOEXEC) < 0 || sfd < 0 || null_fd < 0 || own_pidns < 0 || chdir("/") < 0)
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
			n += 4;
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
			if (k->in_len)
				flush_input(k);
			pending |= k->out_len > 0 || k->replay;
			short in = k->in_len || (!k->attached && k->out_len) ? 0 : POLLIN;
			short out = k->out_len || k->replay ? POLLOUT : 0;
			f[n++] = (struct pollfd){k->gone && k->in_len ? -1 : k->fd, in | out, 0};
			who[n] = k;
			int to = k->in_len ? (k->attached->tty ? k->attached->out[0].fd : k->attached->in) : -1;
			f[n++] = (struct pollfd){to, POLLOUT, 0};
		}
		size_t first = n;
		for (struct container *c = containers; c; c = c->next) {
			int held = attached_stuck(c);
			pending |= c->held || (c->hold && c->exited);
			for (int i = 0; i < 2; i++) {
				who[n] = c;
				f[n++] = (struct pollfd){held ? -1 : c->out[i].fd, POLLIN, 0};
			}
			who[n] = c;
			f[n++] = (struct pollfd){c->tty && c->out[0].fd < 0 && !c->exited ? c->console : -1, POLLIN, 0};
			who[n] = c;
			f[n++] = (struct pollfd){c->life.news, POLLIN, 0};
		}
		if (poll(f, n, pending ? 1000 : -1) < 0 && errno != EINTR)
			_exit(119);
		for (size_t i = first; i < n; i += 4) {
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
			if (f[i + 3].revents)
				read_news(&c->life);
		}
		int requests = ROUND; // more wait for the next one: requests must not delay output and ends
		for (size_t i = 2; i < first; i += 2) {
			struct conn *k = who[i];
			if (f[i].revents & (POLLHUP | POLLERR) && !k->gone)
				lose(k);
			if (f[i].revents & POLLOUT) {
				send_kept(k);
				replay(k);
			}
			if (f[i].revents & (POLLIN | POLLHUP | POLLERR) && !k->in_len)
				while ((k->attached || requests-- > 0) && receive(k))
					;
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
