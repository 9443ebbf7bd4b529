/* The model that `anything` holds the adapter to: of each queue, what has been posted and hasn't completed.
 *
 * A request completes at most once and in the order of posting; a signaled one, or one that fails, is reported; a
 * completion says that all earlier ones of its queue are done. What has been received is what was sent, once, in order
 * where the service promises that.
 */
#ifndef ANYTHING_H
#define ANYTHING_H

#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define MAX_DEPTH 32
#define MAX_THREADS 16
#define HALVES_PER_THREAD 4

/* One direction of a QP. */
struct queue {
	uint64_t ids[MAX_DEPTH];
	bool signaled[MAX_DEPTH];
	unsigned int head, length;
	uint64_t next;
};

/* A QP with its memory and its model. */
struct half {
	pthread_mutex_t lock;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	char *memory;
	size_t slot_size, memory_size;
	uint32_t depth, generation, number;
	struct queue send, receive;
	struct address remote;
	/* The next message of the peer, if the service keeps the order. */
	uint64_t expected;
	/* Messages sent so far. */
	uint64_t messages;
	uint64_t succeeded, failed;
	/* All requests must succeed. */
	bool gentle;
	/* Requests are posted by ibv_wr_*. */
	bool by_calls;
	/* Completions may still come, and say nothing any more. */
	bool dead;
};

/* What stands at the beginning of a message. */
struct head {
	uint64_t number;
	uint32_t length, sender;
};

static struct half halves[MAX_THREADS * HALVES_PER_THREAD];
static uint64_t the_seed;

/* generation | receive | half | number, 16, 1, 15 and 32 bits */
static uint64_t id_of(const struct half *half, bool receive, uint64_t number)
{
	return (uint64_t)(half->generation & 0xffff) << 48 | (uint64_t)receive << 47 |
	       (uint64_t)half->number << 32 | (uint32_t)number;
}

static char *slot_of(const struct half *half, bool receive, uint64_t number)
{
	return half->memory + ((receive ? half->depth : 0) + number % half->depth) * half->slot_size;
}

/* Where peers may read, write and count. */
static char *shared_area(const struct half *half)
{
	return half->memory + 2 * (size_t)half->depth * half->slot_size;
}

static void push(struct queue *queue, uint64_t id, bool signaled)
{
	unsigned int at = (queue->head + queue->length++) % MAX_DEPTH;

	queue->ids[at] = id;
	queue->signaled[at] = signaled;
	queue->next++;
}

/* Undoes the last `push`: the request wasn't taken. */
static void unpush(struct queue *queue)
{
	queue->length--;
	queue->next--;
}

static void check_message(struct half *half, const struct ibv_wc *wc)
{
	const char *memory = slot_of(half, true, (uint32_t)wc->wr_id);
	uint32_t length = wc->byte_len;
	struct head head;

	if (half->qp->qp_type == IBV_QPT_UD) {
		memory += 40;
		length -= 40;
	}
	if (wc->opcode != IBV_WC_RECV)
		return;
	if (length < sizeof head)
		fail("seed %lu: a message of %u bytes, which nobody has sent", the_seed, length);
	memcpy(&head, memory, sizeof head);
	if (head.length != length)
		fail("seed %lu: a message of %u bytes instead of %u", the_seed, length, head.length);
	check(memory + sizeof head, length - sizeof head, head.number, "message");
	if (head.number < half->expected)
		fail("seed %lu: message %lu after %lu", the_seed, head.number, half->expected - 1);
	if (half->gentle && half->qp->qp_type == IBV_QPT_RC && head.number != half->expected)
		fail("seed %lu: message %lu instead of %lu", the_seed, head.number, half->expected);
	if (half->qp->qp_type != IBV_QPT_UD)
		half->expected = head.number + 1;
}

/* Holds a completion against the model. The lock of the CQ is held. */
static void account(const struct ibv_wc *wc)
{
	struct half *half = &halves[wc->wr_id >> 32 & 0x7fff];
	bool receive = wc->wr_id >> 47 & 1;
	struct queue *queue = receive ? &half->receive : &half->send;

	pthread_mutex_lock(&half->lock);
	if ((wc->wr_id >> 48) != (half->generation & 0xffff) || half->dead)
		goto out;
	if (wc->qp_num != half->qp->qp_num)
		fail("seed %lu: a completion of QP %u with the number of QP %u", the_seed, half->qp->qp_num,
		     wc->qp_num);
	for (;;) {
		if (queue->length == 0)
			fail("seed %lu: request %lx has completed twice, or never was posted (%s)", the_seed,
			     wc->wr_id, ibv_wc_status_str(wc->status));
		unsigned int at = queue->head;
		queue->head = (at + 1) % MAX_DEPTH;
		queue->length--;
		if (queue->ids[at] == wc->wr_id) {
			if (!queue->signaled[at] && wc->status == IBV_WC_SUCCESS)
				fail("seed %lu: an unsignaled request was reported", the_seed);
			break;
		}
		if (receive || queue->signaled[at])
			fail("seed %lu: request %lx completed before %lx (%s)", the_seed, wc->wr_id,
			     queue->ids[at], ibv_wc_status_str(wc->status));
	}
	if (wc->status == IBV_WC_SUCCESS) {
		half->succeeded++;
		if (receive && half->mr)
			check_message(half, wc);
	} else {
		half->failed++;
		if (half->gentle)
			fail("seed %lu: a %s of QP %06x, whose peer is QP %06x, failed: %s", the_seed,
			     receive ? "receive" : "request", wc->qp_num, half->remote.qpn,
			     ibv_wc_status_str(wc->status));
	}
out:
	pthread_mutex_unlock(&half->lock);
}

#endif
