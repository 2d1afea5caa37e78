// The frame of both harnesses: scripts come on stdin, each with its length; each is
// run from a clean state and answered by one byte. What the code under test does to
// the host is stubbed; what it does to memory is not.
#include "../common.h"

#include <setjmp.h>
#include <stdio.h>

static unsigned char *script, *script_end;
static jmp_buf ended;

static size_t take(void *to, size_t n)
{
	size_t left = script_end - script;
	if (n > left)
		n = left;
	memcpy(to, script, n);
	script += n;
	return n;
}

static unsigned char byte(void)
{
	unsigned char b = 0;
	take(&b, 1);
	return b;
}

static int null_device(void) { return open("/dev/null", O_RDWR | O_CLOEXEC); }

static void run_script(void);

static int serve(void)
{
	uint32_t n;
	while (fread(&n, sizeof n, 1, stdin) == 1) {
		// Of exactly its size, so that a read beyond it is seen.
		unsigned char *b = malloc(n ? n : 1);
		if (!b || fread(b, 1, n, stdin) != n)
			return 1;
		script = b;
		script_end = b + n;
		if (!setjmp(ended))
			run_script();
		free(b);
		syscall(SYS_close_range, 3, 199, 0);
		putchar('.');
		fflush(stdout);
	}
	return 0;
}
