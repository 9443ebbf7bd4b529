/* Completion queues and channels: ibv_create_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_get_cq_event, ibv_resize_cq, ibv_modify_cq. */
#include "conform.h"
#include <pthread.h>

static struct buffer buffer;

static void creating(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_wc wc;
	int mark;
	struct ibv_cq *cq = ibv_create_cq(ctx, 10, &mark, NULL, 0), *more;

	check(cq != NULL, "ibv_create_cq(3): a pointer to the CQ");
	check(cq->cqe >= 10, "ibv_create_cq(3): cqe is at least what was requested");
	check(cq->cq_context == &mark, "ibv_create_cq(3): cq_context is the pointer that was passed");
	check(cq->context == ctx && cq->channel == NULL, "ibv_create_cq(3): the channel is optional");
	is(ibv_poll_cq(cq, 1, &wc), 0, "ibv_poll_cq(3): 0 when there is no completion");
	is(ibv_req_notify_cq(cq, 0), 0, "ibv_req_notify_cq(3): 0 also without a channel");
	is(ibv_destroy_cq(cq), 0, "ibv_destroy_cq(3): 0 on success");
	is_null(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL, "ibv_create_cq(3): no entries: EINVAL");
	is_null(ibv_create_cq(ctx, -1, NULL, NULL, 0), EINVAL, "ibv_create_cq(3): a negative number of entries: EINVAL");
	is_null(ibv_create_cq(ctx, caps.max_cqe + 1, NULL, NULL, 0), EINVAL,
		"ibv_create_cq(3): more entries than the device has: EINVAL");
	is_null(ibv_create_cq(ctx, 10, NULL, NULL, ctx->num_comp_vectors), EINVAL,
		"ibv_create_cq(3): a completion vector that doesn't exist: EINVAL");
	is_null(ibv_create_cq(ctx, 10, NULL, NULL, -1), EINVAL, "ibv_create_cq(3): a negative completion vector: EINVAL");
	cq = ibv_create_cq(ctx, 10, NULL, NULL, ctx->num_comp_vectors - 1);
	check(cq != NULL, "ibv_create_cq(3): the last completion vector will do");
	if (cq)
		MUST(ibv_destroy_cq(cq));

	channel = ibv_create_comp_channel(ctx);
	check(channel && channel->fd >= 0 && channel->context == ctx, "ibv_create_comp_channel(3): a channel with a descriptor");
	cq = MAKE(ibv_create_cq(ctx, 1, NULL, channel, 0));
	more = MAKE(ibv_create_cq(ctx, 1, NULL, channel, 0));
	check(cq->channel == channel, "ibv_create_cq(3): the CQ contains its channel");
	is(ibv_destroy_comp_channel(channel), EBUSY, "ibv_destroy_comp_channel(3): a channel with CQs isn't destroyed: EBUSY");
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(more));
	is(ibv_destroy_comp_channel(channel), 0, "ibv_destroy_comp_channel(3): 0 on success");
}

/* `count` messages of a pair, all completed. */
static void messages(struct pair *pair, int count)
{
	for (int i = 0; i < count; i++) {
		MUST(post_recv(pair->b, &buffer, 0, 64, (uint64_t)i));
		MUST(post_send(pair->a, &buffer, 1024, 64));
	}
}

