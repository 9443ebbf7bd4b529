/* rate_limits: limits of what a QP sends (man ibv_modify_qp_rate_limit). */
#include "extended_qp.h"

/* Milliseconds that 256 KiB take. */
static uint64_t time_of_writes(const struct fixture *f)
{
	uint64_t start = now_ms();

	for (int i = 0; i < 8; i++) {
		struct ibv_sge sge = {(uintptr_t)f->memory, 32768, f->mr->lkey};
		struct ibv_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {(uintptr_t)f->memory + 32768, f->mr->rkey}}, *bad;

		MUST(ibv_post_send(f->a, &wr, &bad));
	}
	for (int i = 0; i < 8; i++)
		EXPECT_STATUS(f->cq_a, (uint64_t)i, IBV_WC_SUCCESS);
	return now_ms() - start;
}

static void a_rate_limit_paces_until_it_is_taken_away(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	/* 256 KiB at 8 Mbit/s: 262 ms, less a burst and a last message that needn't wait for its end. */
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 8000, .max_burst_sz = 16384, .typical_pkt_sz = 1024};
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	uint64_t time;

	MUST(ibv_modify_qp_rate_limit(f.a, &limit));
	MUST(ibv_query_qp(f.a, &attr, IBV_QP_RATE_LIMIT, &init));
	EXPECT(attr.rate_limit == 8000);
	time = time_of_writes(&f);
	if (time < 200)
		fail("256 KiB at 8 Mbit/s took %llu ms", (unsigned long long)time);
	limit = (struct ibv_qp_rate_limit_attr){0};
	MUST(ibv_modify_qp_rate_limit(f.a, &limit));
	/* A limit holds back each; without one the machine may, but not for ever. */
	for (uint64_t end = now_ms() + 20000; time >= 200; time = time_of_writes(&f))
		if (now_ms() > end)
			fail("256 KiB without a limit took %llu ms at last", (unsigned long long)time);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .rate_limit = 8000};
	MUST(ibv_modify_qp(f.a, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT));
	/* One more round uses up the adapter's own burst, which is larger. */
	time = time_of_writes(&f) + time_of_writes(&f);
	if (time < 300)
		fail("512 KiB at 8 Mbit/s took %llu ms", (unsigned long long)time);
}

static void rate_limits_that_cannot_be_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC), g = connected(IBV_QPT_RC);
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000};

	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(f.a, &limit));
	limit.rate_limit = UINT32_MAX;
	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(g.a, &limit));
	limit = (struct ibv_qp_rate_limit_attr){.max_burst_sz = 1};
	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(g.a, &limit));
	limit = (struct ibv_qp_rate_limit_attr){.typical_pkt_sz = 1};
	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(g.a, &limit));
	limit = (struct ibv_qp_rate_limit_attr){.rate_limit = 1000, .comp_mask = 1};
	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(g.a, &limit));
}

static const struct test_case cases[] = {
	CASE(a_rate_limit_paces_until_it_is_taken_away),
	CASE(rate_limits_that_cannot_be_are_refused),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
