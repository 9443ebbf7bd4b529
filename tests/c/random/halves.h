/* The halves of `calls`: how they are made, connected and destroyed. */
#ifndef RANDOM_HALVES_H
#define RANDOM_HALVES_H

#include "memory.h"

static const uint64_t send_ops[] = {
	[IBV_QPT_RC] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
		       IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
		       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
		       IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
	[IBV_QPT_UC] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
		       IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
	[IBV_QPT_UD] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
};

static void make_target(struct worker *worker, struct half *half)
{
	struct ibv_srq_init_attr_ex queue = {
		.attr = {.max_wr = half->depth, .max_sge = 2},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = worker->pd,
		.xrcd = worker->domain,
		.cq = worker->cq,
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = worker->domain};

	half->srq = MAKE(ibv_create_srq_ex(device.context, &queue));
	half->target = MAKE(ibv_create_qp_ex(device.context, &init));
	MUST(to_init(half->target, ALL_ACCESS));
}

static void make_qps(struct worker *worker, struct half *half)
{
	bool xrc = worker->type == IBV_QPT_XRC_SEND, receives = !xrc && !worker->srq;
	struct ibv_qp_init_attr_ex init = {
		.send_cq = worker->cq,
		.recv_cq = xrc ? NULL : worker->cq,
		.srq = worker->srq,
		.cap = {half->depth, receives ? half->depth : 0, MAX_SGE, receives ? MAX_SGE : 0, MAX_INLINE},
		.qp_type = worker->type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (half->by_calls ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = worker->pd,
		.send_ops_flags = send_ops[xrc ? IBV_QPT_RC : worker->type],
	};

	half->qp = MAKE(ibv_create_qp_ex(device.context, &init));
	MUST(to_init(half->qp, ALL_ACCESS));
	half->srq = worker->srq;
	half->target = NULL;
	if (xrc)
		make_target(worker, half);
}

static struct half *make_half(struct worker *worker, unsigned int index)
{
	struct half *half = &halves[worker->number * HALVES_PER_THREAD + index];

	pthread_mutex_lock(&half->lock);
	half->generation++;
	half->dead = false;
	half->gentle = worker->gentle;
	half->expected = half->messages = half->succeeded = half->failed = 0;
	half->depth = 2 + (uint32_t)draw(&worker->own, MAX_DEPTH - 2);
	half->slot_size = worker->slot_size;
	half->cq = worker->cq;
	half->by_calls = draw(&worker->own, 2);
	half->spare_bound = false;
	half->mirror = MAKE(calloc(1, SHARED_SIZE));
	give_memory(half);
	half->mr = MAKE(ibv_reg_mr(worker->pd, half->memory, half->memory_size, ALL_ACCESS | IBV_ACCESS_MW_BIND));
	half->null = MAKE(ibv_alloc_null_mr(worker->pd));
	if (half->slot_size <= MAX_DM_SLOT && draw(&worker->own, 2)) {
		size_t size = 2 * (size_t)half->depth * half->slot_size;

		half->dm = make_dm(size);
		half->dm_mr = MAKE(ibv_reg_dm_mr(worker->pd, half->dm, 0, size, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	}
	if (worker->type != IBV_QPT_UD) {
		half->spare[0] = MAKE(ibv_alloc_mw(worker->pd, IBV_MW_TYPE_1));
		half->spare[1] = MAKE(ibv_alloc_mw(worker->pd, IBV_MW_TYPE_2));
	}
	make_qps(worker, half);
	pthread_mutex_unlock(&half->lock);
	return half;
}

static struct end end_of(const struct half *half)
{
	struct end end = {.address = {.qpn = half->qp->qp_num,
				      .psn = half->generation * 977 & 0xffffff,
				      .rkey = half->opened.rkey,
				      .buffer = half->opened.address,
				      .gid = device.gid}};

	if (half->target) {
		end.target = half->target->qp_num;
		MUST(ibv_get_srq_num(half->srq, &end.srq));
	}
	return end;
}

/* An XRC QP of either kind, in INIT. */
static void connect_xrc(struct ibv_qp *qp, const struct path *path, struct address remote, uint32_t psn)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = path->mtu,
				   .dest_qp_num = remote.qpn,
				   .rq_psn = remote.psn,
				   .max_dest_rd_atomic = path->rd_atomic,
				   .min_rnr_timer = path->min_rnr_timer};
	bool initiator = qp->qp_type == IBV_QPT_XRC_SEND;
	int more = initiator ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

	fill_ah(&attr.ah_attr, &device, &remote.gid);
	MUST(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | more));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				    .sq_psn = psn,
				    .timeout = path->timeout,
				    .retry_cnt = path->retry_count,
				    .rnr_retry = path->rnr_retry,
				    .max_rd_atomic = path->rd_atomic};
	more = initiator ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | more));
}

static void connect_half(struct worker *worker, struct half *half, const struct end *remote)
{
	struct path path = default_path(&device);
	uint32_t psn = half->generation * 977 & 0xffffff;
	struct address target = remote->address;

	path.timeout = worker->gentle ? 16 : 8;
	half->remote = *remote;
	if (half->target) {
		target.qpn = remote->target;
		connect_xrc(half->qp, &path, target, psn);
		/* The target has no PSN of its own that anybody asks for. */
		connect_xrc(half->target, &path, remote->address, psn);
	} else {
		MUST(to_rtr(half->qp, &device, &path, &remote->address));
		MUST(to_rts(half->qp, &path, psn));
	}
	if (worker->type == IBV_QPT_UD) {
		struct ibv_ah_attr attr;

		fill_ah(&attr, &device, &remote->address.gid);
		half->ah = MAKE(ibv_create_ah(worker->pd, &attr));
	}
}

static void to_error(struct half *half)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	MUST(ibv_modify_qp(half->qp, &attr, IBV_QP_STATE));
	if (half->target)
		MUST(ibv_modify_qp(half->target, &attr, IBV_QP_STATE));
}

static void free_regions(struct half *half)
{
	if (half->mr)
		take_region_back(half);
	close_memory(half);
	check(half->memory, half->memory_size, half->generation, "memory that was taken back");
	take_memory(half);
	MUST(ibv_dereg_mr(half->null));
	if (half->dm) {
		MUST(ibv_dereg_mr(half->dm_mr));
		MUST(ibv_free_dm(half->dm));
	}
	half->dm = NULL;
	half->dm_mr = NULL;
	free(half->mirror);
	half->mirror = NULL;
}

/* Some have their memory taken before the QP that is using it, some after. */
static void destroy_half(struct worker *worker, struct half *half)
{
	bool memory_first = draw(&worker->own, 2);

	pthread_mutex_lock(&half->lock);
	half->dead = true;
	pthread_mutex_unlock(&half->lock);
	if (memory_first)
		take_region_back(half);
	MUST(ibv_destroy_qp(half->qp));
	if (half->target) {
		MUST(ibv_destroy_qp(half->target));
		MUST(ibv_destroy_srq(half->srq));
	}
	if (half->ah)
		MUST(ibv_destroy_ah(half->ah));
	half->ah = NULL;
	free_regions(half);
	pthread_mutex_lock(&half->lock);
	forget(&half->send);
	forget(&half->receive);
	pthread_mutex_unlock(&half->lock);
}

#endif
