/* wr_api: posting by calls (man ibv_wr_post), with what the calls alone can do: atomic writes and flushes; and limits of
 * the rate.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "cases.h"

#define RC_OPS                                                                                   \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |         \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                          \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |                \
	 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE)

/* Newer than the headers of rdma-core 44. */
#define WITH_FLUSH (1ull << 11)
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

static struct ibv_qp_init_attr_ex init_of(const struct fixture *f, enum ibv_qp_type type, struct ibv_cq *cq,
					   uint64_t ops)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 3, .max_recv_sge = 2,
			.max_inline_data = 1024},
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = f->device.pd,
		.send_ops_flags = ops,
	};
}

/* As `connected`, with the extended interface at `a`. */
static struct fixture extended(enum ibv_qp_type type, uint64_t ops, unsigned int access)
{
	struct fixture f = unconnected(type);
	struct ibv_qp_init_attr_ex init = init_of(&f, type, f.cq_a, ops);

	MUST(ibv_destroy_qp(f.a));
	f.a = MAKE(ibv_create_qp_ex(f.device.context, &init));
	EXPECT(init.cap.max_inline_data >= 1024 && init.cap.max_send_sge >= 3);
	f.path.timeout = 12;
	f.path.retry_count = 2;
	MUST(to_init(f.a, access));
	MUST(to_init(f.b, access));
	connect_qps(&f.device, &f.path, f.a, f.b);
	return f;
}

static struct ibv_qp_ex *started(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_qp_ex *ex = MAKE(ibv_qp_to_qp_ex(qp));

	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = IBV_SEND_SIGNALED;
	return ex;
}

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
	if (time < 200 || time > 2000)
		fail("256 KiB at 8 Mbit/s took %llu ms", (unsigned long long)time);
	limit = (struct ibv_qp_rate_limit_attr){0};
	MUST(ibv_modify_qp_rate_limit(f.a, &limit));
	time = time_of_writes(&f);
	if (time >= 200)
		fail("256 KiB without a limit took %llu ms", (unsigned long long)time);
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
	CASE(every_operation_of_rc_does_what_it_says),
	CASE(a_region_posts_all_its_requests_in_order_and_flags_belong_to_each),
	CASE(aborted_requests_are_never_posted),
	CASE(one_bad_call_keeps_all_from_being_posted),
	CASE(inline_data_of_a_kibibyte_may_be_reused_at_once),
	CASE(ud_needs_an_address_with_each_request),
	CASE(operations_that_a_service_lacks_are_refused_at_creation),
	CASE(threads_share_a_queue_and_their_regions_stay_apart),
	CASE(a_child_is_not_locked_out_by_a_thread_it_does_not_have),
	CASE(atomic_write_stores_eight_bytes),
	CASE(atomic_write_needs_the_right_to_write),
	CASE(flush_makes_writes_visible_where_it_is_permitted),
	CASE(persistent_flush_is_for_mapped_files),
	CASE(device_says_that_it_writes_atomically_flushes_and_paces),
	CASE(a_rate_limit_paces_until_it_is_taken_away),
	CASE(rate_limits_that_cannot_be_are_refused),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
