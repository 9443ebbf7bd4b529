/* Send requests with data that moves: ibv_post_send, for every opcode of RC, UC and UD. */
#include "conform.h"

enum { SIZE = 16384 };

static struct buffer ours, theirs;

static const struct {
	enum ibv_wr_opcode opcode;
	const char *name;
	bool rc, uc, ud;
	enum ibv_wc_opcode completes;
} opcodes[] = {
	{IBV_WR_SEND, "SEND", true, true, true, IBV_WC_SEND},
	{IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM", true, true, true, IBV_WC_SEND},
	{IBV_WR_RDMA_WRITE, "RDMA_WRITE", true, true, false, IBV_WC_RDMA_WRITE},
	{IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM", true, true, false, IBV_WC_RDMA_WRITE},
	{IBV_WR_RDMA_READ, "RDMA_READ", true, false, false, IBV_WC_RDMA_READ},
	{IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP", true, false, false, IBV_WC_COMP_SWAP},
	{IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD", true, false, false, IBV_WC_FETCH_ADD},
};

static bool is_atomic(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static bool is_received(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* One request of an opcode, and what it does on both sides. */
static void carry_out(struct pair *pair, size_t op, const char *type, uint32_t length)
{
	enum ibv_wr_opcode opcode = opcodes[op].opcode;
	const char *name = opcodes[op].name;
	unsigned int seed = (unsigned int)(op + length);
	struct ibv_sge sge = piece(&ours, 0, is_atomic(opcode) ? 8 : length);
	struct ibv_send_wr wr = request(opcode, &sge);
	struct ibv_wc wc;
	bool imm = opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	uint64_t *word = (uint64_t *)theirs.mem;

	memset(ours.mem, 0, SIZE);
	memset(theirs.mem, 0, SIZE);
	fill(opcode == IBV_WR_RDMA_READ ? theirs.mem : ours.mem, length, seed);
	if (is_atomic(opcode))
		*word = 1000;
	set_remote(&wr, (uintptr_t)theirs.mem, theirs.mr->rkey);
	wr.wr.atomic.compare_add = is_atomic(opcode) ? 1000 : wr.wr.atomic.compare_add;
	if (is_atomic(opcode))
		wr.wr.atomic.swap = 77;
	if (imm)
		wr.imm_data = htonl(0x01020304);
	if (is_received(opcode))
		MUST(post_recv(pair->b, &theirs, 0, SIZE, 500 + op));
	if (!is(post(pair->a, &wr), 0, "ibv_post_send(3): %s takes %s of %u bytes", type, name, length))
		return;
	is_status(poll_for(pair->cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): %s %s of %u bytes completes", type, name, length);
	check(wc.wr_id == wr.wr_id && wc.opcode == opcodes[op].completes && wc.qp_num == pair->a->qp_num,
	      "ibv_poll_cq(3): %s %s of %u bytes: wr_id, opcode and qp_num at the sender", type, name, length);
	if (is_received(opcode)) {
		is_status(poll_for(pair->cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS,
			  "ibv_post_send(3): %s %s of %u bytes takes a receive request", type, name, length);
		check(wc.wr_id == 500 + op && wc.byte_len == length &&
			      wc.opcode == (opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) &&
			      !!(wc.wc_flags & IBV_WC_WITH_IMM) == imm && (!imm || wc.imm_data == htonl(0x01020304)),
		      "ibv_poll_cq(3): %s %s of %u bytes: wr_id, byte_len, opcode and immediate data at the receiver", type, name,
		      length);
	} else if (pair->b->qp_type == IBV_QPT_UC) {
		for (uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until && !filled(theirs.mem, length, seed);)
			ibv_poll_cq(pair->cq_b, 1, &wc);
	}
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		check(*(uint64_t *)ours.mem == 1000 && *word == 2000, "ibv_post_send(3): %s %s returns the old value and adds", type, name);
	else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		check(*(uint64_t *)ours.mem == 1000 && *word == 77, "ibv_post_send(3): %s %s returns the old value and swaps", type, name);
	else
		check(filled(opcode == IBV_WR_RDMA_READ ? ours.mem : theirs.mem, length, seed),
		      "ibv_post_send(3): %s %s of %u bytes moves these bytes", type, name, length);
}

static void every_opcode(enum ibv_qp_type type, const char *name)
{
	static const uint32_t lengths[] = {1, 1024, 10001};

	for (size_t op = 0; op < sizeof opcodes / sizeof *opcodes; op++) {
		struct pair pair = make_pair(type);
		bool known = type == IBV_QPT_RC ? opcodes[op].rc : opcodes[op].uc;

		if (known) {
			for (size_t i = 0; i < (is_atomic(opcodes[op].opcode) ? 1 : 3); i++)
				carry_out(&pair, op, name, lengths[i]);
		} else {
			struct ibv_sge sge = piece(&ours, 0, 8);
			struct ibv_send_wr wr = request(opcodes[op].opcode, &sge);

			set_remote(&wr, (uintptr_t)theirs.mem, theirs.mr->rkey);
			check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): %s lacks %s: it fails", name, opcodes[op].name);
		}
		free_pair(&pair);
	}
}

static void compare_without_swap(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = piece(&ours, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_CMP_AND_SWP, &sge);
	uint64_t *word = (uint64_t *)theirs.mem;

	*word = 5;
	set_remote(&wr, (uintptr_t)word, theirs.mr->rkey);
	wr.wr.atomic.compare_add = 6;
	wr.wr.atomic.swap = 7;
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): CMP_AND_SWP of another value completes");
	check(*word == 5 && *(uint64_t *)ours.mem == 5, "ibv_post_send(3): CMP_AND_SWP of another value changes nothing, and returns it");
	free_pair(&pair);
	pair = make_pair(IBV_QPT_RC);
	wr.wr.atomic.remote_addr += 4;
	check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): an atomic on an address that isn't a multiple of 8 fails");
	free_pair(&pair);
}

static void no_bytes(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_send_wr wr = request(IBV_WR_SEND, NULL);
	struct ibv_recv_wr recv = {.wr_id = 3}, *bad;
	struct ibv_wc wc = {.byte_len = 99};

	wr.num_sge = 0;
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a message of no bytes completes");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_recv(3): a message of no bytes arrives, in a request without s/g elements");
	is(wc.byte_len, 0, "ibv_poll_cq(3): its byte_len is 0");
	wr.opcode = IBV_WR_RDMA_WRITE;
	set_remote(&wr, 0, 0);
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a WRITE of no bytes needs no R_Key");
	free_pair(&pair);
}

static void gather(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sges[3] = {piece(&ours, 100, 10), piece(&ours, 110, 0), piece(&ours, 110, 2000)};
	struct ibv_sge places[3] = {piece(&theirs, 0, 1000), piece(&theirs, 5000, 5), piece(&theirs, 6000, 4000)};
	struct ibv_send_wr wr = request(IBV_WR_SEND, sges);
	struct ibv_recv_wr recv = {.wr_id = 3, .sg_list = places, .num_sge = 3}, *bad;

	fill(ours.mem + 100, 2010, 8);
	memset(theirs.mem, 0, SIZE);
	wr.num_sge = 3;
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a list of s/g elements completes");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_recv(3): a list of s/g elements completes");
	memcpy(theirs.mem + 1000, theirs.mem + 5000, 5);
	memcpy(theirs.mem + 1005, theirs.mem + 6000, 1005);
	check(filled(theirs.mem, 2010, 8), "ibv_post_send(3): pieces are gathered and scattered in their order");
	check(!theirs.mem[5005] && !theirs.mem[7005], "ibv_post_recv(3): nothing is written beyond the message");
	free_pair(&pair);
}

static void inline_data(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	unsigned char bytes[64];
	struct ibv_sge sge = {(uintptr_t)bytes, sizeof bytes, 0xdeadbeef};
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	fill(bytes, sizeof bytes, 6);
	wr.send_flags |= IBV_SEND_INLINE;
	MUST(post_recv(pair.b, &theirs, 0, 64, 1));
	is(post(pair.a, &wr), 0, "ibv_post_send(3): inline data needs no L_Key");
	memset(bytes, 0, sizeof bytes);
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): an inline SEND completes");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): an inline SEND arrives");
	check(filled(theirs.mem, 64, 6), "ibv_post_send(3): the buffer of inline data can be reused at once");
	fill(bytes, sizeof bytes, 7);
	wr.opcode = IBV_WR_RDMA_WRITE;
	set_remote(&wr, (uintptr_t)theirs.mem + 512, theirs.mr->rkey);
	is(post(pair.a, &wr), 0, "ibv_post_send(3): an RDMA WRITE can be inline");
	memset(bytes, 0, sizeof bytes);
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): an inline RDMA WRITE completes");
	check(filled(theirs.mem + 512, 64, 7), "ibv_post_send(3): an inline RDMA WRITE writes what was there when it was posted");
	free_pair(&pair);
}

