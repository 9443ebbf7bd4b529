/* atomic_writes: each of two sides stores words at the other by atomic writes, reads them back, and looks at what it
 * got itself.
 */
#include "extended_qp.h"
#include <getopt.h>

#define ROUNDS 50

/* What is read back, and what the other side writes. */
struct memory {
	uint64_t read, theirs;
};

static struct memory memory;

static void store(struct ibv_qp *qp, struct ibv_cq *cq, const struct ibv_mr *mr, const struct address *at, uint64_t value)
{
	uint64_t remote = at->buffer + offsetof(struct memory, theirs);
	struct ibv_qp_ex *ex = started(qp, 1);
	struct ibv_wc wc;

	ibv_wr_atomic_write(ex, at->rkey, remote, &value);
	ex->wr_id = 2;
	ibv_wr_rdma_read(ex, at->rkey, remote);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)&memory.read, sizeof memory.read);
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(cq, &wc);
	EXPECT(wc.wr_id == 1 && wc.opcode == IBV_WC_ATOMIC_WRITE);
	MUST_COMPLETE(cq, &wc);
	if (wc.wr_id != 2 || memory.read != value)
		fail("%llx was read back, not %llx", (unsigned long long)memory.read, (unsigned long long)value);
}

int main(int argc, char **argv)
{
	int option, gid_index = 1;
	char done = 1, other;

	while ((option = getopt(argc, argv, "g:")) != -1) {
		if (option != 'g')
			fail("usage: atomic_writes [-g GID_INDEX] [SERVER]");
		gid_index = atoi(optarg);
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
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_WRITE,
	};
	struct ibv_qp *qp = MAKE(ibv_create_qp_ex(device.context, &init));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, &memory, sizeof memory, ALL_ACCESS));
	struct path path = default_path(&device);
	struct address mine = {.qpn = qp->qp_num, .rkey = mr->rkey, .buffer = (uintptr_t)&memory, .gid = device.gid}, theirs;

	path.timeout = 17;
	MUST(to_init(qp, ALL_ACCESS));
	int fd = meet(argv[optind], 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &done, &other, 1))
		fail("the other side is gone");
	for (uint64_t i = 1; i <= ROUNDS; i++)
		store(qp, cq, mr, &theirs, i * 0x0102030405060708);
	if (!exchange(fd, &done, &other, 1))
		fail("the other side is gone");
	if (memory.theirs != ROUNDS * 0x0102030405060708ull)
		fail("the last word here is %llx", (unsigned long long)memory.theirs);
	printf("%d words were right\n", ROUNDS);
	return 0;
}
