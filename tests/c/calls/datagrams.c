/* datagrams: what UD has of its own: address handles, completions to answer, Q_Keys, multicast groups. */
#include "cases.h"

#define GRH_BYTES 40
#define MULTICAST_QPN 0xffffff
/* In the second half of MEMORY_SIZE. */
#define RECEIVED 32768

static struct ibv_ah *handle(const struct fixture *f, const union ibv_gid *gid, uint8_t traffic_class, uint8_t hop_limit)
{
	struct ibv_ah_attr attr;

	fill_ah(&attr, &f->device, gid);
	attr.grh.traffic_class = traffic_class;
	attr.grh.hop_limit = hop_limit;
	return MAKE(ibv_create_ah(f->device.pd, &attr));
}

static int post_datagram(struct ibv_qp *qp, const struct ibv_mr *mr, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, 64, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = qkey}},
			   *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static union ibv_gid ipv4_group(unsigned char last)
{
	return (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 1, [14] = 2, [15] = last}};
}

static void groups_that_cannot_be_attached_are_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_UD);
	struct fixture rc = unconnected(IBV_QPT_RC);
	union ibv_gid group = ipv4_group(1), ipv6 = {.raw = {0xff, 0x12, [15] = 9}}, none = {.raw = {0}};

	EXPECT(f.device.attr.max_mcast_grp > 0 && f.device.attr.max_mcast_qp_attach > 0);
	EXPECT(f.device.attr.max_total_mcast_qp_attach >= f.device.attr.max_mcast_grp);
	EXPECT_ERRNO(EINVAL, ibv_attach_mcast(rc.a, &group, 0));
	EXPECT_ERRNO(EINVAL, ibv_detach_mcast(rc.a, &group, 0));
	EXPECT_ERRNO(EINVAL, ibv_attach_mcast(f.a, &none, 0));
	EXPECT_ERRNO(EINVAL, ibv_attach_mcast(f.a, &f.device.gid, 0));
	EXPECT_ERRNO(EINVAL, ibv_detach_mcast(f.a, &group, 0));
	MUST(ibv_attach_mcast(f.a, &group, 0));
	MUST(ibv_attach_mcast(f.a, &group, 0));
	MUST(ibv_attach_mcast(f.a, &ipv6, 0));
	EXPECT_ERRNO(EINVAL, ibv_detach_mcast(f.b, &group, 0));
	EXPECT_ERRNO(EBUSY, ibv_destroy_qp(f.a));
	MUST(ibv_detach_mcast(f.a, &group, 0));
	EXPECT_ERRNO(EINVAL, ibv_detach_mcast(f.a, &group, 0));
	EXPECT_ERRNO(EBUSY, ibv_destroy_qp(f.a));
	MUST(ibv_detach_mcast(f.a, &ipv6, 0));
	MUST(ibv_destroy_qp(f.a));
}

static void sender_that_blocks_its_own_multicast_gets_none(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	union ibv_gid group = ipv4_group(5);
	struct ibv_qp_init_attr_ex init = {.send_cq = f.cq_a,
					   .recv_cq = f.cq_a,
					   .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
					   .qp_type = IBV_QPT_UD,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
					   .pd = f.device.pd,
					   .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB};
	struct ibv_ah *ah = handle(&f, &group, 0, 1);

	MUST(ibv_destroy_qp(f.a));
	f.a = MAKE(ibv_create_qp_ex(f.device.context, &init));
	MUST(to_init(f.a, 0));
	MUST(to_rtr(f.a, &f.device, &f.path, &(struct address){.gid = f.device.gid}));
	MUST(to_rts(f.a, &f.path, 1));
	MUST(ibv_attach_mcast(f.a, &group, 0));
	MUST(ibv_attach_mcast(f.b, &group, 0));
	MUST(post_recv(f.a, f.mr, RECEIVED, GRH_BYTES + 64, 2));
	MUST(post_recv(f.b, f.mr, RECEIVED + 1024, GRH_BYTES + 64, 3));
	MUST(post_recv(f.b, f.mr, RECEIVED + 1024, GRH_BYTES + 64, 3));
	MUST(post_datagram(f.a, f.mr, ah, MULTICAST_QPN, QKEY));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 3, IBV_WC_SUCCESS);
	EXPECT_NOTHING(f.cq_a);
	/* What others send comes. */
	MUST(post_datagram(f.b, f.mr, ah, MULTICAST_QPN, QKEY));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	MUST(ibv_detach_mcast(f.a, &group, 0));
	MUST(ibv_detach_mcast(f.b, &group, 0));
	MUST(ibv_destroy_ah(ah));
	init.qp_type = IBV_QPT_UC;
	EXPECT_NULL(EOPNOTSUPP, ibv_create_qp_ex(f.device.context, &init));
}

