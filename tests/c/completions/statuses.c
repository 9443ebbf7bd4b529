/* statuses: requests that are taken and then fail, on the side and with the status that the specification names. */
#include "cases.h"

static struct ibv_mr *more_memory(const struct fixture *f, int access)
{
	void *memory;

	if (posix_memalign(&memory, 4096, MEMORY_SIZE))
		fail("no memory");
	return MAKE(ibv_reg_mr(f->device.pd, memory, MEMORY_SIZE, access));
}

static int send_with_key(struct ibv_qp *qp, void *address, uint32_t length, uint32_t lkey, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)address, length, lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

/* After its first failure a requester flushes what follows and is in the error state. */
static void expect_broken(const struct fixture *f)
{
	EXPECT(qp_state(f->a) == IBV_QPS_ERR);
	MUST(post_send(f->a, f->mr, 0, 8, 77));
	EXPECT_STATUS(f->cq_a, 77, IBV_WC_WR_FLUSH_ERR);
}

static void send_from_an_unknown_lkey_fails_with_loc_prot_err(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(send_with_key(f.a, f.memory, 8, f.mr->lkey ^ 0x5a5a5a00, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_LOC_PROT_ERR);
	expect_broken(&f);
}

static void send_from_outside_the_mr_fails_with_loc_prot_err(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(send_with_key(f.a, f.memory + MEMORY_SIZE - 4, 8, f.mr->lkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_LOC_PROT_ERR);
	expect_broken(&f);
}

static void send_from_an_mr_of_another_pd_fails_with_loc_prot_err(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(f.device.context));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, f.memory, 4096, ALL_ACCESS));

	MUST(send_with_key(f.a, f.memory, 8, mr->lkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_LOC_PROT_ERR);
}

static void receive_into_read_only_memory_fails_on_both_sides(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_mr *readable = more_memory(&f, 0);

	MUST(post_recv(f.b, readable, 0, 64, 1));
	MUST(post_send(f.a, f.mr, 0, 64, 2));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_LOC_PROT_ERR);
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_OP_ERR);
	expect_broken(&f);
}

static void message_longer_than_the_receive_fails_on_both_sides(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(post_recv(f.b, f.mr, 8192, 100, 1));
	MUST(post_send(f.a, f.mr, 0, 5000, 2));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_LOC_LEN_ERR);
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_INV_REQ_ERR);
	expect_broken(&f);
	EXPECT(qp_state(f.b) == IBV_QPS_ERR);
}

static void remote_failure(enum ibv_wr_opcode opcode, uint32_t length, int64_t offset, uint32_t key_change,
			   unsigned int mr_access, unsigned int qp_access, enum ibv_wc_status expected)
{
	struct fixture f = connected_with(IBV_QPT_RC, (struct path){.rnr_retry = 7, .access = qp_access});
	struct ibv_mr *target = more_memory(&f, (int)mr_access);
	char *before = MAKE(malloc(MEMORY_SIZE));

	memset(target->addr, 0x77, MEMORY_SIZE);
	memcpy(before, target->addr, MEMORY_SIZE);
	MUST(post_remote(f.a, opcode, f.mr, length, (uintptr_t)target->addr + (uint64_t)offset,
			 target->rkey ^ key_change, 1));
	EXPECT_STATUS(f.cq_a, 1, expected);
	EXPECT(!memcmp(before, target->addr, MEMORY_SIZE));
	expect_broken(&f);
}

