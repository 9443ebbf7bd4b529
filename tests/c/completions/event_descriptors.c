/* event_descriptors: when the descriptors of completion channels and of asynchronous events are readable, for every way
 * of waiting that the kernel has, and which messages raise an event.
 */
#include "channel.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

/* An own event loop: readable exactly while an event is unread, edge-triggered too. */
static void event_loop(void)
{
	struct fixture f = make_fixture();
	struct pollfd readable = {.fd = f.loop.channel->fd, .events = POLLIN};
	struct epoll_event edge = {.events = EPOLLIN | EPOLLET};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct ibv_cq *cq;
	void *cq_context;

	MUST(fcntl(f.loop.channel->fd, F_SETFL, fcntl(f.loop.channel->fd, F_GETFL) | O_NONBLOCK));
	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, f.loop.channel->fd, &edge));
	for (int i = 0; i < 50; i++) {
		if (ibv_get_cq_event(f.loop.channel, &cq, &cq_context) != -1 || errno != EAGAIN)
			fail("an event without an occasion");
		if (poll(&readable, 1, 0) != 0)
			fail("readable without an event");
		MUST(ibv_req_notify_cq(f.loop.cq, 0));
		post_message(&f.loop);
		if (epoll_wait(epoll, &edge, 1, 5000) != 1)
			fail("round %d: epoll saw nothing", i);
		if (poll(&readable, 1, 0) != 1)
			fail("not readable with an event");
		take_event(&f);
		take_completions(&f);
	}
	close(epoll);
	tear_down(&f);
}

/* What poll(2) returns for the two descriptors, asked for both directions. */
static void expect_readiness(const struct fixture *f, short channel, short async)
{
	struct pollfd both[2] = {{.fd = f->loop.channel->fd, .events = POLLIN | POLLOUT},
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
	MUST(ibv_req_notify_cq(f->loop.cq, 0));
	post_message(&f->loop);
	take_completions(f);
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
		fail("%s: epoll_wait returned %d and not %d, events %#x", which, got, expected, event.events);
}

/* A descriptor of events is readable while one is unread, never writable, and takes every kind of waiting. */
static void readiness(void)
{
	struct fixture f = make_fixture();
	int fd = f.loop.channel->fd;
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_qp *last = make_qp(&f.device, IBV_QPT_RC, f.loop.cq, srq, 4);
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
	if (ibv_get_cq_event(f.loop.channel, &cq, &cq_context) != -1 || errno != EAGAIN)
		fail("ibv_get_cq_event without an event: %s", strerror(errno));
	if (ibv_get_async_event(f.device.context, &(struct ibv_async_event){0}) != -1 || errno != EAGAIN)
		fail("ibv_get_async_event without an event: %s", strerror(errno));
	raise_event(&f);
	take_event(&f);

	/* A program that closes it gets no more events, and nothing worse. */
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
	struct ibv_qp *b = make_qp(&f.device, IBV_QPT_RC, f.loop.cq, NULL, 4);
	struct path path = default_path(&f.device);
	struct pollfd readable = {.fd = f.loop.channel->fd, .events = POLLIN};
	struct ibv_sge sge = {(uintptr_t)memory, 8, f.loop.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}, *bad;
	struct ibv_wc wc;

	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&f.device, &path, a, b);
	MUST(ibv_req_notify_cq(f.loop.cq, 1));
	MUST(post_recv(b, f.loop.mr, 2048, 64, 1));
	MUST(post_send(a, f.loop.mr, 0, 8, 2));
	MUST_COMPLETE(own_cq, &wc);
	if (poll(&readable, 1, 100) != 0)
		fail("an unsolicited message raised an event");
	MUST(post_recv(b, f.loop.mr, 2048, 64, 3));
	MUST(ibv_post_send(a, &wr, &bad));
	take_event(&f);
	take_completions(&f);
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	MUST(ibv_destroy_cq(own_cq));
	tear_down(&f);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(event_loop), CASE(readiness), CASE(solicited)};

	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
