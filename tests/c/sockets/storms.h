/* Phases in which many threads act on the same sockets and sets at once. What comes of one doesn't depend on timing: each client gets
 * back each byte that it has sent, and all ends are seen.
 */
#ifndef STORMS_H
#define STORMS_H

#include "calls.h"

enum { STORMS = 7, WORKERS = 4, CLIENTS = 3, STORM_CONNECTIONS = 24, MESSAGE = 3000 };

enum storm { ONESHOT, EDGE, LEVEL, EXCLUSIVE, FIRST_ADDS, BULK, MEETINGS };

static const char *storm_name(int storm)
{
	static const char *const names[STORMS] = {"oneshot", "edge", "level", "exclusive", "first-adds", "bulk", "meetings"};

	return names[storm];
}

static long complain(const char *what)
{
	int error = errno;

	if (shared->complaints++ == 0)
		snprintf(shared->complaint, sizeof shared->complaint, "%s: %s", what, strerrorname_np(error) ? strerrorname_np(error) : "?");
	return -1;
}

/* The same numbers in the same order from the same seed, whichever thread draws. */
static uint64_t drawn(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (*seed >> 33) ^ *seed >> 47;
}

/* The server's side, in its process. */
static struct {
	int set, stop, listening, total;
	_Atomic int ended, next;
	struct {
		int fd;
		pthread_mutex_t lock;
	} connections[STORM_CONNECTIONS];
} served;

static int nonblocking(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Waits in one of the ways there are. */
static long wait_for(int fd, short events, uint64_t *seed)
{
	switch (drawn(seed) % 4) {
	case 0: {
		struct pollfd polled = {.fd = fd, .events = events};

		return poll(&polled, 1, limit_ms) == 1 ? 0 : complain("poll");
	}
	case 1: {
		struct timeval time = {.tv_sec = limit_ms / 1000};
		fd_set set;

		FD_ZERO(&set);
		FD_SET(fd, &set);
		return select(fd + 1, events & POLLIN ? &set : NULL, events & POLLOUT ? &set : NULL, NULL, &time) == 1 ? 0
														       : complain("select");
	}
	default: {
		uint32_t kinds[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
		struct epoll_event event = {.events = (uint32_t)events | kinds[drawn(seed) % 4], .data.fd = fd};
		int set = epoll_create1(EPOLL_CLOEXEC);

		if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
			return complain("epoll_ctl of a new set");
		if (epoll_wait(set, &event, 1, limit_ms) != 1)
			return complain("epoll_wait on a new set");
		return close(set);
	}
	}
}

static long send_wholly(int fd, const uint8_t *bytes, long size, uint64_t *seed)
{
	for (long sent = 0; sent < size;) {
		ssize_t now = send(fd, bytes + sent, size - sent, MSG_NOSIGNAL);

		if (now > 0)
			sent += now;
		else if (errno != EAGAIN)
			return complain("send");
		else if (wait_for(fd, POLLOUT, seed) != 0)
			return -1;
	}
	return 0;
}

/* Takes the ports of a listener to serve: `size` connections are to come. */
static long storm_prepare(struct command *c)
{
	struct command listening = {.run = call_listen, .size = STORM_CONNECTIONS, .how = c->how == EXCLUSIVE ? SOCK_NONBLOCK : 0};
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = STORM_CONNECTIONS};

	served.listening = call_listen(&listening);
	served.stop = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	served.set = epoll_create1(EPOLL_CLOEXEC);
	served.total = c->size;
	served.ended = served.next = 0;
	if (served.listening < 0 || served.stop < 0 || served.set < 0 ||
	    epoll_ctl(served.set, EPOLL_CTL_ADD, served.stop, &event) != 0)
		return complain("preparing");
	for (int i = 0; i < STORM_CONNECTIONS; i++) {
		served.connections[i].fd = -1;
		pthread_mutex_init(&served.connections[i].lock, NULL);
	}
	c->other = listening.other;
	return 0;
}

static long storm_clear(struct command *c)
{
	(void)c;
	close(served.listening);
	close(served.stop);
	close(served.set);
	return 0;
}

static long one_ended(void)
{
	uint64_t one = 1;

	if (++served.ended == served.total && write(served.stop, &one, sizeof one) != sizeof one)
		return complain("stopping");
	return 0;
}

/* Accepts all, and adds each to the set in which threads wait already. */
static long storm_accept(struct command *c)
{
	for (int i = 0; i < served.total; i++) {
		uint32_t kinds[] = {EPOLLONESHOT, EPOLLET, 0};
		struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | kinds[c->how], .data.u64 = i};
		int fd = accept(served.listening, NULL, NULL);

		if (fd < 0)
			return complain("accept");
		if (nonblocking(fd) != 0)
			return complain("F_SETFL");
		served.connections[i].fd = fd;
		if (epoll_ctl(served.set, EPOLL_CTL_ADD, fd, &event) != 0)
			return complain("ADD");
	}
	return 0;
}

