/* Frames, receive work queues, flows and their counters: RAW_PACKET QPs, ibv_create_wq, ibv_create_rwq_ind_table,
 * ibv_create_flow, ibv_create_counters. Needs CAP_NET_RAW; sends only frames of an experimental type to its own address. */
#include "conform.h"
#include "../c/flow_rule.h"
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define ETHER_TYPE 0x88b5

static struct buffer buffer;
static unsigned char mac[6];
static struct ibv_cq *cq;

static struct ibv_qp *make_raw(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RAW_PACKET, cq);

	init.cap.max_inline_data = 0;
	return ibv_create_qp(pd, &init);
}

static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT_NUM};
	int result = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT);

	return result || (result = move_to(qp, IBV_QPS_RTR)) ? result : move_to(qp, IBV_QPS_RTS);
}

static bool find_mac(void)
{
	struct ibv_gid_entry entry;
	struct ifreq request = {0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool found = !ibv_query_gid_ex(ctx, PORT_NUM, gid_index, &entry, 0) && if_indextoname(entry.ndev_ifindex, request.ifr_name) &&
		     !ioctl(fd, SIOCGIFHWADDR, &request);

	memcpy(mac, request.ifr_hwaddr.sa_data, 6);
	close(fd);
	return found;
}

static void write_frame(unsigned int seed)
{
	memcpy(buffer.mem, mac, 6);
	memcpy(buffer.mem + 6, mac, 6);
	buffer.mem[12] = ETHER_TYPE >> 8;
	buffer.mem[13] = ETHER_TYPE & 0xff;
	fill(buffer.mem + 14, 86, seed);
}

static struct rule frames_to_us(void)
{
	struct rule rule = empty_rule();

	add_destination(&rule, mac);
	rule.eth.val.ether_type = htons(ETHER_TYPE);
	rule.eth.mask.ether_type = 0xffff;
	return rule;
}

static void flows(struct ibv_qp *qp)
{
	struct rule rule = frames_to_us();
	struct ibv_counters_init_attr counters_attr = {0};
	struct ibv_counters *counters = ibv_create_counters(ctx, &counters_attr);
	struct ibv_counter_attach_attr point = {.counter_desc = IBV_COUNTER_PACKETS, .index = 0};
	struct ibv_flow *flow;
	struct ibv_wc wc = {0};
	uint64_t values[2] = {99, 99};
	int sent = -1, received = -1;

	check(silent(cq), "ibv_create_flow(3): a QP without a flow receives nothing");
	if (counters) {
		is(ibv_attach_counters_point_flow(counters, &point, NULL), 0, "ibv_attach_counters_point_flow(3): 0 for packets");
		point = (struct ibv_counter_attach_attr){.counter_desc = IBV_COUNTER_BYTES, .index = 1};
		is(ibv_attach_counters_point_flow(counters, &point, NULL), 0, "ibv_attach_counters_point_flow(3): 0 for bytes");
		struct ibv_flow_spec_counter_action count = {IBV_FLOW_SPEC_ACTION_COUNT, sizeof count, counters};

		add_spec(&rule, &count, sizeof count);
	} else {
		skip("the device has no counters", "ibv_create_counters(3): a pointer to the counters");
	}
	flow = ibv_create_flow(qp, &rule.attr);
	if (!check(flow != NULL, "ibv_create_flow(3): a pointer to the flow"))
		return;
	write_frame(5);
	MUST(post_recv(qp, &buffer, 4096, 2000, 3));
	struct ibv_sge sge = piece(&buffer, 0, 100);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	is(post(qp, &wr), 0, "ibv_post_send(3): RAW_PACKET takes SEND");
	for (int i = 0; i < 2; i++) {
		struct ibv_wc one = {.opcode = IBV_WC_SEND};
		int status = poll_for(cq, &one, PATIENCE_MS);

		*(one.opcode == IBV_WC_RECV ? &received : &sent) = status;
		if (one.opcode == IBV_WC_RECV)
			wc = one;
	}
	is_status(sent, IBV_WC_SUCCESS, "ibv_post_send(3): a frame completes");
	is_status(received, IBV_WC_SUCCESS, "ibv_create_flow(3): a frame that matches is received");
	check(wc.byte_len == 100 && !memcmp(buffer.mem + 4096, buffer.mem, 100), "ibv_create_flow(3): with its headers, and no GRH");
	if (counters) {
		is(ibv_read_counters(counters, values, 2, 0), 0, "ibv_read_counters(3): 0 on success");
		is((long)values[0], 1, "ibv_read_counters(3): one packet");
		check(values[1] >= 100, "ibv_read_counters(3): its bytes");
		check(ibv_destroy_counters(counters) != 0, "ibv_destroy_counters(3): counters of a flow aren't destroyed");
		is(ibv_attach_counters_point_flow(counters, &point, NULL), EBUSY, "ibv_attach_counters_point_flow(3): bound to a flow: EBUSY");
	}
	is(ibv_destroy_flow(flow), 0, "ibv_destroy_flow(3): 0 on success");
	MUST(post_recv(qp, &buffer, 4096, 2000, 3));
	MUST(post(qp, &wr));
	next(cq);
	check(silent(cq), "ibv_destroy_flow(3): afterwards nothing is received");
	if (counters)
		is(ibv_destroy_counters(counters), 0, "ibv_destroy_counters(3): 0 on success");
	rule = frames_to_us();
	rule.attr.type = 77;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): a type that doesn't exist: EINVAL");
	rule = frames_to_us();
	rule.attr.num_of_specs = 3;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): more specifications than the size holds: EINVAL");
	rule = frames_to_us();
	rule.eth.type = 0x77;
	check(ibv_create_flow(qp, &rule.attr) == NULL, "ibv_create_flow(3): a specification that doesn't exist fails");
	wr = request(IBV_WR_RDMA_WRITE, &sge);
	check(fails(qp, cq, &wr), "ibv_post_send(3): RAW_PACKET lacks RDMA_WRITE: it fails");
}

