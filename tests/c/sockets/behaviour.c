/* What programs expect of sockets, by the calls of sockets alone: it holds for TCP and UDP of the kernel, and must hold for rsockets
 * under `ferroce run --sockets`. ADDRESS in the environment is an address of this host.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ALARM_SECONDS 40

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

#define EXPECT(condition)                                                                                  \
	do {                                                                                               \
		if (!(condition))                                                                          \
			fail("%s:%d: not so: %s (errno %s)", __FILE__, __LINE__, #condition, strerror(errno)); \
	} while (0)

/* The call must return −1 and set errno to this value. */
#define EXPECT_ERRNO(expected, call)                                                                       \
	do {                                                                                               \
		errno = 0;                                                                                 \
		long long expect_result = (call);                                                          \
		if (expect_result != -1 || errno != (expected))                                            \
			fail("%s:%d: %s: returned %lld (%s), not %s", __FILE__, __LINE__, #call,           \
			     expect_result, strerror(errno), #expected);                                   \
	} while (0)

static struct sockaddr_in here(int port)
{
	const char *address = getenv("ADDRESS");
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};

	EXPECT(inet_pton(AF_INET, address ? address : "127.0.0.1", &name.sin_addr) == 1);
	return name;
}

static int make_socket(int type)
{
	int fd = socket(AF_INET, type, 0);

	EXPECT(fd >= 0);
	return fd;
}

