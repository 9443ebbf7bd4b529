/* What the cases of calls.c share: the first device, and two connected queue pairs of this process. */
#ifndef CALLS_H
#define CALLS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define ROOM 8192

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[ROOM];

static void open_first(void)
{
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n);

	CHECK(list && n > 0 && list[n] == NULL);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
}

/* Two connected queue pairs; UD ones know no peer. */
struct pair {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	struct ibv_ah_attr address;
};

static struct ibv_qp *make_qp(struct pair *p, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.srq = p->srq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2},
		.qp_type = type,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp && qp->qp_num != 0 && qp->state == IBV_QPS_RESET && init.cap.max_send_wr >= 16);
	return qp;
}

static void ready(struct pair *p, struct ibv_qp *qp, uint32_t peer)
{
	bool ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 0x1234,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 1,
		.ah_attr = p->address,
	};
	CHECK(ibv_modify_qp(qp, &attr,
			    ud ? IBV_QP_STATE
			       : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(ibv_modify_qp(qp, &attr,
			    ud ? IBV_QP_STATE | IBV_QP_SQ_PSN
			       : IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					 IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(qp->state == IBV_QPS_RTS);
}

static struct pair connect_on(enum ibv_qp_type type, struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct pair p = {.cq = cq, .srq = srq};

	p.address = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 64}};
	CHECK(ibv_query_gid(context, 1, 1, &p.address.grh.dgid) == 0);
	p.mr = ibv_reg_mr(pd, memory, ROOM,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(p.mr && p.mr->addr == memory && p.mr->length == ROOM && p.mr->pd == pd && p.mr->context == context);
	p.a = make_qp(&p, type);
	p.b = make_qp(&p, type);
	ready(&p, p.a, p.b->qp_num);
	ready(&p, p.b, p.a->qp_num);
	return p;
}

static struct pair connected(enum ibv_qp_type type)
{
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);

	CHECK(cq && cq->cqe >= 64);
	return connect_on(type, cq, NULL);
}

static int post_receive(struct pair *p, uint64_t id)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory + ROOM / 2, .length = 1024, .lkey = p->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	return p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(p->b, &wr, &bad);
}

static int post_message(struct pair *p, enum ibv_wr_opcode opcode, uint32_t length, struct ibv_ah *ah)
{
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = p->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .imm_data = htobe32(77)};
	struct ibv_send_wr *bad;

	if (ah) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = p->b->qp_num;
		wr.wr.ud.remote_qkey = 0x1234;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + ROOM / 2;
		wr.wr.rdma.rkey = p->mr->rkey;
	}
	return ibv_post_send(p->a, &wr, &bad);
}

static struct ibv_wc completion(struct ibv_cq *cq, uint64_t id)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;

	for (;;) {
		int n = ibv_poll_cq(cq, 1, &wc);

		CHECK(n >= 0 && time(NULL) < end);
		if (n == 1 && wc.wr_id == id)
			return wc;
		CHECK(n == 0 || wc.status == IBV_WC_SUCCESS);
	}
}

#endif