static void unknown_rkeys_fail_with_rem_access_err(void)
{
	remote_failure(IBV_WR_RDMA_WRITE, 64, 0, 0x5a5a5a00, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_RDMA_READ, 64, 0, 0x5a5a5a00, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0x5a5a5a00, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
}

static void write_beyond_mr_fails_with_rem_access_err(void)
{
	remote_failure(IBV_WR_RDMA_WRITE, 64, MEMORY_SIZE - 63, 0, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_RDMA_WRITE, 64, -1, 0, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
	/* Several packets: the whole range is checked with the first. */
	remote_failure(IBV_WR_RDMA_WRITE, 16384, MEMORY_SIZE - 16383, 0, ALL_ACCESS, ALL_ACCESS,
		       IBV_WC_REM_ACCESS_ERR);
}

static void read_beyond_mr_fails_with_rem_access_err(void)
{
	remote_failure(IBV_WR_RDMA_READ, 64, MEMORY_SIZE - 63, 0, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_RDMA_READ, 16384, MEMORY_SIZE - 16383, 0, ALL_ACCESS, ALL_ACCESS,
		       IBV_WC_REM_ACCESS_ERR);
}

static void access_that_the_mr_does_not_permit_fails_with_rem_access_err(void)
{
	remote_failure(IBV_WR_RDMA_WRITE, 64, 0, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, ALL_ACCESS,
		       IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_RDMA_READ, 64, 0, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS,
		       IBV_WC_REM_ACCESS_ERR);
	remote_failure(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 0, 0,
		       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, ALL_ACCESS,
		       IBV_WC_REM_ACCESS_ERR);
}

static void access_that_the_qp_does_not_permit_fails(void)
{
	/* A QP that isn't enabled for an operation answers as to an operation that it doesn't know. */
	remote_failure(IBV_WR_RDMA_WRITE, 64, 0, 0, ALL_ACCESS, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		       IBV_WC_REM_INV_REQ_ERR);
	remote_failure(IBV_WR_RDMA_READ, 64, 0, 0, ALL_ACCESS, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		       IBV_WC_REM_INV_REQ_ERR);
	remote_failure(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0, ALL_ACCESS, IBV_ACCESS_LOCAL_WRITE,
		       IBV_WC_REM_INV_REQ_ERR);
}

static void misaligned_atomic_fails_with_rem_inv_req_err(void)
{
	remote_failure(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4, 0, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_INV_REQ_ERR);
	remote_failure(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 1, 0, ALL_ACCESS, ALL_ACCESS, IBV_WC_REM_INV_REQ_ERR);
}

static void deregistered_memory_is_out_of_reach(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_mr *target = more_memory(&f, ALL_ACCESS);
	uint64_t address = (uintptr_t)target->addr;
	uint32_t rkey = target->rkey;

	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, address, rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	MUST(ibv_dereg_mr(target));
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, address, rkey, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_ACCESS_ERR);
}

static void missing_receive_uses_up_rnr_retries(void)
{
	struct fixture f = connected_with(IBV_QPT_RC, (struct path){.rnr_retry = 1});

	MUST(post_send(f.a, f.mr, 0, 8, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_broken(&f);
}

static void missing_receive_with_rnr_retry_7_is_waited_for(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(post_send(f.a, f.mr, 0, 8, 1));
	EXPECT_NOTHING(f.cq_a);
	MUST(post_recv(f.b, f.mr, 4096, 8, 2));
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
}

static void qp_that_does_not_exist_uses_up_retries(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct address nobody = {.qpn = f.b->qp_num, .gid = f.device.gid};

	f.path.timeout = 10;
	f.path.retry_count = 1;
	MUST(ibv_destroy_qp(f.b));
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_rtr(f.a, &f.device, &f.path, &nobody));
	MUST(to_rts(f.a, &f.path, 0));
	MUST(post_send(f.a, f.mr, 0, 8, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_RETRY_EXC_ERR);
	expect_broken(&f);
}

static void requests_after_a_failure_are_flushed_in_order(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, 4096, f.mr->rkey ^ 0x5a5a5a00, 1));
	for (uint64_t i = 2; i <= 4; i++)
		if (post_send(f.a, f.mr, 0, 8, i))
			fail("posting after a failure must succeed");
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_REM_ACCESS_ERR);
	for (uint64_t i = 2; i <= 4; i++)
		EXPECT_STATUS(f.cq_a, i, IBV_WC_WR_FLUSH_ERR);
	EXPECT_NOTHING(f.cq_a);
}

static void unsignaled_requests_complete_only_when_they_fail(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_sge sge = {(uintptr_t)f.memory, 8, f.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)f.memory + 4096;
	wr.wr.rdma.rkey = f.mr->rkey;
	MUST(ibv_post_send(f.a, &wr, &bad));
	EXPECT_NOTHING(f.cq_a);
	wr.wr_id = 2;
	wr.wr.rdma.rkey ^= 0x5a5a5a00;
	MUST(ibv_post_send(f.a, &wr, &bad));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_ACCESS_ERR);
}

