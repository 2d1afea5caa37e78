/*
 * stamp prints the wall-clock time of its start in nanoseconds and waits until
 * it is told to end; with an argument it ends at once. The benchmarks use it to
 * learn when a container's program really ran.
 */
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void end(int sig)
{
	(void)sig;
	_exit(0);
}

int main(int argc, char **argv)
{
	struct timespec now;
	char line[32];
	int len;

	(void)argv;
	clock_gettime(CLOCK_REALTIME, &now);
	len = snprintf(line, sizeof line, "%lld\n", (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
	signal(SIGTERM, end);
	signal(SIGINT, end);
	if (write(1, line, len) != len)
		return 1;
	while (argc == 1)
		pause();
	return 0;
}
