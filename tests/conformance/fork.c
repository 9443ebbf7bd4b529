/* Processes: ibv_fork_init, ibv_is_fork_initialized, and what a child does to its parent's traffic. */
#include "conform.h"
#include <sys/wait.h>

int main(int argc, char **argv)
{
	enum ibv_fork_status before, after;
	struct buffer buffer;
	struct pair pair;
	int status = -1;
	pid_t child;

	read_options(argc, argv);
	before = ibv_is_fork_initialized();
	check(before == IBV_FORK_DISABLED || before == IBV_FORK_ENABLED || before == IBV_FORK_UNNEEDED,
	      "ibv_is_fork_initialized(3): one of its three answers");
	is(ibv_fork_init(), 0, "ibv_fork_init(3): 0 before any memory is registered");
	after = ibv_is_fork_initialized();
	check(before == IBV_FORK_UNNEEDED ? after == IBV_FORK_UNNEEDED : after == IBV_FORK_ENABLED,
	      "ibv_is_fork_initialized(3): UNNEEDED takes precedence, else ENABLED after ibv_fork_init");
	is(ibv_fork_init(), 0, "ibv_fork_init(3): it can be called again");
	begin(argc, argv);
	buffer = make_buffer(3 * 4096, ALL);
	pair = make_pair(IBV_QPT_RC);
	fill(buffer.mem, 64, 2);
	MUST(post_recv(pair.b, &buffer, 4096, 64, 1));
	fflush(stdout);
	child = fork();
	if (child == 0)
		_exit(0);
	MUST(child < 0);
	/* Written after the fork: copied pages would go to the child or to the adapter, not to both. */
	fill(buffer.mem, 64, 9);
	MUST(waitpid(child, &status, 0) != child);
	is(status, 0, "ibv_fork_init(3): a child can end");
	MUST(post_send(pair.a, &buffer, 0, 64));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_fork_init(3): the parent's QPs work after a fork");
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_fork_init(3): in both directions");
	check(filled(buffer.mem + 4096, 64, 9), "ibv_fork_init(3): what the parent sends and receives are its own pages");
	is(system("exit 3") >> 8, 3, "ibv_fork_init(3): a child can be started implicitly, by system()");
	MUST(post_recv(pair.b, &buffer, 8192, 64, 2));
	MUST(post_send(pair.a, &buffer, 0, 64));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_fork_init(3): the parent's QPs work after that too");
	next(pair.cq_a);
	free_pair(&pair);
	free_buffer(&buffer);
	return end();
}
