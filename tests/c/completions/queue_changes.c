/* queue_changes: moderated events, sizes, overruns; shared receive queues; the port's speed. */
#include "extended_cq.h"
#include <dlfcn.h>
#include <limits.h>
#include <poll.h>

/* Sends `count` messages of which each makes two completions. */
static void converse(const struct extended *x, int count)
{
	for (int i = 0; i < count; i++) {
		MUST(post_recv(x->b, x->f.mr, 4096, 4096, 2));
		MUST(send_imm(x, 8, 1));
	}
}

static void drain(const struct extended *x, int expected)
{
	struct ibv_wc wc;

	for (int i = 0; i < expected; i++)
		MUST_COMPLETE(ibv_cq_ex_to_cq(x->cq), &wc);
}

static void an_event_stands_for_as_many_completions_as_asked(void)
{
	struct ibv_context *context = open_device(1).context;
	struct ibv_device_attr_ex attr;
	struct extended x = {};
	struct ibv_comp_channel *channel;
	struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 6, .cq_period = 60000}};
	struct ibv_modify_cq_attr unknown = {.attr_mask = 1 << 1};
	struct ibv_cq_init_attr_ex init = {.cqe = 64};
	struct ibv_cq *cq;
	void *cookie;
	struct pollfd readable = {.events = POLLIN};
	uint64_t start;
	bool came;

	MUST(ibv_query_device_ex(context, NULL, &attr));
	EXPECT(attr.cq_mod_caps.max_cq_count >= 6 && attr.cq_mod_caps.max_cq_period >= 60000);
	x.f = unconnected(IBV_QPT_RC);
	channel = MAKE(ibv_create_comp_channel(x.f.device.context));
	readable.fd = channel->fd;
	init.channel = channel;
	x.cq = MAKE(ibv_create_cq_ex(x.f.device.context, &init));
	cq = ibv_cq_ex_to_cq(x.cq);
	x.a = make_qp(&x.f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	x.b = make_qp(&x.f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	MUST(to_init(x.a, ALL_ACCESS));
	MUST(to_init(x.b, ALL_ACCESS));
	connect_qps(&x.f.device, &x.f.path, x.a, x.b);

	EXPECT_ERRNO(EOPNOTSUPP, ibv_modify_cq(cq, &unknown));
	/* 65 ms at most: six completions come sooner, and four have to wait. */
	MUST(ibv_modify_cq(cq, &moderate));
	MUST(ibv_req_notify_cq(cq, 0));
	start = now_ms();
	converse(&x, 2);
	drain(&x, 4);
	came = poll(&readable, 1, 0) > 0;
	/* The processor may have been another's meanwhile. */
	if (now_ms() - start < 50)
		EXPECT(!came);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	EXPECT(now_ms() - start >= 59);
	EXPECT(poll(&readable, 1, 0) == 0);
	MUST(ibv_req_notify_cq(cq, 0));
	start = now_ms();
	converse(&x, 3);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	drain(&x, 6);
	moderate.moderate = (struct ibv_moderate_cq){};
	MUST(ibv_modify_cq(cq, &moderate));
	MUST(ibv_req_notify_cq(cq, 0));
	converse(&x, 1);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	ibv_ack_cq_events(cq, 3);
	MUST(ibv_destroy_qp(x.a));
	MUST(ibv_destroy_qp(x.b));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
}

static void a_queue_is_resized_around_what_it_holds(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 16});
	struct ibv_cq *cq = ibv_cq_ex_to_cq(x.cq);

	converse(&x, 4);
	usleep(300000);
	MUST(post_recv(x.b, x.f.mr, 4096, 4096, 2));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, 5));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, 0));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, -1));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, x.f.device.attr.max_cqe + 1));
	EXPECT(cq->cqe >= 16);
	MUST(ibv_resize_cq(cq, 1000));
	EXPECT(cq->cqe >= 1000);
	drain(&x, 8);
	MUST(ibv_resize_cq(cq, x.f.device.attr.max_cqe));
	EXPECT(cq->cqe == x.f.device.attr.max_cqe);
	MUST(ibv_resize_cq(cq, 4));
	converse(&x, 1);
	drain(&x, 2);
}

