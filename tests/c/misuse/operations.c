/* READs and atomics that can't be, datagrams that don't arrive, windows that can't be bound, and completions without room. */
#include "misuse.h"

static void no_read_depth(struct config *config, bool wrong)
{
	config->max_rd_atomic = wrong ? 0 : 1;
}

static void no_responder_depth(struct config *config, bool wrong)
{
	config->max_dest_rd_atomic = wrong ? 0 : 4;
}

static void read_some(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong;
	post(side->qp, IBV_WR_RDMA_READ, element(side->mr, 64), offer->address, offer->rkey);
}

static void add_at_odd_address(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_ATOMIC_FETCH_AND_ADD, element(side->mr, 8), offer->address + wrong, offer->rkey);
}

static void add_into_four_bytes(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_ATOMIC_FETCH_AND_ADD, element(side->mr, wrong ? 4 : 8), offer->address, offer->rkey);
}

static void use_datagrams(struct config *config, bool wrong)
{
	(void)wrong;
	config->type = IBV_QPT_UD;
}

static void receive_without_grh(struct side *side, struct offer *offer, bool wrong)
{
	(void)offer;
	MUST(post_recv(side->qp, side->mr, 0, wrong ? 64 : 104, 7));
}

static void receive_with_grh(struct side *side, struct offer *offer, bool wrong)
{
	(void)wrong;
	receive_without_grh(side, offer, false);
}

static void send_datagrams(struct side *side, const struct offer *offer, uint32_t qkey)
{
	struct ibv_ah_attr attr;
	struct ibv_sge sge = element(side->mr, 64);
	struct ibv_send_wr wr = {.wr_id = 42, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	fill_ah(&attr, side->device, &offer->qp.gid);
	wr.wr.ud.ah = MAKE(ibv_create_ah(side->device->pd, &attr));
	wr.wr.ud.remote_qpn = offer->qp.qpn;
	wr.wr.ud.remote_qkey = qkey;
	MUST(ibv_post_send(side->qp, &wr, &bad));
	wr.send_flags = IBV_SEND_SIGNALED;
	MUST(ibv_post_send(side->qp, &wr, &bad));
}

static void send_two_datagrams(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong;
	send_datagrams(side, offer, QKEY);
}

static void send_with_other_qkey(struct side *side, const struct offer *offer, bool wrong)
{
	send_datagrams(side, offer, QKEY + wrong);
}

static void bind_a_window(struct side *side, const struct offer *offer, bool wrong)
{
	int access = IBV_ACCESS_LOCAL_WRITE | (wrong ? 0 : IBV_ACCESS_MW_BIND);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device->pd, side->mr->addr, BYTES, access));
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(side->device->pd, IBV_MW_TYPE_2));
	struct ibv_send_wr wr = {.wr_id = 42, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

	(void)offer;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)mr->addr, BYTES, IBV_ACCESS_REMOTE_READ};
	MUST(ibv_post_send(side->qp, &wr, &bad));
}

/* Two WRITEs of another queue pair complete into a queue that isn't polled. */
static void fill_a_queue(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *small = make_cq(side->device, wrong ? 1 : 2, NULL);
	struct ibv_cq *cq = make_cq(side->device, 2, NULL);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_RC, small, NULL, 16);
	struct ibv_qp *to = make_qp(side->device, IBV_QPT_RC, cq, NULL, 16);
	struct path path = default_path(side->device);
	uint64_t begun = now_ms();

	MUST(to_init(from, 0));
	MUST(to_init(to, ALL_ACCESS));
	connect_qps(side->device, &path, from, to);
	for (int i = 0; i < 2; i++)
		post(from, IBV_WR_RDMA_WRITE, element(side->mr, 8), (uintptr_t)side->mr->addr + 1024, side->mr->rkey);
	while (wrong && qp_state(from) != IBV_QPS_ERR)
		if (now_ms() - begun > 10000)
			fail("the queue pair goes on");
	for (int i = 0; i < 2 && !wrong; i++) {
		struct ibv_wc wc;

		MUST_COMPLETE(small, &wc);
	}
	request_write(side, offer, wrong);
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		MISUSE(max_rd_atomic, IBV_WC_LOC_QP_OP_ERR, .configure = no_read_depth, .request = read_some),
		MISUSE(max_dest_rd_atomic, IBV_WC_REM_INV_REQ_ERR, .configure = no_responder_depth, .request = read_some),
		MISUSE(misaligned, IBV_WC_REM_INV_REQ_ERR, .request = add_at_odd_address),
		MISUSE(short_result, IBV_WC_LOC_LEN_ERR, .request = add_into_four_bytes),
		MISUSE(no_room_for_grh, IBV_WC_SUCCESS, .configure = use_datagrams, .prepare = receive_without_grh,
		       .request = send_two_datagrams),
		MISUSE(other_qkey, IBV_WC_SUCCESS, .configure = use_datagrams, .prepare = receive_with_grh,
		       .request = send_with_other_qkey),
		MISUSE(window_on_a_region_without_right, IBV_WC_MW_BIND_ERR, .request = bind_a_window),
		WORKS(overrun, .request = fill_a_queue),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
