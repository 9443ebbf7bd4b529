/* before_the_flush: a request that the peer has acknowledged, and confirms by other means, ends with success although the queue pair goes
 * to ERR next; what the peer has sent before is received. An adapter has taken both from the wire by then.
 */
#include "common.h"
#include "connections/ids.h"

#define ROUNDS 40
#define CONNECTIONS 15
#define DEPTH 8
#define LENGTH 64
/* SENDs after the first request of a round: their receives show that all has been acknowledged. */
#define SENDS 2
/* Queue pairs between two processes, and requests at once of each: together they fill the ring between the processes. */
#define MANY 24
#define BURST 32
#define LARGE 20000
#define MANY_ROUNDS 30
/* The address of the host of the tests. */
#define HERE "10.77.0.1"

static const enum ibv_wr_opcode first[] = {
	IBV_WR_SEND,
	IBV_WR_RDMA_WRITE,
	IBV_WR_SEND_WITH_IMM,
	IBV_WR_RDMA_READ,
	IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_WR_ATOMIC_FETCH_AND_ADD,
	IBV_WR_ATOMIC_CMP_AND_SWP,
};

struct side {
	int fd;
	uint32_t depth;
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address theirs;
};

static void to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static enum ibv_wr_opcode first_of(int round)
{
	return first[(size_t)round % (sizeof first / sizeof *first)];
}

static bool takes_a_receive(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Both sides come to this point. */
static void meet_here(const struct side *side)
{
	char mine = 0, theirs;

	if (!exchange(side->fd, &mine, &theirs, 1))
		fail("the other side has gone");
}

static struct side side_of(int fd, uint32_t depth, int entries)
{
	static char memory[LARGE] __attribute__((aligned(8)));
	struct side side = {.fd = fd, .depth = depth, .device = open_device(1)};

	side.cq = make_cq(&side.device, entries, NULL);
	side.mr = MAKE(ibv_reg_mr(side.device.pd, memory, LARGE, ALL_ACCESS));
	return side;
}

/* Connects a new queue pair, or the one there is anew. */
static void connect_side(struct side *side)
{
	struct path path = default_path(&side->device);
	struct address mine;

	if (side->qp)
		to_state(side->qp, IBV_QPS_RESET);
	else
		side->qp = make_qp(&side->device, IBV_QPT_RC, side->cq, NULL, side->depth);
	MUST(to_init(side->qp, path.access));
	mine = (struct address){.qpn = side->qp->qp_num,
				.rkey = side->mr->rkey,
				.buffer = (uintptr_t)side->mr->addr,
				.gid = side->device.gid};
	if (!exchange(side->fd, &mine, &side->theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(side->qp, &side->device, &path, &side->theirs));
	MUST(to_rts(side->qp, &path, 0));
	meet_here(side);
}

static void request(const struct side *side, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)side->mr->addr, 8, side->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	set_remote(&wr, side->theirs.buffer, side->theirs.rkey);
	MUST(ibv_post_send(qp, &wr, &bad));
}

static void receive(const struct side *side, struct ibv_qp *qp)
{
	for (int i = 0; i < SENDS + 1; i++)
		MUST(post_recv(qp, side->mr, 0, LENGTH, 0));
}

static void complete(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc;

	while (count--)
		MUST_COMPLETE(cq, &wc);
}

/* A round of the side whose requests end with success, and of the other, which has received them before. */
static void request_round(const struct side *side, struct ibv_qp *qp, struct ibv_cq *send_cq, enum ibv_wr_opcode opcode,
			  void (*end)(void *), void *what)
{
	meet_here(side);
	request(side, qp, opcode, 0);
	for (int i = 0; i < SENDS; i++)
		request(side, qp, IBV_WR_SEND, 1);
	meet_here(side);
	end(what);
	complete(send_cq, SENDS + 1);
	meet_here(side);
}

static void answer_round(const struct side *side, struct ibv_qp *qp, struct ibv_cq *recv_cq, enum ibv_wr_opcode opcode)
{
	receive(side, qp);
	meet_here(side);
	complete(recv_cq, takes_a_receive(opcode) ? SENDS + 1 : SENDS);
	meet_here(side);
	meet_here(side);
}

static void to_error(void *qp)
{
	to_state(qp, IBV_QPS_ERR);
}

static void drain_then_to_error(void *qp)
{
	to_state(qp, IBV_QPS_SQD);
	to_error(qp);
}

static void play_requests(int fd, int number, void (*end)(void *))
{
	struct side side = side_of(fd, DEPTH, 4 * DEPTH);

	for (int round = 0; round < ROUNDS; round++) {
		connect_side(&side);
		if (number == 0)
			request_round(&side, side.qp, side.cq, first_of(round), end, side.qp);
		else
			answer_round(&side, side.qp, side.cq, first_of(round));
	}
}

static void play_error(int fd, int number)
{
	play_requests(fd, number, to_error);
}

static void play_drain(int fd, int number)
{
	play_requests(fd, number, drain_then_to_error);
}

static void acknowledged_requests_succeed_when_the_queue_pair_goes_to_err(void)
{
	run_two_sides(play_error, 0);
}

static void acknowledged_requests_succeed_when_it_drains_before(void)
{
	run_two_sides(play_drain, 0);
}

static void disconnect(void *id)
{
	MUST(rdma_disconnect(id));
}

static void pass_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	MUST(rdma_get_cm_event(channel, &event));
	if (event->event != type)
		fail("%s came, not %s", rdma_event_str(event->event), rdma_event_str(type));
	MUST(rdma_ack_cm_event(event));
}

