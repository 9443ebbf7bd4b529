/* one_sided [memfd]: one side writes and reads the other's memory by requests of all lengths, and by atomics, alone and in lists,
 * inline, fenced, with completions and without, with SENDs between them. It keeps a copy of what the other's memory must hold: what
 * each READ and each atomic finds is compared with it, and at the end the other side sends all of its memory back. Where requests
 * can end at once, they are also posted until there is no room. Each connection ends with a request that isn't allowed, which
 * changes nothing and whose successors are flushed. With memfd the memory can be shared.
 */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

#define CONNECTIONS 8
#define TURNS 600
#define DEPTH 32
#define LIST 6
#define AREA (1u << 20)
#define PSN 0xfffff0

static uint64_t drawn = 1;

static uint32_t draw(uint32_t below)
{
	drawn = drawn * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(drawn >> 33) % below;
}

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	struct address mine, theirs;
	int fd;
};

/* What the other side's memory holds when all requests so far have ended, and a request that is under way. */
static char copy[AREA];

struct request {
	uint32_t offset, length;
	bool reads, signaled;
	char *expected;
};

static void connect_anew(struct side *side)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct path path = default_path(&side->device);
	struct ibv_wc wc;
	char ready = 1, other;

	MUST(ibv_modify_qp(side->qp, &reset, IBV_QP_STATE));
	while (ibv_poll_cq(side->cq, 1, &wc) > 0)
		;
	MUST(to_init(side->qp, ALL_ACCESS));
	MUST(to_rtr(side->qp, &side->device, &path, &side->theirs));
	MUST(to_rts(side->qp, &path, PSN));
	if (!exchange(side->fd, &ready, &other, 1))
		fail("the other side is gone");
}

static uint32_t some_length(void)
{
	switch (draw(12)) {
	case 0:
		return 0;
	case 1:
		return draw(300000);
	case 2:
		return 4096 - 2 + draw(5);
	case 3:
		return 8;
	default:
		return 1 + draw(200);
	}
}

/* Makes an atomic of a request on the word at `offset`, does the same to the copy, and returns what the atomic must find. */
static uint64_t make_atomic(struct ibv_send_wr *wr, const struct side *side, uint32_t offset)
{
	uint64_t found, operand = (uint64_t)draw(1000) << 32;

	memcpy(&found, copy + offset, sizeof found);
	bool adds = draw(2), hits = adds || draw(2);
	uint64_t word = adds ? found + operand : hits ? operand : found;

	memcpy(copy + offset, &word, sizeof word);
	wr->opcode = adds ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
	wr->wr.atomic.remote_addr = side->theirs.buffer + offset;
	wr->wr.atomic.rkey = side->theirs.rkey;
	wr->wr.atomic.compare_add = adds ? operand : hits ? found : ~found;
	wr->wr.atomic.swap = operand;
	return found;
}

