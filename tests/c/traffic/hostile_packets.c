/* hostile_packets: two sides exchange SENDs, WRITEs, READs, atomics (RC) and datagrams (UD) until both got SIGUSR1, and
 * check every byte; they print the numbers that an attacker would have to know.
 *
 * They use less than 2^21 PSNs: slowly enough for a minute, and then they only wait for the end.
 */
#include "common.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>

#define FIRST_PSN 0xffffc0u
#define GUARD 65536u
#define SEND_SIZE 4000u
#define BULK 65536u
#define DATAGRAM 512u
#define GRH 40u
#define RECEIVES 32
#define DATAGRAM_RECEIVES 64
/* PSNs of a round at the path MTU of 1024: SEND, WRITE, READ, two atomics. */
#define ROUND_PSNS (4 + 64 + 64 + 2)
#define PSNS_PER_MS 30
#define MOST_PSNS ((1 << 21) - 2 * ROUND_PSNS)

/* Within the registered memory. */
enum { OUT_SEND = 0, OUT_BULK = OUT_SEND + 4096, BACK = OUT_BULK + BULK, TARGET = BACK + BULK, OLD = TARGET + BULK,
       WORDS = OLD + 4096, OUT_DATAGRAM = WORDS + 4096, IN = OUT_DATAGRAM + 4096, IN_DATAGRAM = IN + RECEIVES * 4096,
       SIZE = IN_DATAGRAM + DATAGRAM_RECEIVES * 1024 };

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *rc, *ud;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	char *mapping, *memory;
	struct address remote, remote_ud;
	int fd;
	/* Requests of a round that are done; rounds begun; messages and datagrams received. */
	unsigned int done;
	uint64_t round, received, datagrams, last_datagram;
};

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static void post_datagram_receive(struct side *side, uint64_t slot)
{
	MUST(post_recv(side->ud, side->mr, IN_DATAGRAM + slot * 1024, 1024, 2000 + slot));
}

static void post_round(struct side *side)
{
	uint64_t number = ++side->round;
	char *m = side->memory;
	uint32_t key = side->mr->lkey;
	struct ibv_sge sges[5] = {{(uintptr_t)m + OUT_SEND, SEND_SIZE, key}, {(uintptr_t)m + OUT_BULK, BULK, key},
				  {(uintptr_t)m + BACK, BULK, key}, {(uintptr_t)m + OLD, 8, key},
				  {(uintptr_t)m + OLD + 8, 8, key}};
	static const enum ibv_wr_opcode opcodes[5] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
	struct ibv_send_wr wr[5], *bad;

	fill(m + OUT_SEND, SEND_SIZE, number);
	fill(m + OUT_BULK, BULK, number + 1000000);
	fill(m + OUT_DATAGRAM, DATAGRAM, number + 2000000);
	memcpy(m + OUT_DATAGRAM, &number, sizeof number);
	for (int i = 0; i < 5; i++) {
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i, .next = i < 4 ? &wr[i + 1] : NULL, .sg_list = &sges[i],
					     .num_sge = 1, .opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED};
		if (i == 1 || i == 2) {
			wr[i].wr.rdma.remote_addr = side->remote.buffer + TARGET;
			wr[i].wr.rdma.rkey = side->remote.rkey;
		}
	}
	for (int i = 3; i < 5; i++) {
		wr[i].wr.atomic.remote_addr = side->remote.buffer + WORDS + (i == 3 ? 0 : 8);
		wr[i].wr.atomic.rkey = side->remote.rkey;
	}
	wr[3].wr.atomic.compare_add = 3;
	wr[4].wr.atomic.compare_add = number - 1;
	wr[4].wr.atomic.swap = number;
	side->done = 0;
	MUST(ibv_post_send(side->rc, wr, &bad));

	struct ibv_sge sge = {(uintptr_t)m + OUT_DATAGRAM, DATAGRAM, key};
	struct ibv_send_wr datagram = {.wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				       .send_flags = IBV_SEND_SIGNALED};

	datagram.wr.ud.ah = side->ah;
	datagram.wr.ud.remote_qpn = side->remote_ud.qpn;
	datagram.wr.ud.remote_qkey = QKEY;
	MUST(ibv_post_send(side->ud, &datagram, &bad));
}

