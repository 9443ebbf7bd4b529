/* What a worker of `calls` does beside the traffic: objects that come and go, changes of those in use, and what takes
 * something away under the traffic.
 */
#ifndef RANDOM_DISTURBANCES_H
#define RANDOM_DISTURBANCES_H

#include "halves.h"
#include "wrong_arguments.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/wait.h>

/* The program forks under the traffic. */
static bool with_forks = true;

static void make_queues(struct worker *worker)
{
	struct ibv_cq *cq = MAKE(ibv_create_cq(device.context, 1 + (int)draw(&worker->own, 300), NULL, NULL, 0));

	MUST(ibv_resize_cq(cq, 500));
	MUST(ibv_resize_cq(cq, 1 + (int)draw(&worker->own, 300)));
	MUST(ibv_destroy_cq(cq));
}

static void make_domains(struct worker *worker, struct half *half)
{
	struct ibv_td_init_attr attr = {0};
	struct ibv_td *td = draw(&worker->own, 2) ? MAKE(ibv_alloc_td(device.context, &attr)) : NULL;
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(device.context));
	struct ibv_parent_domain_init_attr parent_attr = {.pd = pd, .td = td};
	struct ibv_pd *parent = MAKE(ibv_alloc_parent_domain(device.context, &parent_attr));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(parent, half->memory, half->memory_size, ALL_ACCESS));
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 10, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent};
	struct ibv_cq_ex *cq = MAKE(ibv_create_cq_ex(device.context, &cq_attr));

	if (ibv_dealloc_pd(pd) != EBUSY || ibv_dealloc_pd(parent) != EBUSY || (td && ibv_dealloc_td(td) != EBUSY))
		fail("seed %lu: a domain in use was freed", the_seed);
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	MUST(ibv_dealloc_pd(parent));
	MUST(ibv_dealloc_pd(pd));
	if (td)
		MUST(ibv_dealloc_td(td));
}

static void import_objects(struct half *half)
{
	int fd = dup(device.context->cmd_fd);
	struct ibv_context *context = MAKE(ibv_import_device(fd));
	struct ibv_pd *pd = MAKE(ibv_import_pd(context, device.pd->handle));
	struct ibv_mr *own = MAKE(ibv_reg_mr(device.pd, half->memory, half->memory_size, ALL_ACCESS));
	struct ibv_mr *mr = MAKE(ibv_import_mr(pd, own->handle));

	if (ibv_import_mr(pd, 0xfffffff) || ibv_import_pd(context, 0xfffffff))
		fail("seed %lu: what doesn't exist was imported", the_seed);
	if (mr->lkey != own->lkey || mr->rkey != own->rkey)
		fail("seed %lu: an imported region has other keys", the_seed);
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	MUST(ibv_dereg_mr(own));
	MUST(ibv_close_device(context));
}

static void join_groups(struct worker *worker)
{
	struct ibv_cq *cq = make_cq(&device, 10, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_UD, cq, NULL, 4);
	union ibv_gid gid = {.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1,
				     (uint8_t)draw(&worker->own, 4)}};

	MUST(to_init(qp, 0));
	if (ibv_detach_mcast(qp, &gid, 0) == 0)
		fail("seed %lu: detached from a group that was never attached", the_seed);
	MUST(ibv_attach_mcast(qp, &gid, 0));
	if (draw(&worker->own, 2))
		MUST(ibv_detach_mcast(qp, &gid, 0));
	/* rdma-core's kernel returns EBUSY for a QP that is still attached. */
	int result = ibv_destroy_qp(qp);
	if (result) {
		MUST(ibv_detach_mcast(qp, &gid, 0));
		MUST(ibv_destroy_qp(qp));
	}
	MUST(ibv_destroy_cq(cq));
}

/* Limits are armed; when they are reached, the watching thread gets the event. */
static void limit_queue(struct worker *worker, struct half *half)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 1 + (uint32_t)draw(&worker->own, 2)};
	struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &init));

	attr.max_wr = 8 + (uint32_t)draw(&worker->own, 100);
	int result = ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
	if (result && result != EINVAL && result != EOPNOTSUPP)
		fail("seed %lu: ibv_modify_srq: %s", the_seed, strerror(result));
	attr.srq_limit = 1 << 30;
	if (ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0)
		fail("seed %lu: a limit beyond the queue's size", the_seed);
	MUST(ibv_query_srq(srq, &attr));
	MUST(ibv_destroy_srq(srq));
	if (half->srq) {
		attr.srq_limit = (uint32_t)draw(&worker->own, 3);
		MUST(ibv_modify_srq(half->srq, &attr, IBV_SRQ_LIMIT));
	}
}

