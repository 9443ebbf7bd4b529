/* tags: one process sends messages with tags to a tag-matching SRQ of another, on two queue pairs.
 *
 *   tags         receives
 *   tags HOST    sends
 */
#include "common.h"
#include <infiniband/tm_types.h>

#define TCP_PORT 18515
#define QPS 2
#define TAGS 300
#define SLOT 4096
#define HEADER sizeof(struct ibv_tmh)
#define BULK (1 << 20)
#define RENDEZVOUS 4
/* The buffers of tags, receives for what has none, room for FINs; then the bytes of rendezvous. */
#define UNTAGGED_AT (TAGS * SLOT)
#define UNTAGGED 40
#define FINS_AT (UNTAGGED_AT + UNTAGGED * SLOT)
#define BULK_AT (FINS_AT + UNTAGGED * SLOT)
#define SIZE (BULK_AT + RENDEZVOUS * BULK)

struct told {
	uint64_t wr_id, tag;
	uint32_t priv, byte_len;
	enum ibv_wc_opcode opcode;
	enum ibv_wc_status status;
	unsigned int flags;
};

static struct device device;
static struct path path;
static int tcp;
static bool receiver;
static char *memory;
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq;
static struct ibv_cq *send_cq;
static struct ibv_srq *srq;
static struct ibv_qp *qps[QPS];
static uint32_t handled;

/* Both sides are there. */
static void meet_again(void)
{
	char byte = 1, other;

	if (!exchange(tcp, &byte, &other, 1))
		fail("the other side has gone");
}

static bool poll_told(struct told *told)
{
	struct ibv_poll_cq_attr attr = {0};
	struct ibv_wc_tm_info info;
	int result = ibv_start_poll(cq, &attr);

	if (result == ENOENT)
		return false;
	if (result)
		fail("ibv_start_poll: %s", strerror(result));
	*told = (struct told){.wr_id = cq->wr_id, .status = cq->status, .opcode = ibv_wc_read_opcode(cq)};
	told->flags = ibv_wc_read_wc_flags(cq);
	told->byte_len = ibv_wc_read_byte_len(cq);
	ibv_wc_read_tm_info(cq, &info);
	told->tag = info.tag;
	told->priv = info.priv;
	ibv_end_poll(cq);
	return true;
}

static struct told next_told(void)
{
	uint64_t end = now_ms() + 20000;
	struct told told;

	while (!poll_told(&told))
		if (now_ms() > end)
			fail("no completion in 20 s");
	return told;
}

static struct told must_be(enum ibv_wc_opcode opcode, unsigned int flags, uint64_t wr_id)
{
	struct told told = next_told();

	if (told.status != IBV_WC_SUCCESS || told.opcode != opcode || told.flags != flags || told.wr_id != wr_id)
		fail("%s, opcode %d, flags %#x, wr_id %#llx instead of opcode %d, flags %#x, wr_id %#llx",
		     ibv_wc_status_str(told.status), told.opcode, told.flags, (unsigned long long)told.wr_id, opcode,
		     flags, (unsigned long long)wr_id);
	return told;
}

static void operate(struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad;

	wr->tm.unexpected_cnt = handled;
	MUST(ibv_post_srq_ops(srq, wr, &bad));
}

/* Adds a tag whose buffer lies at `at`, and returns its handle. */
static uint32_t add(uint64_t tag, uint64_t mask, size_t at, uint32_t length, int flags, unsigned int told)
{
	struct ibv_sge sge = {(uintptr_t)memory + at, length, mr->lkey};
	struct ibv_ops_wr wr = {.wr_id = ~tag, .opcode = IBV_WR_TAG_ADD, .flags = flags | IBV_OPS_SIGNALED};

	wr.tm.add.recv_wr_id = tag;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = mask;
	operate(&wr);
	must_be(IBV_WC_TM_ADD, told, ~tag);
	return wr.tm.handle;
}

static void synchronize(void)
{
	struct ibv_ops_wr wr = {.wr_id = 9, .opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC};

	operate(&wr);
	must_be(IBV_WC_TM_SYNC, 0, 9);
}

static void give(uint64_t index)
{
	struct ibv_sge sge = {(uintptr_t)memory + UNTAGGED_AT + index * SLOT, SLOT, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 5000 + index, .sg_list = &sge, .num_sge = 1}, *bad;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
}

