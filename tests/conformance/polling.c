/* Corners of completion queues, plain and extended: ibv_create_cq_ex, ibv_wc_read_…, ibv_modify_cq, ibv_query_rt_values_ex,
 * ibv_query_qp_data_in_order. */
#include "conform.h"

static struct buffer buffer;

static struct ibv_cq_ex *make_cq_ex(uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 4, .wc_flags = wc_flags, .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0, .flags = flags};

	return ibv_create_cq_ex(ctx, &attr);
}

static void making(void)
{
	static const struct {
		uint64_t flag;
		const char *name;
	} flags[] = {{IBV_WC_EX_WITH_BYTE_LEN, "BYTE_LEN"},
		     {IBV_WC_EX_WITH_IMM, "IMM"},
		     {IBV_WC_EX_WITH_QP_NUM, "QP_NUM"},
		     {IBV_WC_EX_WITH_SRC_QP, "SRC_QP"},
		     {IBV_WC_EX_WITH_SLID, "SLID"},
		     {IBV_WC_EX_WITH_SL, "SL"},
		     {IBV_WC_EX_WITH_DLID_PATH_BITS, "DLID_PATH_BITS"}};
	struct ibv_cq_init_attr_ex attr = {.cqe = 4, .comp_vector = -1};

	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		struct ibv_cq_ex *cq = make_cq_ex(flags[i].flag, 0);

		check(cq != NULL, "ibv_create_cq_ex(3): wc_flags with %s", flags[i].name);
		if (cq)
			MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): a negative completion vector fails");
	attr.comp_vector = ctx->num_comp_vectors;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): a completion vector that doesn't exist fails");
	attr.comp_vector = 0;
	attr.cqe = 0;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): no entries fails");
}

/* More completions than a CQ takes; with IGNORE_OVERRUN nothing happens but that some are lost. */
static void overruns(void)
{
	struct ibv_cq_ex *cq = make_cq_ex(IBV_WC_STANDARD_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	struct ibv_cq *plain;
	struct ibv_qp_init_attr init;
	struct path path = PATH;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	int count, sent = 0;

	if (!cq) {
		check(errno == EINVAL || errno == EOPNOTSUPP, "ibv_create_cq_ex(3): IGNORE_OVERRUN is taken, or refused");
		return;
	}
	check(true, "ibv_create_cq_ex(3): IGNORE_OVERRUN is taken, or refused");
	plain = ibv_cq_ex_to_cq(cq);
	init = qp_attr(IBV_QPT_RC, plain);
	init.cap.max_send_wr = 64;
	qp = MAKE(ibv_create_qp(pd, &init));
	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	for (; sent < plain->cqe + 8 && sent < 60; sent++) {
		struct ibv_sge sge = piece(&buffer, 0, 8);
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

		wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 64;
		wr.wr.rdma.rkey = buffer.mr->rkey;
		MUST(post(qp, &wr));
	}
	usleep(50000);
	check(!readable(ctx->async_fd, QUIET_MS), "ibv_create_cq_ex(3): with IGNORE_OVERRUN there is no event");
	is(qp_state(qp), IBV_QPS_RTS, "ibv_create_cq_ex(3): with IGNORE_OVERRUN the QP goes on");
	for (count = 0; count < 64 && poll_for(plain, &wc, QUIET_MS) == IBV_WC_SUCCESS;)
		count++;
	check(count > 0 && count <= sent, "ibv_create_cq_ex(3): with IGNORE_OVERRUN completions can be polled");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(plain));
}

static void invalidated_keys(void)
{
	struct ibv_cq_ex *cq = make_cq_ex(IBV_WC_STANDARD_FLAGS, 0);
	struct buffer region = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_cq *sends = make_cq(16);
	struct ibv_qp *a = make_qp(IBV_QPT_RC, sends), *b;
	struct ibv_poll_cq_attr none = {0};
	struct path path = PATH;
	uint64_t deadline = now_ms() + PATIENCE_MS;
	int result;

	if (!cq || !mw) {
		skip("the device has no extended CQs, or no windows", "ibv_wc_read_invalidated_rkey(3): the R_Key that the message invalidated");
		goto over;
	}
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, sends);

	init.recv_cq = ibv_cq_ex_to_cq(cq);
	b = MAKE(ibv_create_qp(pd, &init));
	bring(a, IBV_QPS_RTS, &path, b->qp_num);
	bring(b, IBV_QPS_RTS, &path, a->qp_num);

	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr wr = request(IBV_WR_BIND_MW, NULL);
	struct ibv_sge sge = piece(&buffer, 0, 16);

	wr.num_sge = 0;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){region.mr, (uintptr_t)region.mem, 4096, IBV_ACCESS_REMOTE_WRITE};
	MUST(post(b, &wr));
	MUST(next(sends));
	MUST(post_recv(b, &buffer, 1024, 64, 3));
	wr = request(IBV_WR_SEND_WITH_INV, &sge);
	wr.invalidate_rkey = rkey;
	MUST(post(a, &wr));
	MUST(next(sends));
	while ((result = ibv_start_poll(cq, &none)) == ENOENT && now_ms() < deadline)
		;
	is(result, 0, "ibv_start_poll(3): the completion of a message that invalidates");
	if (!result) {
		check(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_INV, "ibv_wc_read_wc_flags(3): WITH_INV");
		is(ibv_wc_read_invalidated_rkey(cq), rkey, "ibv_wc_read_invalidated_rkey(3): the R_Key that the message invalidated");
		ibv_end_poll(cq);
	}
	MUST(ibv_destroy_qp(b));
