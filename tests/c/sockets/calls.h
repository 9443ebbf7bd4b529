/* The calls of sockets and of descriptors that agents make. Each returns what the call under test does; `how` chooses among calls that
 * must do the same.
 */
#ifndef CALLS_H
#define CALLS_H

#include "agents.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { LARGEST = 32768 };

static long call_socket(struct command *c)
{
	return socket(AF_INET, SOCK_STREAM | c->how, 0);
}

static const char *own_address(void)
{
	const char *address = getenv("ADDRESS");

	return address ? address : "127.0.0.1";
}

static struct sockaddr_in name_of(int port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};

	NEED(inet_pton(AF_INET, own_address(), &name.sin_addr) == 1);
	return name;
}

/* A listening socket; its port goes to `other`. */
static long call_listen(struct command *c)
{
	struct sockaddr_in name = name_of(0);
	socklen_t length = sizeof name;
	int fd = socket(AF_INET, SOCK_STREAM | c->how, 0), on = 1;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
	    bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || listen(fd, c->size) != 0 ||
	    getsockname(fd, (struct sockaddr *)&name, &length) != 0)
		return -1;
	c->other = ntohs(name.sin_port);
	return fd;
}

/* Connects to port `other`; its own port goes there. */
static long call_connect(struct command *c)
{
	struct sockaddr_in name = name_of(c->other);
	socklen_t length = sizeof name;
	long result = connect(c->fd, (struct sockaddr *)&name, sizeof name);
	int error = errno;

	if (result != 0 && error == EINPROGRESS) {
		struct pollfd polled = {.fd = c->fd, .events = POLLOUT};
		int code = -1;
		socklen_t size = sizeof code;

		if (poll(&polled, 1, limit_ms) != 1)
			return -2;
		if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0)
			return -3;
		c->polled[0].revents = polled.revents;
		error = code;
		result = code ? -1 : 0;
	}
	if (result == 0 && getsockname(c->fd, (struct sockaddr *)&name, &length) == 0)
		c->other = ntohs(name.sin_port);
	errno = error;
	return result;
}

/* The peer's port goes to `other`. */
static long call_accept(struct command *c)
{
	struct sockaddr_in name = {0};
	socklen_t length = sizeof name;
	long fd = c->how & 1 ? accept(c->fd, (struct sockaddr *)&name, &length)
			     : accept4(c->fd, (struct sockaddr *)&name, &length, c->how & SOCK_NONBLOCK);

	c->other = ntohs(name.sin_port);
	return fd;
}

enum { WRITES = 8, SEND_STDIO = 6, SEND_DPRINTF = 7 };

static long call_send(struct command *c)
{
	static _Thread_local uint8_t bytes[LARGEST + 1];
	struct iovec pieces[3] = {{bytes, c->size / 3}, {bytes + c->size / 3, 0}, {bytes + c->size / 3, c->size - c->size / 3}};
	struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
	long result;

	fill(bytes, c->size, c->stream, c->offset);
	switch (c->how) {
	case 0:
		return write(c->fd, bytes, c->size);
	case 1:
		return send(c->fd, bytes, c->size, MSG_NOSIGNAL);
	case 2:
		return sendto(c->fd, bytes, c->size, 0, NULL, 0);
	case 3:
		return writev(c->fd, pieces, 3);
	case 4:
		return sendmsg(c->fd, &message, MSG_NOSIGNAL);
	case 5: {
		int file = memfd_create("page", MFD_CLOEXEC);
		off_t from = 0;

		if (write(file, bytes, c->size) != c->size)
			return -4;
		result = sendfile(c->fd, file, &from, c->size);
		close(file);
		return result;
	}
	case SEND_STDIO: {
		FILE *stream = fdopen(dup(c->fd), "w");

		if (!stream)
			return -1;
		/* In one piece. */
		setvbuf(stream, NULL, _IOFBF, LARGEST + 1);
		result = fwrite(bytes, 1, c->size, stream);
		if (fflush(stream) != 0)
			result = -1;
		return fclose(stream) == 0 ? result : -1;
	}
	default:
		bytes[c->size] = 0;
		return dprintf(c->fd, "%s", bytes);
	}
}

/* Sends a byte again and again until that fails. */
static long call_send_in_vain(struct command *c)
{
	for (int i = 0; i < 400; i++) {
		long result = send(c->fd, "x", 1, MSG_NOSIGNAL);

		if (result != 1)
			return result;
		nap(2000);
	}
	return 1;
}

enum { READS = 8, RECEIVE_PEEK = 5, RECEIVE_ALL = 6, RECEIVE_STDIO = 7 };

