/* What a worker of `anything` does with queues: it polls, and posts requests of any kind. */
#ifndef ANYTHING_CALLS_H
#define ANYTHING_CALLS_H

#include "anything.h"
#include <sched.h>

#define SHARED_SIZE 65536

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
static void receive(struct half *half)
{
	pthread_mutex_lock(&half->lock);
	if (half->receive.length < half->depth && half->mr) {
		struct queue *queue = &half->receive;
		char *slot = slot_of(half, true, queue->next);
		uint32_t length = (uint32_t)half->slot_size;
		struct ibv_sge sges[2] = {{(uintptr_t)slot, 17, half->mr->lkey},
					  {(uintptr_t)slot + 17, length - 17, half->mr->lkey}};
		struct ibv_recv_wr wr = {.wr_id = id_of(half, true, queue->next), .sg_list = sges, .num_sge = 2};
		struct ibv_recv_wr *bad = NULL;

		push(queue, wr.wr_id, true);
		int result = half->srq ? ibv_post_srq_recv(half->srq, &wr, &bad) : ibv_post_recv(half->qp, &wr, &bad);
		if (result)
			fail("seed %lu: posting a receive: %s", the_seed, strerror(result));
	}
	pthread_mutex_unlock(&half->lock);
}

static enum ibv_wr_opcode draw_opcode(struct worker *worker)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND,	IBV_WR_SEND,
						     IBV_WR_SEND,	IBV_WR_RDMA_WRITE,
						     IBV_WR_RDMA_READ,	IBV_WR_ATOMIC_FETCH_AND_ADD,
						     IBV_WR_ATOMIC_CMP_AND_SWP};
	unsigned int of_service[] = {[IBV_QPT_RC] = 7, [IBV_QPT_UC] = 4, [IBV_QPT_UD] = 3};

	return opcodes[draw(&worker->own, of_service[worker->type])];
}

/* Posts the request by ibv_wr_*, as ibv_post_send would. */
static int post_by_calls(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_data_buf pieces[2];

	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
	switch (wr->opcode) {
	case IBV_WR_SEND:
		ibv_wr_send(ex);
		break;
	case IBV_WR_RDMA_WRITE:
		ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_RDMA_READ:
		ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					wr->wr.atomic.compare_add);
		break;
	default:
		ibv_wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
				      wr->wr.atomic.compare_add, wr->wr.atomic.swap);
	}
	if (qp->qp_type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(ex, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	if (wr->send_flags & IBV_SEND_INLINE) {
		for (int i = 0; i < wr->num_sge; i++)
			pieces[i] = (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr,
							  wr->sg_list[i].length};
		ibv_wr_set_inline_data_list(ex, (size_t)wr->num_sge, pieces);
	} else {
		ibv_wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
	}
	return ibv_wr_complete(ex);
}

/* Posts one request of any kind that the service has; its content says what it is. */
static void request(struct worker *worker, struct half *half)
{
	pthread_mutex_lock(&half->lock);
	struct queue *queue = &half->send;
	if (queue->length >= half->depth || !half->mr) {
		pthread_mutex_unlock(&half->lock);
		return;
	}
	bool rude = !worker->gentle && draw(&worker->own, 40) == 0;
	char *slot = slot_of(half, false, queue->next);
	uint32_t room = (uint32_t)half->slot_size - (worker->type == IBV_QPT_UD ? 40 : 0);
	struct head head = {.number = half->messages, .sender = half->qp->qp_num};
	head.length = (uint32_t)(sizeof head + draw(&worker->own, room - sizeof head + 1));
	uint32_t first = (uint32_t)draw(&worker->own, head.length + 1);
	struct ibv_sge sges[2] = {{(uintptr_t)slot, first, half->mr->lkey},
				  {(uintptr_t)slot + first, head.length - first, half->mr->lkey}};
	struct ibv_send_wr *bad = NULL, wr = {.wr_id = id_of(half, false, queue->next),
					      .sg_list = sges,
					      .num_sge = 2,
					      .opcode = draw_opcode(worker)};
	uint64_t offset = draw(&worker->own, SHARED_SIZE / 2) & ~7ull;

	/* Enough are reported that the queue never stands still. */
	if (queue->length + 1 >= half->depth || queue->next % 4 == 0 || draw(&worker->own, 2))
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (draw(&worker->own, 8) == 0)
		wr.send_flags |= IBV_SEND_FENCE;
	if (wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_RDMA_WRITE) {
		memcpy(slot, &head, sizeof head);
		fill(slot + sizeof head, head.length - sizeof head, head.number);
		if (head.length <= 128 && draw(&worker->own, 2))
			wr.send_flags |= IBV_SEND_INLINE;
	}
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = half->remote.buffer + offset;
		wr.wr.atomic.rkey = half->remote.rkey + rude;
		wr.wr.atomic.compare_add = 1;
		sges[0].length = 8;
		wr.num_sge = 1;
	} else if (wr.opcode != IBV_WR_SEND) {
		if (head.length > SHARED_SIZE / 2)
			sges[1].length = 0, sges[0].length = SHARED_SIZE / 2;
		wr.wr.rdma.remote_addr = half->remote.buffer + offset + (rude ? SHARED_SIZE : 0);
		wr.wr.rdma.rkey = half->remote.rkey;
	} else if (rude) {
		sges[1].lkey ^= 0x80;
		wr.send_flags &= ~(unsigned int)IBV_SEND_INLINE;
	}
	if (worker->type == IBV_QPT_UD) {
		wr.wr.ud.ah = half->ah;
		wr.wr.ud.remote_qpn = half->remote.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	push(queue, wr.wr_id, wr.send_flags & IBV_SEND_SIGNALED);
	int result = half->by_calls ? post_by_calls(half->qp, &wr) : ibv_post_send(half->qp, &wr, &bad);
	if (result) {
		if ((bad != &wr && !half->by_calls) || worker->gentle)
			fail("seed %lu: posting a send: %s", the_seed, strerror(result));
		unpush(queue);
	} else if (wr.opcode == IBV_WR_SEND) {
		half->messages++;
	}
	pthread_mutex_unlock(&half->lock);
}

#endif
