/* Calls of rdma-core v65 that older headers and libraries lack: their structures, and their names looked up when the
 * program runs.
 */
#ifndef NEWER_H
#define NEWER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

struct mr_init {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

enum { MASK_IOVA = 1, MASK_ADDR = 2, MASK_FD = 4, MASK_FD_OFFSET = 8, MASK_DMAH = 16, MASK_BUF = 32 };

struct dmah_attr {
	uint32_t comp_mask, cpu_id;
	uint8_t ph, tph_mem_type;
};

enum { DMAH_CPU_ID = 1, DMAH_PH = 2, DMAH_MEM_TYPE = 4 };

struct counter_attr {
	uint32_t comp_mask;
	int type;
	uint32_t flags;
};

enum { COUNTS_REQUESTS, COUNTS_BYTES };

struct counter_caps {
	uint64_t max_value;
	uint32_t max_counters, operations;
};

struct attach_attr {
	uint32_t comp_mask, op_mask;
};

enum { OP_SEND = 1, OP_RECV = 2, OP_READ = 4, OP_REMOTE_READ = 8, OP_WRITE = 16, OP_REMOTE_WRITE = 32 };

/* NULL where the library hasn't the call. */
static void *newer(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

#endif