/* `other` has flags. */
static long call_receive(struct command *c)
{
	static _Thread_local uint8_t bytes[LARGEST];
	struct iovec pieces[3] = {{bytes, c->size / 3}, {bytes + c->size / 3, 0}, {bytes + c->size / 3, c->size - c->size / 3}};
	struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
	long result;

	switch (c->how) {
	case 0:
		result = c->other ? recv(c->fd, bytes, c->size, c->other) : read(c->fd, bytes, c->size);
		break;
	case 1:
		result = recv(c->fd, bytes, c->size, c->other);
		break;
	case 2:
		result = recvfrom(c->fd, bytes, c->size, c->other, NULL, NULL);
		break;
	case 3:
		result = c->other ? recvmsg(c->fd, &message, c->other) : readv(c->fd, pieces, 3);
		break;
	case 4:
		result = recvmsg(c->fd, &message, c->other);
		break;
	case RECEIVE_PEEK:
		result = recv(c->fd, bytes, c->size, MSG_PEEK | c->other);
		break;
	case RECEIVE_ALL:
		result = recv(c->fd, bytes, c->size, MSG_WAITALL | c->other);
		break;
	default: {
		FILE *stream = fdopen(dup(c->fd), "r");

		if (!stream)
			return -1;
		setvbuf(stream, NULL, _IONBF, 0);
		result = fread(bytes, 1, c->size, stream);
		fclose(stream);
	}
	}
	if (result > 0)
		c->wrong = !right(bytes, result, c->stream, c->offset);
	return result;
}

static long call_shutdown(struct command *c)
{
	return shutdown(c->fd, c->how);
}

enum { CLOSES = 6, CLOSE_BY_DUP2 = 1 };

static long call_close(struct command *c)
{
	long result;
	int file;

	switch (c->how) {
	case 0:
		return close(c->fd);
	case CLOSE_BY_DUP2:
	case 2:
		/* The number leads elsewhere: what is written there mustn't reach a peer. */
		file = memfd_create("other", MFD_CLOEXEC);
		result = c->how == CLOSE_BY_DUP2 ? dup2(file, c->fd) : dup3(file, c->fd, O_CLOEXEC);
		if (file == c->fd)
			return -6;
		if (result == c->fd) {
			char text[6] = {0};

			result = write(c->fd, "other", 5) == 5 && pread(file, text, 5, 0) == 5 && !strcmp(text, "other") ? 0 : -4;
		}
		close(file);
		if (close(c->fd) != 0)
			return -5;
		return result;
	case 3:
		return close_range(c->fd, c->fd, 0);
	case 4: {
		FILE *stream = fdopen(c->fd, "r+");

		return stream ? fclose(stream) : -1;
	}
	default:
		/* The number that has just become free is the next that is opened, unless a lower one is free. */
		result = close_range(c->fd, c->fd, 0);
		file = open("/dev/null", O_WRONLY | O_CLOEXEC);
		if (dup2(file, c->fd) == c->fd && write(c->fd, "nothing", 7) != 7)
			result = -4;
		if (file != c->fd)
			close(c->fd);
		close(file);
		return result;
	}
}

static long call_copy(struct command *c)
{
	switch (c->how) {
	case 0:
		return dup(c->fd);
	case 1:
		return fcntl(c->fd, F_DUPFD, 200);
	case 2:
		return fcntl(c->fd, F_DUPFD_CLOEXEC, 3);
	default: {
		/* A number that is free, or leads elsewhere. */
		int target = dup(STDERR_FILENO);

		if (c->how == 3)
			return dup2(c->fd, target);
		return dup3(c->fd, target, O_CLOEXEC);
	}
	}
}

