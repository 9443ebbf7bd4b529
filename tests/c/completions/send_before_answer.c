/* send_before_answer: two processes that connect to one another at the same moment, again and again, and then play
 * ping-pong: each learns that its message has arrived before it learns of the answer to it.
 *
 * Either process may make the shared memory between them, so sometimes both do.
 */
#include "common.h"

#define ROUNDS 40
#define MESSAGES 60
#define DEPTH 4
#define LENGTH 8

/* How many sides have come to the point from which both go on at once. */
static _Atomic int *arrived;

static void go_together(void)
{
	int sides = ++*arrived;

	/* The processes spin here, and yield now and then in case there is no second processor. */
	for (int i = 0; *arrived < (sides + 1) / 2 * 2; i++)
		if (i % 10000 == 9999)
			sched_yield();
}

static void expect(struct ibv_cq *cq, enum ibv_wc_opcode opcode, int message)
{
	struct ibv_wc wc;

	MUST_COMPLETE(cq, &wc);
	if (wc.opcode != opcode)
		fail("message %d: %s", message,
		     opcode == IBV_WC_SEND ? "its answer came before its send completed" : "a completion of nothing");
}

static void play(int fd, int side)
{
	bool begins = side == 0;
	static char memory[LENGTH];
	char ready = 1, other;
	struct address mine, theirs;
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 2 * DEPTH, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, DEPTH);
	struct path path = default_path(&device);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS));

	MUST(to_init(qp, path.access));
	for (int i = 0; i < DEPTH; i++)
		MUST(post_recv(qp, mr, 0, LENGTH, 0));
	mine = (struct address){.qpn = qp->qp_num, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	go_together();
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	for (int i = 0; i < MESSAGES; i++) {
		if (!begins) {
			expect(cq, IBV_WC_RECV, i);
			MUST(post_recv(qp, mr, 0, LENGTH, 0));
		}
		MUST(post_send(qp, mr, 0, LENGTH, 0));
		expect(cq, IBV_WC_SEND, i);
		if (begins) {
			expect(cq, IBV_WC_RECV, i);
			MUST(post_recv(qp, mr, 0, LENGTH, 0));
		}
	}
	/* Both end when both are done. */
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
}

int main(void)
{
	alarm(ALARM_SECONDS);
	arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (arrived == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	for (int round = 0; round < ROUNDS; round++)
		run_two_sides(play, round);
	puts("ok");
	return 0;
}