/* A socket that listens, and its address. */
static int listener(struct sockaddr_in *name, int backlog)
{
	int fd = make_socket(SOCK_STREAM), on = 1;
	socklen_t length = sizeof *name;

	*name = here(0);
	EXPECT(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	EXPECT(bind(fd, (struct sockaddr *)name, sizeof *name) == 0);
	EXPECT(listen(fd, backlog) == 0);
	EXPECT(getsockname(fd, (struct sockaddr *)name, &length) == 0);
	EXPECT(length == sizeof *name && name->sin_port != 0);
	return fd;
}

/* Two sockets that are connected. */
static void pair(int fds[2])
{
	struct sockaddr_in name;
	int listening = listener(&name, 1);

	fds[0] = make_socket(SOCK_STREAM);
	EXPECT(connect(fds[0], (struct sockaddr *)&name, sizeof name) == 0);
	fds[1] = accept(listening, NULL, NULL);
	EXPECT(fds[1] >= 0);
	EXPECT(close(listening) == 0);
}

static void set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL, 0);

	EXPECT(flags >= 0 && !(flags & O_NONBLOCK));
	EXPECT(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
	EXPECT(fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
}

static short ready(int fd, short events, int timeout)
{
	struct pollfd polled = {.fd = fd, .events = events};

	EXPECT(poll(&polled, 1, timeout) >= 0);
	return polled.revents;
}

static uint8_t pattern(size_t at)
{
	return at * 7 + at / 251;
}

static void send_all(int fd, size_t from, size_t to)
{
	static _Thread_local uint8_t bytes[100000];

	while (from < to) {
		size_t wanted = to - from < sizeof bytes ? to - from : sizeof bytes;
		ssize_t sent;

		for (size_t i = 0; i < wanted; i++)
			bytes[i] = pattern(from + i);
		sent = send(fd, bytes, wanted, MSG_NOSIGNAL);
		EXPECT(sent > 0);
		from += sent;
	}
}

static void receive_all(int fd, size_t from, size_t to)
{
	static _Thread_local uint8_t bytes[70000];

	while (from < to) {
		size_t wanted = to - from < sizeof bytes ? to - from : sizeof bytes;
		ssize_t received = recv(fd, bytes, wanted, 0);

		EXPECT(received > 0);
		for (ssize_t i = 0; i < received; i++)
			if (bytes[i] != pattern(from + i))
				fail("byte %zu of the stream is %u", from + i, bytes[i]);
		from += received;
	}
}

static void names(void)
{
	struct sockaddr_in name, own, peer;
	socklen_t length = sizeof own;
	int listening = listener(&name, 5), client = make_socket(SOCK_STREAM), server;

	EXPECT_ERRNO(ENOTCONN, getpeername(client, (struct sockaddr *)&peer, &length));
	EXPECT(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
	length = sizeof peer;
	server = accept(listening, (struct sockaddr *)&peer, &length);
	EXPECT(server >= 0 && length == sizeof peer && peer.sin_family == AF_INET);
	length = sizeof own;
	EXPECT(getsockname(client, (struct sockaddr *)&own, &length) == 0);
	EXPECT(own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr);
	length = sizeof own;
	EXPECT(getpeername(client, (struct sockaddr *)&own, &length) == 0);
	EXPECT(own.sin_port == name.sin_port && own.sin_addr.s_addr == name.sin_addr.s_addr);
	length = sizeof own;
	EXPECT(getsockname(server, (struct sockaddr *)&own, &length) == 0);
	EXPECT(own.sin_port == name.sin_port);
	EXPECT_ERRNO(EISCONN, connect(client, (struct sockaddr *)&name, sizeof name));
}

static void bad_calls(void)
{
	struct sockaddr_in name;
	int listening = listener(&name, 5), other = make_socket(SOCK_STREAM), fds[2];
	char byte;

	EXPECT_ERRNO(ENOTCONN, recv(other, &byte, 1, 0));
	EXPECT_ERRNO(EINVAL, accept(other, NULL, NULL));
	EXPECT_ERRNO(ENOTCONN, shutdown(other, SHUT_RDWR));
	EXPECT(bind(other, (struct sockaddr *)&name, sizeof name) == -1);
	/* The kernel's rdma_cm, and so rsockets, return EADDRNOTAVAIL for a loopback address. */
	EXPECT(errno == EADDRINUSE || (errno == EADDRNOTAVAIL && name.sin_addr.s_addr == htonl(INADDR_LOOPBACK)));
	EXPECT_ERRNO(EINVAL, bind(listening, (struct sockaddr *)&name, sizeof name));
	EXPECT_ERRNO(EINVAL, connect(other, (struct sockaddr *)&name, 3));
	EXPECT(close(other) == 0);
	EXPECT_ERRNO(EBADF, recv(other, &byte, 1, 0));
	pair(fds);
	EXPECT_ERRNO(EINVAL, shutdown(fds[0], 7));
}

static void refused(void)
{
	struct sockaddr_in name;
	int listening = listener(&name, 5), fd = make_socket(SOCK_STREAM), error;
	socklen_t length = sizeof error;

	EXPECT(close(listening) == 0);
	EXPECT_ERRNO(ECONNREFUSED, connect(fd, (struct sockaddr *)&name, sizeof name));
	EXPECT(close(fd) == 0);
	fd = make_socket(SOCK_STREAM | SOCK_NONBLOCK);
	EXPECT(connect(fd, (struct sockaddr *)&name, sizeof name) == -1);
	if (errno != ECONNREFUSED) {
		EXPECT(errno == EINPROGRESS);
		EXPECT(ready(fd, POLLOUT, 10000) & POLLERR);
		EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
		EXPECT(error == ECONNREFUSED);
	}
}

/* A socket that was refused connects later, and shows its new state to poll and to sets of epoll. */
static void connects_after_a_refusal(void)
{
	struct sockaddr_in name;
	int listening = listener(&name, 5), fd = make_socket(SOCK_STREAM), copy = dup(fd), server, on = 1;
	struct epoll_event event = {.events = EPOLLIN};
	char byte = 'a';

	EXPECT(close(listening) == 0);
	EXPECT_ERRNO(ECONNREFUSED, connect(fd, (struct sockaddr *)&name, sizeof name));
	listening = make_socket(SOCK_STREAM);
	EXPECT(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	EXPECT(bind(listening, (struct sockaddr *)&name, sizeof name) == 0);
	EXPECT(listen(listening, 5) == 0);
	EXPECT(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
	server = accept(listening, NULL, NULL);
	EXPECT(server >= 0);
	EXPECT(ready(fd, POLLIN | POLLOUT, 1000) == POLLOUT);
	EXPECT(ready(copy, POLLIN | POLLOUT, 1000) == POLLOUT);
	EXPECT(write(server, &byte, 1) == 1);
	EXPECT(ready(fd, POLLIN, 10000) == POLLIN);
	{
		int set = epoll_create1(0);

		EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, copy, &event) == 0);
		EXPECT(epoll_wait(set, &event, 1, 10000) == 1 && event.events == EPOLLIN);
		EXPECT(close(set) == 0);
	}
	EXPECT(read(copy, &byte, 1) == 1 && byte == 'a');
	EXPECT(ready(fd, POLLIN, 0) == 0);
	EXPECT(close(copy) == 0 && close(fd) == 0 && close(server) == 0 && close(listening) == 0);
}

static void nonblocking_connect(void)
{
	struct sockaddr_in name;
	int listening = listener(&name, 5), fd = make_socket(SOCK_STREAM), server, error = 1;
	socklen_t length = sizeof error;
	char byte;

	set_nonblocking(listening);
	EXPECT_ERRNO(EAGAIN, accept(listening, NULL, NULL));
	EXPECT(ready(listening, POLLIN, 0) == 0);
	set_nonblocking(fd);
	EXPECT(connect(fd, (struct sockaddr *)&name, sizeof name) == 0 || errno == EINPROGRESS);
	EXPECT(ready(fd, POLLIN | POLLOUT, 10000) == POLLOUT);
	EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
	EXPECT(ready(listening, POLLIN, 10000) == POLLIN);
	server = accept4(listening, NULL, NULL, SOCK_NONBLOCK);
	EXPECT(server >= 0);
	EXPECT_ERRNO(EAGAIN, recv(server, &byte, 1, 0));
	EXPECT_ERRNO(EAGAIN, recv(fd, &byte, 1, 0));
	EXPECT(send(fd, "x", 1, 0) == 1);
	EXPECT(ready(server, POLLIN, 10000) == POLLIN);
	EXPECT(recv(server, &byte, 1, 0) == 1 && byte == 'x');
	EXPECT(ready(server, POLLIN, 0) == 0);
}

/* The first call after the end of an attempt returns that, whatever address it has. */
static void connects_again(void)
{
	struct sockaddr_in name, other;
	int listening[] = {listener(&name, 5), listener(&other, 5)}, fd;

	for (int waits = 0; waits < 2; waits++) {
		fd = make_socket(SOCK_STREAM);
		set_nonblocking(fd);
		EXPECT_ERRNO(EINPROGRESS, connect(fd, (struct sockaddr *)&name, sizeof name));
		if (waits)
			EXPECT(fcntl(fd, F_SETFL, 0) == 0);
		else
			EXPECT(ready(fd, POLLIN | POLLOUT, 10000) == POLLOUT);
		EXPECT(connect(fd, (struct sockaddr *)&other, sizeof other) == 0);
		EXPECT_ERRNO(EISCONN, connect(fd, (struct sockaddr *)&name, sizeof name));
		EXPECT(ready(listening[0], POLLIN, 10000) == POLLIN && ready(listening[1], POLLIN, 0) == 0);
		EXPECT(close(accept(listening[0], NULL, NULL)) == 0 && close(fd) == 0);
	}
	EXPECT(close(listening[0]) == 0 && close(listening[1]) == 0);
}

static void half_close(void)
{
	int fds[2];
	char bytes[8];

	pair(fds);
	EXPECT(send(fds[0], "ask", 3, 0) == 3);
	EXPECT(shutdown(fds[0], SHUT_WR) == 0);
	EXPECT_ERRNO(EPIPE, send(fds[0], "x", 1, MSG_NOSIGNAL));
	EXPECT(recv(fds[1], bytes, sizeof bytes, MSG_WAITALL) == 3 && !memcmp(bytes, "ask", 3));
	EXPECT(recv(fds[1], bytes, sizeof bytes, 0) == 0);
	EXPECT(ready(fds[1], POLLIN | POLLOUT | POLLRDHUP, 0) == (POLLIN | POLLOUT | POLLRDHUP));
	EXPECT(send(fds[1], "answer", 6, 0) == 6);
	EXPECT(close(fds[1]) == 0);
	EXPECT(recv(fds[0], bytes, sizeof bytes, MSG_WAITALL) == 6 && !memcmp(bytes, "answer", 6));
	EXPECT(recv(fds[0], bytes, sizeof bytes, 0) == 0);
	EXPECT(ready(fds[0], POLLIN, 0) & POLLHUP);
}

static void *send_and_shut(void *fd)
{
	for (volatile int spins = 0; spins < rand() % 20000; spins++)
		;
	EXPECT(send(*(int *)fd, "ask", 3, 0) == 3);
	EXPECT(shutdown(*(int *)fd, SHUT_WR) == 0);
	return NULL;
}

/* A receiver that waits for more bytes than come returns at the end of the stream, whenever that comes. */
static void end_behind_bytes(void)
{
	char bytes[8];

	for (int round = 0; round < 300; round++) {
		pthread_t thread;
		int fds[2];

		pair(fds);
		EXPECT(pthread_create(&thread, NULL, send_and_shut, &fds[0]) == 0);
		EXPECT(recv(fds[1], bytes, sizeof bytes, MSG_WAITALL) == 3 && !memcmp(bytes, "ask", 3));
		EXPECT(pthread_join(thread, NULL) == 0);
		EXPECT(close(fds[0]) == 0 && close(fds[1]) == 0);
	}
}

static void closed_peer(void)
{
	int fds[2];
	char bytes[8];

	pair(fds);
	EXPECT(send(fds[1], "last", 4, 0) == 4);
	EXPECT(close(fds[1]) == 0);
	EXPECT(recv(fds[0], bytes, sizeof bytes, MSG_WAITALL) == 4);
	EXPECT(recv(fds[0], bytes, sizeof bytes, 0) == 0);
	/* TCP takes some bytes before it learns that the peer's socket is closed. */
	for (int i = 0; i < 100; i++) {
		if (send(fds[0], "x", 1, MSG_NOSIGNAL) < 0) {
			EXPECT(errno == EPIPE || errno == ECONNRESET);
			return;
		}
		usleep(10000);
	}
	fail("everything is taken that is sent to a closed socket");
}

static void peek_and_wait(void)
{
	int fds[2], waiting = -1;
	char bytes[16] = {0};
	struct iovec pieces[3] = {{bytes, 2}, {bytes + 2, 0}, {bytes + 2, 4}};
	struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};

	pair(fds);
	EXPECT(writev(fds[0], (struct iovec[]){{"ab", 2}, {"", 0}, {"cdef", 4}}, 3) == 6);
	EXPECT(recv(fds[1], bytes, 6, MSG_PEEK | MSG_WAITALL) > 0);
	while (ioctl(fds[1], FIONREAD, &waiting) == 0 && waiting < 6)
		usleep(1000);
	EXPECT(waiting == 6);
	memset(bytes, 0, sizeof bytes);
	EXPECT(recv(fds[1], bytes, sizeof bytes, MSG_PEEK) == 6 && !memcmp(bytes, "abcdef", 6));
	memset(bytes, 0, sizeof bytes);
	EXPECT(recvmsg(fds[1], &message, 0) == 6 && !memcmp(bytes, "abcdef", 6));
	EXPECT_ERRNO(EAGAIN, recv(fds[1], bytes, 1, MSG_DONTWAIT));
	EXPECT(send(fds[0], "x", 0, 0) == 0);
	EXPECT(recv(fds[1], bytes, 0, MSG_DONTWAIT) <= 0);
}

/* A sender that doesn't wait gets EAGAIN when there is no room, and an event when there is again; no byte is lost. */
static void full(void)
{
	int fds[2];
	size_t sent = 0, received = 0;
	uint8_t bytes[5000];

	pair(fds);
	set_nonblocking(fds[0]);
	for (;;) {
		ssize_t now;

		for (size_t i = 0; i < sizeof bytes; i++)
			bytes[i] = pattern(sent + i);
		now = send(fds[0], bytes, sizeof bytes, 0);
		if (now < 0) {
			EXPECT(errno == EAGAIN);
			if (!ready(fds[0], POLLOUT, 200))
				break;
			continue;
		}
		sent += now;
		EXPECT(sent < 1 << 28);
	}
	EXPECT(sent > 10000);
	while (received < sent) {
		size_t wanted = sent - received < 70000 ? sent - received : 70000;

		receive_all(fds[1], received, received + wanted);
		received += wanted;
	}
	EXPECT(ready(fds[0], POLLOUT, 10000) == POLLOUT);
	EXPECT_ERRNO(EAGAIN, recv(fds[1], bytes, 1, MSG_DONTWAIT));
}

#define DUPLEX_BYTES ((size_t)32 << 20)

static void *send_side(void *fd)
{
	send_all(*(int *)fd, 0, DUPLEX_BYTES);
	return NULL;
}

static void *receive_side(void *fd)
{
	receive_all(*(int *)fd, 0, DUPLEX_BYTES);
	return NULL;
}

/* Four threads: both sides send and receive at once. */
static void duplex(void)
{
	pthread_t threads[4];
	int fds[2];

	pair(fds);
	for (int i = 0; i < 2; i++) {
		EXPECT(pthread_create(&threads[2 * i], NULL, send_side, &fds[i]) == 0);
		EXPECT(pthread_create(&threads[2 * i + 1], NULL, receive_side, &fds[i]) == 0);
	}
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
}

static void *wait_for_byte(void *fd)
{
	char byte;

	EXPECT(recv(*(int *)fd, &byte, 1, 0) == 1 && byte == 'w');
	return NULL;
}

/* A thread that waits in recv is woken, although another looks at the same socket. */
static void two_readers(void)
{
	pthread_t thread;
	int fds[2];

	pair(fds);
	for (int round = 0; round < 200; round++) {
		EXPECT(pthread_create(&thread, NULL, wait_for_byte, &fds[1]) == 0);
		if (round % 2)
			usleep(500);
		EXPECT(send(fds[0], "w", 1, 0) == 1);
		for (int i = 0; i < 5; i++)
			ready(fds[1], POLLIN, 0);
		EXPECT(pthread_join(thread, NULL) == 0);
	}
}

static _Atomic int replies;

static void *count_replies(void *fd)
{
	char byte;

	while (recv(*(int *)fd, &byte, 1, 0) == 1 && byte == 'w')
		replies++;
	return NULL;
}

/* A thread that waits in recv is woken, although another sends by the same socket, and looks whether it may. */
static void sender_beside_reader(void)
{
	pthread_t thread;
	char byte;
	int fds[2];

	pair(fds);
	for (int i = 0; i < 2; i++)
		EXPECT(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) == 0);
	EXPECT(pthread_create(&thread, NULL, count_replies, &fds[1]) == 0);
	for (int round = 1; round <= 1000; round++) {
		int ahead = round % 32;

		for (int i = 0; i < ahead; i++)
			EXPECT(send(fds[1], "x", 1, 0) == 1);
		for (int i = 0; i < ahead; i++)
			EXPECT(recv(fds[0], &byte, 1, 0) == 1 && byte == 'x');
		EXPECT(ready(fds[1], POLLOUT, 0) == POLLOUT);
		EXPECT(send(fds[0], "w", 1, 0) == 1);
		for (int waited = 0; replies < round; waited++) {
			EXPECT(waited < 100000);
			usleep(waited < 100 ? 0 : 100);
		}
	}
	EXPECT(shutdown(fds[0], SHUT_WR) == 0);
	EXPECT(pthread_join(thread, NULL) == 0);
}

