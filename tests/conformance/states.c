/* What else ibv_modify_qp documents: QPs of frames and of XRC, attributes of what a device may lack, rate limits; and what
 * requests do that are posted where they don't belong. */
#include "conform.h"

static struct ibv_cq *cq;

/* A device without automatic path migration takes no alternate path and no migration. */
static void alternate_paths(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_qp_attr attr = all_attributes(&path, 1), told;
	struct ibv_qp_init_attr init;

	if (caps.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG) {
		skip("the device has alternate paths", "ibv_modify_qp(3): an alternate path where the device has none is refused");
	} else {
		bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
		attr.alt_ah_attr = ah_attr();
		attr.alt_port_num = PORT_NUM;
		check(ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH) > 0, "ibv_modify_qp(3): an alternate path where the device has none is refused");
		attr.path_mig_state = IBV_MIG_REARM;
		check(ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE) > 0, "ibv_modify_qp(3): migration where the device has none is refused");
		MUST(ibv_query_qp(qp, &told, IBV_QP_PATH_MIG_STATE, &init));
		is(told.path_mig_state, IBV_MIG_MIGRATED, "ibv_query_qp(3): path_mig_state is MIGRATED on a device without");
		is(qp_state(qp), IBV_QPS_RTS, "ibv_modify_qp(3): and the QP goes on");
	}
	MUST(ibv_destroy_qp(qp));
}

static void address_vectors(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_qp_attr attr = all_attributes(&path, 1);

	bring(qp, IBV_QPS_INIT, &path, 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.ah_attr.is_global = 0;
	is(ibv_modify_qp(qp, &attr, required(IBV_QPT_RC, IBV_QPS_RTR)), EINVAL, "ibv_modify_qp(3): an address without a GRH, on a port that requires one: EINVAL");
	attr = all_attributes(&path, 1u << 24);
	attr.qp_state = IBV_QPS_RTR;
	is(ibv_modify_qp(qp, &attr, required(IBV_QPT_RC, IBV_QPS_RTR)), EINVAL, "ibv_modify_qp(3): a destination of more than 24 bits: EINVAL");
	is(qp_state(qp), IBV_QPS_INIT, "ibv_modify_qp(3): after a refused address the QP is in INIT");
	MUST(ibv_destroy_qp(qp));
}

static void resizing(void)
{
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_qp_attr attr = {.cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1}};

	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	if (caps.device_cap_flags & IBV_DEVICE_RESIZE_MAX_WR)
		skip("the device resizes QPs", "ibv_modify_qp(3): CAP where the device can't resize is refused");
	else
		check(ibv_modify_qp(qp, &attr, IBV_QP_CAP) > 0, "ibv_modify_qp(3): CAP where the device can't resize is refused");
	MUST(ibv_destroy_qp(qp));
}

static void rate_limits(void)
{
	struct ibv_device_attr_ex ex;
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000000};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .rate_limit = 1000000};

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (!(ex.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC)) {
		skip("the device paces nothing", "ibv_modify_qp_rate_limit(3): in RESET: EINVAL");
	} else {
		check(ex.packet_pacing_caps.qp_rate_limit_min <= ex.packet_pacing_caps.qp_rate_limit_max,
		      "ibv_query_device_ex(3): the least rate is at most the largest");
		is(ibv_modify_qp_rate_limit(qp, &limit), EINVAL, "ibv_modify_qp_rate_limit(3): in RESET: EINVAL");
		bring(qp, IBV_QPS_RTR, &path, qp->qp_num);
		attr = all_attributes(&path, 0);
		attr.qp_state = IBV_QPS_RTS;
		attr.rate_limit = 1000000;
		is(ibv_modify_qp(qp, &attr, required(IBV_QPT_RC, IBV_QPS_RTS) | IBV_QP_RATE_LIMIT), 0, "ibv_modify_qp(3): RATE_LIMIT from RTR to RTS");
		is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT), 0, "ibv_modify_qp(3): RATE_LIMIT in RTS");
		limit.max_burst_sz = 10000;
		limit.typical_pkt_sz = 1024;
		is(ibv_modify_qp_rate_limit(qp, &limit), 0, "ibv_modify_qp_rate_limit(3): a burst and a typical packet are taken");
	}
	MUST(ibv_destroy_qp(qp));
}

