/* setup: calls that make, change and destroy objects, with arguments that must be refused. */
#include "cases.h"

static const int INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int RTS_MASK = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_MAX_QP_RD_ATOMIC;

static struct ibv_qp_attr right_attr(const struct fixture *f, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state,
				   .port_num = PORT_NUM,
				   .qp_access_flags = ALL_ACCESS,
				   .path_mtu = f->path.mtu,
				   .dest_qp_num = f->b->qp_num,
				   .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 1,
				   .timeout = 14,
				   .retry_cnt = 7,
				   .rnr_retry = 7,
				   .max_rd_atomic = 1};

	fill_ah(&attr.ah_attr, &f->device, &f->device.gid);
	return attr;
}

/* Every bit of `mask` but the state is required: without it the call is refused and the QP stays as it is. */
static void expect_all_required(const struct fixture *f, enum ibv_qp_state to, int mask)
{
	enum ibv_qp_state before = qp_state(f->a);

	for (int bit = 1; bit && bit <= mask; bit <<= 1) {
		struct ibv_qp_attr attr = right_attr(f, to);

		if (!(mask & bit) || bit == IBV_QP_STATE)
			continue;
		if (ibv_modify_qp(f->a, &attr, mask & ~bit) != EINVAL)
			fail("to state %d without attribute %#x: not refused with EINVAL", to, bit);
		EXPECT(qp_state(f->a) == before);
	}
	struct ibv_qp_attr attr = right_attr(f, to);

	MUST(ibv_modify_qp(f->a, &attr, mask));
	EXPECT(qp_state(f->a) == to);
}

static void rc_transitions_need_every_required_attribute(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	expect_all_required(&f, IBV_QPS_INIT, INIT_MASK);
	expect_all_required(&f, IBV_QPS_RTR, RTR_MASK);
	expect_all_required(&f, IBV_QPS_RTS, RTS_MASK);
}

static void uc_transitions_need_every_required_attribute(void)
{
	struct fixture f = unconnected(IBV_QPT_UC);

	expect_all_required(&f, IBV_QPS_INIT, INIT_MASK);
	expect_all_required(&f, IBV_QPS_RTR,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	expect_all_required(&f, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void ud_transitions_need_every_required_attribute(void)
{
	struct fixture f = unconnected(IBV_QPT_UD);

	expect_all_required(&f, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	expect_all_required(&f, IBV_QPS_RTR, IBV_QP_STATE);
	expect_all_required(&f, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

static void attributes_that_a_transition_does_not_take_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_attr attr = right_attr(&f, IBV_QPS_INIT);

	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, INIT_MASK | IBV_QP_AV));
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, INIT_MASK | IBV_QP_SQ_PSN));
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, INIT_MASK | IBV_QP_TIMEOUT));
	MUST(to_init(f.a, ALL_ACCESS));
	attr = right_attr(&f, IBV_QPS_RTR);
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTR_MASK | IBV_QP_RETRY_CNT));
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTR_MASK | IBV_QP_PORT));
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTR_MASK | IBV_QP_QKEY));
	EXPECT(qp_state(f.a) == IBV_QPS_INIT);
}

static void transitions_that_do_not_exist_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_attr attr = right_attr(&f, IBV_QPS_RTR);

	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTR_MASK));
	attr.qp_state = IBV_QPS_RTS;
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTS_MASK));
	attr.qp_state = IBV_QPS_SQD;
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, IBV_QP_STATE));
	MUST(to_init(f.a, ALL_ACCESS));
	attr.qp_state = IBV_QPS_RTS;
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, RTS_MASK));
	attr.qp_state = IBV_QPS_SQE;
	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, IBV_QP_STATE));
	EXPECT(qp_state(f.a) == IBV_QPS_INIT);
}

static void every_state_goes_to_error_and_reset_and_can_be_used_again(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR}, reset = {.qp_state = IBV_QPS_RESET};

	for (int depth = 0; depth <= 3; depth++) {
		struct address self = {.qpn = f.a->qp_num, .gid = f.device.gid};

		if (depth > 0)
			MUST(to_init(f.a, ALL_ACCESS));
		if (depth > 1)
			MUST(to_rtr(f.a, &f.device, &f.path, &self));
		if (depth > 2)
			MUST(to_rts(f.a, &f.path, 0));
		if (depth > 0) {
			MUST(ibv_modify_qp(f.a, &error, IBV_QP_STATE));
			EXPECT(qp_state(f.a) == IBV_QPS_ERR);
		}
		MUST(ibv_modify_qp(f.a, &reset, IBV_QP_STATE));
		EXPECT(qp_state(f.a) == IBV_QPS_RESET);
	}
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, f.b);
	MUST(post_recv(f.b, f.mr, 0, 64, 1));
	MUST(post_send(f.a, f.mr, 0, 64, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_SUCCESS);
}