static void select_with_pipe(void)
{
	struct timeval at_once = {0}, long_time = {.tv_sec = 10};
	int fds[2], ends[2];
	fd_set reading, writing;

	pair(fds);
	EXPECT(pipe(ends) == 0);
	FD_ZERO(&reading);
	FD_SET(fds[1], &reading);
	FD_SET(ends[0], &reading);
	EXPECT(select(FD_SETSIZE, &reading, NULL, NULL, &at_once) == 0);
	EXPECT(!FD_ISSET(fds[1], &reading) && !FD_ISSET(ends[0], &reading));
	EXPECT(write(ends[1], "p", 1) == 1);
	FD_SET(fds[1], &reading);
	FD_SET(ends[0], &reading);
	EXPECT(select(FD_SETSIZE, &reading, NULL, NULL, &long_time) == 1);
	EXPECT(!FD_ISSET(fds[1], &reading) && FD_ISSET(ends[0], &reading));
	EXPECT(send(fds[0], "s", 1, 0) == 1);
	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_SET(fds[1], &reading);
	FD_SET(fds[1], &writing);
	EXPECT(ready(fds[1], POLLIN, 10000) == POLLIN);
	EXPECT(select(FD_SETSIZE, &reading, &writing, NULL, &long_time) == 2);
}

