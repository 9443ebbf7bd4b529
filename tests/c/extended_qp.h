/* What programs that post by calls share (man ibv_wr_post): QPs with the extended interface. */
#ifndef EXTENDED_QP_H
#define EXTENDED_QP_H

#include "cases.h"

#define RC_OPS                                                                                   \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |         \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                          \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |                \
	 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE)

/* Newer than the headers of rdma-core 44. */
#define WITH_FLUSH (1ull << 11)

__attribute__((unused)) static struct ibv_qp_init_attr_ex init_of(const struct fixture *f, enum ibv_qp_type type, struct ibv_cq *cq,
					   uint64_t ops)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 3, .max_recv_sge = 2,
			.max_inline_data = 1024},
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = f->device.pd,
		.send_ops_flags = ops,
	};
}

/* As `connected`, with the extended interface at `a`. */
__attribute__((unused)) static struct fixture extended(enum ibv_qp_type type, uint64_t ops, unsigned int access)
{
	struct fixture f = unconnected(type);
	struct ibv_qp_init_attr_ex init = init_of(&f, type, f.cq_a, ops);

	MUST(ibv_destroy_qp(f.a));
	f.a = MAKE(ibv_create_qp_ex(f.device.context, &init));
	EXPECT(init.cap.max_inline_data >= 1024 && init.cap.max_send_sge >= 3);
	MUST(to_init(f.a, access));
	MUST(to_init(f.b, access));
	connect_qps(&f.device, &f.path, f.a, f.b);
	return f;
}

__attribute__((unused)) static struct ibv_qp_ex *started(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_qp_ex *ex = MAKE(ibv_qp_to_qp_ex(qp));

	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	return ex;
}

#endif
