/* What a worker of `calls` is, and how it polls and receives. */
#ifndef RANDOM_WORKER_H
#define RANDOM_WORKER_H

#include "model.h"
#include <sched.h>

static struct device device;
/* A CQ that several workers use. */
static struct ibv_cq *common_cq;
static pthread_mutex_t common_cq_lock = PTHREAD_MUTEX_INITIALIZER;

struct worker {
	unsigned int number;
	/* Drawn alike in both processes, and by this process alone. */
	uint64_t both, own;
	pthread_mutex_t cq_lock;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	/* The same, if it is polled as such. */
	struct ibv_cq_ex *extended;
	struct ibv_srq *srq;
	struct ibv_xrcd *domain;
	bool across, gentle, common;
	enum ibv_qp_type type;
	size_t slot_size;
};

/* SplitMix64 */
static uint64_t draw(uint64_t *state, uint64_t below)
{
	uint64_t mixed = *state += 0x9e3779b97f4a7c15u;

	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
	return (mixed ^ (mixed >> 31)) % below;
}

static bool once_in(struct worker *worker, uint64_t times)
{
	return draw(&worker->own, times) == 0;
}

/* Polls at most `max` completions as extended CQs are polled. */
static int poll_extended(struct ibv_cq_ex *cq, int max, struct ibv_wc *wc)
{
	struct ibv_poll_cq_attr attr = {0};
	int result = ibv_start_poll(cq, &attr), count = 0;

	if (result == ENOENT)
		return 0;
	if (result)
		fail("seed %lu: ibv_start_poll: %s", the_seed, strerror(result));
	do {
		wc[count] = (struct ibv_wc){.wr_id = cq->wr_id,
					    .status = cq->status,
					    .vendor_err = ibv_wc_read_vendor_err(cq),
					    .qp_num = ibv_wc_read_qp_num(cq)};
		if (cq->status == IBV_WC_SUCCESS) {
			wc[count].opcode = ibv_wc_read_opcode(cq);
			wc[count].byte_len = ibv_wc_read_byte_len(cq);
			wc[count].wc_flags = ibv_wc_read_wc_flags(cq);
			if (wc[count].wc_flags & IBV_WC_WITH_IMM)
				wc[count].imm_data = ibv_wc_read_imm_data(cq);
		}
		result = ++count < max ? ibv_next_poll(cq) : ENOENT;
	} while (result == 0);
	ibv_end_poll(cq);
	if (result != ENOENT)
		fail("seed %lu: ibv_next_poll: %s", the_seed, strerror(result));
	return count;
}

static void poll_own(struct worker *worker)
{
	struct ibv_wc wc[8];
	pthread_mutex_t *lock = worker->common ? &common_cq_lock : &worker->cq_lock;
	int count;

	pthread_mutex_lock(lock);
	count = worker->extended ? poll_extended(worker->extended, 8, wc) : ibv_poll_cq(worker->cq, 8, wc);
	if (count < 0)
		fail("seed %lu: ibv_poll_cq returned %d", the_seed, count);
	for (int i = 0; i < count; i++)
		account(&wc[i]);
	pthread_mutex_unlock(lock);
	if (count == 0)
		sched_yield();
}

/* Posts a receive if there is room in the model. */
static void receive(struct worker *worker, struct half *half)
{
	pthread_mutex_lock(&half->lock);
	if (half->receive.length < half->depth && half->mr) {
		struct queue *queue = &half->receive;
		bool in_dm = half->dm && once_in(worker, 3);
		uint64_t slot = in_dm ? slot_offset(half, true, queue->next)
				      : (uintptr_t)slot_of(half, true, queue->next);
		uint32_t length = (uint32_t)half->slot_size, key = (in_dm ? half->dm_mr : half->mr)->lkey;
		struct ibv_sge sges[2] = {{slot, 17, key}, {slot + 17, length - 17, key}};
		struct ibv_recv_wr wr = {.wr_id = id_of(half, true, queue->next), .sg_list = sges, .num_sge = 2};
		struct ibv_recv_wr *bad = NULL;

		push(queue, wr.wr_id, true)->in_dm = in_dm;
		int result = half->srq ? ibv_post_srq_recv(half->srq, &wr, &bad) : ibv_post_recv(half->qp, &wr, &bad);
		if (result)
			fail("seed %lu: posting a receive: %s", the_seed, strerror(result));
	}
	pthread_mutex_unlock(&half->lock);
}

static unsigned int sends_outstanding(struct half *half)
{
	unsigned int left = 0;

	pthread_mutex_lock(&half->lock);
	for (unsigned int i = 0; i < half->send.length; i++)
		left += posted_at(&half->send, i)->signaled;
	pthread_mutex_unlock(&half->lock);
	return left;
}

#endif