static int wait_epoll(int set, struct epoll_event *event, int timeout)
{
	int count = epoll_wait(set, event, 1, timeout);

	EXPECT(count >= 0);
	return count;
}

static void epoll_sets(void)
{
	struct epoll_event event;
	int fds[2], ends[2], set = epoll_create1(EPOLL_CLOEXEC);
	char bytes[8];

	pair(fds);
	EXPECT(pipe(ends) == 0 && set >= 0);
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 1};
	EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 0xfedcba9876543210};
	EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fds[1], &event) == 0);
	EXPECT_ERRNO(EEXIST, epoll_ctl(set, EPOLL_CTL_ADD, fds[1], &event));
	EXPECT(wait_epoll(set, &event, 0) == 0);
	/* Level: reported until it is read. */
	EXPECT(send(fds[0], "ab", 2, 0) == 2);
	for (int i = 0; i < 2; i++) {
		EXPECT(wait_epoll(set, &event, 10000) == 1);
		EXPECT(event.events == EPOLLIN && event.data.u64 == 0xfedcba9876543210);
	}
	EXPECT(recv(fds[1], bytes, sizeof bytes, 0) == 2);
	EXPECT(wait_epoll(set, &event, 0) == 0);
	EXPECT(write(ends[1], "p", 1) == 1);
	EXPECT(wait_epoll(set, &event, 10000) == 1 && event.data.u64 == 1);
	EXPECT(read(ends[0], bytes, 1) == 1);
	/* Edge: reported once for each arrival. */
	event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u64 = 2};
	EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, fds[1], &event) == 0);
	EXPECT(send(fds[0], "c", 1, 0) == 1);
	EXPECT(wait_epoll(set, &event, 10000) == 1 && event.data.u64 == 2);
	EXPECT(wait_epoll(set, &event, 50) == 0);
	/* What the socket sends itself doesn't count as an arrival. */
	EXPECT(send(fds[1], "e", 1, 0) == 1);
	EXPECT(wait_epoll(set, &event, 50) == 0);
	EXPECT(send(fds[0], "d", 1, 0) == 1);
	EXPECT(wait_epoll(set, &event, 10000) == 1);
	EXPECT(recv(fds[1], bytes, sizeof bytes, 0) == 2);
	/* Once. */
	event = (struct epoll_event){.events = EPOLLOUT | EPOLLONESHOT, .data.u64 = 3};
	EXPECT(epoll_ctl(set, EPOLL_CTL_MOD, fds[1], &event) == 0);
	EXPECT(wait_epoll(set, &event, 10000) == 1 && event.events == EPOLLOUT && event.data.u64 == 3);
	EXPECT(wait_epoll(set, &event, 0) == 0);
	EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, fds[1], NULL) == 0);
	EXPECT_ERRNO(ENOENT, epoll_ctl(set, EPOLL_CTL_DEL, fds[1], NULL));
	EXPECT(close(fds[1]) == 0 && close(set) == 0);
	/* The number is another's now. */
	EXPECT(epoll_create1(EPOLL_CLOEXEC) >= 0);
}

static void add(int set, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.fd = fd};

	EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* A wait that has room for one of two ready sockets leaves the other for the next wait. */
static void more_ready_than_room(void)
{
	const uint32_t kinds[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET | EPOLLONESHOT};
	int one[2], two[2];
	char byte;

	pair(one);
	pair(two);
	for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
		struct epoll_event first, second;
		int set = epoll_create1(0), ends[2];

		EXPECT(pipe(ends) == 0);
		add(set, one[1], kinds[kind]);
		add(set, two[1], kinds[kind]);
		add(set, ends[0], kinds[kind]);
		EXPECT(send(one[0], "x", 1, 0) == 1 && send(two[0], "x", 1, 0) == 1);
		EXPECT(ready(one[1], POLLIN, 10000) == POLLIN && ready(two[1], POLLIN, 10000) == POLLIN);
		EXPECT(wait_epoll(set, &first, 10000) == 1 && wait_epoll(set, &second, 10000) == 1);
		EXPECT(first.data.fd != second.data.fd);
		EXPECT(wait_epoll(set, &first, 0) == 0);
		EXPECT(write(ends[1], "x", 1) == 1);
		EXPECT(wait_epoll(set, &first, 0) == 1 && first.data.fd == ends[0]);
		EXPECT(recv(one[1], &byte, 1, 0) == 1 && recv(two[1], &byte, 1, 0) == 1);
		EXPECT(close(set) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
	}
}

