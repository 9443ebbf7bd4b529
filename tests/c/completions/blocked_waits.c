/* blocked_waits: threads blocked in ibv_get_cq_event and ibv_get_async_event, cancelled or interrupted by signals.
 *
 * Both calls are a read of a file descriptor to a program: a cancellation point, interrupted by a signal whose
 * handler has no SA_RESTART, restarted where it has.
 */
#include "channel.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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
/* /proc/self/task/TID/stat of the main thread, opened while descriptors may be. */
static int main_stat = -1;

static bool main_sleeps(void)
{
	char text[256] = {0};

	if (pread(main_stat, text, sizeof text - 1, 0) <= 0)
		fail("the state of a thread can't be read: %s", strerror(errno));
	const char *name_ends = strrchr(text, ')');
	return name_ends && name_ends[1] && name_ends[2] == 'S';
}

#define LIMIT_MS 20000
/* A sleeper that is to wake up has this long; a signal that has come between two of its sleeps is sent again then. */
#define AGAIN_MS 500

/* Until the main thread sleeps. */
static void wait_for_sleep(void)
{
	uint64_t end = now_ms() + LIMIT_MS;

	while (!main_sleeps()) {
		if (now_ms() > end)
			fail("the thread doesn't sleep");
		usleep(1000);
	}
}

static void watch_main(void)
{
	main_thread = pthread_self();
	main_stat = open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC);
	if (main_stat < 0)
		fail("/proc/thread-self/stat: %s", strerror(errno));
}

/* Signals for the main thread while it waits in a call, which is to end. */
struct ending {
	int number;
	void (*handler)(int);
	int flags;
	atomic_bool over;
	int sent;
};

static void *end_call_of_main(void *argument)
{
	struct ending *ending = argument;
	uint64_t limit = now_ms() + LIMIT_MS;

	while (!ending->over) {
		if (now_ms() > limit)
			fail("signal %d, flags %#x: %d signals have interrupted nothing", ending->number,
			     (unsigned int)ending->flags, ending->sent);
		handle(ending->number, ending->handler, ending->flags);
		wait_for_sleep();
		ending->sent++;
		pthread_kill(main_thread, ending->number);
		for (uint64_t end = now_ms() + AGAIN_MS; !ending->over && now_ms() < end;)
			usleep(1000);
	}
	return NULL;
}

static int cq_event(const struct fixture *f)
{
	struct ibv_cq *cq;
	void *cq_context;

	return ibv_get_cq_event(f->loop.channel, &cq, &cq_context);
}

static int async_event(const struct fixture *f)
{
	struct ibv_async_event event;

	return ibv_get_async_event(f->device.context, &event);
}

/* Both calls end with EINTR. */
static void expect_eintr(const struct fixture *f, int number, void (*handler)(int), int flags)
{
	int (*const calls[])(const struct fixture *) = {cq_event, async_event};

	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		struct ending ending = {.number = number, .handler = handler, .flags = flags};
		int seen = signals_seen;
		pthread_t helper;

		MUST(pthread_create(&helper, NULL, end_call_of_main, &ending));
		int result = calls[i](f);
		int error = errno;
		ending.over = true;
		pthread_join(helper, NULL);
		if (result != -1 || error != EINTR)
			fail("signal %d, flags %#x: call %zu wasn't interrupted (%s)", number, (unsigned int)flags, i,
			     strerror(error));
		if (signals_seen != seen + ending.sent)
			fail("%d signals were handled, not %d", (int)signals_seen - seen, ending.sent);
	}
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

/* What comes while the main thread waits: a signal, or, for 0, another thread's change of the process's user. A message
 * follows, which ends the wait.
 */
struct interruption {
	int number;
	const struct fixture *then_send;
};

static void *interrupt_main(void *argument)
{
	const struct interruption *interruption = argument;

	wait_for_sleep();
	if (interruption->number)
		pthread_kill(main_thread, interruption->number);
	else
		MUST(setuid(getuid()));
	usleep(50000);
	wait_for_sleep();
	post_message(&interruption->then_send->loop);
	return NULL;
}

static void expect_restart(const struct fixture *f, int number)
{
	struct interruption interruption = {.number = number, .then_send = f};
	pthread_t helper;

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

	watch_main();
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
