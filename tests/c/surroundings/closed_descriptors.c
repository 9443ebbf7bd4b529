/* closed_descriptors: a program that closes descriptors which it hasn't opened, as daemons do, and opens its own.
 *
 * What is asked of a provider: what the program has opened is never written, read, polled or closed by the adapter,
 * whatever its numbers were before. The adapter may go on, or fail: then its queue pairs are flushed and the program gets an
 * event. `closed_descriptors HOW WHAT kept|lost`: HOW the program closes, WHAT it has afterwards where the adapter's
 * descriptors were, and what shall become of the adapter.
 * `closed_descriptors cloned`: a child past the handlers of fork(3), which can't use verbs, can let go of what it has
 * inherited.
 * `closed_descriptors limit`: a low limit of the size of files does no harm.
 */
#define _GNU_SOURCE
#include "loop.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define NUMBERS 65536
#define ROUNDS 50
/* One packet, which is copied on its own. */
#define LENGTH 600
#define FILE_SIZE 65536
#define FILES 40

static char memory[2 * LENGTH];

/* One message; the worse of both statuses. */
static enum ibv_wc_status pass(const struct loop *loop, unsigned int round)
{
	enum ibv_wc_status worst = IBV_WC_SUCCESS;
	struct ibv_wc wc;

	fill(memory, LENGTH, round);
	post_message(loop);
	for (int i = 0; i < 2; i++) {
		if (!wait_wc(loop->cq, &wc, 20000))
			fail("round %u: no completion in 20 s", round);
		if (wc.status != IBV_WC_SUCCESS)
			worst = wc.status;
	}
	if (worst == IBV_WC_SUCCESS)
		check(memory + LENGTH, LENGTH, round, "message");
	return worst;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* The descriptors that were open when the program began. */
static bool inherited[NUMBERS];
/* The numbers that have come into use since; those that the program knows aren't among them. */
static int strange[NUMBERS], strangers;

static void find_inherited(void)
{
	for (int fd = 3; fd < NUMBERS; fd++)
		inherited[fd] = is_open(fd);
}

static void find_strangers(int known)
{
	for (int fd = 3; fd < NUMBERS; fd++)
		if (is_open(fd) && fd != known && !inherited[fd])
			strange[strangers++] = fd;
}

static void close_strangers(const char *how, int known)
{
	if (!strcmp(how, "close"))
		for (int fd = 3; fd < NUMBERS; fd++) {
			if (fd != known)
				close(fd);
		}
	else if (!strcmp(how, "range")) {
		if (known > 3)
			close_range(3, (unsigned int)known - 1, 0);
		close_range((unsigned int)known + 1, ~0u, 0);
	} else if (!strcmp(how, "from")) {
		closefrom(known + 1);
	} else if (!strcmp(how, "raw")) {
		/* What no library sees. */
		for (int i = 0; i < strangers; i++)
			syscall(SYS_close, strange[i]);
	} else {
		fail("close how? %s", how);
	}
}

/* What the program has afterwards: one object and the copies of its descriptor. */
struct own {
	const char *what;
	int fd, other;
	int copies[NUMBERS], count;
};

static struct own own;

static void make_own(const char *what)
{
	static char bytes[FILE_SIZE];
	int ends[2];

	own.what = what;
	if (!strcmp(what, "file")) {
		memset(bytes, 'p', sizeof bytes);
		own.fd = memfd_create("own", 0);
		if (own.fd < 0 || write(own.fd, bytes, sizeof bytes) != sizeof bytes)
			fail("a file: %s", strerror(errno));
	} else if (!strcmp(what, "socket")) {
		MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
		own.fd = ends[0];
		own.other = ends[1];
		if (send(own.other, "mine", 4, 0) != 4)
			fail("send: %s", strerror(errno));
	} else if (!strcmp(what, "counter")) {
		own.fd = eventfd(7, EFD_NONBLOCK);
	} else {
		fail("have what? %s", what);
	}
	for (int i = 0; i < FILES; i++)
		own.copies[own.count++] = dup(own.fd);
	for (int i = 0; i < strangers; i++)
		if (dup2(own.fd, strange[i]) >= 0)
			own.copies[own.count++] = strange[i];
}

static void expect_own_untouched(const char *when)
{
	static char bytes[FILE_SIZE + 1];
	uint64_t value = 0;

	for (int i = 0; i < own.count; i++)
		if (!is_open(own.copies[i]))
			fail("%s: the program's descriptor %d has been closed", when, own.copies[i]);
	if (!strcmp(own.what, "file")) {
		ssize_t size = pread(own.fd, bytes, sizeof bytes, 0);

		if (size != FILE_SIZE)
			fail("%s: the program's file has %zd bytes", when, size);
		for (size_t i = 0; i < FILE_SIZE; i++)
			if (bytes[i] != 'p')
				fail("%s: byte %zu of the program's file was overwritten", when, i);
		if (lseek(own.fd, 0, SEEK_CUR) != FILE_SIZE)
			fail("%s: the program's file was read", when);
	} else if (!strcmp(own.what, "socket")) {
		if (recv(own.other, bytes, sizeof bytes, MSG_DONTWAIT) >= 0)
			fail("%s: something was sent through the program's socket", when);
		if (recv(own.fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_PEEK) != 4)
			fail("%s: the program's socket was read", when);
	} else if (read(own.fd, &value, sizeof value) != sizeof value || value != 7) {
		fail("%s: the program's counter is %llu", when, (unsigned long long)value);
	} else if (write(own.fd, &value, sizeof value) != sizeof value) {
		fail("write: %s", strerror(errno));
	}
}

/* The device reports that it has failed. */
static void expect_fatal(struct ibv_context *context)
{
	struct pollfd poll_fd = {.fd = context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	bool fatal = false;

	while (!fatal) {
		if (poll(&poll_fd, 1, 20000) != 1)
			fail("no IBV_EVENT_DEVICE_FATAL");
		MUST(ibv_get_async_event(context, &event));
		fatal = event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
}

static void close_all(const char *how, const char *what, bool kept)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 64, memory, sizeof memory);
	int known = device.context->async_fd;
	enum ibv_wc_status status;

	for (unsigned int i = 0; i < 3; i++)
		if (pass(&loop, i))
			fail("round %u before anything was closed failed", i);
	find_strangers(known);
	close_strangers(how, known);
	make_own(what);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		status = pass(&loop, i);
		if (status != IBV_WC_SUCCESS && kept)
			fail("round %u: %s", i, ibv_wc_status_str(status));
	}
	expect_own_untouched("after traffic");
	if (!kept) {
		expect_fatal(device.context);
		if (pass(&loop, 0) == IBV_WC_SUCCESS || qp_state(loop.a) != IBV_QPS_ERR ||
		    qp_state(loop.b) != IBV_QPS_ERR)
			fail("the queue pairs go on");
	}
	destroy_loop(&loop);
	MUST(ibv_dealloc_pd(device.pd));
	/* The descriptor of a context is the program's to close. */
	MUST(ibv_close_device(device.context));
	expect_own_untouched("after the end");
	puts(kept ? "kept ok" : "lost ok");
}