/* Sends back what has come: some of it, or all. Returns whether the connection has ended. */
static long echo(int fd, bool all, uint64_t *seed)
{
	uint8_t bytes[MESSAGE];

	for (;;) {
		ssize_t got = recv(fd, bytes, 1 + drawn(seed) % MESSAGE, 0);

		if (got == 0)
			return 1;
		if (got < 0 && errno == EAGAIN)
			return 0;
		if (got < 0)
			return complain("the server's recv");
		if (send_wholly(fd, bytes, got, seed) != 0)
			return -1;
		if (!all)
			return 0;
	}
}

/* Serves the shared set until all connections have ended. */
static long storm_serve(struct command *c)
{
	uint64_t seed = c->offset;

	for (;;) {
		struct epoll_event events[4];
		int count = epoll_wait(served.set, events, 1 + drawn(&seed) % 4, limit_ms);

		if (count <= 0)
			return complain(count ? "the server's epoll_wait" : "the server isn't woken");
		for (int i = 0; i < count; i++) {
			uint64_t which = events[i].data.u64;
			long end = 0;
			int fd;

			if (which == STORM_CONNECTIONS)
				return 0;
			if (which > STORM_CONNECTIONS)
				return complain("foreign data");
			/* Two threads may have events of the same level or edge. With ONESHOT one has. */
			if (c->how == ONESHOT) {
				if (pthread_mutex_trylock(&served.connections[which].lock) != 0)
					return complain("two threads have an event of ONESHOT");
			} else {
				pthread_mutex_lock(&served.connections[which].lock);
			}
			fd = served.connections[which].fd;
			if (fd >= 0)
				end = echo(fd, c->how == EDGE, &seed);
			if (end > 0) {
				served.connections[which].fd = -1;
				if (drawn(&seed) % 2 && epoll_ctl(served.set, EPOLL_CTL_DEL, fd, NULL) != 0)
					return complain("DEL");
				if (close(fd) != 0)
					return complain("the server's close");
			}
			pthread_mutex_unlock(&served.connections[which].lock);
			if (end < 0 || (end > 0 && one_ended() != 0))
				return -1;
			if (fd >= 0 && end == 0 && c->how == ONESHOT) {
				struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.u64 = which};

				if (epoll_ctl(served.set, EPOLL_CTL_MOD, fd, &event) != 0)
					return complain("MOD");
			}
		}
	}
}

/* Each thread has a set with the shared listener, and serves what it has accepted. */
static long storm_exclusive(struct command *c)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = served.listening}, events[3];
	uint64_t seed = c->offset;
	int set = epoll_create1(EPOLL_CLOEXEC);

	if (epoll_ctl(set, EPOLL_CTL_ADD, served.listening, &event) != 0)
		return complain("ADD with EXCLUSIVE");
	event = (struct epoll_event){.events = EPOLLIN, .data.fd = served.stop};
	if (epoll_ctl(set, EPOLL_CTL_ADD, served.stop, &event) != 0)
		return complain("ADD");
	for (;;) {
		int count = epoll_wait(set, events, 1 + drawn(&seed) % 3, limit_ms);

		if (count <= 0)
			return complain(count ? "a listener's epoll_wait" : "no listener is woken");
		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;

			if (fd == served.stop)
				return close(set);
			if (fd == served.listening) {
				int accepted = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

				if (accepted < 0 && errno == EAGAIN)
					continue;
				event = (struct epoll_event){.events = EPOLLIN, .data.fd = accepted};
				if (accepted < 0 || epoll_ctl(set, EPOLL_CTL_ADD, accepted, &event) != 0)
					return complain("accepting");
				continue;
			}
			switch (echo(fd, false, &seed)) {
			case 0:
				break;
			case 1:
				if (close(fd) != 0)
					return complain("the server's close");
				if (one_ended() != 0)
					return -1;
				break;
			default:
				return -1;
			}
		}
	}
}

