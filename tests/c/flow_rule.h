/* The rule of a flow. */
#ifndef FLOW_RULE_H
#define FLOW_RULE_H

#include "basics.h"

/* Specifications follow one another without a gap; `eth` is the first where it is one of Ethernet. */
struct rule {
	struct ibv_flow_attr attr;
	union {
		struct ibv_flow_spec_eth eth;
		unsigned char specs[256];
	};
};

/* Without a specification. */
UNUSED static struct rule empty_rule(void)
{
	return (struct rule){.attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(struct ibv_flow_attr), .port = PORT_NUM}};
}

UNUSED static void add_spec(struct rule *rule, const void *spec, size_t size)
{
	memcpy((char *)&rule->attr + rule->attr.size, spec, size);
	rule->attr.size = (uint16_t)(rule->attr.size + size);
	rule->attr.num_of_specs++;
}

UNUSED static void add_destination(struct rule *rule, const uint8_t *mac)
{
	struct ibv_flow_spec_eth eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth};

	memcpy(eth.val.dst_mac, mac, 6);
	memset(eth.mask.dst_mac, 0xff, 6);
	add_spec(rule, &eth, sizeof eth);
}

#endif
