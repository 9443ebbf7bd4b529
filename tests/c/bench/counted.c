/* counted [-2] BATCHES ROUNDS: does each operation in batches of rounds, for callgrind to count what they take. Without
 * callgrind it only shows that they work. With -2 the two queue pairs are in two processes of this host, else in one thread.
 *
 * Only what the verbs do in the thread that calls them is collected, and that is the same in each run: the sides take turns, each
 * waits for its turn outside of the library, and the clock stands still but for what this program adds to it. So no lease runs
 * out and no timer fires, and the adapter's own thread, which isn't collected, has nothing to do.
 *
 * Each side ends a batch with a dump of callgrind's and a line in valgrind's log with the number of calls of the allocator,
 * both with the operation's name. The system calls that count are those between "begin" and "end" in the log (--trace-syscalls).
 */
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <valgrind/callgrind.h>

#include "common.h"

#define SIZE 8
#define MEMORY 4096
/* Callgrind makes it fifty times as slow. */
#define PATIENCE_SECONDS 150
/* Rounds before the first batch: what is done once isn't an operation's. After a message, 32 polls look at memory only, and those of the
 * next 50 µs don't yield.
 */
#define WARM_UP 80
/* What a round adds to the clock. What is done now and then, after 20 µs at the least and 50 µs at the most, is done equally often in
 * all batches of a multiple of 20 rounds.
 */
#define ROUND_NS 5000
/* The clock stands still from 1 s ahead on: a lease that was broken while the two met would be distrusted in all of the batches. The
 * adapter's own thread, which naps for 25 ms at most, sees that before the first round.
 */
#define JUMP_NS 1000000000
#define NAP_US 30000
/* Before an empty poll: a poller looks at everything again when its last round was 500,000 ticks of the processor's counter ago, half a
 * millisecond at 1 GHz. Without a nap that depends on the speed of the machine.
 */
#define LONG_AGO_US 600

/* CLOCK_MONOTONIC, or 0 while it is the machine's. */
static _Atomic uint64_t clock_ns;
/* The call that is under way is counted. */
static __thread bool collecting;
static bool counted;
static uint64_t allocations;

/* This one and the allocator stand before the C library's, for the library under test too. */
int clock_gettime(clockid_t id, struct timespec *time)
{
	uint64_t ns = atomic_load_explicit(&clock_ns, memory_order_relaxed);

	if (!ns || id != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, id, time);
	time->tv_sec = (time_t)(ns / 1000000000);
	time->tv_nsec = (long)(ns % 1000000000);
	return 0;
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static void allocator_called(void)
{
	if (collecting)
		allocations++;
}

void *malloc(size_t size)
{
	allocator_called();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocator_called();
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	allocator_called();
	return __libc_realloc(memory, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	allocator_called();
	*memory = __libc_memalign(alignment, size);
	return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
	allocator_called();
	__libc_free(memory);
}

static void begin(void)
{
	if (!counted)
		return;
	VALGRIND_PRINTF("begin\n");
	collecting = true;
	CALLGRIND_TOGGLE_COLLECT;
}

static void end(void)
{
	if (!counted)
		return;
	CALLGRIND_TOGGLE_COLLECT;
	collecting = false;
	VALGRIND_PRINTF("end\n");
}

/* The value of a call of verbs, which is counted. */
#define COUNTED(call)                                                                  \
	({                                                                             \
		begin();                                                               \
		__typeof__(call) counted_result = (call);                              \
		end();                                                                 \
		counted_result;                                                        \
	})

struct side {
	struct device device;
	struct path path;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address remote;
	char memory[MEMORY] __attribute__((aligned(MEMORY)));
};

static struct address make(struct side *side)
{
	side->device = open_device(1);
	side->path = default_path(&side->device);
	side->channel = MAKE(ibv_create_comp_channel(side->device.context));
	side->cq = make_cq(&side->device, 16, side->channel);
	side->qp = make_qp(&side->device, IBV_QPT_RC, side->cq, NULL, 8);
	side->mr = MAKE(ibv_reg_mr(side->device.pd, side->memory, MEMORY, ALL_ACCESS));
	MUST(to_init(side->qp, ALL_ACCESS));
	return (struct address){.qpn = side->qp->qp_num,
				.psn = 0x000100,
				.rkey = side->mr->rkey,
				.buffer = (uintptr_t)side->memory,
				.gid = side->device.gid};
}

static void join(struct side *side, struct address remote)
{
	side->remote = remote;
	MUST(to_rtr(side->qp, &side->device, &side->path, &remote));
	MUST(to_rts(side->qp, &side->path, 0x000100));
}

/* SENDs of a list. */
#define LIST 4

/* Posts a list of SENDs, of which the last asks for a completion. */
static void post_list(struct side *side)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, SIZE, side->mr->lkey};
	struct ibv_send_wr wr[LIST], *bad;

	for (int i = 0; i < LIST; i++)
		wr[i] = (struct ibv_send_wr){.next = i + 1 < LIST ? &wr[i + 1] : NULL,
					     .sg_list = &sge,
					     .num_sge = 1,
					     .opcode = IBV_WR_SEND,
					     .send_flags = i + 1 < LIST ? 0 : IBV_SEND_SIGNALED};
	MUST(COUNTED(ibv_post_send(side->qp, wr, &bad)));
}

