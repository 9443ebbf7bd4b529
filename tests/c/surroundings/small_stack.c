/* small_stack: posting, polling and destroying on threads with the smallest stack that POSIX allows, PTHREAD_STACK_MIN.
 *
 * usage: small_stack traffic|measure
 */
#include "common.h"
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define SIZE 500000
#define ROUNDS 200
#define DEPTH 4
#define PAINT 0x77
/* Of a stack of 16 KiB. Some of it is the C library's, and a signal may need the rest. */
#define MOST (13 * 1024)

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address peer;
	int fd;
	bool writes;
};

static size_t stack_size = 16384;

static void make(struct side *side)
{
	side->device = open_device(1);
	side->cq = make_cq(&side->device, 2 * DEPTH, NULL);
	side->qp = make_qp(&side->device, IBV_QPT_RC, side->cq, NULL, DEPTH);
	side->mr = MAKE(ibv_reg_mr(side->device.pd, MAKE(malloc(SIZE)), SIZE, ALL_ACCESS));
}

static void connect_side(struct side *side)
{
	struct path path = default_path(&side->device);
	struct address mine = {.qpn = side->qp->qp_num,
			       .rkey = side->mr->rkey,
			       .buffer = (uintptr_t)side->mr->addr,
			       .gid = side->device.gid};
	char ready;

	MUST(to_init(side->qp, path.access));
	if (!exchange(side->fd, &mine, &side->peer, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(side->qp, &side->device, &path, &side->peer));
	MUST(to_rts(side->qp, &path, 0));
	if (!exchange(side->fd, "", &ready, 1))
		fail("the other side has gone");
}

static void write_once(struct side *side, int round)
{
	struct ibv_sge sge = {(uintptr_t)side->mr->addr, SIZE, side->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = round % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {side->peer.buffer, side->peer.rkey}},
			   *bad;
	struct ibv_wc wc;

	/* Now and then one more than the fabric carries out without the peer. */
	for (int i = 0; i <= round % DEPTH; i++)
		MUST(ibv_post_send(side->qp, &wr, &bad));
	for (int i = 0; i <= round % DEPTH; i++)
		MUST_COMPLETE(side->cq, &wc);
}

static void *traffic(void *argument)
{
	struct side *side = argument;
	struct ibv_wc wc;
	char done = 0;

	if (side->writes)
		for (int round = 0; round < ROUNDS; round++)
			write_once(side, round);
	else
		while (recv(side->fd, &done, 1, MSG_DONTWAIT) != 1)
			if (ibv_poll_cq(side->cq, 1, &wc))
				fail("a completion of nothing");
	if (side->writes && send(side->fd, &done, 1, MSG_NOSIGNAL) != 1)
		fail("the other side has gone");
	return NULL;
}

static void *destroy(void *argument)
{
	struct side *side = argument;

	MUST(ibv_destroy_qp(side->qp));
	MUST(ibv_dereg_mr(side->mr));
	MUST(ibv_destroy_cq(side->cq));
	return NULL;
}

static void *make_all(void *argument)
{
	make(argument);
	return NULL;
}

static void *connect_all(void *argument)
{
	connect_side(argument);
	return NULL;
}

/* Runs `f` on a painted stack of its own, and returns how much of it was used. */
static size_t on_a_stack(void *(*f)(void *), struct side *side, const char *what)
{
	/* Behind a page that can't be touched. */
	char *pages = mmap(NULL, stack_size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *stack = pages + 4096;
	size_t unused = 0;
	pthread_attr_t attributes;
	pthread_t thread;

	if (pages == MAP_FAILED || mprotect(pages, 4096, PROT_NONE))
		fail("mmap: %s", strerror(errno));
	memset(stack, PAINT, stack_size);
	MUST(pthread_attr_init(&attributes));
	MUST(pthread_attr_setstack(&attributes, stack, stack_size));
	MUST(pthread_create(&thread, &attributes, f, side));
	MUST(pthread_join(thread, NULL));
	while (unused < stack_size && stack[unused] == PAINT)
		unused++;
	munmap(pages, stack_size + 4096);
	printf("%s, %s: %zu bytes of stack\n", side->writes ? "initiator" : "target", what, stack_size - unused);
	return stack_size - unused;
}

static void run(struct side *side, bool measure)
{
	size_t used;

	if (measure) {
		/* All of it, with room enough. */
		stack_size = 256 * 1024;
		on_a_stack(make_all, side, "opening and creating");
		on_a_stack(connect_all, side, "connecting");
	} else {
		make(side);
		connect_side(side);
	}
	used = on_a_stack(traffic, side, "posting and polling");
	if (!measure && used > MOST)
		fail("posting and polling took %zu bytes of stack", used);
	used = on_a_stack(destroy, side, "destroying");
	if (!measure && used > MOST)
		fail("destroying took %zu bytes of stack", used);
}

int main(int argc, char **argv)
{
	bool measure = argc == 2 && !strcmp(argv[1], "measure");
	struct side side = {0};
	int ends[2], status;
	pid_t child;

	alarm(ALARM_SECONDS);
	if (argc != 2 || (!measure && strcmp(argv[1], "traffic")))
		fail("usage: small_stack traffic|measure");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	fflush(stdout);
	child = fork();
	side.writes = child != 0;
	side.fd = ends[side.writes];
	close(ends[!side.writes]);
	run(&side, measure);
	if (!child)
		return 0;
	if (waitpid(child, &status, 0) != child || status)
		fail("the other side ended with status %x", status);
	puts("ok");
	return 0;
}
