/* wr_api: posting by calls (man ibv_wr_post). */
#define _GNU_SOURCE
#include "extended_qp.h"
#include <pthread.h>
#include <sys/wait.h>

static void every_operation_of_rc_does_what_it_says(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	char *there = f.memory + 32768;
	uint64_t *word = (uint64_t *)there, *result = (uint64_t *)f.memory;
	struct ibv_wc wc;
	struct ibv_qp_ex *ex;

	fill(f.memory + 4096, 1000, 1);
	MUST(post_recv(f.b, f.mr, 20000, 1000, 10));
	ex = started(f.a, 1);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory + 4096, 1000);
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.opcode == IBV_WC_RECV && wc.byte_len == 1000 && !(wc.wc_flags & IBV_WC_WITH_IMM));
	check(f.memory + 20000, 1000, 1, "send");
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);

	MUST(post_recv(f.b, f.mr, 20000, 1000, 11));
	ex = started(f.a, 2);
	ibv_wr_send_imm(ex, htonl(77));
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(77) && wc.byte_len == 0);
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);

	struct ibv_sge list[3] = {{(uintptr_t)f.memory + 4096, 10, f.mr->lkey},
				  {(uintptr_t)f.memory + 4106, 500, f.mr->lkey},
				  {(uintptr_t)f.memory + 4606, 490, f.mr->lkey}};

	ex = started(f.a, 3);
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge_list(ex, 3, list);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 3, IBV_WC_SUCCESS);
	check(there, 1000, 1, "write of three pieces");

	MUST(post_recv(f.b, f.mr, 20000, 1000, 12));
	ex = started(f.a, 4);
	ibv_wr_rdma_write_imm(ex, f.mr->rkey, (uintptr_t)there, htonl(78));
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory + 4096, 8);
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(78) && wc.byte_len == 8);
	EXPECT_STATUS(f.cq_a, 4, IBV_WC_SUCCESS);

	memset(f.memory, 0, 1000);
	fill(there, 1000, 2);
	ex = started(f.a, 5);
	ibv_wr_rdma_read(ex, f.mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 1000);
	MUST(ibv_wr_complete(ex));
	MUST_COMPLETE(f.cq_a, &wc);
	EXPECT(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 1000);
	check(f.memory, 1000, 2, "read");

	*word = 40;
	ex = started(f.a, 6);
	ibv_wr_atomic_fetch_add(ex, f.mr->rkey, (uintptr_t)word, 2);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)result, 8);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 6, IBV_WC_SUCCESS);
	EXPECT(*result == 40 && *word == 42);

	ex = started(f.a, 7);
	ibv_wr_atomic_cmp_swp(ex, f.mr->rkey, (uintptr_t)word, 42, 50);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)result, 8);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 7, IBV_WC_SUCCESS);
	EXPECT(*result == 42 && *word == 50);
}

static void a_region_posts_all_its_requests_in_order_and_flags_belong_to_each(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	struct ibv_qp_ex *ex = started(f.a, 1);

	for (int i = 0; i < DEPTH; i++) {
		ex->wr_id = (uint64_t)i;
		ex->wr_flags = i % 2 ? IBV_SEND_SIGNALED : 0;
		f.memory[i] = (char)(i + 1);
		ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 8192 + i);
		ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory + i, 1);
	}
	EXPECT_NOTHING(f.cq_a);
	EXPECT(f.memory[8192] == 0);
	MUST(ibv_wr_complete(ex));
	for (int i = 1; i < DEPTH; i += 2)
		EXPECT_STATUS(f.cq_a, (uint64_t)i, IBV_WC_SUCCESS);
	EXPECT(!memcmp(f.memory, f.memory + 8192, DEPTH));
	EXPECT_NOTHING(f.cq_a);
}

static void aborted_requests_are_never_posted(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	struct ibv_qp_ex *ex = started(f.a, 1);

	f.memory[0] = 1;
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 8192);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 1);
	/* An error is forgotten too. */
	ibv_wr_set_ud_addr(ex, NULL, 0, 0);
	ibv_wr_abort(ex);
	EXPECT_NOTHING(f.cq_a);
	EXPECT(f.memory[8192] == 0);
	ex = started(f.a, 2);
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 8193);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 1);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	EXPECT(f.memory[8192] == 0 && f.memory[8193] == 1);
}

/* Begins a region with a good request, to which the case adds something bad. */
static struct ibv_qp_ex *begun(const struct fixture *f)
{
	struct ibv_qp_ex *ex = started(f->a, 1);

