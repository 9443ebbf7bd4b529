/* stream: both sides send, write, read and do atomics over one RC connection at once, and check every byte.
 *
 * Each side runs the same sequence of requests, one kind after the other, with at most `depth` unfinished. A WRITE is
 * followed by a READ of what it wrote, so that the requester can check it; an atomic checks the value it returns.
 */
#include "common.h"
#include <getopt.h>

enum kind { SEND, SEND_IMM, WRITE_READ, WRITE_IMM, FETCH_ADD, COMPARE_SWAP, KINDS };
static const char *const kind_names[KINDS] = {"send", "send_imm", "write", "write_imm", "fadd", "cas"};

struct options {
	const char *host;
	int port, gid_index, depth, mtu, timeout, retries;
	uint32_t size;
	uint64_t count;
	int only;
	bool events, until_error;
};

struct side {
	struct options options;
	struct device device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	struct address remote;
	uint64_t posted, completed, finished, received, expected_receives;
	uint64_t successes, flushed;
	enum ibv_wc_status first_error;
	bool notified;
};

static void usage(void)
{
	fail("usage: stream [-p PORT] [-g GID_INDEX] [-d DEPTH] [-s MAX_SIZE] [-n COUNT] [-m MTU] [-t TIMEOUT] [-r RETRIES]\n"
	     "              [-o send|send_imm|write|write_imm|fadd|cas] [-e] [-x] [SERVER]\n"
	     "  -e  sleep on completion events   -x  go on until the other side is gone");
}

/* The memory of a side: one slot of `size` a request for each purpose, then the word for atomics. */
enum area { OUTGOING, INCOMING, READ_BACK, TARGET, AREAS };

static size_t offset_of(const struct side *side, enum area area, uint64_t index)
{
	size_t depth = (size_t)side->options.depth;

	return (area * depth + index % depth) * side->options.size;
}

static size_t word_offset(const struct side *side)
{
	return AREAS * (size_t)side->options.depth * side->options.size;
}

static enum kind kind_of(const struct side *side, uint64_t index)
{
	return side->options.only >= 0 ? (enum kind)side->options.only : (enum kind)(index % KINDS);
}

/* From 0 to the largest size, the same on both sides for one request. */
static uint32_t length_of(const struct side *side, uint64_t index)
{
	uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u;

	if (index % 3 == 0)
		return side->options.size;
	return (uint32_t)((mixed >> 33) % (side->options.size + 1));
}

