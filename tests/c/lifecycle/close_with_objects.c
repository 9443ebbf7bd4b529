/* close_with_objects: ibv_close_device(3) with objects that still exist. Nothing of the context is reached any more,
 * its descriptors are closed, and the device opens again.
 */
#include "cases.h"

static void nobody_reaches_what_is_left(void)
{
	struct fixture left = unconnected(IBV_QPT_RC), f = unconnected(IBV_QPT_RC);
	struct ibv_wc wc;

	f.path.timeout = 8;
	f.path.retry_count = 2;
	MUST(to_init(left.a, ALL_ACCESS));
	MUST(to_init(f.a, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, left.a);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, (uintptr_t)left.memory, left.mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	MUST(ibv_close_device(left.device.context));
	memset(left.memory, 0x5a, 64);
	fill(f.memory, 64, 1);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, (uintptr_t)left.memory, left.mr->rkey, 2));
	EXPECT(wait_wc(f.cq_a, &wc, 10000) && wc.wr_id == 2 && wc.status == IBV_WC_RETRY_EXC_ERR);
	for (int i = 0; i < 64; i++)
		EXPECT(left.memory[i] == 0x5a);
}

static void descriptors_and_threads_do_not_add_up(void)
{
	unsigned int descriptors = 0, threads = 0;

	for (int round = 0; round < 20; round++) {
		struct fixture f = connected(IBV_QPT_RC);

		MUST(post_recv(f.b, f.mr, 0, 64, 1));
		MUST(ibv_close_device(f.device.context));
		if (round == 0) {
			descriptors = entries_of("/proc/self/fd");
			threads = entries_of("/proc/self/task");
		}
	}
	EXPECT(entries_of("/proc/self/fd") <= descriptors && entries_of("/proc/self/task") <= threads);
}

static const struct test_case cases[] = {
	CASE(nobody_reaches_what_is_left),
	CASE(descriptors_and_threads_do_not_add_up),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