/* Requests of a turn use parts of this side's memory that don't overlap. */
static void one_turn(struct side *side, uint64_t turn)
{
	static const int counts[] = {1, 1, 1, LIST, 2};
	struct ibv_sge sges[LIST][2];
	struct ibv_send_wr wrs[LIST] = {0}, *bad;
	struct request requests[LIST];
	int count = counts[turn % (sizeof counts / sizeof *counts)];
	uint32_t place = 0;
	bool read = false;

	for (int i = 0; i < count; i++) {
		struct request *request = &requests[i];
		bool last = i + 1 == count, sends = draw(12) == 0, atomic = draw(5) == 0;

		*request = (struct request){.length = some_length(), .reads = draw(3) == 0, .signaled = last || draw(2)};
		if (sends || place + request->length + 8 > AREA)
			request->length = 0;
		else if (atomic)
			request->length = 8;
		atomic &= request->length == 8;
		request->offset = request->length ? draw(AREA - request->length) : 0;
		if (atomic)
			request->offset &= ~7u;
		uint32_t first = draw(8) ? request->length : request->length / 2;

		sges[i][0] = (struct ibv_sge){(uintptr_t)side->memory + place, first, side->mr->lkey};
		sges[i][1] = (struct ibv_sge){(uintptr_t)side->memory + place + first, request->length - first, side->mr->lkey};
		wrs[i] = (struct ibv_send_wr){
			.wr_id = turn * LIST + (uint64_t)i,
			.next = last ? NULL : &wrs[i + 1],
			.sg_list = sges[i],
			.num_sge = first == request->length ? 1 : 2,
			.opcode = sends ? IBV_WR_SEND : request->reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			.send_flags = (request->signaled ? IBV_SEND_SIGNALED : 0u) | (read || !draw(6) ? IBV_SEND_FENCE : 0u)};
		request->expected = NULL;
		if (sends)
			wrs[i].num_sge = 0;
		else if (!atomic)
			set_remote(&wrs[i], side->theirs.buffer + request->offset, side->theirs.rkey);
		if (atomic) {
			uint64_t found = make_atomic(&wrs[i], side, request->offset);

			request->expected = MAKE(malloc(sizeof found));
			memcpy(request->expected, &found, sizeof found);
			memset(side->memory + place, 0xee, sizeof found);
		} else if (wrs[i].opcode == IBV_WR_RDMA_READ) {
			request->expected = MAKE(malloc(request->length + 1));
			memcpy(request->expected, copy + request->offset, request->length);
			memset(side->memory + place, 0xee, request->length);
		} else {
			fill(side->memory + place, request->length, wrs[i].wr_id);
			memcpy(copy + request->offset, side->memory + place, request->length);
			if (!sends && request->length <= 64 && draw(2))
				wrs[i].send_flags |= IBV_SEND_INLINE;
		}
		/* What is written after a READ may be there before the READ, unless it waits. */
		read |= wrs[i].opcode == IBV_WR_RDMA_READ || atomic;
		place += request->length;
	}
	MUST(ibv_post_send(side->qp, wrs, &bad));
	for (int i = 0; i < count; i++) {
		struct ibv_wc wc;
		const struct request *request = &requests[i];

		if (wrs[i].send_flags & IBV_SEND_INLINE)
			memset((void *)(uintptr_t)sges[i][0].addr, 0xdd, request->length);
		if (!request->signaled)
			continue;
		MUST_COMPLETE(side->cq, &wc);
		if (wc.wr_id != wrs[i].wr_id)
			fail("request %llu ends instead of %llu", (unsigned long long)wc.wr_id, (unsigned long long)wrs[i].wr_id);
		if (wc.opcode != reported_as(wrs[i].opcode) || wc.qp_num != side->qp->qp_num)
			fail("request %llu ends as another one", (unsigned long long)wc.wr_id);
	}
	for (int i = 0; i < count; i++) {
		if (!requests[i].expected)
			continue;
		if (memcmp((void *)(uintptr_t)sges[i][0].addr, requests[i].expected, requests[i].length))
			fail("turn %llu: a READ or an atomic gives other bytes", (unsigned long long)turn);
		free(requests[i].expected);
	}
}

/* Posts until ibv_post_send returns ENOMEM, and polls only then: nothing is lost. */
static void post_until_full(struct side *side, bool reads)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, 8, side->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				 .opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_wc wc;
	int result;
	uint64_t posted = 0;

	fill(side->memory, 8, 77);
	memcpy(copy, side->memory, 8);
	set_remote(&wr, side->theirs.buffer, side->theirs.rkey);
	while (!(result = ibv_post_send(side->qp, &wr, &bad)) && wr.wr_id < 100000)
		wr.wr_id++;
	if (result != ENOMEM)
		fail("request %llu: %s", (unsigned long long)wr.wr_id, strerror(result));
	for (; posted < wr.wr_id; posted++) {
		MUST_COMPLETE(side->cq, &wc);
		if (wc.wr_id != posted)
			fail("request %llu ends instead of %llu", (unsigned long long)wc.wr_id, (unsigned long long)posted);
	}
}

