/* Device memory: ibv_alloc_dm, ibv_memcpy_to_dm, ibv_memcpy_from_dm, ibv_reg_dm_mr, ibv_free_dm. */
#include "conform.h"

/* What ibv_alloc_dm and the calls on its memory refuse, and the alignment that atomics need. */
static void corners(uint64_t max_size)
{
	struct ibv_alloc_dm_attr attr = {.length = max_size + 1};
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	struct pair pair = make_pair(IBV_QPT_RC);
	struct buffer result = make_buffer(64, ALL);
	uint64_t sum = 5;

	is_null(ibv_alloc_dm(ctx, &attr), ENOMEM, "ibv_alloc_dm(3): more than max_dm_size: ENOMEM");
	attr = (struct ibv_alloc_dm_attr){.length = 64, .comp_mask = 1};
	is_null(ibv_alloc_dm(ctx, &attr), EINVAL, "ibv_alloc_dm(3): an unknown comp_mask: EINVAL");
	attr = (struct ibv_alloc_dm_attr){.length = 0};
	is_null(ibv_alloc_dm(ctx, &attr), EINVAL, "ibv_alloc_dm(3): no bytes: EINVAL");
	attr = (struct ibv_alloc_dm_attr){.length = 64, .log_align_req = 63};
	is_null(ibv_alloc_dm(ctx, &attr), EINVAL, "ibv_alloc_dm(3): an alignment that no memory has: EINVAL");
	attr = (struct ibv_alloc_dm_attr){.length = 64, .log_align_req = 12};
	dm = ibv_alloc_dm(ctx, &attr);
	if (!check(dm != NULL, "ibv_alloc_dm(3): an alignment can be asked for"))
		return;
	is(ibv_memcpy_to_dm(dm, 0, &sum, 8), 0, "ibv_memcpy_to_dm(3): at the start");
	is(ibv_memcpy_to_dm(dm, 60, &sum, 8), EFAULT, "ibv_memcpy_to_dm(3): beyond the memory: EFAULT");
	is(ibv_memcpy_from_dm(&sum, dm, 64, 1), EFAULT, "ibv_memcpy_from_dm(3): beyond the memory: EFAULT");
	is(ibv_memcpy_from_dm(&sum, dm, UINT64_MAX, 8), EFAULT, "ibv_memcpy_from_dm(3): an offset that wraps: EFAULT");
	is(ibv_memcpy_to_dm(dm, 0, NULL, 8), EFAULT, "ibv_memcpy_to_dm(3): from where there is no memory: EFAULT");
	is(ibv_memcpy_to_dm(dm, 64, &sum, 0), 0, "ibv_memcpy_to_dm(3): no bytes at its end");
	is_null(ibv_reg_dm_mr(pd, dm, 0, 65, ALL | IBV_ACCESS_ZERO_BASED), EINVAL, "ibv_reg_dm_mr(3): beyond the memory: EINVAL");
	is_null(ibv_reg_dm_mr(pd, dm, 0, 64, ALL), EINVAL, "ibv_reg_dm_mr(3): without ZERO_BASED: EINVAL");
	is_null(ibv_reg_dm_mr(pd, dm, 0, 64, REMOTE | IBV_ACCESS_ZERO_BASED), EINVAL, "ibv_reg_dm_mr(3): REMOTE_WRITE without LOCAL_WRITE: EINVAL");
	mr = MAKE(ibv_reg_dm_mr(pd, dm, 0, 64, ALL | IBV_ACCESS_ZERO_BASED));
	struct ibv_sge sge = piece(&result, 0, 8);
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);

	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = 7;
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_alloc_dm(3): aligned memory takes atomic operations");
	MUST(ibv_memcpy_from_dm(&sum, dm, 0, 8));
	is((long)sum, 12, "ibv_alloc_dm(3): and they change it");
	MUST(ibv_dereg_mr(mr));
	is(ibv_free_dm(dm), 0, "ibv_free_dm(3): once its MR is gone: 0");
	free_pair(&pair);
	free_buffer(&result);
}

