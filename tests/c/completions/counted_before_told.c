/* counted_before_told: one thread of a process polls for a message while another waits for the completion counter that counts
 * it, and ends the process then, in the middle of the poll. The process has the message by its own account, so the sender's SEND
 * must complete: the message is acknowledged before anybody can learn of it.
 *
 * The poll is held up where it hands the completion over: the array for it lies in memory that is made writable only by a signal's
 * handler, a while after the poll has run into it.
 */
#include <pthread.h>
#include <signal.h>

#include "common.h"
#include "newer.h"

#define ROUNDS 20
#define MESSAGES 3
#define LENGTH 8
#define HELD_UP_MICROSECONDS 60000
/* Of the SEND's timer, if no acknowledgement comes: 4.096 µs times two to this power. */
#define TIMEOUT 10
#define RETRIES 2

static char memory[4096];
static struct ibv_wc *array;
static size_t page;

static void let_write(int signal)
{
	(void)signal;
	usleep(HELD_UP_MICROSECONDS);
	mprotect(array, page, PROT_READ | PROT_WRITE);
}

static void *end_when_counted(void *counter)
{
	int (*read_counter)(void *, uint64_t *) = newer("ibv_read_comp_cntr");
	uint64_t count = 0;

	while (count < MESSAGES) {
		usleep(100);
		MUST(read_counter(counter, &count));
	}
	_exit(0);
}

static void receive(struct ibv_cq *cq, void *counter)
{
	struct sigaction action = {.sa_handler = let_write};
	pthread_t thread;
	int received = 0;

	page = (size_t)sysconf(_SC_PAGESIZE);
	array = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (array == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	MUST(sigaction(SIGSEGV, &action, NULL));
	MUST(pthread_create(&thread, NULL, end_when_counted, counter));
	for (;;) {
		int count = ibv_poll_cq(cq, 1, array);

		if (count < 0)
			fail("a poll failed");
		received += count;
		/* Soon enough that the next poll, too, looks at nothing but memory. */
		if (count && received == MESSAGES - 1)
			MUST(mprotect(array, page, PROT_READ));
	}
}

static void play(int fd, int side)
{
	void *(*create)(struct ibv_context *, struct counter_attr *) = newer("ibv_create_comp_cntr");
	int (*attach)(struct ibv_qp *, void *, struct attach_attr *) = newer("ibv_qp_attach_comp_cntr");
	struct counter_attr requests = {.type = COUNTS_REQUESTS};
	struct attach_attr receives = {0, OP_RECV};
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_cq *cq = make_cq(&device, 2 * MESSAGES, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, MESSAGES);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	struct address mine, theirs;
	char ready = 1, other;
	void *counter = MAKE(create(device.context, &requests));
	struct ibv_wc wc;

	path.timeout = TIMEOUT;
	path.retry_count = RETRIES;
	MUST(attach(qp, counter, &receives));
	MUST(to_init(qp, path.access));
	for (int i = 0; i < MESSAGES; i++)
		MUST(post_recv(qp, mr, 0, LENGTH, 0));
	mine = (struct address){.qpn = qp->qp_num, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	if (side == 0)
		receive(cq, counter);
	for (int i = 0; i < MESSAGES; i++) {
		MUST(post_send(qp, mr, LENGTH, LENGTH, 0));
		MUST_COMPLETE(cq, &wc);
	}
}

int main(void)
{
	alarm(ALARM_SECONDS);
	for (int round = 0; round < ROUNDS; round++)
		run_two_sides(play, round);
	puts("ok");
	return 0;
}
