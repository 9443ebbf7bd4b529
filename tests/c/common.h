/* What the programs of this folder share beside basics.h: opening a device, connecting QPs, finding the other side,
 * cases.
 */
#ifndef COMMON_H
#define COMMON_H

#include "basics.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* No program outlives this, whatever happens. */
#define ALARM_SECONDS 60

#define ALL_ACCESS                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* Zeroed memory of at most 1 GiB where the kernel maps nothing by itself. Elsewhere the kernel may reuse the addresses of memory that the
 * program has released by free() or munmap(); a use of the released memory would then succeed unnoticed.
 */
UNUSED static char *map_apart(size_t length)
{
	static atomic_ulong next = 3ul << 44;
	void *place = (void *)atomic_fetch_add(&next, 1ul << 30);
	char *memory = mmap(place, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
			    -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return memory;
}

/* There is something to read within so many milliseconds. */
UNUSED static bool is_readable(int fd, int milliseconds)
{
	struct pollfd readable = {.fd = fd, .events = POLLIN};

	return poll(&readable, 1, milliseconds) == 1;
}

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
	/* Of addresses. */
	uint8_t static_rate;
};

/* The device number `number` of the list, from 0 on. */
UNUSED static struct device open_device_number(int number, int gid_index)
{
	struct device device = {.gid_index = gid_index};
	int count = 0;
	struct ibv_device **list = MAKE(ibv_get_device_list(&count));

	if (count <= number)
		fail("there are %d verbs devices", count);
	device.context = MAKE(ibv_open_device(list[number]));
	ibv_free_device_list(list);
	device.pd = MAKE(ibv_alloc_pd(device.context));
	MUST(ibv_query_device(device.context, &device.attr));
	MUST(ibv_query_port(device.context, PORT_NUM, &device.port));
	MUST(ibv_query_gid(device.context, PORT_NUM, gid_index, &device.gid));
	return device;
}

UNUSED static struct device open_device(int gid_index)
{
	return open_device_number(0, gid_index);
}

UNUSED static struct ibv_cq *make_cq(const struct device *device, int entries,
						       struct ibv_comp_channel *channel)
{
	return MAKE(ibv_create_cq(device->context, entries, NULL, channel, 0));
}

/* A QP with one CQ for both directions; `srq` may be NULL. */
UNUSED static struct ibv_qp *make_qp(const struct device *device, enum ibv_qp_type type,
						       struct ibv_cq *cq, struct ibv_srq *srq, uint32_t depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = {.max_send_wr = depth,
			.max_recv_wr = srq ? 0 : depth,
			.max_send_sge = 2,
			.max_recv_sge = srq ? 0 : 2,
			.max_inline_data = 64},
		.qp_type = type,
	};

	return MAKE(ibv_create_qp(device->pd, &init));
}

/* What a side sends the other to connect. */
struct address {
	uint32_t qpn;
	uint32_t psn;
	uint32_t rkey;
	uint32_t reserved;
	uint64_t buffer;
	union ibv_gid gid;
};

/* How a connection behaves; `default_path` suits all but tests of these very fields: its retries outlast the two seconds and
 * more for which a busy machine may leave the other side alone.
 */
struct path {
	enum ibv_mtu mtu;
	uint8_t timeout;
	uint8_t retry_count;
	uint8_t rnr_retry;
	uint8_t min_rnr_timer;
	uint8_t rd_atomic;
	unsigned int access;
};

UNUSED static struct path default_path(const struct device *device)
{
	enum ibv_mtu mtu = device->port.active_mtu < IBV_MTU_1024 ? device->port.active_mtu : IBV_MTU_1024;

	return (struct path){.mtu = mtu,
			     .timeout = 16,
			     .retry_count = 7,
			     .rnr_retry = 7,
			     .min_rnr_timer = 1,
			     .rd_atomic = 4,
			     .access = ALL_ACCESS};
}

UNUSED static int to_init(struct ibv_qp *qp, unsigned int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = PORT_NUM, .qp_access_flags = access, .qkey = QKEY};

	return ibv_modify_qp(qp, &attr, required(qp->qp_type, IBV_QPS_INIT));
}

UNUSED static void fill_ah(struct ibv_ah_attr *ah, const struct device *device,
					     const union ibv_gid *gid)
{
	*ah = (struct ibv_ah_attr){.is_global = 1, .port_num = PORT_NUM};
	ah->grh.dgid = *gid;
	ah->grh.sgid_index = (uint8_t)device->gid_index;
	ah->static_rate = device->static_rate;
	ah->grh.hop_limit = 64;
}

UNUSED static int to_rtr(struct ibv_qp *qp, const struct device *device,
					   const struct path *path, const struct address *remote)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = path->mtu,
				   .dest_qp_num = remote->qpn,
				   .rq_psn = remote->psn,
				   .max_dest_rd_atomic = path->rd_atomic,
				   .min_rnr_timer = path->min_rnr_timer};

	fill_ah(&attr.ah_attr, device, &remote->gid);
	return ibv_modify_qp(qp, &attr, required(qp->qp_type, IBV_QPS_RTR));
}

