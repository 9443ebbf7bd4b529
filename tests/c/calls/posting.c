/* posting: ibv_post_send, ibv_post_recv and ibv_post_srq_recv with requests that must be refused at the call.
 *
 * Refused means: an errno value is returned, bad_wr names the first request that was not taken, and all before it
 * were taken.
 */
#include "cases.h"

static struct ibv_send_wr send_wr(struct ibv_sge *sge, uint64_t id)
{
	return (struct ibv_send_wr){.wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED};
}

static struct ibv_sge sge_of(const struct fixture *f, size_t offset, uint32_t length)
{
	return (struct ibv_sge){(uintptr_t)f->memory + offset, length, f->mr->lkey};
}

static void send_in_a_state_before_rts_is_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct address self = {.qpn = f.b->qp_num, .gid = f.device.gid};

	EXPECT_ERRNO(EINVAL, post_send(f.a, f.mr, 0, 8, 1));
	MUST(to_init(f.a, ALL_ACCESS));
	EXPECT_ERRNO(EINVAL, post_send(f.a, f.mr, 0, 8, 1));
	MUST(to_rtr(f.a, &f.device, &f.path, &self));
	EXPECT_ERRNO(EINVAL, post_send(f.a, f.mr, 0, 8, 1));
	EXPECT_NOTHING(f.cq_a);
}

static void recv_in_reset_is_refused_and_in_init_taken(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	EXPECT_ERRNO(EINVAL, post_recv(f.a, f.mr, 0, 8, 1));
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(post_recv(f.a, f.mr, 0, 8, 1));
}

static void full_send_queue_is_enomem_and_names_the_request(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge sge = sge_of(&f, 0, 8);

	/* No receive is posted, so no send completes. The queue may be deeper than asked for. */
	MUST(ibv_query_qp(f.a, &attr, IBV_QP_CAP, &init));
	for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
		MUST(post_send(f.a, f.mr, 0, 8, i));
	struct ibv_send_wr wr = send_wr(&sge, 99), *bad = NULL;

	EXPECT_ERRNO(ENOMEM, ibv_post_send(f.a, &wr, &bad));
	EXPECT(bad == &wr);
	for (uint32_t i = 0; i < init.cap.max_send_wr; i++) {
		MUST(post_recv(f.b, f.mr, 4096, 8, i));
		EXPECT_STATUS(f.cq_b, i, IBV_WC_SUCCESS);
		EXPECT_STATUS(f.cq_a, i, IBV_WC_SUCCESS);
	}
	MUST(post_recv(f.b, f.mr, 4096, 8, 5));
	MUST(ibv_post_send(f.a, &wr, &bad));
	EXPECT_STATUS(f.cq_a, 99, IBV_WC_SUCCESS);
}

static void full_receive_queue_is_enomem_and_names_the_request(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_sge sge = sge_of(&f, 0, 8);
	struct ibv_recv_wr wr = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad = NULL;

	MUST(ibv_query_qp(f.a, &attr, IBV_QP_CAP, &init));
	for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
		MUST(post_recv(f.a, f.mr, 0, 8, i));
	EXPECT_ERRNO(ENOMEM, ibv_post_recv(f.a, &wr, &bad));
	EXPECT(bad == &wr);
}

static void too_many_sges_are_refused(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(ibv_query_qp(f.a, &attr, IBV_QP_CAP, &init));
	uint32_t most = init.cap.max_send_sge > init.cap.max_recv_sge ? init.cap.max_send_sge : init.cap.max_recv_sge;
	struct ibv_sge *sges = MAKE(calloc(most + 1, sizeof *sges));

	for (uint32_t i = 0; i <= most; i++)
		sges[i] = sge_of(&f, i * 8, 8);
	struct ibv_send_wr send = send_wr(sges, 1), *bad_send = NULL;
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = sges}, *bad_recv = NULL;

	send.num_sge = (int)init.cap.max_send_sge + 1;
	EXPECT_ERRNO(EINVAL, ibv_post_send(f.a, &send, &bad_send));
	EXPECT(bad_send == &send);
	recv.num_sge = (int)init.cap.max_recv_sge + 1;
	EXPECT_ERRNO(EINVAL, ibv_post_recv(f.a, &recv, &bad_recv));
	EXPECT(bad_recv == &recv);
	free(sges);
}

