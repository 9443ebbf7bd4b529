/* Requests made by calls: ibv_wr_start … ibv_wr_complete, on QPs of ibv_create_qp_ex with send_ops_flags. */
#include "caller.h"

enum { SIZE = 16384 };

#define RC_OPS                                                                         \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static struct buffer ours, theirs;

/* Completes the batch of one signaled request, and takes its completion. */
static void completes(struct pair *pair, struct ibv_qp_ex *qp, enum ibv_wc_opcode opcode, const char *call)
{
	struct ibv_wc wc = {0};

	is(ibv_wr_complete(qp), 0, "ibv_wr_complete(3): 0 after %s", call);
	is_status(poll_for(pair->cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_complete(3): %s is executed", call);
	check(wc.wr_id == qp->wr_id && wc.opcode == opcode, "ibv_poll_cq(3): wr_id and opcode of %s", call);
}

static void begin_one(struct ibv_qp_ex *qp, uint64_t id)
{
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

static void one_sided_calls(struct pair *pair, struct ibv_qp_ex *qp)
{
	uint64_t remote = (uintptr_t)theirs.mem, local = (uintptr_t)ours.mem, *word = (uint64_t *)theirs.mem;
	uint32_t rkey = theirs.mr->rkey, lkey = ours.mr->lkey;
	struct ibv_wc wc;

	fill(ours.mem, 5000, 1);
	begin_one(qp, 11);
	ibv_wr_rdma_write(qp, rkey, remote);
	ibv_wr_set_sge(qp, lkey, local, 5000);
	completes(pair, qp, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write");
	check(filled(theirs.mem, 5000, 1), "ibv_wr_rdma_write(3): the bytes are written");

	struct ibv_sge list[3] = {piece(&ours, 0, 100), piece(&ours, 100, 1), piece(&ours, 101, 899)};

	memset(theirs.mem, 0, 5000);
	MUST(post_recv(pair->b, &theirs, 8192, 8, 21));
	begin_one(qp, 12);
	ibv_wr_rdma_write_imm(qp, rkey, remote, htonl(31));
	ibv_wr_set_sge_list(qp, 3, list);
	completes(pair, qp, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write_imm");
	is_status(poll_for(pair->cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_rdma_write_imm(3): the other side gets a completion");
	check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(31),
	      "ibv_wr_rdma_write_imm(3): with the immediate data");
	check(filled(theirs.mem, 1000, 1), "ibv_wr_set_sge_list(3): the buffers are concatenated");

	fill(theirs.mem, 6000, 2);
	begin_one(qp, 13);
	ibv_wr_rdma_read(qp, rkey, remote);
	ibv_wr_set_sge(qp, lkey, local, 6000);
	completes(pair, qp, IBV_WC_RDMA_READ, "ibv_wr_rdma_read");
	check(filled(ours.mem, 6000, 2), "ibv_wr_rdma_read(3): the bytes are read");

	*word = 40;
	begin_one(qp, 14);
	ibv_wr_atomic_fetch_add(qp, rkey, remote, 2);
	ibv_wr_set_sge(qp, lkey, local, 8);
	completes(pair, qp, IBV_WC_FETCH_ADD, "ibv_wr_atomic_fetch_add");
	check(*word == 42 && *(uint64_t *)ours.mem == 40, "ibv_wr_atomic_fetch_add(3): the old value, and the sum");
	begin_one(qp, 15);
	ibv_wr_atomic_cmp_swp(qp, rkey, remote, 42, 7);
	ibv_wr_set_sge(qp, lkey, local, 8);
	completes(pair, qp, IBV_WC_COMP_SWAP, "ibv_wr_atomic_cmp_swp");
	check(*word == 7 && *(uint64_t *)ours.mem == 42, "ibv_wr_atomic_cmp_swp(3): the old value, and the swap");
}

static void messages(struct pair *pair, struct ibv_qp_ex *qp)
{
	struct ibv_wc wc;

	fill(ours.mem, 3000, 3);
	MUST(post_recv(pair->b, &theirs, 0, 4096, 31));
	begin_one(qp, 21);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 3000);
	completes(pair, qp, IBV_WC_SEND, "ibv_wr_send");
	is_status(next(pair->cq_b), IBV_WC_SUCCESS, "ibv_wr_send(3): the message arrives");
	check(filled(theirs.mem, 3000, 3), "ibv_wr_set_sge(3): with the buffer's bytes");

	MUST(post_recv(pair->b, &theirs, 0, 4096, 32));
	begin_one(qp, 22);
	ibv_wr_send_imm(qp, htonl(5));
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 10);
	completes(pair, qp, IBV_WC_SEND, "ibv_wr_send_imm");
	is_status(poll_for(pair->cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_send_imm(3): the message arrives");
	check(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(5), "ibv_wr_send_imm(3): with the immediate data");

}

static void inline_data(struct pair *pair, struct ibv_qp_ex *qp)
{
	unsigned char bytes[48];
	struct ibv_data_buf list[2] = {{bytes, 16}, {bytes + 16, 32}};

	fill(bytes, sizeof bytes, 4);
	MUST(post_recv(pair->b, &theirs, 0, 4096, 33));
	begin_one(qp, 23);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, bytes, sizeof bytes);
	memset(bytes, 0, sizeof bytes);
	completes(pair, qp, IBV_WC_SEND, "ibv_wr_send with inline data");
	next(pair->cq_b);
	check(filled(theirs.mem, 48, 4), "ibv_wr_set_inline_data(3): the data is copied by the setter");

	fill(bytes, sizeof bytes, 5);
	begin_one(qp, 24);
	ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem);
	ibv_wr_set_inline_data_list(qp, 2, list);
	memset(bytes, 0, sizeof bytes);
	completes(pair, qp, IBV_WC_RDMA_WRITE, "ibv_wr_rdma_write with inline data");
	check(filled(theirs.mem, 48, 5), "ibv_wr_set_inline_data_list(3): the buffers are copied and concatenated");
}

static void batches(struct pair *pair, struct ibv_qp_ex *qp)
{
	struct ibv_wc wc;
	bool in_order = true;

	memset(theirs.mem, 0, SIZE);
	fill(ours.mem, 8, 6);
	ibv_wr_start(qp);
	for (uint64_t i = 0; i < 3; i++) {
		qp->wr_id = 50 + i;
		qp->wr_flags = i == 1 ? 0 : IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem + i * 8);
		ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	}
	usleep(10000);
	check(!theirs.mem[0] && ibv_poll_cq(pair->cq_a, 1, &wc) == 0, "ibv_wr_start(3): nothing is executed before ibv_wr_complete");
	is(ibv_wr_complete(qp), 0, "ibv_wr_complete(3): 0 for a batch");
	for (uint64_t i = 0; i < 3; i += 2)
		in_order &= poll_for(pair->cq_a, &wc, PATIENCE_MS) == IBV_WC_SUCCESS && wc.wr_id == 50 + i;
	check(in_order, "ibv_wr_complete(3): a batch is executed in its order, and completes where it is signaled");
	check(filled(theirs.mem, 8, 6) && filled(theirs.mem + 8, 8, 6) && filled(theirs.mem + 16, 8, 6),
	      "ibv_wr_complete(3): all of the batch is executed");

	memset(theirs.mem, 0, SIZE);
	begin_one(qp, 60);
	ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem);
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	ibv_wr_abort(qp);
	check(silent(pair->cq_a) && !theirs.mem[0], "ibv_wr_abort(3): all work since ibv_wr_start is discarded");
	begin_one(qp, 61);
	ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem);
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	is(ibv_wr_complete(qp), 0, "ibv_wr_abort(3): afterwards a batch can be posted");
	is_status(next(pair->cq_a), IBV_WC_SUCCESS, "ibv_wr_abort(3): and is executed");

	struct ibv_sge sge = piece(&ours, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

	wr.wr.rdma.remote_addr = (uintptr_t)theirs.mem;
	wr.wr.rdma.rkey = theirs.mr->rkey;
	is(post(pair->a, &wr), 0, "ibv_wr_post(3): ibv_post_send works on the same QP, between batches");
	is_status(next(pair->cq_a), IBV_WC_SUCCESS, "ibv_wr_post(3): and is executed");

	static unsigned char much[4096];

	memset(theirs.mem, 0, SIZE);
	begin_one(qp, 70);
	ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem);
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, much, sizeof much);
	check(ibv_wr_complete(qp) != 0, "ibv_wr_complete(3): a failure of one request, more inline data than the QP takes, is returned");
	check(silent(pair->cq_a) && !theirs.mem[0], "ibv_wr_complete(3): and the entire posting is aborted");
	ibv_wr_start(qp);
	is(ibv_wr_complete(qp), 0, "ibv_wr_complete(3): an empty batch is nothing to do");

	ibv_wr_start(qp);
	for (int i = 0; i < 10000; i++) {
		ibv_wr_rdma_write(qp, theirs.mr->rkey, (uintptr_t)theirs.mem);
		ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	}
	check(ibv_wr_complete(qp) > 0, "ibv_wr_complete(3): a batch beyond the send queue fails");
	check(silent(pair->cq_a), "ibv_wr_complete(3): and none of it is executed");
}

