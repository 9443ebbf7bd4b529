/* man rsocket: the calls of sockets with an r before their names, direct placement, and options. */
#include "cm.h"
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define PART 4096

/* Two stream sockets of this process that are connected. */
struct streams {
	int listening, active, passive;
};

static socklen_t length_of(const struct sockaddr_storage *at)
{
	return at->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static int non_blocking(int fd, bool on)
{
	return rfcntl(fd, F_SETFL, on ? O_NONBLOCK : 0);
}

/* Waits until a descriptor of rsockets has an event. */
static int ready(int fd, short events)
{
	struct pollfd waiting = {.fd = fd, .events = events};
	int result = rpoll(&waiting, 1, (int)PATIENCE_MS);

	return result == 1 ? waiting.revents : 0;
}

/* A descriptor that listens at an available port, and its address. */
static int listening_at(const char *ip, struct sockaddr_storage *at)
{
	socklen_t length = sizeof *at;
	int fd;

	*at = address(ip, 0);
	fd = rsocket(at->ss_family, SOCK_STREAM, 0);
	MUST(fd < 0);
	MUST(rbind(fd, (struct sockaddr *)at, length_of(at)));
	MUST(rlisten(fd, 4));
	MUST(rgetsockname(fd, (struct sockaddr *)at, &length));
	return fd;
}

/* `prepare` may set options before the connection is made. */
static struct streams make_streams(void (*prepare)(int))
{
	struct streams streams;
	struct sockaddr_storage at;

	streams.listening = listening_at(here, &at);
	streams.active = rsocket(AF_INET, SOCK_STREAM, 0);
	MUST(streams.active < 0);
	if (prepare) {
		prepare(streams.listening);
		prepare(streams.active);
	}
	/* One thread does both: the active side doesn't wait. */
	MUST(non_blocking(streams.active, true));
	if (rconnect(streams.active, (struct sockaddr *)&at, length_of(&at)) && errno != EINPROGRESS)
		fail("rconnect: %s", strerror(errno));
	streams.passive = -1;
	for (uint64_t end = now_ms() + PATIENCE_MS; streams.passive < 0 && now_ms() < end;) {
		struct pollfd both[2] = {{.fd = streams.listening, .events = POLLIN}, {.fd = streams.active, .events = POLLOUT}};

		rpoll(both, 2, 10);
		if (both[0].revents & POLLIN)
			streams.passive = raccept(streams.listening, NULL, NULL);
	}
	if (streams.passive < 0 || !(ready(streams.active, POLLOUT) & POLLOUT))
		fail("the sockets don't connect: %s", strerror(errno));
	MUST(non_blocking(streams.active, false));
	return streams;
}

static void free_streams(struct streams *streams)
{
	rclose(streams->active);
	rclose(streams->passive);
	rclose(streams->listening);
}

struct message {
	int fd;
	unsigned char *bytes;
	size_t length;
	ssize_t sent;
};

static void *send_message(void *of)
{
	struct message *message = of;

	message->sent = rsend(message->fd, message->bytes, message->length, 0);
	return NULL;
}

/* The sender is a thread of its own: it waits for the reader. */
static bool transfer(int from, int to, size_t length, unsigned int seed)
{
	struct message message = {.fd = from, .bytes = MAKE(malloc(length)), .length = length};
	unsigned char *got = MAKE(calloc(1, length));
	pthread_t thread;

	fill(message.bytes, length, seed);
	MUST(pthread_create(&thread, NULL, send_message, &message));
	ssize_t received = rrecv(to, got, length, MSG_WAITALL);

	pthread_join(thread, NULL);
	bool good = message.sent == (ssize_t)length && received == (ssize_t)length && filled(got, length, seed);

	free(message.bytes);
	free(got);
	return good;
}

/* Waits until so many bytes can be read at once: those of one call may come in pieces. */
static void await(int fd, ssize_t length)
{
	unsigned char bytes[64];

	uint64_t deadline = now_ms() + PATIENCE_MS;

	if ((size_t)length > sizeof bytes)
		fail("await: %zd bytes", length);
	while (now_ms() < deadline && ready(fd, POLLIN) && rrecv(fd, bytes, (size_t)length, MSG_PEEK) < length)
		usleep(1000);
}

/* Reads what a call has left. */
static void drain(int fd, ssize_t length)
{
	unsigned char rest[64];

	for (ssize_t got = 1; length > 0 && got > 0; length -= got)
		got = rread(fd, rest, (size_t)length);
}

static void making(void)
{
	struct sockaddr_storage at = address(here, 0), found;
	socklen_t length = sizeof found;
	int fd = rsocket(PF_INET, SOCK_STREAM, 0), other;

	check(fd >= 0, "rsocket(7): rsocket: PF_INET, SOCK_STREAM: a descriptor");
	is_done(rbind(fd, (struct sockaddr *)&at, sizeof(struct sockaddr_in)), "rsocket(7): rbind: 0 on success");
	is_done(rgetsockname(fd, (struct sockaddr *)&found, &length), "rsocket(7): rgetsockname: 0 on success");
	check(length == sizeof(struct sockaddr_in) && ((struct sockaddr_in *)&found)->sin_port != 0, "rsocket(7): rgetsockname: the address, with a port");
	is_done(rlisten(fd, 1), "rsocket(7): rlisten: 0 on success");
	other = rsocket(AF_INET, SOCK_STREAM, 0);
	is_refused(rbind(other, (struct sockaddr *)&found, sizeof(struct sockaddr_in)), EADDRINUSE, "rsocket(7): rbind: a port that is taken: EADDRINUSE");
	rclose(other);
	is_done(rclose(fd), "rsocket(7): rclose: 0 on success");
	fd = rsocket(PF_INET6, SOCK_STREAM, 0);
	check(fd >= 0, "rsocket(7): rsocket: PF_INET6, SOCK_STREAM: a descriptor");
	rclose(fd);
	is_refused(rsocket(PF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP, "rsocket(7): rsocket: a domain that isn't supported: ENOTSUP");
	at = address(here, 7999);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	is_refused(rconnect(fd, (struct sockaddr *)&at, sizeof(struct sockaddr_in)), ECONNREFUSED, "rsocket(7): rconnect: no listener: ECONNREFUSED");
	rclose(fd);
}

static void streams(void)
{
	struct streams streams = make_streams(NULL);
	struct sockaddr_storage name, peer;
	socklen_t length = sizeof name;
	unsigned char bytes[64], got[64];
	struct iovec pieces[2] = {{bytes, 16}, {bytes + 16, 16}}, places[2] = {{got, 8}, {got + 8, 24}};
	struct msghdr out = {.msg_iov = pieces, .msg_iovlen = 2}, in = {.msg_iov = places, .msg_iovlen = 2};

	check(streams.passive >= 0, "rsocket(7): raccept: a descriptor");
	is_done(rgetsockname(streams.active, (struct sockaddr *)&name, &length), "rsocket(7): rgetsockname: of a connection: 0");
	length = sizeof peer;
	is_done(rgetpeername(streams.passive, (struct sockaddr *)&peer, &length), "rsocket(7): rgetpeername: 0 on success");
	check(((struct sockaddr_in *)&name)->sin_port == ((struct sockaddr_in *)&peer)->sin_port, "rsocket(7): rgetpeername: the peer's name");
	check(transfer(streams.active, streams.passive, 100000, 1), "rsocket(7): rsend: the bytes come");
	check(transfer(streams.passive, streams.active, 50000, 2), "rsocket(7): rrecv: MSG_WAITALL: all bytes");
	fill(bytes, sizeof bytes, 3);
	is(rwrite(streams.active, bytes, 32), 32, "rsocket(7): rwrite: the bytes that were taken");
	is(ready(streams.passive, POLLIN) & POLLIN, POLLIN, "rsocket(7): rpoll: POLLIN when there are bytes");
	await(streams.passive, 32);
	is(rrecv(streams.passive, got, 32, MSG_PEEK), 32, "rsocket(7): rrecv: MSG_PEEK: the bytes");
	is(rread(streams.passive, got, 32), 32, "rsocket(7): rread: the same bytes again");
	check(filled(got, 32, 3), "rsocket(7): rread: they are those that were sent");
	is(rwritev(streams.active, pieces, 2), 32, "rsocket(7): rwritev: all pieces");
	memset(got, 0, sizeof got);
	await(streams.passive, 32);
	ssize_t length_read = rreadv(streams.passive, places, 2);

	is(length_read, 32, "rsocket(7): rreadv: all pieces");
	check(filled(got, 32, 3), "rsocket(7): rreadv: in their order");
	drain(streams.passive, 32 - length_read);
	is(rsendmsg(streams.active, &out, 0), 32, "rsocket(7): rsendmsg: all pieces");
	memset(got, 0, sizeof got);
	await(streams.passive, 32);
	length_read = rrecvmsg(streams.passive, &in, 0);
	is(length_read, 32, "rsocket(7): rrecvmsg: all pieces");
	check(filled(got, 32, 3), "rsocket(7): rrecvmsg: in their order");
	drain(streams.passive, 32 - length_read);
	is(rsendto(streams.active, bytes, 32, 0, NULL, 0), 32, "rsocket(7): rsendto: of a stream: the bytes that were taken");
	await(streams.passive, 32);
	is(rrecvfrom(streams.passive, got, 32, 0, NULL, NULL), 32, "rsocket(7): rrecvfrom: of a stream: the bytes");
	is_refused((int)rrecv(streams.passive, got, 32, MSG_DONTWAIT), EAGAIN, "rsocket(7): rrecv: MSG_DONTWAIT: nothing there: EAGAIN");
	is_done(non_blocking(streams.passive, true), "rsocket(7): rfcntl: F_SETFL: 0");
	is(rfcntl(streams.passive, F_GETFL) & O_NONBLOCK, O_NONBLOCK, "rsocket(7): rfcntl: F_GETFL: O_NONBLOCK");
	is_refused((int)rrecv(streams.passive, got, 32, 0), EAGAIN, "rsocket(7): rrecv: O_NONBLOCK: nothing there: EAGAIN");
	MUST(non_blocking(streams.passive, false));
	struct timeval time = {.tv_sec = 1};
	fd_set readable_set;

	FD_ZERO(&readable_set);
	FD_SET(streams.passive, &readable_set);
	rwrite(streams.active, bytes, 1);
	is(rselect(streams.passive + 1, &readable_set, NULL, NULL, &time), 1, "rsocket(7): rselect: 1 when there are bytes");
	check(FD_ISSET(streams.passive, &readable_set), "rsocket(7): rselect: the descriptor is in the set");
	rread(streams.passive, got, 1);
	int pipes[2];

	MUST(pipe(pipes));
	is(write(pipes[1], "x", 1), 1, "rsocket(7): rpoll: a pipe beside an rsocket");
	struct pollfd mixed[2] = {{.fd = streams.passive, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}};

	is(rpoll(mixed, 2, (int)PATIENCE_MS), 1, "rsocket(7): rpoll: descriptors of files, too");
	check(!mixed[0].revents && (mixed[1].revents & POLLIN), "rsocket(7): rpoll: and revents shows which");
	close(pipes[0]);
	close(pipes[1]);
	is_done(rshutdown(streams.active, SHUT_WR), "rsocket(7): rshutdown: SHUT_WR: 0");
	is(rread(streams.passive, got, 1), 0, "rsocket(7): rshutdown: SHUT_WR: the peer reads the end");
	is(rwrite(streams.passive, bytes, 4), 4, "rsocket(7): rshutdown: SHUT_WR: the peer can go on to write");
	ready(streams.active, POLLIN);
	is(rread(streams.active, got, 4), 4, "rsocket(7): rshutdown: SHUT_WR: and it is read");
	is_done(rshutdown(streams.passive, SHUT_RDWR), "rsocket(7): rshutdown: SHUT_RDWR: 0");
	is(rread(streams.active, got, 4), 0, "rsocket(7): rshutdown: SHUT_RDWR: the peer reads the end");
	free_streams(&streams);
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	return rgetsockopt(fd, level, name, &value, &length) ? -errno : value;
}

static bool sets(int fd, int level, int name, int value, int expected)
{
	return rsetsockopt(fd, level, name, &value, sizeof value) == 0 && option(fd, level, name) == expected;
}

static void options(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), v6 = rsocket(AF_INET6, SOCK_STREAM, 0), on = 1;
	struct linger linger = {.l_onoff = 1, .l_linger = 3}, found = {0};
	socklen_t length = sizeof found;

	is(option(fd, SOL_SOCKET, SO_ERROR), 0, "rsocket(7): rgetsockopt: SO_ERROR: 0");
	check(sets(fd, SOL_SOCKET, SO_REUSEADDR, 1, 1), "rsocket(7): rsetsockopt: SO_REUSEADDR");
	check(sets(fd, SOL_SOCKET, SO_KEEPALIVE, 1, 1), "rsocket(7): rsetsockopt: SO_KEEPALIVE");
	check(sets(fd, SOL_SOCKET, SO_OOBINLINE, 1, 1), "rsocket(7): rsetsockopt: SO_OOBINLINE");
	check(sets(fd, SOL_SOCKET, SO_SNDBUF, 65536, 131072), "rsocket(7): rsetsockopt: SO_SNDBUF, doubled as of sockets");
	check(sets(fd, SOL_SOCKET, SO_RCVBUF, 65536, 131072), "rsocket(7): rsetsockopt: SO_RCVBUF, doubled as of sockets");
	MUST(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	MUST(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &found, &length));
	check(found.l_onoff == 1 && found.l_linger == 3, "rsocket(7): rsetsockopt: SO_LINGER");
	check(sets(fd, IPPROTO_TCP, TCP_NODELAY, 1, 1), "rsocket(7): rsetsockopt: TCP_NODELAY");
	check(option(fd, IPPROTO_TCP, TCP_MAXSEG) > 0, "rsocket(7): rgetsockopt: TCP_MAXSEG");
	check(sets(v6, IPPROTO_IPV6, IPV6_V6ONLY, 1, 1), "rsocket(7): rsetsockopt: IPV6_V6ONLY");
	check(sets(fd, SOL_RDMA, RDMA_SQSIZE, 100, 100), "rsocket(7): rsetsockopt: RDMA_SQSIZE");
	check(sets(fd, SOL_RDMA, RDMA_RQSIZE, 100, 100), "rsocket(7): rsetsockopt: RDMA_RQSIZE");
	check(sets(fd, SOL_RDMA, RDMA_INLINE, 32, 32), "rsocket(7): rsetsockopt: RDMA_INLINE");
	check(sets(fd, SOL_RDMA, RDMA_IOMAPSIZE, 2, 2), "rsocket(7): rsetsockopt: RDMA_IOMAPSIZE");
	is_refused(rsetsockopt(fd, 77, 1, &on, sizeof on), EOPNOTSUPP, "rsocket(7): rsetsockopt: a level that doesn't exist: ENOTSUP");
	rclose(fd);
	rclose(v6);
}

static void allow_mappings(int fd)
{
	int count = 4;

	MUST(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof count));
}

