/* lids: ports of InfiniBand (FERROCE_LINK_LAYER=infiniband): LIDs, address vectors without a GRH, GIDs and groups. */
#include "cases.h"

#define GRH_BYTES 40
#define MULTICAST_QPN 0xffffff
/* In the second half of MEMORY_SIZE. */
#define RECEIVED 32768
/* A multicast LID. */
#define MLID 0xc123
/* Of a host that the subnet of the tests doesn't have. */
#define NOBODY 99

static struct ibv_ah_attr by_lid(uint16_t lid)
{
	return (struct ibv_ah_attr){.dlid = lid, .port_num = PORT_NUM};
}

static struct ibv_ah_attr by_gid(const union ibv_gid *gid, uint8_t hop_limit)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT_NUM};

	attr.grh.dgid = *gid;
	attr.grh.hop_limit = hop_limit;
	return attr;
}

/* The port's GID has index 0. */
static union ibv_gid port_gid(const struct fixture *f)
{
	union ibv_gid gid;

	MUST(ibv_query_gid(f->device.context, PORT_NUM, 0, &gid));
	return gid;
}

static int to_rtr_at(struct ibv_qp *qp, const struct fixture *f, const struct ibv_qp *peer, struct ibv_ah_attr ah)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = f->path.mtu,
				   .dest_qp_num = peer->qp_num,
				   .rq_psn = 1,
				   .max_dest_rd_atomic = f->path.rd_atomic,
				   .min_rnr_timer = f->path.min_rnr_timer,
				   .ah_attr = ah};

	return ibv_modify_qp(qp, &attr, required(qp->qp_type, IBV_QPS_RTR));
}

/* Two queue pairs in RTS; those that are connected by the port's LID. */
static struct fixture connected_by_lid(enum ibv_qp_type type)
{
	struct fixture f = unconnected(type);

	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	MUST(to_rtr_at(f.a, &f, f.b, by_lid(f.device.port.lid)));
	MUST(to_rtr_at(f.b, &f, f.a, by_lid(f.device.port.lid)));
	MUST(to_rts(f.a, &f.path, 1));
	MUST(to_rts(f.b, &f.path, 1));
	return f;
}

/* A datagram of 100 bytes from `a`, with the completion of its receive by `b`. */
static void send_to_b(struct fixture *f, struct ibv_ah_attr attr, uint32_t qpn, struct ibv_wc *wc)
{
	struct ibv_sge sge = {(uintptr_t)f->memory, 100, f->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	memset(f->memory + RECEIVED, 0x5a, GRH_BYTES);
	fill(f->memory, 100, 3);
	MUST(post_recv(f->b, f->mr, RECEIVED, GRH_BYTES + 100, 2));
	wr.wr.ud.ah = MAKE(ibv_create_ah(f->device.pd, &attr));
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(ibv_post_send(f->a, &wr, &bad));
	EXPECT_STATUS(f->cq_a, 1, IBV_WC_SUCCESS);
	MUST_COMPLETE(f->cq_b, wc);
	EXPECT(wc->byte_len == GRH_BYTES + 100 && wc->src_qp == f->a->qp_num && wc->sl == 0);
	check(f->memory + RECEIVED + GRH_BYTES, 100, 3, "datagram");
	MUST(ibv_destroy_ah(wr.wr.ud.ah));
}

/* `b` answers by way of the completion. */
static void answer(struct fixture *f, struct ibv_wc *wc, void *grh)
{
	struct ibv_sge sge = {(uintptr_t)f->memory, 10, f->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	wr.wr.ud.ah = MAKE(ibv_create_ah_from_wc(f->device.pd, wc, grh, PORT_NUM));
	wr.wr.ud.remote_qpn = wc->src_qp;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(post_recv(f->a, f->mr, RECEIVED + 1024, GRH_BYTES + 10, 4));
	MUST(ibv_post_send(f->b, &wr, &bad));
	EXPECT_STATUS(f->cq_b, 3, IBV_WC_SUCCESS);
	EXPECT_STATUS(f->cq_a, 4, IBV_WC_SUCCESS);
	MUST(ibv_destroy_ah(wr.wr.ud.ah));
}

static void the_port_is_one_of_infiniband(void)
{
	struct device device = open_device(0);
	struct ibv_gid_entry entry;
	__be16 pkey;

	EXPECT(device.port.link_layer == IBV_LINK_LAYER_INFINIBAND && device.port.state == IBV_PORT_ACTIVE);
	/* 10.77.0.1 */
	EXPECT(device.port.lid == 1 && device.port.sm_lid == 1 && device.port.lmc == 0);
	EXPECT((device.port.flags & IBV_QPF_GRH_REQUIRED) == 0);
	EXPECT((device.port.port_cap_flags & IBV_PORT_IP_BASED_GIDS) == 0);
	EXPECT(be64toh(device.gid.global.subnet_prefix) == 0xfe80000000000000);
	EXPECT(be64toh(device.gid.global.interface_id) == 0x02f0ce040a4d0001);
	MUST(ibv_query_gid_ex(device.context, PORT_NUM, 0, &entry, 0));
	EXPECT(entry.gid_type == IBV_GID_TYPE_IB && entry.ndev_ifindex == 0);
	EXPECT(memcmp(&entry.gid, &device.gid, sizeof entry.gid) == 0);
	MUST(ibv_query_pkey(device.context, PORT_NUM, 0, &pkey));
	EXPECT(pkey == 0xffff);
}

static void datagram_by_lid_names_the_senders_lid_and_has_no_grh(void)
{
	struct fixture f = connected_by_lid(IBV_QPT_UD);
	struct ibv_wc wc;

	send_to_b(&f, by_lid(f.device.port.lid), f.b->qp_num, &wc);
	EXPECT(wc.slid == f.device.port.lid && (wc.wc_flags & IBV_WC_GRH) == 0);
	for (int i = 0; i < GRH_BYTES; i++)
		EXPECT(f.memory[RECEIVED + i] == 0x5a);
	answer(&f, &wc, NULL);
}

static void datagram_by_gid_has_a_grh_of_infiniband(void)
{
	/* 1 is what packets to LIDs have. */
	static const uint8_t hop_limits[] = {0, 1, 64, 255};
	struct fixture f = connected_by_lid(IBV_QPT_UD);
	union ibv_gid gid = port_gid(&f);
	struct ibv_wc wc;

	for (size_t i = 0; i < sizeof hop_limits; i++) {
		struct ibv_grh *grh = (void *)(f.memory + RECEIVED);

		send_to_b(&f, by_gid(&gid, hop_limits[i]), f.b->qp_num, &wc);
		EXPECT(wc.slid == f.device.port.lid && wc.wc_flags & IBV_WC_GRH);
		EXPECT(be32toh(grh->version_tclass_flow) >> 28 == 6 && grh->next_hdr == 0x1b);
		EXPECT(memcmp(&grh->sgid, &gid, sizeof gid) == 0 && memcmp(&grh->dgid, &gid, sizeof gid) == 0);
		answer(&f, &wc, grh);
	}
}

/* By the port's GID, whatever IP carries them. */
static void groups_of_all_kinds_are_reached_by_their_mgid(void)
{
	static const union ibv_gid groups[] = {
		{.raw = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [12] = 15, 1, 2, 3}},
		{.raw = {0xff, 0x15, [14] = 0x77, 0x77}},
		{.raw = {[10] = 0xff, 0xff, 239, 1, 2, 9}},
	};
	struct fixture f = connected_by_lid(IBV_QPT_UD);
	struct ibv_wc wc;

	for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
		struct ibv_ah_attr attr = by_gid(&groups[i], 1);

		attr.dlid = MLID;
		EXPECT_ERRNO(EINVAL, ibv_attach_mcast(f.b, &groups[i], 0));
		EXPECT_ERRNO(EINVAL, ibv_attach_mcast(f.b, &groups[i], 0xffff));
		MUST(ibv_attach_mcast(f.b, &groups[i], MLID));
		send_to_b(&f, attr, MULTICAST_QPN, &wc);
		EXPECT(wc.wc_flags & IBV_WC_GRH);
		MUST(ibv_detach_mcast(f.b, &groups[i], MLID));
	}
}