static void *wait_once(void *set)
{
	struct epoll_event event;

	EXPECT(wait_epoll(*(int *)set, &event, 20000) == 1);
	return (void *)(intptr_t)event.data.fd;
}

/* A thread that waits already is woken by the first socket that comes into its set. */
static void added_while_another_waits(void)
{
	int fds[2], ends[2], set = epoll_create1(0);
	pthread_t thread;
	void *found;

	pair(fds);
	EXPECT(pipe(ends) == 0);
	add(set, ends[0], EPOLLIN);
	EXPECT(pthread_create(&thread, NULL, wait_once, &set) == 0);
	usleep(300000);
	add(set, fds[1], EPOLLIN);
	EXPECT(send(fds[0], "x", 1, 0) == 1);
	EXPECT(pthread_join(thread, &found) == 0);
	EXPECT((int)(intptr_t)found == fds[1]);
}

static struct {
	pthread_barrier_t barrier;
	int set;
} adding;

static void *add_at_once(void *fd)
{
	pthread_barrier_wait(&adding.barrier);
	add(adding.set, *(int *)fd, EPOLLIN);
	return NULL;
}

/* Two threads add the first two sockets of a set at the same time: the set has both. */
static void added_at_once(void)
{
	int one[2], two[2];

	pair(one);
	pair(two);
	EXPECT(send(one[0], "x", 1, 0) == 1 && send(two[0], "x", 1, 0) == 1);
	EXPECT(ready(one[1], POLLIN, 10000) == POLLIN && ready(two[1], POLLIN, 10000) == POLLIN);
	EXPECT(pthread_barrier_init(&adding.barrier, NULL, 2) == 0);
	for (int round = 0; round < 1000; round++) {
		struct epoll_event found[4];
		pthread_t threads[2];

		adding.set = epoll_create1(0);
		EXPECT(pthread_create(&threads[0], NULL, add_at_once, &one[1]) == 0);
		EXPECT(pthread_create(&threads[1], NULL, add_at_once, &two[1]) == 0);
		EXPECT(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
		EXPECT(epoll_wait(adding.set, found, 4, 10000) == 2);
		EXPECT(close(adding.set) == 0);
	}
}

static struct {
	int set, fd;
	_Atomic int told;
	_Atomic bool over;
} once;

static void *count_events(void *nothing)
{
	struct epoll_event event;

	while (!once.over)
		once.told += wait_epoll(once.set, &event, 20);
	return nothing;
}

/* Of several threads that wait, one gets the event of a socket registered with EPOLLONESHOT. */
static void once_for_one_thread(void)
{
	pthread_t threads[4];
	char byte;
	int fds[2];

	pair(fds);
	once.set = epoll_create1(0);
	add(once.set, fds[1], EPOLLIN | EPOLLONESHOT);
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_create(&threads[i], NULL, count_events, NULL) == 0);
	for (int round = 1; round <= 300; round++) {
		struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};

		EXPECT(send(fds[0], "x", 1, 0) == 1);
		for (int waited = 0; once.told < round; waited++) {
			EXPECT(waited < 20000);
			usleep(1000);
		}
		EXPECT(recv(fds[1], &byte, 1, 0) == 1);
		EXPECT(once.told == round);
		EXPECT(epoll_ctl(once.set, EPOLL_CTL_MOD, fds[1], &event) == 0);
	}
	once.over = true;
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
}

/* Sets in sets, copies of sets, and a set by the numbers of copies. */
static void sets_of_sets(void)
{
	int fds[2], inner = epoll_create1(0), outer = epoll_create1(0), copy;
	struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
	struct timespec long_time = {.tv_sec = 10};
	char byte;

	pair(fds);
	add(inner, fds[1], EPOLLIN);
	add(outer, inner, EPOLLIN);
	copy = dup(inner);
	EXPECT(wait_epoll(outer, &event, 0) == 0 && ready(copy, POLLIN, 0) == 0);
	EXPECT(send(fds[0], "x", 1, 0) == 1);
	EXPECT(wait_epoll(outer, &event, 10000) == 1 && event.data.fd == inner);
	EXPECT(ready(copy, POLLIN, 10000) == POLLIN);
	EXPECT(close(inner) == 0);
	EXPECT(wait_epoll(copy, &event, 10000) == 1 && event.data.fd == fds[1]);
#ifdef SYS_epoll_pwait2
	EXPECT(epoll_pwait2(copy, &event, 1, &long_time, NULL) == 1 && event.data.fd == fds[1]);
#endif
	EXPECT(recv(fds[1], &byte, 1, 0) == 1);
	EXPECT(wait_epoll(copy, &event, 0) == 0 && ready(copy, POLLIN, 0) == 0);
	event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
	EXPECT_ERRNO(EINVAL, epoll_ctl(outer, EPOLL_CTL_ADD, fds[1], &event));
	event.events = EPOLLIN | EPOLLEXCLUSIVE;
	EXPECT(epoll_ctl(outer, EPOLL_CTL_ADD, fds[1], &event) == 0);
	EXPECT_ERRNO(EINVAL, epoll_ctl(outer, EPOLL_CTL_MOD, fds[1], &event));
	EXPECT_ERRNO(EINVAL, epoll_wait(fds[1], &event, 1, 0));
	EXPECT_ERRNO(EINVAL, epoll_wait(copy, &event, 0, 0));
}

static _Atomic int signals;

static void count_signal(int number)
{
	(void)number;
	signals++;
}