	ibv_wr_rdma_write(ex, f->mr->rkey, (uintptr_t)f->memory + 8192);
	ibv_wr_set_sge(ex, f->mr->lkey, (uintptr_t)f->memory, 1);
	return ex;
}

static void one_bad_call_keeps_all_from_being_posted(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS & ~(uint64_t)IBV_QP_EX_WITH_SEND, ALL_ACCESS);
	struct ibv_sge list[4] = {{0}};
	static char much[1025];
	struct ibv_data_buf buffers[2] = {{much, 600}, {much, 600}};
	struct ibv_qp_ex *ex;

	f.memory[0] = 1;
#define REFUSED(calls)                                                                           \
	do {                                                                                     \
		ex = begun(&f);                                                                  \
		calls;                                                                           \
		EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));                                       \
	} while (0)
	REFUSED(ibv_wr_send(ex)); /* wasn't among send_ops_flags */
	REFUSED(ibv_wr_set_sge_list(ex, 4, list));
	REFUSED(ibv_wr_set_inline_data(ex, much, 1025));
	REFUSED(ibv_wr_set_inline_data_list(ex, 2, buffers));
	REFUSED(ibv_wr_set_ud_addr(ex, NULL, 1, 1));
	REFUSED(ibv_wr_set_xrc_srqn(ex, 1));
	REFUSED((ex->wr_flags = IBV_SEND_IP_CSUM, ibv_wr_rdma_write(ex, 1, 1)));
	REFUSED((ibv_wr_rdma_read(ex, f.mr->rkey, (uintptr_t)f.memory), ibv_wr_set_inline_data(ex, much, 8)));
	REFUSED(ibv_wr_atomic_write(ex, f.mr->rkey, (uintptr_t)f.memory, NULL));
	/* A setter with nothing to set. */
	ex = started(f.a, 1);
	ibv_wr_set_sge(ex, 1, 1, 1);
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));
	/* More than the queue holds: none of them. */
	ex = started(f.a, 1);
	for (int i = 0; i <= DEPTH; i++)
		ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 8192);
	EXPECT_ERRNO(ENOMEM, ibv_wr_complete(ex));
	EXPECT_NOTHING(f.cq_a);
	EXPECT(f.memory[8192] == 0);
	/* Outside of a region. */
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 8192);
	/* And it goes on to work. */
	ex = begun(&f);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT(f.memory[8192] == 1);
}

static void inline_data_of_a_kibibyte_may_be_reused_at_once(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	static char data[1024];
	struct ibv_data_buf buffers[3] = {{data, 24}, {NULL, 0}, {data + 24, 1000}};
	struct ibv_qp_ex *ex = started(f.a, 1);

	fill(data, sizeof data, 1);
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory);
	ibv_wr_set_inline_data(ex, data, sizeof data);
	ibv_wr_rdma_write(ex, f.mr->rkey, (uintptr_t)f.memory + 2048);
	ibv_wr_set_inline_data_list(ex, 3, buffers);
	memset(data, 0, sizeof data);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(f.memory, 1024, 1, "inline data");
	check(f.memory + 2048, 1024, 1, "a list of inline data");
}

static void ud_needs_an_address_with_each_request(void)
{
	struct fixture f = extended(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM, 0);
	struct ibv_ah_attr attr;
	struct ibv_wc wc;
	struct ibv_qp_ex *ex = started(f.a, 1);

	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 8);
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(ex));
	fill_ah(&attr, &f.device, &f.device.gid);
	struct ibv_ah *ah = MAKE(ibv_create_ah(f.device.pd, &attr));

	memcpy(f.memory, "datagram", 8);
	MUST(post_recv(f.b, f.mr, 4096, 100, 5));
	ex = started(f.a, 2);
	ibv_wr_send_imm(ex, htonl(9));
	ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 8);
	ibv_wr_set_ud_addr(ex, ah, f.b->qp_num, QKEY);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.byte_len == 48 && wc.imm_data == htonl(9) && wc.src_qp == f.a->qp_num);
	EXPECT(!memcmp(f.memory + 4096 + 40, "datagram", 8));
}

