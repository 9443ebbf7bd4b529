/* post_after_reset: a queue pair that was connected to another process is in RESET, and its completion queue is full of
 * another queue pair's completions: what is posted is refused because of the state, not for want of room.
 */
#include "common.h"

#define LENGTH 8

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static void fill_cq(const struct device *device, struct ibv_cq *cq, const struct ibv_mr *mr)
{
	struct ibv_qp *qp = make_qp(device, IBV_QPT_RC, cq, NULL, 1);

	to_state(qp, IBV_QPS_ERR);
	for (int i = 0; i < cq->cqe; i++)
		MUST(post_recv(qp, mr, 0, LENGTH, 0));
}

static void play(int fd, UNUSED int side)
{
	static char memory[LENGTH];
	char ready = 1, other;
	struct address mine, theirs;
	struct ibv_wc wc;
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 2);
	struct path path = default_path(&device);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS));
	struct ibv_sge sge = {(uintptr_t)memory, LENGTH, mr->lkey};
	struct ibv_send_wr write = {.sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	int error;

	MUST(to_init(qp, path.access));
	MUST(post_recv(qp, mr, 0, LENGTH, 0));
	mine = (struct address){.qpn = qp->qp_num, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	MUST(post_send(qp, mr, 0, LENGTH, 0));
	for (int i = 0; i < 2; i++)
		MUST_COMPLETE(cq, &wc);
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	to_state(qp, IBV_QPS_RESET);
	fill_cq(&device, cq, mr);
	error = ibv_post_send(qp, &write, &bad);
	if (error != EINVAL)
		fail("a request in RESET: %s", strerror(error));
}

int main(void)
{
	alarm(ALARM_SECONDS);
	run_two_sides(play, 0);
	puts("ok");
	return 0;
}
