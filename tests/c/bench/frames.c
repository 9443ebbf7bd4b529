/* frames: Ethernet frames as fast as they go over eth0, by raw packet queue pairs or by a packet socket (packet(7)).
 *
 * `receive` counts frames until one of kind LAST comes; `send` sends that after its seconds. `echo` returns each frame, and `ping`
 * waits for it, both polling. Figures are the receiver's, and half a round trip (median) in microseconds.
 */
#define _GNU_SOURCE
#include "raw/raw.h"
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>

#define BATCH 32
#define SLOTS 1024
#define SLOT 2048
#define BUFFER (4 << 20)
#define MOST_PINGS 100000
/* Offset of a frame's kind: behind the EtherType for local experiments, which no protocol takes. */
#define KIND_AT 14

enum kind { DATA, LAST };

/* How frames are carried. `send` takes the first `count` slots of `outgoing`, all alike. */
struct carrier {
	unsigned char *outgoing;
	void (*send)(struct carrier *carrier, int count, uint32_t size);
	/* Calls with each frame that has come. */
	void (*receive)(struct carrier *carrier, void (*take)(const unsigned char *frame, uint32_t size));
	struct raw raw;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *incoming;
	int unfinished;
	int socket;
};

/* A queue pair. */

static void verbs_send(struct carrier *c, int count, uint32_t size)
{
	struct ibv_send_wr wrs[BATCH], *bad;
	struct ibv_sge sges[BATCH];
	struct ibv_wc wc;

	for (int i = 0; i < count; i++) {
		sges[i] = (struct ibv_sge){(uintptr_t)(c->outgoing + i * SLOT), size, c->mr->lkey};
		wrs[i] = (struct ibv_send_wr){.next = i + 1 < count ? &wrs[i + 1] : NULL, .sg_list = &sges[i], .num_sge = 1,
					      .opcode = IBV_WR_SEND};
	}
	wrs[count - 1].send_flags = IBV_SEND_SIGNALED;
	while (c->unfinished == 2)
		if (ibv_poll_cq(c->send_cq, 1, &wc) == 1) {
			EXPECT(wc.status == IBV_WC_SUCCESS);
			c->unfinished--;
		}
	MUST(ibv_post_send(c->qp, wrs, &bad));
	c->unfinished++;
}

static void verbs_post(struct carrier *c, const struct ibv_wc *wcs, int count)
{
	struct ibv_recv_wr wrs[BATCH], *bad;
	struct ibv_sge sges[BATCH];

	for (int i = 0; i < count; i++) {
		sges[i] = (struct ibv_sge){(uintptr_t)(c->incoming + wcs[i].wr_id * SLOT), SLOT, c->mr->lkey};
		wrs[i] = (struct ibv_recv_wr){.wr_id = wcs[i].wr_id, .next = i + 1 < count ? &wrs[i + 1] : NULL,
					      .sg_list = &sges[i], .num_sge = 1};
	}
	MUST(ibv_post_recv(c->qp, wrs, &bad));
}

static void verbs_receive(struct carrier *c, void (*take)(const unsigned char *frame, uint32_t size))
{
	struct ibv_wc wcs[BATCH];
	int count = ibv_poll_cq(c->recv_cq, BATCH, wcs);

	for (int i = 0; i < count; i++) {
		EXPECT(wcs[i].status == IBV_WC_SUCCESS);
		take(c->incoming + wcs[i].wr_id * SLOT, wcs[i].byte_len);
	}
	if (count > 0)
		verbs_post(c, wcs, count);
}