/* A type whose transitions need little: the least that each needs, and more than it takes. */
static void frames(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RAW_PACKET, cq);
	struct ibv_qp *qp;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT_NUM, .qkey = QKEY};

	init.cap.max_inline_data = 0;
	qp = ibv_create_qp(pd, &init);
	if (!qp) {
		skip(strerror(errno), "ibv_modify_qp(3): RAW_PACKET: RESET to INIT without the port: EINVAL");
		return;
	}
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL, "ibv_modify_qp(3): RAW_PACKET: RESET to INIT without the port: EINVAL");
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY), EINVAL, "ibv_modify_qp(3): RAW_PACKET: a Q_Key isn't taken: EINVAL");
	is(move_to(qp, IBV_QPS_RTR), EINVAL, "ibv_modify_qp(3): RAW_PACKET: there is no transition from RESET to RTR: EINVAL");
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), 0, "ibv_modify_qp(3): RAW_PACKET: RESET to INIT with the port");
	is(move_to(qp, IBV_QPS_RTR), 0, "ibv_modify_qp(3): RAW_PACKET: INIT to RTR with the state alone");
	is(move_to(qp, IBV_QPS_RTS), 0, "ibv_modify_qp(3): RAW_PACKET: RTR to RTS with the state alone");
	is(move_to(qp, IBV_QPS_ERR), 0, "ibv_modify_qp(3): RAW_PACKET: RTS to ERR");
	is(move_to(qp, IBV_QPS_RESET), 0, "ibv_modify_qp(3): RAW_PACKET: ERR to RESET");
	MUST(ibv_destroy_qp(qp));
}

/* Both ends of an XRC connection, by the specification's tables. */
static void extended_connections(void)
{
	struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &domain);
	struct ibv_qp_init_attr_ex sends = {.send_cq = cq,
					    .cap = {.max_send_wr = 4, .max_send_sge = 1},
					    .qp_type = IBV_QPT_XRC_SEND,
					    .comp_mask = IBV_QP_INIT_ATTR_PD,
					    .pd = pd},
				   receives = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
	struct path path = PATH;
	struct ibv_qp_attr attr = all_attributes(&path, 1);
	struct ibv_qp *qp[2];

	if (!xrcd) {
		skip("the device has no XRC", "ibv_modify_qp(3): XRC_SEND: RESET, INIT, RTR, RTS");
		return;
	}
	qp[0] = MAKE(ibv_create_qp_ex(ctx, &sends));
	qp[1] = MAKE(ibv_create_qp_ex(ctx, &receives));
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "XRC_RECV" : "XRC_SEND";
		int result = 0;

		attr.qp_state = IBV_QPS_INIT;
		is(ibv_modify_qp(qp[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL, "ibv_modify_qp(3): %s: RESET to INIT without ACCESS_FLAGS: EINVAL", name);
		for (; !result && attr.qp_state <= IBV_QPS_RTS; attr.qp_state++) {
			int mask = required(qp[i]->qp_type, attr.qp_state);

			if (attr.qp_state == IBV_QPS_RTR)
				is(ibv_modify_qp(qp[i], &attr, mask & ~IBV_QP_RQ_PSN), EINVAL, "ibv_modify_qp(3): %s: INIT to RTR without RQ_PSN: EINVAL", name);
			result = ibv_modify_qp(qp[i], &attr, mask);
		}
		is(result, 0, "ibv_modify_qp(3): %s: RESET, INIT, RTR, RTS", name);
		MUST(ibv_destroy_qp(qp[i]));
	}
	MUST(ibv_close_xrcd(xrcd));
}

/* A full CQ ends a QP that has another completion. */
static void fatal(void)
{
	struct ibv_cq *small = make_cq(1), *other = make_cq(16);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, other);
	struct buffer buffer = make_buffer(4096, ALL);
	struct path path = PATH;
	struct ibv_qp *qp;
	struct ibv_async_event event;
	bool told = false;
	uint64_t deadline = now_ms() + PATIENCE_MS;

	init.send_cq = small;
	init.cap.max_send_wr = 64;
	qp = MAKE(ibv_create_qp(pd, &init));
	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	for (int i = 0; i < small->cqe + 8 && i < 60; i++) {
		struct ibv_sge sge = piece(&buffer, 0, 8);
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

		wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 64;
		wr.wr.rdma.rkey = buffer.mr->rkey;
		if (post(qp, &wr))
			break;
	}
	if (small->cqe >= 60) {
		skip("the least CQ is a large one", "ibv_get_async_event(3): QP_FATAL for a QP whose completion finds no room");
	} else {
		while (!told && now_ms() < deadline && readable(ctx->async_fd, 500) && !ibv_get_async_event(ctx, &event)) {
			told = event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
			ibv_ack_async_event(&event);
		}
		check(told, "ibv_get_async_event(3): QP_FATAL for a QP whose completion finds no room");
		is(qp_state(qp), IBV_QPS_ERR, "ibv_get_async_event(3): after QP_FATAL the QP is in ERR");
	}
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(small));
	MUST(ibv_destroy_cq(other));
	free_buffer(&buffer);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	no_block(ctx->async_fd);
	cq = make_cq(64);
	alternate_paths();
	address_vectors();
	resizing();
	rate_limits();
	frames();
	extended_connections();
	fatal();
	MUST(ibv_destroy_cq(cq));
	return end();
}