static void segments(void)
{
	unsigned char header[54] = {[12] = 8, [14] = 0x45, [18] = 0, 5, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2,
				    0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18, 1, 0};
	struct ibv_device_attr_ex ex;
	struct ibv_qp_init_attr plain = qp_attr(IBV_QPT_RAW_PACKET, cq);
	struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .cap = plain.cap, .qp_type = IBV_QPT_RAW_PACKET,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER, .pd = pd,
					   .max_tso_header = sizeof header};
	struct ibv_sge sge = piece(&buffer, 0, 100);
	struct ibv_send_wr wr = request(IBV_WR_TSO, &sge);
	struct rule rule = frames_to_us();
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 1000000};
	struct ibv_flow *flow;
	struct ibv_qp *qp;
	int sent = 0, received = 0;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	if (!(ex.tso_caps.supported_qpts >> IBV_QPT_RAW_PACKET & 1) || !ex.tso_caps.max_tso) {
		skip("the device doesn't segment", "ibv_create_qp_ex(3): a RAW_PACKET QP with max_tso_header");
		return;
	}
	init.cap.max_inline_data = 0;
	qp = ibv_create_qp_ex(ctx, &init);
	if (!check(qp != NULL, "ibv_create_qp_ex(3): a RAW_PACKET QP with max_tso_header"))
		return;
	MUST(to_rts(qp));
	rule.eth.val.ether_type = htons(0x0800);
	flow = MAKE(ibv_create_flow(qp, &rule.attr));
	for (int i = 0; i < 2; i++)
		MUST(post_recv(qp, &buffer, 4096 + i * 1024, 1024, (uint64_t)i));
	memcpy(header, mac, 6);
	memcpy(header + 6, mac, 6);
	fill(buffer.mem, 100, 4);
	wr.tso.hdr = header;
	wr.tso.hdr_sz = sizeof header;
	wr.tso.mss = 60;
	is(post(qp, &wr), 0, "ibv_post_send(3): RAW_PACKET takes TSO");
	for (int i = 0; i < 3; i++) {
		struct ibv_wc one = {0};

		if (poll_for(cq, &one, PATIENCE_MS))
			continue;
		sent += one.opcode == IBV_WC_TSO;
		received += one.opcode == IBV_WC_RECV && one.byte_len == (one.wr_id ? 94 : 114);
	}
	is(sent, 1, "ibv_post_send(3): TSO completes as IBV_WC_TSO");
	is(received, 2, "ibv_post_send(3): TSO makes segments of at most mss bytes");
	check(!memcmp(buffer.mem + 4096 + 54, buffer.mem, 60) && !memcmp(buffer.mem + 5120 + 54, buffer.mem + 60, 40),
	      "ibv_post_send(3): which are the message together");
	is(buffer.mem[5120 + 41], 69, "ibv_post_send(3): whose sequence numbers follow one another");
	wr.tso.hdr_sz = sizeof header + 1;
	check(fails(qp, cq, &wr), "ibv_post_send(3): a header above max_tso_header fails");
	wr.tso.hdr_sz = sizeof header;
	wr.tso.mss = 0;
	check(fails(qp, cq, &wr), "ibv_post_send(3): an mss of 0 fails");
	if (ex.packet_pacing_caps.supported_qpts >> IBV_QPT_RAW_PACKET & 1)
		is(ibv_modify_qp_rate_limit(qp, &limit), 0, "ibv_modify_qp_rate_limit(3): 0 for RAW_PACKET where the device supports it");
	MUST(ibv_destroy_flow(flow));
	MUST(ibv_destroy_qp(qp));
}

