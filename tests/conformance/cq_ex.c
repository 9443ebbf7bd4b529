/* Extended completion queues: ibv_create_cq_ex and the polling of batches. */
#include "conform.h"

#define FIELDS                                                                         \
	(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP | \
	 IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS)

static struct buffer buffer;

/* Starts a batch with the next completion. */
static int start(struct ibv_cq_ex *cq, unsigned int milliseconds)
{
	struct ibv_poll_cq_attr attr = {0};
	uint64_t deadline = now_ms() + milliseconds;
	int result;

	do
		result = ibv_start_poll(cq, &attr);
	while (result == ENOENT && now_ms() < deadline);
	return result;
}

/* A start that must not find a completion. If it finds one it holds the CQ until the batch ends, so the batch is ended. */
static int start_of_nothing(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	int result = ibv_start_poll(cq, attr);

	if (result == 0)
		ibv_end_poll(cq);
	return result;
}

static void creating(void)
{
	int mark;
	struct ibv_cq_init_attr_ex attr = {.cqe = 10, .cq_context = &mark, .wc_flags = FIELDS};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);

	check(cq != NULL, "ibv_create_cq_ex(3): a pointer to the CQ");
	check(cq->cqe >= 10 && cq->cq_context == &mark && cq->context == ctx,
	      "ibv_create_cq_ex(3): the CQ contains its size and context");
	is(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0, "ibv_create_cq_ex(3): the CQ is destroyed with ibv_destroy_cq");
	attr.wc_flags = 1ull << 40;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): an unknown wc_flag fails");
	attr.wc_flags = 0;
	attr.comp_mask = 1u << 20;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): an unknown comp_mask fails");
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1u << 20;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): an unknown flag fails");
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq = ibv_create_cq_ex(ctx, &attr);
	check(cq != NULL, "ibv_create_cq_ex(3): SINGLE_THREADED is taken");
	if (cq)
		MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	attr.comp_mask = 0;
	attr.cqe = caps.max_cqe + 1;
	check(ibv_create_cq_ex(ctx, &attr) == NULL, "ibv_create_cq_ex(3): more entries than the device has fail");
}

