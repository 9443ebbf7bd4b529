/* Queue pairs: ibv_create_qp, ibv_create_qp_ex, ibv_query_qp, ibv_destroy_qp, ibv_query_qp_data_in_order. */
#include "conform.h"

static struct ibv_cq *cq;

static void creating(void)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
	int mark;

	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr init = qp_attr(types[i], cq), asked = init;
		struct ibv_qp *qp;
		const char *name = types[i] == IBV_QPT_RC ? "RC" : types[i] == IBV_QPT_UC ? "UC" : "UD";

		init.qp_context = &mark;
		qp = ibv_create_qp(pd, &init);
		if (!check(qp != NULL, "ibv_create_qp(3): a pointer to the %s QP", name))
			continue;
		check(qp->qp_type == types[i] && qp->pd == pd && qp->send_cq == cq && qp->recv_cq == cq && !qp->srq &&
			      qp->qp_context == &mark && qp->context == ctx,
		      "ibv_create_qp(3): the %s QP contains what it was made of", name);
		is(qp->state, IBV_QPS_RESET, "ibv_create_qp(3): a new %s QP is in RESET", name);
		check(qp->qp_num > 1 && qp->qp_num < 1 << 24, "ibv_create_qp(3): the number of the %s QP has 24 bits", name);
		check(init.cap.max_send_wr >= asked.cap.max_send_wr && init.cap.max_recv_wr >= asked.cap.max_recv_wr &&
			      init.cap.max_send_sge >= asked.cap.max_send_sge &&
			      init.cap.max_recv_sge >= asked.cap.max_recv_sge &&
			      init.cap.max_inline_data >= asked.cap.max_inline_data,
		      "ibv_create_qp(3): cap is updated with values at least those requested, %s", name);
		is(ibv_destroy_qp(qp), 0, "ibv_destroy_qp(3): 0 on success, %s", name);
	}
}

static void refusals(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(pd, &srq_attr));
	struct ibv_qp *qp;

#define REFUSED(field, value, name)                                                    \
	do {                                                                           \
		init = qp_attr(IBV_QPT_RC, cq);                                        \
		init.field = (value);                                                  \
		is_null(ibv_create_qp(pd, &init), EINVAL, name);                       \
	} while (0)
	REFUSED(cap.max_send_wr, (uint32_t)caps.max_qp_wr + 1, "ibv_create_qp(3): more send WRs than the device has: EINVAL");
	REFUSED(cap.max_recv_wr, (uint32_t)caps.max_qp_wr + 1, "ibv_create_qp(3): more receive WRs than the device has: EINVAL");
	REFUSED(cap.max_send_sge, (uint32_t)caps.max_sge + 1, "ibv_create_qp(3): more send s/g elements than the device has: EINVAL");
	REFUSED(cap.max_recv_sge, (uint32_t)caps.max_sge + 1, "ibv_create_qp(3): more receive s/g elements than the device has: EINVAL");
	REFUSED(cap.max_inline_data, 1u << 20, "ibv_create_qp(3): more inline data than the device has: EINVAL");
	init = qp_attr(IBV_QPT_RC, cq);
	init.qp_type = 77;
	check(ibv_create_qp(pd, &init) == NULL, "ibv_create_qp(3): a type that doesn't exist fails");
	init = qp_attr(IBV_QPT_RC, cq);
	init.srq = srq;
	init.cap.max_recv_wr = UINT32_MAX;
	init.cap.max_recv_sge = UINT32_MAX;
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp(3): with an SRQ max_recv_wr and max_recv_sge are ignored");
	if (qp) {
		check(qp->srq == srq, "ibv_create_qp(3): the QP contains its SRQ");
		is(ibv_destroy_srq(srq), EBUSY, "ibv_destroy_srq(3): an SRQ with a QP isn't destroyed: EBUSY");
		MUST(ibv_destroy_qp(qp));
	}
	init = qp_attr(IBV_QPT_UD, cq);
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp(3): a UD QP can have an SRQ");
	if (qp)
		MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_srq(srq));
}

static void without_queues(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct ibv_qp *qp;

	init.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = 1};
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp(3): a QP that never receives needs no receive queue");
	if (qp)
		MUST(ibv_destroy_qp(qp));
}

static void extended(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);

	check(qp != NULL, "ibv_create_qp_ex(3): a pointer to the QP");
	if (qp) {
		check(qp->pd == pd && init.cap.max_send_wr >= 4, "ibv_create_qp_ex(3): of the PD, with cap updated");
		is(ibv_destroy_qp(qp), 0, "ibv_create_qp_ex(3): the QP is destroyed as any other");
	}
	init.comp_mask = 0;
	qp = ibv_create_qp_ex(ctx, &init);
	check(qp == NULL, "ibv_create_qp_ex(3): without a PD there is no RC QP");
	init.comp_mask = IBV_QP_INIT_ATTR_PD | 1u << 30;
	check(ibv_create_qp_ex(ctx, &init) == NULL, "ibv_create_qp_ex(3): an unknown comp_mask fails");
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	init.create_flags = 1u << 29;
	check(ibv_create_qp_ex(ctx, &init) == NULL, "ibv_create_qp_ex(3): an unknown creation flag fails");
}