/* Gives an id a queue pair with memory. */
static void prepare(struct side *side, struct rdma_cm_id *id, char *memory)
{
	add_qp(id);
	side->mr = MAKE(ibv_reg_mr(id->pd, memory, LENGTH, ALL_ACCESS));
}

static void establish(struct side *side, struct rdma_event_channel *channel)
{
	struct address mine = {.rkey = side->mr->rkey, .buffer = (uintptr_t)side->mr->addr};

	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	if (!exchange(side->fd, &mine, &side->theirs, sizeof mine))
		fail("the other side has gone");
}

static void play_disconnect(int fd, int number)
{
	static char memory[LENGTH] __attribute__((aligned(8)));
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
	struct side side = {.fd = fd};
	struct rdma_cm_id *listener = NULL;
	uint16_t mine = 0, port;

	if (number == 1) {
		listener = new_id(channel, RDMA_PS_TCP);
		MUST(bind_to(listener, HERE, 0));
		MUST(rdma_listen(listener, 4));
		mine = ntohs(rdma_get_src_port(listener));
	}
	if (!exchange(fd, &mine, &port, sizeof mine))
		fail("the other side has gone");
	for (int round = 0; round < CONNECTIONS; round++) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;

		if (number == 0) {
			id = new_id(channel, RDMA_PS_TCP);
			MUST(resolve(id, HERE, port));
			pass_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
			MUST(rdma_resolve_route(id, 2000));
			pass_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
			prepare(&side, id, memory);
			MUST(rdma_connect(id, &param));
			establish(&side, channel);
			request_round(&side, id->qp, id->send_cq, first_of(round), disconnect, id);
		} else {
			MUST(rdma_get_cm_event(channel, &event));
			id = event->id;
			MUST(rdma_ack_cm_event(event));
			prepare(&side, id, memory);
			MUST(rdma_accept(id, &param));
			establish(&side, channel);
			answer_round(&side, id->qp, id->recv_cq, first_of(round));
		}
		pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(id);
		MUST(ibv_dereg_mr(side.mr));
		MUST(rdma_destroy_id(id));
	}
}

static void acknowledged_requests_succeed_when_their_id_disconnects(void)
{
	run_two_sides(play_disconnect, 0);
}

/* The side that receives doesn't look at its queue before its queue pair goes to ERR, or is destroyed. */
static void play_messages(int fd, int number, bool destroys)
{
	struct side side = side_of(fd, DEPTH, 4 * DEPTH);

	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc;

		connect_side(&side);
		if (number == 0)
			receive(&side, side.qp);
		meet_here(&side);
		if (number == 1)
			for (int i = 0; i < SENDS; i++)
				request(&side, side.qp, IBV_WR_SEND, 1);
		meet_here(&side);
		if (number == 1) {
			complete(side.cq, SENDS);
		} else if (destroys) {
			MUST(ibv_destroy_qp(side.qp));
			side.qp = NULL;
		} else {
			to_error(side.qp);
			complete(side.cq, SENDS);
			if (!wait_wc(side.cq, &wc, 10000) || wc.status != IBV_WC_WR_FLUSH_ERR)
				fail("the last receive wasn't flushed");
		}
		meet_here(&side);
	}
}

static void play_arrivals(int fd, int number)
{
	play_messages(fd, number, false);
}

static void play_destruction(int fd, int number)
{
	play_messages(fd, number, true);
}

