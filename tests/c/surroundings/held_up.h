/* What programs about threads that are held up share: pages that come when they are given, calls that must return, and the other side of
 * a connection.
 */
#ifndef HELD_UP_H
#define HELD_UP_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "common.h"

#define PAGE 4096ul
/* Longer than the sum of the waits that a call may have, on a busy machine. */
#define STANDS_MS 15000
#define EXIT_SKIPPED 77

static struct device device;
static struct path path;

/* A connected queue pair, its completion queue, its memory, and the address of the other side. */
struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address theirs;
};

UNUSED static struct ibv_mr *register_new(void *memory, size_t length)
{
	return MAKE(ibv_reg_mr(device.pd, memory, length, ALL_ACCESS));
}

UNUSED static void meet_again(int fd)
{
	char ready = 1, other;

	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
}

/* Makes a queue pair over `mr` and connects it to that which the other side makes at the same time. `srq` may be NULL. */
UNUSED static struct end connect_as(int fd, struct ibv_mr *mr, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct end end = {.cq = make_cq(&device, 64, NULL), .mr = mr};

	end.qp = make_qp(&device, type, end.cq, srq, 32);
	struct address mine = {.qpn = end.qp->qp_num, .psn = 7, .rkey = mr->rkey, .buffer = (uintptr_t)mr->addr,
			       .gid = device.gid};

	if (!exchange(fd, &mine, &end.theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_init(end.qp, type == IBV_QPT_RC ? ALL_ACCESS : IBV_ACCESS_LOCAL_WRITE));
	MUST(to_rtr(end.qp, &device, &path, &end.theirs));
	MUST(to_rts(end.qp, &path, mine.psn));
	meet_again(fd);
	return end;
}

UNUSED static struct end connect_to(int fd, struct ibv_mr *mr)
{
	return connect_as(fd, mr, IBV_QPT_RC, NULL);
}

UNUSED static struct end connect_new(int fd)
{
	return connect_to(fd, register_new(map_apart(PAGE), PAGE));
}

UNUSED static void begin(void)
{
	device = open_device(1);
	path = default_path(&device);
}

/* Posts a WRITE of 8 bytes to page `page` of the other side's memory. */
UNUSED static int write_to(const struct end *end, size_t page)
{
	struct ibv_sge sge = {(uintptr_t)end->mr->addr, 8, end->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	set_remote(&wr, end->theirs.buffer + page * PAGE, end->theirs.rkey);
	return ibv_post_send(end->qp, &wr, &bad);
}

UNUSED static void write_and_wait(const struct end *end, size_t page)
{
	struct ibv_wc wc;

	MUST(write_to(end, page));
	MUST_COMPLETE(end->cq, &wc);
}

UNUSED static void send_and_wait(const struct end *end)
{
	struct ibv_wc wc;

	MUST(post_send(end->qp, end->mr, 0, 8, 1));
	MUST_COMPLETE(end->cq, &wc);
}

/* A call in a thread of its own. */
struct call {
	int (*function)(void *);
	void *argument;
	int result;
	atomic_bool done;
};

UNUSED static void *call_main(void *argument)
{
	struct call *call = argument;

	call->result = call->function(call->argument);
	call->done = true;
	return NULL;
}

UNUSED static struct call *start(int (*function)(void *), void *argument)
{
	struct call *call = MAKE(calloc(1, sizeof *call));
	pthread_t thread;

	call->function = function;
	call->argument = argument;
	MUST(pthread_create(&thread, NULL, call_main, call));
	MUST(pthread_detach(thread));
	return call;
}

UNUSED static bool returns(const struct call *call, unsigned int milliseconds)
{
	uint64_t end = now_ms() + milliseconds;

	while (!call->done && now_ms() < end)
		usleep(1000);
	return call->done;
}

UNUSED static int dereg(void *mr)
{
	return ibv_dereg_mr(mr);
}

UNUSED static int destroy(void *qp)
{
	return ibv_destroy_qp(qp);
}

/* The call must return, with this errno value. */
#define RETURNS(expected, function, argument)                                                              \
	do {                                                                                               \
		struct call *returns_call = start(function, argument);                                    \
		if (!returns(returns_call, STANDS_MS))                                                    \
			fail("%s:%d: %s stands", __FILE__, __LINE__, #function);                          \
		if (returns_call->result != (expected))                                                   \
			fail("%s:%d: %s: %s, not %s", __FILE__, __LINE__, #function,                      \
			     strerror(returns_call->result), strerror(expected));                         \
	} while (0)

/* Memory without pages: a thread that touches one waits until the page is given. */
static int faults = -1;
/* Whose faults: those of all modes, or UFFD_USER_MODE_ONLY. */
static int faults_of;

UNUSED static void give_pages(char *memory, size_t length)
{
	struct uffdio_zeropage zeros = {.range = {(uintptr_t)memory, length}};

	if (ioctl(faults, UFFDIO_ZEROPAGE, &zeros))
		fail("UFFDIO_ZEROPAGE: %s", strerror(errno));
}

UNUSED static char *map_without_pages(size_t length)
{
	struct uffdio_api api = {.api = UFFD_API};
	char *memory = map_apart(length);
	struct uffdio_register range = {.range = {(uintptr_t)memory, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};

	faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | faults_of);
	if (faults < 0 && (errno == EPERM || errno == ENOSYS)) {
		puts("skipped: userfaultfd(2) is refused here");
		exit(EXIT_SKIPPED);
	}
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		fail("userfaultfd: %s", strerror(errno));
	return memory;
}

/* Maps other memory at the address of `memory`, which was mapped without pages. */
UNUSED static void map_again_without_pages(char *memory, size_t length)
{
	struct uffdio_register range = {.range = {(uintptr_t)memory, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};

	if (mmap(memory, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
		fail("mmap: %s", strerror(errno));
	if (ioctl(faults, UFFDIO_REGISTER, &range))
		fail("UFFDIO_REGISTER: %s", strerror(errno));
}

UNUSED static void wait_for_fault(void)
{
	struct uffd_msg message;

	if (!is_readable(faults, 10000) || read(faults, &message, sizeof message) != sizeof message)
		fail("no thread touches the page");
}

/* A child that plays `play` at the other end of a connection; what is returned is this end. */
UNUSED static int start_side(void (*play)(int fd), pid_t *pid)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	*pid = fork();
	if (*pid < 0)
		fail("fork: %s", strerror(errno));
	if (!*pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		play(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	return ends[0];
}

UNUSED static void end_side(pid_t pid)
{
	kill(pid, SIGKILL);
	kill(pid, SIGCONT);
	if (waitpid(pid, NULL, 0) != pid)
		fail("waitpid: %s", strerror(errno));
}

/* The other side: connects `ends` queue pairs with receives, and polls until it is killed. */
UNUSED static void answer(int fd, int ends)
{
	struct end all[8];
	struct ibv_wc wc;

	begin();
	for (int i = 0; i < ends; i++) {
		all[i] = connect_new(fd);
		for (int n = 0; n < 16; n++)
			MUST(post_recv(all[i].qp, all[i].mr, 0, 64, 0));
	}
	meet_again(fd);
	for (;;)
		for (int i = 0; i < ends; i++)
			if (ibv_poll_cq(all[i].cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
				MUST(post_recv(all[i].qp, all[i].mr, 0, 64, 0));
}

UNUSED static void answer_one(int fd)
{
	answer(fd, 1);
}

UNUSED static void answer_two(int fd)
{
	answer(fd, 2);
}

UNUSED static void answer_six(int fd)
{
	answer(fd, 6);
}

#endif
