/* The messages of many_peers: their content, and checks that each is the expected one. */
#ifndef MANY_PEERS_H
#define MANY_PEERS_H

#include "common.h"

#define MOST 256
#define DEPTH 8
#define LONGEST 2048u
#define DATAGRAM 256u
#define DATAGRAMS 64
#define HEADER 40u
#define GRH 40u
#define MAGIC 0x6d656574696e6721u
#define DATAGRAM_ID (1ull << 40)

struct message {
	uint64_t magic, from, to, number;
	uint32_t length, reserved;
	unsigned char body[LONGEST - HEADER];
};

/* What a side sends the other over TCP; `count` messages each way, 0 for ever. */
struct greeting {
	uint64_t identity, count;
	struct address rc, ud;
};

struct connection {
	bool used, broken, left;
	int fd;
	uint64_t peer;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	char *memory;
	struct greeting remote;
	uint64_t count, sent, finished, received;
};

/* Within a connection's memory: messages out, messages in, what the other writes. */
enum { OUT = 0, IN = DEPTH * LONGEST, TARGET = 2 * DEPTH * LONGEST, SIZE = TARGET + LONGEST };

static struct {
	struct device device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *ud;
	struct ibv_mr *ud_mr;
	char *ud_memory;
	uint64_t identity, count, datagrams, messages, clients;
	bool server, once, datagram_out, armed;
	int listener;
	struct connection connections[MOST];
} self;

static void compose(struct message *message, uint64_t to, uint64_t number, uint32_t length)
{
	message->magic = MAGIC;
	message->from = self.identity;
	message->to = to;
	message->number = number;
	message->length = length;
	for (uint32_t i = 0; i + HEADER < length; i++)
		message->body[i] = pattern(number ^ self.identity, i);
}

static uint32_t length_of(uint64_t number)
{
	return HEADER + (uint32_t)((number + 1) * 0x9e3779b97f4a7c15u >> 40) % (LONGEST - HEADER);
}

static void examine(const struct message *message, uint64_t from, uint64_t number, uint32_t length, const char *what)
{
	if (message->magic != MAGIC || message->to != self.identity || message->from != from)
		fail("a %s of %llx for %llx (magic %llx) came to %llx, which expected one of %llx", what,
		     (unsigned long long)message->from, (unsigned long long)message->to,
		     (unsigned long long)message->magic, (unsigned long long)self.identity,
		     (unsigned long long)from);
	if (message->number != number || message->length != length)
		fail("a %s of %llx has number %llu and length %u, not %llu and %u", what, (unsigned long long)from,
		     (unsigned long long)message->number, message->length, (unsigned long long)number, length);
	for (uint32_t i = 0; i + HEADER < length; i++)
		if (message->body[i] != pattern(number ^ from, i))
			fail("byte %u of %s %llu is wrong", i, what, (unsigned long long)number);
}

static void post_receive(struct connection *connection, uint64_t number)
{
	MUST(post_recv(connection->qp, connection->mr, IN + number % DEPTH * LONGEST, LONGEST, number));
}

static void post_datagram_receive(uint64_t slot)
{
	MUST(post_recv(self.ud, self.ud_mr, (1 + slot) * 512, 512, DATAGRAM_ID + slot));
}

static void send_datagram(struct connection *connection)
{
	struct ibv_sge sge = {(uintptr_t)self.ud_memory, DATAGRAM, self.ud_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = DATAGRAM_ID, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	if (self.datagram_out)
		return;
	compose((struct message *)self.ud_memory, connection->peer, connection->sent, DATAGRAM);
	wr.wr.ud.ah = connection->ah;
	wr.wr.ud.remote_qpn = connection->remote.ud.qpn;
	wr.wr.ud.remote_qkey = QKEY;
	MUST(ibv_post_send(self.ud, &wr, &bad));
	self.datagram_out = true;
}

/* Every eighth message is announced by a WRITE of the same bytes. */
static void send_message(struct connection *connection)
{
	uint64_t number = connection->sent++;
	size_t slot = OUT + number % DEPTH * LONGEST;
	struct ibv_sge sge = {(uintptr_t)connection->memory + slot, length_of(number), connection->mr->lkey};
	struct ibv_send_wr send = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_send_wr write = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .next = &send};

	write.wr.rdma.remote_addr = connection->remote.rc.buffer + TARGET;
	write.wr.rdma.rkey = connection->remote.rc.rkey;
	compose((struct message *)(connection->memory + slot), connection->peer, number, sge.length);
	MUST(ibv_post_send(connection->qp, number % 8 == 0 ? &write : &send, &bad));
	if (number % 32 == 0)
		send_datagram(connection);
}

static void take_datagram(const struct ibv_wc *wc)
{
	uint64_t slot = wc->wr_id - DATAGRAM_ID;
	const struct message *message = (const struct message *)(self.ud_memory + (1 + slot) * 512 + GRH);

	/* Its sender may have gone since, so that any is right; the addressee must be this process. */
	if (wc->byte_len != GRH + DATAGRAM)
		fail("a datagram of %u bytes", wc->byte_len);
	examine(message, message->from, message->number, DATAGRAM, "datagram");
	self.datagrams++;
	post_datagram_receive(slot);
}

static void take_message(struct connection *connection, const struct ibv_wc *wc)
{
	uint64_t number = connection->received++;

	if (wc->wr_id != number || wc->byte_len != length_of(number))
		fail("receive %llu with %u bytes where number %llu was due", (unsigned long long)wc->wr_id, wc->byte_len,
		     (unsigned long long)number);
	examine((struct message *)(connection->memory + IN + number % DEPTH * LONGEST), connection->peer, number,
		wc->byte_len, "message");
	/* The WRITE came before; the next one may be on its way, so that only the sender and addressee are sure. */
	const struct message *written = (const struct message *)(connection->memory + TARGET);

	if (written->magic != MAGIC || written->from != connection->peer || written->to != self.identity)
		fail("a WRITE of %llx for %llx came to %llx", (unsigned long long)written->from,
		     (unsigned long long)written->to, (unsigned long long)self.identity);
	self.messages++;
	post_receive(connection, number + DEPTH);
}

static void take(const struct ibv_wc *wc)
{
	struct connection *connection = self.connections;

	if (wc->qp_num == self.ud->qp_num) {
		if (wc->status != IBV_WC_SUCCESS)
			fail("the UD QP: %s", ibv_wc_status_str(wc->status));
		if (wc->opcode & IBV_WC_RECV)
			take_datagram(wc);
		else
			self.datagram_out = false;
		return;
	}
	while (connection < self.connections + MOST &&
	       !(connection->used && connection->qp->qp_num == wc->qp_num))
		connection++;
	if (connection == self.connections + MOST)
		fail("a completion of QP %u, which isn't there", wc->qp_num);
	if (wc->status != IBV_WC_SUCCESS) {
		/* A peer that died. */
		if (wc->status != IBV_WC_RETRY_EXC_ERR && wc->status != IBV_WC_WR_FLUSH_ERR)
			fail("a request of the connection with %llx: %s", (unsigned long long)connection->peer,
			     ibv_wc_status_str(wc->status));
		connection->broken = true;
	} else if (wc->opcode & IBV_WC_RECV) {
		take_message(connection, wc);
	} else {
		connection->finished++;
	}
}

#endif
