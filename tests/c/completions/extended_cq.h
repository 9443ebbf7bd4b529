/* Two QPs of this process with one extended completion queue. */
#ifndef EXTENDED_CQ_H
#define EXTENDED_CQ_H

#include "cases.h"

struct extended {
	struct fixture f;
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;
};

__attribute__((unused)) static struct extended extended(struct ibv_cq_init_attr_ex attr)
{
	struct extended x = {.f = unconnected(IBV_QPT_RC)};

	x.cq = MAKE(ibv_create_cq_ex(x.f.device.context, &attr));
	EXPECT(x.cq->cqe >= (int)attr.cqe && x.cq->cq_context == attr.cq_context && x.cq->channel == attr.channel);
	x.a = make_qp(&x.f.device, IBV_QPT_RC, ibv_cq_ex_to_cq(x.cq), NULL, DEPTH);
	x.b = make_qp(&x.f.device, IBV_QPT_RC, ibv_cq_ex_to_cq(x.cq), NULL, DEPTH);
	MUST(to_init(x.a, ALL_ACCESS));
	MUST(to_init(x.b, ALL_ACCESS));
	connect_qps(&x.f.device, &x.f.path, x.a, x.b);
	return x;
}

__attribute__((unused)) static int send_imm(const struct extended *x, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)x->f.memory, length, x->f.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				 .imm_data = htobe32(0x01020304), .send_flags = IBV_SEND_SIGNALED}, *bad;

	return ibv_post_send(x->a, &wr, &bad);
}

#endif