static void connection_to_a_group_is_refused(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct address group = {.qpn = f.b->qp_num, .gid = ipv4_group(2)};

	MUST(to_init(f.a, ALL_ACCESS));
	EXPECT_ERRNO(EINVAL, to_rtr(f.a, &f.device, &f.path, &group));
	EXPECT(qp_state(f.a) == IBV_QPS_INIT);
}

/* One datagram to `b`; its network header. */
static const unsigned char *header_of_datagram(const struct fixture *f, const union ibv_gid *gid, uint32_t qpn,
					       uint8_t traffic_class, uint8_t hop_limit, struct ibv_wc *wc)
{
	struct ibv_ah *ah = handle(f, gid, traffic_class, hop_limit);

	MUST(post_recv(f->b, f->mr, RECEIVED, GRH_BYTES + 64, 2));
	fill(f->memory, 64, traffic_class);
	MUST(post_datagram(f->a, f->mr, ah, qpn, QKEY));
	EXPECT_STATUS(f->cq_a, 1, IBV_WC_SUCCESS);
	MUST_COMPLETE(f->cq_b, wc);
	EXPECT(wc->wr_id == 2 && wc->byte_len == GRH_BYTES + 64 && wc->src_qp == f->a->qp_num);
	EXPECT(wc->wc_flags == IBV_WC_GRH && wc->pkey_index == 0);
	check(f->memory + RECEIVED + GRH_BYTES, 64, traffic_class, "datagram");
	MUST(ibv_destroy_ah(ah));
	return (const unsigned char *)f->memory + RECEIVED;
}

static void traffic_class_and_hop_limit_arrive(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	union ibv_gid group = ipv4_group(3);
	const unsigned char *header;
	struct ibv_wc wc;

	/* IPv4: type of service, time to live, source and destination. */
	header = header_of_datagram(&f, &f.device.gid, f.b->qp_num, 0x68, 9, &wc);
	EXPECT(header[20] == 0x45 && header[21] == 0x68 && header[28] == 9);
	EXPECT(!memcmp(header + 32, f.device.gid.raw + 12, 4) && !memcmp(header + 36, f.device.gid.raw + 12, 4));
	MUST(ibv_attach_mcast(f.b, &group, 0));
	header = header_of_datagram(&f, &group, MULTICAST_QPN, 0x88, 3, &wc);
	EXPECT(header[20] == 0x45 && header[21] == 0x88 && header[28] == 3);
	EXPECT(!memcmp(header + 32, f.device.gid.raw + 12, 4) && !memcmp(header + 36, group.raw + 12, 4));
	/* A router drops it unless the handle has a higher hop limit. */
	header = header_of_datagram(&f, &group, MULTICAST_QPN, 0, 0, &wc);
	EXPECT(header[28] == 1);
	MUST(ibv_detach_mcast(f.b, &group, 0));
}

/* Of IPv6 packets, whichever way they go. */
static void flow_label_arrives(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct device ipv6 = f.device;
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	uint32_t labels[] = {0, 0xabcde, 1, 0xfffff};
	struct ibv_wc wc;

	ipv6.gid_index = 0;
	MUST(ibv_query_gid(ipv6.context, PORT_NUM, 0, &ipv6.gid));
	for (int i = 0; i < 4; i++) {
		const struct ibv_grh *header = (const struct ibv_grh *)(f.memory + RECEIVED);

		fill_ah(&attr, &ipv6, &ipv6.gid);
		attr.grh.flow_label = labels[i];
		attr.grh.traffic_class = 0x68;
		ah = MAKE(ibv_create_ah(f.device.pd, &attr));
		MUST(post_recv(f.b, f.mr, RECEIVED, GRH_BYTES + 64, 2));
		MUST(post_datagram(f.a, f.mr, ah, f.b->qp_num, QKEY));
		EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
		MUST_COMPLETE(f.cq_b, &wc);
		EXPECT(ntohl(header->version_tclass_flow) == (6u << 28 | 0x68 << 20 | labels[i]));
		MUST(ibv_init_ah_from_wc(f.device.context, PORT_NUM, &wc, (struct ibv_grh *)header, &attr));
		EXPECT(attr.grh.flow_label == labels[i]);
		MUST(ibv_destroy_ah(ah));
	}
}