int main(int argc, char **argv)
{
	struct ibv_device_attr_ex ex;
	struct ibv_alloc_dm_attr attr = {.length = 8192};
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	struct buffer buffer;
	struct pair pair;
	struct ibv_sge sge;
	unsigned char bytes[256], back[256];

	begin(argc, argv);
	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	dm = ibv_alloc_dm(ctx, &attr);
	if (!ex.max_dm_size) {
		check(dm == NULL, "ibv_alloc_dm(3): NULL where max_dm_size is 0");
		return end();
	}
	check(dm && dm->context == ctx, "ibv_alloc_dm(3): a pointer to the device memory");
	if (!dm)
		return end();
	corners(ex.max_dm_size);
	attr.length = ex.max_dm_size + 1;
	check(ibv_alloc_dm(ctx, &attr) == NULL, "ibv_alloc_dm(3): more than max_dm_size fails");
	attr.length = 64;
	attr.comp_mask = 1u << 20;
	check(ibv_alloc_dm(ctx, &attr) == NULL, "ibv_alloc_dm(3): an unknown comp_mask fails");
	fill(bytes, sizeof bytes, 1);
	is(ibv_memcpy_to_dm(dm, 100, bytes, sizeof bytes), 0, "ibv_memcpy_to_dm(3): 0 on success");
	is(ibv_memcpy_from_dm(back, dm, 100, sizeof back), 0, "ibv_memcpy_from_dm(3): 0 on success");
	check(!memcmp(bytes, back, sizeof back), "ibv_memcpy_from_dm(3): what was written at this offset");
	check(ibv_memcpy_to_dm(dm, 8192 - 100, bytes, 256) != 0, "ibv_memcpy_to_dm(3): beyond the memory fails");
	check(ibv_memcpy_from_dm(back, dm, 8192, 1) != 0, "ibv_memcpy_from_dm(3): beyond the memory fails");
	check(ibv_reg_dm_mr(pd, dm, 0, 4096, ALL) == NULL, "ibv_reg_dm_mr(3): without ZERO_BASED it fails");
	check(ibv_reg_dm_mr(pd, dm, 4096, 8192, ALL | IBV_ACCESS_ZERO_BASED) == NULL, "ibv_reg_dm_mr(3): beyond the memory it fails");
	mr = ibv_reg_dm_mr(pd, dm, 64, 4096, ALL | IBV_ACCESS_ZERO_BASED);
	check(mr != NULL, "ibv_reg_dm_mr(3): a pointer to the MR");
	if (!mr)
		return end();
	is(ibv_free_dm(dm), EBUSY, "ibv_free_dm(3): device memory with an MR isn't freed: EBUSY");
	buffer = make_buffer(4096, ALL);
	pair = make_pair(IBV_QPT_RC);
	is_status(one_sided(&pair, IBV_WR_RDMA_READ, piece(&buffer, 0, 256), 36, mr->rkey), IBV_WC_SUCCESS,
		  "ibv_reg_dm_mr(3): the MR is read at offsets from its start");
	check(!memcmp(buffer.mem, bytes, 256), "ibv_reg_dm_mr(3): and what is read is the device's memory");
	fill(buffer.mem, 256, 2);
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 256), 1000, mr->rkey), IBV_WC_SUCCESS,
		  "ibv_reg_dm_mr(3): the MR is written");
	MUST(ibv_memcpy_from_dm(back, dm, 1064, 256));
	check(filled(back, 256, 2), "ibv_memcpy_from_dm(3): what a remote WRITE has written");
	sge = (struct ibv_sge){1000, 256, mr->lkey};
	MUST(post_recv(pair.b, &buffer, 1024, 256, 1));
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_reg_dm_mr(3): the L_Key's addresses are offsets too");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_reg_dm_mr(3): a message out of device memory arrives");
	check(filled(buffer.mem + 1024, 256, 2), "ibv_reg_dm_mr(3): with its bytes");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 256), 4000, mr->rkey), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_dm_mr(3): beyond the MR: REM_ACCESS_ERR");
	free_pair(&pair);
	is(ibv_dereg_mr(mr), 0, "ibv_reg_dm_mr(3): the MR is deregistered as any other");
	is(ibv_free_dm(dm), 0, "ibv_free_dm(3): 0 on success");
	free_buffer(&buffer);
	return end();
}
