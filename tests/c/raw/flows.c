/* flows: raw packet queue pairs, whole Ethernet frames, and the flows that choose who receives them. */
#include "raw.h"

static void frames_go_where_flows_say(void)
{
	struct raw r = open_raw();
	struct ibv_qp *a = ready(MAKE(create_raw(&r, 0))), *b = ready(MAKE(create_raw(&r, 0))), *c = ready(MAKE(create_raw(&r, 0)));
	struct rule first = empty_rule(), second = empty_rule();
	struct ibv_wc wc;

	make_frame(r.memory, target, 1, 7000, 5);
	receive_into(&r, b, 1);
	receive_into(&r, c, 2);
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
	EXPECT_NOTHING(CQ(r));

	/* The rule of the lower number wins, whichever was made first. */
	add_destination(&first, target);
	first.attr.priority = 9;
	struct ibv_flow *to_b = MAKE(ibv_create_flow(b, &first.attr));
	add_udp(&second, 7000);
	struct ibv_flow *to_c = MAKE(ibv_create_flow(c, &second.attr));
	MUST(send_frame(&r, a, 0, LENGTH, IBV_SEND_INLINE));
	for (int i = 0; i < 2; i++) {
		MUST_COMPLETE(CQ(r), &wc);
		EXPECT(wc.wr_id == 1000 || (wc.wr_id == 2 && wc.qp_num == c->qp_num && wc.byte_len == LENGTH && wc.opcode == IBV_WC_RECV));
	}
	EXPECT(!memcmp(r.memory + 2 * 2048, r.memory, LENGTH));
	EXPECT(ibv_destroy_qp(c) == EBUSY);

	/* With its end, the other gets the frame. */
	MUST(ibv_destroy_flow(to_c));
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	for (int i = 0; i < 2; i++) {
		MUST_COMPLETE(CQ(r), &wc);
		EXPECT(wc.wr_id == 1000 || (wc.wr_id == 1 && wc.qp_num == b->qp_num));
	}
	check(r.memory + 2048 + 42, LENGTH - 42, 5, "a frame");
	EXPECT_NOTHING(CQ(r));
	MUST(ibv_destroy_flow(to_b));
	MUST(ibv_destroy_qp(a) | ibv_destroy_qp(b) | ibv_destroy_qp(c));
}

