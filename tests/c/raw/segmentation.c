/* segmentation: raw packet queue pairs with TCP segmentation (IBV_WR_TSO, ibv_wr_send_tso) and limits of the rate. What
 * comes out is received by a second queue pair of the process, and compared with what is computed here.
 */
#include "raw.h"

#define SLOT 2048
#define PAYLOAD (64 << 10)
#define MOST_HEADERS 128

struct segmenter {
	struct device device;
	struct ibv_cq *sent, *got;
	struct ibv_qp *a, *b;
	struct ibv_flow *flow;
	/* FRAMES slots to receive into, then the payload. */
	unsigned char *memory, *payload;
	struct ibv_mr *mr;
};

static struct ibv_qp *create(const struct segmenter *r, struct ibv_cq *cq, uint32_t mask, uint16_t max_header)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = FRAMES, .max_recv_wr = FRAMES, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 1024},
		.qp_type = IBV_QPT_RAW_PACKET,
		.sq_sig_all = 1,
		.pd = r->device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | mask,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
		.max_tso_header = max_header,
	};

	return ibv_create_qp_ex(r->device.context, &init);
}

/* `a` segments, `b` receives what goes to `target`. */
static struct segmenter open_segmenter(void)
{
	struct segmenter r = {.device = open_device(0)};
	struct rule to_target = empty_rule();

	r.sent = make_cq(&r.device, FRAMES, NULL);
	r.got = make_cq(&r.device, FRAMES, NULL);
	r.memory = MAKE(calloc(1, FRAMES * SLOT + PAYLOAD));
	r.payload = r.memory + FRAMES * SLOT;
	fill(r.payload, PAYLOAD, 3);
	r.mr = MAKE(ibv_reg_mr(r.device.pd, r.memory, FRAMES * SLOT + PAYLOAD, IBV_ACCESS_LOCAL_WRITE));
	r.a = ready(MAKE(create(&r, r.sent, IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, MOST_HEADERS)));
	r.b = ready(MAKE(create(&r, r.got, 0, 0)));
	add_destination(&to_target, target);
	r.flow = MAKE(ibv_create_flow(r.b, &to_target.attr));
	for (int i = 0; i < FRAMES; i++)
		MUST(post_recv(r.b, r.mr, (size_t)i * SLOT, SLOT, (uint64_t)i));
	return r;
}

static void close_segmenter(const struct segmenter *r)
{
	MUST(ibv_destroy_flow(r->flow));
	MUST(ibv_destroy_qp(r->a));
	MUST(ibv_destroy_qp(r->b));
}

static void put16(unsigned char *at, uint32_t value)
{
	at[0] = (unsigned char)(value >> 8);
	at[1] = (unsigned char)value;
}

static void put32(unsigned char *at, uint32_t value)
{
	put16(at, value >> 16);
	put16(at + 2, value);
}

/* The sum of RFC 1071, byte by byte. */
static uint32_t sum(const unsigned char *bytes, size_t length, uint32_t start)
{
	for (size_t i = 0; i < length; i++)
		start += i % 2 ? bytes[i] : (uint32_t)bytes[i] << 8;
	while (start >> 16)
		start = (start & 0xffff) + (start >> 16);
	return start;
}

/* Headers of a connection; what each segment gets of its own is 0xee. */
struct headers {
	unsigned char bytes[MOST_HEADERS];
	size_t ip, tcp, length;
	bool v6;
};

static struct headers make_headers(bool v6, bool tagged, size_t options, uint16_t id, uint32_t sequence, uint8_t flags)
{
	struct headers h = {.v6 = v6, .ip = tagged ? 18 : 14};
	unsigned char *ip = h.bytes + h.ip, *tcp;

	memcpy(h.bytes, target, 6);
	memcpy(h.bytes + 6, "\x02\xfe\0\0\0\x09", 6);
	if (tagged)
		memcpy(h.bytes + 12, "\x81\0\x20\x05", 4);
	put16(h.bytes + h.ip - 2, v6 ? 0x86dd : 0x0800);
	if (v6) {
		memcpy(ip, "\x60\0\0\x07\xee\xee\x06\x40", 8);
		memset(ip + 8, 0xfd, 16);
		memset(ip + 24, 0xfc, 16);
	} else {
		memcpy(ip, "\x45\x02\xee\xee\0\0\x40\0\x40\x06\xee\xee\xc0\0\x02\x01\xc0\0\x02\x02", 20);
		put16(ip + 4, id);
	}
	h.tcp = h.ip + (v6 ? 40 : 20);
	tcp = h.bytes + h.tcp;
	put16(tcp, 1234);
	put16(tcp + 2, 80);
	put32(tcp + 4, sequence);
	put32(tcp + 8, 77);
	tcp[12] = (unsigned char)((20 + options) << 2);
	tcp[13] = flags;
	put16(tcp + 14, 500);
	put16(tcp + 16, 0xeeee);
	memset(tcp + 20, 1, options);
	h.length = h.tcp + 20 + options;
	return h;
}

