// The helper's parser and operations on programs that Go would never make.
#include "fuzz.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <termios.h>

// A call succeeds, or fails with one of the errors that the helper handles specially.
static int maybe(void)
{
	static const int errors[] = {0, 0, 0, ENOENT, EEXIST, EAGAIN, EINVAL, EPERM};
	int e = errors[byte() % 8];
	return errno = e, e ? -1 : 0;
}

static int maybe_fd(void) { return maybe() < 0 ? -1 : null_device(); }

static ssize_t some_link(char *b, size_t n)
{
	size_t want = byte() * 17;
	return maybe() < 0 ? -1 : (ssize_t)take(b, want < n ? want : n);
}

static ssize_t answer(void *b, size_t n)
{
	size_t k = take(b, n);
	if (n == sizeof(uint32_t))
		*(uint32_t *)b %= 8192; // the program's own bound is 64 MiB; a leaked one per script would be too much
	return k;
}

static long stub_syscall(long number, ...)
{
	int opens = number == SYS_openat2 || number == SYS_open_tree || number == SYS_seccomp || number == SYS_fsopen ||
	            number == SYS_fsmount;
	return opens ? maybe_fd() : maybe();
}

#define main helper_main
#define syscall stub_syscall
#define open(...) maybe_fd()
#define openat(...) maybe_fd()
#define readlinkat(d, p, b, n) some_link(b, n)
#define recv(f, b, n, flags) answer(b, n)
#define write(f, b, n) ((ssize_t)(n))
#define read(f, b, n) ((ssize_t)take(b, n))
#define sendmsg(...) maybe()
#define mount(...) maybe()
#define umount2(...) maybe()
#define setns(...) maybe()
#define unshare(...) maybe()
#define chdir(...) maybe()
#define fchdir(...) maybe()
#define mkdirat(...) maybe()
#define mknodat(...) maybe()
#define symlinkat(...) maybe()
#define fchownat(...) maybe()
#define fchown(...) maybe()
#define prctl(...) maybe()
#define setgroups(...) maybe()
#define setresgid(...) maybe()
#define setresuid(...) maybe()
#define ioctl(...) maybe()
#define dup2(...) maybe()
#define execve(...) maybe()
#define umask(...) 0
#define _exit(code) longjmp(ended, 1)
#include "../helper.c"
#undef main

static void run_script(void)
{
	memset(&S, 0, sizeof S);
	memset(S.handle, -1, sizeof S.handle);
	S.root = -1;
	uint32_t n = 0;
	take(&n, sizeof n);
	size_t left = script_end - script;
	if (n > left)
		n = left;
	char *program = grab(n ? n : 1); // as the helper's mapping is: writable, of the program's size
	take(program, n);
	S.at = program;
	S.end = program + n;
	for (; S.at < S.end; S.index++) {
		struct message *o = (struct message *)S.at;
		char *s[4];
		if (parse(o, S.end - S.at, s) < 0)
			break;
		S.at += o->size;
		if (run(o, s) < 0 && !(o->flags & OPTIONAL))
			break;
	}
	free(program);
}

int main(void) { return serve(); }