static void polling(void)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 32, .wc_flags = FIELDS};
	struct ibv_cq_ex *cq = MAKE(ibv_create_cq_ex(ctx, &attr));
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	struct pair pair = {.cq_a = make_cq(32), .cq_b = plain};
	struct path path = PATH;
	struct ibv_sge sge = piece(&buffer, 0, 24);
	struct ibv_send_wr wr = request(IBV_WR_SEND_WITH_IMM, &sge);
	struct ibv_poll_cq_attr poll_attr = {0};
	int rest = 0;

	pair.a = make_qp(IBV_QPT_RC, pair.cq_a);
	pair.b = make_qp(IBV_QPT_RC, pair.cq_b);
	bring(pair.a, IBV_QPS_RTS, &path, pair.b->qp_num);
	bring(pair.b, IBV_QPS_RTS, &path, pair.a->qp_num);
	is(start_of_nothing(cq, &poll_attr), ENOENT, "ibv_start_poll(3): ENOENT when there is no completion");
	is(start_of_nothing(cq, &poll_attr), ENOENT, "ibv_start_poll(3): after ENOENT the CQ is valid, without ibv_end_poll");
	wr.imm_data = htonl(0xdecafbad);
	for (uint64_t i = 0; i < 3; i++) {
		MUST(post_recv(pair.b, &buffer, 1024, 64, 70 + i));
		MUST(post(pair.a, &wr));
		next(pair.cq_a);
	}
	is(start(cq, PATIENCE_MS), 0, "ibv_start_poll(3): 0 with a completion");
	is((long)cq->wr_id, 70, "ibv_start_poll(3): wr_id of the current completion");
	is_status(cq->status, IBV_WC_SUCCESS, "ibv_start_poll(3): status of the current completion");
	is(ibv_wc_read_opcode(cq), IBV_WC_RECV, "ibv_wc_read_opcode(3): the opcode");
	is(ibv_wc_read_byte_len(cq), 24, "ibv_wc_read_byte_len(3): the number of bytes");
	is(ibv_wc_read_qp_num(cq), pair.b->qp_num, "ibv_wc_read_qp_num(3): the local QP");
	check(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, "ibv_wc_read_wc_flags(3): immediate data is there");
	is(ntohl(ibv_wc_read_imm_data(cq)), (long)0xdecafbad, "ibv_wc_read_imm_data(3): the immediate data");
	is(ibv_wc_read_vendor_err(cq), 0, "ibv_wc_read_vendor_err(3): none with a success");
	is(ibv_wc_read_slid(cq), 0, "ibv_wc_read_slid(3): RoCE has no LIDs");
	is(ibv_wc_read_sl(cq), 0, "ibv_wc_read_sl(3): the service level");
	is(ibv_wc_read_dlid_path_bits(cq), 0, "ibv_wc_read_dlid_path_bits(3): RoCE has none");
	while (rest < 2 && ibv_next_poll(cq) == 0 && cq->wr_id == 71u + (unsigned int)rest)
		rest++;
	is(rest, 2, "ibv_next_poll(3): the other completions, in their order");
	ibv_end_poll(cq);

	MUST(post_recv(pair.b, &buffer, 1024, 64, 80));
	MUST(post_recv(pair.b, &buffer, 1024, 64, 81));
	for (int i = 0; i < 2; i++) {
		MUST(post(pair.a, &wr));
		next(pair.cq_a);
	}
	is(start(cq, PATIENCE_MS), 0, "ibv_start_poll(3): another batch");
	ibv_end_poll(cq);

	struct ibv_wc wc = {0};

	is_status(poll_for(plain, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_poll_cq(3): works on an extended CQ too");
	is((long)wc.wr_id, 81, "ibv_end_poll(3): what the batch hasn't come to stays");
	poll_attr.comp_mask = 1;
	is(start_of_nothing(cq, &poll_attr), EINVAL, "ibv_start_poll(3): an unknown comp_mask: EINVAL");
	MUST(post_recv(pair.b, &buffer, 1024, 64, 90));
	MUST(move_to(pair.b, IBV_QPS_ERR));
	is(start(cq, PATIENCE_MS), 0, "ibv_start_poll(3): 0 with a completion that isn't a success");
	is_status(cq->status, IBV_WC_WR_FLUSH_ERR, "ibv_start_poll(3): and its status");
	is((long)cq->wr_id, 90, "ibv_start_poll(3): and its wr_id");
	ibv_end_poll(cq);
	free_pair(&pair);
}

/* On a CQ of its own, because a device that gets it wrong may be lost afterwards. */
static void removing(void)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 32};
	struct ibv_cq_ex *cq = MAKE(ibv_create_cq_ex(ctx, &attr));
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, ibv_cq_ex_to_cq(cq));
	struct path path = PATH;
	struct ibv_poll_cq_attr poll_attr = {0};

	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	MUST(post_recv(qp, &buffer, 1024, 64, 1));
	MUST(post_send(qp, &buffer, 0, 64));
	for (int i = 0; i < 2; i++) {
		is(start(cq, PATIENCE_MS), 0, "ibv_start_poll(3): completion %d of 2, in a batch of its own", i + 1);
		ibv_end_poll(cq);
	}
	is(start_of_nothing(cq, &poll_attr), ENOENT, "ibv_end_poll(3): what the batch has returned is removed");
	MUST(post_recv(qp, &buffer, 1024, 64, 1));
	MUST(move_to(qp, IBV_QPS_ERR));
	is(start(cq, PATIENCE_MS), 0, "ibv_start_poll(3): a batch of one completion");
	is(ibv_next_poll(cq), ENOENT, "ibv_next_poll(3): ENOENT when there is no more");
	ibv_end_poll(cq);
	is(start_of_nothing(cq, &poll_attr), ENOENT, "ibv_end_poll(3): after that the CQ is empty");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static void clocks(void)
{
	struct ibv_device_attr_ex ex;
	struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &attr);
	struct path path = PATH;
	struct ibv_qp *qp;
	uint64_t first, second;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (!ex.completion_timestamp_mask) {
		check(cq == NULL, "ibv_create_cq_ex(3): no time stamps where the device has no clock");
		return;
	}
	check(cq != NULL, "ibv_create_cq_ex(3): time stamps where the device has a clock");
	if (!cq)
		return;
	check(ex.hca_core_clock != 0, "ibv_query_device_ex(3): the clock's frequency is returned with its mask");
	qp = make_qp(IBV_QPT_RC, ibv_cq_ex_to_cq(cq));
	bring(qp, IBV_QPS_INIT, &path, 0);
	MUST(post_recv(qp, &buffer, 0, 8, 1));
	MUST(move_to(qp, IBV_QPS_ERR));
	MUST(start(cq, PATIENCE_MS));
	first = ibv_wc_read_completion_ts(cq);
	ibv_end_poll(cq);
	usleep(2000);
	MUST(post_recv(qp, &buffer, 0, 8, 2));
	MUST(start(cq, PATIENCE_MS));
	second = ibv_wc_read_completion_ts(cq);
	ibv_end_poll(cq);
	check(((second - first) & ex.completion_timestamp_mask) >= ex.hca_core_clock &&
		      ((second - first) & ex.completion_timestamp_mask) < 1000 * 20 * ex.hca_core_clock,
	      "ibv_wc_read_completion_ts(3): two time stamps differ by the time between, in the clock's units");

	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};

	is(ibv_query_rt_values_ex(ctx, &values), 0, "ibv_query_rt_values_ex(3): 0 on success");
	check(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK, "ibv_query_rt_values_ex(3): the mask names what was read");
	check(values.raw_clock.tv_sec || values.raw_clock.tv_nsec, "ibv_query_rt_values_ex(3): the clock");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

