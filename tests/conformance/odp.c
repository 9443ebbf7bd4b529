/* Memory that is paged in on demand, and memory that isn't there: IBV_ACCESS_ON_DEMAND, ibv_advise_mr, ibv_alloc_null_mr. */
#include "conform.h"
#include <sys/mman.h>

static struct buffer buffer;

static int write_to(void *address, struct ibv_mr *mr, uint32_t length)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	int status = one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, length), (uintptr_t)address, mr->rkey);

	free_pair(&pair);
	return status;
}

static int advise(enum ibv_advise_mr_advice advice, uint32_t flags, uint64_t address, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = {address, length, lkey};

	return ibv_advise_mr(pd, advice, flags, &sge, 1);
}

/* What each errno of ibv_advise_mr is for. */
static void advice_refused(struct ibv_mr *mr, uint64_t base)
{
	struct ibv_pd *other_pd = MAKE(ibv_alloc_pd(ctx));
	unsigned char *pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *others = MAKE(ibv_reg_mr(other_pd, pages, 4096, ALL | IBV_ACCESS_ON_DEMAND)), *hole;
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	enum ibv_advise_mr_advice read = IBV_ADVISE_MR_ADVICE_PREFETCH;
	uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
	struct ibv_sge sge = {base, 4096, mr->lkey};

	is(advise(77, flush, base, 4096, mr->lkey), ENOTSUP, "ibv_advise_mr(3): advice that doesn't exist: ENOTSUP");
	is(advise(read, flush, base, 4096, mr->lkey ^ 0xff), ENOENT, "ibv_advise_mr(3): an L_Key with another tag than the MR's: ENOENT");
	is(advise(read, flush, (uintptr_t)buffer.mem, 4096, buffer.mr->lkey), ENOENT, "ibv_advise_mr(3): the L_Key of an MR without ON_DEMAND: ENOENT");
	is(advise(read, flush, (uintptr_t)pages, 4096, others->lkey), EPERM, "ibv_advise_mr(3): the L_Key of another PD: EPERM");
	if (mw) {
		is(advise(read, flush, base, 4096, mw->rkey), EINVAL, "ibv_advise_mr(3): the key of a memory window: EINVAL");
		MUST(ibv_dealloc_mw(mw));
	}
	is(ibv_advise_mr(pd, read, flush, &sge, 0), EINVAL, "ibv_advise_mr(3): advice about nothing: EINVAL");
	hole = MAKE(ibv_reg_mr(pd, pages, 2 * 4096, ALL | IBV_ACCESS_ON_DEMAND));
	MUST(munmap(pages + 4096, 4096));
	is(advise(read, flush, (uintptr_t)pages, 2 * 4096, hole->lkey), EFAULT, "ibv_advise_mr(3): a range that isn't all mapped: EFAULT");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, flush, (uintptr_t)pages, 2 * 4096, hole->lkey), EFAULT,
	   "ibv_advise_mr(3): NO_FAULT of a range that isn't all mapped: EFAULT");
	MUST(ibv_dereg_mr(hole));
	MUST(ibv_dereg_mr(others));
	MUST(ibv_dealloc_pd(other_pd));
	munmap(pages, 4096);
}

static void on_demand(const struct ibv_odp_caps *odp)
{
	unsigned char *fresh = mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, fresh, 8 * 4096, ALL | IBV_ACCESS_ON_DEMAND), *other;
	uint64_t base = (uintptr_t)fresh;

	check(mr != NULL, "ibv_reg_mr(3): an ON_DEMAND MR");
	if (!mr)
		return;
	fill(buffer.mem, 4096, 4);
	is_status(write_to(fresh, mr, 4096), IBV_WC_SUCCESS, "ibv_reg_mr(3): an ON_DEMAND MR is written before anybody has touched its pages");
	check(filled(fresh, 4096, 4), "ibv_reg_mr(3): and the bytes are there");
	MUST(madvise(fresh, 4096, MADV_DONTNEED));
	is_status(write_to(fresh, mr, 64), IBV_WC_SUCCESS, "ibv_reg_mr(3): an ON_DEMAND MR follows pages that were given back");
	check(filled(fresh, 64, 4) && !fresh[100], "ibv_reg_mr(3): and finds the new ones");

	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, base, 8192, mr->lkey), 0, "ibv_advise_mr(3): PREFETCH with FLUSH: 0");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, base, 8192, mr->lkey), 0, "ibv_advise_mr(3): PREFETCH without FLUSH: 0");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, base, 8192, mr->lkey), 0, "ibv_advise_mr(3): PREFETCH_WRITE: 0");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH, base, 4096, mr->lkey), 0,
	   "ibv_advise_mr(3): PREFETCH_NO_FAULT of pages that are present: 0");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 1u << 20, base, 8192, mr->lkey), EINVAL, "ibv_advise_mr(3): flags that don't exist: EINVAL");
	check(advise(77, IBV_ADVISE_MR_FLAG_FLUSH, base, 8192, mr->lkey) != 0, "ibv_advise_mr(3): advice that doesn't exist fails");
	is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, base + 7 * 4096, 8192, mr->lkey), EFAULT,
	   "ibv_advise_mr(3): a range beyond the MR: EFAULT");
	check(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, base, 8192, mr->lkey ^ 0x7f) > 0,
	      "ibv_advise_mr(3): an L_Key of nothing fails");
	check(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, (uintptr_t)buffer.mem, 4096, buffer.mr->lkey) > 0,
	      "ibv_advise_mr(3): an MR without ON_DEMAND fails");

	struct ibv_sge several[2] = {{base, 4096, mr->lkey}, {base + 3 * 4096, 4096, mr->lkey}};

	is(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, several, 2), 0, "ibv_advise_mr(3): several ranges at once: 0");
	advice_refused(mr, base);
	other = ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_ON_DEMAND);
	if (other) {
		is(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, (uintptr_t)constant, 64, other->lkey), EPERM,
		   "ibv_advise_mr(3): PREFETCH_WRITE of an MR without write access: EPERM");
		MUST(ibv_dereg_mr(other));
	}
	if (odp->general_caps & IBV_ODP_SUPPORT_IMPLICIT) {
		other = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
		check(other != NULL, "ibv_reg_mr(3): an implicit ON_DEMAND MR: address 0, length SIZE_MAX");
		if (other) {
			is_status(write_to(fresh + 8192, other, 4096), IBV_WC_SUCCESS, "ibv_reg_mr(3): an implicit MR spans the process's memory");
			check(filled(fresh + 8192, 4096, 4), "ibv_reg_mr(3): and what was written is there");
			MUST(ibv_dereg_mr(other));
		}
	} else {
		skip("the device has no implicit ODP", "ibv_reg_mr(3): an implicit ON_DEMAND MR: address 0, length SIZE_MAX");
	}
	MUST(ibv_dereg_mr(mr));
	munmap(fresh, 8 * 4096);
	munmap(constant, 4096);
}