static void querying(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq), told;
	struct ibv_qp *qp;
	struct path path = {.timeout = 15, .retry_cnt = 3, .rnr_retry = 5, .min_rnr_timer = 9, .rd_atomic = 2, .access = REMOTE & ~IBV_ACCESS_REMOTE_READ};
	struct ibv_qp_attr attr;
	int all = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU |
		  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
		  IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP | IBV_QP_DEST_QPN;

	init.sq_sig_all = 1;
	qp = MAKE(ibv_create_qp(pd, &init));
	bring(qp, IBV_QPS_RTS, &path, 0x123456);
	memset(&attr, 0xee, sizeof attr);
	memset(&told, 0xee, sizeof told);
	is(ibv_query_qp(qp, &attr, all, &told), 0, "ibv_query_qp(3): 0 on success");
	is(attr.qp_state, IBV_QPS_RTS, "ibv_query_qp(3): the state");
	is(qp->state, IBV_QPS_RTS, "ibv_modify_qp(3): the QP's own field follows the state");
	is(attr.path_mtu, port.active_mtu < IBV_MTU_1024 ? port.active_mtu : IBV_MTU_1024, "ibv_query_qp(3): path_mtu");
	is(attr.rq_psn, 0xfffffe, "ibv_query_qp(3): rq_psn");
	is(attr.sq_psn, 0xfffffe, "ibv_query_qp(3): sq_psn");
	is(attr.dest_qp_num, 0x123456, "ibv_query_qp(3): dest_qp_num");
	is(attr.qp_access_flags & REMOTE, path.access & REMOTE, "ibv_query_qp(3): qp_access_flags");
	is(attr.pkey_index, 0, "ibv_query_qp(3): pkey_index");
	is(attr.port_num, PORT_NUM, "ibv_query_qp(3): port_num");
	is(attr.timeout, 15, "ibv_query_qp(3): timeout");
	is(attr.retry_cnt, 3, "ibv_query_qp(3): retry_cnt");
	is(attr.rnr_retry, 5, "ibv_query_qp(3): rnr_retry");
	is(attr.min_rnr_timer, 9, "ibv_query_qp(3): min_rnr_timer");
	is(attr.max_rd_atomic, 2, "ibv_query_qp(3): max_rd_atomic");
	is(attr.max_dest_rd_atomic, 2, "ibv_query_qp(3): max_dest_rd_atomic");
	is(attr.ah_attr.is_global, 1, "ibv_query_qp(3): ah_attr has a GRH");
	check(!memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid), "ibv_query_qp(3): ah_attr's GID");
	is(attr.ah_attr.grh.sgid_index, gid_index, "ibv_query_qp(3): ah_attr's GID index");
	is(attr.ah_attr.grh.hop_limit, 64, "ibv_query_qp(3): ah_attr's hop limit");
	is(attr.ah_attr.port_num, PORT_NUM, "ibv_query_qp(3): ah_attr's port");
	if (!check(attr.cap.max_send_wr == init.cap.max_send_wr && attr.cap.max_recv_wr == init.cap.max_recv_wr &&
		      attr.cap.max_send_sge == init.cap.max_send_sge && attr.cap.max_recv_sge == init.cap.max_recv_sge &&
		      attr.cap.max_inline_data == init.cap.max_inline_data,
		   "ibv_query_qp(3): the capabilities are those that ibv_create_qp returned"))
		printf("# created: %u %u %u %u %u, queried: %u %u %u %u %u\n", init.cap.max_send_wr, init.cap.max_recv_wr,
	       init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data, attr.cap.max_send_wr, attr.cap.max_recv_wr,
	       attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data);
	check(told.qp_type == IBV_QPT_RC && told.send_cq == cq && told.recv_cq == cq && !told.srq &&
		      told.cap.max_send_wr == init.cap.max_send_wr,
	      "ibv_query_qp(3): init_attr contains what the QP was made of");
	is(told.sq_sig_all != 0, 1, "ibv_query_qp(3): init_attr contains sq_sig_all");
	int in_order = ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0);

	check(in_order == 0 || in_order == 1, "ibv_query_qp_data_in_order(3): 1 or 0 for WRITE");
	is(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 1u << 31), 0,
	   "ibv_query_qp_data_in_order(3): 0 with a flag that doesn't exist");
	MUST(ibv_destroy_qp(qp));

	qp = make_qp(IBV_QPT_UD, cq);
	bring(qp, IBV_QPS_RTS, &path, 0);
	MUST(ibv_query_qp(qp, &attr, IBV_QP_QKEY | IBV_QP_STATE, &told));
	is(attr.qkey, QKEY, "ibv_query_qp(3): qkey of a UD QP");
	is(told.sq_sig_all, 0, "ibv_query_qp(3): sq_sig_all isn't set where it wasn't asked for");
	MUST(ibv_destroy_qp(qp));
}

