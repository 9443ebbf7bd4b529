/* parent_domains: ibv_alloc_td(3), ibv_alloc_parent_domain(3): which objects keep which alive, and allocators that are really used. */
#include "cases.h"

struct arena {
	struct ibv_pd *expected;
	int allocations, releases;
	bool refuse, leave;
	size_t used;
	char *last, *before;
	size_t last_size, size_before;
};

static _Alignas(4096) char arena_memory[8 << 20];

static void *arena_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	struct arena *arena = context;

	EXPECT(pd == arena->expected && size > 0 && alignment > 0 && type != 0);
	EXPECT(!(alignment & (alignment - 1)));
	if (arena->refuse)
		return NULL;
	if (arena->leave)
		return IBV_ALLOCATOR_USE_DEFAULT;
	arena->allocations++;
	arena->used = (arena->used + alignment - 1) & ~(alignment - 1);
	EXPECT(arena->used + size <= sizeof arena_memory);
	arena->before = arena->last;
	arena->size_before = arena->last_size;
	arena->last = arena_memory + arena->used;
	arena->last_size = size;
	arena->used += size;
	return arena->last;
}

static void arena_free(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
	struct arena *arena = context;

	EXPECT(pd == arena->expected && type != 0);
	EXPECT((char *)memory >= arena_memory && (char *)memory < arena_memory + sizeof arena_memory);
	arena->releases++;
}

static struct ibv_pd *parent(const struct device *device, struct ibv_td *td, struct arena *arena)
{
	struct ibv_parent_domain_init_attr attr = {.pd = device->pd, .td = td};
	struct ibv_pd *pd;

	if (arena) {
		attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
		attr.alloc = arena_alloc;
		attr.free = arena_free;
		attr.pd_context = arena;
	}
	pd = MAKE(ibv_alloc_parent_domain(device->context, &attr));
	if (arena)
		arena->expected = pd;
	return pd;
}

static char *copy_of(const char *memory, size_t size)
{
	return memcpy(MAKE(malloc(size)), memory, size);
}

static void domains_are_held_by_what_is_made_on_them(void)
{
	struct device device = open_device(1), on_parent = device;
	struct ibv_td_init_attr attr = {0}, unknown = {.comp_mask = 1};
	struct ibv_td *td = MAKE(ibv_alloc_td(device.context, &attr));
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	static char memory[64];

	EXPECT_NULL(EINVAL, ibv_alloc_td(device.context, &unknown));
	on_parent.pd = parent(&device, td, NULL);
	EXPECT_ERRNO(EBUSY, ibv_dealloc_td(td));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(device.pd));
	mr = MAKE(ibv_reg_mr(on_parent.pd, memory, sizeof memory, ALL_ACCESS));
	qp = make_qp(&on_parent, IBV_QPT_RC, cq, NULL, 4);
	EXPECT(mr->pd == on_parent.pd && qp->pd == on_parent.pd);
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(on_parent.pd));
	MUST(ibv_dereg_mr(mr));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(on_parent.pd));
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_dealloc_pd(on_parent.pd));
	MUST(ibv_dealloc_td(td));
	MUST(ibv_dealloc_pd(device.pd));
}

static void what_is_wrong_is_refused(void)
{
	struct device device = open_device(1), other = open_device(1);
	struct ibv_parent_domain_init_attr attr = {0};

	EXPECT_NULL(EINVAL, ibv_alloc_parent_domain(device.context, &attr));
	attr.pd = other.pd;
	EXPECT_NULL(EINVAL, ibv_alloc_parent_domain(device.context, &attr));
	attr.pd = device.pd;
	attr.comp_mask = 1 << 20;
	EXPECT_NULL(EINVAL, ibv_alloc_parent_domain(device.context, &attr));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	attr.alloc = arena_alloc;
	EXPECT_NULL(EINVAL, ibv_alloc_parent_domain(device.context, &attr));
	MUST(ibv_dealloc_pd(device.pd));
}

/* A region of the one works with a QP of the other: it is one domain. */
static void a_parent_domain_is_the_domain_it_is_made_on(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct device on_parent = f.device;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;

	on_parent.pd = parent(&f.device, NULL, NULL);
	a = make_qp(&on_parent, IBV_QPT_RC, f.cq_a, NULL, DEPTH);
	b = f.b;
	mr = MAKE(ibv_reg_mr(on_parent.pd, f.memory + 8192, 4096, ALL_ACCESS));
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, a, b);
	fill(f.memory, 4096, 6);
	MUST(post_recv(b, mr, 0, 4096, 2));
	MUST(post_send(a, f.mr, 0, 4096, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	check(f.memory + 8192, 4096, 6, "a message between the domains");
}

static struct ibv_cq *make_cq_on(const struct device *device, uint32_t cqe)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = cqe, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
					   .parent_domain = device->pd};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(device->context, &attr);

	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