/* `size` connections, one after another, each with `count` messages that must come back. */
static long storm_ask(struct command *c)
{
	uint64_t seed = c->offset;

	for (long n = 0; n < c->size; n++) {
		struct command connecting = {.fd = socket(AF_INET, SOCK_STREAM | (drawn(&seed) % 2 ? SOCK_NONBLOCK : 0), 0), .other = c->other};
		uint32_t stream = drawn(&seed);
		uint64_t at = 0;
		uint8_t out[MESSAGE], in[MESSAGE];
		ssize_t got;

		if (connecting.fd < 0 || call_connect(&connecting) != 0)
			return complain("connect");
		for (int m = 0; m < c->count; m++) {
			long size = 1 + drawn(&seed) % MESSAGE;

			fill(out, size, stream, at);
			if (send_wholly(connecting.fd, out, size, &seed) != 0)
				return -1;
			for (long have = 0; have < size; have += got) {
				if (drawn(&seed) % 2 && wait_for(connecting.fd, POLLIN, &seed) != 0)
					return -1;
				got = recv(connecting.fd, in + have, size - have, drawn(&seed) % 2 ? MSG_WAITALL : 0);
				if (got < 0 && errno == EAGAIN)
					got = 0;
				else if (got <= 0)
					return complain(got ? "the client's recv" : "an end that wasn't sent");
			}
			if (!right(in, size, stream, at))
				return complain("wrong bytes");
			at += size;
		}
		if (shutdown(connecting.fd, SHUT_WR) != 0)
			return complain("shutdown");
		if (wait_for(connecting.fd, POLLIN, &seed) != 0)
			return -1;
		got = recv(connecting.fd, in, sizeof in, 0);
		if (got != 0)
			return complain(got > 0 ? "bytes behind the last" : "recv of the end");
		if (close(connecting.fd) != 0)
			return complain("close");
	}
	return 0;
}

/* Several threads add the first sockets of a new set at once, again and again: none is lost. */
static struct {
	pthread_barrier_t barrier;
	int set, fds[CLIENTS][2], listening;
} added;

static long storm_first_adds_prepare(struct command *c)
{
	struct command listening = {.size = CLIENTS};

	(void)c;
	pthread_barrier_init(&added.barrier, NULL, CLIENTS);
	added.listening = call_listen(&listening);
	for (int i = 0; i < CLIENTS; i++) {
		struct command connecting = {.fd = socket(AF_INET, SOCK_STREAM, 0), .other = listening.other};

		if (call_connect(&connecting) != 0)
			return complain("connect");
		added.fds[i][0] = connecting.fd;
		added.fds[i][1] = accept(added.listening, NULL, NULL);
		if (added.fds[i][1] < 0 || send(connecting.fd, "x", 1, 0) != 1)
			return complain("accept");
		if (wait_for(added.fds[i][1], POLLIN, &c->offset) != 0)
			return -1;
	}
	return 0;
}

