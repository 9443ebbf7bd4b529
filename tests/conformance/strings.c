/* Conversions and names: ibv_rate_to_mult, ibv_rate_to_mbps, ibv_wc_status_str, ibv_event_type_str, ibv_inc_rkey. */
#include "conform.h"

static const struct {
	enum ibv_rate rate;
	int mult; /* of 2.5 Gbit/s, 0: no whole multiple */
	int mbps;
	const char *name;
} rates[] = {
	{IBV_RATE_2_5_GBPS, 1, 2500, "2.5"},	{IBV_RATE_5_GBPS, 2, 5000, "5"},
	{IBV_RATE_10_GBPS, 4, 10000, "10"},	{IBV_RATE_20_GBPS, 8, 20000, "20"},
	{IBV_RATE_30_GBPS, 12, 30000, "30"},	{IBV_RATE_40_GBPS, 16, 40000, "40"},
	{IBV_RATE_60_GBPS, 24, 60000, "60"},	{IBV_RATE_80_GBPS, 32, 80000, "80"},
	{IBV_RATE_120_GBPS, 48, 120000, "120"}, {IBV_RATE_14_GBPS, 0, 14062, "14"},
	{IBV_RATE_56_GBPS, 0, 56250, "56"},	{IBV_RATE_112_GBPS, 0, 112500, "112"},
	{IBV_RATE_168_GBPS, 0, 168750, "168"},	{IBV_RATE_25_GBPS, 0, 25781, "25"},
	{IBV_RATE_100_GBPS, 0, 103125, "100"},	{IBV_RATE_200_GBPS, 0, 206250, "200"},
	{IBV_RATE_300_GBPS, 0, 309375, "300"},
};

static bool all_different(const char *(*name)(int), int first, int last)
{
	for (int i = first; i <= last; i++) {
		if (!name(i) || !*name(i))
			return false;
		for (int j = first; j < i; j++)
			if (!strcmp(name(i), name(j)))
				return false;
	}
	return true;
}

static const char *status_name(int value)
{
	return ibv_wc_status_str(value);
}

static const char *event_name(int value)
{
	return ibv_event_type_str(value);
}

static const char *node_name(int value)
{
	return ibv_node_type_str(value);
}

static const char *state_name(int value)
{
	return ibv_port_state_str(value);
}

int main(int argc, char **argv)
{
	read_options(argc, argv);
	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
		is(ibv_rate_to_mbps(rates[i].rate), rates[i].mbps, "ibv_rate_to_mbps(3): %s Gbit/s in Mbit/s",
		   rates[i].name);
		is(mbps_to_ibv_rate(rates[i].mbps), rates[i].rate, "mbps_to_ibv_rate(3): Mbit/s to %s Gbit/s",
		   rates[i].name);
		if (!rates[i].mult)
			continue;
		is(ibv_rate_to_mult(rates[i].rate), rates[i].mult, "ibv_rate_to_mult(3): %s Gbit/s in 2.5 Gbit/s",
		   rates[i].name);
		is(mult_to_ibv_rate(rates[i].mult), rates[i].rate, "mult_to_ibv_rate(3): 2.5 Gbit/s to %s Gbit/s",
		   rates[i].name);
	}
	is(ibv_rate_to_mult(IBV_RATE_MAX), -1, "ibv_rate_to_mult(3): a value that isn't a rate has no multiplier");
	is(ibv_rate_to_mbps(IBV_RATE_MAX), -1, "ibv_rate_to_mbps(3): a value that isn't a rate has no Mbit/s");
	is(mult_to_ibv_rate(7), IBV_RATE_MAX, "mult_to_ibv_rate(3): a multiplier without a rate: IBV_RATE_MAX");
	is(mbps_to_ibv_rate(1234), IBV_RATE_MAX, "mbps_to_ibv_rate(3): Mbit/s without a rate: IBV_RATE_MAX");

	check(all_different(status_name, IBV_WC_SUCCESS, IBV_WC_GENERAL_ERR),
	      "ibv_wc_status_str(3): every completion status has a name of its own");
	check(ibv_wc_status_str(9999) != NULL, "ibv_wc_status_str(3): a value that isn't a status has a string too");
	check(all_different(event_name, IBV_EVENT_CQ_ERR, IBV_EVENT_GID_CHANGE),
	      "ibv_event_type_str(3): every event type has a description of its own");
	check(ibv_event_type_str(9999) != NULL, "ibv_event_type_str(3): a value that isn't an event type has a string too");
	check(all_different(node_name, IBV_NODE_CA, IBV_NODE_USNIC),
	      "ibv_node_type_str(3): every node type has a description of its own");
	check(ibv_node_type_str(9999) != NULL, "ibv_node_type_str(3): a value that isn't a node type has a string too");
	check(all_different(state_name, IBV_PORT_NOP, IBV_PORT_ACTIVE_DEFER),
	      "ibv_port_state_str(3): every port state has a description of its own");
	check(ibv_port_state_str(9999) != NULL, "ibv_port_state_str(3): a value that isn't a port state has a string too");

	is(ibv_inc_rkey(0x12345600), 0x12345601, "ibv_inc_rkey(3): the eight low bits are counted up");
	is(ibv_inc_rkey(0x123456ff), 0x12345600, "ibv_inc_rkey(3): the index, the other bits, stays when they wrap");
	return end();
}
