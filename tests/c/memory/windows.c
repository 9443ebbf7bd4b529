/* windows: one process opens windows and regions to another, which writes and reads through them, and takes them back in
 * every way there is. Once a call that takes back has returned, the memory is the owner's alone.
 *
 *   windows [-l]          owns the memory
 *   windows [-l] HOST     reaches it
 *
 * With -l the network loses packets. A responder that refuses a request sends one NAK: its queue pair is then in error and
 * silent. When that packet is lost, the requester's retries run out instead.
 *
 * What is asked of a provider: windows of types 1 and 2B, and on-demand paging with implicit regions.
 */
#include "common.h"

#define TCP_PORT 18515
#define SIZE (1 << 20)
#define ROUNDS 200
#define CREDITS 8
/* Messages announce windows. */
#define MESSAGE_AT SIZE
#define REACH (SIZE + 4096)

struct window {
	uint64_t address;
	uint64_t length;
	uint32_t rkey;
	uint32_t round;
};

static bool lossy;
static struct device device;
static struct path path;
static int tcp;
static struct ibv_cq *cq, *recv_cq;
static struct ibv_qp *qp;
static char *memory;
static struct ibv_mr *mr;

static void tell(void)
{
	char byte = 1, other;

	if (!exchange(tcp, &byte, &other, 1))
		fail("the other side has gone");
}

/* A new connection, with receives for messages. */
static void connect_again(void)
{
	struct address mine = {.psn = 77, .gid = device.gid}, theirs;
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = recv_cq,
		.cap = {.max_send_wr = 64,
			.max_recv_wr = 64,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = 64},
		.qp_type = IBV_QPT_RC,
	};

	if (qp) {
		/* The other side waits for no acknowledgement any more. */
		tell();
		MUST(ibv_destroy_qp(qp));
	}
	qp = MAKE(ibv_create_qp(device.pd, &init));
	mine.qpn = qp->qp_num;
	MUST(to_init(qp, path.access));
	if (!exchange(tcp, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, mine.psn));
	for (int i = 0; i < CREDITS; i++)
		MUST(post_recv(qp, mr, MESSAGE_AT + (size_t)i * 64, 64, (uint64_t)i));
	tell();
}

static void must_send(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	MUST(ibv_post_send(qp, wr, &bad));
}

/* Announces a window to the other side, without waiting for what was posted before. */
static void announce(const struct window *window)
{
	struct ibv_sge sge = {(uintptr_t)window, sizeof *window, 0};
	struct ibv_send_wr wr = {.wr_id = 900, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_INLINE};

	wr.opcode = IBV_WR_SEND;
	must_send(&wr);
}

/* The next completion of a kind; errors are the caller's to judge. A receive may complete before the request that
 * the other side answers with it. */
static struct ibv_wc next_of(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;

	do {
		if (!wait_wc(opcode == IBV_WC_RECV ? recv_cq : cq, &wc, 20000))
			fail("no completion of opcode %d in 20 s", opcode);
	} while (wc.status == IBV_WC_SUCCESS && wc.opcode != opcode);
	return wc;
}

static void must_be(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next_of(opcode);

	if (wc.status != IBV_WC_SUCCESS)
		fail("%s (waiting for opcode %d)", ibv_wc_status_str(wc.status), opcode);
}

static struct window hear(void)
{
	struct ibv_wc wc = next_of(IBV_WC_RECV);
	struct window window;

	if (wc.status != IBV_WC_SUCCESS)
		fail("hearing of a window: %s", ibv_wc_status_str(wc.status));
	memcpy(&window, memory + MESSAGE_AT + wc.wr_id * 64, sizeof window);
	MUST(post_recv(qp, mr, MESSAGE_AT + wc.wr_id * 64, 64, wc.wr_id));
	return window;
}

static void reach(enum ibv_wr_opcode opcode, const struct window *window, size_t at, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)memory + at, length, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 100, .sg_list = &sge, .num_sge = 1, .opcode = opcode};

	wr.wr.rdma.remote_addr = window->address;
	wr.wr.rdma.rkey = window->rkey;
	must_send(&wr);
}

