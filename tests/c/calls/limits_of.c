/* limits_of: prints the limits that the device reports, and how much inline data it takes. Each is granted, and one more is not. */
#include "../cases.h"

static struct device device;
static struct ibv_cq *cq;

static struct ibv_qp *qp_of(struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC};

	return ibv_create_qp(device.pd, &init);
}

static void granted(struct ibv_qp_cap cap)
{
	struct ibv_qp *qp = MAKE(qp_of(cap));

	MUST(ibv_destroy_qp(qp));
}

static struct ibv_srq *srq_of(int wr, int sge)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = (uint32_t)wr, .max_sge = (uint32_t)sge}};

	return ibv_create_srq(device.pd, &init);
}

static void queue_pairs(void)
{
	uint32_t wr = (uint32_t)device.attr.max_qp_wr, sge = (uint32_t)device.attr.max_sge;

	granted((struct ibv_qp_cap){.max_send_wr = wr, .max_recv_wr = wr, .max_send_sge = sge, .max_recv_sge = sge});
	EXPECT_NULL(EINVAL, qp_of((struct ibv_qp_cap){.max_send_wr = wr + 1}));
	EXPECT_NULL(EINVAL, qp_of((struct ibv_qp_cap){.max_recv_wr = wr + 1}));
	EXPECT_NULL(EINVAL, qp_of((struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = sge + 1}));
	EXPECT_NULL(EINVAL, qp_of((struct ibv_qp_cap){.max_recv_wr = 1, .max_recv_sge = sge + 1}));
}

static void shared_receive_queues(void)
{
	int wr = device.attr.max_srq_wr, sge = device.attr.max_srq_sge;
	struct ibv_srq *srq = MAKE(srq_of(1, sge));
	struct ibv_srq_attr size = {.max_wr = (uint32_t)wr + 1};

	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR));
	size.max_wr--;
	MUST(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR));
	MUST(ibv_destroy_srq(srq));
	EXPECT_NULL(EINVAL, srq_of(wr + 1, 1));
	EXPECT_NULL(EINVAL, srq_of(1, sge + 1));
}

static void completion_queues(void)
{
	struct ibv_cq *largest = make_cq(&device, device.attr.max_cqe, NULL);

	EXPECT_ERRNO(EINVAL, ibv_resize_cq(largest, device.attr.max_cqe + 1));
	MUST(ibv_destroy_cq(largest));
	EXPECT_NULL(EINVAL, ibv_create_cq(device.context, device.attr.max_cqe + 1, NULL, NULL, 0));
}

/* RDMA READs and atomics, as the target and as the initiator. */
static void depths(void)
{
	uint8_t most = (uint8_t)device.attr.max_qp_rd_atom;
	struct path path = default_path(&device);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 1);
	struct address self = {.qpn = qp->qp_num, .gid = device.gid};

	MUST(to_init(qp, ALL_ACCESS));
	path.rd_atomic = (uint8_t)(most + 1);
	EXPECT_ERRNO(EINVAL, to_rtr(qp, &device, &path, &self));
	path.rd_atomic = most;
	MUST(to_rtr(qp, &device, &path, &self));
	path.rd_atomic = (uint8_t)(most + 1);
	EXPECT_ERRNO(EINVAL, to_rts(qp, &path, 0));
	path.rd_atomic = most;
	MUST(to_rts(qp, &path, 0));
	MUST(ibv_destroy_qp(qp));
}

static uint32_t most_inline(void)
{
	uint32_t granted_bytes = 0, refused = 1 << 20;

	while (refused - granted_bytes > 1) {
		uint32_t bytes = (granted_bytes + refused) / 2;
		struct ibv_qp *qp = qp_of((struct ibv_qp_cap){.max_send_wr = 1, .max_inline_data = bytes});

		*(qp ? &granted_bytes : &refused) = bytes;
		if (qp)
			MUST(ibv_destroy_qp(qp));
	}
	return granted_bytes;
}

int main(void)
{
	device = open_device(1);
	cq = make_cq(&device, 1, NULL);
	queue_pairs();
	shared_receive_queues();
	completion_queues();
	depths();
	printf("wr %d sge %d cqe %d srq_wr %d srq_sge %d rd_atomic %d inline %u\n", device.attr.max_qp_wr,
	       device.attr.max_sge, device.attr.max_cqe, device.attr.max_srq_wr, device.attr.max_srq_sge,
	       device.attr.max_qp_rd_atom, most_inline());
	return 0;
}