static void placement(void)
{
	struct streams streams = make_streams(allow_mappings), plain = make_streams(NULL);
	void *memory = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char bytes[PART], byte;

	fill(bytes, sizeof bytes, 9);
	off_t offset = riomap(streams.passive, memory, PART, PROT_WRITE, 0, 1 << 20);

	is(offset, 1 << 20, "rsocket(7): riomap: the offset that was asked for");
	/* The mapping is there when what is sent afterwards has come. */
	rwrite(streams.passive, "m", 1);
	MUST(rread(streams.active, &byte, 1) != 1);
	is((long)riowrite(streams.active, bytes, PART, 1 << 20, 0), PART, "rsocket(7): riowrite: the bytes that were taken");
	rwrite(streams.active, "w", 1);
	is(rread(streams.passive, &byte, 1), 1, "rsocket(7): riowrite: the receiver reads only what is sent as a stream");
	check(filled(memory, PART, 9), "rsocket(7): riowrite: the bytes are in the buffer before that");
	is_done(riounmap(streams.passive, memory, PART), "rsocket(7): riounmap: 0 on success");
	offset = riomap(streams.passive, memory, PART, PROT_WRITE, 0, -1);
	check(offset >= 0, "rsocket(7): riomap: an offset of -1: rsockets selects one");
	is_done(riounmap(streams.passive, memory, PART), "rsocket(7): riounmap: of an offset that was selected: 0");
	errno = 0;
	check(riomap(plain.active, memory, PART, PROT_WRITE, 0, 0) < 0, "rsocket(7): riomap: no mappings unless RDMA_IOMAPSIZE is set");
	free_streams(&plain);
	free_streams(&streams);
	munmap(memory, PART);
}