/* A signal that is blocked but for the wait ends the wait, whenever it comes. */
static void signals_end_waits(void)
{
	struct sigaction action = {.sa_handler = count_signal};
	struct timespec long_time = {.tv_sec = 20};
	struct epoll_event event;
	int fds[2], set = epoll_create1(0);
	sigset_t blocked, open;

	pair(fds);
	add(set, fds[1], EPOLLIN);
	EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
	EXPECT(sigemptyset(&blocked) == 0 && sigemptyset(&open) == 0 && sigaddset(&blocked, SIGUSR1) == 0);
	EXPECT(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
	for (int how = 0; how < 3; how++) {
		struct pollfd polled = {.fd = fds[1], .events = POLLIN};
		fd_set reading;

		FD_ZERO(&reading);
		FD_SET(fds[1], &reading);
		/* Pending before the wait begins. */
		EXPECT(pthread_kill(pthread_self(), SIGUSR1) == 0 && signals == how);
		if (how == 0)
			EXPECT_ERRNO(EINTR, ppoll(&polled, 1, &long_time, &open));
		else if (how == 1)
			EXPECT_ERRNO(EINTR, pselect(fds[1] + 1, &reading, NULL, NULL, &long_time, &open));
		else
			EXPECT_ERRNO(EINTR, epoll_pwait(set, &event, 1, 20000, &open));
		EXPECT(signals == how + 1);
	}
}

#include "interruptions.h"

/* A file that gets the number of a socket is the file, however the socket was closed, and the peer reads the end. */
static void numbers_that_lead_elsewhere(void)
{
	for (int how = 0; how < 5; how++) {
		struct stat about;
		char bytes[64];
		int fds[2], file, number;

		pair(fds);
		number = fds[0];
		EXPECT(send(fds[0], "s", 1, 0) == 1);
		if (how == 0)
			EXPECT(close_range(number, number, 0) == 0);
		else if (how == 1)
			EXPECT(fclose(fdopen(number, "r+")) == 0);
		else if (how == 2)
			EXPECT(syscall(SYS_close, number) == 0);
		file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
		EXPECT(file >= 0);
		/* These replace the number themselves. */
		if (how == 4)
			EXPECT(syscall(SYS_dup3, file, number, 0) == number);
		else if (file != number)
			EXPECT(dup2(file, number) == number);
		EXPECT(write(number, "a line of a log", 15) == 15);
		EXPECT(lseek(number, 0, SEEK_SET) == 0 && read(number, bytes, sizeof bytes) == 15);
		EXPECT(fstat(number, &about) == 0 && S_ISREG(about.st_mode));
		EXPECT(ready(fds[1], POLLIN, 10000) & POLLIN);
		EXPECT(recv(fds[1], bytes, sizeof bytes, MSG_WAITALL) == 1 && bytes[0] == 's');
		EXPECT(close(number) == 0 && close(fds[1]) == 0);
		if (file != number)
			EXPECT(close(file) == 0);
	}
}

/* Streams of the C library on sockets. */
static void streams_of_stdio(void)
{
	char line[64];
	FILE *out, *in, *both;
	int fds[2], copy;

	pair(fds);
	out = fdopen(dup(fds[0]), "w");
	in = fdopen(fds[1], "r");
	EXPECT(out && in && fileno(in) == fds[1] && fileno(out) >= 0);
	EXPECT(fprintf(out, "%s %d %.1f\n", "a", 2, 3.5) == 8 && fflush(out) == 0);
	EXPECT(fgets(line, sizeof line, in) && !strcmp(line, "a 2 3.5\n"));
	EXPECT(dprintf(fds[0], "%d %d %d %d %d %d %.2f %s\n", 1, 2, 3, 4, 5, 6, 0.25, "more") == 22);
	EXPECT(fgets(line, sizeof line, in) && !strcmp(line, "1 2 3 4 5 6 0.25 more\n"));
	copy = dup(fileno(in));
	both = fdopen(copy, "r+");
	EXPECT(both && fileno(both) == copy);
	EXPECT(fputs("answer\n", both) >= 0 && fclose(both) == 0);
	EXPECT_ERRNO(EBADF, send(copy, "x", 1, 0));
	EXPECT(recv(fds[0], line, 7, MSG_WAITALL) == 7 && !memcmp(line, "answer\n", 7));
	EXPECT(fputs("last", out) >= 0 && fclose(out) == 0 && shutdown(fds[0], SHUT_WR) == 0);
	EXPECT(fread(line, 1, sizeof line, in) == 4 && !memcmp(line, "last", 4) && feof(in) && !ferror(in));
	EXPECT(fclose(in) == 0);
	EXPECT_ERRNO(EBADF, recv(fds[1], line, 1, 0));
}

/* The events that poll returns at each end of sockets' lives, and that they are sockets. */
static void levels(void)
{
	const short all = POLLIN | POLLOUT | POLLRDHUP;
	struct sockaddr_in name;
	struct stat about;
	int listening = listener(&name, 5), fds[2];
	char byte;

	EXPECT(ready(listening, all, 0) == 0);
	fds[0] = make_socket(SOCK_STREAM);
	EXPECT(connect(fds[0], (struct sockaddr *)&name, sizeof name) == 0);
	EXPECT(ready(listening, all, 10000) == POLLIN);
	fds[1] = accept(listening, NULL, NULL);
	EXPECT(fds[1] >= 0 && ready(listening, all, 0) == 0);
	EXPECT(fstat(fds[1], &about) == 0 && S_ISSOCK(about.st_mode));
	EXPECT(ready(fds[0], all, 10000) == POLLOUT && ready(fds[1], all, 10000) == POLLOUT);
	EXPECT(send(fds[0], "x", 1, 0) == 1);
	EXPECT(ready(fds[1], POLLIN, 10000) == POLLIN && ready(fds[1], all, 0) == (POLLIN | POLLOUT));
	EXPECT(recv(fds[1], &byte, 1, 0) == 1 && ready(fds[1], all, 0) == POLLOUT);
	EXPECT(shutdown(fds[0], SHUT_WR) == 0);
	EXPECT(ready(fds[1], POLLRDHUP, 10000) == POLLRDHUP && ready(fds[1], all, 0) == all);
	EXPECT(ready(fds[0], all, 0) == POLLOUT);
	EXPECT(shutdown(fds[1], SHUT_WR) == 0);
	EXPECT(ready(fds[1], all, 10000) == (all | POLLHUP));
	EXPECT(ready(fds[0], POLLRDHUP, 10000) & POLLRDHUP);
	EXPECT(ready(fds[0], all, 10000) == (all | POLLHUP));
}

static void *send_later(void *fd)
{
	usleep(100000);
	EXPECT(send(*(int *)fd, "l", 1, 0) == 1);
	return NULL;
}

/* A sleeping thread is woken. */
static void sleepers(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = epoll_create1(0);
	pthread_t thread;
	char byte;

	for (int how = 0; how < 3; how++) {
		struct timeval long_time = {.tv_sec = 10};
		fd_set reading;
		int fds[2];

		pair(fds);
		FD_ZERO(&reading);
		FD_SET(fds[1], &reading);
		EXPECT(pthread_create(&thread, NULL, send_later, &fds[0]) == 0);
		if (how == 0) {
			EXPECT(ready(fds[1], POLLIN, 10000) == POLLIN);
		} else if (how == 1) {
			EXPECT(select(fds[1] + 1, &reading, NULL, NULL, &long_time) == 1);
		} else {
			EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fds[1], &event) == 0);
			EXPECT(wait_epoll(set, &event, 10000) == 1);
		}
		EXPECT(recv(fds[1], &byte, 1, MSG_DONTWAIT) == 1);
		EXPECT(pthread_join(thread, NULL) == 0);
	}
}

