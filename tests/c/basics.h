/* What the programs of this folder and those of tests/conformance share: calls that must succeed, patterns, states,
 * waiting. Everything here is plain verbs as the man pages describe them; any conforming provider will do.
 */
#ifndef BASICS_H
#define BASICS_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

#define PORT_NUM 1
#define QKEY 0x11111111

/* Reports an error in the format of the suite, and ends the program. */
UNUSED __attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...);

/* The call must return 0, as most verbs do on success. */
#define MUST(call)                                                                     \
	do {                                                                           \
		int must_result = (call);                                              \
		if (must_result)                                                       \
			fail("%s:%d: %s: returned %d (%s), errno %s", __FILE__,        \
			     __LINE__, #call, must_result,                             \
			     strerror(must_result > 0 ? must_result : 0),              \
			     strerror(errno));                                         \
	} while (0)

/* The call must return a pointer. */
#define MAKE(call)                                                                     \
	({                                                                             \
		__typeof__(call) made = (call);                                        \
		if (!made)                                                             \
			fail("%s:%d: %s: %s", __FILE__, __LINE__, #call,               \
			     strerror(errno));                                         \
		made;                                                                  \
	})

UNUSED static uint64_t now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* The byte at `offset` of the message with number `index`. */
UNUSED static inline unsigned char pattern(uint64_t index, size_t offset)
{
	return (unsigned char)(index * 131 + offset * 7 + (offset >> 8));
}

UNUSED static void fill(void *buffer, size_t length, uint64_t index)
{
	unsigned char *bytes = buffer;

	for (size_t i = 0; i < length; i++)
		bytes[i] = pattern(index, i);
}

/* The offset of the first byte that isn't the message's; the length when there is none. */
UNUSED static size_t first_wrong(const void *buffer, size_t length, uint64_t index)
{
	const unsigned char *bytes = buffer;
	size_t i = 0;

	while (i < length && bytes[i] == pattern(index, i))
		i++;
	return i;
}

/* What the transitions to INIT, RTR and RTS require of a QP type, by man ibv_modify_qp. */
UNUSED static int required(enum ibv_qp_type type, enum ibv_qp_state state)
{
	int mask = IBV_QP_STATE;

	switch (state) {
	case IBV_QPS_INIT:
		return mask | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		       (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	case IBV_QPS_RTR:
		if (type != IBV_QPT_UD)
			mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
			mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		return mask;
	case IBV_QPS_RTS:
		mask |= IBV_QP_SQ_PSN;
		if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
			mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
		if (type == IBV_QPT_XRC_RECV)
			mask |= IBV_QP_TIMEOUT;
		return mask;
	default:
		return mask;
	}
}

/* Where a one-sided request goes. */
UNUSED static void set_remote(struct ibv_send_wr *wr, uint64_t address, uint32_t rkey)
{
	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr->wr.atomic.remote_addr = address;
		wr->wr.atomic.rkey = rkey;
	} else {
		wr->wr.rdma.remote_addr = address;
		wr->wr.rdma.rkey = rkey;
	}
}

UNUSED static enum ibv_qp_state qp_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* The completion of a request. */
UNUSED static enum ibv_wc_opcode reported_as(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	default:
		return IBV_WC_SEND;
	}
}

/* Polls until a completion comes (true) or the time is over (false). */
UNUSED static bool wait_wc(struct ibv_cq *cq, struct ibv_wc *wc, unsigned int milliseconds)
{
	uint64_t end = now_ms() + milliseconds;

	do {
		int count = ibv_poll_cq(cq, 1, wc);

		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		if (count == 1)
			return true;
	} while (now_ms() < end);
	return false;
}

#endif
