/* Asynchronous events: ibv_get_async_event, ibv_ack_async_event. */
#include "conform.h"
#include <pthread.h>

static struct buffer buffer;

/* Waits for an event of a type; the others are acknowledged and passed over. */
static bool wait_event(enum ibv_event_type type, struct ibv_async_event *event)
{
	while (readable(ctx->async_fd, 2000) && !ibv_get_async_event(ctx, event)) {
		if (event->event_type == type)
			return true;
		ibv_ack_async_event(event);
	}
	return false;
}

static void communication_established(void)
{
	struct ibv_cq *cq_a = make_cq(16), *cq_b = make_cq(16);
	struct ibv_qp *a = make_qp(IBV_QPT_RC, cq_a), *b = make_qp(IBV_QPT_RC, cq_b);
	struct path path = PATH;
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	bool told;

	bring(a, IBV_QPS_RTS, &path, b->qp_num);
	bring(b, IBV_QPS_RTR, &path, a->qp_num);
	MUST(post_recv(b, &buffer, 0, 64, 1));
	MUST(post_send(a, &buffer, 1024, 64));
	is_status(next(cq_b), IBV_WC_SUCCESS, "ibv_modify_qp(3): in RTR a QP receives");
	is_status(next(cq_a), IBV_WC_SUCCESS, "ibv_modify_qp(3): and acknowledges");
	told = wait_event(IBV_EVENT_COMM_EST, &event);
	check(told, "ibv_get_async_event(3): COMM_EST when a QP in RTR receives its first packet");
	check(told && event.element.qp == b, "ibv_get_async_event(3): COMM_EST names the QP");
	if (told)
		ibv_ack_async_event(&event);
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	MUST(ibv_destroy_cq(cq_a));
	MUST(ibv_destroy_cq(cq_b));
}

static void access_error(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct buffer small = make_buffer(64, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	bool told;

	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 8), (uintptr_t)small.mem, small.mr->rkey),
		  IBV_WC_REM_ACCESS_ERR, "ibv_get_async_event(3): a WRITE that an MR doesn't permit: REM_ACCESS_ERR at the requester");
	told = wait_event(IBV_EVENT_QP_ACCESS_ERR, &event);
	check(told && event.element.qp == pair.b, "ibv_get_async_event(3): QP_ACCESS_ERR for the responder's QP");
	if (told)
		ibv_ack_async_event(&event);
	free_pair(&pair);
	free_buffer(&small);
}

static void request_error(void)
{
	struct path path = PATH;
	struct pair pair;
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	bool told;

	path.access = 0;
	pair = make_pair_on(IBV_QPT_RC, path);
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 8), (uintptr_t)buffer.mem, buffer.mr->rkey),
		  IBV_WC_REM_INV_REQ_ERR, "ibv_get_async_event(3): a WRITE that a QP doesn't permit: REM_INV_REQ_ERR at the requester");
	told = wait_event(IBV_EVENT_QP_REQ_ERR, &event);
	check(told && event.element.qp == pair.b, "ibv_get_async_event(3): QP_REQ_ERR for the responder's QP");
	if (told)
		ibv_ack_async_event(&event);
	free_pair(&pair);
}

/* An SRQ whose limit has been reached, so that its event is on its way. */
static struct ibv_srq *srq_with_event(void)
{
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(pd, &srq_init));
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_cq *cq = make_cq(8);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct ibv_sge sge = piece(&buffer, 0, 64);
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct path path = PATH;

	init.srq = srq;
	struct ibv_qp *qp = MAKE(ibv_create_qp(pd, &init));

	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	for (int i = 0; i < 2; i++)
		MUST(ibv_post_srq_recv(srq, &wr, &bad));
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	MUST(post_send(qp, &buffer, 1024, 64));
	next(cq);
	next(cq);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	return srq;
}

static void *destroyer(void *srq)
{
	MUST(ibv_destroy_srq(srq));
	return NULL;
}

static void acknowledging(void)
{
	struct ibv_srq *srq = srq_with_event();
	struct ibv_async_event event = {.element.srq = NULL};
	pthread_t thread;
	struct timespec until;
	bool told = wait_event(IBV_EVENT_SRQ_LIMIT_REACHED, &event);

	check(told && event.element.srq == srq, "ibv_get_async_event(3): an event for an SRQ");
	MUST(pthread_create(&thread, NULL, destroyer, srq));
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 100000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	is(pthread_timedjoin_np(thread, NULL, &until), ETIMEDOUT,
	   "ibv_ack_async_event(3): to destroy an object waits until its events are acknowledged");
	if (told)
		ibv_ack_async_event(&event);
	until.tv_sec += 10;
	is(pthread_timedjoin_np(thread, NULL, &until), 0, "ibv_ack_async_event(3): and goes on then");

	srq = srq_with_event();
	MUST(!readable(ctx->async_fd, PATIENCE_MS));
	MUST(ibv_destroy_srq(srq));
	check(!readable(ctx->async_fd, QUIET_MS), "ibv_get_async_event(3): no event is reported for an object that has been destroyed");
}

static void *waiter(void *result)
{
	struct ibv_async_event event;

	*(int *)result = ibv_get_async_event(ctx, &event);
	if (!*(int *)result)
		ibv_ack_async_event(&event);
	return NULL;
}

static void blocking(void)
{
	struct timespec until;
	pthread_t thread;
	int result = -1;

	MUST(fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) & ~O_NONBLOCK));
	MUST(pthread_create(&thread, NULL, waiter, &result));
	usleep(30000);
	struct ibv_srq *srq = srq_with_event();

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 5;
	is(pthread_timedjoin_np(thread, NULL, &until), 0, "ibv_get_async_event(3): it waits for the next event");
	is(result, 0, "ibv_get_async_event(3): and returns 0 with it");
	MUST(ibv_destroy_srq(srq));
}

int main(int argc, char **argv)
{
	struct ibv_async_event event;

	begin(argc, argv);
	buffer = make_buffer(4096, ALL);
	no_block(ctx->async_fd);
	errno = 0;
	is(ibv_get_async_event(ctx, &event), -1, "ibv_get_async_event(3): -1 where O_NONBLOCK is set and there is no event");
	is(errno, EAGAIN, "ibv_get_async_event(3): and errno is EAGAIN");
	communication_established();
	access_error();
	request_error();
	acknowledging();
	blocking();
	free_buffer(&buffer);
	return end();
}
