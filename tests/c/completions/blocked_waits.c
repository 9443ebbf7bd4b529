/* blocked_waits: threads blocked in ibv_get_cq_event and ibv_get_async_event, cancelled or interrupted by signals.
 *
 * Both calls are a read of a file descriptor to a program: a cancellation point, interrupted by a signal whose
 * handler has no SA_RESTART, restarted where it has.
 */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

struct fixture {
	struct device device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
};

static char memory[4096];
static volatile sig_atomic_t signals_seen;

static struct fixture make_fixture(void)
{
	struct fixture f = {.device = open_device(1)};
	struct path path = default_path(&f.device);

	f.channel = MAKE(ibv_create_comp_channel(f.device.context));
	f.cq = make_cq(&f.device, 32, f.channel);
	f.mr = MAKE(ibv_reg_mr(f.device.pd, memory, sizeof memory, ALL_ACCESS));
	f.a = make_qp(&f.device, IBV_QPT_RC, f.cq, NULL, 8);
	f.b = make_qp(&f.device, IBV_QPT_RC, f.cq, NULL, 8);
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &path, f.a, f.b);
	return f;
}

static void send_one(const struct fixture *f)
{
	MUST(post_recv(f->b, f->mr, 2048, 2048, 1));
	MUST(post_send(f->a, f->mr, 0, 2048, 2));
}

static void drain(const struct fixture *f, int expected)
{
	struct ibv_wc wc;

	for (int i = 0; i < expected; i++)
		MUST_COMPLETE(f->cq, &wc);
	if (ibv_poll_cq(f->cq, 1, &wc) != 0)
		fail("more completions than requests");
}

static void take_event(const struct fixture *f)
{
	struct ibv_cq *cq = NULL;
	void *cq_context;

	MUST(ibv_get_cq_event(f->channel, &cq, &cq_context));
	if (cq != f->cq)
		fail("the event names another CQ");
	ibv_ack_cq_events(cq, 1);
}

static void tear_down(struct fixture *f)
{
	MUST(ibv_destroy_qp(f->a));
	MUST(ibv_destroy_qp(f->b));
	MUST(ibv_destroy_cq(f->cq));
	MUST(ibv_destroy_comp_channel(f->channel));
	MUST(ibv_dereg_mr(f->mr));
	MUST(ibv_dealloc_pd(f->device.pd));
	MUST(ibv_close_device(f->device.context));
}

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
		MUST(ibv_req_notify_cq(f.cq, 0));
		send_one(&f);
		take_event(&f);
		drain(&f, 2);
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
		send_one(interruption->then_send);
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
	if (ibv_get_cq_event(f->channel, &cq, &cq_context) != -1 || errno != EINTR)
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

	MUST(ibv_req_notify_cq(f.cq, 0));
	expect_eintr(&f, SIGUSR1, on_signal, 0);
	expect_eintr(&f, SIGUSR1, on_signal, (int)SA_RESETHAND);
	expect_eintr(&f, SIGUSR1, on_signal_once, 0);
	expect_eintr(&f, SIGRTMIN + 1, on_signal, 0);
	send_one(&f);
	take_event(&f);
	drain(&f, 2);
	tear_down(&f);
}

