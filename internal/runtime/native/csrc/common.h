// What monitor.c and helper.c share: numbers of the file descriptors that the
// monitor hands to the helper, and system calls that glibc may lack.
#ifndef CAROB_COMMON_H
#define CAROB_COMMON_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

enum {
	FD_SPEC = 3,    // memfd with the program
	FD_STATUS = 4,  // pipe: reports; end of file means the exec succeeded
	FD_CONSOLE = 5, // socket that takes the terminal's master side
	FD_TARGET = 6,  // pidfd of the container's first process (exec only)
	FD_HELPER = 7,  // the helper itself, closed by its exec
};

// record is one operation of a helper's program and one message to or from the
// monitor: a header, then four strings, each ended by a zero byte; size is a
// multiple of eight and counts all of it. Keep in step with record.go.
struct record {
	uint32_t code, size, flags, seq;
	int64_t n[4];
	uint32_t len[4];
};

// decimal of v into b (at least 21 bytes); returns the length
static inline size_t utoa(uint64_t v, char *b)
{
	char t[20];
	size_t n = 0, i = 0;
	do
		t[n++] = '0' + v % 10;
	while (v /= 10);
	while (n)
		b[i++] = t[--n];
	b[i] = 0;
	return i;
}

static inline int close_on_exec_from(unsigned first)
{
	return syscall(SYS_close_range, first, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
}

#endif
