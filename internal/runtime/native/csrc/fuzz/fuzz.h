// The frame of both harnesses: it reads scripts from stdin, each with its length, runs each from a clean state, and
// writes one byte when it is done. System calls of the code under test that change the host are stubs; its memory
// accesses are real.
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
		// Of exactly its size, so that the sanitizer detects a read beyond it.
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
