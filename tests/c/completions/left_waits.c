/* left_waits: a thread waits for an event that never comes, on a channel of its own, while another thread passes messages by polling.
 *
 * To a program the wait is a read of a file descriptor: a handler that interrupts it may leave it by siglongjmp, may use
 * other objects, and a cancellation may end it. The waiting thread makes progress for the messages as well.
 */
#define _GNU_SOURCE
#include "channel.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* How often the wait is interrupted, if as many messages suffice for it: signals that come at once are one. */
#define TIMES 1000
#define MESSAGES 20000

/* The idle channel, what passes messages, and what the handler uses. */
static struct ibv_comp_channel *idle;
static struct fixture f;
static struct loop of_handler;
/* A message takes several turns of its queue pair. */
static char memory_of_handler[512 << 10];

static atomic_int times;
static sigjmp_buf before_wait;
static sigset_t own_mask;
static atomic_bool over;
/* The waiting thread is in the call, as far as a handler may leave it. */
static volatile sig_atomic_t waits;
static volatile sig_atomic_t outstanding;

static void expect_own_mask(void)
{
	sigset_t mask;

	MUST(pthread_sigmask(SIG_SETMASK, NULL, &mask));
	for (int number = 1; number <= SIGRTMAX; number++)
		if (sigismember(&mask, number) != sigismember(&own_mask, number))
			fail("signal %d is %sblocked", number, sigismember(&mask, number) ? "" : "not ");
}

static void wait_for_idle_channel(void)
{
	struct ibv_cq *cq;
	void *cq_context;

	waits = 1;
	int result = ibv_get_cq_event(idle, &cq, &cq_context);
	int error = errno;
	waits = 0;
	if (result == 0 || error != EINTR)
		fail("the wait has ended: %d, %s", result, strerror(error));
}

static void leave(int number)
{
	(void)number;
	if (!waits)
		return;
	waits = 0;
	siglongjmp(before_wait, 1);
}

static void *be_brought_out(void *unused)
{
	MUST(pthread_sigmask(SIG_SETMASK, NULL, &own_mask));
	if (sigsetjmp(before_wait, 1))
		times++;
	expect_own_mask();
	while (!over)
		wait_for_idle_channel();
	return unused;
}

static void use_other_objects(int number)
{
	int error = errno;
	struct ibv_wc wc;

	(void)number;
	if (outstanding == 0) {
		post_message(&of_handler);
		outstanding = 2;
	}
	for (int n; outstanding && (n = ibv_poll_cq(of_handler.cq, 1, &wc)) != 0; outstanding--)
		if (n < 0 || wc.status != IBV_WC_SUCCESS)
			fail("the handler's message has failed");
	times++;
	errno = error;
}

static void *be_interrupted(void *unused)
{
	while (!over)
		wait_for_idle_channel();
	return unused;
}

/* A child of fork(2) may use verbs only if no thread is left in a call. */
static void expect_whole_library(void)
{
	int status;

	for (int i = 0; i < 100; i++)
		pass_message(&f.loop);
	pid_t child = fork();
	if (child == 0) {
		alarm(ALARM_SECONDS);
		MUST(ibv_close_device(open_device(1).context));
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		fail("the child can't use verbs");
}

static void set_up(void)
{
	f = make_fixture();
	idle = MAKE(ibv_create_comp_channel(f.device.context));
	of_handler = make_loop(&f.device, 8, memory_of_handler, sizeof memory_of_handler);
}

static void clean_up(void)
{
	/* What the handler has posted last. */
	for (struct ibv_wc wc; outstanding; outstanding--)
		MUST_COMPLETE(of_handler.cq, &wc);
	expect_whole_library();
	destroy_loop(&of_handler);
	MUST(ibv_destroy_comp_channel(idle));
	tear_down(&f);
}

/* Interrupts the waiting thread at any moment of its call. */
static void interrupt(void *(*body)(void *), void (*handler)(int))
{
	struct sigaction action = {.sa_handler = handler};
	pthread_t thread;

	set_up();
	MUST(sigaction(SIGUSR1, &action, NULL));
	MUST(pthread_create(&thread, NULL, body, NULL));
	for (int messages = 0; times == 0 || (times < TIMES && messages < MESSAGES); messages++) {
		pass_message(&f.loop);
		if (messages % 7 == 0)
			MUST(pthread_kill(thread, SIGUSR1));
	}
	over = true;
	while (pthread_tryjoin_np(thread, NULL) != 0) {
		MUST(pthread_kill(thread, SIGUSR1));
		usleep(1000);
	}
	clean_up();
}

static void left(void)
{
	interrupt(be_brought_out, leave);
}

static void handled(void)
{
	interrupt(be_interrupted, use_other_objects);
}

static void cancelled(void)
{
	set_up();
	for (int i = 0; i < 300; i++) {
		pthread_t thread;
		void *result;

		MUST(pthread_create(&thread, NULL, be_interrupted, NULL));
		for (int messages = 0; messages < i % 20; messages++)
			pass_message(&f.loop);
		MUST(pthread_cancel(thread));
		MUST(pthread_join(thread, &result));
		if (result != PTHREAD_CANCELED)
			fail("the thread wasn't cancelled");
	}
	clean_up();
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(left), CASE(handled), CASE(cancelled)};

	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
