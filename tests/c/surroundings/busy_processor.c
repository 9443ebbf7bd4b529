/* busy_processor: a process that has a device, and computes without a call of verbs, while its peer uses its memory.
 *
 *   busy_processor thread|process POLICY CPU OTHER
 *
 * Its computing thread has opened the device when it was bound to processor CPU, with the real-time POLICY fifo, or as usual
 * with POLICY other. With `process` that is the first thread, else another one. The peer is bound to processor OTHER.
 */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LENGTH 4096
#define ROUNDS 200

static const char *policy;
static int cpu, other;
/* Shared by both processes. */
static volatile int *done;

static void bind_to(int number)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)number, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail("sched_setaffinity: %s", strerror(errno));
}

/* Opens, connects to the other end of `fd`. */
static struct ibv_qp *connected(int fd, struct device *device, struct ibv_mr **mr, struct address *theirs)
{
	static char memory[LENGTH] __attribute__((aligned(8)));

	*device = open_device(1);

	struct ibv_qp *qp = make_qp(device, IBV_QPT_RC, make_cq(device, 16, NULL), NULL, 4);
	struct path path = default_path(device);

	*mr = MAKE(ibv_reg_mr(device->pd, memory, sizeof memory, ALL_ACCESS));

	struct address mine = {.qpn = qp->qp_num, .psn = 7, .rkey = (*mr)->rkey, .buffer = (uintptr_t)memory,
			       .gid = device->gid};

	if (!exchange(fd, &mine, theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, device, &path, theirs));
	MUST(to_rts(qp, &path, mine.psn));
	if (!exchange(fd, &mine, theirs, sizeof mine))
		fail("the other side has gone");
	return qp;
}

static void *compute(void *argument)
{
	struct device device;
	struct ibv_mr *mr;
	struct address theirs;
	struct sched_param priority = {.sched_priority = 10};

	bind_to(cpu);
	if (!strcmp(policy, "fifo") && sched_setscheduler(0, SCHED_FIFO, &priority))
		fail("sched_setscheduler: %s", strerror(errno));
	connected(*(int *)argument, &device, &mr, &theirs);

	uint64_t end = now_ms() + 20000;

	while (!*done)
		if (now_ms() > end)
			fail("the peer's requests have no end");
	return NULL;
}

static void use(int fd)
{
	struct device device;
	struct ibv_mr *mr;
	struct address theirs;
	struct ibv_wc wc;

	bind_to(other);

	struct ibv_qp *qp = connected(fd, &device, &mr, &theirs);

	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD}, *bad;

		wr.wr.atomic.remote_addr = theirs.buffer;
		wr.wr.atomic.rkey = theirs.rkey;
		wr.wr.atomic.compare_add = 1;
		MUST(ibv_post_send(qp, &wr, &bad));
		MUST_COMPLETE(qp->send_cq, &wc);
		if (*(uint64_t *)mr->addr != (uint64_t)i)
			fail("fetched %llu, not %d", (unsigned long long)*(uint64_t *)mr->addr, i);
	}
}

int main(int argc, char **argv)
{
	int ends[2];
	pthread_t thread;

	alarm(ALARM_SECONDS);
	if (argc != 5)
		fail("usage: busy_processor thread|process fifo|other CPU OTHER");
	policy = argv[2];
	cpu = atoi(argv[3]);
	other = atoi(argv[4]);
	done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (done == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("%s", strerror(errno));

	pid_t child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0) {
		alarm(ALARM_SECONDS);
		if (!strcmp(argv[1], "process")) {
			compute(&ends[1]);
			return 0;
		}
		if (pthread_create(&thread, NULL, compute, &ends[1]))
			fail("no thread");
		pthread_join(thread, NULL);
		return 0;
	}
	use(ends[0]);
	*done = 1;

	int status;

	if (waitpid(child, &status, 0) != child || status)
		fail("the computing process ended with %#x", status);
	puts("all requests were served");
	return 0;
}