static void current_state_that_is_not_current_is_refused(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD};

	EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	attr.cur_qp_state = IBV_QPS_RTS;
	MUST(ibv_modify_qp(f.a, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
}

#define REFUSED(field, value, mask, state)                                             \
	do {                                                                           \
		struct ibv_qp_attr attr = right_attr(&f, state);                       \
		attr.field = value;                                                    \
		EXPECT_ERRNO(EINVAL, ibv_modify_qp(f.a, &attr, mask));                 \
	} while (0)

static void attribute_values_out_of_range_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	REFUSED(port_num, 0, INIT_MASK, IBV_QPS_INIT);
	REFUSED(port_num, 2, INIT_MASK, IBV_QPS_INIT);
	REFUSED(pkey_index, f.device.port.pkey_tbl_len, INIT_MASK, IBV_QPS_INIT);
	MUST(to_init(f.a, ALL_ACCESS));
	REFUSED(path_mtu, (enum ibv_mtu)0, RTR_MASK, IBV_QPS_RTR);
	REFUSED(path_mtu, (enum ibv_mtu)6, RTR_MASK, IBV_QPS_RTR);
	REFUSED(min_rnr_timer, 32, RTR_MASK, IBV_QPS_RTR);
	REFUSED(ah_attr.port_num, 2, RTR_MASK, IBV_QPS_RTR);
	REFUSED(ah_attr.is_global, 0, RTR_MASK, IBV_QPS_RTR);
	REFUSED(ah_attr.grh.sgid_index, (uint8_t)f.device.port.gid_tbl_len, RTR_MASK, IBV_QPS_RTR);
	if (f.device.attr.max_qp_rd_atom < 255)
		REFUSED(max_dest_rd_atomic, (uint8_t)(f.device.attr.max_qp_rd_atom + 1), RTR_MASK, IBV_QPS_RTR);
	struct ibv_qp_attr attr = right_attr(&f, IBV_QPS_RTR);

	MUST(ibv_modify_qp(f.a, &attr, RTR_MASK));
	REFUSED(timeout, 32, RTS_MASK, IBV_QPS_RTS);
	REFUSED(retry_cnt, 8, RTS_MASK, IBV_QPS_RTS);
	REFUSED(rnr_retry, 8, RTS_MASK, IBV_QPS_RTS);
	if (f.device.attr.max_qp_init_rd_atom < 255)
		REFUSED(max_rd_atomic, (uint8_t)(f.device.attr.max_qp_init_rd_atom + 1), RTS_MASK, IBV_QPS_RTS);
	EXPECT(qp_state(f.a) == IBV_QPS_RTR);
}

/* Only where packets go through an interface, of MTU 1500: elsewhere a larger path MTU does no harm. */
static void path_mtu_above_the_active_mtu_is_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	EXPECT(f.device.port.active_mtu == IBV_MTU_1024);
	MUST(to_init(f.a, ALL_ACCESS));
	REFUSED(path_mtu, IBV_MTU_2048, RTR_MASK, IBV_QPS_RTR);
}

static void query_qp_tells_what_was_set(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(ibv_query_qp(f.a, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_CAP, &init));
	EXPECT(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS);
	EXPECT(attr.path_mtu == f.path.mtu && attr.timeout == f.path.timeout);
	EXPECT(attr.retry_cnt == f.path.retry_count && attr.rnr_retry == f.path.rnr_retry);
	EXPECT(attr.dest_qp_num == f.b->qp_num && attr.port_num == PORT_NUM);
	EXPECT(attr.max_rd_atomic == f.path.rd_atomic && attr.max_dest_rd_atomic == f.path.rd_atomic);
	EXPECT(attr.qp_access_flags == ALL_ACCESS && attr.min_rnr_timer == f.path.min_rnr_timer);
	EXPECT(!memcmp(&attr.ah_attr.grh.dgid, &f.device.gid, sizeof f.device.gid));
	EXPECT(init.qp_type == IBV_QPT_RC && init.send_cq == f.cq_a && init.recv_cq == f.cq_a);
	EXPECT(init.cap.max_send_wr >= DEPTH && init.cap.max_recv_sge >= 2);
}