UNUSED static int to_rts(struct ibv_qp *qp, const struct path *path, uint32_t psn)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
				   .sq_psn = psn,
				   .timeout = path->timeout,
				   .retry_cnt = path->retry_count,
				   .rnr_retry = path->rnr_retry,
				   .max_rd_atomic = path->rd_atomic};

	return ibv_modify_qp(qp, &attr, required(qp->qp_type, IBV_QPS_RTS));
}

/* Connects two QPs of this process, in INIT, to each other. */
UNUSED static void connect_qps(const struct device *device, const struct path *path,
						 struct ibv_qp *a, struct ibv_qp *b)
{
	struct address of_a = {.qpn = a->qp_num, .psn = 0xfffff0, .gid = device->gid};
	struct address of_b = {.qpn = b->qp_num, .psn = 0x000100, .gid = device->gid};

	MUST(to_rtr(a, device, path, &of_b));
	MUST(to_rtr(b, device, path, &of_a));
	MUST(to_rts(a, path, of_a.psn));
	MUST(to_rts(b, path, of_b.psn));
}

/* Waits for a completion that must be a success. */
#define MUST_COMPLETE(cq, wc)                                                          \
	do {                                                                           \
		if (!wait_wc(cq, wc, 10000))                                           \
			fail("%s:%d: no completion in 10 s", __FILE__, __LINE__);      \
		if ((wc)->status != IBV_WC_SUCCESS)                                    \
			fail("%s:%d: %s", __FILE__, __LINE__,                          \
			     ibv_wc_status_str((wc)->status));                         \
	} while (0)

UNUSED static int post_recv(struct ibv_qp *qp, const struct ibv_mr *mr, size_t offset,
					      uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + offset, length, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

UNUSED static int post_send(struct ibv_qp *qp, const struct ibv_mr *mr, size_t offset,
					      uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + offset, length, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	return ibv_post_send(qp, &wr, &bad);
}

UNUSED static void check(const void *buffer, size_t length, uint64_t index, const char *what)
{
	size_t at = first_wrong(buffer, length, index);

	if (at < length)
		fail("%s %llu: byte %zu of %zu is %02x, not %02x", what, (unsigned long long)index, at, length,
		     ((const unsigned char *)buffer)[at], pattern(index, at));
}

UNUSED static unsigned int entries_of(const char *path)
{
	DIR *directory = MAKE(opendir(path));
	unsigned int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* The TCP connection over which two sides find each other: a server without `host`, else a client. */
UNUSED static int meet(const char *host, int port)
{
	int one = 1;

	if (host) {
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
		char service[16];
		int fd;

		snprintf(service, sizeof service, "%d", port);
		if (getaddrinfo(host, service, &hints, &found))
			fail("unknown host %s", host);
		fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
			fail("connecting to %s: %s", host, strerror(errno));
		freeaddrinfo(found);
		return fd;
	}
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (listener < 0 || bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1))
		fail("listening on port %d: %s", port, strerror(errno));
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept: %s", strerror(errno));
	close(listener);
	return fd;
}

/* Sends ours and waits for theirs; false when the other side has gone. */
UNUSED static bool exchange(int fd, const void *mine, void *theirs, size_t size)
{
	return send(fd, mine, size, MSG_NOSIGNAL) == (ssize_t)size &&
	       recv(fd, theirs, size, MSG_WAITALL) == (ssize_t)size;
}

/* Has two processes play at the two ends of a connection (`exchange`), each with its number, and waits until both have ended well.
 * Neither outlives this one. The message about a failed side contains `round`.
 */
UNUSED static void run_two_sides(void (*play)(int fd, int side), int round)
{
	int ends[2], status;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	for (int side = 0; side < 2; side++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork: %s", strerror(errno));
		if (!child) {
			/* The other side has nothing to wait for once one has failed. */
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(ends[1 - side]);
			play(ends[side], side);
			exit(0);
		}
	}
	close(ends[0]);
	close(ends[1]);
	for (int side = 0; side < 2; side++)
		if (wait(&status) < 0 || status)
			fail("round %d: a side ended with status %x", round, status);
}

/* A program of cases runs each by name, in a process of its own; without a name it lists them. */
struct test_case {
	const char *name;
	void (*run)(void);
};

#define CASE(function) {#function, function}

UNUSED static int run_cases(const struct test_case *cases, size_t count, int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	if (argc == 1) {
		for (size_t i = 0; i < count; i++)
			puts(cases[i].name);
		return 0;
	}
	for (size_t i = 0; i < count; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			puts("ok");
			return 0;
		}
	fail("usage: %s [CASE]\nno case is named %s", argv[0], argv[1]);
}

#endif