static void null_region(void)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct pair pair = make_pair(IBV_QPT_RC);

	if (!null) {
		skip("the device has no null MR", "ibv_alloc_null_mr(3): a pointer to the MR");
		free_pair(&pair);
		return;
	}
	check(null->pd == pd, "ibv_alloc_null_mr(3): a pointer to the MR");

	struct ibv_sge nothing = {0, 256, null->lkey}, parts[2] = {nothing, piece(&buffer, 0, 256)};
	struct ibv_send_wr wr = request(IBV_WR_SEND, parts);
	struct ibv_sge places[2] = {piece(&buffer, 4096, 512), nothing};
	struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = places, .num_sge = 2}, *bad;
	struct ibv_wc wc = {0};
	bool zeros = true;

	memset(buffer.mem + 4096, 0xff, 4096);
	fill(buffer.mem, 256, 5);
	wr.num_sge = 2;
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_alloc_null_mr(3): a SEND from a null MR completes");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_alloc_null_mr(3): and arrives");
	for (int i = 0; i < 256; i++)
		zeros &= !buffer.mem[4096 + i];
	check(zeros, "ibv_alloc_null_mr(3): it returns zeros on read");
	check(filled(buffer.mem + 4096 + 256, 256, 5), "ibv_alloc_null_mr(3): and other elements of the list their bytes");
	parts[0] = piece(&buffer, 0, 512);
	wr.num_sge = 1;
	places[0] = nothing;
	places[1] = piece(&buffer, 8192, 256);
	fill(buffer.mem, 512, 6);
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	next(pair.cq_a);
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_alloc_null_mr(3): a receive into a null MR completes");
	check(wc.byte_len == 512 && !memcmp(buffer.mem + 8192, buffer.mem + 256, 256), "ibv_alloc_null_mr(3): it discards what is written, and counts it");
	is_status(one_sided(&pair, IBV_WR_RDMA_READ, nothing, (uintptr_t)buffer.mem, buffer.mr->rkey), IBV_WC_SUCCESS,
		  "ibv_alloc_null_mr(3): a READ into a null MR completes");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 8), 0, null->lkey), IBV_WC_REM_ACCESS_ERR,
		  "ibv_alloc_null_mr(3): it isn't exposed to others: REM_ACCESS_ERR");
	free_pair(&pair);
	check(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) != 0, "ibv_alloc_null_mr(3): ibv_rereg_mr of a null MR fails");
	is(ibv_dereg_mr(null), 0, "ibv_alloc_null_mr(3): it is deregistered with ibv_dereg_mr");
}

int main(int argc, char **argv)
{
	struct ibv_device_attr_ex ex;

	begin(argc, argv);
	buffer = make_buffer(3 * 4096, ALL);
	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (ex.odp_caps.general_caps & IBV_ODP_SUPPORT) {
		on_demand(&ex.odp_caps);
	} else {
		check(ibv_reg_mr(pd, buffer.mem, 4096, ALL | IBV_ACCESS_ON_DEMAND) == NULL, "ibv_reg_mr(3): ON_DEMAND fails where the device has no ODP");
		skip("the device has no ODP", "ibv_advise_mr(3): PREFETCH with FLUSH: 0");
	}
	null_region();
	free_buffer(&buffer);
	return end();
}
