/* vlan: raw packet queue pairs and VLANs. Two processes at the ends of a link, each with two devices: the interface, and
 * VLAN 100 on it. `receives` takes frames in six queues, `sends` sends to five of them; the last is for a datagram of the
 * kernel's.
 */
#include "raw.h"

#define PER_QUEUE 8
#define VLAN 100
#define TAGGED 0x6064 /* priority 3, VLAN 100 */
#define ELSEWHERE 0x60c8
#define FROM_INSIDE 50 /* index of a frame that a queue pair on the VLAN sends to one below it */
#define PORT 7777

enum where { KEPT, STRIPPED, QUEUED, CHANGED, INSIDE, KERNELS, QUEUES };

struct queue {
	struct raw raw;
	struct ibv_qp *qp;
	struct ibv_wq *wq;
};

static const uint8_t *mac_of(enum where where)
{
	static uint8_t mac[6];

	memcpy(mac, target, 6);
	mac[5] += where;
	return mac;
}

static bool strips(enum where where)
{
	return where == STRIPPED || where == QUEUED || where == CHANGED;
}

/* A queue pair that receives into one work queue. */
static void spread(struct queue *queue, bool from_the_beginning)
{
	struct ibv_context *context = queue->raw.device.context;
	struct ibv_wq_init_attr init = {
		.wq_type = IBV_WQT_RQ,
		.max_wr = FRAMES,
		.max_sge = 1,
		.pd = queue->raw.device.pd,
		.cq = CQ(queue->raw),
		.comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
		.create_flags = from_the_beginning ? IBV_WQ_FLAGS_CVLAN_STRIPPING : 0,
	};
	struct ibv_wq_attr change = {
		.attr_mask = IBV_WQ_ATTR_STATE | (from_the_beginning ? 0 : IBV_WQ_ATTR_FLAGS),
		.wq_state = IBV_WQS_RDY,
		.flags = IBV_WQ_FLAGS_CVLAN_STRIPPING,
		.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING,
	};
	struct ibv_rwq_ind_table_init_attr table = {.log_ind_tbl_size = 0, .ind_tbl = &queue->wq};
	uint8_t key[40] = {1};
	struct ibv_qp_init_attr_ex rss = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = queue->raw.device.pd,
		.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, IBV_RX_HASH_SRC_IPV4},
	};

	queue->wq = MAKE(ibv_create_wq(context, &init));
	MUST(ibv_modify_wq(queue->wq, &change));
	rss.rwq_ind_tbl = MAKE(ibv_create_rwq_ind_table(context, &table));
	queue->qp = MAKE(ibv_create_qp_ex(context, &rss));
}

static void add_vlan(struct rule *rule, const uint8_t *mac, uint16_t tag, uint16_t mask)
{
	struct ibv_flow_spec_eth eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth};

	if (mac) {
		memcpy(eth.val.dst_mac, mac, 6);
		memset(eth.mask.dst_mac, 0xff, 6);
	}
	eth.val.vlan_tag = htons(tag);
	eth.mask.vlan_tag = htons(mask);
	add_spec(rule, &eth, sizeof eth);
}

static struct queue receiving(enum where where)
{
	struct queue queue = {.raw = open_raw_number(where == INSIDE)};
	struct ibv_flow_spec_action_tag tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof tag, 10 + where};
	struct rule to_me = empty_rule();

	if (where == QUEUED || where == CHANGED)
		spread(&queue, where == QUEUED);
	else
		queue.qp = ready(MAKE(create_raw(&queue.raw, where == STRIPPED || where == INSIDE ? IBV_QP_CREATE_CVLAN_STRIPPING : 0)));
	if (where == INSIDE)
		add_destination(&to_me, mac_of(where));
	else if (where == CHANGED)
		add_vlan(&to_me, mac_of(where), TAGGED, 0xffff);
	else
		add_vlan(&to_me, where == KERNELS ? NULL : mac_of(where), VLAN, 0x0fff);
	if (where == KERNELS)
		add_udp(&to_me, PORT);
	add_spec(&to_me, &tag, sizeof tag);
	for (int i = 0; i < 2 * PER_QUEUE; i++) {
		struct ibv_sge sge = {(uintptr_t)(queue.raw.memory + i * 2048), 2048, queue.raw.mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

		MUST(queue.wq ? ibv_post_wq_recv(queue.wq, &wr, &bad) : ibv_post_recv(queue.qp, &wr, &bad));
	}
	MAKE(ibv_create_flow(queue.qp, &to_me.attr));
	return queue;
}