static void messages_that_came_before_err_are_received(void)
{
	run_two_sides(play_arrivals, 0);
}

static void messages_that_came_before_a_destruction_are_acknowledged(void)
{
	run_two_sides(play_destruction, 0);
}

/* What has become of the messages of each queue pair of a side, in both directions. */
struct counts {
	int sent[MANY], succeeded[MANY], received[MANY], ended[MANY];
};

struct many {
	struct side side;
	struct ibv_qp *qps[MANY];
	struct counts counts;
	unsigned seed;
};

static void connect_many(struct many *many)
{
	for (int i = 0; i < MANY; i++) {
		many->side.qp = many->qps[i];
		connect_side(&many->side);
		many->qps[i] = many->side.qp;
		for (int j = 0; j < BURST; j++)
			MUST(post_recv(many->qps[i], many->side.mr, 0, LARGE, 0));
	}
	many->counts = (struct counts){0};
	meet_here(&many->side);
}

static void send_many(struct many *many)
{
	for (int i = 0; i < MANY; i++) {
		bool large = rand_r(&many->seed) % 2;

		many->counts.sent[i] = 1 + rand_r(&many->seed) % BURST;
		for (int j = 0; j < many->counts.sent[i]; j++) {
			uint32_t length = 1 + (uint32_t)rand_r(&many->seed) % (large ? LARGE : LENGTH);

			MUST(post_send(many->qps[i], many->side.mr, 0, length, 1));
		}
	}
}

static void count_completions(struct many *many)
{
	struct counts *counts = &many->counts;
	struct ibv_wc wc;

	while (ibv_poll_cq(many->side.cq, 1, &wc) > 0) {
		int i = 0;

		while (many->qps[i]->qp_num != wc.qp_num)
			i++;
		counts->ended[i]++;
		if (wc.status == IBV_WC_SUCCESS)
			(wc.wr_id ? counts->succeeded : counts->received)[i]++;
		else if (wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("queue pair %d: %s", i, ibv_wc_status_str(wc.status));
	}
}

static void flush_many(struct many *many)
{
	uint64_t limit = now_ms() + 20000;

	for (int i = 0; i < MANY; i++)
		to_error(many->qps[i]);
	for (int i = 0; i < MANY; i++)
		while (many->counts.ended[i] < many->counts.sent[i] + BURST) {
			if (now_ms() > limit)
				fail("queue pair %d lacks completions", i);
			count_completions(many);
		}
}

/* What ended with success at one end has ended so at the other. */
static void compare(const int *before, const int *after, const char *what)
{
	for (int i = 0; i < MANY; i++)
		if (after[i] < before[i])
			fail("queue pair %d: %d %s, %d at the other end", i, after[i], what, before[i]);
}

/* Side 0 flushes its queue pairs in the middle of traffic, then side 1 does. */
static void play_many(int fd, int number)
{
	struct many many = {.side = side_of(fd, BURST, 2 * MANY * BURST), .seed = (unsigned)number};

	for (int round = 0; round < MANY_ROUNDS; round++) {
		struct counts *mine = &many.counts, theirs;
		int polls = rand_r(&many.seed) % 3000;

		connect_many(&many);
		send_many(&many);
		for (; number == 1 && polls > 0; polls--)
			count_completions(&many);
		if (!exchange(fd, mine, &theirs, sizeof theirs))
			fail("the other side has gone");
		if (number == 0) {
			flush_many(&many);
			compare(theirs.received, mine->succeeded, "sent");
			compare(theirs.succeeded, mine->received, "received");
		}
		if (!exchange(fd, mine, &theirs, sizeof theirs))
			fail("the other side has gone");
		if (number == 1) {
			flush_many(&many);
			compare(theirs.received, mine->succeeded, "sent");
			compare(theirs.succeeded, mine->received, "received");
		}
		meet_here(&many.side);
	}
}

static void both_ends_agree_on_what_was_received_when_rings_are_full(void)
{
	run_two_sides(play_many, 0);
}

static const struct test_case cases[] = {
	CASE(acknowledged_requests_succeed_when_the_queue_pair_goes_to_err),
	CASE(acknowledged_requests_succeed_when_it_drains_before),
	CASE(acknowledged_requests_succeed_when_their_id_disconnects),
	CASE(messages_that_came_before_err_are_received),
	CASE(messages_that_came_before_a_destruction_are_acknowledged),
	CASE(both_ends_agree_on_what_was_received_when_rings_are_full),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
