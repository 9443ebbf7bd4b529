/* Address handles and datagrams: ibv_create_ah, ibv_init_ah_from_wc, ibv_create_ah_from_wc, and UD by ibv_post_send. */
#include "conform.h"

enum { GRH = 40 };

static struct buffer buffer;

static void creating(void)
{
	struct ibv_ah_attr attr = ah_attr();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	check(ah != NULL, "ibv_create_ah(3): a pointer to the AH");
	if (ah) {
		check(ah->pd == pd && ah->context == ctx, "ibv_create_ah(3): the AH is of its PD");
		is(ibv_destroy_ah(ah), 0, "ibv_destroy_ah(3): 0 on success");
	}
	attr.is_global = 0;
	check(ibv_create_ah(pd, &attr) == NULL, "ibv_create_ah(3): without a GRH it fails on a port that requires one");
	attr = ah_attr();
	attr.port_num = (uint8_t)(caps.phys_port_cnt + 1);
	is_null(ibv_create_ah(pd, &attr), EINVAL, "ibv_create_ah(3): a port that doesn't exist: EINVAL");
	attr = ah_attr();
	attr.grh.sgid_index = 255;
	check(ibv_create_ah(pd, &attr) == NULL, "ibv_create_ah(3): a GID index that isn't in use fails");
}

static struct ibv_send_wr datagram(struct ibv_sge *sge, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_send_wr wr = request(IBV_WR_SEND, sge);

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	return wr;
}

static void datagrams(void)
{
	struct pair pair = make_pair(IBV_QPT_UD);
	struct ibv_ah_attr attr = ah_attr(), back;
	struct ibv_ah *ah = MAKE(ibv_create_ah(pd, &attr)), *answer;
	struct ibv_sge sge = piece(&buffer, 0, 200);
	struct ibv_send_wr wr;
	struct ibv_wc wc = {0};
	struct ibv_grh *grh = (struct ibv_grh *)(buffer.mem + 4096);
	uint32_t mtu = 128u << port.active_mtu;

	attr.grh.traffic_class = 0;
	fill(buffer.mem, 4096, 3);
	MUST(post_recv(pair.b, &buffer, 4096, 1000, 7));
	wr = datagram(&sge, ah, pair.b->qp_num, QKEY);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.imm_data = htonl(99);
	is(post(pair.a, &wr), 0, "ibv_post_send(3): UD takes SEND_WITH_IMM");
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram completes at the sender");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram arrives");
	is(wc.byte_len, GRH + 200, "ibv_post_recv(3): byte_len counts the GRH's 40 bytes");
	check(filled(buffer.mem + 4096 + GRH, 200, 3), "ibv_post_recv(3): the data starts 40 bytes into the buffer");
	is(wc.src_qp, pair.a->qp_num, "ibv_poll_cq(3): src_qp is the sender's QP");
	is(wc.qp_num, pair.b->qp_num, "ibv_poll_cq(3): qp_num is the receiver's own");
	check(wc.wc_flags & IBV_WC_GRH, "ibv_poll_cq(3): IBV_WC_GRH is set");
	check(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(99), "ibv_poll_cq(3): a datagram's immediate data");
	is((long)wc.wr_id, 7, "ibv_poll_cq(3): a datagram's receive request");

	memset(&back, 0xff, sizeof back);
	is(ibv_init_ah_from_wc(ctx, PORT_NUM, &wc, grh, &back), 0, "ibv_init_ah_from_wc(3): 0 on success");
	check(back.is_global && !memcmp(&back.grh.dgid, &gid, sizeof gid), "ibv_init_ah_from_wc(3): leads to the sender's GID");
	is(back.grh.sgid_index, gid_index, "ibv_init_ah_from_wc(3): from the GID that the datagram was sent to");
	is(back.port_num, PORT_NUM, "ibv_init_ah_from_wc(3): by the port that was named");
	struct ibv_ah *made = ibv_create_ah(pd, &back);

	check(made != NULL, "ibv_init_ah_from_wc(3): what it fills makes an AH");
	if (made)
		MUST(ibv_destroy_ah(made));
	answer = ibv_create_ah_from_wc(pd, &wc, grh, PORT_NUM);
	check(answer != NULL, "ibv_create_ah_from_wc(3): a pointer to the AH");
	if (answer) {
		struct ibv_send_wr reply = datagram(&sge, answer, wc.src_qp, QKEY);

		MUST(post_recv(pair.a, &buffer, 4096, 1000, 8));
		MUST(post(pair.b, &reply));
		is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_create_ah_from_wc(3): a reply over it completes");
		is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_create_ah_from_wc(3): and comes back to the sender");
		MUST(ibv_destroy_ah(answer));
	}

	MUST(post_recv(pair.b, &buffer, 4096, GRH + mtu, 9));
	sge = piece(&buffer, 0, mtu);
	wr = datagram(&sge, ah, pair.b->qp_num, QKEY);
	is(post(pair.a, &wr), 0, "ibv_post_send(3): a datagram as long as the MTU is taken");
	next(pair.cq_a);
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram as long as the MTU arrives");
	is(wc.byte_len, (long)(GRH + mtu), "ibv_poll_cq(3): with all its bytes");
	sge.length = mtu + 1;
	check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): a datagram longer than the MTU fails");
	free_pair(&pair);
	pair = make_pair(IBV_QPT_UD);

	sge = piece(&buffer, 0, 16);
	MUST(post_recv(pair.b, &buffer, 4096, 1000, 10));
	wr = datagram(&sge, ah, pair.b->qp_num, QKEY + 1);
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram with a wrong Q_Key completes at the sender");
	check(silent(pair.cq_b), "ibv_post_send(3): a datagram with a wrong Q_Key is dropped");
	wr.wr.ud.remote_qkey = 0x80000000;
	MUST(post(pair.a, &wr));
	next(pair.cq_a);
	if (is_status(poll_for(pair.cq_b, &wc, 500), IBV_WC_SUCCESS,
		      "ibv_post_send(3): with a remote_qkey whose highest bit is set the QP's own Q_Key is sent") == false) {
		wr.wr.ud.remote_qkey = QKEY;
		MUST(post(pair.a, &wr));
		next(pair.cq_a);
		next(pair.cq_b);
	}
	wr = datagram(&sge, ah, 0xfffff0, QKEY);
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram to a QP that doesn't exist completes");
	wr = datagram(&sge, ah, pair.b->qp_num, QKEY);
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a datagram without a receive completes");
	check(silent(pair.cq_b), "ibv_post_send(3): and is dropped");
	free_pair(&pair);
	for (int i = 0; i < 4; i++) {
		static const struct {
			enum ibv_wr_opcode opcode;
			const char *name;
		} lacking[] = {{IBV_WR_RDMA_WRITE, "RDMA_WRITE"},
			       {IBV_WR_RDMA_READ, "RDMA_READ"},
			       {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD"},
			       {IBV_WR_SEND_WITH_INV, "SEND_WITH_INV"}};

		pair = make_pair(IBV_QPT_UD);
		wr = datagram(&sge, ah, pair.b->qp_num, QKEY);
		wr.opcode = lacking[i].opcode;
		check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): UD lacks %s: it fails", lacking[i].name);
		free_pair(&pair);
	}
	is(ibv_destroy_ah(ah), 0, "ibv_destroy_ah(3): an AH is destroyed after its requests have completed");
}