/* The sender of a datagram, and fields that a device may lack. */
static void datagram(void)
{
	static const struct {
		uint64_t flag;
		const char *name;
	} others[] = {
		{IBV_WC_EX_WITH_CVLAN, "cvlan"},
		{IBV_WC_EX_WITH_FLOW_TAG, "flow_tag"},
		{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, "completion_wallclock_ns"},
	};
	struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = FIELDS};
	struct path path = PATH;
	struct ibv_ah_attr to = ah_attr();
	struct ibv_ah *ah = MAKE(ibv_create_ah(pd, &to));
	struct ibv_cq *send_cq = make_cq(8);
	struct ibv_qp *sender = make_qp(IBV_QPT_UD, send_cq), *receiver;
	struct ibv_sge sge = piece(&buffer, 0, 16);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	struct ibv_cq_ex *cq;
	struct timespec now;

	bring(sender, IBV_QPS_RTS, &path, 0);
	for (size_t i = 0; i < 3; i++) {
		attr.wc_flags = FIELDS | others[i].flag;
		cq = ibv_create_cq_ex(ctx, &attr);
		if (!cq) {
			char name[64];

			snprintf(name, sizeof name, "ibv_wc_read_%s(3): the field of a completion", others[i].name);
			skip("the device has no such field", name);
			attr.wc_flags = FIELDS;
			if (i > 0)
				continue;
			cq = MAKE(ibv_create_cq_ex(ctx, &attr));
		}
		receiver = make_qp(IBV_QPT_UD, ibv_cq_ex_to_cq(cq));
		bring(receiver, IBV_QPS_RTS, &path, 0);
		MUST(post_recv(receiver, &buffer, 1024, 256, 1));
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = receiver->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		MUST(post(sender, &wr));
		next(send_cq);
		int result = start(cq, PATIENCE_MS);

		if (i == 0 && is(result, 0, "ibv_start_poll(3): a datagram's completion")) {
			is(ibv_wc_read_src_qp(cq), sender->qp_num, "ibv_wc_read_src_qp(3): the QP that sent the datagram");
			check(ibv_wc_read_wc_flags(cq) & IBV_WC_GRH, "ibv_wc_read_wc_flags(3): a GRH is there");
			is(ibv_wc_read_byte_len(cq), 56, "ibv_wc_read_byte_len(3): the GRH counts");
		}
		if (result == 0 && attr.wc_flags & others[i].flag) {
			if (i == 0)
				is(ibv_wc_read_cvlan(cq), 0, "ibv_wc_read_cvlan(3): 0 without a VLAN");
			else if (i == 1)
				is(ibv_wc_read_flow_tag(cq), 0, "ibv_wc_read_flow_tag(3): 0 without a flow rule");
			else {
				clock_gettime(CLOCK_REALTIME, &now);
				uint64_t then = ibv_wc_read_completion_wallclock_ns(cq);
				uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;

				check(then <= ns && ns - then < 20000000000,
				      "ibv_wc_read_completion_wallclock_ns(3): the time of the completion, in nanoseconds of the wall clock");
			}
		}
		if (result == 0)
			ibv_end_poll(cq);
		MUST(ibv_destroy_qp(receiver));
		MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
	MUST(ibv_destroy_qp(sender));
	MUST(ibv_destroy_cq(send_cq));
	MUST(ibv_destroy_ah(ah));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(4096, ALL);
	creating();
	polling();
	clocks();
	datagram();
	removing();
	free_buffer(&buffer);
	return end();
}