static void expect_restart(const struct fixture *f, int number)
{
	struct interruption interruption = {.number = number, .then_send = f};
	pthread_t helper;

	main_thread = pthread_self();
	MUST(ibv_req_notify_cq(f->cq, 0));
	MUST(pthread_create(&helper, NULL, interrupt_main, &interruption));
	take_event(f);
	pthread_join(helper, NULL);
	drain(f, 2);
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

/* An own event loop: readable exactly while an event is unread, edge-triggered too. */
static void event_loop(void)
{
	struct fixture f = make_fixture();
	struct pollfd readable = {.fd = f.channel->fd, .events = POLLIN};
	struct epoll_event edge = {.events = EPOLLIN | EPOLLET};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct ibv_cq *cq;
	void *cq_context;

	MUST(fcntl(f.channel->fd, F_SETFL, fcntl(f.channel->fd, F_GETFL) | O_NONBLOCK));
	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, f.channel->fd, &edge));
	for (int i = 0; i < 50; i++) {
		if (ibv_get_cq_event(f.channel, &cq, &cq_context) != -1 || errno != EAGAIN)
			fail("an event without an occasion");
		if (poll(&readable, 1, 0) != 0)
			fail("readable without an event");
		MUST(ibv_req_notify_cq(f.cq, 0));
		send_one(&f);
		if (epoll_wait(epoll, &edge, 1, 5000) != 1)
			fail("round %d: epoll saw nothing", i);
		if (poll(&readable, 1, 0) != 1)
			fail("not readable with an event");
		take_event(&f);
		drain(&f, 2);
	}
	close(epoll);
	tear_down(&f);
}

/* What poll(2) says of the two descriptors, asked for both directions. */
static void expect_readiness(const struct fixture *f, short channel, short async)
{
	struct pollfd both[2] = {{.fd = f->channel->fd, .events = POLLIN | POLLOUT},
				 {.fd = f->device.context->async_fd, .events = POLLIN | POLLOUT}};

	if (poll(both, 2, 0) < 0 || both[0].revents != channel || both[1].revents != async)
		fail("the channel's descriptor is ready for %#x and not %#x, that of asynchronous events for %#x "
		     "and not %#x", both[0].revents, channel, both[1].revents, async);
}