static void capacities_beyond_the_device_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_init_attr right = {.send_cq = f.cq_a, .recv_cq = f.cq_a, .qp_type = IBV_QPT_RC,
					 .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
						 .max_recv_sge = 1}};
	struct ibv_qp_init_attr init = right;
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = (uint32_t)f.device.attr.max_srq_wr + 1, .max_sge = 1}};

	init.cap.max_send_wr = (uint32_t)f.device.attr.max_qp_wr + 1;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.cap.max_recv_wr = (uint32_t)f.device.attr.max_qp_wr + 1;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.cap.max_send_sge = (uint32_t)f.device.attr.max_sge + 1;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.cap.max_recv_sge = (uint32_t)f.device.attr.max_sge + 1;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.cap.max_inline_data = 1 << 30;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.send_cq = NULL;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
	init = right;
	init.qp_type = (enum ibv_qp_type)77;
	EXPECT(ibv_create_qp(f.device.pd, &init) == NULL && (errno == EINVAL || errno == EOPNOTSUPP));
	EXPECT_NULL(EINVAL, ibv_create_cq(f.device.context, 0, NULL, NULL, 0));
	EXPECT_NULL(EINVAL, ibv_create_cq(f.device.context, -1, NULL, NULL, 0));
	EXPECT_NULL(EINVAL, ibv_create_cq(f.device.context, f.device.attr.max_cqe + 1, NULL, NULL, 0));
	EXPECT_NULL(EINVAL, ibv_create_cq(f.device.context, 1, NULL, NULL, f.device.context->num_comp_vectors));
	EXPECT_NULL(EINVAL, ibv_create_srq(f.device.pd, &srq));
	srq.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = (uint32_t)f.device.attr.max_srq_sge + 1};
	EXPECT_NULL(EINVAL, ibv_create_srq(f.device.pd, &srq));
	/* A UC queue pair has no shared receive queue. */
	srq.attr = (struct ibv_srq_attr){.max_wr = 1, .max_sge = 1};
	init = right;
	init.srq = MAKE(ibv_create_srq(f.device.pd, &srq));
	init.qp_type = IBV_QPT_UC;
	EXPECT_NULL(EINVAL, ibv_create_qp(f.device.pd, &init));
}

/* ibv_create_qp(3): with an SRQ the sizes of the receive queue are ignored; an XRC initiator has no receive queue either. */
static void receive_capacities_without_a_receive_queue_are_ignored(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 1, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &srq_init));
	struct ibv_qp_cap absurd = {.max_send_wr = 1, .max_recv_wr = UINT32_MAX, .max_send_sge = 1, .max_recv_sge = UINT32_MAX};
	enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_SEND};

	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		struct ibv_qp_init_attr told;
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr_ex init = {.send_cq = f.cq_a, .recv_cq = f.cq_a, .qp_type = types[i], .cap = absurd,
						   .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = f.device.pd};
		struct ibv_qp *qp;

		if (types[i] == IBV_QPT_XRC_SEND)
			init.recv_cq = NULL;
		else
			init.srq = srq;
		qp = MAKE(ibv_create_qp_ex(f.device.context, &init));
		EXPECT(init.cap.max_send_wr >= 1 && init.cap.max_recv_wr == 0 && init.cap.max_recv_sge == 0);
		MUST(ibv_query_qp(qp, &attr, IBV_QP_CAP, &told));
		EXPECT(attr.cap.max_recv_wr == 0 && told.cap.max_recv_wr == 0 && told.cap.max_recv_sge == 0);
		MUST(ibv_destroy_qp(qp));
	}
	MUST(ibv_destroy_srq(srq));
}

