/* former_connection: one side writes and reads the other's memory, which is then connected anew, to the same queue pair and with
 * another first PSN. What still comes by the former connection must be refused, and neither change memory nor return its contents.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "common.h"

#define LENGTH 4096
/* Enough for memory that can be shared to be mapped by the other side. */
#define OPERATIONS 30

static struct device device;
static struct ibv_cq *cq;
static int fd;

static void meet_again(void)
{
	char ready = 1, other;

	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
}

static enum ibv_wc_status carry_out(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const struct ibv_mr *mr,
				    const struct address *theirs)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;

	set_remote(&wr, theirs->buffer, theirs->rkey);
	MUST(ibv_post_send(qp, &wr, &bad));
	if (!wait_wc(cq, &wc, 10000))
		fail("no completion in 10 s");
	return wc.status;
}

static void initiator(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const struct ibv_mr *mr,
		      const struct address *theirs)
{
	uint64_t *word = mr->addr;

	for (uint64_t index = 1; index <= OPERATIONS; index++) {
		*word = index;
		if (carry_out(qp, opcode, mr, theirs) != IBV_WC_SUCCESS)
			fail("operation %llu has failed", (unsigned long long)index);
	}
	meet_again();
	meet_again();
	*word = OPERATIONS + 1;
	enum ibv_wc_status status = carry_out(qp, opcode, mr, theirs);

	if (status != IBV_WC_RETRY_EXC_ERR)
		fail("what comes by a former connection ends with %s", ibv_wc_status_str(status));
	if (*word != OPERATIONS + 1)
		fail("a READ by a former connection has got %llu", (unsigned long long)*word);
	meet_again();
}

static void target(struct ibv_qp *qp, const struct path *path, const struct ibv_mr *mr, struct address theirs)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	const volatile uint64_t *word = mr->addr;
	uint64_t before;

	meet_again();
	before = *word;
	MUST(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	MUST(to_init(qp, ALL_ACCESS));
	theirs.psn += 0x1000;
	MUST(to_rtr(qp, &device, path, &theirs));
	meet_again();
	meet_again();
	if (*word != before)
		fail("a former connection has written %llu", (unsigned long long)*word);
}

static void run(bool asks, enum ibv_wr_opcode opcode, bool shared, bool sends)
{
	struct path path = default_path(&device);
	int file = memfd_create("former", MFD_CLOEXEC);
	struct address mine, theirs;
	void *memory;

	path.timeout = 10;
	path.retry_count = 2;
	if (file < 0 || ftruncate(file, LENGTH))
		fail("memfd: %s", strerror(errno));
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, file, 0);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS));
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 16);

	mine = (struct address){
		.qpn = qp->qp_num, .psn = 7, .rkey = mr->rkey, .buffer = (uintptr_t)memory, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, &device, &path, &theirs));
	if (asks || sends)
		MUST(to_rts(qp, &path, mine.psn));
	meet_again();
	if (asks)
		initiator(qp, opcode, mr, &theirs);
	else
		target(qp, &path, mr, theirs);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_dereg_mr(mr));
	munmap(memory, LENGTH);
	close(file);
}

int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : NULL;

	alarm(ALARM_SECONDS);
	device = open_device(1);
	cq = make_cq(&device, 16, NULL);
	fd = meet(host, 18515);
	for (int way = 0; way < 8; way++)
		run(host != NULL, way & 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, way & 2, way & 4);
	puts("ok");
	return 0;
}
