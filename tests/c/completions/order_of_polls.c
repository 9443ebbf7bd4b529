/* order_of_polls: two processes send each other short messages over two RC connections, whose completions all go to one queue. Each
 * polls for another number of completions each time, sleeps now and then so that completions wait in the queue, and at times
 * sleeps until the queue's event. Sends and receives of each connection complete in their order, each with its data.
 *
 * Each side draws from a seed of its own what it does next.
 */
#include "common.h"

#define MESSAGES 10000
#define CONNECTIONS 2
#define DEPTH 32
#define LONGEST 100
#define MOST_POLLED 5
#define EVENT_MILLISECONDS 10000
#define SEEDS 3

/* Below, at and above what one line of memory holds, and what is copied beside the position. */
static const uint32_t lengths[] = {0, 1, 8, 15, 16, 17, 24, 39, 40, 41, LONGEST};

/* The first sends and the second receives this one: both fill it alike. */
static uint32_t length_of(uint64_t message)
{
	return lengths[message * 7919 % (sizeof lengths / sizeof *lengths)];
}

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
	drawn = drawn * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(drawn >> 33) % below;
}

struct connection {
	struct ibv_qp *qp;
	uint64_t posted, sent, receives, received;
};

struct side {
	struct device device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct connection connections[CONNECTIONS];
	/* Of each connection first what is sent, then what is received. */
	char memory[CONNECTIONS][2][DEPTH][LONGEST];
};

static struct side side;

static size_t offset_of(int connection, int received, uint64_t message)
{
	return (size_t)(side.memory[connection][received][message % DEPTH] - (char *)side.memory);
}

/* Messages of connections differ. */
static uint64_t seed_of(int connection, uint64_t message)
{
	return message * CONNECTIONS + (uint64_t)connection;
}

static void post_receive(int number)
{
	struct connection *connection = &side.connections[number];
	uint64_t message = connection->receives++;

	MUST(post_recv(connection->qp, side.mr, offset_of(number, 1, message), LONGEST, message));
}

static void send_one(int number)
{
	struct connection *connection = &side.connections[number];
	uint64_t message = connection->posted;

	if (message == MESSAGES || message - connection->sent == DEPTH)
		return;
	connection->posted++;
	fill(side.memory[number][0][message % DEPTH], length_of(message), seed_of(number, message));
	MUST(post_send(connection->qp, side.mr, offset_of(number, 0, message), length_of(message), message));
}

static void take(const struct ibv_wc *wc)
{
	int number = wc->qp_num == side.connections[0].qp->qp_num ? 0 : 1;
	struct connection *connection = &side.connections[number];
	bool receives = wc->opcode & IBV_WC_RECV;
	uint64_t expected = receives ? connection->received++ : connection->sent++;

	if (wc->status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc->status));
	if (wc->wr_id != expected)
		fail("connection %d: %s %llu where %llu is next", number, receives ? "receive" : "send",
		     (unsigned long long)wc->wr_id, (unsigned long long)expected);
	if (!receives)
		return;
	if (wc->byte_len != length_of(expected))
		fail("%u bytes where %u were sent", wc->byte_len, length_of(expected));
	check(side.memory[number][1][expected % DEPTH], wc->byte_len, seed_of(number, expected), "a message");
	if (connection->receives < MESSAGES)
		post_receive(number);
}

/* Takes what one poll gives; returns how much. */
static int poll_some(void)
{
	struct ibv_wc wc[MOST_POLLED];
	int room = 1 + (int)draw(MOST_POLLED), count = ibv_poll_cq(side.cq, room, wc);

	if (count < 0 || count > room)
		fail("a poll for %d gave %d", room, count);
	for (int i = 0; i < count; i++)
		take(&wc[i]);
	return count;
}

static bool is_done(void)
{
	for (int i = 0; i < CONNECTIONS; i++)
		if (side.connections[i].sent < MESSAGES || side.connections[i].received < MESSAGES)
			return false;
	return true;
}

/* Something that was sent hasn't completed. */
static bool awaits_completion(void)
{
	for (int i = 0; i < CONNECTIONS; i++)
		if (side.connections[i].sent < side.connections[i].posted)
			return true;
	return false;
}

/* Asks for an event, takes what has come before, and sleeps until the event if one will come whatever the other side does. */
static void wait_for_event(void)
{
	struct ibv_cq *cq;
	void *context;

	MUST(ibv_req_notify_cq(side.cq, 0));
	while (poll_some())
		;
	if (!awaits_completion())
		return;
	if (!is_readable(side.channel->fd, EVENT_MILLISECONDS))
		fail("no event came");
	MUST(ibv_get_cq_event(side.channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

static void play(int fd, int number)
{
	struct address mine[CONNECTIONS], theirs[CONNECTIONS];
	struct path path;
	char ready = 1, other;

	side.device = open_device(1);
	side.channel = MAKE(ibv_create_comp_channel(side.device.context));
	side.cq = make_cq(&side.device, 4 * CONNECTIONS * DEPTH, side.channel);
	side.mr = MAKE(ibv_reg_mr(side.device.pd, side.memory, sizeof side.memory, ALL_ACCESS));
	path = default_path(&side.device);
	for (int i = 0; i < CONNECTIONS; i++) {
		side.connections[i].qp = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, DEPTH);
		MUST(to_init(side.connections[i].qp, path.access));
		while (side.connections[i].receives < DEPTH)
			post_receive(i);
		mine[i] = (struct address){.qpn = side.connections[i].qp->qp_num, .gid = side.device.gid};
	}
	if (!exchange(fd, mine, theirs, sizeof mine))
		fail("the other side has gone");
	for (int i = 0; i < CONNECTIONS; i++) {
		MUST(to_rtr(side.connections[i].qp, &side.device, &path, &theirs[i]));
		MUST(to_rts(side.connections[i].qp, &path, 0));
	}
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	drawn += (uint64_t)number;
	while (!is_done()) {
		uint32_t action = draw(1000);

		if (action < 300)
			send_one((int)draw(CONNECTIONS));
		else if (action < 995)
			poll_some();
		else if (action < 998)
			usleep(draw(3000));
		else
			wait_for_event();
	}
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
}

int main(void)
{
	alarm(ALARM_SECONDS);
	for (int seed = 0; seed < SEEDS; seed++) {
		drawn = (uint64_t)seed * 1000;
		run_two_sides(play, seed);
	}
	puts("ok");
	return 0;
}
