/* many_peers: servers and clients that put their own name and the addressee's into every message.
 *
 * A client connects to a server (RC), and both send messages both ways; with -n until each has sent and received that
 * many, else until it dies. Some are RDMA WRITEs into a place that the server keeps for this client, and now and then a
 * datagram goes to the other's UD QP. Every byte of every message is checked, and so is its addressee. A server
 * outlives its clients, however these end; on SIGUSR1 it prints its counts of them, on SIGTERM it leaves. It sleeps when
 * there is nothing to do.
 */
#define _GNU_SOURCE
#include "many_peers.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>

static volatile sig_atomic_t asked, leaving;

static void on_signal(int signal)
{
	if (signal == SIGUSR1)
		asked = 1;
	else
		leaving = 1;
}

static uint64_t draw(void)
{
	uint64_t value;

	if (getrandom(&value, sizeof value, 0) != sizeof value)
		fail("getrandom: %s", strerror(errno));
	return value;
}

static bool connect_to(struct connection *connection, int fd)
{
	struct path path = default_path(&self.device);
	struct timeval patience = {.tv_sec = 5};
	struct ibv_ah_attr ah;
	char ready = 1, other;

	/* 4.096 µs × 2^16 × 8: a machine with many more processes than processors keeps each waiting. */
	path.timeout = 16;
	*connection = (struct connection){.used = true, .fd = fd};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	connection->memory = MAKE(calloc(1, SIZE));
	connection->mr = MAKE(ibv_reg_mr(self.device.pd, connection->memory, SIZE, ALL_ACCESS));
	connection->qp = make_qp(&self.device, IBV_QPT_RC, self.cq, NULL, 2 * DEPTH);
	MUST(to_init(connection->qp, ALL_ACCESS));
	for (uint64_t i = 0; i < DEPTH; i++)
		post_receive(connection, i);

	struct greeting mine = {.identity = self.identity, .count = self.count,
				.rc = {.qpn = connection->qp->qp_num, .psn = (uint32_t)draw() & 0xffffff,
				       .rkey = connection->mr->rkey, .buffer = (uintptr_t)connection->memory,
				       .gid = self.device.gid},
				.ud = {.qpn = self.ud->qp_num}};

	if (!exchange(fd, &mine, &connection->remote, sizeof mine))
		return false;
	connection->peer = connection->remote.identity;
	connection->count = self.server ? connection->remote.count : self.count;
	MUST(to_rtr(connection->qp, &self.device, &path, &connection->remote.rc));
	MUST(to_rts(connection->qp, &path, mine.rc.psn));
	fill_ah(&ah, &self.device, &connection->remote.rc.gid);
	connection->ah = MAKE(ibv_create_ah(self.device.pd, &ah));
	return exchange(fd, &ready, &other, 1);
}

static void disconnect(struct connection *connection)
{
	if (connection->ah)
		MUST(ibv_destroy_ah(connection->ah));
	MUST(ibv_destroy_qp(connection->qp));
	MUST(ibv_dereg_mr(connection->mr));
	free(connection->memory);
	close(connection->fd);
	connection->used = false;
}

/* Everything that can be done without waiting; whether there was anything. */
static bool progress(void)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(self.cq, 16, wc);
	bool done = count > 0;

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	for (int i = 0; i < count; i++)
		take(&wc[i]);
	for (struct connection *c = self.connections; c < self.connections + MOST; c++)
		while (c->used && !c->broken && !c->left && (!c->count || c->sent < c->count) &&
		       c->sent - c->finished < DEPTH) {
			send_message(c);
			done = true;
		}
	return done;
}

static void welcome(void)
{
	int fd = accept4(self.listener, NULL, NULL, SOCK_CLOEXEC);
	struct connection *free_one = self.connections;

	if (fd < 0)
		return;
	while (free_one < self.connections + MOST && free_one->used)
		free_one++;
	if (free_one == self.connections + MOST)
		fail("more than %d clients", MOST);
	if (connect_to(free_one, fd))
		self.clients++;
	else
		disconnect(free_one);
}

