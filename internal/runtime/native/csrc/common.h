// Shared by monitor and helper: the message format, the numbers of the descriptors that the monitor passes to the
// helper, and small functions.
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
	FD_STATUS = 4,  // socket: reports, and the answer to OP_FILES; its end means the exec succeeded
	FD_CONSOLE = 5, // socket that takes the terminal's master side
	FD_TARGET = 6,  // pidfd of a process whose namespaces to join
	FD_HELPER = 7,  // the helper itself, closed by its exec
	FD_NEWS = 8,    // pipe to the monitor: the state of the helper
};

// Reports of a helper to the monitor, each with a number: the helper continues as the process with that id, it is about
// to become the user's process, it has failed. The end of the pipe means that no more follows.
enum { NEWS_PID = 'P', NEWS_EXEC = 'X', NEWS_FAILED = 'E' };

// message is one operation of a helper's program and one request, answer or event of the
// monitor: a header, then four strings, each ended by a zero byte; size is a
// multiple of eight and counts all of it. A string contains no other zero byte unless its bit in flags, counted from
// BYTES, is set. Keep in step with wire/message.go.
enum { BYTES = 16 };

struct message {
	uint32_t code, size, flags, seq;
	int64_t n[4];
	uint32_t len[4];
};

// parse finds the strings of the message at r, of which `have` bytes were received; returns 0, or -1 if the message is
// not complete or not valid.
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

// next_string removes and returns the first string of a packed list (length, bytes, a zero byte); NULL if the list is
// not valid.
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

// keep closes fd unless it is -1, and returns r, the result of an earlier call, with errno of that call.
static inline int keep(int r, int fd)
{
	int e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	return r;
}

// take_fd takes one byte and the file that comes with it.
static inline int take_fd(int sock, int flags)
{
	char b, ctl[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&b, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
	int fd = -1;
	ssize_t n = recvmsg(sock, &h, MSG_CMSG_CLOEXEC | flags);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&h) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
	else if (n >= 0)
		errno = ECONNRESET; // closed, or without one
	return fd;
}

static inline int put(const char *path, const char *s, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -1 : keep(write(fd, s, n) < 0 ? -1 : 0, fd);
}

#endif