static void close_in_clone(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 64, memory, sizeof memory);
	int status;
	pid_t child;

	MUST(pass(&loop, 0));
	find_strangers(device.context->async_fd);
	/* What _Fork is made of. */
	child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (child == 0) {
		closefrom(3);
		for (int i = 0; i < strangers; i++)
			if (is_open(strange[i]))
				_exit(1);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		fail("the child holds a descriptor that it has closed");
	MUST(pass(&loop, 1));
	puts("cloned ok");
}

static void limit_files(void)
{
	struct rlimit limit, before;
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 64, memory, sizeof memory);

	MUST(pass(&loop, 0));
	MUST(getrlimit(RLIMIT_FSIZE, &before));
	limit = before;
	limit.rlim_cur = 8;
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	for (unsigned int i = 0; i < ROUNDS; i++)
		MUST(pass(&loop, i));
	/* Standard output may be a file. */
	MUST(setrlimit(RLIMIT_FSIZE, &before));
	puts("limit ok");
}

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	find_inherited();
	if (argc == 2 && !strcmp(argv[1], "limit"))
		limit_files();
	else if (argc == 2 && !strcmp(argv[1], "cloned"))
		close_in_clone();
	else if (argc == 4)
		close_all(argv[1], argv[2], !strcmp(argv[3], "kept"));
	else
		fail("usage: closed_descriptors limit | cloned | HOW WHAT kept|lost");
	return 0;
}