static void wait_for_something(void)
{
	struct pollfd fds[MOST + 2] = {{.fd = self.channel->fd, .events = POLLIN},
				       {.fd = self.server ? self.listener : -1, .events = POLLIN}};
	struct connection *of[MOST + 2];
	nfds_t count = 2;
	char word;

	for (struct connection *c = self.connections; c < self.connections + MOST; c++)
		if (c->used) {
			of[count] = c;
			fds[count++] = (struct pollfd){.fd = c->fd, .events = c->left ? 0 : POLLIN};
		}
	if (poll(fds, count, 500) <= 0)
		return;
	if (fds[0].revents) {
		struct ibv_cq *cq;
		void *context;

		MUST(ibv_get_cq_event(self.channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		self.armed = false;
	}
	for (nfds_t i = 2; i < count; i++)
		if (fds[i].revents) {
			if (recv(of[i]->fd, &word, 1, 0) == 1)
				of[i]->left = true;
			else
				of[i]->broken = true;
		}
	if (fds[1].revents)
		welcome();
}

static bool complete(const struct connection *connection)
{
	return connection->count && connection->finished == connection->count &&
	       connection->received == connection->count;
}

static void tell_state(void)
{
	int open = 0;

	for (const struct connection *c = self.connections; c < self.connections + MOST; c++)
		open += c->used;
	printf("state: %d connections, %llu clients, %llu messages, %llu datagrams\n", open,
	       (unsigned long long)self.clients, (unsigned long long)self.messages,
	       (unsigned long long)self.datagrams);
	fflush(stdout);
}

static void run(void)
{
	while (!leaving) {
		if (asked) {
			asked = 0;
			tell_state();
		}
		bool done = progress();

		for (struct connection *c = self.connections; c < self.connections + MOST; c++) {
			if (!c->used)
				continue;
			if (!self.server && complete(c)) {
				char bye = 1, other;

				if (!exchange(c->fd, &bye, &other, 1))
					fail("the server is gone");
				return;
			}
			if (!self.server && c->broken)
				fail("the server is gone");
			if (c->left && self.once) {
				char bye = 1;

				if (!complete(c))
					continue;
				if (send(c->fd, &bye, 1, MSG_NOSIGNAL) != 1)
					fail("the client is gone");
				return;
			}
			if (c->broken && self.once)
				fail("the client is gone after %llu of our and %llu of its messages",
				     (unsigned long long)c->finished, (unsigned long long)c->received);
			if (c->broken || (c->left && complete(c))) {
				char bye = 1;

				if (c->left)
					(void)!send(c->fd, &bye, 1, MSG_NOSIGNAL);
				disconnect(c);
			}
		}
		if (done)
			continue;
		if (!self.armed) {
			MUST(ibv_req_notify_cq(self.cq, 0));
			self.armed = true;
		} else {
			wait_for_something();
		}
	}
}

static void open_all(int gid_index)
{
	self.identity = draw();
	self.device = open_device(gid_index);
	self.channel = MAKE(ibv_create_comp_channel(self.device.context));
	self.cq = make_cq(&self.device, MOST * 3 * DEPTH, self.channel);
	self.ud = make_qp(&self.device, IBV_QPT_UD, self.cq, NULL, DATAGRAMS);
	self.ud_memory = MAKE(calloc(DATAGRAMS + 1, 512));
	self.ud_mr = MAKE(ibv_reg_mr(self.device.pd, self.ud_memory, (DATAGRAMS + 1) * 512, ALL_ACCESS));

	struct path path = default_path(&self.device);

	MUST(to_init(self.ud, 0));
	for (uint64_t i = 0; i < DATAGRAMS; i++)
		post_datagram_receive(i);
	MUST(to_rtr(self.ud, &self.device, &path, &(struct address){0}));
	MUST(to_rts(self.ud, &path, 0));
}

static int listen_on(int port)
{
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (listener < 0 || bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, MOST))
		fail("listening on port %d: %s", port, strerror(errno));
	return listener;
}

int main(int argc, char **argv)
{
	int port = 18515, gid_index = 1, option;
	unsigned int seconds = ALARM_SECONDS;
	struct sigaction action = {.sa_handler = on_signal};

	while ((option = getopt(argc, argv, "1p:g:n:t:")) != -1) {
		switch (option) {
		case '1': self.once = true; break;
		case 'p': port = atoi(optarg); break;
		case 'g': gid_index = atoi(optarg); break;
		case 'n': self.count = strtoull(optarg, NULL, 0); break;
		case 't': seconds = (unsigned int)atoi(optarg); break;
		default: fail("usage: many_peers [-1] [-p PORT] [-g GID_INDEX] [-t SECONDS] [-n COUNT SERVER]\n"
			      "  -1  leave with the first client   -n  a client's messages each way, else for ever   -t  at most");
		}
	}
	alarm(seconds);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	open_all(gid_index);
	self.server = !argv[optind];
	if (self.server)
		self.listener = listen_on(port);
	else if (!connect_to(&self.connections[0], meet(argv[optind], port)))
		fail("the server is gone");
	puts("here");
	fflush(stdout);
	run();
	tell_state();
	return 0;
}
