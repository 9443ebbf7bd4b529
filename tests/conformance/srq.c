/* Shared receive queues: ibv_create_srq, ibv_create_srq_ex, ibv_modify_srq, ibv_query_srq, ibv_post_srq_recv, ibv_destroy_srq. */
#include "conform.h"

static struct buffer buffer;

static struct ibv_srq *make_srq(uint32_t depth)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = depth, .max_sge = 2}};

	return MAKE(ibv_create_srq(pd, &init));
}

static int give(struct ibv_srq *srq, uint64_t id)
{
	struct ibv_sge sge = piece(&buffer, (size_t)id * 64, 64);
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_srq_recv(srq, &wr, &bad);
}

static void creating(void)
{
	int mark;
	struct ibv_srq_init_attr init = {.srq_context = &mark, .attr = {.max_wr = 10, .max_sge = 2}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr;

	check(srq != NULL, "ibv_create_srq(3): a pointer to the SRQ");
	check(init.attr.max_wr >= 10 && init.attr.max_sge >= 2, "ibv_create_srq(3): the attributes are updated, to at least those requested");
	check(srq->srq_context == &mark && srq->pd == pd && srq->context == ctx, "ibv_create_srq(3): the SRQ contains its context and PD");
	is(ibv_query_srq(srq, &attr), 0, "ibv_query_srq(3): 0 on success");
	if (!check(attr.max_wr == init.attr.max_wr && attr.max_sge == init.attr.max_sge,
		   "ibv_query_srq(3): the attributes that ibv_create_srq returned"))
		printf("# created: %u %u, queried: %u %u\n", init.attr.max_wr, init.attr.max_sge, attr.max_wr, attr.max_sge);
	is(attr.srq_limit, 0, "ibv_query_srq(3): a new SRQ's limit is 0, not armed");
	is(ibv_destroy_srq(srq), 0, "ibv_destroy_srq(3): 0 on success");
	init.attr = (struct ibv_srq_attr){.max_wr = (uint32_t)caps.max_srq_wr + 1, .max_sge = 1};
	is_null(ibv_create_srq(pd, &init), EINVAL, "ibv_create_srq(3): more WRs than the device has: EINVAL");
	init.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = (uint32_t)caps.max_srq_sge + 1};
	is_null(ibv_create_srq(pd, &init), EINVAL, "ibv_create_srq(3): more s/g elements than the device has: EINVAL");
	init.attr = (struct ibv_srq_attr){.max_wr = 0, .max_sge = 1};
	is_null(ibv_create_srq(pd, &init), EINVAL, "ibv_create_srq(3): no WRs: EINVAL");

	struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 4, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
					  .srq_type = IBV_SRQT_BASIC,
					  .pd = pd};

	srq = ibv_create_srq_ex(ctx, &ex);
	check(srq != NULL, "ibv_create_srq_ex(3): a basic SRQ");
	if (srq) {
		check(srq->pd == pd && ex.attr.max_wr >= 4, "ibv_create_srq_ex(3): the attributes are updated");
		is(ibv_destroy_srq(srq), 0, "ibv_create_srq_ex(3): it is destroyed as any other");
	}
	ex.comp_mask = IBV_SRQ_INIT_ATTR_PD;
	srq = ibv_create_srq_ex(ctx, &ex);
	check(srq != NULL, "ibv_create_srq_ex(3): without a type it is basic");
	if (srq)
		MUST(ibv_destroy_srq(srq));
	ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	check(ibv_create_srq_ex(ctx, &ex) == NULL, "ibv_create_srq_ex(3): without a PD it fails");
	ex.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	ex.srq_type = 77;
	check(ibv_create_srq_ex(ctx, &ex) == NULL, "ibv_create_srq_ex(3): a type that doesn't exist fails");
}

static void modifying(void)
{
	struct ibv_srq *srq = make_srq(16);
	struct ibv_srq_attr attr = {.srq_limit = 5}, told;
	uint32_t depth;

	MUST(ibv_query_srq(srq, &told));
	depth = told.max_wr;
	is(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0, "ibv_modify_srq(3): 0 on success");
	MUST(ibv_query_srq(srq, &told));
	is(told.srq_limit, 5, "ibv_query_srq(3): the limit that was set");
	attr.srq_limit = depth + 1;
	is(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL, "ibv_modify_srq(3): a limit above max_wr: EINVAL");
	MUST(ibv_query_srq(srq, &told));
	is(told.srq_limit, 5, "ibv_modify_srq(3): with an invalid attribute nothing is modified");
	is(ibv_modify_srq(srq, &attr, 1 << 9), EINVAL, "ibv_modify_srq(3): an attribute that doesn't exist: EINVAL");
	is(ibv_modify_srq(srq, &attr, 0), 0, "ibv_modify_srq(3): a mask of 0 changes nothing");
	if (caps.device_cap_flags & IBV_DEVICE_SRQ_RESIZE) {
		attr.max_wr = 40;
		is(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0, "ibv_modify_srq(3): an SRQ is resized where the device can do so");
		MUST(ibv_query_srq(srq, &told));
		check(told.max_wr >= 40, "ibv_query_srq(3): the new size");
		attr.max_wr = (uint32_t)caps.max_srq_wr + 1;
		is(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL, "ibv_modify_srq(3): a size beyond the device's: EINVAL");
	} else {
		attr.max_wr = 40;
		check(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) != 0, "ibv_modify_srq(3): resizing fails where the device can't do so");
	}
	MUST(ibv_destroy_srq(srq));
}