static void list_with_a_bad_request_in_the_middle_is_taken_up_to_it(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_sge sge = sge_of(&f, 0, 8);
	struct ibv_send_wr wr[4], *bad = NULL;
	struct ibv_recv_wr recv[3], *bad_recv = NULL;

	for (unsigned int i = 0; i < 3; i++) {
		recv[i] = (struct ibv_recv_wr){.wr_id = 10 + i, .sg_list = &sge, .num_sge = 1,
					       .next = i < 2 ? &recv[i + 1] : NULL};
		MUST(post_recv(f.b, f.mr, 4096, 8, i));
	}
	for (unsigned int i = 0; i < 4; i++) {
		wr[i] = send_wr(&sge, 20 + i);
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
	}
	wr[2].opcode = (enum ibv_wr_opcode)200;
	EXPECT_ERRNO(EINVAL, ibv_post_send(f.a, wr, &bad));
	EXPECT(bad == &wr[2]);
	EXPECT_STATUS(f.cq_a, 20, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 21, IBV_WC_SUCCESS);
	EXPECT_NOTHING(f.cq_a);
	recv[1].num_sge = 1000;
	EXPECT_ERRNO(EINVAL, ibv_post_recv(f.a, recv, &bad_recv));
	EXPECT(bad_recv == &recv[1]);
	MUST(post_send(f.b, f.mr, 0, 8, 30));
	EXPECT_STATUS(f.cq_a, 10, IBV_WC_SUCCESS);
}

static void opcodes_that_the_transport_lacks_are_refused(void)
{
	struct fixture uc = connected(IBV_QPT_UC);
	uint64_t remote = (uintptr_t)uc.memory + 4096;

	EXPECT_ERRNO(EINVAL, post_remote(uc.a, IBV_WR_RDMA_READ, uc.mr, 8, remote, uc.mr->rkey, 1));
	EXPECT_ERRNO(EINVAL, post_remote(uc.a, IBV_WR_ATOMIC_FETCH_AND_ADD, uc.mr, 8, remote, uc.mr->rkey, 1));
	EXPECT_ERRNO(EINVAL, post_remote(uc.a, IBV_WR_ATOMIC_CMP_AND_SWP, uc.mr, 8, remote, uc.mr->rkey, 1));
	struct fixture ud = connected(IBV_QPT_UD);

	EXPECT_ERRNO(EINVAL, post_remote(ud.a, IBV_WR_RDMA_WRITE, ud.mr, 8, remote, ud.mr->rkey, 1));
	EXPECT_ERRNO(EINVAL, post_remote(ud.a, IBV_WR_RDMA_READ, ud.mr, 8, remote, ud.mr->rkey, 1));
}

static void ud_message_larger_than_the_mtu_is_refused(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct ibv_ah_attr attr;
	uint32_t mtu = 128u << f.device.port.active_mtu;
	struct ibv_sge sge = sge_of(&f, 0, mtu + 1);
	struct ibv_send_wr wr = send_wr(&sge, 1), *bad = NULL;
	struct ibv_wc wc;

	fill_ah(&attr, &f.device, &f.device.gid);
	wr.wr.ud.ah = MAKE(ibv_create_ah(f.device.pd, &attr));
	wr.wr.ud.remote_qpn = f.b->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(post_recv(f.b, f.mr, 8192, 8192, 2));
	/* Some providers see it at the call, others complete it with an error. */
	int result = ibv_post_send(f.a, &wr, &bad);

	if (result == 0) {
		EXPECT(wait_wc(f.cq_a, &wc, 5000));
		EXPECT(wc.status == IBV_WC_LOC_LEN_ERR);
	} else {
		EXPECT(result == EINVAL || result == EMSGSIZE);
		EXPECT(bad == &wr);
	}
	EXPECT_NOTHING(f.cq_b);
}