over:
	MUST(ibv_destroy_qp(a));
	if (mw)
		MUST(ibv_dealloc_mw(mw));
	free_buffer(&region);
	MUST(ibv_destroy_cq(sends));
	if (cq)
		MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

/* One event for several completions. */
static void moderation(void)
{
	struct ibv_device_attr_ex ex;
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(ctx));
	struct ibv_cq *cq = MAKE(ibv_create_cq(ctx, 64, NULL, channel, 0)), *told;
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 3, .cq_period = 60000}};
	void *context;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (!ex.cq_mod_caps.max_cq_count) {
		check(ibv_modify_cq(cq, &attr) > 0, "ibv_modify_cq(3): moderation fails where the device has none");
		goto over;
	}
	no_block(channel->fd);
	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	is(ibv_modify_cq(cq, &attr), 0, "ibv_modify_cq(3): MODERATE");
	MUST(ibv_req_notify_cq(cq, 0));
	for (int i = 1; i <= 3; i++) {
		struct ibv_sge sge = piece(&buffer, 0, 8);
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

		wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 64;
		wr.wr.rdma.rkey = buffer.mr->rkey;
		MUST(post(qp, &wr));
	}
	check(readable(channel->fd, PATIENCE_MS), "ibv_modify_cq(3): after cq_count completions there is an event");
	if (!ibv_get_cq_event(channel, &told, &context))
		ibv_ack_cq_events(told, 1);
	attr.moderate = (struct ibv_moderate_cq){.cq_count = 1, .cq_period = 1};
	is(ibv_modify_cq(cq, &attr), 0, "ibv_modify_cq(3): and back");
	attr.attr_mask = 0;
	is(ibv_modify_cq(cq, &attr), 0, "ibv_modify_cq(3): a mask of 0 changes nothing");
over:
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
}

static void clocks(void)
{
	struct ibv_values_ex values = {.comp_mask = 0};

	if (ibv_query_rt_values_ex(ctx, &values)) {
		skip("the device has no clock", "ibv_query_rt_values_ex(3): for an empty mask nothing is read");
		return;
	}
	is(values.comp_mask, 0, "ibv_query_rt_values_ex(3): for an empty mask nothing is read");
	values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 1u << 20;
	if (!ibv_query_rt_values_ex(ctx, &values))
		is(values.comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK, 0, "ibv_query_rt_values_ex(3): the mask leaves out what isn't known");
	else
		check(true, "ibv_query_rt_values_ex(3): the mask leaves out what isn't known");
}

#define RETURN_CAPS 1u
#define DEVICE_ONLY 2u

static void in_order(void)
{
	struct ibv_cq *cq = make_cq(4);
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	static const struct {
		enum ibv_wr_opcode opcode;
		const char *name;
	} operations[] = {{IBV_WR_RDMA_READ, "READ"}, {IBV_WR_RDMA_WRITE, "WRITE"}, {IBV_WR_SEND, "SEND"}};

	for (int i = 0; i < 3; i++) {
		int plain = ibv_query_qp_data_in_order(qp, operations[i].opcode, 0);
		int told = ibv_query_qp_data_in_order(qp, operations[i].opcode, RETURN_CAPS);
		int device = ibv_query_qp_data_in_order(qp, operations[i].opcode, RETURN_CAPS | DEVICE_ONLY);

		is(plain, told & 1, "ibv_query_qp_data_in_order(3): 0 asks for WHOLE_MSG of RETURN_CAPS, %s", operations[i].name);
		check(!(told & ~3), "ibv_query_qp_data_in_order(3): RETURN_CAPS: WHOLE_MSG and ALIGNED_128_BYTES, %s", operations[i].name);
		check(!(told & 1) || told & 2, "ibv_query_qp_data_in_order(3): what is in order as a whole is so in each block, %s", operations[i].name);
		check((device & told) == told, "ibv_query_qp_data_in_order(3): DEVICE_ONLY returns at least as much, %s", operations[i].name);
	}
	is(ibv_query_qp_data_in_order(qp, IBV_WR_BIND_MW, 0), 0, "ibv_query_qp_data_in_order(3): 0 for an operation that moves no data");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

static void plain_polls(void)
{
	struct ibv_cq *cq = make_cq(4);
	struct ibv_wc wc;

	check(ibv_poll_cq(cq, -1, &wc) <= 0, "ibv_poll_cq(3): nothing for a negative number of entries");
	MUST(ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	no_block(ctx->async_fd);
	buffer = make_buffer(4096, ALL);
	making();
	overruns();
	invalidated_keys();
	moderation();
	clocks();
	in_order();
	plain_polls();
	free_buffer(&buffer);
	return end();
}
