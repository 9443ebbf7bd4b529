/* Calls that are refused: `refused CASE wrong|right`. The wrong call returns the documented errno, and the library logs the reason in
 * one line.
 */
#include "../cases.h"
#include "connections/cm.h"
#include <infiniband/ib.h>

static int modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	return ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
}

static struct ibv_qp_attr rtr_attr(const struct fixture *f)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = f->path.mtu, .dest_qp_num = f->b->qp_num,
				   .max_dest_rd_atomic = 1, .min_rnr_timer = 12};

	fill_ah(&attr.ah_attr, &f->device, &f->device.gid);
	return attr;
}

static void take_to_rtr(enum ibv_mtu mtu, int less, int sgid_index, bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_attr attr = rtr_attr(&f);

	MUST(to_init(f.a, ALL_ACCESS));
	if (wrong) {
		attr.path_mtu = mtu ? mtu : attr.path_mtu;
		attr.ah_attr.grh.sgid_index = (uint8_t)sgid_index;
	}
	EXPECT_ERRNO(wrong ? EINVAL : 0, modify(f.a, attr, required(IBV_QPT_RC, IBV_QPS_RTR) & ~(wrong ? less : 0)));
}

static void attribute_missing(bool wrong)
{
	take_to_rtr(0, IBV_QP_MIN_RNR_TIMER, 1, wrong);
}

static void gid_index_of_nothing(bool wrong)
{
	take_to_rtr(0, 0, 99, wrong);
}

static void gid_index_of_the_other_family(bool wrong)
{
	take_to_rtr(0, 0, 0, wrong);
}

static void path_mtu_above_the_port(bool wrong)
{
	take_to_rtr(IBV_MTU_4096, 0, 1, wrong);
}

static void states_left_out(bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_qp_attr attr = {.qp_state = wrong ? IBV_QPS_RTS : IBV_QPS_INIT, .port_num = PORT_NUM};

	MUST(to_init(f.a, ALL_ACCESS));
	EXPECT_ERRNO(wrong ? EINVAL : 0, modify(f.a, attr, 0));
}

static void receive_in_reset(bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	if (!wrong)
		MUST(to_init(f.a, ALL_ACCESS));
	EXPECT_ERRNO(wrong ? EINVAL : 0, post_recv(f.a, f.mr, 0, 64, 1));
}

static void send_in_init(bool wrong)
{
	struct fixture f = wrong ? unconnected(IBV_QPT_RC) : connected(IBV_QPT_RC);

	if (wrong)
		MUST(to_init(f.a, ALL_ACCESS));
	EXPECT_ERRNO(wrong ? EINVAL : 0, post_send(f.a, f.mr, 0, 64, 1));
}

static void remote_write_alone(bool wrong)
{
	struct device device = open_device(1);
	static char memory[64];
	int access = IBV_ACCESS_REMOTE_WRITE | (wrong ? 0 : IBV_ACCESS_LOCAL_WRITE);

	errno = 0;
	if (!ibv_reg_mr(device.pd, memory, sizeof memory, access) != wrong || (wrong && errno != EINVAL))
		fail("ibv_reg_mr: %s", strerror(errno));
}

static void domain_in_use(bool wrong)
{
	struct device device = open_device(1);
	static char memory[64];
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));

	if (!wrong)
		MUST(ibv_dereg_mr(mr));
	EXPECT_ERRNO(wrong ? EBUSY : 0, ibv_dealloc_pd(device.pd));
}

static void queue_in_use(bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	if (!wrong)
		MUST(ibv_destroy_qp(f.a));
	EXPECT_ERRNO(wrong ? EBUSY : 0, ibv_destroy_cq(f.cq_a));
}

static void inline_too_long(bool wrong)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_sge sge = {(uintptr_t)f.memory, wrong ? 4096 : 32, 0};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE}, *bad;

	EXPECT_ERRNO(wrong ? EINVAL : 0, ibv_post_send(f.a, &wr, &bad));
}

static void too_many_elements(bool wrong)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_sge sge[9];
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = wrong ? 9 : 2, .opcode = IBV_WR_SEND}, *bad;

	for (int i = 0; i < 9; i++)
		sge[i] = (struct ibv_sge){(uintptr_t)f.memory, 8, f.mr->lkey};
	EXPECT_ERRNO(wrong ? EINVAL : 0, ibv_post_send(f.a, &wr, &bad));
}

static void receive_queue_full(bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);

	MUST(to_init(f.a, ALL_ACCESS));
	for (int i = 1; i < DEPTH; i++)
		MUST(post_recv(f.a, f.mr, 0, 64, 1));
	MUST(post_recv(f.a, f.mr, 0, 64, 1));
	if (wrong)
		EXPECT_ERRNO(ENOMEM, post_recv(f.a, f.mr, 0, 64, 1));
}

/* The way to an address of InfiniBand (the device's own GID) isn't looked for by IP addresses. */
static void address_of_infiniband(bool wrong)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct sockaddr_ib ib = {.sib_family = AF_IB};
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	memcpy(&ib.sib_addr, &f.device.gid, sizeof ib.sib_addr);
	if (wrong)
		REFUSED(ENODEV, rdma_resolve_addr(id, NULL, (struct sockaddr *)&ib, 2000));
	else
		MUST(resolve(id, HERE, 7801));
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*call)(bool wrong);
	} cases[] = {
		CASE(attribute_missing),
		CASE(gid_index_of_nothing),
		CASE(gid_index_of_the_other_family),
		CASE(path_mtu_above_the_port),
		CASE(states_left_out),
		CASE(receive_in_reset),
		CASE(send_in_init),
		CASE(remote_write_alone),
		CASE(domain_in_use),
		CASE(queue_in_use),
		CASE(inline_too_long),
		CASE(too_many_elements),
		CASE(receive_queue_full),
		CASE(address_of_infiniband),
	};

	alarm(ALARM_SECONDS);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc == 1)
			puts(cases[i].name);
		if (argc == 3 && !strcmp(argv[1], cases[i].name)) {
			cases[i].call(!strcmp(argv[2], "wrong"));
			puts("ok");
			return 0;
		}
	}
	return argc == 1 ? 0 : 1;
}
