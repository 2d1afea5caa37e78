// Writes a container's output as log lines in CRI format, split at 16 KiB, and sends it to attached clients.
#include "monitor.h"

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
		gmtime_r(&t.tv_sec, &m);
		strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S.", &m);
		second = t.tv_sec;
	}
	memcpy(p, stamp, 20);
	for (p += 29; p > h + 20; t.tv_nsec /= 10)
		*--p = '0' + t.tv_nsec % 10;
	memcpy(p += 9, err ? "Z stderr " : "Z stdout ", 9);
	p += 9;
	*p++ = tag;
	*p++ = ' ';
	struct iovec v[3] = {{h, p - h}, {s, n}, {"\n", 1}};
	// On a full disk lines are lost, as with every runtime; the container must not block.
	if (writev(c->log, v, 3) < 0)
		return;
}

// open_log makes fd the container's log. A carob that is older than its monitor sends the path instead.
int open_log(struct container *c, int fd)
{
	if (fd < 0 && *c->log_path &&
	    (fd = open(c->log_path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640)) < 0)
		return -1;
	shut(&c->log);
	c->log = fd;
	return 0;
}

// pump copies one read of a container's output; returns 0 at its end, -1 if there is none yet
int pump(struct container *c, int i)
{
	struct stream *s = &c->out[i];
	if (!s->buf)
		s->buf = grab(CHUNK);
	ssize_t n = read(s->fd, s->buf + s->len, CHUNK - s->len);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -1;
	if (n <= 0) { // a terminal that no process has open returns EIO
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

