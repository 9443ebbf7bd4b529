/* Corners of flows, counters and receive work queues: what ibv_create_flow, ibv_attach_counters_point_flow, ibv_read_counters,
 * ibv_create_wq, ibv_modify_wq and ibv_create_rwq_ind_table take and refuse. */
#include "conform.h"
#include "../c/flow_rule.h"

static struct ibv_cq *cq;

static struct rule to_nobody(void)
{
	struct rule rule = empty_rule();

	add_destination(&rule, (const uint8_t *)"\2\1\2\3\4\5");
	return rule;
}

static bool made(struct ibv_qp *qp, struct rule *rule)
{
	struct ibv_flow *flow = ibv_create_flow(qp, &rule->attr);

	if (flow)
		MUST(ibv_destroy_flow(flow));
	return flow;
}

static void rules(struct ibv_qp *qp)
{
	static const struct {
		enum ibv_flow_attr_type type;
		const char *name;
	} types[] = {{IBV_FLOW_ATTR_ALL_DEFAULT, "ALL_DEFAULT"}, {IBV_FLOW_ATTR_MC_DEFAULT, "MC_DEFAULT"}, {IBV_FLOW_ATTR_SNIFFER, "SNIFFER"}};
	struct ibv_qp *rc = make_qp(IBV_QPT_RC, cq);
	struct rule rule = to_nobody();

	for (int i = 0; i < 3; i++) {
		rule = to_nobody();
		rule.attr.type = types[i].type;
		rule.attr.num_of_specs = 0;
		rule.attr.size = sizeof rule.attr;
		check(made(qp, &rule), "ibv_create_flow(3): %s needs no specification", types[i].name);
		rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
		is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): DONT_TRAP with %s: EINVAL", types[i].name);
	}
	rule = to_nobody();
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	check(made(qp, &rule), "ibv_create_flow(3): DONT_TRAP with NORMAL");
	rule.attr.flags = 1u << 20;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): a flag that doesn't exist: EINVAL");
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	if (made(qp, &rule))
		skip("the device has them", "ibv_create_flow(3): EGRESS where the device steers nothing it sends: EOPNOTSUPP");
	else
		is(errno, EOPNOTSUPP, "ibv_create_flow(3): EGRESS where the device steers nothing it sends: EOPNOTSUPP");
	rule = to_nobody();
	rule.attr.port = (uint8_t)(caps.phys_port_cnt + 1);
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): a port beyond the last: EINVAL");
	rule = to_nobody();
	rule.attr.comp_mask = 1;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): an unknown comp_mask: EINVAL");
	rule = to_nobody();
	rule.eth.size--;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): a specification of another size than its type's: EINVAL");
	rule = to_nobody();
	rule.eth.type = 0x99;
	is_null(ibv_create_flow(qp, &rule.attr), EINVAL, "ibv_create_flow(3): a specification that doesn't exist: EINVAL");
	rule = to_nobody();
	check(ibv_create_flow(rc, &rule.attr) == NULL && (errno == EINVAL || errno == EOPNOTSUPP), "ibv_create_flow(3): an RC QP can't be steered to");

	struct ibv_flow_spec_action_tag tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof tag, 7};

	add_spec(&rule, &tag, sizeof tag);
	check(made(qp, &rule), "ibv_create_flow(3): ACTION_TAG");
	struct ibv_flow_spec_action_drop drop = {IBV_FLOW_SPEC_ACTION_DROP, sizeof drop};

	rule = to_nobody();
	add_spec(&rule, &drop, sizeof drop);
	check(made(qp, &rule), "ibv_create_flow(3): ACTION_DROP");
	MUST(ibv_destroy_qp(rc));
}