static void destroying(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct buffer buffer = make_buffer(4096, ALL);

	MUST(post_recv(pair.b, &buffer, 0, 64, 1));
	is(ibv_destroy_cq(pair.cq_b), EBUSY, "ibv_destroy_cq(3): a CQ with a QP isn't destroyed: EBUSY");
	is(ibv_destroy_qp(pair.b), 0, "ibv_destroy_qp(3): a QP with receives posted is destroyed");
	check(silent(pair.cq_b), "ibv_destroy_qp(3): a destroyed QP's receives aren't completed");
	MUST(ibv_destroy_qp(pair.a));
	MUST(ibv_destroy_cq(pair.cq_a));
	MUST(ibv_destroy_cq(pair.cq_b));
	free_buffer(&buffer);
}

static void enhanced_connections(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct ibv_ece ece = {0};
	int result = ibv_query_ece(qp, &ece);

	struct ibv_ece offer, other;

	check(result == 0 || result == EOPNOTSUPP, "ibv_query_ece(3): 0, or EOPNOTSUPP from a device without");
	if (result) {
		ece.vendor_id = 0xabcdef;
		is(ibv_set_ece(qp, &ece), result, "ibv_set_ece(3): EOPNOTSUPP too from a device without");
		goto over;
	}
	check(ece.vendor_id && !ece.comp_mask, "ibv_query_ece(3): a vendor is named, and no field that doesn't exist");
	offer = ece;
	other = (struct ibv_ece){.vendor_id = offer.vendor_id ^ 1, .options = offer.options};
	is(ibv_set_ece(qp, &other), EINVAL, "ibv_set_ece(3): another vendor's options are invalid: EINVAL");
	other = (struct ibv_ece){.vendor_id = offer.vendor_id, .comp_mask = 1u << 31};
	is(ibv_set_ece(qp, &other), EINVAL, "ibv_set_ece(3): a comp_mask with an unknown bit: EINVAL");
	is(ibv_set_ece(qp, &ece), 0, "ibv_set_ece(3): what the QP offers is accepted");
	check(!(ece.options & ~offer.options), "ibv_set_ece(3): options come back as they were accepted");
	ece.options = 0;
	is(ibv_set_ece(qp, &ece), 0, "ibv_set_ece(3): no options at all are accepted");
	bring(qp, IBV_QPS_INIT, &PATH, 0);
	MUST(ibv_query_ece(qp, &other));
	is(other.options, 0, "ibv_query_ece(3): what was set is the QP's state");
over:
	MUST(ibv_destroy_qp(qp));
}

static void rate_limit(void)
{
	struct ibv_device_attr_ex ex;
	struct pair pair = make_pair(IBV_QPT_RC);
	struct buffer buffer = make_buffer(400000, ALL);
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 8000};
	uint64_t before;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (!(ex.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC)) {
		check(ibv_modify_qp_rate_limit(pair.a, &limit) > 0, "ibv_modify_qp_rate_limit(3): an error where the device doesn't pace RC");
		goto over;
	}
	if (ex.packet_pacing_caps.qp_rate_limit_min > 8000)
		limit.rate_limit = ex.packet_pacing_caps.qp_rate_limit_min;
	is(ibv_modify_qp_rate_limit(pair.a, &limit), 0, "ibv_modify_qp_rate_limit(3): 0 on success");
	before = now_ms();
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 200000), (uintptr_t)buffer.mem + 200000, buffer.mr->rkey),
		  IBV_WC_SUCCESS, "ibv_modify_qp_rate_limit(3): requests are executed");
	if (limit.rate_limit == 8000)
		check(now_ms() - before >= 50, "ibv_modify_qp_rate_limit(3): 200,000 bytes at 1,000,000 a second take their time");
	if (ex.packet_pacing_caps.qp_rate_limit_max < UINT32_MAX) {
		limit.rate_limit = ex.packet_pacing_caps.qp_rate_limit_max + 1;
		is(ibv_modify_qp_rate_limit(pair.a, &limit), EINVAL, "ibv_modify_qp_rate_limit(3): above qp_rate_limit_max: EINVAL");
	}
	limit.rate_limit = 0;
	is(ibv_modify_qp_rate_limit(pair.a, &limit), 0, "ibv_modify_qp_rate_limit(3): 0 lifts the limit");
over:
	free_pair(&pair);
	free_buffer(&buffer);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	cq = make_cq(64);
	creating();
	refusals();
	without_queues();
	extended();
	querying();
	destroying();
	enhanced_connections();
	rate_limit();
	is(ibv_destroy_cq(cq), 0, "ibv_destroy_cq(3): a CQ is destroyed once its QPs are gone");
	return end();
}