/* Type 2: bound, announced, written and read through, and given back by the other side; round after round. */
static void own_given_back(void)
{
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(device.pd, IBV_MW_TYPE_2));
	uint32_t rkey = mw->rkey;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t length = 8 + (uint64_t)round * 997 % 100000, offset = (uint64_t)round * 4099 % 500000;
		bool zero_based = round % 3 == 2;
		struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW};
		struct ibv_wc wc;

		rkey = ibv_inc_rkey(rkey);
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = rkey;
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			mr, (uintptr_t)memory + offset, length,
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				(zero_based ? IBV_ACCESS_ZERO_BASED : 0)};
		must_send(&wr);
		announce(&(struct window){zero_based ? 0 : (uintptr_t)memory + offset, length, rkey, round});
		wc = next_of(IBV_WC_RECV);
		if (wc.status != IBV_WC_SUCCESS || !(wc.wc_flags & IBV_WC_WITH_INV) || wc.invalidated_rkey != rkey)
			fail("round %u: %s, flags %#x, rkey %#x instead of %#x", round, ibv_wc_status_str(wc.status),
			     wc.wc_flags, wc.invalidated_rkey, rkey);
		check(memory + offset, length, round, "window");
		must_be(IBV_WC_BIND_MW);
		must_be(IBV_WC_SEND);
		MUST(post_recv(qp, mr, MESSAGE_AT + wc.wr_id * 64, 64, wc.wr_id));
	}
	MUST(ibv_dealloc_mw(mw));
}

static void reach_given_back(void)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct window window = hear();
		struct ibv_send_wr wr = {.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = window.rkey};

		if (window.round != round)
			fail("round %u instead of %u", window.round, round);
		fill(memory, window.length, round);
		reach(IBV_WR_RDMA_WRITE, &window, 0, (uint32_t)window.length);
		must_be(IBV_WC_RDMA_WRITE);
		memset(memory, 0, window.length);
		reach(IBV_WR_RDMA_READ, &window, 0, (uint32_t)window.length);
		must_be(IBV_WC_RDMA_READ);
		check(memory, window.length, round, "what was read through the window");
		must_send(&wr);
		must_be(IBV_WC_SEND);
	}
}

/* How the owner takes memory back while the other side writes to it. */
enum revocation { DEALLOC_WINDOW, UNBIND_WINDOW, INVALIDATE_WINDOW, DEREGISTER, CHANGE_ACCESS, MOVE, REVOCATIONS };

static const char *const revocations[] = {"ibv_dealloc_mw", "a bind of no byte", "IBV_WR_LOCAL_INV",
					  "ibv_dereg_mr",   "another access",    "another translation"};

/* A second region of the same memory, so that messages go on to arrive. */
static struct ibv_mr *open_region(void)
{
	return MAKE(ibv_reg_mr(device.pd, memory, SIZE, ALL_ACCESS | IBV_ACCESS_MW_BIND));
}

static struct ibv_mw *open_window(struct ibv_mr *region, enum ibv_mw_type type, uint32_t *rkey)
{
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(device.pd, type));
	struct ibv_mw_bind_info info = {region, (uintptr_t)memory, SIZE, IBV_ACCESS_REMOTE_WRITE};

	if (type == IBV_MW_TYPE_1) {
		struct ibv_mw_bind bind = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

		MUST(ibv_bind_mw(qp, mw, &bind));
		*rkey = mw->rkey;
	} else {
		struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};

		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = *rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = info;
		must_send(&wr);
	}
	must_be(IBV_WC_BIND_MW);
	if (ibv_dereg_mr(region) != EBUSY)
		fail("a region with a window bound to it is deregistered");
	return mw;
}

