/* flush_and_atomic_write: what calls alone can post: atomic writes and flushes. */
#define _GNU_SOURCE
#include "extended_qp.h"
#include <sys/mman.h>

/* Newer than the headers of rdma-core 44. */
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

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, const void *at, size_t len, uint8_t type, uint8_t level)
{
	((struct newer_qp_ex *)qp)->wr_flush(qp, rkey, (uintptr_t)at, len, type, level);
}

static void atomic_write_stores_eight_bytes(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	uint64_t value = 0x0102030405060708, *word = (uint64_t *)(f.memory + 8192);
	struct ibv_wc wc;
	struct ibv_qp_ex *ex = started(f.a, 1);

	ibv_wr_atomic_write(ex, f.mr->rkey, (uintptr_t)word, &value);
	value = 0;
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(f.cq_a, &wc);
	EXPECT(wc.opcode == IBV_WC_ATOMIC_WRITE && *word == 0x0102030405060708);

	/* By a list too; of 8 bytes only. */
	*(uint64_t *)f.memory = 99;
	EXPECT_ERRNO(EINVAL, post_remote(f.a, IBV_WR_ATOMIC_WRITE, f.mr, 7, (uintptr_t)word, f.mr->rkey, 2));
	EXPECT_ERRNO(EINVAL, post_remote(f.a, IBV_WR_ATOMIC_WRITE, f.mr, 9, (uintptr_t)word, f.mr->rkey, 2));
	MUST(post_remote(f.a, IBV_WR_ATOMIC_WRITE, f.mr, 8, (uintptr_t)word, f.mr->rkey, 2));
	MUST_COMPLETE(f.cq_a, &wc);
	EXPECT(wc.wr_id == 2 && wc.opcode == IBV_WC_ATOMIC_WRITE && *word == 99);

	ex = started(f.a, 3);
	ibv_wr_atomic_write(ex, f.mr->rkey, (uintptr_t)word + 4, &value);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 3, IBV_WC_REM_INV_REQ_ERR);
	EXPECT(*word == 99);
}

static void atomic_write_needs_the_right_to_write(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(f.device.pd, f.memory + 4096, 64,
					    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
	uint64_t value = 1;
	struct ibv_qp_ex *ex = started(f.a, 1);

	ibv_wr_atomic_write(ex, mr->rkey, (uintptr_t)f.memory + 4096, &value);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_REM_ACCESS_ERR);
	EXPECT(f.memory[4096] == 0);
}

static void flush_makes_writes_visible_where_it_is_permitted(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS | WITH_FLUSH, ALL_ACCESS | ACCESS_FLUSH_GLOBAL);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(f.device.pd, f.memory + 16384, 16384, (int)(ALL_ACCESS | ACCESS_FLUSH_GLOBAL)));
	struct ibv_wc wc;
	struct ibv_qp_ex *ex;

	fill(f.memory, 10000, 3);
	for (uint8_t level = RANGE; level <= WHOLE_MR; level++) {
		memset(f.memory + 16384, 0, 10000);
		ex = started(f.a, 1);
		ex->wr_flags = 0;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)f.memory + 16384);
		ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 10000);
		ex->wr_flags = IBV_SEND_SIGNALED;
		wr_flush(ex, mr->rkey, f.memory + 16384, level == RANGE ? 10000 : 0, GLOBAL, level);
		MUST(ibv_wr_complete(ex));
		MUST_COMPLETE(f.cq_a, &wc);
		EXPECT(wc.opcode == WC_FLUSH);
		check(f.memory + 16384, 10000, 3, "flushed write");
	}
	ex = started(f.a, 1);
	wr_flush(ex, mr->rkey, f.memory + 16384, 8, 0, RANGE);
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));
	ex = started(f.a, 1);
	wr_flush(ex, mr->rkey, f.memory + 16384, 8, GLOBAL, 2);
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));
	/* A region without the right. */
	ex = started(f.a, 2);
	wr_flush(ex, f.mr->rkey, f.memory, 8, GLOBAL, RANGE);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_ACCESS_ERR);
}

static void persistent_flush_is_for_mapped_files(void)
{
	unsigned int access = ALL_ACCESS | ACCESS_FLUSH_PERSISTENT;
	struct fixture f = extended(IBV_QPT_RC, RC_OPS | WITH_FLUSH, access);
	char name[] = "/var/tmp/wr_api.XXXXXX";
	struct ibv_qp_ex *ex;
	int fd;

	EXPECT_NULL(EINVAL, ibv_reg_mr(f.device.pd, f.memory, 4096, (int)access));
	fd = memfd_create("nowhere", 0);
	EXPECT(fd >= 0 && !ftruncate(fd, 4096));
	char *nowhere = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	EXPECT_NULL(EINVAL, ibv_reg_mr(f.device.pd, nowhere, 4096, (int)access));
	fd = mkstemp(name);
	EXPECT(fd >= 0 && !ftruncate(fd, 8192));
	char *file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct ibv_mr *mr = ibv_reg_mr(f.device.pd, file, 8192, (int)access);

	unlink(name);
	if (!mr) {
		/* /var/tmp lies in memory here: that much is true then. */
		EXPECT(errno == EINVAL);
		return;
	}
	memcpy(f.memory, "persistent", 10);
	ex = started(f.a, 1);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)file + 5000);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 10);
	wr_flush(ex, mr->rkey, file + 5000, 10, PERSISTENT, RANGE);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT(pread(fd, f.memory + 100, 10, 5000) == 10 && !memcmp(f.memory + 100, "persistent", 10));
	/* The right to persistence isn't the right to global visibility. */
	ex = started(f.a, 2);
	wr_flush(ex, mr->rkey, file, 10, GLOBAL, RANGE);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_INV_REQ_ERR);
}

static void device_says_that_it_writes_atomically_flushes_and_paces(void)
{
	struct device device = open_device(1);
	struct ibv_device_attr_ex attr;

	MUST(ibv_query_device_ex(device.context, NULL, &attr));
	EXPECT(attr.device_cap_flags_ex >> 38 == 7);
	EXPECT(attr.packet_pacing_caps.qp_rate_limit_max >= 1000000);
	EXPECT(attr.packet_pacing_caps.supported_qpts >> IBV_QPT_RC & 1);
	EXPECT(attr.orig_attr.max_qp >= 65536 && attr.orig_attr.max_qp_wr >= 32768 && attr.orig_attr.max_sge >= 32);
	EXPECT(attr.orig_attr.max_qp_rd_atom >= 16 && device.port.max_msg_sz >= 1u << 30);
}

static const struct test_case cases[] = {
	CASE(atomic_write_stores_eight_bytes),
	CASE(atomic_write_needs_the_right_to_write),
	CASE(flush_makes_writes_visible_where_it_is_permitted),
	CASE(persistent_flush_is_for_mapped_files),
	CASE(device_says_that_it_writes_atomically_flushes_and_paces),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
