/* XRC requests that name the wrong shared receive queue, or one that another process has and that has no room. */
#include "misuse.h"
#include <sys/prctl.h>

static void use_xrc(struct config *config, bool wrong)
{
	(void)wrong;
	config->type = IBV_QPT_XRC_SEND;
}

/* A shared receive queue with a receive of so many bytes; returns its number. */
static uint32_t make_srq(const struct side *side, struct ibv_xrcd *domain, uint32_t length)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = 4, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = side->device->pd,
		.xrcd = domain,
		.cq = side->cq,
	};
	struct ibv_srq *srq = MAKE(ibv_create_srq_ex(side->device->context, &init));
	struct ibv_sge sge = element(side->mr, length);
	struct ibv_recv_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
	uint32_t number;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
	MUST(ibv_get_srq_num(srq, &number));
	return number;
}

static void offer_own_srq(struct side *side, struct offer *offer, bool wrong)
{
	offer->srqn = make_srq(side, side->domain, 64) + (wrong ? 0x100000 : 0);
}

/* The number of another process's queue. */
static uint32_t of_owner;

/* Starts a process that has a shared receive queue, and lives as long as this one. */
static void start_owner(struct config *config, bool wrong)
{
	static const struct config plain = {.type = IBV_QPT_RC};
	int ends[2];

	use_xrc(config, wrong);
	MUST(pipe(ends));
	pid_t owner = fork();
	if (owner < 0)
		fail("fork: %s", strerror(errno));
	if (!owner) {
		alarm(ALARM_SECONDS);
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		struct device device = open_device(1);
		struct side side = make_side(&device, &plain);
		uint32_t number = make_srq(&side, open_domain(&device), wrong ? 16 : 64);

		if (write(ends[1], &number, sizeof number) != sizeof number)
			fail("the peer isn't listening");
		pause();
	}
	close(ends[1]);
	if (read(ends[0], &of_owner, sizeof of_owner) != sizeof of_owner)
		fail("the process with the shared receive queue has failed");
}

static void offer_srq_of_owner(struct side *side, struct offer *offer, bool wrong)
{
	(void)side, (void)wrong;
	offer->srqn = of_owner;
}

static void send_to_srq(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_sge sge = element(side->mr, 64);
	struct ibv_send_wr wr = {.wr_id = 42, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	(void)wrong;
	wr.qp_type.xrc.remote_srqn = offer->srqn;
	MUST(ibv_post_send(side->qp, &wr, &bad));
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		MISUSE(unknown_srq, IBV_WC_REM_INV_REQ_ERR, .configure = use_xrc, .prepare = offer_own_srq,
		       .request = send_to_srq),
		MISUSE(owner_refuses, IBV_WC_REM_INV_REQ_ERR, .configure = start_owner, .prepare = offer_srq_of_owner,
		       .request = send_to_srq),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