static void tags_counters_and_drops(void)
{
	struct raw r = open_raw();
	struct ibv_qp *a = ready(MAKE(create_raw(&r, 0))), *b = ready(MAKE(create_raw(&r, IBV_QP_CREATE_CVLAN_STRIPPING)));
	struct ibv_counters_init_attr none = {};
	struct ibv_counters *counters = MAKE(ibv_create_counters(r.device.context, &none));
	struct ibv_counter_attach_attr attach = {.counter_desc = IBV_COUNTER_BYTES, .index = 1};
	struct ibv_flow_spec_action_tag tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof tag, 0xabcdef};
	struct ibv_flow_spec_action_drop drop = {IBV_FLOW_SPEC_ACTION_DROP, sizeof drop};
	struct ibv_flow_spec_counter_action count = {IBV_FLOW_SPEC_ACTION_COUNT, sizeof count, counters};
	struct rule tagged = empty_rule(), dropped = empty_rule();
	struct ibv_poll_cq_attr attr = {};
	uint64_t values[3] = {9, 9, 9};

	MUST(ibv_attach_counters_point_flow(counters, &attach, NULL));
	attach = (struct ibv_counter_attach_attr){.counter_desc = IBV_COUNTER_PACKETS, .index = 0};
	MUST(ibv_attach_counters_point_flow(counters, &attach, NULL));
	add_destination(&tagged, target);
	tagged.attr.priority = 1;
	add_spec(&tagged, &tag, sizeof tag);
	add_spec(&tagged, &count, sizeof count);
	struct ibv_flow *flow = MAKE(ibv_create_flow(b, &tagged.attr));
	EXPECT(ibv_destroy_counters(counters) == EBUSY && ibv_attach_counters_point_flow(counters, &attach, NULL) == EBUSY);
	add_udp(&dropped, 666);
	add_spec(&dropped, &drop, sizeof drop);
	struct ibv_flow *nowhere = MAKE(ibv_create_flow(b, &dropped.attr));

	receive_into(&r, b, 1);
	receive_into(&r, b, 2);
	make_frame(r.memory, target, 1, 666, 0);
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
	EXPECT_NOTHING(CQ(r));

	/* A VLAN tag is taken out, checksums are filled in and found right. */
	make_frame(r.memory, target, 1, 80, 3);
	memmove(r.memory + 16, r.memory + 12, LENGTH - 12);
	memcpy(r.memory + 12, "\x81\x00\x20\x05", 4);
	MUST(send_frame(&r, a, 0, LENGTH + 4, IBV_SEND_IP_CSUM));
	for (int got = 0, polls = 0; got < 2; polls++) {
		EXPECT(polls < 100000000);
		if (ibv_start_poll(r.cq, &attr))
			continue;
		do {
			got++;
			EXPECT(r.cq->status == IBV_WC_SUCCESS);
			if (r.cq->wr_id == 1) {
				EXPECT(ibv_wc_read_byte_len(r.cq) == LENGTH && ibv_wc_read_cvlan(r.cq) == 0x2005);
				EXPECT(ibv_wc_read_flow_tag(r.cq) == 0xabcdef && ibv_wc_read_wc_flags(r.cq) == IBV_WC_IP_CSUM_OK);
			}
		} while (ibv_next_poll(r.cq) == 0);
		ibv_end_poll(r.cq);
	}
	check(r.memory + 2048 + 42, LENGTH - 42, 3, "a stripped frame");
	EXPECT(r.memory[2048 + 12] == 8 && r.memory[2048 + 24] != 0 && r.memory[2048 + 40] != 0);
	MUST(ibv_read_counters(counters, values, 3, 0));
	EXPECT(values[0] == 1 && values[1] == LENGTH + 4 && values[2] == 0);
	MUST(ibv_destroy_flow(flow) | ibv_destroy_flow(nowhere) | ibv_destroy_counters(counters));
	MUST(ibv_destroy_qp(a) | ibv_destroy_qp(b));
}

static void default_flows_get_what_no_other_takes(void)
{
	const uint8_t group[6] = {0x01, 0, 0x5e, 1, 2, 3};
	struct raw r = open_raw();
	struct ibv_qp *a = ready(MAKE(create_raw(&r, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB))), *b = ready(MAKE(create_raw(&r, 0)));
	struct rule all = empty_rule(), multicast = empty_rule(), sniffer = empty_rule();
	struct ibv_wc wc;
	int seen = 0;

	all.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	multicast.attr.type = IBV_FLOW_ATTR_MC_DEFAULT;
	sniffer.attr.type = IBV_FLOW_ATTR_SNIFFER;
	struct ibv_flow *x = MAKE(ibv_create_flow(b, &multicast.attr)), *y = MAKE(ibv_create_flow(a, &all.attr));
	struct ibv_flow *z = MAKE(ibv_create_flow(b, &sniffer.attr));
	for (int i = 1; i < 4; i++)
		receive_into(&r, b, i);
	receive_into(&r, a, 4);
	make_frame(r.memory, group, 1, 7, 1);
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	for (int i = 0; i < 3; i++) {
		MUST_COMPLETE(CQ(r), &wc);
		EXPECT(wc.wr_id == 1000 || wc.qp_num == b->qp_num);
	}
	/* Its own frame comes back to a queue pair whose flow matches, unless it is multicast and that was asked for. */
	make_frame(r.memory, target, 1, 7, 1);
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	for (int i = 0; i < 3; i++) {
		MUST_COMPLETE(CQ(r), &wc);
		seen |= wc.wr_id == 1000 ? 1 : wc.qp_num == a->qp_num ? 2 : 4;
	}
	EXPECT(seen == 7);
	MUST(ibv_destroy_flow(x) | ibv_destroy_flow(y) | ibv_destroy_flow(z));
	MUST(ibv_destroy_qp(a) | ibv_destroy_qp(b));
}