/* The segment with this index, into `frame`; how long it is. */
static size_t expected(const struct headers *h, const unsigned char *payload, size_t total, size_t mss, size_t index,
		       unsigned char *frame)
{
	size_t offset = index * mss, part = total - offset < mss ? total - offset : mss;
	size_t above = h->length - h->tcp + part;
	unsigned char *ip = frame + h->ip, *tcp = frame + h->tcp;
	bool last = offset + part == total;
	uint32_t sequence;

	memcpy(frame, h->bytes, h->length);
	memcpy(frame + h->length, payload + offset, part);
	sequence = (uint32_t)tcp[4] << 24 | (uint32_t)tcp[5] << 16 | (uint32_t)tcp[6] << 8 | tcp[7];
	put32(tcp + 4, sequence + (uint32_t)offset);
	/* FIN and PSH with the last byte, CWR with the first. */
	if (!last)
		tcp[13] &= (unsigned char)~0x09;
	if (index)
		tcp[13] &= (unsigned char)~0x80;
	if (h->v6) {
		put16(ip + 4, (uint32_t)above);
	} else {
		put16(ip + 2, (uint32_t)(20 + above));
		put16(ip + 4, ((uint32_t)ip[4] << 8 | ip[5]) + (uint32_t)index);
		put16(ip + 10, 0);
		put16(ip + 10, ~sum(ip, 20, 0));
	}
	put16(tcp + 16, 0);
	put16(tcp + 16, ~sum(tcp, above, sum(ip + (h->v6 ? 8 : 12), h->v6 ? 32 : 8, 6 + (uint32_t)above)));
	return h->length + part;
}

static void must_arrive(const struct segmenter *r, const struct headers *h, size_t total, size_t mss, size_t first)
{
	size_t count = (total + mss - 1) / mss;
	struct ibv_wc wc;

	MUST_COMPLETE(r->sent, &wc);
	EXPECT(wc.wr_id == 70 && wc.opcode == IBV_WC_TSO);
	for (size_t i = 0; i < count; i++) {
		unsigned char frame[SLOT] = {0};
		size_t length = expected(h, r->payload, total, mss, i, frame);

		MUST_COMPLETE(r->got, &wc);
		/* The shortest frame has 60 bytes. */
		if (wc.wr_id != first + i || wc.byte_len != (length < 60 ? 60 : length))
			fail("frame %llu of %u bytes, not %zu of %zu", (unsigned long long)wc.wr_id, wc.byte_len, first + i, length);
		for (size_t at = 0; at < wc.byte_len; at++)
			if (r->memory[(first + i) * SLOT + at] != frame[at])
				fail("segment %zu: byte %zu is %02x, not %02x", i, at, r->memory[(first + i) * SLOT + at], frame[at]);
		EXPECT(h->v6 || wc.wc_flags & IBV_WC_IP_CSUM_OK);
	}
}

static int post_tso(const struct segmenter *r, struct ibv_qp *qp, const struct headers *h, uint32_t total, uint16_t mss, unsigned int flags)
{
	uint32_t half = total / 2 - total / 2 % 7;
	struct ibv_sge sges[2] = {{(uintptr_t)r->payload, half, r->mr->lkey}, {(uintptr_t)r->payload + half, total - half, r->mr->lkey}};
	struct ibv_send_wr wr = {.wr_id = 70, .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_TSO, .send_flags = flags}, *bad;

	wr.tso.hdr = (void *)h->bytes;
	wr.tso.hdr_sz = (uint16_t)h->length;
	wr.tso.mss = mss;
	return ibv_post_send(qp, &wr, &bad);
}

