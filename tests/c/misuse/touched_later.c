/* The memory of receives that will never be filled: `touched_later reset|close|fork|fork_and_reuse|none`. The program touches it after
 * a RESET of the queue pair, after ibv_close_device, or in the child of a fork, which may post receives of its own before; with
 * "none" while the receives are posted.
 */
#include "../common.h"
#include <sys/wait.h>

#define RECEIVES 4
#define SIZE 256

static char memory[RECEIVES * SIZE];

static struct ibv_qp *post_receives(const struct device *device, struct ibv_cq *cq)
{
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp *qp = make_qp(device, IBV_QPT_RC, cq, NULL, RECEIVES);

	MUST(to_init(qp, IBV_ACCESS_LOCAL_WRITE));
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = {.addr = (uintptr_t)(memory + i * SIZE), .length = SIZE, .lkey = mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

		MUST(ibv_post_recv(qp, &wr, &bad));
	}
	return qp;
}

static void touch(void)
{
	for (volatile char *at = memory; at < memory + sizeof memory; at++)
		*at = 1;
}

static void child(bool reuses)
{
	if (reuses) {
		struct device own = open_device(1);
		struct ibv_qp *qp = post_receives(&own, make_cq(&own, RECEIVES, NULL));

		MUST(ibv_destroy_qp(qp));
	}
	touch();
	_exit(0);
}

int main(int argc, char **argv)
{
	int status;

	alarm(ALARM_SECONDS);
	if (argc != 2)
		fail("usage: %s reset|close|fork|fork_and_reuse|none", argv[0]);
	struct device device = open_device(1);
	struct ibv_qp *qp = post_receives(&device, make_cq(&device, RECEIVES, NULL));

	if (!strcmp(argv[1], "reset")) {
		struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

		MUST(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	} else if (!strcmp(argv[1], "close")) {
		MUST(ibv_close_device(device.context));
	} else if (!strncmp(argv[1], "fork", 4)) {
		if (!fork())
			child(!strcmp(argv[1], "fork_and_reuse"));
		if (wait(&status) < 0 || status)
			fail("the child ended with status %#x", status);
		puts("ok");
		return 0;
	}
	touch();
	puts("ok");
	return 0;
}
