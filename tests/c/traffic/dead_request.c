/* A request without an answer fails, however much traffic there is beside it: `dead_request one|two` in a process or between two. Queue
 * pairs exchange messages all the time, each with its twin. One more has a twin that goes to RESET after a first message.
 */
#include "common.h"

#define STREAMS 3
#define DEPTH 32
#define BYTES 64
/* Work requests of the queue pair whose twin vanishes. */
#define FIRST 1000
#define DEAD 1001
#define RECEIVE 1002
/* A retry takes 12.6 ms; the rest is for a busy machine. */
#define LIMIT_MS 10000

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	/* The last one is the one whose twin vanishes. */
	struct ibv_qp *qps[STREAMS + 1];
	uint64_t messages;
	bool first_done, dead_done;
};

static struct side make_side(void)
{
	struct side side = {.device = open_device(1)};

	side.cq = make_cq(&side.device, 4 * (STREAMS + 1) * DEPTH, NULL);
	side.mr = MAKE(ibv_reg_mr(side.device.pd, map_apart(BYTES), BYTES, ALL_ACCESS));
	for (int i = 0; i <= STREAMS; i++) {
		side.qps[i] = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, DEPTH);
		MUST(to_init(side.qps[i], ALL_ACCESS));
		for (int k = 0; k < DEPTH; k++)
			MUST(post_recv(side.qps[i], side.mr, 0, BYTES, i == STREAMS ? RECEIVE : (uint64_t)i));
	}
	return side;
}

static struct address address_of(const struct side *side, int i)
{
	return (struct address){.qpn = side->qps[i]->qp_num, .gid = side->device.gid};
}

static void connect_to(struct side *side, int i, const struct address *twin)
{
	struct path path = default_path(&side->device);

	path.timeout = 1;
	path.retry_count = i == STREAMS ? 1 : 7;
	MUST(to_rtr(side->qps[i], &side->device, &path, twin));
	MUST(to_rts(side->qps[i], &path, 0));
}

/* Sends from all queue pairs but the last. */
static void start_streams(struct side *side)
{
	for (int i = 0; i < STREAMS; i++)
		for (int k = 0; k < DEPTH / 2; k++)
			MUST(post_send(side->qps[i], side->mr, 0, BYTES, (uint64_t)i));
}

/* Goes on with the streams. */
static void progress(struct side *side)
{
	struct ibv_wc wcs[16];
	int count = ibv_poll_cq(side->cq, 16, wcs);

	for (int i = 0; i < count; i++) {
		uint64_t id = wcs[i].wr_id;

		if (id == DEAD) {
			if (wcs[i].status != IBV_WC_RETRY_EXC_ERR)
				fail("no answer came, and the status is %s", ibv_wc_status_str(wcs[i].status));
			side->dead_done = true;
			continue;
		}
		if (wcs[i].status == IBV_WC_WR_FLUSH_ERR && id == RECEIVE)
			continue;
		if (wcs[i].status)
			fail("request %llu: %s", (unsigned long long)id, ibv_wc_status_str(wcs[i].status));
		if (id == FIRST)
			side->first_done = true;
		if (id >= STREAMS)
			continue;
		side->messages++;
		if (wcs[i].opcode == IBV_WC_RECV)
			MUST(post_recv(side->qps[id], side->mr, 0, BYTES, id));
		else
			MUST(post_send(side->qps[id], side->mr, 0, BYTES, id));
	}
}

static void send_first(struct side *side)
{
	MUST(post_send(side->qps[STREAMS], side->mr, 0, BYTES, FIRST));
	while (!side->first_done)
		progress(side);
}

static void send_dead(struct side *side, struct side *other)
{
	uint64_t end = now_ms() + LIMIT_MS, before = side->messages;

	MUST(post_send(side->qps[STREAMS], side->mr, 0, BYTES, DEAD));
	while (!side->dead_done) {
		progress(side);
		if (other)
			progress(other);
		if (now_ms() > end)
			fail("no answer came, and the request doesn't end");
	}
	if (side->messages == before)
		fail("there was no traffic beside it");
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static bool is_told(int fd)
{
	char told;

	return recv(fd, &told, 1, MSG_DONTWAIT) == 1;
}

static void tell(int fd)
{
	char told = 1;

	if (send(fd, &told, 1, MSG_NOSIGNAL) != 1)
		fail("the other side is gone");
}

static void play(int fd, int number)
{
	struct side side = make_side();
	char ready = 1, other;

	for (int i = 0; i <= STREAMS; i++) {
		struct address mine = address_of(&side, i), twin;

		if (!exchange(fd, &mine, &twin, sizeof mine))
			fail("the other side is gone");
		connect_to(&side, i, &twin);
	}
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	start_streams(&side);
	if (number == 0) {
		send_first(&side);
		tell(fd);
		while (!is_told(fd))
			progress(&side);
		send_dead(&side, NULL);
		tell(fd);
	} else {
		while (!is_told(fd))
			progress(&side);
		reset(side.qps[STREAMS]);
		tell(fd);
		while (!is_told(fd))
			progress(&side);
	}
}

static void play_in_one(void)
{
	struct side sides[] = {make_side(), make_side()};

	for (int i = 0; i <= STREAMS; i++)
		for (int k = 0; k < 2; k++) {
			struct address twin = address_of(&sides[1 - k], i);

			connect_to(&sides[k], i, &twin);
		}
	start_streams(&sides[0]);
	start_streams(&sides[1]);
	send_first(&sides[0]);
	reset(sides[1].qps[STREAMS]);
	send_dead(&sides[0], &sides[1]);
}

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	if (argc == 2 && !strcmp(argv[1], "two"))
		run_two_sides(play, 0);
	else if (argc == 2 && !strcmp(argv[1], "one"))
		play_in_one();
	else
		fail("usage: %s one|two", argv[0]);
	puts("the request ended");
	return 0;
}
