/* Requests that fail, at once or by their completion: ibv_post_send. */
#include "conform.h"

static struct buffer ours, theirs;

static void immediate_refusals(void)
{
	struct ibv_cq *cq = make_cq(64);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct ibv_qp *qp = MAKE(ibv_create_qp(pd, &init));
	struct path path = PATH;
	struct ibv_sge sge = piece(&ours, 0, 8);
	struct ibv_send_wr wr[3], *bad = NULL;
	uint32_t taken = 0;

	wr[0] = request(IBV_WR_SEND, &sge);
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): in RESET: EINVAL");
	bring(qp, IBV_QPS_INIT, &path, qp->qp_num);
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): in INIT: EINVAL");
	MUST(move_to(qp, IBV_QPS_RESET));
	path.timeout = 0;
	path.rnr_retry = 7;
	bring(qp, IBV_QPS_RTR, &path, qp->qp_num);
	bad = NULL;
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): in RTR: EINVAL");
	check(bad == wr, "ibv_post_send(3): bad_wr is the request that failed");
	MUST(move_to(qp, IBV_QPS_RESET));
	/* Connected to itself without receives: a SEND waits for ever, whatever is behind it too. */
	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	wr[0].sg_list = too_many;
	wr[0].num_sge = TOO_MANY;
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): more s/g elements than the QP has: EINVAL");
	wr[0] = request(IBV_WR_SEND, &sge);
	sge.length = init.cap.max_inline_data + 1;
	wr[0].send_flags |= IBV_SEND_INLINE;
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): more inline data than the QP takes: EINVAL");
	sge.length = 8;
	for (int i = 0; i < 3; i++) {
		wr[i] = request(IBV_WR_SEND, &sge);
		wr[i].next = i < 2 ? wr + i + 1 : NULL;
	}
	wr[1].sg_list = too_many;
	wr[1].num_sge = TOO_MANY;
	bad = NULL;
	is(ibv_post_send(qp, wr, &bad), EINVAL, "ibv_post_send(3): a list stops at the first failure: EINVAL");
	check(bad == wr + 1, "ibv_post_send(3): bad_wr is the failing request in the middle");
	while (taken < 100000 && post_send(qp, &ours, 0, 8) == 0)
		taken++;
	check(taken + 1 >= init.cap.max_send_wr, "ibv_post_send(3): the requests before it are posted; max_send_wr fit");
	is(post_send(qp, &ours, 0, 8), ENOMEM, "ibv_post_send(3): a full send queue: ENOMEM");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));

	struct pair pair = make_pair(IBV_QPT_RC);

	wr[0] = request(99, &sge);
	check(fails(pair.a, pair.cq_a, wr), "ibv_post_send(3): an opcode that doesn't exist fails");
	free_pair(&pair);
}

/* What a failure does to the requests behind it, and to the QP. */
static void failures_of_requests(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = piece(&ours, 0, 8), wrong = sge;
	struct ibv_send_wr wr[3] = {request(IBV_WR_RDMA_WRITE, &wrong), request(IBV_WR_RDMA_WRITE, &sge),
				    request(IBV_WR_RDMA_READ, &sge)};
	struct ibv_wc wc;

	wrong.lkey ^= 0x70;
	for (int i = 0; i < 3; i++) {
		wr[i].wr.rdma.remote_addr = (uintptr_t)theirs.mem;
		wr[i].wr.rdma.rkey = theirs.mr->rkey;
		wr[i].wr_id = (uint64_t)i;
		wr[i].next = i < 2 ? wr + i + 1 : NULL;
	}
	MUST(post(pair.a, wr));
	is_status(next(pair.cq_a), IBV_WC_LOC_PROT_ERR, "ibv_post_send(3): an L_Key that isn't there: LOC_PROT_ERR");
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_WR_FLUSH_ERR, "ibv_post_send(3): the requests behind a failed one are flushed");
	is((long)wc.wr_id, 1, "ibv_post_send(3): in their order");
	is_status(next(pair.cq_a), IBV_WC_WR_FLUSH_ERR, "ibv_post_send(3): all of them");
	is(qp_state(pair.a), IBV_QPS_ERR, "ibv_post_send(3): a failed request takes an RC QP to ERR");
	wr[2].next = NULL;
	is(post(pair.a, wr + 2), 0, "ibv_post_send(3): in ERR requests are taken");
	is_status(next(pair.cq_a), IBV_WC_WR_FLUSH_ERR, "ibv_post_send(3): in ERR they are flushed");
	free_pair(&pair);

	struct path path = PATH;

	path.rnr_retry = 1;
	pair = make_pair_on(IBV_QPT_RC, path);
	MUST(post_send(pair.a, &ours, 0, 8));
	is_status(next(pair.cq_a), IBV_WC_RNR_RETRY_EXC_ERR, "ibv_post_send(3): a SEND without a receive, when rnr_retry is used up: RNR_RETRY_EXC_ERR");
	free_pair(&pair);

	path = PATH;
	path.timeout = 10;
	path.retry_cnt = 1;
	pair = make_pair_on(IBV_QPT_RC, path);
	MUST(move_to(pair.b, IBV_QPS_RESET));
	MUST(post_send(pair.a, &ours, 0, 8));
	is_status(next(pair.cq_a), IBV_WC_RETRY_EXC_ERR, "ibv_post_send(3): a peer that doesn't answer, when retry_cnt is used up: RETRY_EXC_ERR");
	free_pair(&pair);

	path = PATH;
	path.access = IBV_ACCESS_LOCAL_WRITE;
	pair = make_pair_on(IBV_QPT_RC, path);
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, sge, (uintptr_t)theirs.mem, theirs.mr->rkey), IBV_WC_REM_INV_REQ_ERR,
		  "ibv_modify_qp(3): a WRITE that qp_access_flags don't enable: REM_INV_REQ_ERR");
	is(qp_state(pair.b), IBV_QPS_ERR, "ibv_modify_qp(3): and the responder is in ERR");
	free_pair(&pair);

	pair = make_pair(IBV_QPT_RC);
	MUST(post_recv(pair.b, &theirs, 0, 4, 1));
	MUST(post_send(pair.a, &ours, 0, 8));
	is_status(next(pair.cq_a), IBV_WC_REM_INV_REQ_ERR, "ibv_post_send(3): a message longer than the receive: REM_INV_REQ_ERR");
	is_status(next(pair.cq_b), IBV_WC_LOC_LEN_ERR, "ibv_post_recv(3): a message longer than the receive: LOC_LEN_ERR");
	free_pair(&pair);
}

/* UC has no answers: what fails at the receiver stays unknown to the sender. */
static void unreliable(void)
{
	struct pair pair = make_pair(IBV_QPT_UC);
	struct ibv_sge sge = piece(&ours, 0, 8);

	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, sge, (uintptr_t)theirs.mem, theirs.mr->rkey ^ 0x70), IBV_WC_SUCCESS,
		  "ibv_post_send(3): a UC WRITE with a wrong R_Key completes at the sender");
	MUST(post_send(pair.a, &ours, 0, 8));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a UC SEND without a receive completes at the sender");
	check(silent(pair.cq_b), "ibv_post_send(3): and is dropped at the receiver");
	free_pair(&pair);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	ours = make_buffer(4096, ALL);
	theirs = make_buffer(4096, ALL);
	immediate_refusals();
	failures_of_requests();
	unreliable();
	free_buffer(&ours);
	free_buffer(&theirs);
	return end();
}
