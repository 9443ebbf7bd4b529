/* mixed_sends: one side sends messages of all kinds, alone and in lists, over one RC connection. The other has too few receives
 * for them and checks every byte. Then the connection is made anew, with the same queue pairs and packet sequence numbers:
 * nothing of the one before may count for it. Every other connection ends in the middle.
 *
 * Both sides draw from the same seed what the messages are.
 */
#include "common.h"
#include <poll.h>

#define CONNECTIONS 24
#define MESSAGES 400
#define DEPTH 64
#define LONGEST 150000
/* Messages of a list. */
#define LIST 8
#define PSN 0xffffa0

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
	drawn = drawn * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(drawn >> 33) % below;
}

struct message {
	uint32_t length;
	bool immediate, solicited, signaled, inlined, fenced, after_read;
};

static struct message next_message(void)
{
	struct message message = {0};

	switch (draw(8)) {
	case 0:
		message.length = 0;
		break;
	case 1:
		message.length = draw(LONGEST + 1);
		break;
	default:
		message.length = 1 + draw(100);
	}
	message.immediate = draw(4) == 0;
	message.solicited = draw(4) == 0;
	message.signaled = draw(3) != 0;
	message.inlined = draw(6) == 0 && message.length <= 64;
	message.fenced = draw(20) == 0;
	message.after_read = draw(25) == 0;
	return message;
}

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	struct address mine, theirs;
	int fd;
};

/* The place of the message with this number; the one behind them is for READs. */
static size_t place(uint64_t index)
{
	return (size_t)(index % DEPTH) * LONGEST;
}

static void connect_anew(struct side *side)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct path path = default_path(&side->device);
	struct ibv_wc wc;
	char ready = 1, other;

	MUST(ibv_modify_qp(side->qp, &reset, IBV_QP_STATE));
	while (ibv_poll_cq(side->cq, 1, &wc) > 0)
		;
	MUST(to_init(side->qp, ALL_ACCESS));
	/* A side sends only when the other is ready. */
	MUST(to_rtr(side->qp, &side->device, &path, &side->theirs));
	MUST(to_rts(side->qp, &path, PSN));
	if (!exchange(side->fd, &ready, &other, 1))
		fail("the other side is gone");
}

/* Takes a completion of a request, and returns how many requests have ended by it. */
static uint64_t end_of(struct side *side, uint64_t ended)
{
	struct ibv_wc wc;

	MUST_COMPLETE(side->cq, &wc);
	if (wc.wr_id <= ended)
		fail("request %llu ends after %llu", (unsigned long long)wc.wr_id, (unsigned long long)ended);
	return wc.wr_id;
}

/* Requests of a list, with what they name. */
struct list {
	struct ibv_sge sges[2 * LIST][2];
	struct ibv_send_wr requests[2 * LIST];
	int count;
};

static struct ibv_send_wr *add(struct list *list, enum ibv_wr_opcode opcode, uint64_t wr_id)
{
	int n = list->count++;

	if (n)
		list->requests[n - 1].next = &list->requests[n];
	list->requests[n] = (struct ibv_send_wr){.wr_id = wr_id, .sg_list = list->sges[n], .num_sge = 1, .opcode = opcode};
	return &list->requests[n];
}

static void add_message(struct list *list, struct side *side, uint64_t index, uint64_t *posted)
{
	struct message message = next_message();
	bool last = index + 1 == MESSAGES;
	uint64_t addr = (uintptr_t)side->memory + place(index);

	if (message.after_read) {
		struct ibv_send_wr *read = add(list, IBV_WR_RDMA_READ, ++*posted);

		read->sg_list[0] = (struct ibv_sge){(uintptr_t)side->memory + place(DEPTH - 1) + LONGEST, 8, side->mr->lkey};
		set_remote(read, side->theirs.buffer, side->theirs.rkey);
	}
	struct ibv_send_wr *send = add(list, message.immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, ++*posted);
	/* What is inline comes from two places. */
	uint32_t first = message.inlined ? message.length / 3 : message.length;

	send->sg_list[0] = (struct ibv_sge){addr, first, side->mr->lkey};
	send->sg_list[1] = (struct ibv_sge){addr + first, message.length - first, side->mr->lkey};
	send->num_sge = !message.length ? 0 : message.inlined ? 2 : 1;
	send->imm_data = htonl((uint32_t)index);
	send->send_flags = (message.signaled || last || index % 16 == 0 ? IBV_SEND_SIGNALED : 0u) |
			   (message.solicited ? IBV_SEND_SOLICITED : 0u) | (message.inlined ? IBV_SEND_INLINE : 0u) |
			   (message.fenced ? IBV_SEND_FENCE : 0u);
	fill(side->memory + place(index), message.length, index);
}

