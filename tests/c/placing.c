/* placing: each of two sides stores words at the other by atomic writes, and reads them back; `-f`: it also writes blocks there
 * and flushes them first. The other side of a flush needn't know how to ask for one.
 */
#include "flush.h"
#include <getopt.h>

#define ROUNDS 50
#define BLOCK 3000

/* Of this side: a word and a block to send, room for what is read back; of the other: a word and a block. */
struct memory {
	uint64_t word_read;
	char block[BLOCK], block_read[BLOCK];
	uint64_t their_word;
	char their_block[BLOCK];
};

static struct memory memory;
static struct ibv_mr *mr;
static struct address theirs;

static uint64_t their(size_t offset)
{
	return theirs.buffer + offset;
}

static void read_back(struct ibv_qp_ex *ex, void *to, size_t from, uint32_t length)
{
	ex->wr_id = 3;
	ibv_wr_rdma_read(ex, theirs.rkey, their(from));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)to, length);
}

static void finish(struct ibv_qp_ex *ex, struct ibv_cq *cq, enum ibv_wc_opcode first, uint64_t last)
{
	struct ibv_wc wc;

	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(cq, &wc);
	EXPECT(wc.opcode == first);
	while (wc.wr_id != last)
		MUST_COMPLETE(cq, &wc);
}

static void store_word(struct ibv_qp *qp, struct ibv_cq *cq, uint64_t value)
{
	struct ibv_qp_ex *ex = started(qp, 1);

	ibv_wr_atomic_write(ex, theirs.rkey, their(offsetof(struct memory, their_word)), &value);
	read_back(ex, &memory.word_read, offsetof(struct memory, their_word), sizeof memory.word_read);
	finish(ex, cq, IBV_WC_ATOMIC_WRITE, 3);
	if (memory.word_read != value)
		fail("%llx was read back, not %llx", (unsigned long long)memory.word_read, (unsigned long long)value);
}

static void flush_block(struct ibv_qp *qp, struct ibv_cq *cq, uint64_t index)
{
	size_t at = offsetof(struct memory, their_block);
	struct ibv_qp_ex *ex = started(qp, 1);

	fill(memory.block, BLOCK, index);
	ibv_wr_rdma_write(ex, theirs.rkey, their(at));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory.block, BLOCK);
	ex->wr_id = 2;
	wr_flush(ex, theirs.rkey, (void *)(uintptr_t)their(at), index % 2 ? BLOCK : 0, GLOBAL, index % 2 ? RANGE : WHOLE_MR);
	read_back(ex, memory.block_read, at, BLOCK);
	finish(ex, cq, IBV_WC_RDMA_WRITE, 3);
	check(memory.block_read, BLOCK, index, "flushed block");
}

int main(int argc, char **argv)
{
	unsigned int access = ALL_ACCESS | ACCESS_FLUSH_GLOBAL;
	bool flushes = false;
	int option, gid_index = 1;
	char done = 1, other;

	while ((option = getopt(argc, argv, "fg:")) != -1) {
		if (option == 'f')
			flushes = true;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else
			fail("usage: placing [-f] [-g GID_INDEX] [SERVER]");
	}
	alarm(ALARM_SECONDS);
	struct device device = open_device(gid_index);
	struct ibv_cq *cq = make_cq(&device, 16, NULL);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = device.pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_WRITE |
				  (flushes ? WITH_FLUSH : 0),
	};
	struct ibv_qp *qp = MAKE(ibv_create_qp_ex(device.context, &init));
	struct path path = default_path(&device);

	path.timeout = 17;
	mr = MAKE(ibv_reg_mr(device.pd, &memory, sizeof memory, (int)access));
	MUST(to_init(qp, access));
	int fd = meet(argv[optind], 18515);
	struct address mine = {.qpn = qp->qp_num, .rkey = mr->rkey, .buffer = (uintptr_t)&memory, .gid = device.gid};

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &done, &other, 1))
		fail("the other side is gone");
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		store_word(qp, cq, i * 0x0102030405060708);
		if (flushes)
			flush_block(qp, cq, i);
	}
	if (!exchange(fd, &done, &other, 1))
		fail("the other side is gone");
	if (memory.their_word != ROUNDS * 0x0102030405060708ull)
		fail("the last word here is %llx", (unsigned long long)memory.their_word);
	printf("%d words%s were right\n", ROUNDS, flushes ? " and blocks" : "");
	return 0;
}