/* Frames to `own` are for it; NULL: it only sends. */
static void verbs_open(struct carrier *c, const uint8_t *own)
{
	struct rule to_me = empty_rule();

	c->send = verbs_send;
	c->receive = verbs_receive;
	c->raw.device = open_device(0);
	c->send_cq = make_cq(&c->raw.device, 16, NULL);
	c->recv_cq = make_cq(&c->raw.device, SLOTS, NULL);
	c->mr = MAKE(ibv_reg_mr(c->raw.device.pd, c->outgoing, (BATCH + SLOTS) * SLOT, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr init = {
		.send_cq = c->send_cq,
		.recv_cq = c->recv_cq,
		.cap = {.max_send_wr = 4 * BATCH, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RAW_PACKET,
	};
	c->qp = ready(MAKE(ibv_create_qp(c->raw.device.pd, &init)));
	for (int i = 0; own && i < SLOTS; i += BATCH) {
		struct ibv_wc wcs[BATCH];

		for (int j = 0; j < BATCH; j++)
			wcs[j].wr_id = i + j;
		verbs_post(c, wcs, BATCH);
	}
	if (!own)
		return;
	add_destination(&to_me, own);
	MAKE(ibv_create_flow(c->qp, &to_me.attr));
}

/* A packet socket. */

static void socket_send(struct carrier *c, int count, uint32_t size)
{
	struct mmsghdr messages[BATCH] = {};
	struct iovec parts[BATCH];

	for (int i = 0; i < count; i++) {
		parts[i] = (struct iovec){c->outgoing + i * SLOT, size};
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	for (int sent = 0; sent < count;) {
		int more = sendmmsg(c->socket, messages + sent, count - sent, 0);

		if (more < 0 && errno != ENOBUFS)
			fail("sendmmsg: %s", strerror(errno));
		sent += more > 0 ? more : 0;
	}
}

static void socket_receive(struct carrier *c, void (*take)(const unsigned char *frame, uint32_t size))
{
	struct mmsghdr messages[BATCH] = {};
	struct iovec parts[BATCH];

	for (int i = 0; i < BATCH; i++) {
		parts[i] = (struct iovec){c->incoming + i * SLOT, SLOT};
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	int count = recvmmsg(c->socket, messages, BATCH, MSG_DONTWAIT, NULL);

	for (int i = 0; i < count; i++)
		take(c->incoming + i * SLOT, messages[i].msg_len);
}

static void socket_open(struct carrier *c, bool receives)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex("eth0")};
	int buffer = BUFFER, one = 1;

	c->send = socket_send;
	c->receive = socket_receive;
	c->socket = socket(AF_PACKET, SOCK_RAW, 0);
	if (c->socket < 0)
		fail("socket: %s", strerror(errno));
	setsockopt(c->socket, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
	MUST(setsockopt(c->socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one));
	address.sll_protocol = receives ? htons(0x88b5) : 0;
	MUST(bind(c->socket, (struct sockaddr *)&address, sizeof address));
}

/* What is measured. */

static const uint8_t macs[2][6] = {{0x02, 0xfe, 0, 0, 0, 1}, {0x02, 0xfe, 0, 0, 0, 2}};
static uint64_t frames, first_ns, last_ns;
static uint32_t expected_size;
static bool ended;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void write_frames(struct carrier *c, int to, enum kind kind)
{
	for (int i = 0; i < BATCH; i++) {
		unsigned char *frame = c->outgoing + i * SLOT;

		memcpy(frame, macs[to], 6);
		memcpy(frame + 6, macs[!to], 6);
		memcpy(frame + 12, "\x88\xb5", 2);
		frame[KIND_AT] = kind;
	}
}

static void count(const unsigned char *frame, uint32_t size)
{
	if (size != expected_size)
		return;
	if (frame[KIND_AT] == LAST) {
		ended = true;
		return;
	}
	frames++;
}

static void receive_all(struct carrier *c)
{
	uint64_t before;

	printf("ready\n");
	fflush(stdout);
	while (!ended) {
		before = frames;
		c->receive(c, count);
		if (frames != before) {
			last_ns = now_ns();
			if (!first_ns)
				first_ns = last_ns;
		}
	}
	printf("received %llu frames in %f seconds\n", (unsigned long long)frames, (double)(last_ns - first_ns) / 1e9);
}

static void send_for(struct carrier *c, uint64_t seconds)
{
	uint64_t start = now_ns(), end = start + seconds * 1000000000, sent = 0;

	write_frames(c, 1, DATA);
	for (; now_ns() < end; sent += BATCH)
		c->send(c, BATCH, expected_size);
	printf("sent %llu frames in %f seconds\n", (unsigned long long)sent, (double)(now_ns() - start) / 1e9);
	/* The queue before it may be full, so LAST is sent more than once. */
	write_frames(c, 1, LAST);
	for (int i = 0; i < 20; i++) {
		c->send(c, 1, expected_size);
		usleep(5000);
	}
}

static void echo_all(struct carrier *c)
{
	write_frames(c, 0, DATA);
	printf("ready\n");
	fflush(stdout);
	while (!ended) {
		uint64_t before = frames;

		c->receive(c, count);
		for (; before < frames; before++)
			c->send(c, 1, expected_size);
	}
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void ping(struct carrier *c, uint64_t rounds)
{
	static uint64_t times[MOST_PINGS];

	EXPECT(rounds > 0 && rounds <= MOST_PINGS);
	write_frames(c, 1, DATA);
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t start = now_ns();

		c->send(c, 1, expected_size);
		while (frames == i)
			c->receive(c, count);
		times[i] = now_ns() - start;
	}
	write_frames(c, 1, LAST);
	for (int i = 0; i < 5; i++)
		c->send(c, 1, expected_size);
	qsort(times, rounds, sizeof *times, by_value);
	printf("median %f usec\n", (double)times[rounds / 2] / 2e3);
}

int main(int argc, char **argv)
{
	struct carrier c = {.outgoing = MAKE(calloc(BATCH + SLOTS, SLOT))};

	if (argc != 5)
		fail("usage: %s verbs|socket receive|send|echo|ping SIZE SECONDS|ROUNDS", argv[0]);
	alarm(ALARM_SECONDS);
	bool verbs = !strcmp(argv[1], "verbs"), sends = !strcmp(argv[2], "send"), pings = !strcmp(argv[2], "ping");

	c.incoming = c.outgoing + BATCH * SLOT;
	expected_size = (uint32_t)atoi(argv[3]);
	EXPECT(expected_size >= 60 && expected_size <= 1514);
	if (verbs)
		verbs_open(&c, sends ? NULL : macs[!pings]);
	else
		socket_open(&c, !sends);
	if (sends)
		send_for(&c, strtoull(argv[4], NULL, 0));
	else if (pings)
		ping(&c, strtoull(argv[4], NULL, 0));
	else if (!strcmp(argv[2], "echo"))
		echo_all(&c);
	else
		receive_all(&c);
}