static void a_queue_that_overruns_stops_its_queue_pairs(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 4});
	struct ibv_async_event event;
	struct pollfd readable = {.fd = x.f.device.context->async_fd, .events = POLLIN};
	struct ibv_wc wc;
	int cq_errors = 0, fatal_a = 0, fatal_b = 0, left;

	for (int i = 0; i < DEPTH && qp_state(x.a) == IBV_QPS_RTS && qp_state(x.b) == IBV_QPS_RTS; i++) {
		converse(&x, 1);
		usleep(20000);
	}
	while (poll(&readable, 1, 500) == 1) {
		MUST(ibv_get_async_event(x.f.device.context, &event));
		cq_errors += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == ibv_cq_ex_to_cq(x.cq);
		fatal_a += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == x.a;
		fatal_b += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == x.b;
		ibv_ack_async_event(&event);
	}
	EXPECT(cq_errors == 1 && fatal_a <= 1 && fatal_b <= 1 && fatal_a + fatal_b >= 1);
	EXPECT(qp_state(x.a) == IBV_QPS_ERR || qp_state(x.b) == IBV_QPS_ERR);
	/* What was saved can be had, and then the error. */
	for (left = 0; ibv_poll_cq(ibv_cq_ex_to_cq(x.cq), 1, &wc) == 1;)
		left++;
	EXPECT(left == x.cq->cqe);
	EXPECT(ibv_poll_cq(ibv_cq_ex_to_cq(x.cq), 1, &wc) < 0);
	MUST(ibv_destroy_qp(x.a));
	MUST(ibv_destroy_qp(x.b));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(x.cq)));
}

static void the_port_tells_its_speed(void)
{
	struct device device = open_device(1);
	int (*query)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	uint64_t hundreds = 0;

	EXPECT(query != NULL);
	MUST(query(device.context, PORT_NUM, &hundreds));
	/* A veth reports 10 Gbit/s: one lane of QDR. */
	EXPECT(hundreds == 100 && device.port.active_width == 1 && device.port.active_speed == 4);
	EXPECT_ERRNO(EINVAL, query(device.context, PORT_NUM + 1, &hundreds));
	EXPECT_ERRNO(EINVAL, query(device.context, PORT_NUM, NULL));
}

static void a_shared_receive_queue_changes_with_requests_in_it(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 7}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_srq_attr now, attr = {};
	struct ibv_sge sges[3] = {{(uintptr_t)f.memory, 64, f.mr->lkey}};
	struct ibv_recv_wr second = {.wr_id = 2, .sg_list = sges, .num_sge = INT_MAX};
	struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = sges, .num_sge = 1}, *bad = NULL;
	uint32_t full;

	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr >= 8 && now.max_sge >= 1 && now.srq_limit == 0);
	EXPECT(ibv_post_srq_recv(srq, &first, &bad) != 0 && bad == &second);
	second.num_sge = -1;
	EXPECT_ERRNO(EINVAL, ibv_post_srq_recv(srq, &second, &bad));
	EXPECT(bad == &second);
	first.next = NULL;
	for (full = 1; ibv_post_srq_recv(srq, &first, &bad) == 0; full++)
		EXPECT(full <= now.max_wr);
	EXPECT(full == now.max_wr && bad == &first);
	EXPECT_ERRNO(ENOMEM, ibv_post_srq_recv(srq, &first, &bad));

	attr.max_wr = full - 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = (uint32_t)f.device.attr.max_srq_wr + 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.srq_limit = full + 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, 1 << 5));
	attr = (struct ibv_srq_attr){.max_wr = 2 * full, .srq_limit = full};
	MUST(ibv_modify_srq(srq, &attr, 0));
	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr == full && now.srq_limit == 0);
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr >= 2 * full && now.srq_limit == full && now.max_sge >= 1);
	MUST(ibv_post_srq_recv(srq, &first, &bad));
	MUST(ibv_destroy_srq(srq));
}

static const struct test_case cases[] = {
	CASE(an_event_stands_for_as_many_completions_as_asked),
	CASE(a_queue_is_resized_around_what_it_holds),
	CASE(a_queue_that_overruns_stops_its_queue_pairs),
	CASE(the_port_tells_its_speed),
	CASE(a_shared_receive_queue_changes_with_requests_in_it),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
