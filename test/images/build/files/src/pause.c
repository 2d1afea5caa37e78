/*
 * pause keeps a sandbox's namespaces alive for runtimes that need a process for
 * it (containerd). It reaps orphans and ends on SIGTERM or SIGINT.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		return 1;
	for (;;) {
		if (sigwait(&set, &sig))
			return 1;
		if (sig != SIGCHLD)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
