/* The requests that `calls` posts: any kind that the service has, right ones and wrong ones. */
#ifndef RANDOM_REQUESTS_H
#define RANDOM_REQUESTS_H

#include "worker.h"

#define MAX_SGE 3
#define MAX_INLINE 128

static enum ibv_wr_opcode draw_opcode(struct worker *worker)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_SEND,	    IBV_WR_SEND,
		IBV_WR_SEND,	    IBV_WR_SEND_WITH_IMM,
		IBV_WR_RDMA_WRITE,  IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_BIND_MW,	    IBV_WR_RDMA_READ,
		IBV_WR_RDMA_READ,   IBV_WR_ATOMIC_FETCH_AND_ADD,
		IBV_WR_RDMA_WRITE,  IBV_WR_ATOMIC_CMP_AND_SWP};
	unsigned int kinds = worker->type == IBV_QPT_UD ? 4 : worker->type == IBV_QPT_UC ? 7 : 12;

	return opcodes[draw(&worker->own, kinds)];
}

static void call_for(struct ibv_qp_ex *ex, const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_SEND:
		return ibv_wr_send(ex);
	case IBV_WR_SEND_WITH_IMM:
		return ibv_wr_send_imm(ex, wr->imm_data);
	case IBV_WR_SEND_WITH_INV:
		return ibv_wr_send_inv(ex, wr->invalidate_rkey);
	case IBV_WR_RDMA_WRITE:
		return ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return ibv_wr_rdma_write_imm(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
	case IBV_WR_RDMA_READ:
		return ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					       wr->wr.atomic.compare_add);
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return ibv_wr_atomic_cmp_swp(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
					     wr->wr.atomic.compare_add, wr->wr.atomic.swap);
	case IBV_WR_BIND_MW:
		return ibv_wr_bind_mw(ex, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	case IBV_WR_LOCAL_INV:
		return ibv_wr_local_inv(ex, wr->invalidate_rkey);
	default:
		fail("seed %lu: no call for opcode %d", the_seed, wr->opcode);
	}
}

/* Posts the request by ibv_wr_*, as ibv_post_send would; sometimes gives up one before it. */
static int post_by_calls(struct worker *worker, struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_data_buf pieces[MAX_SGE];
	bool has_data = wr->opcode != IBV_WR_BIND_MW && wr->opcode != IBV_WR_LOCAL_INV;

	if (once_in(worker, 16)) {
		ibv_wr_start(ex);
		ibv_wr_abort(ex);
	}
	ibv_wr_start(ex);
	ex->wr_id = wr->wr_id;
	ex->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
	call_for(ex, wr);
	if (qp->qp_type == IBV_QPT_UD)
		ibv_wr_set_ud_addr(ex, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	if (has_data && qp->qp_type == IBV_QPT_XRC_SEND)
		ibv_wr_set_xrc_srqn(ex, wr->qp_type.xrc.remote_srqn);
	if (has_data && (wr->send_flags & IBV_SEND_INLINE)) {
		for (int i = 0; i < wr->num_sge && i < MAX_SGE; i++)
			pieces[i] = (struct ibv_data_buf){(void *)(uintptr_t)wr->sg_list[i].addr,
							  wr->sg_list[i].length};
		ibv_wr_set_inline_data_list(ex, (size_t)wr->num_sge, pieces);
	} else if (has_data) {
		ibv_wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
	}
	return ibv_wr_complete(ex);
}

/* Earlier operations whose memory this one changes may bring either, unless it waits for them. */
static void blur(struct half *half, uint64_t offset, uint32_t length)
{
	for (unsigned int i = 0; i < half->send.length; i++) {
		struct posted *posted = posted_at(&half->send, i);

		if (posted->opcode == IBV_WC_RDMA_READ && posted->offset < offset + length &&
		    offset < posted->offset + posted->length)
			posted->blurred = true;
	}
}

/* What the request, the last one pushed, does to the peer's memory, or brings from there. */
static void foresee(struct half *half, struct posted *posted, const struct ibv_send_wr *wr, uint64_t offset,
		    const char *written)
{
	uint32_t length = wr->sg_list[0].length + (wr->num_sge > 1 ? wr->sg_list[1].length : 0);
	uint64_t word;

	posted->length = length;
	posted->offset = offset;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		if (!(wr->send_flags & IBV_SEND_FENCE))
			blur(half, offset, length);
		if (written)
			memcpy(half->mirror + offset, written, length);
		else
			memset(half->mirror + offset, 0, length);
		return;
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		posted->expected = MAKE(malloc(length + 1));
		memcpy(posted->expected, half->mirror + offset, length);
		break;
	default:
		return;
	}
	if (wr->opcode == IBV_WR_RDMA_READ)
		return;
	if (!(wr->send_flags & IBV_SEND_FENCE))
		blur(half, offset, 8);
	memcpy(&word, half->mirror + offset, 8);
	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		word += wr->wr.atomic.compare_add;
	else if (word == wr->wr.atomic.compare_add)
		word = wr->wr.atomic.swap;
	memcpy(half->mirror + offset, &word, 8);
}