static void open_target(struct worker *worker, struct half *half)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.xrcd = worker->domain,
		.qp_type = IBV_QPT_XRC_RECV,
	};

	if (!half->target)
		return;
	attr.qp_num = half->target->qp_num;
	struct ibv_qp *qp = MAKE(ibv_open_qp(device.context, &attr));
	qp_state(qp);
	if (ibv_close_xrcd(worker->domain) != EBUSY)
		fail("seed %lu: an XRC domain in use was closed", the_seed);
	MUST(ibv_destroy_qp(qp));
	attr.qp_num = half->qp->qp_num;
	if (ibv_open_qp(device.context, &attr))
		fail("seed %lu: an initiator was opened as a target", the_seed);
}

/* In a child that hangs: prints where, and ends it. */
static void tell_where(int signal)
{
	static const char said[] = "a child of a fork hangs here:\n";
	void *frames[64];

	if (write(STDERR_FILENO, said, sizeof said - 1) > 0)
		backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
	_exit(signal);
}

/* The first backtrace loads a library, for which a child that hangs may lack a lock. */
static void prepare_to_tell_where(void)
{
	void *frame;

	backtrace(&frame, 1);
}

/* A child makes objects of its own and sees the parent's; the parent goes on. */
static void fork_in_the_middle(struct half *half)
{
	int status;
	pid_t child = with_forks ? fork() : 0;

	if (!with_forks)
		return;
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0) {
		struct ibv_pd *pd;
		struct ibv_cq *cq;
		struct ibv_mr *mr;
		struct ibv_wc wc;

		signal(SIGALRM, tell_where);
		alarm(20);
		pd = ibv_alloc_pd(device.context);
		cq = ibv_create_cq(device.context, 10, NULL, NULL, 0);
		mr = pd ? ibv_reg_mr(pd, half->memory, half->memory_size, ALL_ACCESS) : NULL;
		if (!pd || !cq || !mr || ibv_poll_cq(cq, 1, &wc) != 0)
			_exit(2);
		if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
			_exit(3);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		fail("seed %lu: a child ended with %x", the_seed, status);
}

static void expect_busy(struct worker *worker, struct half *half)
{
	if (ibv_destroy_cq(worker->cq) != EBUSY)
		fail("seed %lu: a CQ with a QP was destroyed", the_seed);
	if (worker->srq && ibv_destroy_srq(worker->srq) != EBUSY)
		fail("seed %lu: an SRQ with a QP was destroyed", the_seed);
	if (half->dm && ibv_free_dm(half->dm) != EBUSY)
		fail("seed %lu: device memory with a region was freed", the_seed);
	if (ibv_dealloc_pd(worker->pd) != EBUSY)
		fail("seed %lu: a PD with a region was freed", the_seed);
	/* In a rude round the peer may have invalidated a window of type 2. */
	bool bound = half->opened.mw && (worker->gentle || half->opened.kind == WINDOW_1);
	if (bound && half->mr && ibv_dereg_mr(half->mr) != EBUSY)
		fail("seed %lu: a region with a window was deregistered", the_seed);
}

/* Something that has nothing to do with the traffic, or disturbs it. */
static void interfere(struct worker *worker, struct half *half)
{
	switch (draw(&worker->own, worker->gentle ? 18 : 24)) {
	case 0:
		qp_state(half->qp);
		break;
	case 1:
		make_queues(worker);
		break;
	case 2:
		expect_busy(worker, half);
		break;
	case 3:
		if (!worker->common)
			MUST(ibv_resize_cq(worker->cq, 2 * MAX_DEPTH * HALVES_PER_THREAD +
							      (int)draw(&worker->own, 1000)));
		break;
	case 4:
		change_region(worker, half);
		break;
	case 5:
	case 6:
		drop_pages(half);
		break;
	case 7:
		make_domains(worker, half);
		break;
	case 8:
		import_objects(half);
		break;
	case 9:
		join_groups(worker);
		break;
	case 10:
		limit_queue(worker, half);
		break;
	case 11:
		open_target(worker, half);
		break;
	case 12:
		if (once_in(worker, 4))
			fork_in_the_middle(half);
		break;
	case 13:
		use_newer_calls(worker, half);
		break;
	case 14:
		ask_for_the_impossible(worker, half);
		break;
	case 15:
	case 16:
	case 17:
		bind_spare(worker, half);
		break;
	case 18:
		take_region_back(half);
		break;
	case 19:
	case 20:
		take_back_opened(worker, half);
		break;
	case 21:
		to_error(half);
		break;
	case 22:
		MUST(ibv_req_notify_cq(worker->cq, (int)draw(&worker->own, 2)));
		break;
	default:
		misuse_queues(worker, half);
	}
}

#endif
