/* async_events: the asynchronous events of queues. */
#include "cases.h"
#include <poll.h>

static struct ibv_async_event next_event(const struct device *device)
{
	struct pollfd readable = {.fd = device->context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	if (poll(&readable, 1, 5000) != 1)
		fail("no asynchronous event in 5 s");
	MUST(ibv_get_async_event(device->context, &event));
	ibv_ack_async_event(&event);
	return event;
}

static void cq_overrun_raises_an_event(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_cq *small = make_cq(&f.device, 1, NULL);
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, small, NULL, 64);
	struct ibv_async_event event;

	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, qp, f.b);
	EXPECT(small->cqe < 64);
	for (int i = 0; i < small->cqe + 1; i++)
		MUST(post_remote(qp, IBV_WR_RDMA_WRITE, f.mr, 8, (uintptr_t)f.memory + 64, f.mr->rkey, 1));
	event = next_event(&f.device);
	EXPECT(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
}

static void srq_limit_raises_one_event(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, f.cq_b, srq, 8);
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_sge sge = {(uintptr_t)f.memory + 4096, 8, f.mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_async_event event;
	struct pollfd readable = {.fd = f.device.context->async_fd, .events = POLLIN};

	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(qp, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, qp);
	for (uint64_t i = 0; i < 4; i++) {
		wr.wr_id = i;
		MUST(ibv_post_srq_recv(srq, &wr, &bad));
	}
	MUST(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	for (uint64_t i = 0; i < 4; i++) {
		if (i < 3)
			EXPECT(poll(&readable, 1, 20) == 0);
		MUST(post_send(f.a, f.mr, 0, 8, i));
		EXPECT_STATUS(f.cq_b, i, IBV_WC_SUCCESS);
		EXPECT_STATUS(f.cq_a, i, IBV_WC_SUCCESS);
	}
	event = next_event(&f.device);
	EXPECT(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	MUST(ibv_query_srq(srq, &limit));
	EXPECT(limit.srq_limit == 0);
	EXPECT(poll(&readable, 1, 50) == 0);
}

static void last_wqe_of_an_srq_is_announced(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, f.cq_b, srq, 8);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	struct ibv_async_event event;

	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(qp, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, qp);
	MUST(ibv_modify_qp(qp, &error, IBV_QP_STATE));
	event = next_event(&f.device);
	EXPECT(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
}

static const struct test_case cases[] = {
	CASE(cq_overrun_raises_an_event),
	CASE(srq_limit_raises_one_event),
	CASE(last_wqe_of_an_srq_is_announced),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
