/* The model that `calls` holds the adapter to: of each queue, what has been posted and hasn't completed, and of each
 * peer's memory, what it contains.
 *
 * A request completes at most once and in the order of posting; a signaled one, or one that fails, is reported; a
 * completion means that all earlier ones of its queue are done. What has been received is what was sent, once, in order
 * where the service promises that. What a READ or an atomic operation brings is what the requests before it have left.
 */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H

#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define MAX_DEPTH 32
#define MAX_THREADS 16
#define HALVES_PER_THREAD 4
/* What a peer may reach. */
#define SHARED_SIZE 65536

/* A request on its way. */
struct posted {
	uint64_t id;
	bool signaled;
	enum ibv_wc_opcode opcode;
	/* What a READ or an atomic operation must bring, from where in the peer's memory. */
	char *expected;
	uint32_t length;
	uint64_t offset;
	/* A later request may have changed that before. */
	bool blurred;
	/* Its memory is the device's. */
	bool in_dm;
};

/* One direction of a QP. */
struct queue {
	struct posted posted[MAX_DEPTH];
	unsigned int head, length;
	uint64_t next;
};

/* What a half opens to its peer. */
enum opening { REGION, WINDOW_1, WINDOW_2, DEVICE, PAGED, OPENINGS };

struct opened {
	enum opening kind;
	char *area;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_dm *dm;
	uint32_t rkey;
	uint64_t address;
	/* It was taken back and filled: it must not change any more. */
	bool sealed;
};

/* What a side sends the other to connect. */
struct end {
	struct address address;
	/* Of XRC. */
	uint32_t target, srq;
};

/* A QP with its memory and its model. */
struct half {
	pthread_mutex_t lock;
	struct ibv_qp *qp;
	/* The receiving end, if it is another QP. */
	struct ibv_qp *target;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	char *memory;
	size_t slot_size, memory_size;
	uint32_t depth, generation, number;
	struct queue send, receive;
	struct end remote;
	struct opened opened;
	/* The same slots in device memory. */
	struct ibv_dm *dm;
	struct ibv_mr *dm_mr;
	/* Zeros. */
	struct ibv_mr *null;
	/* Windows that are bound but not used, of type 1 and 2. */
	struct ibv_mw *spare[2];
	bool spare_bound;
	/* What the peer's memory contains, unless something else than our requests changes it. */
	char *mirror;
	atomic_bool *blurs, *blurred, own_blur;
	/* The next message of the peer, if the service keeps the order. */
	uint64_t expected;
	/* Messages sent so far. */
	uint64_t messages;
	uint64_t succeeded, failed;
	/* All requests must succeed. */
	bool gentle;
	/* Requests are posted by ibv_wr_*. */
	bool by_calls;
	/* Completions may still come, and are ignored. */
	bool dead;
};

/* What stands at the beginning of a message. */
struct head {
	uint64_t number;
	uint32_t length, sender;
};

static struct half halves[MAX_THREADS * HALVES_PER_THREAD];
static uint64_t the_seed;
static atomic_ulong total_compared;

/* generation | receive | half | number, 16, 1, 15 and 32 bits */
static uint64_t id_of(const struct half *half, bool receive, uint64_t number)
{
	return (uint64_t)(half->generation & 0xffff) << 48 | (uint64_t)receive << 47 |
	       (uint64_t)half->number << 32 | (uint32_t)number;
}

static size_t slot_offset(const struct half *half, bool receive, uint64_t number)
{
	return ((receive ? half->depth : 0) + number % half->depth) * half->slot_size;
}

static char *slot_of(const struct half *half, bool receive, uint64_t number)
{
	return half->memory + slot_offset(half, receive, number);
}

static struct posted *posted_at(struct queue *queue, unsigned int index)
{
	return &queue->posted[(queue->head + index) % MAX_DEPTH];
}

static struct posted *push(struct queue *queue, uint64_t id, bool signaled)
{
	struct posted *posted = posted_at(queue, queue->length++);

	*posted = (struct posted){.id = id, .signaled = signaled};
	queue->next++;
	return posted;
}

/* Undoes the last `push`: the request wasn't taken. */
static void unpush(struct queue *queue)
{
	free(posted_at(queue, --queue->length)->expected);
	queue->next--;
}

static void forget(struct queue *queue)
{
	while (queue->length)
		unpush(queue);
	*queue = (struct queue){0};
}

/* Copies a slot of device memory to its twin; copies are of whole words. */
static void fetch_slot(struct half *half, bool receive, uint64_t number, uint32_t length)
{
	if (length)
		MUST(ibv_memcpy_from_dm(slot_of(half, receive, number), half->dm,
					slot_offset(half, receive, number), (length + 3) & ~3u));
}