/* `size` is whether calls shall wait. */
static long call_blocking(struct command *c)
{
	int flags, on = !c->size;

	if (c->how)
		return ioctl(c->fd, FIONBIO, &on);
	flags = fcntl(c->fd, F_GETFL);
	return fcntl(c->fd, F_SETFL, c->size ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

static long call_available(struct command *c)
{
	int value = -1;

	(void)c;
	return ioctl(c->fd, FIONREAD, &value) == 0 ? value : -1;
}

/* The state of a connection of TCP; `other` gets how many wait to be accepted. */
static long call_state(struct command *c)
{
	struct tcp_info info = {0};
	socklen_t length = sizeof info;

	if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
		return -1;
	c->other = info.tcpi_unacked;
	return info.tcpi_state;
}

enum { OPTIONS = 9 };

static long option(int fd, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

static long call_option(struct command *c)
{
	struct sockaddr_in name = {0};
	socklen_t length = sizeof name;
	int on = 1;

	switch (c->how) {
	case 0:
		return option(c->fd, SOL_SOCKET, SO_ERROR);
	case 1:
		return option(c->fd, SOL_SOCKET, SO_TYPE);
	case 2:
		return option(c->fd, SOL_SOCKET, SO_ACCEPTCONN);
	case 3:
		return setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 ? option(c->fd, IPPROTO_TCP, TCP_NODELAY) : -1;
	case 4:
		return getpeername(c->fd, (struct sockaddr *)&name, &length) == 0 ? name.sin_family == AF_INET && name.sin_port : -1;
	case 5:
		return getsockname(c->fd, (struct sockaddr *)&name, &length) == 0 ? name.sin_family == AF_INET && name.sin_port : -1;
	case 6: {
		int flags = fcntl(c->fd, F_GETFL);

		return flags < 0 ? flags : flags & (O_NONBLOCK | O_ACCMODE);
	}
	case 7:
		return lseek(c->fd, 0, SEEK_CUR);
	default:
		return isatty(c->fd) ? 1 : -1;
	}
}

enum { POLLS = 4, POLL_SIGNALS = 4, POLL_PENDING = 8 };

static struct timespec *time_of(long ms, struct timespec *time)
{
	*time = (struct timespec){ms / 1000, ms % 1000 * 1000000};
	return ms < 0 ? NULL : time;
}

static sigset_t no_signals(void)
{
	sigset_t none;

	sigemptyset(&none);
	return none;
}

/* poll, ppoll, select or pselect of `polled` for `size` milliseconds. With POLL_SIGNALS SIGUSR2 interrupts it, and with POLL_PENDING too
 * it has come before.
 */
static long call_poll(struct command *c)
{
	struct timespec time, *timeout = time_of(c->size, &time);
	sigset_t none = no_signals(), *signals = c->how & POLL_SIGNALS ? &none : NULL;
	int how = c->how & (POLLS - 1), most = 0;
	struct timeval short_time = {c->size / 1000, c->size % 1000 * 1000};
	fd_set sets[3];
	long result;

	if (c->how & POLL_PENDING)
		raise(SIGUSR2);
	if (how == 0 && !signals)
		return poll(c->polled, c->count, c->size);
	if (how <= 1)
		return ppoll(c->polled, c->count, timeout, signals);
	for (int i = 0; i < 3; i++)
		FD_ZERO(&sets[i]);
	for (int i = 0; i < c->count; i++) {
		if (c->polled[i].events & POLLIN)
			FD_SET(c->polled[i].fd, &sets[0]);
		if (c->polled[i].events & POLLOUT)
			FD_SET(c->polled[i].fd, &sets[1]);
		if (c->polled[i].events & POLLPRI)
			FD_SET(c->polled[i].fd, &sets[2]);
		if (c->polled[i].fd >= most)
			most = c->polled[i].fd + 1;
	}
	result = how == 2 && !signals ? select(most, &sets[0], &sets[1], &sets[2], c->size < 0 ? NULL : &short_time)
				      : pselect(most, &sets[0], &sets[1], &sets[2], timeout, signals);
	for (int i = 0; i < c->count; i++) {
		int fd = c->polled[i].fd;

		c->polled[i].revents = result <= 0 ? 0
				     : (FD_ISSET(fd, &sets[0]) ? POLLIN : 0) | (FD_ISSET(fd, &sets[1]) ? POLLOUT : 0) |
					       (FD_ISSET(fd, &sets[2]) ? POLLPRI : 0);
	}
	return result;
}

static long call_epoll_create(struct command *c)
{
	return c->how ? epoll_create(7) : epoll_create1(EPOLL_CLOEXEC);
}

static long call_epoll_ctl(struct command *c)
{
	return epoll_ctl(c->fd, c->how, c->other, c->count < 0 ? NULL : &c->events[0]);
}

enum { WAITS = 3, WAIT_SIGNALS = 4, WAIT_PENDING = 8 };

/* One wait for `count` events at most, for `size` milliseconds. */
static long call_epoll_wait(struct command *c)
{
	struct timespec time, *timeout = time_of(c->size, &time);
	sigset_t none = no_signals(), *signals = c->how & WAIT_SIGNALS ? &none : NULL;
	int how = c->how & 3;

	if (c->how & WAIT_PENDING)
		raise(SIGUSR2);
	if (how == 0 && !signals)
		return epoll_wait(c->fd, c->events, c->count, c->size);
	if (how == 2)
		return epoll_pwait2(c->fd, c->events, c->count, timeout, signals);
	return epoll_pwait(c->fd, c->events, c->count, c->size, signals);
}

/* Many waits with `count` places, until one finds nothing, or `size` waits have been made. Their events are put together. */
static long call_epoll_collect(struct command *c)
{
	int found = 0, places = c->count;

	for (long i = 0; i < c->size; i++) {
		int now;

		if (found + places > SEEN)
			break;
		now = epoll_wait(c->fd, c->events + found, places, 0);
		if (now < 0)
			return now;
		if (now == 0)
			break;
		found += now;
	}
	return found;
}

static long call_pipe(struct command *c)
{
	int ends[2];
	long result = pipe2(ends, O_NONBLOCK | O_CLOEXEC);

	c->fd = ends[0];
	c->other = ends[1];
	return result;
}

static long call_eventfd(struct command *c)
{
	(void)c;
	return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

/* Writes one byte to a pipe, or adds 1 to an event descriptor. */
static long call_raise(struct command *c)
{
	uint64_t one = 1;

	return write(c->fd, &one, c->how ? 8 : 1);
}

static long call_lower(struct command *c)
{
	uint64_t room[16];

	return read(c->fd, room, c->how ? 8 : sizeof room);
}

enum { FORKS = 5 };

/* Children that do various things and end: the parent's descriptors stay as they are. */
static long call_fork(struct command *c)
{
	char *words[] = {"true", NULL}, *variables[] = {NULL};
	int status = -1, ends[2] = {-1, -1};
	char byte;
	pid_t child;

	if (c->how == 0) {
		if (posix_spawnp(&child, "true", NULL, NULL, words, variables) != 0)
			return -1;
	} else {
		NEED(pipe2(ends, O_CLOEXEC) == 0);
		child = fork();
		if (child == 0) {
			if (c->how == 1)
				close(c->fd);
			if (write(ends[1], "c", 1) != 1)
				_exit(3);
			if (c->how == 2)
				close_range(3, ~0u, 0);
			if (c->how == 3) {
				execvp("true", words);
				_exit(4);
			}
			if (c->how == 4) {
				struct epoll_event event = {.events = EPOLLIN};
				int set = epoll_create1(0), own[2];

				if (pipe(own) != 0 || write(own[1], "c", 1) != 1 || epoll_ctl(set, EPOLL_CTL_ADD, own[0], &event) != 0 ||
				    epoll_wait(set, &event, 1, 1000) != 1)
					_exit(5);
			}
			_exit(0);
		}
		if (child < 0)
			return -1;
		close(ends[1]);
		if (read(ends[0], &byte, 1) != 1)
			byte = 0;
		close(ends[0]);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return status;
}

/* Sends until there is no room and stays none; returns how many bytes. The descriptor doesn't block. */
static long call_fill(struct command *c)
{
	static _Thread_local uint8_t bytes[LARGEST];
	struct pollfd polled = {.fd = c->fd, .events = POLLOUT};
	long sent = 0;

	for (;;) {
		ssize_t now;

		fill(bytes, c->size, c->stream, c->offset + sent);
		now = send(c->fd, bytes, c->size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (now > 0)
			sent += now;
		else if (errno != EAGAIN)
			return -1;
		else if (poll(&polled, 1, 60) == 0)
			return sent;
		if (sent > 1 << 28)
			return -2;
	}
}

/* Receives this many bytes. */
static long call_drain(struct command *c)
{
	static _Thread_local uint8_t bytes[LARGEST];
	struct pollfd polled = {.fd = c->fd, .events = POLLIN};
	long got = 0;

	while (got < c->size) {
		long wanted = c->size - got < LARGEST ? c->size - got : LARGEST;
		ssize_t now;

		if (poll(&polled, 1, limit_ms) != 1) {
			errno = ETIME;
			return -1;
		}
		now = recv(c->fd, bytes, wanted, 0);
		if (now < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (now <= 0)
			return now;
		if (!right(bytes, now, c->stream, c->offset + got))
			c->wrong = true;
		got += now;
	}
	return got;
}

/* recv with a time limit of `size` milliseconds. */
static long call_receive_timeout(struct command *c)
{
	struct timeval time = {c->size / 1000, c->size % 1000 * 1000}, none = {0};
	long result, start = now_ms(), error;
	char byte;

	if (setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) != 0)
		return -2;
	result = recv(c->fd, &byte, 1, MSG_PEEK);
	error = errno;
	if (setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) != 0)
		return -3;
	if (result < 0 && now_ms() - start < c->size)
		return -4;
	errno = error;
	return result;
}

#endif