static void message_of_no_bytes_is_delivered(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_send_wr wr = {.wr_id = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = htonl(0x01020304)}, *bad;
	struct ibv_wc wc;

	MUST(post_recv(f.b, f.mr, 0, 8, 2));
	MUST(ibv_post_send(f.a, &wr, &bad));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.byte_len == 0 && ntohl(wc.imm_data) == 0x01020304 && wc.wc_flags & IBV_WC_WITH_IMM);
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
}

static void error_state_flushes_everything_in_order(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	for (uint64_t i = 0; i < 4; i++) {
		MUST(post_send(f.a, f.mr, 0, 8, i));
		MUST(post_recv(f.b, f.mr, 0, 8, 10 + i));
	}
	for (uint64_t i = 0; i < 4; i++) {
		EXPECT_STATUS(f.cq_a, i, IBV_WC_SUCCESS);
		EXPECT_STATUS(f.cq_b, 10 + i, IBV_WC_SUCCESS);
	}
	for (uint64_t i = 0; i < 4; i++)
		MUST(post_recv(f.b, f.mr, 0, 8, 20 + i));
	MUST(ibv_modify_qp(f.b, &error, IBV_QP_STATE));
	for (uint64_t i = 0; i < 4; i++)
		EXPECT_STATUS(f.cq_b, 20 + i, IBV_WC_WR_FLUSH_ERR);
}

static void destroyed_qp_completes_nothing(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	MUST(post_send(f.a, f.mr, 0, 8, 1));
	MUST(post_recv(f.a, f.mr, 0, 8, 2));
	MUST(ibv_destroy_qp(f.a));
	EXPECT_NOTHING(f.cq_a);
}

static void scattered_and_gathered_pieces_arrive_in_order(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_sge from[2] = {{(uintptr_t)f.memory, 1000, f.mr->lkey},
				  {(uintptr_t)f.memory + 5000, 3001, f.mr->lkey}};
	struct ibv_sge to[2] = {{(uintptr_t)f.memory + 20000, 13, f.mr->lkey},
				{(uintptr_t)f.memory + 30000, 5000, f.mr->lkey}};
	struct ibv_send_wr send = {.wr_id = 1, .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED}, *bad_send;
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = to, .num_sge = 2}, *bad_recv;
	char whole[4001], arrived[4001];
	struct ibv_wc wc;

	fill(whole, sizeof whole, 3);
	memcpy(f.memory, whole, 1000);
	memcpy(f.memory + 5000, whole + 1000, 3001);
	MUST(ibv_post_recv(f.b, &recv, &bad_recv));
	MUST(ibv_post_send(f.a, &send, &bad_send));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.byte_len == 4001);
	memcpy(arrived, f.memory + 20000, 13);
	memcpy(arrived + 13, f.memory + 30000, 4001 - 13);
	check(arrived, sizeof arrived, 3, "message");
}

static const struct test_case cases[] = {
	CASE(send_from_an_unknown_lkey_fails_with_loc_prot_err),
	CASE(send_from_outside_the_mr_fails_with_loc_prot_err),
	CASE(send_from_an_mr_of_another_pd_fails_with_loc_prot_err),
	CASE(receive_into_read_only_memory_fails_on_both_sides),
	CASE(message_longer_than_the_receive_fails_on_both_sides),
	CASE(unknown_rkeys_fail_with_rem_access_err),
	CASE(write_beyond_mr_fails_with_rem_access_err),
	CASE(read_beyond_mr_fails_with_rem_access_err),
	CASE(access_that_the_mr_does_not_permit_fails_with_rem_access_err),
	CASE(access_that_the_qp_does_not_permit_fails),
	CASE(misaligned_atomic_fails_with_rem_inv_req_err),
	CASE(deregistered_memory_is_out_of_reach),
	CASE(missing_receive_uses_up_rnr_retries),
	CASE(missing_receive_with_rnr_retry_7_is_waited_for),
	CASE(qp_that_does_not_exist_uses_up_retries),
	CASE(requests_after_a_failure_are_flushed_in_order),
	CASE(unsignaled_requests_complete_only_when_they_fail),
	CASE(message_of_no_bytes_is_delivered),
	CASE(error_state_flushes_everything_in_order),
	CASE(destroyed_qp_completes_nothing),
	CASE(scattered_and_gathered_pieces_arrive_in_order),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
