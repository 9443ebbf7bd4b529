/* other_service: an RC queue pair and a UC one of two processes are connected to each other, by mistake. Neither takes what the
 * other sends, whichever sends first.
 */
#include "common.h"

#define LENGTH 8

static void expect_nothing(struct ibv_cq *cq, int milliseconds)
{
	struct ibv_wc wc;

	if (wait_wc(cq, &wc, milliseconds))
		fail("a completion: %s, opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
}

static void play(int fd, int side)
{
	enum ibv_qp_type type = side == 0 ? IBV_QPT_RC : IBV_QPT_UC;
	static char memory[LENGTH];
	char ready = 1, other;
	struct address mine, theirs;
	struct ibv_wc wc;
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_qp *qp = make_qp(&device, type, cq, NULL, 1);
	struct path path = default_path(&device);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS));
	unsigned int access = type == IBV_QPT_RC ? path.access : IBV_ACCESS_REMOTE_WRITE;

	/* The RC side asks again for half a minute. */
	path.timeout = 20;
	MUST(to_init(qp, access));
	MUST(post_recv(qp, mr, 0, LENGTH, 0));
	mine = (struct address){.qpn = qp->qp_num, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	if (type == IBV_QPT_RC)
		MUST(post_send(qp, mr, 0, LENGTH, 0));
	else
		expect_nothing(cq, 300);
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	if (type == IBV_QPT_UC) {
		MUST(post_send(qp, mr, 0, LENGTH, 0));
		MUST_COMPLETE(cq, &wc);
	} else {
		expect_nothing(cq, 300);
	}
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
}

int main(void)
{
	alarm(ALARM_SECONDS);
	run_two_sides(play, 0);
	puts("ok");
	return 0;
}