/* Time for datagrams, which come in milliseconds. */
#define DATAGRAM_MS 10000

/* How far a child has come with datagrams: one that waits for ever is ended, and what it hasn't done fails. */
struct progress {
	bool made, bound, sent, received, right, named, closed;
};

/* Both sockets are bound; datagrams may be lost. */
static void datagrams_of_a_child(struct progress *progress)
{
	struct sockaddr_storage one = address(here, 0), other = one, from;
	int a = rsocket(AF_INET, SOCK_DGRAM, 0), b = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t length = sizeof(struct sockaddr_in);
	char got[16] = "";

	progress->made = a >= 0 && b >= 0;
	progress->bound = !rbind(a, (struct sockaddr *)&one, length) && !rbind(b, (struct sockaddr *)&other, length) &&
			  !rgetsockname(a, (struct sockaddr *)&one, &length) && !rgetsockname(b, (struct sockaddr *)&other, &length);
	for (int tries = 0; !progress->received && tries < 10; tries++) {
		struct pollfd waiting = {.fd = b, .events = POLLIN};

		progress->sent = rsendto(a, "datagram", 9, 0, (struct sockaddr *)&other, sizeof(struct sockaddr_in)) == 9;
		length = sizeof from;
		progress->received = rpoll(&waiting, 1, 300) == 1 &&
				     rrecvfrom(b, got, sizeof got, MSG_DONTWAIT, (struct sockaddr *)&from, &length) == 9;
	}
	progress->right = progress->received && !strcmp(got, "datagram");
	progress->named = progress->received && ((struct sockaddr_in *)&from)->sin_port == ((struct sockaddr_in *)&one)->sin_port;
	progress->closed = !rclose(a) && !rclose(b);
}

