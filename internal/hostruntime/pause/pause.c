/*
 * The program of a sandbox's own container. It holds the pod's namespaces open, collects orphans when the pod shares its
 * process namespace (it is process 1 then), and ends when it is told to. It is C and static so that each pod costs some
 * ten KiB of memory for it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	sigset_t handled;
	int number;

	sigemptyset(&handled);
	sigaddset(&handled, SIGINT);
	sigaddset(&handled, SIGTERM);
	sigaddset(&handled, SIGCHLD);
	/* Blocked signals stay pending until sigwait takes them, also when they come before it runs. */
	if (sigprocmask(SIG_BLOCK, &handled, NULL) != 0) {
		perror("pause: block signals");
		return 1;
	}
	for (;;) {
		if (sigwait(&handled, &number) != 0) {
			perror("pause: wait for signals");
			return 1;
		}
		if (number != SIGCHLD)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