static void frames_are_spread_over_work_queues(void)
{
	struct raw r = open_raw();
	struct ibv_qp *a = ready(MAKE(create_raw(&r, 0)));
	struct ibv_cq *cq = MAKE(ibv_create_cq(r.device.context, 256, NULL, NULL, 0));
	struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = FRAMES, .max_sge = 1, .pd = r.device.pd, .cq = cq};
	struct ibv_wq *wqs[2] = {MAKE(ibv_create_wq(r.device.context, &init)), MAKE(ibv_create_wq(r.device.context, &init))};
	struct ibv_rwq_ind_table_init_attr table = {.log_ind_tbl_size = 1, .ind_tbl = wqs};
	struct ibv_rwq_ind_table *ind = MAKE(ibv_create_rwq_ind_table(r.device.context, &table));
	struct ibv_wq_attr to_ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	struct ibv_wq_attr to_error = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR};
	uint8_t key[40];
	struct ibv_qp_init_attr_ex rss = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = r.device.pd,
		.rwq_ind_tbl = ind,
		.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, IBV_RX_HASH_SRC_PORT_UDP},
	};
	struct rule all = empty_rule();
	uint32_t queue[FRAMES];
	struct ibv_wc wc;
	int counts[2] = {};

	fill(key, sizeof key, 77);
	struct ibv_qp *b = MAKE(ibv_create_qp_ex(r.device.context, &rss));
	EXPECT(ibv_destroy_wq(wqs[0]) == EBUSY && ibv_destroy_rwq_ind_table(ind) == EBUSY);
	add_destination(&all, target);
	struct ibv_flow *flow = MAKE(ibv_create_flow(b, &all.attr));
	for (int w = 0; w < 2; w++) {
		MUST(ibv_modify_wq(wqs[w], &to_ready));
		for (int i = 0; i < FRAMES; i++) {
			struct ibv_sge sge = {(uintptr_t)(r.memory + (w * (FRAMES - 1) + 1) * 2048), 2048, r.mr->lkey};
			struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

			MUST(ibv_post_wq_recv(wqs[w], &wr, &bad));
		}
	}
	for (int i = 0; i < FRAMES; i++) {
		make_frame(r.memory, target, i / 2, 7, 1);
		MUST(send_frame(&r, a, 0, LENGTH, 0));
		EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
		MUST_COMPLETE(cq, &wc);
		queue[i] = wc.qp_num;
		counts[wc.qp_num == wqs[1]->wq_num]++;
		EXPECT(wc.qp_num == wqs[0]->wq_num || wc.qp_num == wqs[1]->wq_num);
		EXPECT(i % 2 == 0 || queue[i] == queue[i - 1]);
	}
	EXPECT(counts[0] > 0 && counts[1] > 0);
	MUST(ibv_modify_wq(wqs[0], &to_error));
	for (int i = 0; i < FRAMES - counts[0]; i++) {
		EXPECT(wait_wc(cq, &wc, 10000));
		EXPECT(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == wqs[0]->wq_num);
	}
	EXPECT(ibv_modify_wq(wqs[0], &to_ready) == EINVAL);
	MUST(ibv_destroy_flow(flow) | ibv_destroy_qp(b) | ibv_destroy_rwq_ind_table(ind));
	MUST(ibv_destroy_wq(wqs[0]) | ibv_destroy_wq(wqs[1]) | ibv_destroy_qp(a) | ibv_destroy_cq(cq));
}