static long storm_first_adds(struct command *c)
{
	int own = c->how;

	for (int round = 0; round < 60; round++) {
		struct epoll_event event = {.events = EPOLLIN, .data.u32 = own}, events[CLIENTS + 1];
		int ready;

		if (own == 0)
			added.set = epoll_create1(EPOLL_CLOEXEC);
		pthread_barrier_wait(&added.barrier);
		for (volatile int spins = drawn(&c->offset) % 300; spins > 0; spins--)
			;
		if (epoll_ctl(added.set, EPOLL_CTL_ADD, added.fds[own][1], &event) != 0)
			complain("ADD of the first sockets");
		pthread_barrier_wait(&added.barrier);
		if (own == 0) {
			ready = epoll_wait(added.set, events, CLIENTS + 1, 0);
			errno = 0;
			if (ready != CLIENTS)
				complain(ready < CLIENTS ? "a set has lost a socket" : "a set has one socket twice");
			close(added.set);
		}
		pthread_barrier_wait(&added.barrier);
	}
	return 0;
}

static long storm_first_adds_clear(struct command *c)
{
	(void)c;
	for (int i = 0; i < CLIENTS; i++) {
		close(added.fds[i][0]);
		close(added.fds[i][1]);
	}
	close(added.listening);
	return 0;
}

enum { BULK_BYTES = 3000000 };

/* Both sides send and receive at once by nonblocking descriptors and an edge for both. */
static long both_ways(int fd, uint32_t out_stream, uint32_t in_stream, uint64_t *seed)
{
	static _Thread_local uint8_t out[LARGEST], in[LARGEST];
	long sent = 0, got = 0, unsent = 0, pending = 0;
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
	int set = epoll_create1(EPOLL_CLOEXEC);

	if (nonblocking(fd) != 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
		return complain("bulk ADD");
	while (sent < BULK_BYTES || got < BULK_BYTES) {
		bool full = sent == BULK_BYTES, empty = got == BULK_BYTES;

		if (epoll_wait(set, &event, 1, limit_ms) != 1)
			return complain(sent < BULK_BYTES ? "no edge while sending" : "no edge while receiving");
		while (!full || !empty) {
			ssize_t now;

			if (!full) {
				if (pending == 0) {
					pending = 1 + drawn(seed) % LARGEST;
					if (pending > BULK_BYTES - sent)
						pending = BULK_BYTES - sent;
					fill(out, pending, out_stream, sent);
					unsent = 0;
				}
				now = send(fd, out + unsent, pending, MSG_NOSIGNAL);
				if (now > 0) {
					sent += now;
					unsent += now;
					pending -= now;
					full = sent == BULK_BYTES;
				} else if (errno == EAGAIN) {
					full = true;
				} else {
					return complain("bulk send");
				}
			}
			if (!empty) {
				now = recv(fd, in, 1 + drawn(seed) % LARGEST, 0);
				if (now > 0) {
					if (!right(in, now, in_stream, got))
						return complain("bulk bytes are wrong");
					got += now;
					empty = got == BULK_BYTES;
				} else if (now < 0 && errno == EAGAIN) {
					empty = true;
				} else {
					return complain("bulk recv");
				}
			}
		}
	}
	close(set);
	/* The other side may not have read its last bytes: an end after the last comes behind them. */
	if (shutdown(fd, SHUT_WR) != 0 || wait_for(fd, POLLIN, seed) != 0 || recv(fd, in, 1, 0) != 0)
		return complain("the end of bulk");
	return close(fd);
}

static long storm_bulk_serve(struct command *c)
{
	int fd = accept(served.listening, NULL, NULL);

	return fd < 0 ? complain("accept") : both_ways(fd, 1, 2, &c->offset);
}

static long storm_bulk_ask(struct command *c)
{
	struct command connecting = {.fd = socket(AF_INET, SOCK_STREAM, 0), .other = c->other};

	if (call_connect(&connecting) != 0)
		return complain("connect");
	return both_ways(connecting.fd, 2, 1, &c->offset);
}

enum { MEETINGS_COUNT = 120 };

/* A byte goes to and fro; the receiver waits for it each time in another way. */
static long meet(int fd, bool first, uint64_t *seed)
{
	for (int i = 0; i < MEETINGS_COUNT; i++) {
		for (int turn = 0; turn < 2; turn++) {
			uint8_t byte = byte_of(turn, i);

			if ((turn == 0) == first) {
				for (volatile int spins = drawn(seed) % 3000; spins > 0; spins--)
					;
				if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1)
					return complain("meeting send");
			} else {
				uint8_t got = 0;

				if (drawn(seed) % 3 && wait_for(fd, POLLIN, seed) != 0)
					return -1;
				if (recv(fd, &got, 1, 0) != 1 || got != byte)
					return complain("meeting recv");
			}
		}
	}
	return 0;
}