/* Ends the connection by a request that isn't allowed, behind one that is. */
static void end_badly(struct side *side, unsigned int connection)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, 8, side->mr->lkey};
	struct ibv_send_wr wrs[3], *bad;
	struct ibv_wc wc;

	fill(side->memory, 8, connection);
	memcpy(copy, side->memory, 8);
	for (int i = 0; i < 3; i++) {
		wrs[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					      .opcode = connection & 1 && i == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE};
		set_remote(&wrs[i], side->theirs.buffer, side->theirs.rkey);
	}
	if (connection & 2)
		wrs[1].wr.rdma.rkey ^= 0x55;
	else
		wrs[1].wr.rdma.remote_addr += AREA - 4;
	for (int i = 0; i < 3; i++) {
		int result = ibv_post_send(side->qp, &wrs[i], &bad);

		if (result)
			fail("request %d: %s", i, strerror(result));
	}
	for (int i = 0; i < 3; i++) {
		static const enum ibv_wc_status expected[] = {IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};

		if (!wait_wc(side->cq, &wc, 20000))
			fail("request %d doesn't end", i);
		if (wc.wr_id != (uint64_t)i || wc.status != expected[i])
			fail("request %llu ends with %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	}
}

int main(int argc, char **argv)
{
	/* The harness gives the server's address to the second side, after the other words. */
	bool shared = argc > 1 && !strcmp(argv[1], "memfd");
	const char *server = argc > 1 + shared ? argv[1 + shared] : NULL;
	const char *fabric = getenv("FERROCE_FABRIC");
	bool ends_at_once = !fabric || strcmp(fabric, "udp");
	struct side side = {.device = open_device(1)};
	char done = 1, other;

	alarm(ALARM_SECONDS);
	side.cq = make_cq(&side.device, 4 * DEPTH, NULL);
	side.qp = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, DEPTH);
	int fd = shared ? memfd_create("area", 0) : -1;

	if (shared)
		MUST(ftruncate(fd, AREA));
	side.memory = mmap(NULL, AREA, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (side.memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	side.mr = MAKE(ibv_reg_mr(side.device.pd, side.memory, AREA, ALL_ACCESS));
	side.mine = (struct address){.qpn = side.qp->qp_num, .psn = PSN, .rkey = side.mr->rkey,
				     .buffer = (uintptr_t)side.memory, .gid = side.device.gid};
	side.fd = meet(server, 18515);
	if (!exchange(side.fd, &side.mine, &side.theirs, sizeof side.mine))
		fail("the other side is gone");
	for (unsigned int connection = 0; connection < CONNECTIONS; connection++) {
		connect_anew(&side);
		if (server) {
			for (uint64_t turn = 0; turn < TURNS; turn++)
				one_turn(&side, turn);
			if (ends_at_once) {
				post_until_full(&side, false);
				post_until_full(&side, true);
			}
			end_badly(&side, connection);
		} else {
			/* SENDs of no bytes. */
			for (int i = 0; i < DEPTH; i++)
				MUST(post_recv(side.qp, side.mr, 0, 0, 0));
			struct pollfd told = {.fd = side.fd, .events = POLLIN};

			while (poll(&told, 1, 0) == 0) {
				struct ibv_wc wc;

				if (ibv_poll_cq(side.cq, 1, &wc) > 0 && wc.status == IBV_WC_SUCCESS)
					MUST(post_recv(side.qp, side.mr, 0, 0, 0));
			}
		}
		if (!exchange(side.fd, &done, &other, 1))
			fail("the other side is gone");
		for (uint32_t at = 0; at < AREA; at += AREA / 64) {
			char mine[AREA / 64], theirs[AREA / 64];

			memcpy(mine, side.memory + at, sizeof mine);
			if (!exchange(side.fd, mine, theirs, sizeof mine))
				fail("the other side is gone");
			if (server && memcmp(theirs, copy + at, sizeof theirs))
				fail("connection %u: the memory from byte %u on isn't what was written", connection, at);
		}
	}
	printf("%d connections were right\n", CONNECTIONS);
	return 0;
}