static void wrong_arguments_are_refused(void)
{
	struct raw r = open_raw();
	struct ibv_qp *a = ready(MAKE(create_raw(&r, 0)));
	struct ibv_qp *ud = make_qp(&r.device, IBV_QPT_UD, CQ(r), NULL, 4);
	struct rule twice = empty_rule(), wrong = empty_rule(), unknown = empty_rule(), plain = empty_rule(), deflt = empty_rule();
	struct ibv_flow_spec_action_drop nonsense = {0x77, sizeof nonsense}, shortened = {IBV_FLOW_SPEC_ETH, sizeof shortened};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	EXPECT_ERRNO(EINVAL, send_frame(&r, a, 0, 13, 0));
	EXPECT_ERRNO(EINVAL, send_frame(&r, a, 0, 1515, 0));
	MUST(send_frame(&r, a, 0, 1514, 0));
	EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
	add_destination(&twice, target);
	add_destination(&twice, target);
	EXPECT_NULL(EINVAL, ibv_create_flow(a, &twice.attr));
	add_spec(&wrong, &shortened, sizeof shortened);
	EXPECT_NULL(EINVAL, ibv_create_flow(a, &wrong.attr));
	add_spec(&unknown, &nonsense, sizeof nonsense);
	EXPECT_NULL(EINVAL, ibv_create_flow(a, &unknown.attr));
	add_destination(&deflt, target);
	deflt.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	EXPECT_NULL(EINVAL, ibv_create_flow(a, &deflt.attr));
	add_destination(&plain, target);
	EXPECT_NULL(EOPNOTSUPP, ibv_create_flow(ud, &plain.attr));
	plain.attr.port = 2;
	EXPECT_NULL(EINVAL, ibv_create_flow(a, &plain.attr));
	plain.attr.port = 1;
	plain.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	EXPECT_NULL(EOPNOTSUPP, ibv_create_flow(a, &plain.attr));

	/* A frame that the receive request has no room for ends in an error, and the queue pair with it. */
	plain.attr.flags = 0;
	struct ibv_flow *flow = MAKE(ibv_create_flow(a, &plain.attr));
	make_frame(r.memory, target, 1, 2, 3);
	MUST(post_recv(a, r.mr, 2048, 10, 5));
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	EXPECT_STATUS(CQ(r), 5, IBV_WC_LOC_LEN_ERR);
	EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
	EXPECT(qp_state(a) == IBV_QPS_ERR);
	MUST(ibv_modify_qp(a, &attr, IBV_QP_STATE));
	MUST(send_frame(&r, a, 0, LENGTH, 0));
	EXPECT_STATUS(CQ(r), 1000, IBV_WC_WR_FLUSH_ERR);
	MUST(ibv_destroy_flow(flow) | ibv_destroy_qp(a) | ibv_destroy_qp(ud));
}

/* Between processes: one waits for frames, the other sends them. */
static void receives(void)
{
	struct raw r = open_raw();
	struct ibv_qp *qp = ready(MAKE(create_raw(&r, 0)));
	struct rule to_me = empty_rule();
	struct ibv_wc wc;

	add_destination(&to_me, target);
	add_udp(&to_me, 7000);
	struct ibv_flow *flow = MAKE(ibv_create_flow(qp, &to_me.attr));
	for (int i = 0; i < FRAMES; i++)
		receive_into(&r, qp, i);
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < FRAMES; i++) {
		MUST_COMPLETE(CQ(r), &wc);
		EXPECT(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i && wc.byte_len == LENGTH);
		EXPECT(wc.wc_flags & IBV_WC_IP_CSUM_OK);
		check(r.memory + i * 2048 + 42, LENGTH - 42, i, "a frame from another process");
	}
	MUST(ibv_destroy_flow(flow) | ibv_destroy_qp(qp));
}

static void sends(void)
{
	struct raw r = open_raw();
	struct ibv_qp *qp = ready(MAKE(create_raw(&r, 0)));

	for (int i = 0; i < FRAMES; i++) {
		make_frame(r.memory + i * 2048, target, 1, 7000, i);
		MUST(send_frame(&r, qp, i, LENGTH, IBV_SEND_IP_CSUM));
	}
	for (int i = 0; i < FRAMES; i++)
		EXPECT_STATUS(CQ(r), 1000, IBV_WC_SUCCESS);
	MUST(ibv_destroy_qp(qp));
}

static void without_the_capability_it_is_eperm(void)
{
	struct raw r = open_raw();

	EXPECT_NULL(EPERM, create_raw(&r, 0));
}

static const struct test_case cases[] = {
	CASE(frames_go_where_flows_say),
	CASE(tags_counters_and_drops),
	CASE(default_flows_get_what_no_other_takes),
	CASE(frames_are_spread_over_work_queues),
	CASE(wrong_arguments_are_refused),
	CASE(without_the_capability_it_is_eperm),
	CASE(receives),
	CASE(sends),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