/* Both sends and receives of a datagram QP on an SRQ. */
static void shared_receives(void)
{
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(pd, &srq_attr));
	struct ibv_cq *cq = make_cq(8);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_UD, cq);
	struct path path = PATH;
	struct ibv_ah_attr attr = ah_attr();
	struct ibv_ah *ah = MAKE(ibv_create_ah(pd, &attr));
	struct ibv_sge sge = piece(&buffer, 0, 16), into = piece(&buffer, 4096, 1000);
	struct ibv_recv_wr recv = {.wr_id = 55, .sg_list = &into, .num_sge = 1}, *bad;
	struct ibv_send_wr wr;
	struct ibv_wc wc = {0};

	init.srq = srq;
	struct ibv_qp *qp = MAKE(ibv_create_qp(pd, &init));

	bring(qp, IBV_QPS_RTS, &path, 0);
	MUST(ibv_post_srq_recv(srq, &recv, &bad));
	wr = datagram(&sge, ah, qp->qp_num, QKEY);
	wr.send_flags = 0;
	MUST(post(qp, &wr));
	is_status(poll_for(cq, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_srq_recv(3): a datagram takes a request of the SRQ");
	check(wc.wr_id == 55 && wc.byte_len == GRH + 16, "ibv_post_srq_recv(3): the data starts behind 40 bytes there too");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_ah(ah));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(16384, ALL);
	creating();
	datagrams();
	if (caps.max_srq)
		shared_receives();
	free_buffer(&buffer);
	return end();
}
