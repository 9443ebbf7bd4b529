/* unprepared: children that the library has had no chance to prepare, since their fork was in the middle of a verbs
 * call of the same thread, or no fork(3) at all. They are refused verbs, and do nothing as their parents.
 *
 * usage: unprepared middle FORKS | unprepared cloned
 */
#include "children.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static struct device device;
static struct loop spare;
static unsigned int forks;
static atomic_bool stop;

static struct loop make_small_loop(void)
{
	return make_loop(&device, 32, MAKE(malloc(128)), 128);
}

/* Another thread's traffic. */
static void *pass_messages(void *loop)
{
	while (!stop)
		pass_message(loop);
	return NULL;
}

/* A thread forks in the middle of a call, as the handler of a signal could: here where the library asks for the time. (The
 * C library's own fork doesn't bear a signal's handler that has interrupted malloc, so a timer wouldn't do.)
 */
static _Thread_local unsigned int clocks_until_fork;
static unsigned int refused;

static void fork_in_the_middle(void)
{
	int before = errno, status;
	pid_t child = fork();

	if (child == 0) {
		struct ibv_wc wc;

		/* Where no call was interrupted, verbs work. */
		alarm(CHILD_SECONDS);
		int polled = ibv_poll_cq(spare.cq, 1, &wc), posted = post_send(spare.a, spare.mr, 0, 8, 3);

		_exit(polled == -1 && posted == EIO ? 77 : polled < 0 || posted == EIO);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) % 77)
		fail("a child of the middle of a call failed (status %x)", status);
	if (status)
		refused++;
	errno = before;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (clocks_until_fork && --clocks_until_fork == 0)
		fork_in_the_middle();
	return (int)syscall(SYS_clock_gettime, clock, time);
}

static void middle(void)
{
	struct loop loop = make_small_loop(), other = make_small_loop();
	pthread_t thread;

	/* Hundreds of forks take longer than other cases. */
	alarm(0);
	spare = make_small_loop();
	if (pthread_create(&thread, NULL, pass_messages, &other))
		fail("pthread_create");
	for (unsigned int i = 0; i < forks; i++) {
		clocks_until_fork = 1 + i % 4;
		pass_message(&loop);
	}
	clocks_until_fork = 0;
	stop = true;
	if (pthread_join(thread, NULL))
		fail("pthread_join");
	if (!refused)
		fail("no call was interrupted");
	pass_message(&spare);
}

/* No handler of a fork runs in a child that a system call has made: verbs fail there, and the parent's memory stays as it is. */
static void cloned(void)
{
	static char memory[8192];
	struct ibv_wc wc;

	spare = make_loop(&device, 32, memory, sizeof memory);
	pass_message(&spare);
	memset(memory, 'P', sizeof memory);
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (child == 0) {
		struct ibv_sge sge = {(uintptr_t)memory, 4096, spare.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {(uintptr_t)memory + 4096, spare.mr->rkey}},
				   *bad;

		alarm(CHILD_SECONDS);
		memset(memory, 'C', sizeof memory);
		if (ibv_post_send(spare.a, &wr, &bad) != EIO || ibv_poll_cq(spare.cq, 1, &wc) != -1)
			_exit(1);
		_exit(memory[4096] != 'C');
	}
	expect_end(child, "verbs in a child of clone weren't refused");
	if (memory[4096] != 'P')
		fail("the parent's memory has changed");
	pass_message(&spare);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(middle), CASE(cloned)};

	if (argc > 1)
		device = open_device(1);
	if (argc == 3)
		forks = (unsigned int)atoi(argv[2]);
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