static void segments_are_what_tcp_would_have_sent(void)
{
	struct segmenter r = open_segmenter();
	/* Identification and sequence number wrap. */
	struct headers v4 = make_headers(false, false, 12, 0xfffe, 0xfffffc00, 0x99), v6 = make_headers(true, true, 0, 0, 5, 0x19);
	struct ibv_qp_ex *qp = MAKE(ibv_qp_to_qp_ex(r.a));
	struct ibv_sge sges[2] = {{(uintptr_t)r.payload, 1, r.mr->lkey}, {(uintptr_t)r.payload + 1, 49999, r.mr->lkey}};

	MUST(post_tso(&r, r.a, &v4, 3600, 1000, 0));
	must_arrive(&r, &v4, 3600, 1000, 0);
	MUST(post_tso(&r, r.a, &v4, 900, 450, IBV_SEND_INLINE | IBV_SEND_IP_CSUM));
	must_arrive(&r, &v4, 900, 450, 4);
	/* One byte: a frame that is padded. */
	MUST(post_tso(&r, r.a, &v4, 1, 1000, 0));
	must_arrive(&r, &v4, 1, 1000, 6);
	/* More frames than leave in one go. */
	ibv_wr_start(qp);
	qp->wr_id = 70;
	qp->wr_flags = 0;
	ibv_wr_send_tso(qp, v6.bytes, (uint16_t)v6.length, 1000);
	ibv_wr_set_sge_list(qp, 2, sges);
	memset(v6.bytes + v6.tcp, 0, 4);
	MUST(ibv_wr_complete(qp));
	put16(v6.bytes + v6.tcp, 1234);
	put16(v6.bytes + v6.tcp + 2, 80);
	must_arrive(&r, &v6, 50000, 1000, 7);
	EXPECT_NOTHING(r.got);
	close_segmenter(&r);
}

static void what_cannot_be_segmented_is_refused(void)
{
	struct segmenter r = open_segmenter();
	struct ibv_device_attr_ex ex;
	struct headers h = make_headers(false, false, 0, 1, 1, 0x10), udp = h, rest = h;
	struct ibv_qp_ex *qp = MAKE(ibv_qp_to_qp_ex(r.a));
	struct ibv_qp *plain = ready(MAKE(create(&r, r.sent, 0, 0)));
	struct ibv_qp_init_attr_ex ud = {.send_cq = r.sent, .recv_cq = r.sent, .qp_type = IBV_QPT_UD, .pd = r.device.pd,
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER, .max_tso_header = 64};
	char *huge = MAKE(calloc(1, 1 << 20));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(r.device.pd, huge, 1 << 20, 0));
	struct ibv_sge sge = {(uintptr_t)huge, 0, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_TSO, .tso = {h.bytes, (uint16_t)h.length, 1000}}, *bad;

	MUST(ibv_query_device_ex(r.device.context, NULL, &ex));
	EXPECT(ex.tso_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET && ex.tso_caps.max_tso >= PAYLOAD && ex.tso_caps.max_tso < 1 << 20);
	EXPECT_NULL(EOPNOTSUPP, ibv_create_qp_ex(r.device.context, &ud));
	EXPECT_NULL(EINVAL, create(&r, r.sent, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 60000));
	EXPECT_ERRNO(EINVAL, post_tso(&r, plain, &h, 1000, 500, 0));
	EXPECT_ERRNO(EINVAL, post_tso(&r, r.a, &h, 1000, 0, 0));
	/* The segments would be longer than the interface takes. */
	EXPECT_ERRNO(EINVAL, post_tso(&r, r.a, &h, 3000, 1461, 0));
	udp.bytes[23] = 17;
	EXPECT_ERRNO(EINVAL, post_tso(&r, r.a, &udp, 1000, 500, 0));
	rest.length -= 1;
	EXPECT_ERRNO(EINVAL, post_tso(&r, r.a, &rest, 1000, 500, 0));
	rest.length = MOST_HEADERS + 1;
	EXPECT_ERRNO(EINVAL, post_tso(&r, r.a, &rest, 1000, 500, 0));
	wr.tso.hdr = NULL;
	EXPECT_ERRNO(EINVAL, ibv_post_send(r.a, &wr, &bad));
	wr.tso.hdr = h.bytes;
	sge.length = ex.tso_caps.max_tso + 1;
	EXPECT_ERRNO(EINVAL, ibv_post_send(r.a, &wr, &bad));
	ibv_wr_start(qp);
	ibv_wr_send_tso(qp, h.bytes, MOST_HEADERS + 1, 1000);
	ibv_wr_set_sge(qp, r.mr->lkey, (uintptr_t)r.payload, 1000);
	EXPECT_ERRNO(EINVAL, ibv_wr_complete(qp));
	EXPECT_NOTHING(r.sent);

	/* Memory that isn't the program's ends the queue pair at the segment that would need it; those before it go out. */
	sge = (struct ibv_sge){(uintptr_t)huge + (1 << 20) - 1500, 3000, mr->lkey};
	MUST(ibv_post_send(r.a, &wr, &bad));
	EXPECT_STATUS(r.sent, 0, IBV_WC_LOC_PROT_ERR);
	EXPECT_STATUS(r.got, 0, IBV_WC_SUCCESS);
	EXPECT_NOTHING(r.got);
	EXPECT(qp_state(r.a) == IBV_QPS_ERR);
	MUST(ibv_destroy_qp(plain));
	close_segmenter(&r);
}