static void connection_by_lid_carries_all_operations(void)
{
	struct fixture f = connected_by_lid(IBV_QPT_RC);
	uint64_t remote = (uintptr_t)f.memory + RECEIVED;

	fill(f.memory, 100, 1);
	MUST(post_recv(f.b, f.mr, RECEIVED, 100, 1));
	MUST(post_send(f.a, f.mr, 0, 100, 2));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	check(f.memory + RECEIVED, 100, 1, "message");
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 100, remote + 1024, f.mr->rkey, 3));
	EXPECT_STATUS(f.cq_a, 3, IBV_WC_SUCCESS);
	check(f.memory + RECEIVED + 1024, 100, 1, "WRITE");
	MUST(post_remote(f.a, IBV_WR_ATOMIC_FETCH_AND_ADD, f.mr, 8, remote, f.mr->rkey, 4));
	EXPECT_STATUS(f.cq_a, 4, IBV_WC_SUCCESS);
}

static void lids_that_no_host_can_have_are_refused(void)
{
	static const uint16_t lids[] = {0, 0xbfff, 0xc000, 0xfffe, 0xffff};
	struct fixture f = unconnected(IBV_QPT_RC);

	MUST(to_init(f.a, ALL_ACCESS));
	for (size_t i = 0; i < sizeof lids / sizeof lids[0]; i++) {
		struct ibv_ah_attr attr = by_lid(lids[i]);

		EXPECT_ERRNO(EINVAL, to_rtr_at(f.a, &f, f.b, attr));
		EXPECT_NULL(EINVAL, ibv_create_ah(f.device.pd, &attr));
	}
	EXPECT(qp_state(f.a) == IBV_QPS_INIT);
}

static void requests_to_a_lid_without_a_host_end_with_retry_exc(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct path path = f.path;

	path.timeout = 14;
	path.retry_count = 1;
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_rtr_at(f.a, &f, f.b, by_lid(NOBODY)));
	MUST(to_rts(f.a, &path, 1));
	MUST(post_send(f.a, f.mr, 0, 100, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_RETRY_EXC_ERR);
}

static const struct test_case cases[] = {
	CASE(the_port_is_one_of_infiniband),
	CASE(datagram_by_lid_names_the_senders_lid_and_has_no_grh),
	CASE(datagram_by_gid_has_a_grh_of_infiniband),
	CASE(groups_of_all_kinds_are_reached_by_their_mgid),
	CASE(connection_by_lid_carries_all_operations),
	CASE(lids_that_no_host_can_have_are_refused),
	CASE(requests_to_a_lid_without_a_host_end_with_retry_exc),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