/* The next completion must be the frame `index`, which was sent with this tag. */
static void expect_frame(struct queue *queue, enum where where, uint64_t index, uint16_t tag)
{
	struct ibv_cq_ex *cq = queue->raw.cq;
	struct ibv_poll_cq_attr attr = {};
	uint64_t end = now_ms() + 60000;

	while (ibv_start_poll(cq, &attr))
		if (now_ms() > end)
			fail("queue %d, frame %llu: no completion in 60 s", where, (unsigned long long)index);
	EXPECT(cq->status == IBV_WC_SUCCESS && ibv_wc_read_flow_tag(cq) == 10u + where);
	const unsigned char *frame = queue->raw.memory + cq->wr_id * 2048;
	uint16_t said = ibv_wc_read_cvlan(cq);
	uint32_t length = ibv_wc_read_byte_len(cq);
	bool whole = where == KEPT, sound = ibv_wc_read_wc_flags(cq) & IBV_WC_IP_CSUM_OK;

	ibv_end_poll(cq);
	if (length != LENGTH + (whole ? 4 : 0) || said != (strips(where) ? tag : 0) || !sound)
		fail("queue %d, frame %llu: %u bytes, tag %#x, checksums %d", where, (unsigned long long)index, length, said, sound);
	if (whole) {
		EXPECT(frame[12] == 0x81 && frame[13] == 0 && frame[14] << 8 == (tag & 0xff00) && frame[15] == (tag & 0xff));
		frame += 4;
	}
	EXPECT(frame[12] == 8 && frame[13] == 0);
	check(frame + 42, LENGTH - 42, index, "a frame of a VLAN");
}

/* A datagram that the kernel has left the adapter to complete. */
static void expect_datagram(struct queue *queue)
{
	const char text[] = "from the kernel\n";
	const unsigned char *frame = queue->raw.memory;
	struct ibv_wc wc;

	if (!wait_wc(CQ(queue->raw), &wc, 60000))
		fail("no datagram");
	EXPECT(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_IP_CSUM_OK);
	EXPECT(frame[12] == 0x81 && frame[13] == 0 && (frame[14] & 15) == 0 && frame[15] == VLAN && frame[16] == 8);
	EXPECT(wc.byte_len >= 46 + strlen(text) && !memcmp(frame + 46, text, strlen(text)));
	EXPECT(frame[44] || frame[45]);
}

static void make_sealed(const struct raw *r, struct ibv_qp *qp, const uint8_t *mac, uint16_t tag, uint64_t index)
{
	make_frame(r->memory, mac, 1, 7000, index);
	if (tag) {
		const uint8_t header[4] = {0x81, 0, tag >> 8, tag & 255};

		memmove(r->memory + 16, r->memory + 12, LENGTH - 12);
		memcpy(r->memory + 12, header, sizeof header);
	}
	MUST(send_frame(r, qp, 0, LENGTH + (tag ? 4 : 0), IBV_SEND_IP_CSUM));
	EXPECT_STATUS(CQ(*r), 1000, IBV_WC_SUCCESS);
}

static void receives(void)
{
	struct ibv_device_attr_ex attr = {};
	struct queue queues[QUEUES];
	struct raw inside = open_raw_number(1);

	for (enum where where = 0; where < QUEUES; where++)
		queues[where] = receiving(where);
	MUST(ibv_query_device_ex(inside.device.context, NULL, &attr));
	EXPECT(attr.raw_packet_caps & IBV_RAW_PACKET_CAP_CVLAN_STRIPPING);
	/* What leaves through the VLAN passes the interface below it with a tag. */
	make_sealed(&inside, ready(MAKE(create_raw(&inside, 0))), mac_of(KEPT), 0, FROM_INSIDE);
	expect_frame(&queues[KEPT], KEPT, FROM_INSIDE, VLAN);
	printf("ready\n");
	fflush(stdout);
	for (enum where where = 0; where < KERNELS; where++) {
		for (int i = 0; i < PER_QUEUE; i += 2)
			expect_frame(&queues[where], where, i, TAGGED);
		for (int i = 0; where != CHANGED && i < PER_QUEUE / 2; i++)
			expect_frame(&queues[where], where, PER_QUEUE + i, VLAN);
	}
	printf("frames are right\n");
	fflush(stdout);
	expect_datagram(&queues[KERNELS]);
	for (enum where where = 0; where < QUEUES; where++)
		EXPECT_NOTHING(CQ(queues[where].raw));
}

static void sends(void)
{
	struct raw below = open_raw(), inside = open_raw_number(1);
	struct ibv_qp *qp = ready(MAKE(create_raw(&below, 0))), *in_vlan = ready(MAKE(create_raw(&inside, 0)));

	for (enum where where = 0; where < KERNELS; where++) {
		for (int i = 0; i < PER_QUEUE; i++)
			make_sealed(&below, qp, mac_of(where), i % 2 ? ELSEWHERE : TAGGED, i);
		for (int i = 0; i < PER_QUEUE / 2; i++)
			make_sealed(&inside, in_vlan, mac_of(where), 0, PER_QUEUE + i);
	}
}

static const struct test_case cases[] = {
	CASE(receives),
	CASE(sends),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