static void copies(void)
{
	int fds[2], copy, high;
	char byte;

	pair(fds);
	copy = dup(fds[0]);
	high = fcntl(fds[0], F_DUPFD_CLOEXEC, 100);
	EXPECT(copy >= 0 && high >= 100 && dup2(fds[0], 90) == 90);
	EXPECT(close(fds[0]) == 0 && close(90) == 0);
	EXPECT(send(copy, "c", 1, 0) == 1 && send(high, "h", 1, 0) == 1);
	EXPECT(recv(fds[1], &byte, 1, MSG_WAITALL) == 1 && byte == 'c');
	EXPECT(recv(fds[1], &byte, 1, MSG_WAITALL) == 1 && byte == 'h');
	EXPECT(close(copy) == 0 && close(high) == 0);
	EXPECT(recv(fds[1], &byte, 1, 0) == 0);
}

static void options(void)
{
	struct timeval timeout = {.tv_usec = 50000};
	int fds[2], value;
	socklen_t length = sizeof value;
	char byte;

	pair(fds);
	value = 1;
	EXPECT(setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
	value = 0;
	EXPECT(getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && value == 1);
	EXPECT(getsockopt(fds[0], SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == SOCK_STREAM);
	EXPECT(getsockopt(fds[0], SOL_SOCKET, SO_ACCEPTCONN, &value, &length) == 0 && value == 0);
	value = 1;
	EXPECT(setsockopt(fds[0], SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value) == 0);
	EXPECT(setsockopt(fds[0], IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value) == 0);
	EXPECT(setsockopt(fds[1], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
	EXPECT_ERRNO(EAGAIN, recv(fds[1], &byte, 1, 0));
	sleep(2);
	EXPECT(send(fds[0], "k", 1, 0) == 1 && recv(fds[1], &byte, 1, MSG_WAITALL) == 1);
}

static void many(void)
{
	enum { COUNT = 60 };
	struct sockaddr_in name;
	int listening = listener(&name, COUNT), clients[COUNT], servers[COUNT];
	char byte;

	for (int i = 0; i < COUNT; i++) {
		clients[i] = make_socket(SOCK_STREAM);
		EXPECT(connect(clients[i], (struct sockaddr *)&name, sizeof name) == 0);
		EXPECT(send(clients[i], (char[]){i}, 1, 0) == 1);
	}
	for (int i = 0; i < COUNT; i++) {
		servers[i] = accept(listening, NULL, NULL);
		EXPECT(servers[i] >= 0);
	}
	for (int i = 0; i < COUNT; i++) {
		EXPECT(recv(servers[i], &byte, 1, 0) == 1 && send(servers[i], &byte, 1, 0) == 1);
	}
	for (int i = 0; i < COUNT; i++)
		EXPECT(recv(clients[i], &byte, 1, 0) == 1 && byte == i);
	for (int i = 0; i < COUNT; i++)
		EXPECT(close(i % 2 ? clients[i] : servers[i]) == 0);
	for (int i = 0; i < COUNT; i++)
		EXPECT(recv(i % 2 ? servers[i] : clients[i], &byte, 1, 0) == 0);
}

static void reset(void)
{
	struct linger at_once = {.l_onoff = 1};
	int fds[2];
	char byte;

	pair(fds);
	EXPECT(setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
	EXPECT(close(fds[0]) == 0);
	EXPECT(ready(fds[1], POLLIN, 10000) & (POLLERR | POLLHUP));
	EXPECT_ERRNO(ECONNRESET, recv(fds[1], &byte, 1, 0));
}

/* A peer that has sent all data, and resets the connection later, ends the data all the same. */
static void reset_after_the_end(void)
{
	struct linger at_once = {.l_onoff = 1};
	int fds[2], error = 0;
	socklen_t length = sizeof error;
	char byte;

	pair(fds);
	EXPECT(shutdown(fds[0], SHUT_WR) == 0);
	EXPECT(ready(fds[1], POLLIN, 10000) & POLLIN);
	EXPECT(send(fds[1], "x", 1, 0) == 1);
	EXPECT(ready(fds[0], POLLIN, 10000) & POLLIN);
	EXPECT(setsockopt(fds[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
	EXPECT(close(fds[0]) == 0);
	EXPECT(ready(fds[1], 0, 10000) & POLLERR);
	EXPECT(recv(fds[1], &byte, 1, 0) == 0);
	EXPECT(recv(fds[1], &byte, 1, 0) == 0);
	EXPECT(getsockopt(fds[1], SOL_SOCKET, SO_ERROR, &error, &length) == 0);
	EXPECT(error == EPIPE);
	EXPECT(recv(fds[1], &byte, 1, 0) == 0);
}

static void datagrams(void)
{
	struct sockaddr_in names[2], from;
	struct timeval timeout = {.tv_sec = 10};
	int fds[2];
	char bytes[3000], got[3000];
	socklen_t length;

	for (int i = 0; i < 2; i++) {
		fds[i] = make_socket(SOCK_DGRAM);
		names[i] = here(0);
		length = sizeof names[i];
		EXPECT(bind(fds[i], (struct sockaddr *)&names[i], sizeof names[i]) == 0);
		EXPECT(getsockname(fds[i], (struct sockaddr *)&names[i], &length) == 0);
		EXPECT(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
	}
	memset(bytes, 'd', sizeof bytes);
	EXPECT_ERRNO(EDESTADDRREQ, send(fds[0], bytes, 1, 0));
	/* The first go another way than the others, as do the long ones. */
	for (int i = 0; i < 60; i++) {
		int to = i % 2;
		size_t size = i % 10 == 9 ? 3000 : i + 1;

		bytes[0] = i;
		EXPECT(sendto(fds[!to], bytes, size, 0, (struct sockaddr *)&names[to], sizeof names[to]) ==
		       (ssize_t)size);
		length = sizeof from;
		EXPECT(recvfrom(fds[to], got, sizeof got, 0, (struct sockaddr *)&from, &length) == (ssize_t)size);
		EXPECT(got[0] == i && !memcmp(got, bytes, size));
		EXPECT(from.sin_port == names[!to].sin_port && from.sin_addr.s_addr == names[!to].sin_addr.s_addr);
	}
	EXPECT(sendto(fds[0], bytes, 10, 0, (struct sockaddr *)&names[1], sizeof names[1]) == 10);
	EXPECT(ready(fds[1], POLLIN, 10000) == POLLIN);
	EXPECT(recv(fds[1], got, 4, MSG_TRUNC) == 10);
	EXPECT(connect(fds[0], (struct sockaddr *)&names[1], sizeof names[1]) == 0);
	EXPECT(send(fds[0], bytes, 5, 0) == 5 && recv(fds[1], got, sizeof got, 0) == 5);
	EXPECT_ERRNO(EAGAIN, recv(fds[1], got, sizeof got, MSG_DONTWAIT));
}

/* A message of many pieces, which is read only when all of it has been sent. */
static void pieces(void)
{
	enum { PIECES = 1024 };
	struct iovec out[PIECES];
	char sent[3 * PIECES], got[3 * PIECES];
	size_t length = 0;
	int fds[2];

	pair(fds);
	for (int i = 0; i < PIECES; i++) {
		size_t size = i % 4;

		out[i] = (struct iovec){sent + length, size};
		memset(sent + length, i, size);
		length += size;
	}
	for (int round = 0; round < 3; round++) {
		EXPECT(writev(fds[0], out, PIECES) == (ssize_t)length);
		EXPECT(recv(fds[1], got, length, MSG_WAITALL) == (ssize_t)length && !memcmp(got, sent, length));
	}
}

/* The second socket has the first one's port, and another queue pair. */
static void datagrams_to_a_new_server(void)
{
	struct timeval timeout = {.tv_sec = 10};
	struct sockaddr_in name = here(0);
	socklen_t length = sizeof name;
	int client = make_socket(SOCK_DGRAM), server;
	char byte;

	for (int i = 0; i < 2; i++) {
		server = make_socket(SOCK_DGRAM);
		EXPECT(bind(server, (struct sockaddr *)&name, sizeof name) == 0);
		EXPECT(getsockname(server, (struct sockaddr *)&name, &length) == 0);
		EXPECT(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
		for (int sent = 0; sent < 4; sent++) {
			EXPECT(sendto(client, "d", 1, 0, (struct sockaddr *)&name, sizeof name) == 1);
			EXPECT(recv(server, &byte, 1, 0) == 1 && byte == 'd');
		}
		EXPECT(close(server) == 0);
		/* Meanwhile datagrams may be lost. */
		usleep(1100000);
	}
}

/* All that can be received is counted, however much it is. */
static void unread(void)
{
	static char bytes[400000];
	int fds[2], counted = -1, before = -2;

	pair(fds);
	set_nonblocking(fds[0]);
	for (ssize_t sent = 0, now; sent < 300000 && (now = send(fds[0], bytes, sizeof bytes, 0)) > 0;)
		sent += now;
	for (; counted != before; usleep(300000)) {
		before = counted;
		EXPECT(ioctl(fds[1], FIONREAD, &counted) == 0);
	}
	EXPECT(counted > 0 && recv(fds[1], bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) == counted);
}

static const struct test_case {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"names", names},
	{"bad_calls", bad_calls},
	{"refused", refused},
	{"connects_after_a_refusal", connects_after_a_refusal},
	{"nonblocking_connect", nonblocking_connect},
	{"connects_again", connects_again},
	{"half_close", half_close},
	{"end_behind_bytes", end_behind_bytes},
	{"closed_peer", closed_peer},
	{"peek_and_wait", peek_and_wait},
	{"full", full},
	{"duplex", duplex},
	{"two_readers", two_readers},
	{"sender_beside_reader", sender_beside_reader},
	{"select_with_pipe", select_with_pipe},
	{"epoll_sets", epoll_sets},
	{"more_ready_than_room", more_ready_than_room},
	{"added_while_another_waits", added_while_another_waits},
	{"added_at_once", added_at_once},
	{"once_for_one_thread", once_for_one_thread},
	{"sets_of_sets", sets_of_sets},
	{"signals_end_waits", signals_end_waits},
	{"restarts", restarts},
	{"errno_stays", errno_stays},
	{"stops", stops},
	{"handlers_use_sockets", handlers_use_sockets},
	{"jumps", jumps},
	{"handlers_change_the_mask", handlers_change_the_mask},
	{"threads_end", threads_end},
	{"cancelled_threads_sleep_on", cancelled_threads_sleep_on},
	{"levels", levels},
	{"numbers_that_lead_elsewhere", numbers_that_lead_elsewhere},
	{"streams_of_stdio", streams_of_stdio},
	{"sleepers", sleepers},
	{"copies", copies},
	{"options", options},
	{"many", many},
	{"reset", reset},
	{"reset_after_the_end", reset_after_the_end},
	{"datagrams", datagrams},
	{"pieces", pieces},
	{"datagrams_to_a_new_server", datagrams_to_a_new_server},
	{"unread", unread},
};

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc < 2)
			puts(cases[i].name);
		else if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			puts("ok");
			return 0;
		}
	}
	return argc < 2 ? 0 : (fail("no case is named %s", argv[1]), 1);
}