static void registering_what_is_not_there_or_not_permitted_is_refused(void)
{
	struct device device = open_device(1);
	char *hole = map_apart(3 * 4096);

	MUST(munmap(hole + 4096, 4096));
	EXPECT_NULL(EFAULT, ibv_reg_mr(device.pd, hole + 4096, 4096, IBV_ACCESS_LOCAL_WRITE));
	EXPECT_NULL(EFAULT, ibv_reg_mr(device.pd, hole, 3 * 4096, IBV_ACCESS_LOCAL_WRITE));
	MUST(mprotect(hole, 4096, PROT_READ));
	EXPECT_NULL(EFAULT, ibv_reg_mr(device.pd, hole, 4096, IBV_ACCESS_LOCAL_WRITE));
	MUST(ibv_dereg_mr(MAKE(ibv_reg_mr(device.pd, hole, 4096, 0))));
	/* ibv_reg_mr(3): remote write and remote atomic need local write. */
	EXPECT_NULL(EINVAL, ibv_reg_mr(device.pd, hole + 8192, 4096, IBV_ACCESS_REMOTE_WRITE));
	EXPECT_NULL(EINVAL, ibv_reg_mr(device.pd, hole + 8192, 4096, IBV_ACCESS_REMOTE_ATOMIC));
}

static void objects_in_use_are_not_destroyed(void)
{
	struct device device = open_device(1);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(device.context));
	struct ibv_cq *cq = make_cq(&device, 4, channel);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &srq_init));
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, srq, 4);
	char memory[64];
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, 0));

	EXPECT_ERRNO(EBUSY, ibv_destroy_cq(cq));
	EXPECT_ERRNO(EBUSY, ibv_destroy_srq(srq));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(device.pd));
	EXPECT_ERRNO(EBUSY, ibv_destroy_comp_channel(channel));
	MUST(ibv_destroy_qp(qp));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(device.pd));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
}

static void queries_of_what_does_not_exist_are_refused(void)
{
	struct device device = open_device(1);
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;

	EXPECT(ibv_query_port(device.context, 0, &port) != 0);
	EXPECT(ibv_query_port(device.context, 2, &port) != 0);
	EXPECT(ibv_query_gid(device.context, PORT_NUM, device.port.gid_tbl_len, &gid) != 0);
	EXPECT(ibv_query_gid(device.context, PORT_NUM, -1, &gid) != 0);
	EXPECT(ibv_query_gid(device.context, 2, 0, &gid) != 0);
	EXPECT(ibv_query_pkey(device.context, PORT_NUM, device.port.pkey_tbl_len, &pkey) != 0);
	MUST(ibv_query_pkey(device.context, PORT_NUM, 0, &pkey));
	EXPECT(pkey == 0xffff);
}

static void address_handles_that_lead_nowhere_are_refused(void)
{
	struct device device = open_device(1);
	struct ibv_ah_attr attr;

	fill_ah(&attr, &device, &device.gid);
	MUST(ibv_destroy_ah(MAKE(ibv_create_ah(device.pd, &attr))));
	attr.is_global = 0;
	EXPECT_NULL(EINVAL, ibv_create_ah(device.pd, &attr));
	fill_ah(&attr, &device, &device.gid);
	attr.port_num = 2;
	EXPECT_NULL(EINVAL, ibv_create_ah(device.pd, &attr));
	fill_ah(&attr, &device, &device.gid);
	attr.grh.sgid_index = (uint8_t)device.port.gid_tbl_len;
	EXPECT_NULL(EINVAL, ibv_create_ah(device.pd, &attr));
}

static const struct test_case cases[] = {
	CASE(rc_transitions_need_every_required_attribute),
	CASE(uc_transitions_need_every_required_attribute),
	CASE(ud_transitions_need_every_required_attribute),
	CASE(attributes_that_a_transition_does_not_take_are_refused),
	CASE(transitions_that_do_not_exist_are_refused),
	CASE(every_state_goes_to_error_and_reset_and_can_be_used_again),
	CASE(current_state_that_is_not_current_is_refused),
	CASE(attribute_values_out_of_range_are_refused),
	CASE(query_qp_tells_what_was_set),
	CASE(capacities_beyond_the_device_are_refused),
	CASE(receive_capacities_without_a_receive_queue_are_ignored),
	CASE(registering_what_is_not_there_or_not_permitted_is_refused),
	CASE(objects_in_use_are_not_destroyed),
	CASE(queries_of_what_does_not_exist_are_refused),
	CASE(address_handles_that_lead_nowhere_are_refused),
	CASE(path_mtu_above_the_active_mtu_is_refused),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