static void inline_data_beyond_the_limit_is_refused(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(ibv_query_qp(f.a, &attr, IBV_QP_CAP, &init));
	EXPECT(init.cap.max_inline_data >= 64 && init.cap.max_inline_data < MEMORY_SIZE);
	struct ibv_sge sge = sge_of(&f, 0, init.cap.max_inline_data + 1);
	struct ibv_send_wr wr = send_wr(&sge, 1), *bad = NULL;

	wr.send_flags |= IBV_SEND_INLINE;
	int result = ibv_post_send(f.a, &wr, &bad);

	/* ibv_post_send(3) documents a failure without its value; providers differ in the value. */
	EXPECT(result == EINVAL || result == ENOMEM);
	EXPECT(bad == &wr);
}

static void inline_buffer_needs_no_lkey_and_may_be_reused_at_once(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	char local[32];
	struct ibv_sge sge = {(uintptr_t)local, sizeof local, 0};
	struct ibv_send_wr wr = send_wr(&sge, 0), *bad = NULL;

	wr.send_flags |= IBV_SEND_INLINE;
	for (unsigned int i = 0; i < 4; i++)
		MUST(post_recv(f.b, f.mr, i * 64, 64, i));
	for (unsigned int i = 0; i < 4; i++) {
		fill(local, sizeof local, i);
		wr.wr_id = i;
		MUST(ibv_post_send(f.a, &wr, &bad));
	}
	for (unsigned int i = 0; i < 4; i++) {
		EXPECT_STATUS(f.cq_b, i, IBV_WC_SUCCESS);
		check(f.memory + i * 64, sizeof local, i, "inline message");
	}
}

static void qp_with_an_srq_refuses_receives(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, f.cq_a, srq, 4);
	struct ibv_sge sge = sge_of(&f, 0, 8);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad = NULL;

	MUST(to_init(qp, ALL_ACCESS));
	EXPECT_ERRNO(EINVAL, ibv_post_recv(qp, &wr, &bad));
	EXPECT(bad == &wr);
}

static void full_srq_is_enomem_and_too_many_sges_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_srq_attr attr;
	struct ibv_sge sge = sge_of(&f, 0, 8);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1000}, *bad = NULL;

	MUST(ibv_query_srq(srq, &attr));
	EXPECT(attr.max_wr >= 4);
	EXPECT_ERRNO(EINVAL, ibv_post_srq_recv(srq, &wr, &bad));
	EXPECT(bad == &wr);
	wr.num_sge = 1;
	for (uint32_t i = 0; i < attr.max_wr; i++)
		MUST(ibv_post_srq_recv(srq, &wr, &bad));
	bad = NULL;
	EXPECT_ERRNO(ENOMEM, ibv_post_srq_recv(srq, &wr, &bad));
	EXPECT(bad == &wr);
	MUST(ibv_destroy_srq(srq));
}

static void requests_posted_in_error_are_flushed(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	MUST(post_recv(f.a, f.mr, 0, 8, 1));
	MUST(ibv_modify_qp(f.a, &error, IBV_QP_STATE));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_WR_FLUSH_ERR);
	MUST(post_send(f.a, f.mr, 0, 8, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_WR_FLUSH_ERR);
	MUST(post_recv(f.a, f.mr, 0, 8, 3));
	EXPECT_STATUS(f.cq_a, 3, IBV_WC_WR_FLUSH_ERR);
}

static const struct test_case cases[] = {
	CASE(send_in_a_state_before_rts_is_refused),
	CASE(recv_in_reset_is_refused_and_in_init_taken),
	CASE(full_send_queue_is_enomem_and_names_the_request),
	CASE(full_receive_queue_is_enomem_and_names_the_request),
	CASE(too_many_sges_are_refused),
	CASE(list_with_a_bad_request_in_the_middle_is_taken_up_to_it),
	CASE(opcodes_that_the_transport_lacks_are_refused),
	CASE(ud_message_larger_than_the_mtu_is_refused),
	CASE(inline_data_beyond_the_limit_is_refused),
	CASE(inline_buffer_needs_no_lkey_and_may_be_reused_at_once),
	CASE(qp_with_an_srq_refuses_receives),
	CASE(full_srq_is_enomem_and_too_many_sges_are_refused),
	CASE(requests_posted_in_error_are_flushed),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
