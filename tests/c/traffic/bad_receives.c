/* bad_receives: one side sends messages in a row, the other has receives for all of them, of which one in the middle is bad. Those
 * before it arrive, whole and in order. The bad one fails at both sides with its cause, and the rest is flushed. Then the same queue
 * pairs connect anew.
 */
#include "common.h"
#include "cases.h"

#define MESSAGES 60
#define LONGEST 40000
#define PSN 0xfffff0

enum fault { SHORT, NO_KEY, FAULTS };

/* What the fault is called by the side that has the receive, and by the one that sends. */
static const enum ibv_wc_status statuses[FAULTS][2] = {
	[SHORT] = {IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR},
	[NO_KEY] = {IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
};

static char memory[MESSAGES * LONGEST];
/* Of the messages: short ones, and then long ones. */
static uint32_t length = 64;

/* Receives for all messages; that with the number `bad` has a fault. */
static void post_receives(struct ibv_qp *qp, const struct ibv_mr *mr, unsigned int bad, enum fault fault)
{
	for (unsigned int i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = {(uintptr_t)memory + i * LONGEST, length, mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad_wr;

		if (i == bad && fault == SHORT)
			sge.length = length - 1;
		if (i == bad && fault == NO_KEY)
			sge.lkey ^= 0x55;
		MUST(ibv_post_recv(qp, &wr, &bad_wr));
	}
}

static void post_sends(struct ibv_qp *qp, const struct ibv_mr *mr)
{
	for (unsigned int i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = {(uintptr_t)memory + i * LONGEST, length, mr->lkey};
		struct ibv_send_wr wr = {.wr_id = i,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED},
				   *bad_wr;

		fill(memory + i * LONGEST, length, i);
		MUST(ibv_post_send(qp, &wr, &bad_wr));
	}
}

int main(int argc, char **argv)
{
	/* In the first message of what is executed together, within it, and in the last of all. */
	static const unsigned int places[] = {0, 7, 16, 40, MESSAGES - 1};
	bool sends = argc > 1;
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_cq *cq = make_cq(&device, MESSAGES, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, MESSAGES);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	struct address theirs, mine = {.qpn = qp->qp_num, .psn = PSN, .gid = device.gid};
	char ready = 1, other;

	alarm(ALARM_SECONDS);
	int fd = meet(sends ? argv[1] : NULL, 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	const unsigned int cases = FAULTS * sizeof places / sizeof *places;

	for (unsigned int round = 0; round < 2 * cases; round++) {
		enum fault fault = round % FAULTS;
		unsigned int bad = places[round % cases / FAULTS];
		struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

		length = round < cases ? 64 : LONGEST;
		MUST(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
		MUST(to_init(qp, ALL_ACCESS));
		memset(memory, 0, sizeof memory);
		if (!sends)
			post_receives(qp, mr, bad, fault);
		MUST(to_rtr(qp, &device, &path, &theirs));
		MUST(to_rts(qp, &path, PSN));
		if (!exchange(fd, &ready, &other, 1))
			fail("the other side is gone");
		if (sends)
			post_sends(qp, mr);
		/* All is on its way before the other side looks. */
		if (!exchange(fd, &ready, &other, 1))
			fail("the other side is gone");
		for (unsigned int i = 0; i < MESSAGES; i++)
			EXPECT_STATUS(cq, i, i < bad   ? IBV_WC_SUCCESS
					     : i > bad ? IBV_WC_WR_FLUSH_ERR
						       : statuses[fault][sends]);
		for (unsigned int i = 0; i < bad; i++)
			if (first_wrong(memory + i * LONGEST, length, i) != length)
				fail("message %u has other bytes", i);
		if (!exchange(fd, &ready, &other, 1))
			fail("the other side is gone");
	}
	printf("all rounds were right\n");
	return 0;
}
