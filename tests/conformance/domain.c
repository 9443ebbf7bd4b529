/* Thread domains and parent domains: ibv_alloc_td, ibv_alloc_parent_domain; imports of domains and regions. */
#include "conform.h"

static struct {
	struct ibv_pd *pd;
	void *context;
	size_t size, alignment;
	int allocations, releases;
	void *answer;
} seen;

static void *allocate(struct ibv_pd *of, void *context, size_t size, size_t alignment, uint64_t type)
{
	void *memory = NULL;

	(void)type;
	seen.pd = of;
	seen.context = context;
	seen.size = size;
	seen.alignment = alignment;
	seen.allocations++;
	if (seen.answer || posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size))
		return seen.answer == &seen ? NULL : seen.answer;
	memset(memory, 0, size);
	return memory;
}

static void release(struct ibv_pd *of, void *context, void *memory, uint64_t type)
{
	(void)type;
	seen.releases += of == seen.pd && context == seen.context;
	free(memory);
}

/* A parent domain that brings its own memory. */
static void allocators(struct ibv_pd *own)
{
	int mark;
	struct ibv_parent_domain_init_attr attr = {
		.pd = own,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = allocate,
		.free = release,
		.pd_context = &mark,
	};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);
	struct ibv_cq *cq = make_cq(8);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct ibv_qp *qp;

	if (!check(parent != NULL, "ibv_alloc_parent_domain(3): a thread domain is optional, allocators are taken"))
		return;
	qp = MAKE(ibv_create_qp(parent, &init));
	check(seen.allocations > 0 && seen.size > 0, "ibv_alloc_parent_domain(3): a QP's memory comes from its alloc");
	check(seen.pd == parent && seen.context == &mark, "ibv_alloc_parent_domain(3): alloc gets the domain and pd_context");
	check(seen.alignment && !(seen.alignment & (seen.alignment - 1)), "ibv_alloc_parent_domain(3): alloc gets an alignment");
	MUST(ibv_destroy_qp(qp));
	is(seen.releases, seen.allocations, "ibv_alloc_parent_domain(3): free gets back what alloc gave");
	seen.answer = IBV_ALLOCATOR_USE_DEFAULT;
	seen.allocations = seen.releases = 0;
	qp = ibv_create_qp(parent, &init);
	check(qp && seen.allocations > 0, "ibv_alloc_parent_domain(3): IBV_ALLOCATOR_USE_DEFAULT: the usual memory");
	if (qp)
		MUST(ibv_destroy_qp(qp));
	is(seen.releases, 0, "ibv_alloc_parent_domain(3): the usual memory isn't given to free");
	seen.answer = &seen;
	is_null(ibv_create_qp(parent, &init), ENOMEM, "ibv_alloc_parent_domain(3): alloc returns NULL: ENOMEM");
	is(ibv_dealloc_pd(parent), 0, "ibv_alloc_parent_domain(3): a refused QP leaves nothing behind");
	attr.free = NULL;
	is_null(ibv_alloc_parent_domain(ctx, &attr), EINVAL, "ibv_alloc_parent_domain(3): alloc without free: EINVAL");
	attr = (struct ibv_parent_domain_init_attr){.pd = own, .comp_mask = 1 << 2};
	parent = ibv_alloc_parent_domain(ctx, &attr);
	if (parent) {
		check(parent->context == ctx, "ibv_alloc_parent_domain(3): ALLOW_CC_UNPROTECTED_ALLOC is taken");
		MUST(ibv_dealloc_pd(parent));
	} else {
		skip("the library is too old", "ibv_alloc_parent_domain(3): ALLOW_CC_UNPROTECTED_ALLOC is taken");
	}
	attr.comp_mask = 1u << 20;
	is_null(ibv_alloc_parent_domain(ctx, &attr), EINVAL, "ibv_alloc_parent_domain(3): an unknown comp_mask: EINVAL");
	MUST(ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	struct ibv_td_init_attr td_attr = {0};
	struct ibv_parent_domain_init_attr attr = {0};
	struct ibv_td *td;
	struct ibv_pd *own, *parent, *all;

	begin(argc, argv);
	own = MAKE(ibv_alloc_pd(ctx));
	td = ibv_alloc_td(ctx, &td_attr);
	if (!td) {
		skip("the device has no thread domains", "ibv_alloc_td(3): a pointer to the thread domain");
		return end();
	}
	check(td->context == ctx, "ibv_alloc_td(3): a pointer to the thread domain");
	td_attr.comp_mask = 1u << 20;
	check(ibv_alloc_td(ctx, &td_attr) == NULL, "ibv_alloc_td(3): an unknown comp_mask fails");
	attr.td = td;
	is_null(ibv_alloc_parent_domain(ctx, &attr), EINVAL, "ibv_alloc_parent_domain(3): the PD can't be NULL: EINVAL");
	attr.pd = own;
	parent = ibv_alloc_parent_domain(ctx, &attr);
	check(parent != NULL, "ibv_alloc_parent_domain(3): a pointer to a PD");
	if (!parent)
		return end();
	is(ibv_dealloc_td(td), EBUSY, "ibv_dealloc_td(3): a thread domain in a parent domain isn't deallocated: EBUSY");
	is(ibv_dealloc_pd(own), EBUSY, "ibv_alloc_parent_domain(3): the PD in it isn't deallocated before: EBUSY");
	all = pd;
	pd = parent;

	struct buffer buffer = make_buffer(8192, ALL);

	check(buffer.mr->pd == parent, "ibv_alloc_parent_domain(3): ibv_reg_mr takes it as a PD");
	pd = own;
	struct buffer in_own = make_buffer(8192, ALL);

	pd = parent;
	struct pair pair = make_pair(IBV_QPT_RC);

	check(pair.a->pd == parent, "ibv_alloc_parent_domain(3): ibv_create_qp takes it as a PD");
	is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 64), (uintptr_t)in_own.mem, in_own.mr->rkey), IBV_WC_SUCCESS,
		  "ibv_alloc_parent_domain(3): QPs in it reach MRs of the PD in it");
	is(ibv_dealloc_pd(parent), EBUSY, "ibv_dealloc_pd(3): a parent domain with objects isn't deallocated: EBUSY");
	free_pair(&pair);
	free_buffer(&buffer);
	free_buffer(&in_own);
	pd = all;

	struct ibv_cq_init_attr_ex cq_attr = {.cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &cq_attr);

	check(cq != NULL, "ibv_create_cq_ex(3): a CQ in a parent domain");
	if (cq)
		MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	attr.comp_mask = 1u << 20;
	check(ibv_alloc_parent_domain(ctx, &attr) == NULL, "ibv_alloc_parent_domain(3): an unknown comp_mask fails");
	allocators(own);
	is(ibv_dealloc_pd(parent), 0, "ibv_dealloc_pd(3): a parent domain is deallocated as a PD");
	is(ibv_dealloc_td(td), 0, "ibv_dealloc_td(3): 0 on success");
	is(ibv_dealloc_pd(own), 0, "ibv_alloc_parent_domain(3): the PD outlives it");
	return end();
}
