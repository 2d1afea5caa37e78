// What monitor and helper share: the message, the numbers of the descriptors that
// the monitor hands to the helper, and a few lines both need.
#ifndef CAROB_COMMON_H
#define CAROB_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	FD_SPEC = 3,    // memfd with the program
	FD_STATUS = 4,  // socket: reports, and the answer to OP_ASK; its end means the exec succeeded
	FD_CONSOLE = 5, // socket that takes the terminal's master side
	FD_TARGET = 6,  // pidfd of a process whose namespaces to join
	FD_HELPER = 7,  // the helper itself, closed by its exec
	FD_NEWS = 8,    // pipe to the monitor: what becomes of the helper
};

// What a helper tells the monitor, with a number: it goes on as the process of that id, it is
// about to become the user's process, it could not. The end of the pipe tells the rest.
enum { NEWS_PID = 'P', NEWS_EXEC = 'X', NEWS_FAILED = 'E' };

// message is one operation of a helper's program and one request, answer or event of the
// monitor: a header, then four strings, each ended by a zero byte; size is a
// multiple of eight and counts all of it. A string holds no other zero byte unless
// its bit in flags, counted from BYTES, says so. Keep in step with wire/message.go.
enum { BYTES = 16 };

struct message {
	uint32_t code, size, flags, seq;
	int64_t n[4];
	uint32_t len[4];
};

// parse finds the strings of the message at r, of which have bytes are there; 0, or
// -1 when it is not a whole message.
static inline int parse(struct message *r, size_t have, char *s[4])
{
	size_t at = sizeof *r;
	if (have < at || r->size < at || r->size > have || r->size % 8)
		return errno = EBADMSG, -1;
	for (int i = 0; i < 4; at += r->len[i++] + 1) {
		s[i] = (char *)r + at;
		if (r->len[i] >= r->size - at || s[i][r->len[i]] || (!(r->flags & BYTES << i) && memchr(s[i], 0, r->len[i])))
			return errno = EBADMSG, -1;
	}
	return 0;
}

// next_string takes the first string of a packed list: its length, its bytes, a zero
// byte. NULL for anything else.
static inline char *next_string(char **at, char *end)
{
	uint32_t n;
	char *s = *at + sizeof n;
	if ((size_t)(end - *at) <= sizeof n)
		return NULL;
	memcpy(&n, *at, sizeof n);
	if (n >= (size_t)(end - s) || memchr(s, 0, (size_t)n + 1) != s + n)
		return NULL;
	*at = s + n + 1;
	return s;
}

// keep closes fd, if it is one, after the call that answered r; errno stays that call's.
static inline int keep(int r, int fd)
{
	int e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	return r;
}

static inline int put(const char *path, const char *s, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -1 : keep(write(fd, s, n) < 0 ? -1 : 0, fd);
}

#endif
