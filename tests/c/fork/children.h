/* What the parents of forks ask of a child: that it comes to an end, and to a good one. */
#ifndef CHILDREN_H
#define CHILDREN_H

#include "loop.h"
#include <signal.h>
#include <sys/wait.h>

/* A child that is still there after this long hangs. */
#define CHILD_SECONDS 10

UNUSED static void expect_end(pid_t child, const char *what)
{
	int status;

	if (waitpid(child, &status, 0) != child || status)
		fail("%s (status %x)%s", what, status,
		     WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
}

#endif
