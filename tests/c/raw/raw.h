/* What programs with raw packet queue pairs have in common: memory, queue pairs, rules and frames. */
#ifndef RAW_H
#define RAW_H

#include "cases.h"
#include "flow_rule.h"

#define LENGTH 200
#define FRAMES 64

struct raw {
	struct device device;
	struct ibv_cq_ex *cq;
	struct ibv_mr *mr;
	unsigned char *memory;
};

UNUSED static const uint8_t target[6] = {0x02, 0xfe, 0, 0, 0, 1};

UNUSED static struct raw open_raw_number(int number)
{
	struct raw r = {.device = open_device_number(number, 0)};
	struct ibv_cq_init_attr_ex init = {
		.cqe = 256,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG,
	};

	r.cq = MAKE(ibv_create_cq_ex(r.device.context, &init));
	r.memory = MAKE(calloc(FRAMES * 2, 2048));
	r.mr = MAKE(ibv_reg_mr(r.device.pd, r.memory, FRAMES * 2 * 2048, IBV_ACCESS_LOCAL_WRITE));
	return r;
}

UNUSED static struct raw open_raw(void)
{
	return open_raw_number(0);
}

UNUSED static struct ibv_qp *create_raw(const struct raw *r, uint32_t create_flags)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(r->cq),
		.recv_cq = ibv_cq_ex_to_cq(r->cq),
		.cap = {.max_send_wr = FRAMES, .max_recv_wr = FRAMES, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 256},
		.qp_type = IBV_QPT_RAW_PACKET,
		.sq_sig_all = 1,
		.pd = r->device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = create_flags,
	};

	return ibv_create_qp_ex(r->device.context, &init);
}

UNUSED static struct ibv_qp *ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

UNUSED static void add_udp(struct rule *rule, uint16_t port)
{
	struct ibv_flow_spec_tcp_udp udp = {.type = IBV_FLOW_SPEC_UDP, .size = sizeof udp};

	udp.val.dst_port = htons(port);
	udp.mask.dst_port = 0xffff;
	add_spec(rule, &udp, sizeof udp);
}

/* Ethernet, IPv4 and UDP around a pattern; checksums are zero. */
UNUSED static void make_frame(unsigned char *frame, const uint8_t *mac, uint16_t source_port, uint16_t port, uint64_t index)
{
	const unsigned char head[] = {0x02, 0xfe, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, LENGTH - 14, 0, 1, 0, 0, 64, 17, 0, 0,
				      192, 0, 2, 1, 192, 0, 2, 2, source_port >> 8, source_port & 255, port >> 8, port & 255,
				      0, LENGTH - 34, 0, 0};

	memcpy(frame, mac, 6);
	memcpy(frame + 6, head, sizeof head);
	fill(frame + 42, LENGTH - 42, index);
}

UNUSED static int send_frame(const struct raw *r, struct ibv_qp *qp, size_t slot, uint32_t length, unsigned int flags)
{
	struct ibv_sge sges[2] = {
		{.addr = (uintptr_t)(r->memory + slot * 2048), .length = 7, .lkey = r->mr->lkey},
		{.addr = (uintptr_t)(r->memory + slot * 2048 + 7), .length = length - 7, .lkey = r->mr->lkey},
	};
	struct ibv_send_wr wr = {.wr_id = 1000, .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = flags}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

UNUSED static void receive_into(const struct raw *r, struct ibv_qp *qp, size_t slot)
{
	MUST(post_recv(qp, r->mr, slot * 2048, 2048, slot));
}

#define CQ(r) ibv_cq_ex_to_cq((r).cq)

#endif
