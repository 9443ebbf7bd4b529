/* handles: an object is known by its handle and the open device it was made on; and what an object takes instead of a
 * number that the program has chosen, or holds.
 */
#include "cases.h"

#include <poll.h>

/* The call fails with this errno while the field has this value. */
#define REFUSED_WITH(field, value, expected, call)          \
	do {                                                \
		__typeof__(field) own = (field);            \
		(field) = (value);                          \
		EXPECT_ERRNO(expected, call);               \
		(field) = own;                              \
	} while (0)

#define NULL_WITH(field, value, expected, call)             \
	do {                                                \
		__typeof__(field) own = (field);            \
		(field) = (value);                          \
		EXPECT_NULL(expected, call);                \
		(field) = own;                              \
	} while (0)

/* Neither another number nor another open device names the object. */
#define DESTROYED_BY_ITS_OWN_NAME(object, destroy)                                              \
	do {                                                                                    \
		REFUSED_WITH((object)->handle, (object)->handle + 0x10000, ENOENT, destroy(object)); \
		REFUSED_WITH((object)->handle, UINT32_MAX, ENOENT, destroy(object));            \
		REFUSED_WITH((object)->context, other.context, ENOENT, destroy(object));        \
		EXPECT_ERRNO(0, destroy(object));                                               \
	} while (0)

static void what_names_another_object_destroys_nothing(void)
{
	struct device device = open_device(1), other = open_device(1);
	static char memory[64];
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_ah_attr ah_attr = {.is_global = 1, .port_num = PORT_NUM,
				      .grh = {.dgid = device.gid, .sgid_index = 1, .hop_limit = 1}};
	struct ibv_alloc_dm_attr dm_attr = {.length = 64};
	struct ibv_cq *cq = make_cq(&device, 4, NULL), *second = make_cq(&device, 4, NULL);
	struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &srq_init));
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, srq, 4);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(device.pd, IBV_MW_TYPE_2));
	struct ibv_ah *ah = MAKE(ibv_create_ah(device.pd, &ah_attr));
	struct ibv_dm *dm = MAKE(ibv_alloc_dm(device.context, &dm_attr));

	/* Not even another object's. */
	REFUSED_WITH(cq->handle, second->handle, ENOENT, ibv_destroy_cq(cq));
	DESTROYED_BY_ITS_OWN_NAME(second, ibv_destroy_cq);
	DESTROYED_BY_ITS_OWN_NAME(qp, ibv_destroy_qp);
	DESTROYED_BY_ITS_OWN_NAME(srq, ibv_destroy_srq);
	DESTROYED_BY_ITS_OWN_NAME(cq, ibv_destroy_cq);
	DESTROYED_BY_ITS_OWN_NAME(mr, ibv_dereg_mr);
	DESTROYED_BY_ITS_OWN_NAME(mw, ibv_dealloc_mw);
	DESTROYED_BY_ITS_OWN_NAME(ah, ibv_destroy_ah);
	DESTROYED_BY_ITS_OWN_NAME(dm, ibv_free_dm);
	DESTROYED_BY_ITS_OWN_NAME(device.pd, ibv_dealloc_pd);
}

static void what_names_another_object_has_no_children(void)
{
	struct device device = open_device(1), other = open_device(1);
	static char memory[64];
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &srq_init));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 1, .max_send_sge = 1}};
	struct ibv_qp *qp = MAKE(ibv_create_qp(device.pd, &init));
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_srq_attr limit = {.srq_limit = 1};
	uint32_t wrong = UINT32_MAX - 7;

	NULL_WITH(device.pd->handle, wrong, EINVAL, ibv_reg_mr(device.pd, memory, sizeof memory, 0));
	NULL_WITH(device.pd->context, other.context, EINVAL, ibv_reg_mr(device.pd, memory, sizeof memory, 0));
	NULL_WITH(device.pd->handle, wrong, EINVAL, ibv_create_srq(device.pd, &srq_init));
	NULL_WITH(device.pd->handle, wrong, EINVAL, ibv_alloc_mw(device.pd, IBV_MW_TYPE_1));
	NULL_WITH(device.pd->handle, wrong, EINVAL, ibv_create_qp(device.pd, &init));
	NULL_WITH(cq->handle, wrong, EINVAL, ibv_create_qp(device.pd, &init));
	NULL_WITH(srq->handle, wrong, EINVAL, ibv_create_qp(device.pd, &init));
	REFUSED_WITH(qp->handle, wrong, EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	REFUSED_WITH(qp->handle, wrong, EINVAL, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	REFUSED_WITH(srq->handle, wrong, EINVAL, ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	REFUSED_WITH(cq->handle, wrong, EINVAL, ibv_resize_cq(cq, 8));
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_destroy_cq(cq));
}

static void a_windows_key_is_its_own_but_for_the_low_8_bits(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_mw *mw = MAKE(ibv_alloc_mw(f.device.pd, IBV_MW_TYPE_2));
	struct ibv_send_wr *bad, wr = {.wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_mr *stranger, *region = MAKE(ibv_reg_mr(f.device.pd, f.memory, 4096, ALL_ACCESS | IBV_ACCESS_MW_BIND));
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(f.device.context));
	uint32_t own = mw->rkey;

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = region->rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){region, (uintptr_t)f.memory, 4096, IBV_ACCESS_REMOTE_WRITE};
	MUST(ibv_post_send(f.b, &wr, &bad));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_SUCCESS);
	EXPECT(mw->rkey == ((own & ~0xffu) | (region->rkey & 0xff)));
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 8, (uintptr_t)f.memory, mw->rkey, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	MUST(ibv_dealloc_mw(mw));
	/* A region of another domain: the error is in the completion. */
	stranger = MAKE(ibv_reg_mr(pd, f.memory, 4096, ALL_ACCESS | IBV_ACCESS_MW_BIND));
	wr.bind_mw.mw = mw = MAKE(ibv_alloc_mw(f.device.pd, IBV_MW_TYPE_2));
	wr.bind_mw.bind_info.mr = stranger;
	MUST(ibv_post_send(f.b, &wr, &bad));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_MW_BIND_ERR);
}

