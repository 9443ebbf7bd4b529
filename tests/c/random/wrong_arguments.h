/* Calls of `calls` whose arguments are wrong, which must be refused as documented, and calls of newer headers, which
 * are looked up when the program runs.
 */
#ifndef RANDOM_WRONG_ARGUMENTS_H
#define RANDOM_WRONG_ARGUMENTS_H

#include "halves.h"
#include "newer.h"

#define REFUSED(call)                                                                  \
	do {                                                                           \
		errno = 0;                                                             \
		if (call)                                                              \
			fail("seed %lu: accepted: %s", the_seed, #call);               \
		if (!errno)                                                            \
			fail("seed %lu: refused without errno: %s", the_seed, #call);  \
	} while (0)

#define MUST_BE(expected, call)                                                        \
	do {                                                                           \
		int result = (call);                                                   \
		if (result != (expected))                                              \
			fail("seed %lu: %s: %s", the_seed, #call, strerror(result));   \
	} while (0)

static void ask_for_wrong_objects(struct worker *worker, struct half *half)
{
	struct ibv_qp_init_attr init = {.send_cq = worker->cq,
					.recv_cq = worker->cq,
					.cap = {.max_send_wr = UINT32_MAX, .max_recv_wr = 1},
					.qp_type = IBV_QPT_RC};
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = UINT32_MAX, .max_sge = 1}};
	struct ibv_alloc_dm_attr dm = {.length = UINT64_MAX};
	struct ibv_ah_attr ah = {.port_num = 7};

	switch (draw(&worker->own, 12)) {
	case 0:
		REFUSED(ibv_reg_mr(worker->pd, half->memory, half->memory_size, IBV_ACCESS_REMOTE_WRITE));
		break;
	case 1:
		REFUSED(ibv_reg_mr(worker->pd, half->memory, SIZE_MAX, ALL_ACCESS));
		break;
	case 2:
		/* The page behind can't be written. */
		REFUSED(ibv_reg_mr(worker->pd, half->memory, half->memory_size + 1, ALL_ACCESS));
		break;
	case 3:
		REFUSED(ibv_create_cq(device.context, -1, NULL, NULL, 0));
		break;
	case 4:
		REFUSED(ibv_create_cq(device.context, INT32_MAX, NULL, NULL, 0));
		break;
	case 5:
		REFUSED(ibv_create_qp(worker->pd, &init));
		break;
	case 6:
		init.cap.max_send_wr = 1;
		init.cap.max_send_sge = 100000;
		REFUSED(ibv_create_qp(worker->pd, &init));
		break;
	case 7:
		REFUSED(ibv_create_srq(worker->pd, &srq));
		break;
	case 8:
		REFUSED(ibv_alloc_dm(device.context, &dm));
		break;
	case 9:
		REFUSED(ibv_create_ah(worker->pd, &ah));
		break;
	case 10:
		REFUSED(ibv_alloc_mw(worker->pd, (enum ibv_mw_type)3));
		break;
	default:
		REFUSED(ibv_import_device(-1));
	}
}

static void ask_for_the_impossible(struct worker *worker, struct half *half)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)17, .cap.max_send_wr = 1 << 30};
	struct ibv_device_attr_ex ex;
	struct ibv_query_device_ex_input input = {.comp_mask = 1};
	union ibv_gid gid;

	switch (draw(&worker->own, 6)) {
	case 0:
		MUST_BE(EINVAL, ibv_modify_qp(half->qp, &attr, IBV_QP_STATE));
		break;
	case 1:
		MUST_BE(EINVAL, ibv_modify_qp(half->qp, &attr, IBV_QP_PATH_MTU | IBV_QP_PORT));
		break;
	case 2:
		MUST_BE(EINVAL, ibv_query_device_ex(device.context, &input, &ex));
		break;
	case 3:
		REFUSED(ibv_query_gid(device.context, PORT_NUM, 1 << 20, &gid) == 0);
		break;
	default:
		ask_for_wrong_objects(worker, half);
	}
}