static void check_round(struct side *side)
{
	uint64_t old[2];

	check(side->memory + BACK, BULK, side->round + 1000000, "read after write");
	memcpy(old, side->memory + OLD, sizeof old);
	if (old[0] != 3 * (side->round - 1) || old[1] != side->round - 1)
		fail("round %llu: the atomics returned %llu and %llu", (unsigned long long)side->round,
		     (unsigned long long)old[0], (unsigned long long)old[1]);
}

static void take_datagram(struct side *side, const struct ibv_wc *wc)
{
	char *datagram = side->memory + IN_DATAGRAM + (wc->wr_id - 2000) * 1024 + GRH;
	uint64_t number;

	memcpy(&number, datagram, sizeof number);
	if (wc->byte_len != GRH + DATAGRAM || wc->src_qp != side->remote_ud.qpn || number <= side->last_datagram)
		fail("a datagram of %u bytes from QP %u, number %llu after %llu", wc->byte_len, wc->src_qp,
		     (unsigned long long)number, (unsigned long long)side->last_datagram);
	fill(datagram, sizeof number, number + 2000000);
	check(datagram, DATAGRAM, number + 2000000, "datagram");
	side->last_datagram = number;
	side->datagrams++;
	post_datagram_receive(side, wc->wr_id - 2000);
}

static void progress(struct side *side)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(side->cq, 16, wc);

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	for (int i = 0; i < count; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			fail("request %llu of QP %u in round %llu: %s", (unsigned long long)wc[i].wr_id, wc[i].qp_num,
			     (unsigned long long)side->round, ibv_wc_status_str(wc[i].status));
		if (!(wc[i].opcode & IBV_WC_RECV)) {
			side->done++;
		} else if (wc[i].qp_num == side->ud->qp_num) {
			take_datagram(side, &wc[i]);
		} else {
			if (wc[i].byte_len != SEND_SIZE || wc[i].wr_id != 1000 + side->received % RECEIVES)
				fail("message %llu has %u bytes", (unsigned long long)side->received, wc[i].byte_len);
			check(side->memory + IN + side->received % RECEIVES * 4096, SEND_SIZE, side->received + 1,
			      "message");
			MUST(post_recv(side->rc, side->mr, IN + side->received % RECEIVES * 4096, 4096, wc[i].wr_id));
			side->received++;
		}
	}
}

static void run(struct side *side)
{
	uint64_t start = now_ms(), received = UINT64_MAX;
	bool said = false;

	side->done = 6;
	/* Rounds until SIGUSR1; then waits until all rounds of the other side have been received. */
	while (!said || received != side->received) {
		progress(side);
		if (side->done == 6 && !said) {
			if (side->round)
				check_round(side);
			if (stopped) {
				if (send(side->fd, &side->round, sizeof side->round, MSG_NOSIGNAL) < 0)
					fail("the other side is gone");
				said = true;
			} else if (side->round * ROUND_PSNS <= (now_ms() - start) * PSNS_PER_MS &&
				   side->round * ROUND_PSNS < MOST_PSNS) {
				post_round(side);
			} else {
				usleep(100);
			}
		}
		struct pollfd ready = {.fd = side->fd, .events = POLLIN};

		if (received == UINT64_MAX && poll(&ready, 1, 0) == 1 &&
		    recv(side->fd, &received, sizeof received, MSG_WAITALL) != sizeof received)
			fail("the other side is gone");
	}
}