static void polling(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_wc wc[8];
	int count = 0;
	uint64_t deadline = now_ms() + PATIENCE_MS;
	bool in_order = true;

	messages(&pair, 6);
	is_status(poll_for(pair.cq_b, wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_poll_cq(3): a completion for a message");
	is((long)wc->wr_id, 0, "ibv_poll_cq(3): wr_id is that of the request");
	is(wc->opcode, IBV_WC_RECV, "ibv_poll_cq(3): the opcode of a receive is RECV");
	is(wc->byte_len, 64, "ibv_poll_cq(3): byte_len is the number of bytes received");
	is(wc->qp_num, pair.b->qp_num, "ibv_poll_cq(3): qp_num is that of the local QP");
	is(wc->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), 0, "ibv_poll_cq(3): a plain message has no immediate data");
	while (count < 5 && now_ms() < deadline) {
		int got = ibv_poll_cq(pair.cq_b, 8 - count, wc + count);

		if (got < 0)
			break;
		count += got;
	}
	is(count, 5, "ibv_poll_cq(3): all completions are returned when there are fewer than asked for");
	for (int i = 0; i < count; i++)
		in_order &= wc[i].wr_id == (uint64_t)i + 1;
	check(in_order, "ibv_poll_cq(3): completions come in the order of the requests");
	is(ibv_poll_cq(pair.cq_b, 8, wc), 0, "ibv_poll_cq(3): a polled completion is removed");
	for (count = 0; count < 6 && next(pair.cq_a) == IBV_WC_SUCCESS;)
		count++;
	is(count, 6, "ibv_poll_cq(3): each signaled request completes once at the sender");
	messages(&pair, 3);
	deadline = now_ms() + PATIENCE_MS;
	for (int sent = 0; sent < 3 && next(pair.cq_a) == IBV_WC_SUCCESS;)
		sent++;
	is(ibv_poll_cq(pair.cq_b, 2, wc), 2, "ibv_poll_cq(3): at most num_entries are returned");
	is(ibv_poll_cq(pair.cq_b, 0, wc), 0, "ibv_poll_cq(3): none when none are asked for");
	is(ibv_poll_cq(pair.cq_b, 2, wc), 1, "ibv_poll_cq(3): the rest comes with the next poll");
	free_pair(&pair);
}

static void resizing(void)
{
	struct ibv_cq *cq = make_cq(4);
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	int result = ibv_resize_cq(cq, 100), left = 0;

	if (result == EOPNOTSUPP || result == ENOSYS) {
		skip("not supported by the device", "ibv_resize_cq(3): 0 on success");
		MUST(ibv_destroy_qp(qp));
		MUST(ibv_destroy_cq(cq));
		return;
	}
	is(result, 0, "ibv_resize_cq(3): 0 on success");
	check(cq->cqe >= 100, "ibv_resize_cq(3): cqe is updated to the actual size");
	bring(qp, IBV_QPS_INIT, &path, 0);
	for (uint64_t i = 0; i < 12; i++)
		MUST(post_recv(qp, &buffer, 0, 64, i));
	MUST(move_to(qp, IBV_QPS_ERR));
	usleep(20000);
	is(ibv_resize_cq(cq, 2), EINVAL, "ibv_resize_cq(3): fewer entries than are unpolled: EINVAL");
	is(ibv_resize_cq(cq, 0), EINVAL, "ibv_resize_cq(3): no entries: EINVAL");
	is(ibv_resize_cq(cq, caps.max_cqe + 1), EINVAL, "ibv_resize_cq(3): more entries than the device has: EINVAL");
	is(ibv_resize_cq(cq, 40), 0, "ibv_resize_cq(3): a smaller size that holds all entries will do");
	while (left < 12 && next(cq) == IBV_WC_WR_FLUSH_ERR)
		left++;
	is(left, 12, "ibv_resize_cq(3): unpolled entries outlive it");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

static void moderating(void)
{
	struct ibv_cq *cq = make_cq(4);
	struct ibv_device_attr_ex ex;
	struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 0}};

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (ex.cq_mod_caps.max_cq_count) {
		is(ibv_modify_cq(cq, &attr), 0, "ibv_modify_cq(3): 0 on success");
		attr.attr_mask = 1u << 9;
		check(ibv_modify_cq(cq, &attr) > 0, "ibv_modify_cq(3): an attribute that doesn't exist is refused");
	} else {
		check(ibv_modify_cq(cq, &attr) != 0, "ibv_modify_cq(3): an error where the device has no moderation");
	}
	MUST(ibv_destroy_cq(cq));
}

/* Connected QPs, the receiver's CQ on a channel. */
struct heard {
	struct ibv_comp_channel *channel;
	struct pair pair;
	int mark;
};

