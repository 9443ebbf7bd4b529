/* blocked_waits: threads blocked in ibv_get_cq_event and ibv_get_async_event, cancelled or interrupted by signals.
 *
 * Both calls are a read of a file descriptor to a program: a cancellation point, interrupted by a signal whose
 * handler has no SA_RESTART, restarted where it has.
 */
#include "channel.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static volatile sig_atomic_t signals_seen;

static void *wait_for_cq_event(void *argument)
{
	take_event(argument);
	return NULL;
}

static void *wait_for_async_event(void *argument)
{
	struct fixture *f = argument;
	struct ibv_async_event event;

	if (ibv_get_async_event(f->device.context, &event) == 0)
		ibv_ack_async_event(&event);
	return NULL;
}

static void cancel(void *(*body)(void *), struct fixture *f)
{
	pthread_t thread;
	void *result;

	MUST(pthread_create(&thread, NULL, body, f));
	usleep(50000);
	MUST(pthread_cancel(thread));
	MUST(pthread_join(thread, &result));
	if (result != PTHREAD_CANCELED)
		fail("the thread wasn't cancelled");
}

/* rping ends this way. */
static void cancelled(void)
{
	struct fixture f = make_fixture();

	for (int i = 0; i < 5; i++) {
		cancel(wait_for_cq_event, &f);
		cancel(wait_for_async_event, &f);
		MUST(ibv_req_notify_cq(f.loop.cq, 0));
		post_message(&f.loop);
		take_event(&f);
		take_completions(&f);
	}
	tear_down(&f);
}

static void on_signal(int number)
{
	(void)number;
	signals_seen++;
}

static void on_signal_once(int number)
{
	on_signal(number);
	signal(number, SIG_DFL);
}

static void handle(int number, void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	MUST(sigaction(number, &action, NULL));
}

static void handle_signal(int flags)
{
	handle(SIGUSR1, on_signal, flags);
}

static pthread_t main_thread;

/* What comes while the main thread waits: a signal, or, for 0, another thread's change of the process's user. */
struct interruption {
	int number;
	const struct fixture *then_send;
};

static void *interrupt_main(void *argument)
{
	const struct interruption *interruption = argument;

	usleep(50000);
	if (interruption->number)
		pthread_kill(main_thread, interruption->number);
	else
		MUST(setuid(getuid()));
	usleep(50000);
	if (interruption->then_send)
		post_message(&interruption->then_send->loop);
	return NULL;
}

/* Both calls end with EINTR. */
static void expect_eintr(const struct fixture *f, int number, void (*handler)(int), int flags)
{
	struct interruption interruption = {.number = number};
	struct ibv_async_event event;
	int seen = signals_seen;
	pthread_t helper;
	struct ibv_cq *cq;
	void *cq_context;

	main_thread = pthread_self();
	handle(number, handler, flags);
	MUST(pthread_create(&helper, NULL, interrupt_main, &interruption));
	if (ibv_get_cq_event(f->loop.channel, &cq, &cq_context) != -1 || errno != EINTR)
		fail("signal %d, flags %#x: ibv_get_cq_event wasn't interrupted (%s)", number, (unsigned int)flags,
		     strerror(errno));
	pthread_join(helper, NULL);
	handle(number, handler, flags);
	MUST(pthread_create(&helper, NULL, interrupt_main, &interruption));
	if (ibv_get_async_event(f->device.context, &event) != -1 || errno != EINTR)
		fail("signal %d, flags %#x: ibv_get_async_event wasn't interrupted (%s)", number,
		     (unsigned int)flags, strerror(errno));
	pthread_join(helper, NULL);
	if (signals_seen != seen + 2)
		fail("%d signals were handled, not 2", (int)signals_seen - seen);
	handle(number, SIG_IGN, 0);
}

static void interrupted(void)
{
	struct fixture f = make_fixture();

	MUST(ibv_req_notify_cq(f.loop.cq, 0));
	expect_eintr(&f, SIGUSR1, on_signal, 0);
	expect_eintr(&f, SIGUSR1, on_signal, (int)SA_RESETHAND);
	expect_eintr(&f, SIGUSR1, on_signal_once, 0);
	expect_eintr(&f, SIGRTMIN + 1, on_signal, 0);
	post_message(&f.loop);
	take_event(&f);
	take_completions(&f);
	tear_down(&f);
}

static void expect_restart(const struct fixture *f, int number)
{
	struct interruption interruption = {.number = number, .then_send = f};
	pthread_t helper;

	main_thread = pthread_self();
	MUST(ibv_req_notify_cq(f->loop.cq, 0));
	MUST(pthread_create(&helper, NULL, interrupt_main, &interruption));
	take_event(f);
	pthread_join(helper, NULL);
	take_completions(f);
}

static void restarted(void)
{
	struct fixture f = make_fixture();
	sigset_t blocked;

	/* The C library stops every thread for it by a signal of its own. */
	expect_restart(&f, 0);
	handle_signal(SA_RESTART);
	expect_restart(&f, SIGUSR1);
	/* What a language's runtime installs for faults, and what the waiting thread blocks, doesn't matter. */
	handle(SIGSEGV, on_signal, SA_ONSTACK);
	handle(SIGUSR2, on_signal, 0);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	MUST(pthread_sigmask(SIG_BLOCK, &blocked, NULL));
	expect_restart(&f, SIGUSR1);
	expect_restart(&f, 0);
	if (signals_seen != 2)
		fail("%d signals were handled, not 2", (int)signals_seen);
	tear_down(&f);
}

static double processor_seconds(void)
{
	struct rusage usage;

	MUST(getrusage(RUSAGE_SELF, &usage));
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* A sandbox lowers the limit of descriptors to 0 or 1, and poll(2) then takes no more than that. */
static void sandboxed(void)
{
	struct fixture f = make_fixture();

	handle_signal(SA_RESTART);
	for (rlim_t limit = 2; limit-- > 0;) {
		struct rlimit both = {limit, limit};

		MUST(setrlimit(RLIMIT_NOFILE, &both));
		expect_restart(&f, SIGUSR1);
		expect_eintr(&f, SIGUSR2, on_signal, 0);

		double before = processor_seconds();

		usleep(400000);
		if (processor_seconds() - before > 0.1)
			fail("the adapter is busy with nothing to do");
	}
	tear_down(&f);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(cancelled), CASE(interrupted), CASE(restarted), CASE(sandboxed)};

	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