/* A specification of each header, with an empty mask, is a rule. */
static void headers(struct ibv_qp *qp)
{
	static const struct {
		enum ibv_flow_spec_type type;
		uint16_t size;
		const char *name;
	} specs[] = {{IBV_FLOW_SPEC_ETH, sizeof(struct ibv_flow_spec_eth), "ETH"},
		     {IBV_FLOW_SPEC_IPV4, sizeof(struct ibv_flow_spec_ipv4), "IPV4"},
		     {IBV_FLOW_SPEC_IPV6, sizeof(struct ibv_flow_spec_ipv6), "IPV6"},
		     {IBV_FLOW_SPEC_IPV4_EXT, sizeof(struct ibv_flow_spec_ipv4_ext), "IPV4_EXT"},
		     {IBV_FLOW_SPEC_TCP, sizeof(struct ibv_flow_spec_tcp_udp), "TCP"},
		     {IBV_FLOW_SPEC_UDP, sizeof(struct ibv_flow_spec_tcp_udp), "UDP"},
		     {IBV_FLOW_SPEC_ESP, sizeof(struct ibv_flow_spec_esp), "ESP"},
		     {IBV_FLOW_SPEC_VXLAN_TUNNEL, sizeof(struct ibv_flow_spec_tunnel), "VXLAN_TUNNEL"},
		     {IBV_FLOW_SPEC_GRE, sizeof(struct ibv_flow_spec_gre), "GRE"},
		     {IBV_FLOW_SPEC_MPLS, sizeof(struct ibv_flow_spec_mpls), "MPLS"}};

	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
		struct rule rule = empty_rule();
		struct ibv_flow_spec_action_drop head = {specs[i].type, specs[i].size};

		memcpy(rule.specs, &head, sizeof head);
		rule.attr.size = (uint16_t)(rule.attr.size + specs[i].size);
		rule.attr.num_of_specs = 1;
		if (made(qp, &rule))
			check(true, "ibv_create_flow(3): a specification of %s", specs[i].name);
		else
			check(errno == EINVAL || errno == EOPNOTSUPP, "ibv_create_flow(3): a specification of %s", specs[i].name);
	}
}

static void counters(struct ibv_qp *qp)
{
	struct ibv_counters_init_attr init = {.comp_mask = 1};
	struct ibv_counters *object;
	struct ibv_counter_attach_attr point = {.counter_desc = 77};
	uint64_t values[3] = {9, 9, 9};

	check(ibv_create_counters(ctx, &init) == NULL, "ibv_create_counters(3): an unknown comp_mask fails");
	init.comp_mask = 0;
	object = ibv_create_counters(ctx, &init);
	if (!object) {
		is(errno, EOPNOTSUPP, "ibv_create_counters(3): a device without: EOPNOTSUPP");
		return;
	}
	check(object->context == ctx, "ibv_create_counters(3): a pointer to the counters");
	is(ibv_attach_counters_point_flow(object, &point, NULL), ENOTSUP, "ibv_attach_counters_point_flow(3): a description that doesn't exist: ENOTSUP");
	point = (struct ibv_counter_attach_attr){.comp_mask = 1};
	is(ibv_attach_counters_point_flow(object, &point, NULL), EINVAL, "ibv_attach_counters_point_flow(3): an unknown comp_mask: EINVAL");
	point = (struct ibv_counter_attach_attr){.counter_desc = IBV_COUNTER_PACKETS, .index = 1};
	is(ibv_attach_counters_point_flow(object, &point, NULL), 0, "ibv_attach_counters_point_flow(3): any index");
	is(ibv_attach_counters_point_flow(object, &point, NULL), 0, "ibv_attach_counters_point_flow(3): an index can be set again");
	is(ibv_read_counters(object, values, 3, 0), 0, "ibv_read_counters(3): more values than there are counters");
	check(!values[0] && !values[1] && !values[2], "ibv_create_counters(3): new counters are at 0");
	is(ibv_read_counters(object, values, 2, IBV_READ_COUNTERS_ATTR_PREFER_CACHED), 0, "ibv_read_counters(3): PREFER_CACHED is taken");
	is(ibv_read_counters(object, values, 2, 1u << 20), EINVAL, "ibv_read_counters(3): a flag that doesn't exist: EINVAL");
	is(ibv_read_counters(object, NULL, 2, 0), EINVAL, "ibv_read_counters(3): nowhere to put them: EINVAL");
	if (qp) {
		struct rule rule = to_nobody();
		struct ibv_flow *flow = MAKE(ibv_create_flow(qp, &rule.attr));

		is(ibv_attach_counters_point_flow(object, &point, flow), ENOTSUP, "ibv_attach_counters_point_flow(3): a flow that exists already, where that can't be done: ENOTSUP");
		MUST(ibv_destroy_flow(flow));
	}
	is(ibv_destroy_counters(object), 0, "ibv_destroy_counters(3): counters of no flow: 0");
}