static void queues_lie_in_memory_of_the_allocator(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct device on_parent = f.device;
	struct arena arena = {0};
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 2}};
	struct ibv_sge sge = {(uintptr_t)f.memory + 8192, 64, f.mr->lkey};
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *a, *b;
	char *of_cq, *of_srq, *of_rq, *of_sq, *cq_before, *srq_before, *rq_before, *sq_before;
	size_t cq_size, srq_size, rq_size, sq_size;

	on_parent.pd = parent(&f.device, NULL, &arena);
	cq = MAKE(make_cq_on(&on_parent, 32));
	of_cq = arena.last, cq_size = arena.last_size;
	EXPECT(arena.allocations == 1 && cq_size >= 32 * 16);
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(on_parent.pd));
	srq = MAKE(ibv_create_srq(on_parent.pd, &srq_attr));
	of_srq = arena.last, srq_size = arena.last_size;
	a = make_qp(&on_parent, IBV_QPT_RC, cq, NULL, DEPTH);
	of_rq = arena.before, rq_size = arena.size_before;
	of_sq = arena.last, sq_size = arena.last_size;
	EXPECT(arena.allocations == 4);
	/* Without a receive queue. */
	b = make_qp(&on_parent, IBV_QPT_RC, cq, srq, DEPTH);
	EXPECT(arena.allocations == 5);
	cq_before = copy_of(of_cq, cq_size), srq_before = copy_of(of_srq, srq_size);
	rq_before = copy_of(of_rq, rq_size), sq_before = copy_of(of_sq, sq_size);
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, a, b);
	/* More than the queues hold, so that they wrap around. */
	for (uint64_t i = 0; i < 100; i++) {
		struct ibv_wc wc;

		fill(f.memory, 64, i);
		MUST(post_recv(a, f.mr, 4096, 64, 3));
		MUST(ibv_post_srq_recv(srq, &recv, &bad));
		/* An entry that has been taken may leave its place as it was. */
		if (i == 0)
			EXPECT(memcmp(of_srq, srq_before, srq_size) && memcmp(of_rq, rq_before, rq_size));
		MUST(post_send(a, f.mr, 0, 64, 1));
		MUST_COMPLETE(cq, &wc);
		MUST_COMPLETE(cq, &wc);
		check(f.memory + 8192, 64, i, "a message");
		MUST(post_send(b, f.mr, 8192, 64, 1));
		MUST_COMPLETE(cq, &wc);
		MUST_COMPLETE(cq, &wc);
		check(f.memory + 4096, 64, i, "an answer");
		if (i == 50)
			MUST(ibv_resize_cq(cq, 64));
	}
	EXPECT(memcmp(of_cq, cq_before, cq_size) && memcmp(of_sq, sq_before, sq_size));
	free(cq_before), free(srq_before), free(rq_before), free(sq_before);
	EXPECT(arena.allocations == 6 && arena.releases == 1);
	/* With requests in both queues. */
	MUST(post_recv(a, f.mr, 4096, 64, 3));
	for (int i = 0; i < DEPTH; i++)
		MUST(post_send(a, f.mr, 0, 64, 1));
	EXPECT_ERRNO(ENOMEM, post_send(a, f.mr, 0, 64, 1));
	MUST(ibv_destroy_qp(a));
	EXPECT(arena.releases == 3);
	MUST(ibv_destroy_qp(b));
	EXPECT(arena.releases == 4);
	MUST(ibv_destroy_srq(srq));
	EXPECT(arena.releases == 5);
	MUST(ibv_destroy_cq(cq));
	EXPECT(arena.releases == 6);
	MUST(ibv_dealloc_pd(on_parent.pd));
}

static void an_allocator_may_leave_it_to_the_provider_or_have_nothing(void)
{
	struct device device = open_device(1), on_parent = device;
	struct arena arena = {.leave = true};
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 16, .max_sge = 2}};
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct ibv_cq *cq;

	on_parent.pd = parent(&device, NULL, &arena);
	cq = MAKE(make_cq_on(&on_parent, 32));
	init.send_cq = init.recv_cq = cq;
	arena.refuse = true;
	EXPECT_NULL(ENOMEM, make_cq_on(&on_parent, 32));
	EXPECT_NULL(ENOMEM, ibv_create_srq(on_parent.pd, &srq_attr));
	EXPECT_NULL(ENOMEM, ibv_create_qp(on_parent.pd, &init));
	EXPECT_ERRNO(ENOMEM, ibv_resize_cq(cq, 64));
	arena.refuse = false;
	MUST(ibv_destroy_qp(MAKE(ibv_create_qp(on_parent.pd, &init))));
	MUST(ibv_resize_cq(cq, 64));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_dealloc_pd(on_parent.pd));
	EXPECT(arena.allocations == 0 && arena.releases == 0);
	MUST(ibv_dealloc_pd(device.pd));
}

static const struct test_case cases[] = {
	CASE(domains_are_held_by_what_is_made_on_them),
	CASE(what_is_wrong_is_refused),
	CASE(a_parent_domain_is_the_domain_it_is_made_on),
	CASE(queues_lie_in_memory_of_the_allocator),
	CASE(an_allocator_may_leave_it_to_the_provider_or_have_nothing),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