static bool consumes_receive(enum kind kind)
{
	return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

/* The number of the request that the next receive completion belongs to. */
static uint64_t next_incoming(struct side *side)
{
	while (!consumes_receive(kind_of(side, side->expected_receives)))
		side->expected_receives++;
	return side->expected_receives++;
}

static void post_one_recv(struct side *side, uint64_t number)
{
	MUST(post_recv(side->qp, side->mr, offset_of(side, INCOMING, number), side->options.size, number));
}

static uint64_t counter_before(const struct side *side, uint64_t index)
{
	return side->options.only >= 0 ? index : index / KINDS * 2 + (kind_of(side, index) == COMPARE_SWAP);
}

static void post_request(struct side *side, uint64_t index)
{
	enum kind kind = kind_of(side, index);
	uint32_t length = length_of(side, index);
	struct ibv_sge sge = {(uintptr_t)side->memory + offset_of(side, OUTGOING, index), length, side->mr->lkey};
	struct ibv_sge back = sge;
	struct ibv_send_wr read = {.wr_id = index, .sg_list = &back, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				   .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr wr = {.wr_id = index, .sg_list = &sge, .num_sge = 1,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	wr.wr.rdma.remote_addr = read.wr.rdma.remote_addr = side->remote.buffer + offset_of(side, TARGET, index);
	wr.wr.rdma.rkey = read.wr.rdma.rkey = side->remote.rkey;
	back.addr = (uintptr_t)side->memory + offset_of(side, READ_BACK, index);
	if (kind < FETCH_ADD)
		fill((void *)(uintptr_t)sge.addr, length, index);
	switch (kind) {
	case SEND_IMM:
		wr.imm_data = htonl((uint32_t)index);
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		break;
	case WRITE_READ:
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.send_flags = 0;
		wr.next = &read;
		break;
	case WRITE_IMM:
		wr.imm_data = htonl((uint32_t)index);
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		break;
	case FETCH_ADD:
	case COMPARE_SWAP:
		sge.addr = back.addr;
		sge.length = 8;
		wr.opcode = kind == FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = side->remote.buffer + word_offset(side);
		wr.wr.atomic.rkey = side->remote.rkey;
		wr.wr.atomic.compare_add = kind == FETCH_ADD ? 1 : counter_before(side, index);
		wr.wr.atomic.swap = counter_before(side, index) + 1;
		break;
	default:
		wr.opcode = IBV_WR_SEND;
	}
	MUST(ibv_post_send(side->qp, &wr, &bad));
}

static void check_request(const struct side *side, uint64_t index)
{
	const char *back = side->memory + offset_of(side, READ_BACK, index);
	enum kind kind = kind_of(side, index);
	uint64_t value;

	if (kind == WRITE_READ)
		check(back, length_of(side, index), index, "read after write");
	if (kind == FETCH_ADD || kind == COMPARE_SWAP) {
		memcpy(&value, back, sizeof value);
		if (value != counter_before(side, index))
			fail("%s %llu returned %llu", kind_names[kind], (unsigned long long)index,
			     (unsigned long long)value);
	}
}

static void check_receive(struct side *side, const struct ibv_wc *wc)
{
	uint64_t index = next_incoming(side);
	enum kind kind = kind_of(side, index);
	bool with_imm = kind != SEND;

	if (wc->wr_id != side->received)
		fail("receive %llu completed out of order", (unsigned long long)wc->wr_id);
	if (wc->opcode != (kind == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		fail("receive %llu has opcode %d", (unsigned long long)wc->wr_id, wc->opcode);
	if (wc->byte_len != length_of(side, index))
		fail("message %llu has %u bytes, not %u", (unsigned long long)index, wc->byte_len,
		     length_of(side, index));
	if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != with_imm || (with_imm && ntohl(wc->imm_data) != (uint32_t)index))
		fail("message %llu has the wrong immediate data", (unsigned long long)index);
	if (kind != WRITE_IMM)
		check(side->memory + offset_of(side, INCOMING, wc->wr_id), wc->byte_len, index, "message");
	side->received++;
}

static void handle(struct side *side, const struct ibv_wc *wc)
{
	side->completed++;
	if (wc->status != IBV_WC_SUCCESS) {
		if (side->first_error == IBV_WC_SUCCESS)
			side->first_error = wc->status;
		else if (wc->status != IBV_WC_WR_FLUSH_ERR)
			fail("a second error: %s", ibv_wc_status_str(wc->status));
		side->flushed++;
		if (!side->options.until_error)
			fail("%s completed with %s", wc->opcode & IBV_WC_RECV ? "a receive" : "a request",
			     ibv_wc_status_str(wc->status));
		return;
	}
	if (side->first_error != IBV_WC_SUCCESS)
		fail("a success after an error");
	side->successes++;
	if (wc->opcode & IBV_WC_RECV) {
		check_receive(side, wc);
		post_one_recv(side, side->received - 1 + (uint64_t)side->options.depth);
	} else {
		if (wc->wr_id != side->finished)
			fail("request %llu completed out of order", (unsigned long long)wc->wr_id);
		check_request(side, wc->wr_id);
		side->finished++;
	}
}

/* Handles what there is; with -e sleeps when there is nothing. */
static void progress(struct side *side)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(side->cq, 16, wc);

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	for (int i = 0; i < count; i++)
		handle(side, &wc[i]);
	if (count || !side->options.events)
		return;
	if (!side->notified) {
		MUST(ibv_req_notify_cq(side->cq, 0));
		side->notified = true;
		return;
	}
	struct ibv_cq *cq;
	void *cq_context;

	MUST(ibv_get_cq_event(side->channel, &cq, &cq_context));
	ibv_ack_cq_events(cq, 1);
	side->notified = false;
}

static void connect_sides(struct side *side, int fd)
{
	static const enum ibv_mtu mtus[] = {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096};
	struct path path = default_path(&side->device);
	struct address mine = {.qpn = side->qp->qp_num,
			       .psn = 0xffffc0,
			       .rkey = side->mr->rkey,
			       .buffer = (uintptr_t)side->memory,
			       .gid = side->device.gid};
	char ready = 1, other;

	for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++)
		if (side->options.mtu == 256 << i)
			path.mtu = mtus[i];
	/* By default 4.096 µs × 2^14 = 67 ms a try. */
	path.timeout = (uint8_t)side->options.timeout;
	path.retry_count = (uint8_t)(side->options.until_error ? 3 : side->options.retries);
	if (!exchange(fd, &mine, &side->remote, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(side->qp, &side->device, &path, &side->remote));
	MUST(to_rts(side->qp, &path, mine.psn));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
}

static void run(struct side *side)
{
	struct options *options = &side->options;
	uint64_t receives = 0;

	for (uint64_t i = 0; i < options->count; i++)
		receives += consumes_receive(kind_of(side, i));
	while (side->finished < options->count || side->received < receives) {
		while (side->posted < options->count &&
		       side->posted - side->finished < (uint64_t)options->depth)
			post_request(side, side->posted++);
		progress(side);
	}
}

static void run_until_error(struct side *side)
{
	struct options *options = &side->options;

	while (side->first_error == IBV_WC_SUCCESS) {
		while (side->posted - side->finished < (uint64_t)options->depth)
			post_request(side, side->posted++);
		progress(side);
	}
	/* All unfinished requests (a WRITE and its READ count twice, the WRITE only on error) and all receives flush. */
	uint64_t least = side->posted - side->finished + (uint64_t)options->depth;
	uint64_t end = now_ms() + 20000;

	while (side->flushed < least && now_ms() < end)
		progress(side);
	if (side->flushed < least)
		fail("%llu of at least %llu requests were completed with an error",
		     (unsigned long long)side->flushed, (unsigned long long)least);
	if (qp_state(side->qp) != IBV_QPS_ERR)
		fail("the QP is in state %d", qp_state(side->qp));
	printf("ended with %s\n", ibv_wc_status_str(side->first_error));
}

static struct options parse(int argc, char **argv)
{
	struct options options = {.port = 18515, .gid_index = 1, .depth = 16, .size = 4096, .count = 1000, .timeout = 14, .retries = 7, .only = -1};
	int option;

	while ((option = getopt(argc, argv, "p:g:d:s:n:m:t:r:o:ex")) != -1) {
		switch (option) {
		case 'p': options.port = atoi(optarg); break;
		case 'g': options.gid_index = atoi(optarg); break;
		case 'd': options.depth = atoi(optarg); break;
		case 's': options.size = (uint32_t)strtoul(optarg, NULL, 0); break;
		case 'n': options.count = strtoull(optarg, NULL, 0); break;
		case 'm': options.mtu = atoi(optarg); break;
		case 't': options.timeout = atoi(optarg); break;
		case 'r': options.retries = atoi(optarg); break;
		case 'e': options.events = true; break;
		case 'x': options.until_error = true; break;
		case 'o':
			for (int kind = 0; kind < KINDS; kind++)
				if (!strcmp(optarg, kind_names[kind]))
					options.only = kind;
			if (options.only >= 0)
				break;
			usage();
			break;
		default: usage();
		}
	}
	if (options.depth < 1 || options.size < 8 || argc - optind > 1)
		usage();
	options.host = argv[optind];
	return options;
}

int main(int argc, char **argv)
{
	struct side side = {.options = parse(argc, argv)};
	char done = 1, other;

	alarm(ALARM_SECONDS);
	side.device = open_device(side.options.gid_index);
	side.channel = side.options.events ? MAKE(ibv_create_comp_channel(side.device.context)) : NULL;
	side.cq = make_cq(&side.device, 4 * side.options.depth + 16, side.channel);
	side.qp = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, 2 * (uint32_t)side.options.depth);
	side.memory = MAKE(calloc(1, word_offset(&side) + 8));
	side.mr = MAKE(ibv_reg_mr(side.device.pd, side.memory, word_offset(&side) + 8, ALL_ACCESS));
	MUST(to_init(side.qp, ALL_ACCESS));
	for (int i = 0; i < side.options.depth; i++)
		post_one_recv(&side, (uint64_t)i);

	int fd = meet(side.options.host, side.options.port);

	connect_sides(&side, fd);
	puts("connected");
	fflush(stdout);
	if (side.options.until_error) {
		run_until_error(&side);
	} else {
		run(&side);
		if (!exchange(fd, &done, &other, 1))
			fail("the other side is gone");
		printf("%llu requests and %llu receives were right\n", (unsigned long long)side.finished,
		       (unsigned long long)side.received);
	}
	MUST(ibv_destroy_qp(side.qp));
	MUST(ibv_dereg_mr(side.mr));
	MUST(ibv_destroy_cq(side.cq));
	if (side.channel)
		MUST(ibv_destroy_comp_channel(side.channel));
	MUST(ibv_dealloc_pd(side.device.pd));
	MUST(ibv_close_device(side.device.context));
	free(side.memory);
	return 0;
}
