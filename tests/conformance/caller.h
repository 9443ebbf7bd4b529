/* A pair of QPs of which the first takes calls (man ibv_wr_post). */
#ifndef CALLER_H
#define CALLER_H

#include "conform.h"

/* A connected pair whose first QP takes calls; NULL when the device doesn't know them. */
static struct ibv_qp_ex *make_caller(struct pair *pair, enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr plain = qp_attr(type, NULL);
	struct ibv_qp_init_attr_ex init = {
		.cap = plain.cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = ops,
	};
	struct path path = PATH;

	pair->cq_a = make_cq(256);
	pair->cq_b = make_cq(32);
	init.send_cq = init.recv_cq = pair->cq_a;
	pair->a = ibv_create_qp_ex(ctx, &init);
	if (!pair->a) {
		MUST(ibv_destroy_cq(pair->cq_a));
		MUST(ibv_destroy_cq(pair->cq_b));
		return NULL;
	}
	pair->b = make_qp(type, pair->cq_b);
	bring(pair->a, IBV_QPS_RTS, &path, pair->b->qp_num);
	bring(pair->b, IBV_QPS_RTS, &path, pair->a->qp_num);
	return ibv_qp_to_qp_ex(pair->a);
}

#endif