/* Before this process has used anything. */
static struct progress *datagrams(int argc, char **argv)
{
	struct progress *progress = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();

	if (child == 0) {
		begin_cm(argc, argv);
		datagrams_of_a_child(progress);
		_exit(0);
	}
	bool ended = false;

	for (uint64_t limit = now_ms() + DATAGRAM_MS; !ended && now_ms() < limit; usleep(10000))
		ended = waitpid(child, NULL, WNOHANG) != 0;
	if (!ended)
		kill(child, SIGKILL);
	return progress;
}

static void tell(const struct progress *progress)
{
	check(progress->made, "rsocket(7): rsocket: PF_INET, SOCK_DGRAM: a descriptor");
	check(progress->bound, "rsocket(7): rbind: of datagrams: 0");
	check(progress->sent, "rsocket(7): rsendto: a datagram: its bytes");
	check(progress->received, "rsocket(7): rrecvfrom: a datagram: its length");
	check(progress->right, "rsocket(7): rrecvfrom: a datagram: its bytes");
	check(progress->named, "rsocket(7): rrecvfrom: a datagram: and its sender");
	check(progress->closed, "rsocket(7): rclose: of datagrams: 0");
}

int main(int argc, char **argv)
{
	struct progress *progress = datagrams(argc, argv);

	optind = 1;
	begin_cm(argc, argv);
	making();
	streams();
	options();
	placement();
	tell(progress);
	return end();
}
