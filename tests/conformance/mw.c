/* Memory windows: ibv_alloc_mw, ibv_bind_mw, BIND_MW and LOCAL_INV by ibv_post_send, ibv_dealloc_mw. */
#include "conform.h"

enum { SIZE = 8192 };

static struct buffer local, region;

static bool supported(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	if (mw)
		MUST(ibv_dealloc_mw(mw));
	return mw;
}

/* A request to a window by pair.a; a failure ends the pair, so another takes its place. */
static int reach(enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t length)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	int status = one_sided(&pair, opcode, piece(&local, 0, length), address, rkey);

	free_pair(&pair);
	return status;
}

static struct ibv_mw_bind window(struct buffer *buffer, size_t offset, size_t length, unsigned int access)
{
	return (struct ibv_mw_bind){
		.wr_id = 5,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = {buffer->mr, (uintptr_t)buffer->mem + offset, length, access},
	};
}

static void allocating(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);

	check(mw->pd == pd && mw->context == ctx && mw->type == IBV_MW_TYPE_1, "ibv_alloc_mw(3): the window is of its PD and type");
	is_status(reach(IBV_WR_RDMA_WRITE, (uintptr_t)region.mem, mw->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_alloc_mw(3): a window that isn't bound gives no access: REM_ACCESS_ERR");
	is(ibv_dealloc_mw(mw), 0, "ibv_dealloc_mw(3): 0 on success");
	check(ibv_alloc_mw(pd, 77) == NULL, "ibv_alloc_mw(3): a type that doesn't exist fails");
}

/* Whether a bind fails, at once or by its completion; the window's R_Key is put back then, as the man page wants. */
static bool bind_fails(struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	uint32_t rkey = mw->rkey;
	bool failed = ibv_bind_mw(pair.b, mw, bind) != 0 || next(pair.cq_b) > IBV_WC_SUCCESS;

	if (failed)
		mw->rkey = rkey;
	free_pair(&pair);
	return failed;
}

static void type_1(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind bind = window(&region, 1024, 2048, IBV_ACCESS_REMOTE_WRITE);
	struct ibv_wc wc = {0};
	uint64_t base = (uintptr_t)region.mem;
	uint32_t old = mw->rkey;

	if (!is(ibv_bind_mw(pair.b, mw, &bind), 0, "ibv_bind_mw(3): 0 on success"))
		goto over;
	check(mw->rkey != old, "ibv_bind_mw(3): the window's R_Key is a new one");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_bind_mw(3): the bind completes");
	check(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 5, "ibv_bind_mw(3): with its opcode and wr_id");
	fill(local.mem, 256, 3);
	is_status(reach(IBV_WR_RDMA_WRITE, base + 1024, mw->rkey, 256), IBV_WC_SUCCESS, "ibv_bind_mw(3): the window can be written");
	check(filled(region.mem + 1024, 256, 3), "ibv_bind_mw(3): and what was written is there");
	is_status(reach(IBV_WR_RDMA_READ, base + 1024, mw->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_bind_mw(3): access that the window doesn't give: REM_ACCESS_ERR");
	is_status(reach(IBV_WR_RDMA_WRITE, base + 1000, mw->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_bind_mw(3): before the window: REM_ACCESS_ERR");
	is_status(reach(IBV_WR_RDMA_WRITE, base + 1024 + 2040, mw->rkey, 16), IBV_WC_REM_ACCESS_ERR,
		  "ibv_bind_mw(3): beyond the window: REM_ACCESS_ERR");
	check(ibv_dereg_mr(region.mr) != 0, "ibv_dereg_mr(3): an MR with a window bound to it isn't deregistered");

	old = mw->rkey;
	bind = window(&region, 0, 512, IBV_ACCESS_REMOTE_READ);
	MUST(ibv_bind_mw(pair.b, mw, &bind));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_bind_mw(3): a window can be bound again");
	is_status(reach(IBV_WR_RDMA_WRITE, base + 1024, old, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_bind_mw(3): then the old R_Key is void: REM_ACCESS_ERR");
	is_status(reach(IBV_WR_RDMA_READ, base, mw->rkey, 8), IBV_WC_SUCCESS, "ibv_bind_mw(3): and the new one gives the new access");
	old = mw->rkey;
	bind = window(&region, 0, 0, 0);
	is(ibv_bind_mw(pair.b, mw, &bind), 0, "ibv_bind_mw(3): a bind of length 0 is posted");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_bind_mw(3): a bind of length 0 completes");
	is_status(reach(IBV_WR_RDMA_READ, base, old, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_bind_mw(3): a bind of length 0 invalidates the window: REM_ACCESS_ERR");

	struct buffer plain = make_buffer(4096, ALL), constant = make_buffer(4096, IBV_ACCESS_MW_BIND);

	bind = window(&plain, 0, 512, IBV_ACCESS_REMOTE_READ);
	check(bind_fails(mw, &bind), "ibv_bind_mw(3): to an MR without MW_BIND it fails");
	bind = window(&constant, 0, 512, IBV_ACCESS_REMOTE_WRITE);
	check(bind_fails(mw, &bind), "ibv_bind_mw(3): REMOTE_WRITE to an MR without LOCAL_WRITE fails");
	bind = window(&region, SIZE - 100, 512, IBV_ACCESS_REMOTE_READ);
	check(bind_fails(mw, &bind), "ibv_bind_mw(3): beyond the MR it fails");
	free_buffer(&plain);
	free_buffer(&constant);

	struct pair datagrams = make_pair(IBV_QPT_UD);

	bind = window(&region, 0, 512, IBV_ACCESS_REMOTE_READ);
	check(ibv_bind_mw(datagrams.a, mw, &bind) != 0, "ibv_bind_mw(3): a QP other than UC, RC and XRC_SEND fails");
	free_pair(&datagrams);

	bind = window(&region, 0, 512, IBV_ACCESS_REMOTE_READ);
	MUST(ibv_bind_mw(pair.b, mw, &bind));
	next(pair.cq_b);
	old = mw->rkey;
over:
	is(ibv_dealloc_mw(mw), 0, "ibv_dealloc_mw(3): a window that is bound is unbound");
	is_status(reach(IBV_WR_RDMA_READ, base, old, 8), IBV_WC_REM_ACCESS_ERR, "ibv_dealloc_mw(3): and its R_Key is void: REM_ACCESS_ERR");
	free_pair(&pair);
}

static struct ibv_send_wr bind_request(struct ibv_mw *mw, uint32_t rkey, struct buffer *buffer, unsigned int access)
{
	struct ibv_send_wr wr = {.wr_id = 9, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){buffer->mr, (uintptr_t)buffer->mem, buffer->size, access};
	return wr;
}

static void type_2(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr, invalidate = {.opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_wc wc = {0};
	uint64_t base = (uintptr_t)region.mem;
	uint32_t rkey;

	if (!mw) {
		skip("no windows of type 2", "ibv_post_send(3): BIND_MW of a type 2 window completes");
		free_pair(&pair);
		return;
	}
	rkey = ibv_inc_rkey(mw->rkey);
	wr = bind_request(mw, rkey, &region, REMOTE);
	MUST(post(pair.b, &wr));
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): BIND_MW of a type 2 window completes");
	mw->rkey = rkey;
	check(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 9, "ibv_poll_cq(3): BIND_MW's opcode and wr_id");
	fill(local.mem, 64, 6);
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&local, 0, 64), base, rkey), IBV_WC_SUCCESS,
		  "ibv_post_send(3): the R_Key that BIND_MW set can be written to");
	check(filled(region.mem, 64, 6), "ibv_post_send(3): and what was written through the window is there");
	invalidate.invalidate_rkey = rkey;
	MUST(post(pair.b, &invalidate));
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): LOCAL_INV completes");
	is(wc.opcode, IBV_WC_LOCAL_INV, "ibv_poll_cq(3): LOCAL_INV's opcode");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&local, 0, 64), base, rkey), IBV_WC_REM_ACCESS_ERR,
		  "ibv_post_send(3): LOCAL_INV makes the R_Key void: REM_ACCESS_ERR");
	free_pair(&pair);

	pair = make_pair(IBV_QPT_RC);
	wr = bind_request(mw, rkey + 1, &region, REMOTE);
	MUST(post(pair.b, &wr));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): a window that was invalidated can be bound again");
	mw->rkey = rkey + 1;
	wr = bind_request(mw, rkey + 2, &region, REMOTE);
	enum ibv_wc_status status = post(pair.b, &wr) ? IBV_WC_MW_BIND_ERR : next(pair.cq_b);

	is_status(status, IBV_WC_MW_BIND_ERR, "ibv_post_send(3): a type 2 window that is bound can't be bound: MW_BIND_ERR");
	is(ibv_dealloc_mw(mw), 0, "ibv_dealloc_mw(3): a type 2 window");
	free_pair(&pair);

	struct ibv_mw_bind bind = window(&region, 0, 512, IBV_ACCESS_REMOTE_READ);

	mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	check(bind_fails(mw, &bind), "ibv_bind_mw(3): a window of type 2 fails");
	MUST(ibv_dealloc_mw(mw));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	if (!supported()) {
		skip("the device has no memory windows", "ibv_alloc_mw(3): the window is of its PD and type");
		return end();
	}
	local = make_buffer(SIZE, ALL);
	region = make_buffer(SIZE, ALL | IBV_ACCESS_MW_BIND);
	allocating();
	type_1();
	type_2();
	is(ibv_dereg_mr(region.mr), 0, "ibv_dereg_mr(3): without windows the MR is deregistered");
	free(region.mem);
	free_buffer(&local);
	return end();
}
