/* multicast: datagrams to a multicast group.
 *
 * usage: multicast [-g GID_INDEX] [-n MESSAGES] [-q QPS] [-s BYTES] [-i MICROSECONDS] [-j] receive|send|both GROUP
 *
 * `receive` attaches its queue pairs, prints that, and checks that each of them gets every message, once and in order. Then
 * it detaches them: nothing may come after that. `send` sends, `both` does both at once with queue pairs of one process.
 * `-i` is the time between two messages; the sender goes on for a while after the last, for those who have left.
 * `-j` joins the group with a UDP socket too: rdma_rxe adds the group to the Ethernet device only, not to the IP layer.
 */
#include "common.h"

#include <net/if.h>

#define MULTICAST_QPN 0xffffff
#define GRH_BYTES 40
#define DEPTH 2048
#define MOST_QPS 16
/* Messages sent after the last that counts. */
#define FAREWELL 50

static int gid_index = 1, interval_us = 300;
static unsigned int messages = 1000, qps = 1;
static uint32_t size = 500;
static bool join_ip;
static union ibv_gid group;

struct receiver {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
	unsigned int next;
};

static struct device device;
static struct path path;
static struct receiver receivers[MOST_QPS];

static uint32_t slot_bytes(void)
{
	return GRH_BYTES + size;
}

static void ready(struct ibv_qp *qp)
{
	struct address nobody = {.gid = device.gid};

	MUST(to_init(qp, 0));
	MUST(to_rtr(qp, &device, &path, &nobody));
	MUST(to_rts(qp, &path, 7));
}

static void make_receiver(struct receiver *r)
{
	size_t bytes = (size_t)DEPTH * slot_bytes();

	r->cq = make_cq(&device, DEPTH, NULL);
	r->qp = make_qp(&device, IBV_QPT_UD, r->cq, NULL, DEPTH);
	r->memory = MAKE(calloc(1, bytes));
	r->mr = MAKE(ibv_reg_mr(device.pd, r->memory, bytes, IBV_ACCESS_LOCAL_WRITE));
	ready(r->qp);
	for (uint32_t slot = 0; slot < DEPTH; slot++)
		MUST(post_recv(r->qp, r->mr, (size_t)slot * slot_bytes(), slot_bytes(), slot));
	MUST(ibv_attach_mcast(r->qp, &group, 0));
	/* As good as once. */
	MUST(ibv_attach_mcast(r->qp, &group, 0));
}

/* The network header before the payload names the group: an IPv6 header, or an IPv4 one in the last half. */
static void check_grh(const unsigned char *grh)
{
	if (group.raw[0] == 0xff) {
		if (grh[0] >> 4 != 6 || memcmp(grh + 24, group.raw, 16))
			fail("the GRH names another group");
	} else if (grh[20] != 0x45 || memcmp(grh + 36, group.raw + 12, 4)) {
		fail("the GRH names another group");
	}
}

static void take(struct receiver *r, const struct ibv_wc *wc)
{
	const char *slot = r->memory + wc->wr_id * slot_bytes();

	if (wc->status != IBV_WC_SUCCESS)
		fail("receiving: %s", ibv_wc_status_str(wc->status));
	if (wc->opcode != IBV_WC_RECV || wc->byte_len != slot_bytes() ||
	    wc->wc_flags != (IBV_WC_GRH | IBV_WC_WITH_IMM))
		fail("opcode %d, %u bytes, flags %#x", wc->opcode, wc->byte_len, wc->wc_flags);
	if (ntohl(wc->imm_data) != r->next)
		fail("message %u came where number %u was due", ntohl(wc->imm_data), r->next);
	check_grh((const unsigned char *)slot);
	check(slot + GRH_BYTES, size, r->next, "message");
	r->next++;
	MUST(post_recv(r->qp, r->mr, wc->wr_id * slot_bytes(), slot_bytes(), wc->wr_id));
}

/* Takes what has come; whether each receiver has all messages. */
static bool receive_some(void)
{
	bool all = true;

	for (unsigned int i = 0; i < qps; i++) {
		struct receiver *r = &receivers[i];
		struct ibv_wc wc[16];
		int count = ibv_poll_cq(r->cq, 16, wc);

		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		for (int n = 0; n < count; n++) {
			take(r, &wc[n]);
			if (r->next == messages / 2 && i == 0) {
				puts("half");
				fflush(stdout);
			}
		}
		all &= r->next >= messages;
	}
	return all;
}