/* Posts a SEND of two elements, inline. */
static void post_inline(struct side *side)
{
	struct ibv_sge halves[2] = {{(uintptr_t)side->memory, SIZE / 2, 0},
				    {(uintptr_t)side->memory + SIZE, SIZE / 2, 0}};
	struct ibv_send_wr wr = {.sg_list = halves,
				 .num_sge = 2,
				 .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE},
			   *bad;

	MUST(COUNTED(ibv_post_send(side->qp, &wr, &bad)));
}

static void post(struct side *side, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, SIZE, side->mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {side->remote.buffer + SIZE, side->remote.rkey}},
			   *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic = (__typeof__(wr.wr.atomic)){side->remote.buffer + SIZE, 1, 0, side->remote.rkey};
	MUST(COUNTED(ibv_post_send(side->qp, &wr, &bad)));
}

/* Makes a queue pair that stays unused. */
static void make_and_destroy(struct side *side)
{
	struct ibv_qp_init_attr init = {.send_cq = side->cq, .recv_cq = side->cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1,
						.max_recv_sge = 1}};

	struct ibv_qp *qp = MAKE(COUNTED(ibv_create_qp(side->device.pd, &init)));

	MUST(COUNTED(ibv_destroy_qp(qp)));
}

/* Whether there was a completion. */
static bool poll_once(struct side *side)
{
	struct ibv_wc wc;
	int count = COUNTED(ibv_poll_cq(side->cq, 1, &wc));

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	if (count && wc.status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc.status));
	return count;
}

static const char *operations[] = {"send", "write", "read", "event", "empty poll", "inline send", "list of 4 sends",
				   "atomic", "queue pair"};

enum { OPERATIONS = sizeof operations / sizeof *operations };

/* What the second side does for the first. */
enum part { ROUND, RECEIVE, ARM, TAKE_EVENT, POLL, DUMP };

static struct side first, second;
/* To the other process, or -1. */
static int other = -1;