/* A WQ whose request a frame doesn't fit into. */
static void work_queue_fails(void)
{
	struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq};
	struct ibv_wq *wq = ibv_create_wq(ctx, &init);
	struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	struct ibv_rwq_ind_table_init_attr table_attr = {.ind_tbl = &wq};
	struct ibv_rwq_ind_table *table;
	unsigned char key[40] = {1};
	struct ibv_qp_init_attr_ex spread = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = pd,
		.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4},
	};
	struct ibv_sge sge = piece(&buffer, 4096, 20);
	struct ibv_recv_wr recv = {.wr_id = 8, .sg_list = &sge, .num_sge = 1}, *bad;
	struct rule rule = frames_to_us();
	struct ibv_qp *receiver, *sender;
	struct ibv_flow *flow;
	struct ibv_async_event event;
	bool told = false;
	uint64_t deadline = now_ms() + PATIENCE_MS;

	if (!wq)
		return;
	spread.rwq_ind_tbl = table = MAKE(ibv_create_rwq_ind_table(ctx, &table_attr));
	receiver = MAKE(ibv_create_qp_ex(ctx, &spread));
	sender = MAKE(make_raw());
	MUST(ibv_modify_wq(wq, &attr));
	MUST(to_rts(sender));
	flow = MAKE(ibv_create_flow(receiver, &rule.attr));
	MUST(ibv_post_wq_recv(wq, &recv, &bad));
	write_frame(6);
	MUST(post_send(sender, &buffer, 0, 100));
	no_block(ctx->async_fd);
	while (!told && now_ms() < deadline && readable(ctx->async_fd, 500) && !ibv_get_async_event(ctx, &event)) {
		told = event.event_type == IBV_EVENT_WQ_FATAL && event.element.wq == wq;
		ibv_ack_async_event(&event);
	}
	check(told, "ibv_get_async_event(3): WQ_FATAL for a WQ whose request is too short");
	MUST(ibv_destroy_flow(flow));
	MUST(ibv_destroy_qp(sender));
	MUST(ibv_destroy_qp(receiver));
	MUST(ibv_destroy_rwq_ind_table(table));
	MUST(ibv_destroy_wq(wq));
}

static void actions(void)
{
	struct ibv_flow_action_esp_attr attr = {0};
	struct ibv_flow_action *action = ibv_create_flow_action_esp(ctx, &attr);

	check(action == NULL, "ibv_create_flow_action_esp(3): attributes without a key material fail");
	if (action)
		ibv_destroy_flow_action(action);
}