static void check_message(struct half *half, const struct ibv_wc *wc, bool in_dm)
{
	const char *memory = slot_of(half, true, (uint32_t)wc->wr_id);
	uint32_t length = wc->byte_len;
	struct head head;

	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		return;
	if (wc->opcode != IBV_WC_RECV)
		fail("seed %lu: a receive has opcode %d", the_seed, wc->opcode);
	if (in_dm)
		fetch_slot(half, true, (uint32_t)wc->wr_id, length);
	if (half->qp->qp_type == IBV_QPT_UD) {
		memory += 40;
		length -= 40;
	}
	if (length < sizeof head)
		fail("seed %lu: a message of %u bytes, shorter than its head", the_seed, length);
	memcpy(&head, memory, sizeof head);
	if (head.length != length)
		fail("seed %lu: a message of %u bytes instead of %u", the_seed, length, head.length);
	check(memory + sizeof head, length - sizeof head, head.number, "message");
	if ((wc->wc_flags & IBV_WC_WITH_IMM) && ntohl(wc->imm_data) != (uint32_t)head.number)
		fail("seed %lu: immediate data %u of message %lu", the_seed, ntohl(wc->imm_data), head.number);
	if (head.number < half->expected)
		fail("seed %lu: message %lu after %lu", the_seed, head.number, half->expected - 1);
	bool reliable = half->qp->qp_type == IBV_QPT_RC || half->qp->qp_type == IBV_QPT_XRC_SEND;
	if (half->gentle && reliable && head.number != half->expected)
		fail("seed %lu: message %lu instead of %lu", the_seed, head.number, half->expected);
	if (half->qp->qp_type != IBV_QPT_UD)
		half->expected = head.number + 1;
}

/* A request has succeeded. What it brought is there unless the memory was taken back since. */
static void check_request(struct half *half, struct posted *posted)
{
	const char *memory = slot_of(half, false, (uint32_t)posted->id);

	if (posted->expected && half->mr && !posted->blurred && !atomic_load(half->blurred)) {
		if (posted->in_dm)
			fetch_slot(half, false, (uint32_t)posted->id, posted->length);
		if (memcmp(memory, posted->expected, posted->length))
			for (uint32_t i = 0; i < posted->length; i++)
				if (memory[i] != posted->expected[i])
					fail("seed %lu: byte %u of %u of what operation %d brought from offset %lu is "
					     "%02x instead of %02x",
					     the_seed, i, posted->length, posted->opcode, posted->offset,
					     (unsigned char)memory[i], (unsigned char)posted->expected[i]);
		atomic_fetch_add(&total_compared, 1);
	}
	free(posted->expected);
	posted->expected = NULL;
}

/* Finds the request of a completion; the lock of the half is held. */
static struct posted take_posted(struct half *half, const struct ibv_wc *wc, bool receive)
{
	struct queue *queue = receive ? &half->receive : &half->send;

	for (;;) {
		if (queue->length == 0)
			fail("seed %lu: request %lx has completed twice, or never was posted (%s)", the_seed,
			     wc->wr_id, ibv_wc_status_str(wc->status));
		struct posted posted = *posted_at(queue, 0);
		queue->head = (queue->head + 1) % MAX_DEPTH;
		queue->length--;
		bool found = posted.id == wc->wr_id;
		if (!found && (receive || posted.signaled))
			fail("seed %lu: request %lx completed before %lx (%s)", the_seed, wc->wr_id, posted.id,
			     ibv_wc_status_str(wc->status));
		if (found && !posted.signaled && wc->status == IBV_WC_SUCCESS)
			fail("seed %lu: an unsignaled request was reported", the_seed);
		if (!receive && (!found || wc->status == IBV_WC_SUCCESS))
			check_request(half, &posted);
		free(posted.expected);
		posted.expected = NULL;
		if (found)
			return posted;
	}
}

/* Holds a completion against the model. The lock of the CQ is held. */
static void account(const struct ibv_wc *wc)
{
	struct half *half = &halves[wc->wr_id >> 32 & 0x7fff];
	bool receive = wc->wr_id >> 47 & 1;

	pthread_mutex_lock(&half->lock);
	if ((wc->wr_id >> 48) != (half->generation & 0xffff) || half->dead)
		goto out;
	uint32_t number = receive && half->target ? half->target->qp_num : half->qp->qp_num;
	if (wc->qp_num != number)
		fail("seed %lu: a completion of QP %u with the number of QP %u", the_seed, number, wc->qp_num);
	struct posted posted = take_posted(half, wc, receive);
	if (wc->status == IBV_WC_SUCCESS) {
		half->succeeded++;
		if (receive && half->mr)
			check_message(half, wc, posted.in_dm);
		if (!receive && wc->opcode != posted.opcode)
			fail("seed %lu: a request of opcode %d is reported as %d", the_seed, posted.opcode, wc->opcode);
	} else {
		half->failed++;
		if (half->gentle)
			fail("seed %lu: a %s of QP %06x, whose peer is QP %06x, failed: %s (opcode %d, opened as %d%s%s)",
			     the_seed, receive ? "receive" : "request", wc->qp_num, half->remote.address.qpn,
			     ibv_wc_status_str(wc->status), posted.opcode, half->opened.kind, posted.in_dm ? ", device memory" : "",
			     half->srq ? ", SRQ" : "");
	}
out:
	pthread_mutex_unlock(&half->lock);
}

#endif
