// What the clients of one interactive container receive, with a clock that only the script moves. The script's first
// two bytes say how much this harness answers: what its clients read, then zeros. Of packets that differ only in their
// lengths it shows the kind, the sum of the lengths and the first character.
#include "fuzz.h"

#include <time.h>

static time_t script_seconds;

static int script_clock(clockid_t clock, struct timespec *t)
{
	*t = (struct timespec){.tv_sec = clock == CLOCK_MONOTONIC ? script_seconds : 0};
	return 0;
}

#define clock_gettime script_clock
#define main monitor_main
#include "../log.c"
#include "../process.c"
#include "../monitor.c"
#undef main

static void turn(void)
{
	for (struct container *c = containers; c; c = c->next)
		while (!attached_stuck(c) && c->out[0].fd >= 0 && pump(c, 0) > 0)
			;
	for (struct conn *k = conns; k; k = k->next) {
		send_kept(k);
		replay(k);
		while (receive(k))
			;
	}
	sweep();
}

static void attach(int fd[2])
{
	char b[sizeof(struct message) + 80] = {0};
	struct message *m = (struct message *)b;
	*m = (struct message){.size = sizeof b, .code = M_ATTACH, .len = {1}};
	b[sizeof *m] = 'c';
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) < 0)
		abort();
	add_conn(fd[1]);
	if (send(fd[0], b, sizeof b, 0) < 0)
		abort();
}

static int read_all(int fd, char *answer, int room)
{
	static char b[65536];
	int kind = 0, letter = 0, sum = 0, used = 0;
	for (ssize_t got = 1; got > 0; kind = b[0], letter = b[1], sum += got - 1) {
		memset(b, 0, 2);
		turn();
		got = read(fd, b, sizeof b);
		if (sum && (got < 2 || b[0] != kind || b[1] != letter)) {
			used += snprintf(answer + used, room - used, "%d:%d%c ", kind, sum, letter);
			sum = 0;
		}
		struct message *m = (struct message *)b;
		if (got > (int)sizeof *m && m->code == R_DONE) {
			used += snprintf(answer + used, room - used, m->n[0] ? "refused " : "attached ");
			got = 1;
		} else if (got == 1)
			used += snprintf(answer + used, room - used, "%d ", b[0]);
		else if (!got)
			used += snprintf(answer + used, room - used, "end ");
	}
	return used;
}

static void run_script(void)
{
	static char b[65536], answer[65536];
	int fd[4][2], out[2];
	uint16_t size = 0, n = 0, used = 0;
	take(&size, sizeof size);
	memset(answer, 0, size);
	containers = NULL;
	conns = NULL;
	listener = -1;
	script_seconds = 100;
	struct container *c = containers = grab(sizeof *c);
	strcpy(c->id, "c");
	c->life.pidfd = c->life.news = c->in = c->console = c->log = c->oom = c->dir = c->out[1].fd = -1;
	c->hold = 1;
	if (pipe2(out, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	c->out[0].fd = out[0];
	while (script < script_end) {
		int step = byte();
		take(&n, sizeof n);
		switch (step) {
		case 't': // n seconds pass
			for (; n; n--, script_seconds++)
				turn();
			break;
		case 'o': // an output of n bytes
			memset(b, byte(), n);
			if (write(out[1], b, n) != n)
				abort();
			break;
		case 'e':
			shut(&out[1]);
			c->exited = 1;
			c->aged = script_seconds;
			break;
		case 'a': // client n
			attach(fd[n]);
			break;
		case 'r':
			used += read_all(fd[n][0], answer + used, size - used);
		}
		turn();
	}
	fwrite(answer, 1, size, stdout);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN); // as the monitor's main does
	return serve();
}