static void send_all(struct side *side, bool to_the_end)
{
	static const int lengths[] = {1, 1, 3, LIST, 1, 2};
	uint64_t posted = 0, ended = 0, index = 0;

	for (unsigned int turn = 0; index < MESSAGES; turn++) {
		struct list list = {.count = 0};
		struct ibv_send_wr *bad;

		/* Memory of a message is used again when it has ended. */
		while (posted - ended >= DEPTH - 20)
			ended = end_of(side, ended);
		for (int left = lengths[turn % (sizeof lengths / sizeof *lengths)]; left && index < MESSAGES; left--)
			add_message(&list, side, index++, &posted);
		MUST(ibv_post_send(side->qp, list.requests, &bad));
		/* An inline request has taken its bytes. */
		for (int i = 0; i < list.count; i++)
			if (list.requests[i].send_flags & IBV_SEND_INLINE && list.requests[i].num_sge)
				memset((void *)(uintptr_t)list.sges[i][0].addr, 0xdd,
				       list.sges[i][0].length + list.sges[i][1].length);
	}
	while (to_the_end && ended < posted)
		ended = end_of(side, ended);
}

static void receive_all(struct side *side, bool to_the_end)
{
	struct message expected[MESSAGES];
	uint64_t posted = 0, received = 0, silent_since = now_ms();

	for (int i = 0; i < MESSAGES; i++)
		expected[i] = next_message();
	while (received < MESSAGES) {
		struct ibv_wc wc;

		/* Mostly too late. */
		if (posted - received < DEPTH && posted < MESSAGES && draw(3) == 0)
			for (uint32_t more = 1 + draw(20); more && posted - received < DEPTH && posted < MESSAGES; more--) {
				memset(side->memory + place(posted), 0xee, LONGEST);
				MUST(post_recv(side->qp, side->mr, place(posted), LONGEST, posted));
				posted++;
			}
		int count = ibv_poll_cq(side->cq, 1, &wc);

		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		if (count == 0) {
			uint64_t silence = now_ms() - silent_since;

			/* When the other side has ended the connection, which its byte shows, what it hasn't sent doesn't come. */
			if (!to_the_end && silence > 100 && poll(&(struct pollfd){.fd = side->fd, .events = POLLIN}, 1, 0) == 1)
				return;
			if (silence > 20000)
				fail("message %llu doesn't come", (unsigned long long)received);
			continue;
		}
		silent_since = now_ms();
		if (wc.status != IBV_WC_SUCCESS)
			fail("message %llu: %s", (unsigned long long)received, ibv_wc_status_str(wc.status));
		const struct message *message = &expected[received];

		if (wc.wr_id != received || wc.byte_len != message->length)
			fail("message %llu is that of %llu with %u bytes, not %u", (unsigned long long)received,
			     (unsigned long long)wc.wr_id, wc.byte_len, message->length);
		if (message->immediate != !!(wc.wc_flags & IBV_WC_WITH_IMM) ||
		    (message->immediate && ntohl(wc.imm_data) != received))
			fail("message %llu has other immediate data", (unsigned long long)received);
		if (first_wrong(side->memory + place(received), message->length, received) != message->length)
			fail("message %llu has other bytes", (unsigned long long)received);
		received++;
	}
}

int main(int argc, char **argv)
{
	bool sends = argc > 1;
	size_t size = (size_t)DEPTH * LONGEST + 8;
	struct side side = {.device = open_device(1)};
	char done = 1, other;

	alarm(ALARM_SECONDS);
	side.cq = make_cq(&side.device, 4 * DEPTH, NULL);
	side.qp = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, DEPTH);
	side.memory = MAKE(calloc(1, size));
	side.mr = MAKE(ibv_reg_mr(side.device.pd, side.memory, size, ALL_ACCESS));
	side.mine = (struct address){.qpn = side.qp->qp_num, .psn = PSN, .rkey = side.mr->rkey,
				     .buffer = (uintptr_t)side.memory, .gid = side.device.gid};
	side.fd = meet(sends ? argv[1] : NULL, 18515);
	if (!exchange(side.fd, &side.mine, &side.theirs, sizeof side.mine))
		fail("the other side is gone");
	for (unsigned int connection = 0; connection < CONNECTIONS; connection++) {
		bool to_the_end = connection % 2 == 0;

		drawn = connection;
		connect_anew(&side);
		if (sends)
			send_all(&side, to_the_end);
		if (sends && !to_the_end)
			MUST(ibv_modify_qp(side.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
		if (!sends)
			receive_all(&side, to_the_end);
		if (!exchange(side.fd, &done, &other, 1))
			fail("the other side is gone");
	}
	printf("%d connections were right\n", CONNECTIONS);
	return 0;
}