static void operations_that_a_service_lacks_are_refused_at_creation(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init;

	EXPECT_NULL(EOPNOTSUPP, ibv_qp_to_qp_ex(f.a));
#define LACKS(type, ops)                                                                         \
	do {                                                                                     \
		init = init_of(&f, type, f.cq_a, ops);                                           \
		EXPECT_NULL(EOPNOTSUPP, ibv_create_qp_ex(f.device.context, &init));              \
	} while (0)
	LACKS(IBV_QPT_RC, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO);
	LACKS(IBV_QPT_RC, 1ull << 40);
	LACKS(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ);
	LACKS(IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
	LACKS(IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_WRITE);
	LACKS(IBV_QPT_UC, WITH_FLUSH);
	LACKS(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE);
	LACKS(IBV_QPT_UD, IBV_QP_EX_WITH_SEND_WITH_INV);
	init = init_of(&f, IBV_QPT_RC, f.cq_a, RC_OPS);
	init.comp_mask |= 1u << 30;
	EXPECT_NULL(EINVAL, ibv_create_qp_ex(f.device.context, &init));
	init = init_of(&f, IBV_QPT_RC, f.cq_a, RC_OPS);
	init.comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_PD;
	EXPECT_NULL(EINVAL, ibv_create_qp_ex(f.device.context, &init));
}

struct poster {
	const struct fixture *f;
	int index;
};

#define POSTERS 4
#define ROUNDS 500

/* Its requests lie next to each other, as no other thread may come in between. */
static void *post_pairs(void *argument)
{
	const struct poster *p = argument;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(p->f->a);

	for (int i = 0; i < ROUNDS;) {
		uint64_t id = (uint64_t)p->index << 32 | (uint64_t)i << 1;

		ibv_wr_start(ex);
		for (uint64_t second = 0; second < 2; second++) {
			ex->wr_id = id | second;
			ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(ex, p->f->mr->rkey, (uintptr_t)p->f->memory + 8192);
			ibv_wr_set_sge(ex, p->f->mr->lkey, (uintptr_t)p->f->memory, 8);
		}
		int result = ibv_wr_complete(ex);

		if (result == 0)
			i++;
		else if (result != ENOMEM)
			fail("ibv_wr_complete: %s", strerror(result));
		else
			usleep(10);
	}
	return NULL;
}

static void threads_share_a_queue_and_their_regions_stay_apart(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	pthread_t threads[POSTERS];
	struct poster posters[POSTERS];
	int next[POSTERS] = {0};

	MUST(ibv_resize_cq(f.cq_a, 2 * POSTERS * ROUNDS));
	for (int i = 0; i < POSTERS; i++) {
		posters[i] = (struct poster){&f, i};
		MUST(pthread_create(&threads[i], NULL, post_pairs, &posters[i]));
	}
	for (int n = 0; n < POSTERS * ROUNDS; n++) {
		struct ibv_wc first, second;

		MUST_COMPLETE(f.cq_a, &first);
		MUST_COMPLETE(f.cq_a, &second);
		EXPECT(second.wr_id == (first.wr_id | 1) && !(first.wr_id & 1));
		EXPECT((int)(first.wr_id & 0xffffffff) >> 1 == next[first.wr_id >> 32]++);
	}
	for (int i = 0; i < POSTERS; i++)
		MUST(pthread_join(threads[i], NULL));
}

static void *hold_a_region(void *argument)
{
	struct ibv_qp_ex *ex = argument;

	ibv_wr_start(ex);
	usleep(300000);
	ibv_wr_abort(ex);
	return NULL;
}

static void a_child_is_not_locked_out_by_a_thread_it_does_not_have(void)
{
	struct fixture f = extended(IBV_QPT_RC, RC_OPS, ALL_ACCESS);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(f.a);
	pthread_t thread;
	int status;

	MUST(pthread_create(&thread, NULL, hold_a_region, ex));
	usleep(100000);
	pid_t child = fork();

	if (child == 0) {
		alarm(5);
		ex = begun(&f);
		/* Its peers are the parent's. */
		MUST(ibv_wr_complete(ex));
		EXPECT_STATUS(f.cq_a, 1, IBV_WC_WR_FLUSH_ERR);
		_exit(0);
	}
	EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	MUST(pthread_join(thread, NULL));
	ex = begun(&f);
	MUST(ibv_wr_complete(ex));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
}

static const struct test_case cases[] = {
	CASE(every_operation_of_rc_does_what_it_says),
	CASE(a_region_posts_all_its_requests_in_order_and_flags_belong_to_each),
	CASE(aborted_requests_are_never_posted),
	CASE(one_bad_call_keeps_all_from_being_posted),
	CASE(inline_data_of_a_kibibyte_may_be_reused_at_once),
	CASE(ud_needs_an_address_with_each_request),
	CASE(operations_that_a_service_lacks_are_refused_at_creation),
	CASE(threads_share_a_queue_and_their_regions_stay_apart),
	CASE(a_child_is_not_locked_out_by_a_thread_it_does_not_have),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