static void posting(void)
{
	struct ibv_srq *srq = make_srq(4);
	struct ibv_srq_attr attr;
	struct ibv_sge sges[3] = {piece(&buffer, 0, 8), piece(&buffer, 8, 8), piece(&buffer, 16, 8)};
	struct ibv_recv_wr wrs[2] = {{.wr_id = 1, .next = wrs + 1, .sg_list = sges, .num_sge = 1},
				     {.wr_id = 2, .sg_list = too_many, .num_sge = TOO_MANY}},
			   *bad = NULL;
	uint32_t taken = 0;

	MUST(ibv_query_srq(srq, &attr));
	is(ibv_post_srq_recv(srq, wrs, &bad), EINVAL, "ibv_post_srq_recv(3): too many s/g elements: EINVAL");
	check(bad == wrs + 1, "ibv_post_srq_recv(3): bad_wr is the request that failed");
	while (taken < 100000 && give(srq, 1) == 0)
		taken++;
	check(taken + 1 >= attr.max_wr, "ibv_post_srq_recv(3): requests before the one that failed are posted; max_wr fit");
	is(give(srq, 1), ENOMEM, "ibv_post_srq_recv(3): a full SRQ: ENOMEM");
	is(ibv_destroy_srq(srq), 0, "ibv_destroy_srq(3): an SRQ with requests is destroyed");
}

static struct ibv_qp *on_srq(enum ibv_qp_type type, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = qp_attr(type, cq);

	init.srq = srq;
	return MAKE(ibv_create_qp(pd, &init));
}

static void receiving(void)
{
	struct ibv_srq *srq = make_srq(16);
	struct ibv_cq *cq_a = make_cq(32), *cq_b = make_cq(32);
	struct ibv_qp *a[2], *b[2];
	struct path path = PATH;
	struct ibv_srq_attr attr = {.srq_limit = 4}, told;
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	struct ibv_wc wc;
	struct ibv_recv_wr wr = {0}, *bad = NULL;
	int good = 0;

	for (int i = 0; i < 2; i++) {
		a[i] = make_qp(IBV_QPT_RC, cq_a);
		b[i] = on_srq(IBV_QPT_RC, cq_b, srq);
		bring(a[i], IBV_QPS_RTS, &path, b[i]->qp_num);
		bring(b[i], IBV_QPS_RTS, &path, a[i]->qp_num);
	}
	is(ibv_post_recv(b[0], &wr, &bad), EINVAL, "ibv_post_recv(3): a QP with an SRQ: EINVAL");
	check(bad == &wr, "ibv_post_recv(3): and bad_wr is the request");
	for (uint64_t i = 0; i < 6; i++)
		MUST(give(srq, i));
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	no_block(ctx->async_fd);
	check(!readable(ctx->async_fd, QUIET_MS), "ibv_modify_srq(3): no event while there are more WRs than the limit");
	fill(buffer.mem + 4000, 32, 4);
	for (int i = 0; i < 3; i++) {
		MUST(post_send(a[i & 1], &buffer, 4000, 32));
		good += poll_for(cq_b, &wc, PATIENCE_MS) == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i &&
			wc.qp_num == b[i & 1]->qp_num && filled(buffer.mem + (size_t)i * 64, 32, 4);
		next(cq_a);
	}
	is(good, 3, "ibv_post_srq_recv(3): QPs take requests in their order, and complete with their own number");
	bool told_event = readable(ctx->async_fd, PATIENCE_MS) && !ibv_get_async_event(ctx, &event);

	is(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED, "ibv_modify_srq(3): below the limit the event SRQ_LIMIT_REACHED comes");
	check(event.element.srq == srq, "ibv_get_async_event(3): the event names its SRQ");
	if (told_event)
		ibv_ack_async_event(&event);
	MUST(ibv_query_srq(srq, &told));
	is(told.srq_limit, 0, "ibv_query_srq(3): after the event the limit isn't armed any more: 0");
	MUST(post_send(a[0], &buffer, 4000, 32));
	next(cq_b);
	next(cq_a);
	check(!readable(ctx->async_fd, QUIET_MS), "ibv_modify_srq(3): one event only until the limit is set again");

	MUST(move_to(b[0], IBV_QPS_ERR));
	event.event_type = IBV_EVENT_DEVICE_FATAL;
	told_event = readable(ctx->async_fd, PATIENCE_MS) && !ibv_get_async_event(ctx, &event);
	is(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED, "ibv_get_async_event(3): LAST_WQE_REACHED when a QP with an SRQ goes to ERR");
	check(event.element.qp == b[0], "ibv_get_async_event(3): the event names its QP");
	if (told_event)
		ibv_ack_async_event(&event);
	check(silent(cq_b), "ibv_post_srq_recv(3): a QP in ERR doesn't flush the SRQ's requests");
	MUST(post_send(a[1], &buffer, 4000, 32));
	is_status(next(cq_b), IBV_WC_SUCCESS, "ibv_post_srq_recv(3): and the SRQ goes on to serve other QPs");
	next(cq_a);
	is(ibv_destroy_srq(srq), EBUSY, "ibv_destroy_srq(3): an SRQ with QPs isn't destroyed: EBUSY");
	for (int i = 0; i < 2; i++) {
		MUST(ibv_destroy_qp(a[i]));
		MUST(ibv_destroy_qp(b[i]));
	}
	is(ibv_destroy_srq(srq), 0, "ibv_destroy_srq(3): it is destroyed when they are gone");
	MUST(ibv_destroy_cq(cq_a));
	MUST(ibv_destroy_cq(cq_b));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(8192, ALL);
	if (!caps.max_srq) {
		skip("the device has no SRQs", "ibv_create_srq(3): a pointer to the SRQ");
		return end();
	}
	creating();
	modifying();
	posting();
	receiving();
	free_buffer(&buffer);
	return end();
}