static int send_frames(const struct segmenter *r, uint32_t length, unsigned int count)
{
	struct ibv_sge sge = {(uintptr_t)r->payload, length, r->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	int result = 0;

	while (!result && count--)
		result = ibv_post_send(r->a, &wr, &bad);
	return result;
}

static void frames_keep_to_the_rate(void)
{
	struct segmenter r = open_segmenter();
	struct ibv_device_attr_ex ex;
	struct ibv_qp_rate_limit_attr limit = {.rate_limit = 8000, .max_burst_sz = 1500};
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct headers h = make_headers(false, false, 0, 1, 1, 0x10);
	struct ibv_wc wc;
	uint64_t start;
	int sent;

	MUST(ibv_query_device_ex(r.device.context, NULL, &ex));
	EXPECT(ex.packet_pacing_caps.supported_qpts >> IBV_QPT_RAW_PACKET & 1);
	MUST(ibv_modify_qp_rate_limit(r.a, &limit));
	MUST(ibv_query_qp(r.a, &attr, IBV_QP_RATE_LIMIT, &init));
	EXPECT(attr.rate_limit == 8000);
	/* 1,000,000 bytes a second, less one burst. */
	start = now_ms();
	MUST(send_frames(&r, 1000, 50));
	for (int i = 0; i < 50; i++)
		EXPECT_STATUS(r.sent, 9, IBV_WC_SUCCESS);
	EXPECT(now_ms() - start >= 45);
	/* Segments count one by one. */
	start = now_ms();
	MUST(post_tso(&r, r.a, &h, 50000, 1000, 0));
	MUST_COMPLETE(r.sent, &wc);
	EXPECT(now_ms() - start >= 45);

	/* Frames that wait under a slow limit go on when the limit ends … */
	limit.rate_limit = 8;
	MUST(ibv_modify_qp_rate_limit(r.a, &limit));
	EXPECT_ERRNO(ENOMEM, send_frames(&r, 1000, FRAMES * 2));
	for (sent = 0; ibv_poll_cq(r.sent, 1, &wc) == 1; sent++)
		EXPECT(wc.status == IBV_WC_SUCCESS);
	attr.rate_limit = 0;
	MUST(ibv_modify_qp(r.a, &attr, IBV_QP_RATE_LIMIT));
	for (; sent < FRAMES; sent++)
		EXPECT_STATUS(r.sent, 9, IBV_WC_SUCCESS);
	while (wait_wc(r.sent, &wc, 100))
		EXPECT(wc.status == IBV_WC_SUCCESS);

	/* … or are flushed with their queue pair. */
	MUST(ibv_modify_qp_rate_limit(r.a, &limit));
	MUST(send_frames(&r, 1000, FRAMES));
	attr.qp_state = IBV_QPS_ERR;
	MUST(ibv_modify_qp(r.a, &attr, IBV_QP_STATE));
	for (sent = 0; sent < FRAMES; sent++)
		EXPECT(wait_wc(r.sent, &wc, 10000));
	EXPECT(wc.status == IBV_WC_WR_FLUSH_ERR);
	EXPECT_ERRNO(EINVAL, ibv_modify_qp_rate_limit(r.a, &limit));
	close_segmenter(&r);
}

static const struct test_case cases[] = {
	CASE(segments_are_what_tcp_would_have_sent),
	CASE(what_cannot_be_segmented_is_refused),
	CASE(frames_keep_to_the_rate),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