static void a_region_of_no_byte_begins_inside_of_a_page(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_mr *mr;

	EXPECT_NULL(EINVAL, ibv_reg_mr(f.device.pd, f.memory, 0, ALL_ACCESS));
	mr = MAKE(ibv_reg_mr(f.device.pd, f.memory + 8, 0, ALL_ACCESS));
	EXPECT(mr->length == 0);
	MUST(ibv_dereg_mr(mr));
	EXPECT_NULL(EFAULT, ibv_reg_mr(f.device.pd, (void *)8, 0, ALL_ACCESS));
}

static void a_null_region_does_not_hold_its_domain(void)
{
	struct device device = open_device(1);
	struct ibv_mr *null = MAKE(ibv_alloc_null_mr(device.pd));

	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_dereg_mr(null));
}

static void a_change_that_the_adapter_refuses_is_err_cmd(void)
{
	struct fixture f = connected(IBV_QPT_RC);

	errno = 0;
	EXPECT(ibv_rereg_mr(f.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
	       IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	EXPECT(ibv_rereg_mr(f.mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	/* It is what it was. */
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 8, (uintptr_t)f.memory, f.mr->rkey, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
}

static void what_was_made_since_has_its_names_and_bits(void)
{
	struct device device = open_device(1);
	struct ibv_device_attr_ex attr;

	MUST(ibv_query_device_ex(device.context, NULL, &attr));
	/* Numbers of rdma-core v60: the headers of the machine may be older. */
	EXPECT((attr.odp_caps.per_transport_caps.rc_odp_caps >> 6 & 3) == 3);
	EXPECT(!strcmp(ibv_event_type_str((enum ibv_event_type)20), "device speed change"));
	EXPECT(!strcmp(ibv_event_type_str((enum ibv_event_type)21), "unknown"));
}

static void an_event_of_which_nothing_is_left_to_tell_lapses(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(f.device.context));
	struct ibv_cq *cq = make_cq(&f.device, 64, channel), *found;
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	void *context;

	/* What is posted in ERR has completed when the call returns. */
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	for (int round = 0; round < 3; round++) {
		MUST(post_remote(qp, IBV_WR_RDMA_WRITE, f.mr, 8, (uintptr_t)f.memory, f.mr->rkey, 7));
		EXPECT(!is_readable(channel->fd, 0));
		MUST(ibv_req_notify_cq(cq, 0));
		EXPECT(is_readable(channel->fd, 0));
		EXPECT_STATUS(cq, 7, IBV_WC_WR_FLUSH_ERR);
		EXPECT(!is_readable(channel->fd, 0));
		/* The queue waits for the next one all the same. */
		MUST(post_remote(qp, IBV_WR_RDMA_WRITE, f.mr, 8, (uintptr_t)f.memory, f.mr->rkey, 8));
		EXPECT(is_readable(channel->fd, 0));
		EXPECT_STATUS(cq, 8, IBV_WC_WR_FLUSH_ERR);
		EXPECT(is_readable(channel->fd, 0));
		MUST(ibv_get_cq_event(channel, &found, &context));
		EXPECT(found == cq && !is_readable(channel->fd, 0));
		ibv_ack_cq_events(cq, 1);
	}
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
}

static const struct test_case cases[] = {
	CASE(what_names_another_object_destroys_nothing),
	CASE(what_names_another_object_has_no_children),
	CASE(a_windows_key_is_its_own_but_for_the_low_8_bits),
	CASE(a_region_of_no_byte_begins_inside_of_a_page),
	CASE(a_null_region_does_not_hold_its_domain),
	CASE(a_change_that_the_adapter_refuses_is_err_cmd),
	CASE(what_was_made_since_has_its_names_and_bits),
	CASE(an_event_of_which_nothing_is_left_to_tell_lapses),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