static void other_types(void)
{
	struct pair pair;
	struct ibv_qp_ex *qp = make_caller(&pair, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND);
	struct ibv_ah_attr attr = ah_attr();
	struct ibv_ah *ah = MAKE(ibv_create_ah(pd, &attr));
	struct ibv_wc wc = {0};

	if (check(qp != NULL, "ibv_create_qp_ex(3): a UC QP with send_ops_flags")) {
		fill(ours.mem, 2000, 8);
		MUST(post_recv(pair.b, &theirs, 0, 4096, 1));
		begin_one(qp, 80);
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 2000);
		completes(&pair, qp, IBV_WC_SEND, "ibv_wr_send on UC");
		is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_wr_send(3): the message arrives over UC");
		check(filled(theirs.mem, 2000, 8), "ibv_wr_send(3): with its bytes over UC");
		free_pair(&pair);
	}
	qp = make_caller(&pair, IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	if (check(qp != NULL, "ibv_create_qp_ex(3): a UD QP with send_ops_flags")) {
		fill(ours.mem, 500, 9);
		MUST(post_recv(pair.b, &theirs, 0, 4096, 1));
		begin_one(qp, 81);
		ibv_wr_send(qp);
		ibv_wr_set_ud_addr(qp, ah, pair.b->qp_num, QKEY);
		ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 500);
		completes(&pair, qp, IBV_WC_SEND, "ibv_wr_send on UD");
		is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_set_ud_addr(3): the datagram arrives where it was sent to");
		check(wc.src_qp == pair.a->qp_num && filled(theirs.mem + 40, 500, 9), "ibv_wr_send(3): with its bytes over UD");
		free_pair(&pair);
	}
	MUST(ibv_destroy_ah(ah));
	qp = make_caller(&pair, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ);
	check(qp == NULL, "ibv_create_qp_ex(3): a request type that the QP type lacks fails");
	if (qp)
		free_pair(&pair);
	struct ibv_device_attr_ex ex;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	qp = make_caller(&pair, IBV_QPT_RC, IBV_QP_EX_WITH_TSO);
	check(qp == NULL, "ibv_wr_send_tso(3): an RC QP can't segment: it fails");
	if (qp)
		free_pair(&pair);
	if (!(ex.tso_caps.supported_qpts >> IBV_QPT_UD & 1)) {
		qp = make_caller(&pair, IBV_QPT_UD, IBV_QP_EX_WITH_TSO);
		check(qp == NULL, "ibv_wr_send_tso(3): a UD QP for it fails where the device doesn't support it");
		if (qp)
			free_pair(&pair);
	}
	qp = make_caller(&pair, IBV_QPT_RC, 1ull << 50);
	check(qp == NULL, "ibv_create_qp_ex(3): a request type that doesn't exist fails");
	if (qp)
		free_pair(&pair);
}