static void signaling(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = piece(&ours, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	struct ibv_wc wc;

	set_remote(&wr, (uintptr_t)theirs.mem, theirs.mr->rkey);
	wr.send_flags = 0;
	for (int i = 0; i < 3; i++)
		MUST(post(pair.a, &wr));
	check(silent(pair.cq_a), "ibv_post_send(3): without SIGNALED a success makes no completion");
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr_id = 42;
	MUST(post(pair.a, &wr));
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): with SIGNALED a success makes a completion");
	is((long)wc.wr_id, 42, "ibv_post_send(3): that of the signaled request");
	wr.send_flags = 0;
	wr.wr_id = 43;
	wr.wr.rdma.rkey ^= 0x70;
	MUST(post(pair.a, &wr));
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_REM_ACCESS_ERR, "ibv_post_send(3): a failure makes a completion without SIGNALED too");
	is((long)wc.wr_id, 43, "ibv_post_send(3): that of the failed request");
	free_pair(&pair);

	struct ibv_cq *cq = make_cq(16);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct path path = PATH;

	init.sq_sig_all = 1;
	struct ibv_qp *qp = MAKE(ibv_create_qp(pd, &init));

	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.send_flags = 0;
	set_remote(&wr, (uintptr_t)theirs.mem, theirs.mr->rkey);
	MUST(post(qp, &wr));
	is_status(next(cq), IBV_WC_SUCCESS, "ibv_create_qp(3): with sq_sig_all every request makes a completion");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