static void leave(void)
{
	struct ibv_wc wc[16];

	for (unsigned int i = 0; i < qps; i++) {
		struct receiver *r = &receivers[i];

		MUST(ibv_detach_mcast(r->qp, &group, 0));
		/* What came before the end. */
		for (int count; (count = ibv_poll_cq(r->cq, 16, wc)) > 0;)
			for (int n = 0; n < count; n++)
				take(r, &wc[n]);
	}
	puts("left");
	fflush(stdout);
	for (uint64_t end = now_ms() + 300; now_ms() < end;)
		for (unsigned int i = 0; i < qps; i++)
			if (ibv_poll_cq(receivers[i].cq, 1, wc))
				fail("something came after the end");
	for (unsigned int i = 0; i < qps; i++)
		MUST(ibv_destroy_qp(receivers[i].qp));
}

static void pause_us(int microseconds)
{
	struct timespec time = {.tv_nsec = microseconds * 1000L};

	nanosleep(&time, NULL);
}

static void receive(void)
{
	while (!receive_some())
		;
	printf("each of %u got all of %u\n", qps, messages);
	leave();
}

struct sender {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	char *memory;
};

static struct sender make_sender(void)
{
	struct sender s = {.memory = MAKE(calloc(1, size))};
	struct ibv_ah_attr attr;

	s.cq = make_cq(&device, 16, NULL);
	s.qp = make_qp(&device, IBV_QPT_UD, s.cq, NULL, 16);
	s.mr = MAKE(ibv_reg_mr(device.pd, s.memory, size, 0));
	ready(s.qp);
	fill_ah(&attr, &device, &group);
	s.ah = MAKE(ibv_create_ah(device.pd, &attr));
	return s;
}

static void send_one(struct sender *s, uint32_t number)
{
	struct ibv_sge sge = {(uintptr_t)s->memory, size, s->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = number,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND_WITH_IMM,
				 .imm_data = htonl(number),
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.ud = {.ah = s->ah, .remote_qpn = MULTICAST_QPN, .remote_qkey = QKEY}},
			   *bad;
	struct ibv_wc wc;

	fill(s->memory, size, number);
	MUST(ibv_post_send(s->qp, &wr, &bad));
	MUST_COMPLETE(s->cq, &wc);
	if (wc.wr_id != number)
		fail("request %u completed as %llu", number, (unsigned long long)wc.wr_id);
}

static void send_all(bool receiving)
{
	struct sender s = make_sender();

	for (uint32_t number = 0; number < messages + (receiving ? 0 : FAREWELL); number++) {
		send_one(&s, number);
		pause_us(interval_us);
		if (receiving)
			receive_some();
	}
	puts("sent");
	fflush(stdout);
	MUST(ibv_destroy_ah(s.ah));
	MUST(ibv_destroy_qp(s.qp));
}

static void join_group(const char *interface)
{
	int on = (int)if_nametoindex(interface), fd;

	if (group.raw[0] == 0xff) {
		struct ipv6_mreq membership = {.ipv6mr_interface = (unsigned int)on};

		memcpy(&membership.ipv6mr_multiaddr, group.raw, 16);
		fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		MUST(setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &membership, sizeof membership));
	} else {
		struct ip_mreqn membership = {.imr_ifindex = on};

		memcpy(&membership.imr_multiaddr, group.raw + 12, 4);
		fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		MUST(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership));
	}
}

static void read_group(const char *text)
{
	struct in_addr ipv4;

	if (inet_pton(AF_INET, text, &ipv4) == 1) {
		group = (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff}};
		memcpy(group.raw + 12, &ipv4, 4);
	} else if (inet_pton(AF_INET6, text, group.raw) != 1) {
		fail("%s isn't an address", text);
	}
}

int main(int argc, char **argv)
{
	bool receives, sends;

	for (int option; (option = getopt(argc, argv, "g:n:q:s:i:j")) != -1;)
		switch (option) {
		case 'g': gid_index = atoi(optarg); break;
		case 'n': messages = (unsigned int)atoi(optarg); break;
		case 'q': qps = (unsigned int)atoi(optarg); break;
		case 's': size = (uint32_t)atoi(optarg); break;
		case 'i': interval_us = atoi(optarg); break;
		case 'j': join_ip = true; break;
		default: fail("no such option");
		}
	if (argc - optind != 2 || qps > MOST_QPS || !size)
		fail("usage: %s [-g GID_INDEX] [-n MESSAGES] [-q QPS] [-s BYTES] [-i MICROSECONDS] [-j] "
		     "receive|send|both GROUP", argv[0]);
	alarm(ALARM_SECONDS);
	read_group(argv[optind + 1]);
	receives = strcmp(argv[optind], "send");
	sends = strcmp(argv[optind], "receive");
	device = open_device(gid_index);
	path = default_path(&device);
	if (join_ip)
		join_group("eth0");
	if (receives) {
		for (unsigned int i = 0; i < qps; i++)
			make_receiver(&receivers[i]);
		puts("attached");
		fflush(stdout);
	}
	if (sends)
		send_all(receives);
	if (receives)
		receive();
	return 0;
}
