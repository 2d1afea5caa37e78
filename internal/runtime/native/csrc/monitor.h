// Shared by the parts of the monitor: monitor.c serves carob and attached clients, process.c starts and reaps
// processes, log.c copies the output of containers.
#ifndef CAROB_MONITOR_H
#define CAROB_MONITOR_H

#include "common.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>

// Keep in step with monitor/monitor.go.
enum { PROTOCOL = 2 }; // flags of each answer; earlier monitors send 0
enum {
	M_SETUP = 1, M_START, M_EXEC, M_KILL, M_REOPEN, M_ATTACH, M_LIST, M_QUIT, M_BEGUN, M_SHOWN, M_PREPARE,
	R_DONE = 32, R_EXIT, R_EXEC_EXIT, R_POD_EXIT,
};
enum { PID_NEW, PID_POD, PID_TARGET, PID_HOST };
enum {
	STDIN = 1, STDIN_ONCE = 2, TTY = 4, OOM_FD = 8, CGROUP_FD = 16, LISTEN_FD = 32, NETNS_FD = 64, POD_PID = 128,
	OWNER_FD = 256, LOG_FD = 512, NEWS = 1024, LATE = 2048, PREPARED = 4096, QUIET = 8192,
};
enum { CHUNK = 16384, FDS = 10, STUCK_SECONDS = 10, HELD = 65536, HOLD_SECONDS = 10, UNREAD = 1 << 20, ROUND = 8 };
// Frames of an attach stream: one byte of kind, then data.
enum { F_STDOUT = 1, F_STDERR = 2, F_DROPPED = 3 }; // to the client; the last one: it was too slow and gets no more
enum { F_STDIN = 0, F_RESIZE = 1, F_CLOSE = 2 };

struct stream {
	int fd;
	uint32_t len;
	char *buf; // CHUNK bytes, made when first needed
};

// life is a process that the monitor started: the helper, then the user's process that it became.
struct life {
	pid_t pid;
	int pidfd;
	int news;  // from the helper
	int late;  // the helper continues as another process whose id it has not reported yet
	int begun; // it is the user's process
};

struct container {
	struct container *next;
	char id[65];
	char *log_path;
	struct life life;
	struct conn *asker; // the client that waits for the result of the start
	uint32_t asked;
	int in, console, log, dir, oom, once, tty, exited;
	struct stream out[2]; // stdout (or the terminal), stderr
	// The last HELD bytes of its output that no client has seen: of an interactive one without an attached client so
	// far (hold), and of one that ended while its client was slow. Each is kept for HOLD_SECONDS after it was written;
	// what is there when the container ends is kept for HOLD_SECONDS from then on.
	char *held;                  // frames: kind, length in two bytes, data
	uint32_t held_at, held_len, held_last, held_old; // the first, the end of all, the last; those before it are old
	int hold;
	time_t aged; // when held_old was set, or the container ended
};

// spare is a helper that was started ahead and waits for the program of a container: one in a PID namespace
// of its own, without input and terminal.
struct spare {
	struct life life; // pid 0: there is none
	int out[2];
};

struct child { // an exec
	struct child *next;
	struct life life;
	int conn;
	uint32_t seq;
};

struct conn {
	struct conn *next;
	int fd, dead, gone, watches; // closed by the client; without input
	int replay, leaving; // it gets the held output first; its input has ended, the container's has not
	struct container *attached;
	char *out, *in; // a frame that the client, or the container, has not read yet
	uint32_t out_len, in_len;
	time_t stuck;
};

extern struct container *containers;
extern struct child *children;
extern int listener, ready, pod_pidfd, own_pidns, null_fd;
extern pid_t pod_pid;
extern struct spare spare;
extern struct rlimit files; // of carob, and so of containers; a monitor of many containers and execs needs more

static inline int64_t now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline time_t seconds(void) { return now(CLOCK_MONOTONIC) / 1000000000; }

static inline void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static inline void *grab(size_t n)
{
	void *p = calloc(1, n);
	if (!p)
		_exit(111);
	return p;
}

static inline int nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// monitor.c
void reply(int fd, uint32_t code, uint32_t seq, int64_t a, int64_t b, int64_t c, const char *text, uint32_t len);
void broadcast(uint32_t code, int64_t a, int64_t b, int64_t c, const char *id);
void fan_out(struct container *c, char kind, char *s, size_t n);

// log.c
int open_log(struct container *c, int fd);
int pump(struct container *c, int i);

// process.c
struct container *find(const char *id);
int take_console(int sock);
void reap(void);
int read_news(struct life *l);
int signal_life(struct life *l, int sig);
int prepare(int *fd, int64_t *pid);
void forget_spare(void);
int start(struct message *m, char *s[4], int *fd, int nfd, int64_t *pid);
int exec_in(struct message *m, char *s[4], int *fd, int nfd, int conn, int64_t *pid);
int setup(struct message *m, char *s[4], int *fd, int nfd, const char **what);

#endif