/* Does a part of `side`; `number` is whether a round is counted, or which operation has been. */
static bool do_part(struct side *side, enum part part, int number)
{
	struct timespec now;

	if (part == ROUND) {
		if (!clock_ns) {
			clock_gettime(CLOCK_MONOTONIC, &now);
			clock_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + JUMP_NS;
			usleep(NAP_US);
		}
		clock_ns += ROUND_NS;
		counted = number;
	} else if (part == RECEIVE) {
		struct ibv_sge sge = {(uintptr_t)side->memory, SIZE, side->mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

		MUST(COUNTED(ibv_post_recv(side->qp, &wr, &bad)));
	} else if (part == ARM) {
		MUST(COUNTED(ibv_req_notify_cq(side->cq, 0)));
	} else if (part == TAKE_EVENT) {
		struct ibv_cq *cq;
		void *context;

		MUST(COUNTED(ibv_get_cq_event(side->channel, &cq, &context)));
		begin();
		ibv_ack_cq_events(cq, 1);
		end();
	} else if (part == POLL) {
		return poll_once(side);
	} else {
		CALLGRIND_DUMP_STATS_AT(operations[number]);
		VALGRIND_PRINTF("allocations %llu %s\n", (unsigned long long)allocations, operations[number]);
		allocations = 0;
	}
	return true;
}

struct request {
	enum part part;
	int number;
};

/* The other process: does what it is asked for until the first one has gone. */
static void serve(void)
{
	struct request request;
	bool answer;

	while (read(other, &request, sizeof request) == sizeof request) {
		answer = do_part(&second, request.part, request.number);
		if (write(other, &answer, sizeof answer) != sizeof answer)
			return;
	}
}

/* Has the second side do a part. */
static bool ask(enum part part, int number)
{
	struct request request = {part, number};
	bool answer;

	if (other < 0)
		return do_part(&second, part, number);
	if (write(other, &request, sizeof request) != sizeof request ||
	    read(other, &answer, sizeof answer) != sizeof answer)
		fail("the other process has gone");
	return answer;
}

/* The sides poll in turns until the first one has its completion and the second one has so many. */
static void complete(int of_second)
{
	bool of_first = true;
	while (of_first || of_second) {
		if (of_second)
			of_second -= ask(POLL, 0);
		if (of_first && poll_once(&first))
			of_first = false;
		else if (of_first && !of_second && ask(POLL, 0))
			fail("a completion of nothing");
	}
}

static void do_round(int operation, bool is_counted)
{
	do_part(&first, ROUND, is_counted);
	if (other >= 0)
		ask(ROUND, is_counted);
	switch (operation) {
	case 0:
		ask(RECEIVE, 0);
		post(&first, IBV_WR_SEND);
		complete(1);
		break;
	case 1:
		post(&first, IBV_WR_RDMA_WRITE);
		complete(0);
		break;
	case 2:
		post(&first, IBV_WR_RDMA_READ);
		complete(0);
		break;
	case 3:
		ask(RECEIVE, 0);
		ask(ARM, 0);
		post(&first, IBV_WR_SEND);
		ask(TAKE_EVENT, 0);
		complete(1);
		break;
	case 5:
		ask(RECEIVE, 0);
		post_inline(&first);
		complete(1);
		break;
	case 6:
		for (int i = 0; i < LIST; i++)
			ask(RECEIVE, 0);
		post_list(&first);
		complete(LIST);
		break;
	case 7:
		post(&first, IBV_WR_ATOMIC_FETCH_AND_ADD);
		complete(0);
		break;
	case 8:
		make_and_destroy(&first);
		break;
	default:
		usleep(LONG_AGO_US);
		if (poll_once(&first))
			fail("a completion of nothing");
	}
}

static void meet_again(const struct address *mine, struct address *theirs)
{
	if (!exchange(other, mine, theirs, sizeof *mine))
		fail("the other process has gone");
}

/* Makes the other process; both have joined their queue pairs when it returns. True in the first one. */
static bool separate(void)
{
	struct address mine, theirs;
	struct ibv_wc nothing;
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		fail("socketpair: %s", strerror(errno));
	pid_t child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	alarm(PATIENCE_SECONDS);
	other = fds[child != 0];
	close(fds[child == 0]);
	struct side *side = child ? &first : &second;

	mine = make(side);
	meet_again(&mine, &theirs);
	/* One after the other, so that each run makes the link from the same side. */
	if (child)
		join(side, theirs);
	meet_again(&mine, &theirs);
	if (!child) {
		/* Polls until it has surely answered the other. */
		wait_wc(side->cq, &nothing, 50);
		join(side, theirs);
	}
	meet_again(&mine, &theirs);
	return child;
}

int main(int argc, char **argv)
{
	bool two = argc == 4 && !strcmp(argv[1], "-2");
	int status = 0;

	if (argc != 3 + two)
		fail("usage: counted [-2] BATCHES ROUNDS");
	int batches = atoi(argv[1 + two]), rounds = atoi(argv[2 + two]);

	alarm(PATIENCE_SECONDS);
	if (!two) {
		struct address a = make(&first), b = make(&second);

		join(&first, b);
		join(&second, a);
	} else if (!separate()) {
		serve();
		return 0;
	}
	for (int operation = 0; operation < OPERATIONS; operation++) {
		for (int round = 0; round < WARM_UP; round++)
			do_round(operation, false);
		for (int batch = 0; batch < batches; batch++) {
			for (int round = 0; round < rounds; round++)
				do_round(operation, true);
			do_part(&first, DUMP, operation);
			if (two)
				ask(DUMP, operation);
		}
	}
	close(other);
	if (two && (wait(&status) < 0 || status))
		fail("the other process has failed");
	return 0;
}