static void connect_sides(struct side *side)
{
	struct path path = default_path(&side->device);
	struct address mine = {.qpn = side->rc->qp_num, .psn = FIRST_PSN, .rkey = side->mr->rkey,
			       .buffer = (uintptr_t)side->memory, .gid = side->device.gid};
	struct address mine_ud = {.qpn = side->ud->qp_num, .psn = FIRST_PSN, .gid = side->device.gid};
	struct ibv_ah_attr ah;
	char ready = 1, other;

	path.timeout = 15;
	if (!exchange(side->fd, &mine, &side->remote, sizeof mine) ||
	    !exchange(side->fd, &mine_ud, &side->remote_ud, sizeof mine_ud))
		fail("the other side is gone");
	MUST(to_rtr(side->rc, &side->device, &path, &side->remote));
	MUST(to_rts(side->rc, &path, mine.psn));
	MUST(to_rtr(side->ud, &side->device, &path, &side->remote_ud));
	MUST(to_rts(side->ud, &path, mine_ud.psn));
	fill_ah(&ah, &side->device, &side->remote_ud.gid);
	side->ah = MAKE(ibv_create_ah(side->device.pd, &ah));
	if (!exchange(side->fd, &ready, &other, 1))
		fail("the other side is gone");
	printf("ready rc=%u ud=%u psn=%u qkey=%u rkey=%u va=%llu\n", side->rc->qp_num, side->ud->qp_num,
	       FIRST_PSN, QKEY, side->mr->rkey, (unsigned long long)(uintptr_t)side->memory);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct side side = {0};
	int port = 18515, gid_index = 1, option;

	while ((option = getopt(argc, argv, "p:g:")) != -1) {
		switch (option) {
		case 'p': port = atoi(optarg); break;
		case 'g': gid_index = atoi(optarg); break;
		default: fail("usage: hostile_packets [-p PORT] [-g GID_INDEX] [SERVER]");
		}
	}
	/* The test's sender of packets is slow on a busy machine. */
	alarm(3 * ALARM_SECONDS);
	signal(SIGUSR1, stop);
	side.device = open_device(gid_index);
	side.cq = make_cq(&side.device, 512, NULL);
	side.rc = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, RECEIVES);
	side.ud = make_qp(&side.device, IBV_QPT_UD, side.cq, NULL, DATAGRAM_RECEIVES);
	side.mapping = MAKE(aligned_alloc(4096, SIZE + 2 * GUARD));
	memset(side.mapping, 0x5c, SIZE + 2 * GUARD);
	side.memory = side.mapping + GUARD;
	memset(side.memory, 0, SIZE);
	side.mr = MAKE(ibv_reg_mr(side.device.pd, side.memory, SIZE, ALL_ACCESS));
	MUST(to_init(side.rc, ALL_ACCESS));
	MUST(to_init(side.ud, 0));
	for (uint64_t i = 0; i < RECEIVES; i++)
		MUST(post_recv(side.rc, side.mr, IN + i * 4096, 4096, 1000 + i));
	for (uint64_t i = 0; i < DATAGRAM_RECEIVES; i++)
		post_datagram_receive(&side, i);
	side.fd = meet(argv[optind], port);
	connect_sides(&side);
	run(&side);
	/* The peer's last WRITE, its atomics, and nothing around them. */
	uint64_t words[2];

	memcpy(words, side.memory + WORDS, sizeof words);
	if (words[0] != 3 * side.received || words[1] != side.received)
		fail("the words of the atomics are %llu and %llu after %llu rounds", (unsigned long long)words[0],
		     (unsigned long long)words[1], (unsigned long long)side.received);
	check(side.memory + TARGET, BULK, side.received + 1000000, "what was written");
	for (size_t i = 16; i < 4096; i++)
		if (side.memory[WORDS + i])
			fail("byte %zu behind the words was written to", i);
	for (size_t i = 0; i < GUARD; i++)
		if (side.mapping[i] != 0x5c || side.mapping[GUARD + SIZE + i] != 0x5c)
			fail("a guard was written to, at %zu", i);
	if (!side.datagrams)
		fail("no datagram arrived");
	printf("%llu rounds, %llu messages and %llu datagrams were right\n", (unsigned long long)side.round,
	       (unsigned long long)side.received, (unsigned long long)side.datagrams);
	return 0;
}