static long storm_meet_serve(struct command *c)
{
	int fd = accept(served.listening, NULL, NULL);

	if (fd < 0)
		return complain("accept");
	return meet(fd, false, &c->offset) != 0 ? -1 : close(fd);
}

static long storm_meet_ask(struct command *c)
{
	struct command connecting = {.fd = socket(AF_INET, SOCK_STREAM, 0), .other = c->other};

	if (call_connect(&connecting) != 0)
		return complain("connect");
	if (meet(connecting.fd, true, &c->offset) != 0)
		return -1;
	return close(connecting.fd);
}

static void storm_call(int process, struct command *command)
{
	struct agent *agent = &shared->agents[process][0];

	give(agent, command);
	if (!take(agent))
		fail("a storm's preparations hang");
	*command = agent->command;
}

/* Returns "ok", or what has gone wrong first. */
static const char *run_storm(int storm, uint64_t seed)
{
	static char text[240];
	int server = processes - 1, clients = 0, agents = 0;
	struct command prepare = {.run = storm == FIRST_ADDS ? storm_first_adds_prepare : storm_prepare, .how = storm, .offset = seed};
	struct command clear = {.run = storm == FIRST_ADDS ? storm_first_adds_clear : storm_clear};
	struct agent *used[PROCESSES * AGENTS];
	long each = 2 + seed % 5, start = now_ms();
	bool stuck = false;

	shared->complaints = 0;
	prepare.size = each * CLIENTS;
	storm_call(server, &prepare);
	for (int i = 0; prepare.result == 0 && i < WORKERS; i++) {
		struct command command = {.how = storm, .offset = seed + i * 77};
		struct agent *agent = &shared->agents[server][1 + i];

		switch (storm) {
		case EXCLUSIVE:
			command.run = storm_exclusive;
			break;
		case FIRST_ADDS:
			command.run = storm_first_adds;
			command.how = i;
			if (i == CLIENTS)
				continue;
			break;
		case BULK:
			command.run = storm_bulk_serve;
			if (i > 0)
				continue;
			break;
		case MEETINGS:
			command.run = storm_meet_serve;
			if (i == CLIENTS)
				continue;
			break;
		default:
			command.run = i == 0 ? storm_accept : storm_serve;
		}
		give(agent, &command);
		used[agents++] = agent;
	}
	for (int i = 0; prepare.result == 0 && i < CLIENTS && storm != FIRST_ADDS; i++) {
		struct command command = {.other = prepare.other, .offset = seed + i * 1009, .size = each, .count = 3 + seed % 20};
		struct agent *agent = &shared->agents[clients][1 + WORKERS + i];

		command.run = storm == BULK ? storm_bulk_ask : storm == MEETINGS ? storm_meet_ask : storm_ask;
		if (storm == BULK && i > 0)
			continue;
		give(agent, &command);
		used[agents++] = agent;
	}
	/* One that complains leaves others waiting. */
	for (int i = 0; i < agents; i++) {
		while (!used[i]->ended && shared->complaints == 0 && now_ms() - start < 3L * limit_ms)
			nap(300);
		for (long since = now_ms(); !used[i]->ended; nap(1000)) {
			stuck = shared->complaints == 0;
			for (int n = 0; n < agents; n++)
				if (!used[n]->ended)
					interrupt(used[n], SIGUSR1);
			if (now_ms() - since > limit_ms) {
				printf("storm %s hangs: %s\n", storm_name(storm), shared->complaint);
				fflush(stdout);
				_exit(4);
			}
		}
		NEED(take(used[i]));
	}
	storm_call(server, &clear);
	if (stuck)
		return "stuck";
	if (shared->complaints == 0)
		return "ok";
	snprintf(text, sizeof text, "%s", shared->complaint);
	return text;
}

#endif