static void take_async_event(const struct fixture *f, enum ibv_event_type expected)
{
	struct ibv_async_event event;

	MUST(ibv_get_async_event(f->device.context, &event));
	if (event.event_type != expected)
		fail("the event is %s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
}

/* An event of the CQ, unread. */
static void raise_event(const struct fixture *f)
{
	MUST(ibv_req_notify_cq(f->cq, 0));
	send_one(f);
	drain(f, 2);
}

static int watch(int fd, unsigned int events)
{
	struct epoll_event event = {.events = events};
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		fail("epoll (events %#x): %s", events, strerror(errno));
	return epoll;
}

static void expect_wake(int epoll, const char *which, int expected)
{
	struct epoll_event event;
	int got = epoll_wait(epoll, &event, 1, expected ? 5000 : 0);

	if (got != expected || (got && event.events != EPOLLIN))
		fail("%s: epoll says %d and not %d, events %#x", which, got, expected, event.events);
}

/* A descriptor of events is readable while one is unread, never writable, and takes every kind of waiting. */
static void readiness(void)
{
	struct fixture f = make_fixture();
	int fd = f.channel->fd;
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_qp *last = make_qp(&f.device, IBV_QPT_RC, f.cq, srq, 4);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	int level, edge, once, exclusive, nested, copy;
	struct timeval now = {0};
	struct ibv_cq *cq;
	void *cq_context;
	fd_set set[2];

	expect_readiness(&f, 0, 0);
	MUST(to_init(last, ALL_ACCESS));
	MUST(ibv_modify_qp(last, &error, IBV_QP_STATE));
	expect_readiness(&f, 0, POLLIN);
	take_async_event(&f, IBV_EVENT_QP_LAST_WQE_REACHED);
	expect_readiness(&f, 0, 0);

	copy = dup(fd);
	level = watch(fd, EPOLLIN | EPOLLOUT);
	edge = watch(fd, EPOLLIN | EPOLLOUT | EPOLLET);
	once = watch(fd, EPOLLIN | EPOLLONESHOT);
	exclusive = watch(fd, EPOLLIN | EPOLLEXCLUSIVE);
	/* As deep as the kernel lets a program nest. */
	nested = watch(fd, EPOLLIN);
	for (int i = 1; i < 5; i++)
		nested = watch(nested, EPOLLIN);
	raise_event(&f);
	expect_wake(once, "one shot", 1);
	for (int i = 0; i < 3; i++) {
		/* Each event is an edge, also while the one before is unread. */
		expect_readiness(&f, POLLIN, 0);
		expect_wake(edge, "edge", 1);
		expect_wake(edge, "edge, no other event", 0);
		raise_event(&f);
	}
	expect_wake(level, "level", 1);
	expect_wake(once, "one shot, once more", 0);
	expect_wake(exclusive, "exclusive", 1);
	expect_wake(nested, "nested", 1);
	expect_wake(watch(copy, EPOLLIN), "copy", 1);
	FD_ZERO(&set[0]);
	FD_SET(fd, &set[0]);
	set[1] = set[0];
	if (select(fd + 1, &set[0], &set[1], NULL, &now) != 1 || FD_ISSET(fd, &set[1]))
		fail("select");
	for (int i = 0; i < 4; i++) {
		expect_readiness(&f, POLLIN, 0);
		take_event(&f);
	}
	expect_readiness(&f, 0, 0);
	expect_wake(level, "level, nothing unread", 0);
	expect_wake(nested, "nested, nothing unread", 0);

	/* O_NONBLOCK counts, on whichever copy it is set. */
	MUST(fcntl(copy, F_SETFL, O_NONBLOCK));
	MUST(fcntl(f.device.context->async_fd, F_SETFL, O_NONBLOCK));
	if (ibv_get_cq_event(f.channel, &cq, &cq_context) != -1 || errno != EAGAIN)
		fail("ibv_get_cq_event without an event: %s", strerror(errno));
	if (ibv_get_async_event(f.device.context, &(struct ibv_async_event){0}) != -1 || errno != EAGAIN)
		fail("ibv_get_async_event without an event: %s", strerror(errno));
	raise_event(&f);
	take_event(&f);

	/* A program that closes it hears no more of events, and nothing worse. */
	close(copy);
	close(fd);
	raise_event(&f);
	MUST(ibv_destroy_qp(last));
	MUST(ibv_destroy_srq(srq));
	tear_down(&f);
}

/* Solicited events only: an ordinary message raises none, one with IBV_SEND_SOLICITED does. */
static void solicited(void)
{
	struct fixture f = make_fixture();
	struct ibv_cq *own_cq = make_cq(&f.device, 8, NULL);
	struct ibv_qp *a = make_qp(&f.device, IBV_QPT_RC, own_cq, NULL, 4);
	struct ibv_qp *b = make_qp(&f.device, IBV_QPT_RC, f.cq, NULL, 4);
	struct path path = default_path(&f.device);
	struct pollfd readable = {.fd = f.channel->fd, .events = POLLIN};
	struct ibv_sge sge = {(uintptr_t)memory, 8, f.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, *bad;
	struct ibv_wc wc;

	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&f.device, &path, a, b);
	MUST(ibv_req_notify_cq(f.cq, 1));
	MUST(post_recv(b, f.mr, 2048, 64, 1));
	MUST(post_send(a, f.mr, 0, 8, 2));
	MUST_COMPLETE(own_cq, &wc);
	if (poll(&readable, 1, 100) != 0)
		fail("an unsolicited message raised an event");
	MUST(post_recv(b, f.mr, 2048, 64, 3));
	MUST(ibv_post_send(a, &wr, &bad));
	take_event(&f);
	drain(&f, 2);
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	MUST(ibv_destroy_cq(own_cq));
	tear_down(&f);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"cancelled", cancelled}, {"interrupted", interrupted}, {"restarted", restarted},
		     {"sandboxed", sandboxed}, {"event_loop", event_loop}, {"readiness", readiness},
		     {"solicited", solicited}};

	alarm(ALARM_SECONDS);
	for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof cases[0]; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			puts("ok");
			return 0;
		}
	fail("usage: blocked_waits cancelled|interrupted|restarted|sandboxed|event_loop|readiness|solicited");
}