/* At 2.5 Gbit/s, with 312500 bytes at once: never faster, how slow the machine may be. */
static void a_static_rate_paces_what_goes_to_the_address(void)
{
	struct fixture f = unconnected(IBV_QPT_RC), ud = connected(IBV_QPT_UD);
	struct ibv_sge sge = {(uintptr_t)ud.memory, 1024, ud.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;
	uint64_t begin;

	f.device.static_rate = ud.device.static_rate = IBV_RATE_2_5_GBPS;
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, f.b);
	begin = now_ms();
	for (int i = 0; i < 150; i++) {
		MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, MEMORY_SIZE, (uintptr_t)f.memory, f.mr->rkey, 1));
		EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	}
	EXPECT(now_ms() - begin >= 29);
	wr.wr.ud.ah = handle(&ud, &ud.device.gid, 0, 64);
	wr.wr.ud.remote_qpn = ud.b->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	begin = now_ms();
	for (int i = 0; i < 3000; i++) {
		MUST(ibv_post_send(ud.a, &wr, &bad));
		EXPECT_STATUS(ud.cq_a, 1, IBV_WC_SUCCESS);
	}
	EXPECT(now_ms() - begin >= 8);
}

static void sender_is_answered_by_way_of_its_completion(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	union ibv_gid group = ipv4_group(4);
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	struct ibv_grh *grh;

	grh = (struct ibv_grh *)header_of_datagram(&f, &f.device.gid, f.b->qp_num, 0x20, 33, &wc);
	MUST(ibv_init_ah_from_wc(f.device.context, PORT_NUM, &wc, grh, &attr));
	EXPECT(attr.is_global && attr.port_num == PORT_NUM && attr.sl == wc.sl && attr.dlid == wc.slid);
	EXPECT(!memcmp(&attr.grh.dgid, &f.device.gid, sizeof attr.grh.dgid));
	EXPECT(attr.grh.traffic_class == 0x20 && attr.grh.hop_limit == 33 && attr.grh.flow_label == 0);
	ah = MAKE(ibv_create_ah_from_wc(f.device.pd, &wc, grh, PORT_NUM));
	MUST(post_recv(f.a, f.mr, RECEIVED + 1024, GRH_BYTES + 64, 3));
	MUST(post_datagram(f.b, f.mr, ah, wc.src_qp, QKEY));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 3, IBV_WC_SUCCESS);
	MUST(ibv_destroy_ah(ah));
	/* A port that isn't there. */
	errno = 0;
	EXPECT(ibv_init_ah_from_wc(f.device.context, 2, &wc, grh, &attr) == -1 && errno == EINVAL);
	EXPECT_NULL(EINVAL, ibv_create_ah_from_wc(f.device.pd, &wc, grh, 2));
	/* A zeroed header: neither IPv4's nor IPv6's. */
	memset(grh, 0, sizeof *grh);
	errno = 0;
	EXPECT(ibv_init_ah_from_wc(f.device.context, PORT_NUM, &wc, grh, &attr) == -1 && errno == EPROTONOSUPPORT);
	/* A group isn't an address to answer from. */
	MUST(ibv_attach_mcast(f.b, &group, 0));
	grh = (struct ibv_grh *)header_of_datagram(&f, &group, MULTICAST_QPN, 0, 1, &wc);
	errno = 0;
	EXPECT(ibv_init_ah_from_wc(f.device.context, PORT_NUM, &wc, grh, &attr) == -1 && errno == EINVAL);
	EXPECT_NULL(EINVAL, ibv_create_ah_from_wc(f.device.pd, &wc, grh, PORT_NUM));
	MUST(ibv_detach_mcast(f.b, &group, 0));
	/* Where there is no network header there is nothing global; on Ethernet no handle is made of that. */
	wc.wc_flags = 0;
	MUST(ibv_init_ah_from_wc(f.device.context, PORT_NUM, &wc, grh, &attr));
	EXPECT(!attr.is_global);
	EXPECT_NULL(EINVAL, ibv_create_ah_from_wc(f.device.pd, &wc, grh, PORT_NUM));
}