static void work_queues(void)
{
	static const struct {
		uint32_t flag;
		const char *name;
	} flags[] = {{IBV_WQ_FLAGS_CVLAN_STRIPPING, "CVLAN_STRIPPING"},
		     {IBV_WQ_FLAGS_SCATTER_FCS, "SCATTER_FCS"},
		     {IBV_WQ_FLAGS_DELAY_DROP, "DELAY_DROP"},
		     {IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, "PCI_WRITE_END_PADDING"}};
	struct ibv_wq_init_attr init = {.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq}, huge = init;
	struct ibv_wq *wq = ibv_create_wq(ctx, &init), *two[2];
	struct ibv_wq_attr attr = {.attr_mask = 1u << 20};
	struct ibv_rwq_ind_table_init_attr table = {.log_ind_tbl_size = 31, .ind_tbl = two};

	if (!wq) {
		skip("the device has no WQs", "ibv_create_wq(3): an unknown comp_mask fails");
		return;
	}
	huge.comp_mask = 1u << 20;
	check(ibv_create_wq(ctx, &huge) == NULL, "ibv_create_wq(3): an unknown comp_mask fails");
	huge = init;
	huge.max_wr = UINT32_MAX;
	is_null(ibv_create_wq(ctx, &huge), EINVAL, "ibv_create_wq(3): UINT32_MAX WRs: EINVAL");
	huge = init;
	huge.max_sge = UINT32_MAX;
	is_null(ibv_create_wq(ctx, &huge), EINVAL, "ibv_create_wq(3): UINT32_MAX s/g elements: EINVAL");
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		struct ibv_wq_init_attr one = init;
		struct ibv_wq *flagged;

		one.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
		one.create_flags = flags[i].flag;
		flagged = ibv_create_wq(ctx, &one);
		check(flagged || errno == EOPNOTSUPP, "ibv_create_wq(3): %s is taken, or EOPNOTSUPP", flags[i].name);
		if (flagged)
			MUST(ibv_destroy_wq(flagged));
	}
	is(ibv_modify_wq(wq, &attr), EINVAL, "ibv_modify_wq(3): an attribute that doesn't exist: EINVAL");
	attr = (struct ibv_wq_attr){.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = 77};
	is(ibv_modify_wq(wq, &attr), EINVAL, "ibv_modify_wq(3): a state that doesn't exist: EINVAL");
	attr = (struct ibv_wq_attr){.attr_mask = IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY, .curr_wq_state = IBV_WQS_ERR};
	is(ibv_modify_wq(wq, &attr), EINVAL, "ibv_modify_wq(3): a current state that isn't the current one: EINVAL");
	attr = (struct ibv_wq_attr){.attr_mask = IBV_WQ_ATTR_FLAGS, .flags = IBV_WQ_FLAGS_DELAY_DROP, .flags_mask = IBV_WQ_FLAGS_DELAY_DROP};
	check(ibv_modify_wq(wq, &attr) > 0, "ibv_modify_wq(3): flags that can't be changed are refused");
	two[0] = two[1] = wq;
	is_null(ibv_create_rwq_ind_table(ctx, &table), EINVAL, "ibv_create_rwq_ind_table(3): a table larger than the device's: EINVAL");
	table.log_ind_tbl_size = 0;
	table.comp_mask = 1;
	check(ibv_create_rwq_ind_table(ctx, &table) == NULL, "ibv_create_rwq_ind_table(3): an unknown comp_mask fails");
	is(ibv_destroy_wq(wq), 0, "ibv_destroy_wq(3): after refused tables: 0");
}

static void actions(void)
{
	struct ibv_flow_action_esp_attr attr = {0};
	struct ibv_flow_action *action = ibv_create_flow_action_esp(ctx, &attr);

	if (action)
		MUST(ibv_destroy_flow_action(action));
	else
		check(errno == EOPNOTSUPP || errno == EINVAL, "ibv_create_flow_action_esp(3): NULL, and errno");
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp;

	begin(argc, argv);
	cq = make_cq(32);
	actions();
	work_queues();
	init = qp_attr(IBV_QPT_RAW_PACKET, cq);
	init.cap.max_inline_data = 0;
	qp = ibv_create_qp(pd, &init);
	if (!qp)
		check(errno == EPERM || errno == EOPNOTSUPP || errno == EINVAL, "ibv_create_qp(3): RAW_PACKET without the capability: EPERM");
	counters(qp);
	if (qp) {
		rules(qp);
		headers(qp);
		MUST(ibv_destroy_qp(qp));
	}
	MUST(ibv_destroy_cq(cq));
	return end();
}