static void windows(void)
{
	struct pair pair;
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_qp_ex *qp;
	struct buffer target;
	struct ibv_mw_bind_info info;
	struct ibv_wc wc = {0};
	uint32_t rkey;

	if (!mw) {
		skip("the device has no windows of type 2", "ibv_wr_bind_mw(3): the window is bound");
		return;
	}
	qp = make_caller(&pair, IBV_QPT_RC,
			 RC_OPS | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV);
	if (!check(qp != NULL, "ibv_create_qp_ex(3): send_ops_flags of windows"))
		return;
	target = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	info = (struct ibv_mw_bind_info){target.mr, (uintptr_t)target.mem, 4096, REMOTE};
	for (int i = 0; i < 2; i++) {
		rkey = ibv_inc_rkey(mw->rkey);
		begin_one(qp, 90 + (uint64_t)i);
		ibv_wr_bind_mw(qp, mw, rkey, &info);
		completes(&pair, qp, IBV_WC_BIND_MW, i ? "another ibv_wr_bind_mw" : "ibv_wr_bind_mw");
		mw->rkey = rkey;
		fill(ours.mem, 64, 20 + (unsigned int)i);
		struct ibv_sge sge = piece(&ours, 0, 64);
		struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

		wr.wr.rdma.remote_addr = (uintptr_t)target.mem;
		wr.wr.rdma.rkey = rkey;
		MUST(post(pair.b, &wr));
		next(pair.cq_b);
		check(filled(target.mem, 64, 20 + (unsigned int)i), "ibv_wr_bind_mw(3): the window is bound, round %d", i);
		if (i == 0) {
			begin_one(qp, 95);
			ibv_wr_local_inv(qp, rkey);
			completes(&pair, qp, IBV_WC_LOCAL_INV, "ibv_wr_local_inv");
			memset(target.mem, 0, 64);

			struct pair other;
			struct ibv_qp_ex *stranger = make_caller(&other, IBV_QPT_RC, RC_OPS);

			begin_one(stranger, 97);
			ibv_wr_rdma_write(stranger, rkey, (uintptr_t)target.mem);
			ibv_wr_set_sge(stranger, ours.mr->lkey, (uintptr_t)ours.mem, 64);
			MUST(ibv_wr_complete(stranger));
			is_status(next(other.cq_a), IBV_WC_REM_ACCESS_ERR, "ibv_wr_local_inv(3): afterwards the R_Key is void: REM_ACCESS_ERR");
			free_pair(&other);
		}
	}
	MUST(ibv_dealloc_mw(mw));
	free_pair(&pair);
	free_buffer(&target);

	/* The other way round: the peer's window is invalidated by what is sent to it. */
	qp = make_caller(&pair, IBV_QPT_RC, RC_OPS | IBV_QP_EX_WITH_SEND_WITH_INV);
	target = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};

	rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = rkey;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){target.mr, (uintptr_t)target.mem, 4096, REMOTE};
	MUST(post(pair.b, &bind));
	next(pair.cq_b);
	mw->rkey = rkey;
	MUST(post_recv(pair.b, &theirs, 0, 64, 1));
	begin_one(qp, 96);
	ibv_wr_send_inv(qp, rkey);
	ibv_wr_set_sge(qp, ours.mr->lkey, (uintptr_t)ours.mem, 8);
	completes(&pair, qp, IBV_WC_SEND, "ibv_wr_send_inv");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_send_inv(3): the message arrives");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&ours, 0, 8), (uintptr_t)target.mem, rkey), IBV_WC_REM_ACCESS_ERR,
		  "ibv_wr_send_inv(3): the R_Key is invalidated before");
	MUST(ibv_dealloc_mw(mw));
	free_pair(&pair);
	free_buffer(&target);
}

int main(int argc, char **argv)
{
	struct pair pair;
	struct ibv_qp_ex *qp;

	begin(argc, argv);
	ours = make_buffer(SIZE, ALL);
	theirs = make_buffer(SIZE, ALL);
	qp = make_caller(&pair, IBV_QPT_RC, RC_OPS);
	if (!qp) {
		skip("the device has no send_ops_flags", "ibv_qp_to_qp_ex(3): the QP as it takes calls");
		return end();
	}
	check(&qp->qp_base == pair.a, "ibv_qp_to_qp_ex(3): the QP as it takes calls");
	one_sided_calls(&pair, qp);
	messages(&pair, qp);
	batches(&pair, qp);
	free_pair(&pair);
	qp = make_caller(&pair, IBV_QPT_RC, RC_OPS);
	inline_data(&pair, qp);
	free_pair(&pair);
	other_types();
	windows();
	free_buffer(&ours);
	free_buffer(&theirs);
	return end();
}