/* The next message that has matched no tag: its whole text, whose receive is posted again. */
static const struct ibv_tmh *untagged(enum ibv_wc_opcode opcode)
{
	static char text[SLOT];
	struct told told = next_told();
	uint64_t index = told.wr_id - 5000;

	if (told.status != IBV_WC_SUCCESS || told.opcode != opcode || told.flags || told.tag || index >= UNTAGGED)
		fail("%s, opcode %d, flags %#x instead of a message without a match", ibv_wc_status_str(told.status),
		     told.opcode, told.flags);
	memcpy(text, memory + UNTAGGED_AT + index * SLOT, told.byte_len);
	give(index);
	handled += opcode == IBV_WC_TM_RECV;
	return (const struct ibv_tmh *)text;
}

static void finish(struct ibv_qp *qp, struct ibv_send_wr *wr, enum ibv_wc_opcode opcode)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr->send_flags |= IBV_SEND_SIGNALED;
	MUST(ibv_post_send(qp, wr, &bad));
	MUST_COMPLETE(send_cq, &wc);
	if (wc.opcode != opcode)
		fail("opcode %d instead of %d", wc.opcode, opcode);
}

static void send_message(struct ibv_qp *qp, enum ibv_tmh_op operation, uint64_t tag, const void *text, uint32_t length)
{
	struct ibv_tmh *header = (struct ibv_tmh *)memory;
	struct ibv_sge sge = {(uintptr_t)memory, HEADER + length, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

	*header = (struct ibv_tmh){.opcode = operation, .app_ctx = htonl((uint32_t)tag * 3), .tag = htobe64(tag)};
	memcpy(header + 1, text, length);
	finish(qp, &wr, IBV_WC_SEND);
}

static void send_eager(struct ibv_qp *qp, uint64_t tag)
{
	char text[SLOT];
	uint32_t length = (uint32_t)(tag * 37 % 3000);

	fill(text, length, tag);
	send_message(qp, IBV_TMH_EAGER, tag, text, length);
}

static void check_eager(const struct told *told, size_t at, uint64_t tag)
{
	if (told->tag != tag || told->priv != (uint32_t)tag * 3 || told->byte_len != tag * 37 % 3000)
		fail("tag %#llx, priv %#x, %u bytes instead of tag %#llx", (unsigned long long)told->tag, told->priv,
		     told->byte_len, (unsigned long long)tag);
	check(memory + at, told->byte_len, tag, "message");
}

static struct ibv_rvh bulk(uint64_t index)
{
	return (struct ibv_rvh){.va = htobe64((uintptr_t)memory + BULK_AT + index * BULK),
				.rkey = htonl(mr->rkey),
				.len = htonl(BULK - (uint32_t)index)};
}

/* Waits for the FIN of the rendezvous with this tag. */
static void must_fin(uint64_t tag)
{
	struct ibv_wc wc;
	const struct ibv_tmh *fin;

	MUST_COMPLETE(ibv_cq_ex_to_cq(cq), &wc);
	fin = (const struct ibv_tmh *)(memory + FINS_AT + wc.wr_id * SLOT);
	if (wc.opcode != IBV_WC_RECV || wc.byte_len != HEADER || fin->opcode != IBV_TMH_FIN ||
	    be64toh(fin->tag) != tag || ntohl(fin->app_ctx) != (uint32_t)tag * 3)
		fail("that isn't the FIN of tag %#llx", (unsigned long long)tag);
}

/* Many tags, of which messages take theirs in any order. */
static void many(void)
{
	if (receiver) {
		for (uint64_t tag = 0; tag < TAGS; tag++)
			add(tag, ~0ull, tag * SLOT, SLOT, 0, 0);
		meet_again();
		for (int i = 0; i < TAGS; i++) {
			struct told told = next_told();

			if (told.status || told.opcode != IBV_WC_TM_RECV || told.wr_id >= TAGS ||
			    told.flags != (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID))
				fail("%s, opcode %d, flags %#x", ibv_wc_status_str(told.status), told.opcode, told.flags);
			check_eager(&told, told.wr_id * SLOT, told.wr_id);
		}
	} else {
		meet_again();
		for (uint64_t i = 0; i < TAGS; i++)
			send_eager(qps[i % QPS], i * 7 % TAGS);
	}
	meet_again();
}

/* Masks: the first tag added takes the message, if it matches; a message without a tag goes past them. */
static void masked(void)
{
	static const uint64_t tags[] = {0x1142, 0x1142, 0x9999}, takers[] = {0x1100, 0x1142, 0};
	const unsigned int whole = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID;

	if (receiver) {
		add(0x1100, 0xff00, 0, SLOT, 0, 0);
		add(0x1142, 0xffff, SLOT, SLOT, 0, 0);
		add(0, 0, 2 * SLOT, SLOT, 0, 0);
		meet_again();
		if (be64toh(untagged(IBV_WC_TM_NO_TAG)->tag) != 0x1142)
			fail("a message without a tag has lost its header");
		for (size_t i = 0; i < 3; i++) {
			struct told told = must_be(IBV_WC_TM_RECV, whole, takers[i]);

			check_eager(&told, i * SLOT, tags[i]);
		}
	} else {
		meet_again();
		send_message(qps[0], IBV_TMH_NO_TAG, 0x1142, "text", 4);
		for (size_t i = 0; i < 3; i++)
			send_eager(qps[0], tags[i]);
	}
	meet_again();
}

/* Messages without a tag, which the program takes in; tags added meanwhile match only when it has confirmed that (IBV_OPS_TM_SYNC). */
static void unexpected(void)
{
	if (receiver) {
		struct ibv_ops_wr del = {.wr_id = 3, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED};
		struct told told;

		meet_again();
		for (uint64_t tag = 0x600; tag < 0x600 + UNTAGGED / 2; tag++) {
			const struct ibv_tmh *header = untagged(IBV_WC_TM_RECV);

			if (be64toh(header->tag) != tag)
				fail("tag %#llx out of order", (unsigned long long)be64toh(header->tag));
			check(header + 1, tag * 37 % 3000, tag, "unexpected message");
		}
		del.tm.handle = add(0x700, ~0ull, 0, SLOT, 0, IBV_WC_TM_SYNC_REQ);
		meet_again();
		if (be64toh(untagged(IBV_WC_TM_RECV)->tag) != 0x700)
			fail("a tag added out of step has matched");
		operate(&del);
		must_be(IBV_WC_TM_DEL, IBV_WC_TM_SYNC_REQ, 3);
		del.tm.handle = add(0x700, ~0ull, 0, SLOT, IBV_OPS_TM_SYNC, 0);
		meet_again();
		told = must_be(IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID, 0x700);
		check_eager(&told, 0, 0x700);
		operate(&del);
		told = next_told();
		if (told.status != IBV_WC_TM_ERR || told.wr_id != 3)
			fail("a tag that is gone was removed: %s", ibv_wc_status_str(told.status));
	} else {
		meet_again();
		for (uint64_t tag = 0x600; tag < 0x600 + UNTAGGED / 2; tag++)
			send_eager(qps[1], tag);
		meet_again();
		send_eager(qps[1], 0x700);
		meet_again();
		send_eager(qps[1], 0x700);
	}
	meet_again();
}

/* Rendezvous: the adapter reads a megabyte each and informs the sender; one of them the program carries out itself. */
static void rendezvous(void)
{
	if (receiver) {
		uint64_t seen = 0;

		memset(memory + BULK_AT, 0, RENDEZVOUS * BULK);
		for (uint64_t tag = 0; tag < RENDEZVOUS - 1; tag++)
			add(tag, ~0ull, BULK_AT + tag * BULK, BULK, IBV_OPS_TM_SYNC, 0);
		meet_again();
		for (int i = 0; i < 2 * (RENDEZVOUS - 1); i++) {
			struct told told = next_told();
			unsigned int before = (unsigned int)(seen >> told.wr_id * 8) & 0xff;

			seen |= (uint64_t)told.flags << told.wr_id * 8;
			if (told.status || told.opcode != IBV_WC_TM_RECV ||
			    (before ? before != IBV_WC_TM_MATCH || told.flags != IBV_WC_TM_DATA_VALID
				    : told.flags != IBV_WC_TM_MATCH || told.tag != told.wr_id))
				fail("rendezvous: %s, opcode %d, flags %#x", ibv_wc_status_str(told.status), told.opcode,
				     told.flags);
			if (before && told.byte_len != BULK - told.wr_id)
				fail("a rendezvous of %u bytes", told.byte_len);
			if (before)
				check(memory + BULK_AT + told.wr_id * BULK, told.byte_len, told.wr_id + 40, "rendezvous");
		}
		const struct ibv_tmh *header = untagged(IBV_WC_TM_RECV);
		const struct ibv_rvh *rvh = (const struct ibv_rvh *)(header + 1);
		uint64_t tag = be64toh(header->tag);
		struct ibv_sge sge = {(uintptr_t)memory + BULK_AT + tag * BULK, ntohl(rvh->len), mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};

		wr.wr.rdma.remote_addr = be64toh(rvh->va);
		wr.wr.rdma.rkey = ntohl(rvh->rkey);
		finish(qps[0], &wr, IBV_WC_RDMA_READ);
		check(memory + BULK_AT + tag * BULK, sge.length, tag + 40, "rendezvous of the program");
		send_message(qps[0], IBV_TMH_FIN, tag, "", 0);
		synchronize();
	} else {
		struct ibv_rvh rvh;

		for (uint64_t i = 0; i < RENDEZVOUS; i++)
			fill(memory + BULK_AT + i * BULK, BULK, i + 40);
		meet_again();
		/* One after the other: FINs of two queue pairs come in any order. */
		for (uint64_t i = 0; i < RENDEZVOUS; i++) {
			struct ibv_qp *qp = qps[i == RENDEZVOUS - 1 ? 0 : i % QPS];

			rvh = bulk(i);
			send_message(qp, IBV_TMH_RNDV, i, &rvh, sizeof rvh);
			must_fin(i);
		}
	}
	meet_again();
}

static void set_up(void)
{
	struct ibv_cq_init_attr_ex cq_attr = {.cqe = 2 * TAGS,
					      .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO};
	struct ibv_srq_init_attr_ex srq_attr = {.attr = {.max_wr = UNTAGGED, .max_sge = 1},
						.srq_type = IBV_SRQT_TM,
						.tm_cap = {.max_num_tags = TAGS, .max_ops = 16}};

	cq = MAKE(ibv_create_cq_ex(device.context, &cq_attr));
	send_cq = make_cq(&device, 64, NULL);
	srq_attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
	srq_attr.pd = device.pd;
	srq_attr.cq = ibv_cq_ex_to_cq(cq);
	if (receiver) {
		srq = MAKE(ibv_create_srq_ex(device.context, &srq_attr));
		for (uint64_t i = 0; i < UNTAGGED; i++)
			give(i);
	}
	for (uint64_t i = 0; i < QPS; i++) {
		struct address mine = {.psn = 77, .gid = device.gid}, theirs;
		struct ibv_qp_init_attr init = {
			.send_cq = send_cq,
			.recv_cq = ibv_cq_ex_to_cq(cq),
			.srq = srq,
			.cap = {.max_send_wr = 1, .max_recv_wr = receiver ? 0 : 16, .max_send_sge = 1, .max_recv_sge = !receiver},
			.qp_type = IBV_QPT_RC,
		};

		qps[i] = MAKE(ibv_create_qp(device.pd, &init));
		mine.qpn = qps[i]->qp_num;
		MUST(to_init(qps[i], path.access));
		if (!exchange(tcp, &mine, &theirs, sizeof mine))
			fail("the other side has gone");
		MUST(to_rtr(qps[i], &device, &path, &theirs));
		MUST(to_rts(qps[i], &path, mine.psn));
		for (uint64_t j = 0; !receiver && j < 8; j++)
			MUST(post_recv(qps[i], mr, FINS_AT + (i * 8 + j) * SLOT, SLOT, i * 8 + j));
	}
	meet_again();
}

int main(int argc, char **argv)
{
	if (argc > 2)
		fail("usage: tags [HOST]");
	alarm(ALARM_SECONDS);
	receiver = argc == 1;
	tcp = meet(argv[1], TCP_PORT);
	device = open_device(1);
	path = default_path(&device);
	memory = MAKE(aligned_alloc(4096, SIZE));
	mr = MAKE(ibv_reg_mr(device.pd, memory, SIZE, ALL_ACCESS));
	set_up();
	many();
	masked();
	unexpected();
	rendezvous();
	for (int i = 0; i < QPS; i++)
		MUST(ibv_destroy_qp(qps[i]));
	if (srq)
		MUST(ibv_destroy_srq(srq));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	MUST(ibv_destroy_cq(send_cq));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	puts("ok");
	return 0;
}