static void datagram_with_another_q_key_is_dropped(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct ibv_ah *ah = handle(&f, &f.device.gid, 0, 64);

	MUST(post_recv(f.b, f.mr, RECEIVED, GRH_BYTES + 64, 2));
	MUST(post_datagram(f.a, f.mr, ah, f.b->qp_num, QKEY + 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_NOTHING(f.cq_b);
	/* The top bit stands for the queue pair's own. */
	MUST(post_datagram(f.a, f.mr, ah, f.b->qp_num, 0x80000000));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	MUST(ibv_destroy_ah(ah));
}

/* Controlled Q_Keys are for those who may open raw sockets. */
static void controlled_q_key_needs_a_privilege(void)
{
	struct fixture f = unconnected(IBV_QPT_UD);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT_NUM, .qkey = 0x80000000};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	int raw = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
	struct ibv_qp_init_attr init;

	if (raw < 0) {
		EXPECT_ERRNO(EPERM, ibv_modify_qp(f.a, &attr, mask));
		EXPECT(qp_state(f.a) == IBV_QPS_RESET);
		return;
	}
	MUST(ibv_modify_qp(f.a, &attr, mask));
	MUST(ibv_query_qp(f.a, &attr, IBV_QP_QKEY, &init));
	EXPECT(attr.qkey == 0x80000000);
}

static void wrong_datagrams_are_refused(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct ibv_pd *other = MAKE(ibv_alloc_pd(f.device.context));
	struct ibv_ah_attr attr;
	struct ibv_ah *foreign;

	fill_ah(&attr, &f.device, &f.device.gid);
	foreign = MAKE(ibv_create_ah(other, &attr));
	EXPECT_ERRNO(EINVAL, post_datagram(f.a, f.mr, NULL, f.b->qp_num, QKEY));
	EXPECT_ERRNO(EINVAL, post_datagram(f.a, f.mr, foreign, f.b->qp_num, QKEY));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(other));
	MUST(ibv_destroy_ah(foreign));
	MUST(ibv_dealloc_pd(other));
	/* An address of the other family, and none at all. */
	attr.grh.dgid = (union ibv_gid){.raw = {0xfd, 0x77, [15] = 9}};
	EXPECT_NULL(EINVAL, ibv_create_ah(f.device.pd, &attr));
	attr.grh.dgid = (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff}};
	EXPECT_NULL(EINVAL, ibv_create_ah(f.device.pd, &attr));
	EXPECT_NULL(EINVAL, ibv_create_ah(f.device.pd, NULL));
}

static int send_ud(const struct fixture *f, uint32_t qkey, uint64_t id)
{
	struct ibv_ah_attr attr;
	struct ibv_sge sge = {(uintptr_t)f->memory, 100, f->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	fill_ah(&attr, &f->device, &f->device.gid);
	wr.wr.ud.ah = MAKE(ibv_create_ah(f->device.pd, &attr));
	wr.wr.ud.remote_qpn = f->b->qp_num;
	wr.wr.ud.remote_qkey = qkey;
	return ibv_post_send(f->a, &wr, &bad);
}

static void ud_datagram_arrives_behind_forty_bytes_and_names_its_sender(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct ibv_wc wc;

	fill(f.memory, 100, 5);
	MUST(post_recv(f.b, f.mr, 4096, 40 + 100, 1));
	MUST(send_ud(&f, QKEY, 2));
	MUST_COMPLETE(f.cq_b, &wc);
	EXPECT(wc.byte_len == 140 && wc.wc_flags & IBV_WC_GRH && wc.src_qp == f.a->qp_num);
	check(f.memory + 4096 + 40, 100, 5, "datagram");
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
}

static void ud_datagram_with_the_wrong_qkey_is_dropped(void)
{
	struct fixture f = connected(IBV_QPT_UD);
	struct ibv_port_attr port;

	MUST(post_recv(f.b, f.mr, 4096, 140, 1));
	MUST(send_ud(&f, QKEY + 1, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_SUCCESS);
	EXPECT_NOTHING(f.cq_b);
	MUST(ibv_query_port(f.device.context, PORT_NUM, &port));
	EXPECT(port.qkey_viol_cntr == f.device.port.qkey_viol_cntr + 1);
	MUST(send_ud(&f, QKEY, 3));
	EXPECT_STATUS(f.cq_b, 1, IBV_WC_SUCCESS);
}

static const struct test_case cases[] = {
	CASE(groups_that_cannot_be_attached_are_refused),
	CASE(sender_that_blocks_its_own_multicast_gets_none),
	CASE(connection_to_a_group_is_refused),
	CASE(traffic_class_and_hop_limit_arrive),
	CASE(flow_label_arrives),
	CASE(a_static_rate_paces_what_goes_to_the_address),
	CASE(sender_is_answered_by_way_of_its_completion),
	CASE(datagram_with_another_q_key_is_dropped),
	CASE(controlled_q_key_needs_a_privilege),
	CASE(wrong_datagrams_are_refused),
	CASE(ud_datagram_arrives_behind_forty_bytes_and_names_its_sender),
	CASE(ud_datagram_with_the_wrong_qkey_is_dropped),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
