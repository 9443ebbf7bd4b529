/* device_memory: ibv_alloc_dm(3), ibv_reg_dm_mr(3): copies, local and remote access, atomics, what is refused. */
#include "cases.h"

#define DM_SIZE 32768
#define ZERO_BASED (ALL_ACCESS | IBV_ACCESS_ZERO_BASED)

static uint64_t max_dm_size(const struct device *device)
{
	struct ibv_device_attr_ex attr;

	MUST(ibv_query_device_ex(device->context, NULL, &attr));
	EXPECT(attr.max_dm_size > 0);
	return attr.max_dm_size;
}

static struct ibv_dm *alloc(const struct device *device, size_t length, uint32_t log_align)
{
	struct ibv_alloc_dm_attr attr = {.length = length, .log_align_req = log_align};

	return ibv_alloc_dm(device->context, &attr);
}

static void what_is_allocated_is_bounded_and_comes_back(void)
{
	struct device device = open_device(1);
	uint64_t most = max_dm_size(&device);
	struct ibv_alloc_dm_attr attr = {.length = 4096, .comp_mask = 1};
	struct ibv_dm *half, *rest;

	EXPECT_NULL(ENOMEM, alloc(&device, most + 4, 0));
	EXPECT_NULL(EINVAL, alloc(&device, 0, 0));
	EXPECT_NULL(EINVAL, alloc(&device, 4096, 60));
	EXPECT_NULL(EINVAL, ibv_alloc_dm(device.context, &attr));
	half = MAKE(alloc(&device, most / 2, 6));
	rest = MAKE(alloc(&device, most - most / 2, 21));
	EXPECT_NULL(ENOMEM, alloc(&device, 4, 0));
	MUST(ibv_free_dm(half));
	half = MAKE(alloc(&device, most / 2, 0));
	MUST(ibv_free_dm(half));
	MUST(ibv_free_dm(rest));
}

static void copies_stay_inside(void)
{
	struct device device = open_device(1);
	struct ibv_dm *dm = MAKE(alloc(&device, DM_SIZE, 0));
	static char in[DM_SIZE], out[DM_SIZE], zeros[DM_SIZE];

	MUST(ibv_memcpy_from_dm(out, dm, 0, DM_SIZE));
	EXPECT(!memcmp(out, zeros, DM_SIZE));
	fill(in, DM_SIZE, 3);
	MUST(ibv_memcpy_to_dm(dm, 0, in, DM_SIZE));
	MUST(ibv_memcpy_from_dm(out, dm, 0, DM_SIZE));
	EXPECT(!memcmp(out, in, DM_SIZE));
	MUST(ibv_memcpy_from_dm(out, dm, 4096, 20000));
	EXPECT(!memcmp(out, in + 4096, 20000));
	MUST(ibv_memcpy_to_dm(dm, DM_SIZE, in, 0));
	EXPECT_ERRNO(EFAULT, ibv_memcpy_to_dm(dm, DM_SIZE, in, 4));
	EXPECT_ERRNO(EFAULT, ibv_memcpy_from_dm(out, dm, 4, DM_SIZE));
	EXPECT_ERRNO(EFAULT, ibv_memcpy_from_dm(out, dm, UINT64_MAX - 3, 8));
	EXPECT_ERRNO(EINVAL, ibv_memcpy_to_dm(dm, 2, in, 4));
	EXPECT_ERRNO(EFAULT, ibv_memcpy_to_dm(dm, 0, (void *)16, 4));
	EXPECT_ERRNO(EFAULT, ibv_memcpy_from_dm((void *)16, dm, 0, DM_SIZE));
	MUST(ibv_memcpy_from_dm(out, dm, 0, DM_SIZE));
	EXPECT(!memcmp(out, in, DM_SIZE));
	MUST(ibv_free_dm(dm));
}

static void regions_are_checked_and_hold_the_memory(void)
{
	struct device device = open_device(1);
	struct ibv_dm *dm = MAKE(alloc(&device, 100, 0));
	struct ibv_mr *mr;

	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, 0, 100, ALL_ACCESS));
	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, 0, 104, ZERO_BASED));
	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, 4, 100, ZERO_BASED));
	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, UINT64_MAX, 8, ZERO_BASED));
	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, 0, 100, ZERO_BASED & ~IBV_ACCESS_LOCAL_WRITE));
	EXPECT_NULL(EINVAL, ibv_reg_dm_mr(device.pd, dm, 0, 100, ZERO_BASED | IBV_ACCESS_MW_BIND));
	mr = MAKE(ibv_reg_dm_mr(device.pd, dm, 4, 96, ZERO_BASED));
	EXPECT(mr->length == 96 && mr->pd == device.pd);
	EXPECT_ERRNO(EBUSY, ibv_free_dm(dm));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(device.pd));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_free_dm(dm));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	set_remote(&wr, remote, rkey);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.compare_add = 9;
	return ibv_post_send(qp, &wr, &bad);
}

static void qps_reach_it_by_offsets_from_the_region(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_dm *dm = MAKE(alloc(&f.device, DM_SIZE, 3));
	struct ibv_mr *mr = MAKE(ibv_reg_dm_mr(f.device.pd, dm, 64, DM_SIZE - 64, ZERO_BASED));
	struct ibv_sge in_dm = {0, 20000, mr->lkey}, in_host = {(uintptr_t)f.memory, 20000, f.mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = &in_dm, .num_sge = 1}, *bad;
	uint64_t word = 5, *result = (void *)(f.memory + 40000);

	/* Received there, */
	fill(f.memory, 20000, 1);
	MUST(ibv_post_recv(f.b, &recv, &bad));
	MUST(post(f.a, IBV_WR_SEND, in_host, 0, 0));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	MUST(ibv_memcpy_from_dm(f.memory + 20000, dm, 64, 20000));
	check(f.memory + 20000, 20000, 1, "a message received into device memory");
	/* sent from there, */
	memset(f.memory, 0, 20000);
	recv.sg_list = &in_host;
	MUST(ibv_post_recv(f.b, &recv, &bad));
	MUST(post(f.a, IBV_WR_SEND, in_dm, 0, 0));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	check(f.memory, 20000, 1, "a message sent from device memory");
	/* written and read by a peer, */
	fill(f.memory, 20000, 2);
	MUST(post(f.a, IBV_WR_RDMA_WRITE, in_host, 128, mr->rkey));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	memset(f.memory, 0, 20000);
	MUST(post(f.a, IBV_WR_RDMA_READ, in_host, 128, mr->rkey));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(f.memory, 20000, 2, "what a peer wrote to device memory and read from there");
	/* and counted on. */
	MUST(ibv_memcpy_to_dm(dm, 64, &word, sizeof word));
	in_host = (struct ibv_sge){(uintptr_t)result, 8, f.mr->lkey};
	MUST(post(f.a, IBV_WR_ATOMIC_FETCH_AND_ADD, in_host, 0, mr->rkey));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	MUST(ibv_memcpy_from_dm(&word, dm, 64, sizeof word));
	EXPECT(*result == 5 && word == 14);
	/* Not beyond the region's end. */
	MUST(post(f.a, IBV_WR_RDMA_READ, in_host, DM_SIZE - 64 - 7, mr->rkey));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_REM_ACCESS_ERR);
}

static const struct test_case cases[] = {
	CASE(what_is_allocated_is_bounded_and_comes_back),
	CASE(copies_stay_inside),
	CASE(regions_are_checked_and_hold_the_memory),
	CASE(qps_reach_it_by_offsets_from_the_region),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