/* Requests to queues that can't take them. */
static void misuse_queues(struct worker *worker, struct half *half)
{
	struct ibv_cq *cq = make_cq(&device, 10, NULL);
	struct ibv_qp *qp = make_qp(&device, worker->type == IBV_QPT_UD ? IBV_QPT_UD : IBV_QPT_RC, cq, NULL, 4);
	struct ibv_sge sges[4] = {{(uintptr_t)half->memory, 8, 0}};
	struct ibv_send_wr *bad_send, send = {.sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_recv_wr *bad_recv, recv = {.sg_list = sges, .num_sge = 1};
	struct ibv_wc wc;

	MUST_BE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	MUST_BE(EINVAL, ibv_post_recv(qp, &recv, &bad_recv));
	MUST(to_init(qp, ALL_ACCESS));
	MUST_BE(EINVAL, ibv_post_send(qp, &send, &bad_send));
	recv.num_sge = 4;
	MUST_BE(EINVAL, ibv_post_recv(qp, &recv, &bad_recv));
	recv.num_sge = 1;
	for (int i = 0; i < 4; i++)
		MUST(ibv_post_recv(qp, &recv, &bad_recv));
	MUST_BE(ENOMEM, ibv_post_recv(qp, &recv, &bad_recv));
	if (ibv_poll_cq(cq, 1, &wc) != 0)
		fail("seed %lu: a completion of nothing", the_seed);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

static void use_handle(struct half *half)
{
	void *(*alloc)(struct ibv_context *, struct dmah_attr *) = newer("ibv_alloc_dmah");
	int (*dealloc)(void *) = newer("ibv_dealloc_dmah");
	struct ibv_mr *(*reg)(struct ibv_pd *, struct mr_init *) = newer("ibv_reg_mr_ex");
	struct dmah_attr attr = {.comp_mask = DMAH_PH, .ph = 3};
	/* An address and a DMA handle. */
	struct mr_init region = {.length = half->memory_size, .access = ALL_ACCESS, .comp_mask = MASK_ADDR | MASK_DMAH,
				 .addr = half->memory};

	if (!alloc || !dealloc || !reg)
		return;
	region.dmah = MAKE(alloc(device.context, &attr));
	struct ibv_mr *mr = MAKE(reg(device.pd, &region));
	if (dealloc(region.dmah) == 0)
		fail("seed %lu: a DMA handle with a region was freed", the_seed);
	MUST(ibv_dereg_mr(mr));
	MUST(dealloc(region.dmah));
}

/* A counter of a QP that has nothing to do. */
static void use_counter(struct worker *worker)
{
	void *(*create)(struct ibv_context *, struct counter_attr *) = newer("ibv_create_comp_cntr");
	int (*destroy)(void *) = newer("ibv_destroy_comp_cntr");
	int (*attach)(struct ibv_qp *, void *, struct attach_attr *) =
		newer("ibv_qp_attach_comp_cntr");
	int (*increase)(void *, uint64_t) = newer("ibv_inc_comp_cntr");
	int (*look)(void *, uint64_t *) = newer("ibv_read_comp_cntr");
	struct counter_attr attr = {0};
	struct attach_attr how = {.op_mask = 1};
	uint64_t value, by = draw(&worker->own, 1000);

	if (!create || !destroy || !attach || !increase || !look)
		return;
	void *counter = MAKE(create(device.context, &attr));
	struct ibv_cq *cq = make_cq(&device, 10, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);
	MUST(attach(qp, counter, &how));
	MUST(increase(counter, by));
	MUST(look(counter, &value));
	if (value != by)
		fail("seed %lu: a counter stands at %lu instead of %lu", the_seed, value, by);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	MUST(destroy(counter));
}

static void use_newer_calls(struct worker *worker, struct half *half)
{
	if (draw(&worker->own, 2))
		use_handle(half);
	else
		use_counter(worker);
}

#endif