/* Binds a spare window of type 2, or invalidates it: in the order of posting it is either bound or not. */
static void use_spare(struct worker *worker, struct half *half, struct ibv_send_wr *wr)
{
	struct ibv_mw *mw = half->spare[1];

	wr->num_sge = 0;
	if (half->spare_bound) {
		wr->opcode = IBV_WR_LOCAL_INV;
		wr->invalidate_rkey = mw->rkey;
	} else {
		mw->rkey = ibv_inc_rkey(mw->rkey);
		wr->bind_mw.mw = mw;
		wr->bind_mw.rkey = mw->rkey;
		wr->bind_mw.bind_info = (struct ibv_mw_bind_info){
			half->mr, (uintptr_t)half->memory + draw(&worker->own, 100),
			1 + draw(&worker->own, half->memory_size - 100),
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	}
	half->spare_bound = !half->spare_bound;
}

/* Makes another key that nothing has: one that differs little could be that of what another thread makes next. */
#define NO_KEY 0x80000000u

/* Spoils a request: keys, lengths, counts and addresses that are wrong. It may be refused or fail. Nothing of another thread
 * may be right by chance, so addresses below a peer's memory, where its messages lie, stay out.
 */
static void spoil(struct worker *worker, struct half *half, struct ibv_send_wr *wr)
{
	bool remote = wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE;

	if (wr->opcode == IBV_WR_LOCAL_INV) {
		wr->invalidate_rkey ^= NO_KEY;
		return;
	}
	if (wr->opcode == IBV_WR_BIND_MW) {
		if (draw(&worker->own, 2))
			wr->bind_mw.bind_info.length = half->memory_size + 1;
		else
			wr->bind_mw.rkey ^= 1u << draw(&worker->own, 32);
		return;
	}
	wr->send_flags &= ~(unsigned int)IBV_SEND_INLINE;
	switch (draw(&worker->own, 7)) {
	case 0:
		wr->sg_list[0].lkey ^= NO_KEY;
		break;
	case 1:
		wr->sg_list[0].addr += half->memory_size;
		break;
	case 2:
		wr->sg_list[0].length = 0x90000000u;
		break;
	case 3:
		wr->num_sge = MAX_SGE + 1;
		break;
	case 4:
		if (remote)
			wr->wr.rdma.rkey ^= NO_KEY;
		break;
	case 5:
		if (remote)
			wr->wr.rdma.remote_addr = draw(&worker->own, 2) ? wr->wr.rdma.remote_addr + SHARED_SIZE : UINT64_MAX - 4;
		break;
	default:
		if (wr->opcode == IBV_WR_SEND && worker->type == IBV_QPT_RC) {
			wr->opcode = IBV_WR_SEND_WITH_INV;
			wr->invalidate_rkey = half->remote.address.rkey ^ (draw(&worker->own, 2) ? NO_KEY : 0);
		}
	}
}

/* Where a request that isn't a message goes. */
static void aim(struct worker *worker, struct half *half, struct ibv_send_wr *wr, uint64_t offset)
{
	uint64_t address = half->remote.address.buffer + offset, word;

	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr->wr.atomic.remote_addr = address;
		wr->wr.atomic.rkey = half->remote.address.rkey;
		wr->wr.atomic.compare_add = 1;
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
			memcpy(&word, half->mirror + offset, 8);
			wr->wr.atomic.compare_add = word + once_in(worker, 4);
			wr->wr.atomic.swap = draw(&worker->own, UINT64_MAX);
		}
		wr->sg_list[0].length = 8;
		wr->num_sge = 1;
	} else if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM) {
		if (wr->sg_list[0].length + wr->sg_list[1].length > SHARED_SIZE / 2) {
			wr->sg_list[0].length = SHARED_SIZE / 2;
			wr->sg_list[1].length = 0;
		}
		wr->wr.rdma.remote_addr = address;
		wr->wr.rdma.rkey = half->remote.address.rkey;
	}
}