/* A READ and a SEND of what it reads, of which only the fence makes one wait for the other. */
static void fence(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge into = piece(&ours, 0, 8000), from = piece(&ours, 0, 8000);
	struct ibv_send_wr send = request(IBV_WR_SEND, &from), read = request(IBV_WR_RDMA_READ, &into);

	fill(theirs.mem, 8000, 12);
	memset(ours.mem, 0, SIZE);
	MUST(post_recv(pair.b, &theirs, 8192, 8192, 1));
	set_remote(&read, (uintptr_t)theirs.mem, theirs.mr->rkey);
	read.next = &send;
	send.send_flags |= IBV_SEND_FENCE;
	MUST(post(pair.a, &read));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a READ before a fenced SEND completes");
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a fenced SEND completes");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): a fenced SEND arrives");
	check(filled(theirs.mem + 8192, 8000, 12), "ibv_post_send(3): a fenced SEND carries what the READ before it has read");
	free_pair(&pair);
}

static void invalidation(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = piece(&ours, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, &sge);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	if (!mw) {
		skip("no memory windows of type 2", "ibv_post_send(3): SEND_WITH_INV invalidates the R_Key at the receiver");
		free_pair(&pair);
		return;
	}
	struct buffer target = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_wc wc = {0};

	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){target.mr, (uintptr_t)target.mem, 4096, REMOTE};
	MUST(post(pair.b, &bind));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): BIND_MW completes");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, sge, (uintptr_t)target.mem, bind.bind_mw.rkey), IBV_WC_SUCCESS,
		  "ibv_post_send(3): the bound R_Key permits a WRITE");
	wr.invalidate_rkey = bind.bind_mw.rkey;
	MUST(post_recv(pair.b, &theirs, 0, 64, 1));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): SEND_WITH_INV completes");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): SEND_WITH_INV arrives");
	check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == bind.bind_mw.rkey,
	      "ibv_poll_cq(3): WITH_INV and the R_Key that was invalidated");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, sge, (uintptr_t)target.mem, bind.bind_mw.rkey), IBV_WC_REM_ACCESS_ERR,
		  "ibv_post_send(3): SEND_WITH_INV invalidates the R_Key at the receiver");
	free_pair(&pair);
	MUST(ibv_dealloc_mw(mw));
	free_buffer(&target);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	ours = make_buffer(SIZE, ALL);
	theirs = make_buffer(SIZE, ALL);
	every_opcode(IBV_QPT_RC, "RC");
	every_opcode(IBV_QPT_UC, "UC");
	compare_without_swap();
	no_bytes();
	gather();
	inline_data();
	signaling();
	fence();
	invalidation();
	free_buffer(&ours);
	free_buffer(&theirs);
	return end();
}