static void work_queues(void)
{
	struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = cq};
	struct ibv_wq *wq[2], *none;
	struct ibv_wq_attr attr = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	struct ibv_rwq_ind_table_init_attr table_attr = {.log_ind_tbl_size = 1, .ind_tbl = wq};
	struct ibv_rwq_ind_table *table;
	struct ibv_sge sge = piece(&buffer, 4096, 64);
	struct ibv_recv_wr recv = {.wr_id = 8, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
	struct ibv_wc wc = {0};

	wq[0] = ibv_create_wq(ctx, &init);
	if (!wq[0]) {
		skip("the device has no WQs", "ibv_create_wq(3): a pointer to the WQ");
		return;
	}
	check(wq[0]->pd == pd && wq[0]->cq == cq && wq[0]->state == IBV_WQS_RESET, "ibv_create_wq(3): a pointer to the WQ");
	check(init.max_wr >= 8 && init.max_sge >= 1, "ibv_create_wq(3): max_wr and max_sge are updated");
	init.wq_type = 77;
	none = ibv_create_wq(ctx, &init);
	check(none == NULL, "ibv_create_wq(3): a type that doesn't exist fails");
	init.wq_type = IBV_WQT_RQ;
	wq[1] = MAKE(ibv_create_wq(ctx, &init));
	check(ibv_post_wq_recv(wq[0], &recv, &bad) != 0 && bad == &recv, "ibv_post_wq_recv(3): in RESET requests are refused");
	is(ibv_modify_wq(wq[0], &attr), 0, "ibv_modify_wq(3): RESET to RDY");
	MUST(ibv_modify_wq(wq[1], &attr));
	is(wq[0]->state, IBV_WQS_RDY, "ibv_modify_wq(3): the WQ contains its state");
	attr.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
	attr.curr_wq_state = IBV_WQS_RESET;
	check(ibv_modify_wq(wq[0], &attr) > 0, "ibv_modify_wq(3): a current state that isn't the current one is refused");
	is(ibv_post_wq_recv(wq[0], &recv, &bad), 0, "ibv_post_wq_recv(3): in RDY requests are taken");
	table = ibv_create_rwq_ind_table(ctx, &table_attr);
	check(table != NULL, "ibv_create_rwq_ind_table(3): a pointer to the table");
	if (table) {
		is(ibv_destroy_wq(wq[0]), EBUSY, "ibv_destroy_wq(3): a WQ in a table isn't destroyed: EBUSY");

		unsigned char key[40] = {1};
		struct ibv_qp_init_attr_ex rss = {
			.qp_type = IBV_QPT_RAW_PACKET,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
			.pd = pd,
			.rwq_ind_tbl = table,
			.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4},
		};
		struct ibv_qp *qp = ibv_create_qp_ex(ctx, &rss);

		if (!qp && errno == EPERM)
			skip(strerror(errno), "ibv_create_qp_ex(3): a QP that spreads what it receives over the table");
		else
			check(qp != NULL, "ibv_create_qp_ex(3): a QP that spreads what it receives over the table");
		if (qp) {
			is(ibv_destroy_rwq_ind_table(table), EBUSY, "ibv_destroy_rwq_ind_table(3): a table with a QP isn't destroyed: EBUSY");
			MUST(ibv_destroy_qp(qp));
		}
		is(ibv_destroy_rwq_ind_table(table), 0, "ibv_destroy_rwq_ind_table(3): 0 on success");
	}
	attr = (struct ibv_wq_attr){.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR};
	is(ibv_modify_wq(wq[0], &attr), 0, "ibv_modify_wq(3): RDY to ERR");
	is_status(poll_for(cq, &wc, PATIENCE_MS), IBV_WC_WR_FLUSH_ERR, "ibv_modify_wq(3): in ERR requests are flushed");
	is((long)wc.wr_id, 8, "ibv_modify_wq(3): with their wr_id");
	is(ibv_destroy_wq(wq[0]), 0, "ibv_destroy_wq(3): 0 on success");
	MUST(ibv_destroy_wq(wq[1]));
}

int main(int argc, char **argv)
{
	struct ibv_qp *qp;

	begin(argc, argv);
	buffer = make_buffer(8192, ALL);
	cq = make_cq(32);
	work_queues();
	actions();
	qp = make_raw();
	if (!qp || !find_mac()) {
		skip(strerror(errno), "ibv_create_qp(3): a RAW_PACKET QP");
		return end();
	}
	check(qp->qp_type == IBV_QPT_RAW_PACKET, "ibv_create_qp(3): a RAW_PACKET QP");
	is(to_rts(qp), 0, "ibv_modify_qp(3): RAW_PACKET: RESET, INIT with the port, RTR, RTS");
	flows(qp);
	segments();
	work_queue_fails();
	is(ibv_destroy_qp(qp), 0, "ibv_destroy_qp(3): a RAW_PACKET QP");
	MUST(ibv_destroy_cq(cq));
	free_buffer(&buffer);
	return end();
}
