/* FLUSH, which is newer than the headers of rdma-core 44. */
#ifndef FLUSH_H
#define FLUSH_H

#include "extended_qp.h"

#define ACCESS_FLUSH_GLOBAL (1u << 8)
#define ACCESS_FLUSH_PERSISTENT (1u << 9)
#define WC_FLUSH 8
enum { GLOBAL = 1, PERSISTENT = 2 };
enum { RANGE, WHOLE_MR };

struct newer_qp_ex {
	struct ibv_qp_ex old;
	void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, size_t len, uint8_t type,
			 uint8_t level);
};

__attribute__((unused)) static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, const void *at, size_t len, uint8_t type, uint8_t level)
{
	((struct newer_qp_ex *)qp)->wr_flush(qp, rkey, (uintptr_t)at, len, type, level);
}

#endif