static void make_heard(struct heard *heard)
{
	struct path path = PATH;

	heard->channel = MAKE(ibv_create_comp_channel(ctx));
	no_block(heard->channel->fd);
	heard->pair.cq_a = make_cq(64);
	heard->pair.cq_b = MAKE(ibv_create_cq(ctx, 64, &heard->mark, heard->channel, 0));
	heard->pair.a = make_qp(IBV_QPT_RC, heard->pair.cq_a);
	heard->pair.b = make_qp(IBV_QPT_RC, heard->pair.cq_b);
	bring(heard->pair.a, IBV_QPS_RTS, &path, heard->pair.b->qp_num);
	bring(heard->pair.b, IBV_QPS_RTS, &path, heard->pair.a->qp_num);
}

static void free_heard(struct heard *heard)
{
	free_pair(&heard->pair);
	MUST(ibv_destroy_comp_channel(heard->channel));
}

/* Takes an event within a time and acknowledges it. */
static bool event_comes(struct heard *heard, unsigned int milliseconds)
{
	struct ibv_cq *cq = NULL;
	void *context = NULL;

	if (!readable(heard->channel->fd, milliseconds) || ibv_get_cq_event(heard->channel, &cq, &context))
		return false;
	ibv_ack_cq_events(cq, 1);
	return cq == heard->pair.cq_b && context == &heard->mark;
}

static void drain(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
}

