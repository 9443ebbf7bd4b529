/* Receives that are missing, too small or in the wrong memory. */
#include "misuse.h"

static void post_unless_wrong(struct side *side, struct offer *offer, bool wrong)
{
	(void)offer;
	if (!wrong)
		MUST(post_recv(side->qp, side->mr, 0, 64, 7));
}

static void post_one_too_few(struct side *side, struct offer *offer, bool wrong)
{
	MUST(post_recv(side->qp, side->mr, 0, 64, 6));
	post_unless_wrong(side, offer, wrong);
}

static void send_twice(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_wc wc;

	request_send(side, offer, wrong);
	MUST_COMPLETE(side->cq, &wc);
	request_send(side, offer, wrong);
}

static void post_small(struct side *side, struct offer *offer, bool wrong)
{
	(void)offer;
	MUST(post_recv(side->qp, side->mr, 0, wrong ? 16 : 64, 7));
}

static void post_with_unknown_lkey(struct side *side, struct offer *offer, bool wrong)
{
	struct ibv_mr mr = *side->mr;

	(void)offer;
	mr.lkey += wrong ? 0x500000 : 0;
	MUST(post_recv(side->qp, &mr, 0, 64, 7));
}

static void post_into_read_only(struct side *side, struct offer *offer, bool wrong)
{
	struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device->pd, side->mr->addr, BYTES,
					    wrong ? 0 : IBV_ACCESS_LOCAL_WRITE));

	(void)offer;
	MUST(post_recv(side->qp, mr, 0, 64, 7));
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		MISUSE(never_posted, IBV_WC_RNR_RETRY_EXC_ERR, .configure = be_impatient, .prepare = post_unless_wrong,
		       .request = request_send),
		MISUSE(used_up, IBV_WC_RNR_RETRY_EXC_ERR, .configure = be_impatient, .prepare = post_one_too_few,
		       .request = send_twice),
		MISUSE(too_small, IBV_WC_REM_INV_REQ_ERR, .prepare = post_small, .request = request_send),
		MISUSE(receive_with_unknown_lkey, IBV_WC_REM_OP_ERR, .prepare = post_with_unknown_lkey,
		       .request = request_send),
		MISUSE(receive_without_local_write, IBV_WC_REM_OP_ERR, .prepare = post_into_read_only,
		       .request = request_send),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