/* Posts one request of any kind that the service has. Its content identifies it. */
static void request(struct worker *worker, struct half *half)
{
	pthread_mutex_lock(&half->lock);
	struct queue *queue = &half->send;
	if (queue->length >= half->depth || !half->mr) {
		pthread_mutex_unlock(&half->lock);
		return;
	}
	bool rude = !worker->gentle && once_in(worker, 40), spare_bound = half->spare_bound;
	bool in_dm = half->dm && once_in(worker, 3), zeros = false;
	char *slot = slot_of(half, false, queue->next);
	uint64_t at = in_dm ? slot_offset(half, false, queue->next) : (uintptr_t)slot;
	uint32_t key = (in_dm ? half->dm_mr : half->mr)->lkey;
	uint32_t room = (uint32_t)half->slot_size - (worker->type == IBV_QPT_UD ? 40 : 0);
	struct head head = {.number = half->messages, .sender = half->qp->qp_num};
	head.length = (uint32_t)(sizeof head + draw(&worker->own, room - sizeof head + 1));
	uint32_t first = (uint32_t)draw(&worker->own, head.length + 1);
	struct ibv_sge sges[MAX_SGE + 1] = {{at, first, key}, {at + first, head.length - first, key}};
	struct ibv_send_wr *bad = NULL, wr = {.wr_id = id_of(half, false, queue->next),
					      .sg_list = sges,
					      .num_sge = 2,
					      .imm_data = htonl((uint32_t)half->messages),
					      .opcode = draw_opcode(worker)};
	if (wr.opcode == IBV_WR_BIND_MW && !half->spare[1])
		wr.opcode = IBV_WR_SEND;
	uint64_t offset = draw(&worker->own, SHARED_SIZE / 2) & ~7ull;
	bool message = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
	bool write = wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	/* Enough are reported that the queue never stands still. */
	if (queue->length + 1 >= half->depth || queue->next % 4 == 0 || draw(&worker->own, 2))
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (once_in(worker, 8))
		wr.send_flags |= IBV_SEND_FENCE;
	if (message || write) {
		memcpy(slot, &head, sizeof head);
		fill(slot + sizeof head, head.length - sizeof head, head.number);
		if (head.length <= MAX_INLINE && draw(&worker->own, 2)) {
			wr.send_flags |= IBV_SEND_INLINE;
			sges[0].addr = (uintptr_t)slot;
			sges[1].addr = (uintptr_t)slot + first;
		} else if (in_dm) {
			MUST(ibv_memcpy_to_dm(half->dm, at, slot, (head.length + 3) & ~3u));
		}
	}
	if (wr.opcode == IBV_WR_BIND_MW)
		use_spare(worker, half, &wr);
	else
		aim(worker, half, &wr, offset);
	if (write && !(wr.send_flags & IBV_SEND_INLINE) && once_in(worker, 6)) {
		zeros = true;
		sges[0].lkey = sges[1].lkey = half->null->lkey;
		sges[0].addr = sges[1].addr = offset;
	}
	if (worker->type == IBV_QPT_UD) {
		wr.wr.ud.ah = half->ah;
		wr.wr.ud.remote_qpn = half->remote.address.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	wr.qp_type.xrc.remote_srqn = half->remote.srq;
	struct posted *posted = push(queue, wr.wr_id, wr.send_flags & IBV_SEND_SIGNALED);
	posted->in_dm = in_dm;
	posted->opcode = reported_as(wr.opcode);
	if (half->mirror && wr.num_sge)
		foresee(half, posted, &wr, offset, zeros ? NULL : slot);
	if (rude) {
		spoil(worker, half, &wr);
		/* If it succeeds nevertheless, its effect on memory is unknown. */
		posted->blurred = true;
		atomic_store(half->blurred, true);
	}
	int result = half->by_calls ? post_by_calls(worker, half->qp, &wr) : ibv_post_send(half->qp, &wr, &bad);
	if (result) {
		if ((bad != &wr && !half->by_calls) || worker->gentle)
			fail("seed %lu: posting opcode %d: %s", the_seed, wr.opcode, strerror(result));
		unpush(queue);
		half->spare_bound = spare_bound;
		atomic_store(half->blurred, true);
	} else if (message) {
		half->messages++;
	}
	pthread_mutex_unlock(&half->lock);
}

/* Binds a spare window of type 1. */
static void bind_spare(struct worker *worker, struct half *half)
{
	pthread_mutex_lock(&half->lock);
	if (half->send.length < half->depth && half->mr && half->spare[0]) {
		struct ibv_mw_bind bind = {
			.wr_id = id_of(half, false, half->send.next),
			.send_flags = IBV_SEND_SIGNALED,
			.bind_info = {half->mr, (uintptr_t)half->memory, draw(&worker->own, half->memory_size + 1),
				      IBV_ACCESS_REMOTE_READ}};

		push(&half->send, bind.wr_id, true)->opcode = IBV_WC_BIND_MW;
		int result = ibv_bind_mw(half->qp, half->spare[0], &bind);
		if (result) {
			if (worker->gentle)
				fail("seed %lu: ibv_bind_mw: %s", the_seed, strerror(result));
			unpush(&half->send);
		}
	}
	pthread_mutex_unlock(&half->lock);
}

#endif