static void notifying(void)
{
	struct heard heard;
	struct ibv_cq *cq;
	void *context;

	make_heard(&heard);
	errno = 0;
	is(ibv_get_cq_event(heard.channel, &cq, &context), -1, "ibv_get_cq_event(3): -1 where O_NONBLOCK is set and there is no event");
	is(errno, EAGAIN, "ibv_get_cq_event(3): and errno is EAGAIN");
	messages(&heard.pair, 1);
	is_status(next(heard.pair.cq_a), IBV_WC_SUCCESS, "ibv_req_notify_cq(3): a message without a request for notification");
	check(!event_comes(&heard, QUIET_MS), "ibv_req_notify_cq(3): without a request there is no event");
	drain(heard.pair.cq_b);
	is(ibv_req_notify_cq(heard.pair.cq_b, 0), 0, "ibv_req_notify_cq(3): 0 on success");
	check(!event_comes(&heard, QUIET_MS), "ibv_req_notify_cq(3): the request alone makes no event in an empty CQ");
	messages(&heard.pair, 3);
	check(event_comes(&heard, PATIENCE_MS), "ibv_get_cq_event(3): the event names the CQ and its context");
	check(!event_comes(&heard, QUIET_MS), "ibv_req_notify_cq(3): one event for a request, however many completions come");
	for (int i = 0; i < 3; i++)
		next(heard.pair.cq_a);
	drain(heard.pair.cq_b);

	MUST(ibv_req_notify_cq(heard.pair.cq_b, 1));
	messages(&heard.pair, 1);
	next(heard.pair.cq_a);
	check(!event_comes(&heard, QUIET_MS), "ibv_req_notify_cq(3): solicited_only: none for a message that isn't solicited");

	struct ibv_sge sge = piece(&buffer, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	wr.send_flags |= IBV_SEND_SOLICITED;
	MUST(post_recv(heard.pair.b, &buffer, 0, 64, 7));
	MUST(post(heard.pair.a, &wr));
	check(event_comes(&heard, PATIENCE_MS), "ibv_req_notify_cq(3): solicited_only: an event for a solicited message");
	next(heard.pair.cq_a);
	drain(heard.pair.cq_b);
	MUST(ibv_req_notify_cq(heard.pair.cq_b, 1));
	MUST(post_recv(heard.pair.b, &buffer, 0, 64, 8));
	MUST(move_to(heard.pair.b, IBV_QPS_ERR));
	check(event_comes(&heard, PATIENCE_MS), "ibv_req_notify_cq(3): solicited_only: an event for a completion that isn't a success");
	drain(heard.pair.cq_b);
	free_heard(&heard);
}

static void *destroyer(void *qps)
{
	struct pair *pair = qps;

	MUST(ibv_destroy_cq(pair->cq_b));
	return NULL;
}

static void acknowledging(void)
{
	struct heard heard;
	struct ibv_cq *cq;
	void *context;
	pthread_t thread;
	struct timespec until;

	make_heard(&heard);
	for (int i = 0; i < 2; i++) {
		MUST(ibv_req_notify_cq(heard.pair.cq_b, 0));
		messages(&heard.pair, 1);
		MUST(!readable(heard.channel->fd, PATIENCE_MS));
		MUST(ibv_get_cq_event(heard.channel, &cq, &context));
		next(heard.pair.cq_b);
		next(heard.pair.cq_a);
	}
	MUST(ibv_destroy_qp(heard.pair.a));
	MUST(ibv_destroy_qp(heard.pair.b));
	MUST(pthread_create(&thread, NULL, destroyer, &heard.pair));
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 100000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	is(pthread_timedjoin_np(thread, NULL, &until), ETIMEDOUT,
	   "ibv_ack_cq_events(3): to destroy a CQ waits until its events are acknowledged");
	ibv_ack_cq_events(heard.pair.cq_b, 2);
	until.tv_sec += 10;
	is(pthread_timedjoin_np(thread, NULL, &until), 0, "ibv_ack_cq_events(3): several events can be acknowledged at once");
	MUST(ibv_destroy_cq(heard.pair.cq_a));
	MUST(ibv_destroy_comp_channel(heard.channel));
}

static void *sender(void *qps)
{
	usleep(50000);
	messages(qps, 1);
	return NULL;
}

static void blocking(void)
{
	struct heard heard;
	struct ibv_cq *cq = NULL;
	void *context;
	pthread_t thread;

	make_heard(&heard);
	MUST(fcntl(heard.channel->fd, F_SETFL, fcntl(heard.channel->fd, F_GETFL) & ~O_NONBLOCK));
	MUST(ibv_req_notify_cq(heard.pair.cq_b, 0));
	MUST(pthread_create(&thread, NULL, sender, &heard.pair));
	is(ibv_get_cq_event(heard.channel, &cq, &context), 0, "ibv_get_cq_event(3): it waits for the next event");
	check(cq == heard.pair.cq_b, "ibv_get_cq_event(3): and returns the CQ that got it");
	MUST(pthread_join(thread, NULL));
	if (cq)
		ibv_ack_cq_events(cq, 1);
	free_heard(&heard);
}

/* Leaves a CQ in error behind. */
static void overrun(void)
{
	struct ibv_cq *cq = make_cq(1);
	struct ibv_qp *qp;
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	bool told = false;

	if (cq->cqe > 4096) {
		skip("the smallest CQ is large", "ibv_poll_cq(3): an overrun raises IBV_EVENT_CQ_ERR");
		MUST(ibv_destroy_cq(cq));
		return;
	}
	init.cap.max_recv_wr = (uint32_t)cq->cqe + 8;
	qp = MAKE(ibv_create_qp(pd, &init));
	bring(qp, IBV_QPS_INIT, &path, 0);
	for (int i = 0; i < cq->cqe + 4; i++)
		MUST(post_recv(qp, &buffer, 0, 64, 0));
	no_block(ctx->async_fd);
	MUST(move_to(qp, IBV_QPS_ERR));
	while (!told && readable(ctx->async_fd, 1000) && !ibv_get_async_event(ctx, &event)) {
		told = event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
		ibv_ack_async_event(&event);
	}
	check(told, "ibv_poll_cq(3): an overrun raises IBV_EVENT_CQ_ERR");

	struct ibv_wc wc;
	int left = cq->cqe + 8, got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) > 0 && left)
		left--;
	check(got < 0, "ibv_poll_cq(3): after an overrun: a negative value");
	MUST(ibv_destroy_qp(qp));
	is(ibv_destroy_cq(cq), 0, "ibv_destroy_cq(3): a CQ in error is destroyed as any other");
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(4096, ALL);
	creating();
	polling();
	resizing();
	moderating();
	notifying();
	acknowledging();
	blocking();
	overrun();
	free_buffer(&buffer);
	return end();
}