static void own_revoked(enum revocation how)
{
	struct ibv_mr *region = open_region();
	struct ibv_mw *mw = NULL;
	struct ibv_mw_bind nothing = {.send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr invalidate = {.opcode = IBV_WR_LOCAL_INV};
	uint32_t rkey = region->rkey;
	char *elsewhere = MAKE(calloc(1, SIZE));

	memset(memory, 0, SIZE);
	if (how <= INVALIDATE_WINDOW)
		mw = open_window(region, how == INVALIDATE_WINDOW ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1, &rkey);
	announce(&(struct window){(uintptr_t)memory, SIZE, rkey, how});
	/* In the thick of it. */
	for (uint64_t end = now_ms() + 20000; !((volatile char *)memory)[SIZE - 1];)
		if (now_ms() > end)
			fail("%s: nothing is written", revocations[how]);
	usleep(3000);
	switch (how) {
	case DEALLOC_WINDOW:
		MUST(ibv_dealloc_mw(mw));
		mw = NULL;
		break;
	case UNBIND_WINDOW:
		MUST(ibv_bind_mw(qp, mw, &nothing));
		must_be(IBV_WC_BIND_MW);
		break;
	case INVALIDATE_WINDOW:
		invalidate.invalidate_rkey = rkey;
		must_send(&invalidate);
		must_be(IBV_WC_LOCAL_INV);
		break;
	case DEREGISTER:
		MUST(ibv_dereg_mr(region));
		region = NULL;
		break;
	case CHANGE_ACCESS:
		MUST(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
		break;
	default:
		MUST(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, elsewhere, SIZE, 0));
	}
	memset(memory, 0x5a, SIZE);
	usleep(20000);
	for (size_t i = 0; i < SIZE; i++)
		if (memory[i] != 0x5a)
			fail("%s: byte %zu was written after it had returned", revocations[how], i);
	tell();
	if (mw)
		MUST(ibv_dealloc_mw(mw));
	if (region)
		MUST(ibv_dereg_mr(region));
	free(elsewhere);
}

static bool refused(enum ibv_wc_status status, enum ibv_wc_status as)
{
	return status == as || (lossy && status == IBV_WC_RETRY_EXC_ERR);
}

static void reach_revoked(enum revocation how)
{
	struct window window = hear();
	struct ibv_wc wc;
	unsigned long written = 0;

	memset(memory, 0x11, SIZE);
	do {
		reach(IBV_WR_RDMA_WRITE, &window, 0, SIZE);
		wc = next_of(IBV_WC_RDMA_WRITE);
		written++;
	} while (wc.status == IBV_WC_SUCCESS);
	if (!refused(wc.status, IBV_WC_REM_ACCESS_ERR))
		fail("%s: %s after %lu writes", revocations[how], ibv_wc_status_str(wc.status), written);
	tell();
}

/* Pages that come and go under a region of everything. */
static void own_paged(void)
{
	struct ibv_mr *all = MAKE(ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	char *pages = map_apart(SIZE);
	struct ibv_sge sge = {(uintptr_t)pages, SIZE, all->lkey};
	unsigned char present[SIZE / 4096];

	MUST(ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	MUST(mincore(pages, SIZE, present));
	for (size_t i = 0; i < sizeof present; i++)
		if (!(present[i] & 1))
			fail("page %zu wasn't brought in", i);
	for (int round = 0; round < 4; round++) {
		MUST(madvise(pages, SIZE, MADV_DONTNEED));
		announce(&(struct window){(uintptr_t)pages, SIZE, all->rkey, (uint32_t)round});
		tell();
		check(pages, SIZE, (uint64_t)round, "pages");
	}
	MUST(munmap(pages, SIZE));
	if (ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) != EFAULT)
		fail("pages that are gone are brought in");
	announce(&(struct window){(uintptr_t)pages, SIZE, all->rkey, 4});
	tell();
	MUST(ibv_dereg_mr(all));
}

static void reach_paged(void)
{
	for (uint64_t round = 0; round < 5; round++) {
		struct window window = hear();
		struct ibv_wc wc;

		fill(memory, SIZE, round);
		reach(IBV_WR_RDMA_WRITE, &window, 0, SIZE);
		wc = next_of(IBV_WC_RDMA_WRITE);
		if (round < 4 ? wc.status != IBV_WC_SUCCESS : !refused(wc.status, IBV_WC_REM_OP_ERR))
			fail("pages, round %llu: %s", (unsigned long long)round, ibv_wc_status_str(wc.status));
		tell();
	}
}

int main(int argc, char **argv)
{
	lossy = argc > 1 && strcmp(argv[1], "-l") == 0;
	argc -= lossy;
	argv += lossy;
	bool owner = argc == 1;

	if (argc > 2)
		fail("usage: windows [-l] [HOST]");
	alarm(ALARM_SECONDS);
	tcp = meet(owner ? NULL : argv[1], TCP_PORT);
	device = open_device(1);
	path = default_path(&device);
	cq = make_cq(&device, 256, NULL);
	recv_cq = make_cq(&device, 256, NULL);
	memory = MAKE(aligned_alloc(4096, REACH));
	mr = MAKE(ibv_reg_mr(device.pd, memory, REACH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	connect_again();
	(owner ? own_given_back : reach_given_back)();
	for (enum revocation how = 0; how < REVOCATIONS; how++) {
		connect_again();
		(owner ? own_revoked : reach_revoked)(how);
	}
	connect_again();
	(owner ? own_paged : reach_paged)();
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(recv_cq));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	puts("ok");
	return 0;
}
