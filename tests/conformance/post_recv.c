/* Receive requests: ibv_post_recv. */
#include "conform.h"

int main(int argc, char **argv)
{
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_qp_init_attr init;
	struct buffer buffer;
	struct ibv_recv_wr wr[3], *bad = NULL;
	struct ibv_sge sge;
	struct path path = PATH;
	struct ibv_wc wc;
	uint32_t taken = 0, flushed = 0;
	bool in_order = true;

	begin(argc, argv);
	buffer = make_buffer(4096, ALL);
	cq = make_cq(200);
	init = qp_attr(IBV_QPT_RC, cq);
	qp = MAKE(ibv_create_qp(pd, &init));
	sge = piece(&buffer, 0, 64);
	wr[0] = (struct ibv_recv_wr){.wr_id = 1, .sg_list = &sge, .num_sge = 1};
	is(ibv_post_recv(qp, wr, &bad), EINVAL, "ibv_post_recv(3): in RESET: EINVAL");
	check(bad == wr, "ibv_post_recv(3): bad_wr is the request that failed");
	bring(qp, IBV_QPS_INIT, &path, qp->qp_num);
	is(ibv_post_recv(qp, wr, &bad), 0, "ibv_post_recv(3): in INIT requests are taken");
	wr[0].sg_list = too_many;
	wr[0].num_sge = TOO_MANY;
	is(ibv_post_recv(qp, wr, &bad), EINVAL, "ibv_post_recv(3): more s/g elements than the QP has: EINVAL");
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_recv_wr){.wr_id = 2u + (uint64_t)i, .next = i < 2 ? wr + i + 1 : NULL, .sg_list = &sge, .num_sge = 1};
	wr[1].sg_list = too_many;
	wr[1].num_sge = TOO_MANY;
	bad = NULL;
	is(ibv_post_recv(qp, wr, &bad), EINVAL, "ibv_post_recv(3): a list stops at the first failure: EINVAL");
	check(bad == wr + 1, "ibv_post_recv(3): bad_wr is the failing request in the middle");
	while (taken < 100000 && post_recv(qp, &buffer, 0, 64, 3 + taken) == 0)
		taken++;
	check(taken + 2 >= init.cap.max_recv_wr, "ibv_post_recv(3): the requests before it are posted; max_recv_wr fit");
	is(post_recv(qp, &buffer, 0, 64, 1), ENOMEM, "ibv_post_recv(3): a full receive queue: ENOMEM");
	MUST(move_to(qp, IBV_QPS_ERR));
	while (flushed < taken + 2 && poll_for(cq, &wc, PATIENCE_MS) == IBV_WC_WR_FLUSH_ERR)
		in_order &= wc.wr_id == 1 + flushed++ && wc.qp_num == qp->qp_num;
	is(flushed, taken + 2, "ibv_post_recv(3): in ERR all requests are flushed: WR_FLUSH_ERR");
	check(in_order, "ibv_post_recv(3): they are flushed in their order");
	is(post_recv(qp, &buffer, 0, 64, 77), 0, "ibv_post_recv(3): in ERR requests are taken");
	is_status(poll_for(cq, &wc, 1000), IBV_WC_WR_FLUSH_ERR, "ibv_post_recv(3): a request posted in ERR is flushed");
	MUST(move_to(qp, IBV_QPS_RESET));
	bring(qp, IBV_QPS_INIT, &path, qp->qp_num);
	MUST(post_recv(qp, &buffer, 0, 64, 78));
	MUST(move_to(qp, IBV_QPS_RESET));
	check(silent(cq), "ibv_modify_qp(3): RESET drops requests without completions");
	bring(qp, IBV_QPS_RTS, &path, qp->qp_num);
	MUST(post_recv(qp, &buffer, 0, 64, 79));
	MUST(post_send(qp, &buffer, 1024, 64));
	is_status(poll_for(cq, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_modify_qp(3): after RESET a QP can be connected again, also to itself");
	is_status(poll_for(cq, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_modify_qp(3): and sends and receives");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	free_buffer(&buffer);
	return end();
}
