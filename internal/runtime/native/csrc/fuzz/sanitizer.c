// Linked into sanitised builds: a report goes to SANITIZER_LOG, opened before the
// program can lose the host's files, and ends the program.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0:exitcode=86:allocator_may_return_null=1";
}

__attribute__((constructor)) static void reports_to_file(void)
{
	int fd = open(SANITIZER_LOG, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 200); // above the descriptors that the program is passed
	close(fd);
	if (high >= 0)
		__sanitizer_set_report_fd((void *)(long)high);
}
