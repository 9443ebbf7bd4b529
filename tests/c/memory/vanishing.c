/* vanishing: registered memory that goes away while it is used: unmapped, protected, truncated or deregistered.
 *
 * Two sides, each a process (or with -l each a thread of one process), make a connection for every way and moment. The
 * requester repeats one operation; the memory of one side goes, before a request or in the middle of many. The first
 * failure must be the documented one, what lies around the memory must stay as it was, a deregistered memory must not be
 * touched any more, and a second connection between the two sides must go on working.
 */
#define _GNU_SOURCE
#include "vanishing.h"
#include <getopt.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>

static const char *const how_names[HOWS] = {"unmapped", "with a hole", "protected", "read-only", "truncated",
					    "deregistered"};

struct operation {
	const char *name;
	enum ibv_qp_type service;
	enum ibv_wr_opcode opcode;
	/* It is the requester's memory that goes. */
	bool own;
	/* The memory that goes is written to by the operation. */
	bool written;
	/* How requests fail; 0 where they don't. */
	enum ibv_wc_status requester[2];
	/* How a receive fails. */
	enum ibv_wc_status receiver;
};

static const struct operation operations[] = {
	{"write", IBV_QPT_RC, IBV_WR_RDMA_WRITE, false, true, {IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR}, 0},
	{"read", IBV_QPT_RC, IBV_WR_RDMA_READ, false, false, {IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR}, 0},
	{"fadd", IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, false, true, {IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR}, 0},
	{"cas", IBV_QPT_RC, IBV_WR_ATOMIC_CMP_AND_SWP, false, true, {IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR}, 0},
	{"send", IBV_QPT_RC, IBV_WR_SEND, false, true, {IBV_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR}, IBV_WC_LOC_PROT_ERR},
	{"own_write", IBV_QPT_RC, IBV_WR_RDMA_WRITE, true, false, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
	{"own_send", IBV_QPT_RC, IBV_WR_SEND, true, false, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
	{"own_read", IBV_QPT_RC, IBV_WR_RDMA_READ, true, true, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
	{"own_fadd", IBV_QPT_RC, IBV_WR_ATOMIC_FETCH_AND_ADD, true, true, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
	{"uc_send", IBV_QPT_UC, IBV_WR_SEND, false, true, {0, 0}, IBV_WC_LOC_PROT_ERR},
	{"uc_write", IBV_QPT_UC, IBV_WR_RDMA_WRITE, false, true, {0, 0}, 0},
	{"uc_own_send", IBV_QPT_UC, IBV_WR_SEND, true, false, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
	{"ud_send", IBV_QPT_UD, IBV_WR_SEND, false, true, {0, 0}, IBV_WC_LOC_PROT_ERR},
	{"ud_own_send", IBV_QPT_UD, IBV_WR_SEND, true, false, {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR}, 0},
};
#define OPERATIONS (sizeof operations / sizeof operations[0])

/* One way and moment. */
struct round {
	const struct operation *operation;
	struct side *side;
	struct memory memory;
	bool during;
	unsigned int delay_us;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct address remote;
	uint64_t posted, completed, successes;
	enum ibv_wc_status first_error;
};

static bool crash_handler;

static bool is_atomic(const struct operation *operation)
{
	return operation->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || operation->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static uint32_t length_of(const struct operation *operation)
{
	if (is_atomic(operation))
		return 8;
	return operation->service == IBV_QPT_UD ? 1024 : AREA;
}

/* In the page that goes first. */
static size_t offset_of(const struct operation *operation)
{
	return length_of(operation) == AREA ? 0 : AREA / 2;
}

static void post_receive(struct round *round)
{
	const struct operation *operation = round->operation;
	uint32_t grh = operation->service == IBV_QPT_UD ? GRH : 0;

	MUST(post_recv(round->qp, round->memory.mr, offset_of(operation), length_of(operation) + grh, 0));
}

static void post_request(struct round *round)
{
	const struct operation *operation = round->operation;
	size_t offset = offset_of(operation);
	struct ibv_sge sge = {(uintptr_t)round->memory.area + offset, length_of(operation), round->memory.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = round->posted, .sg_list = &sge, .num_sge = 1, .opcode = operation->opcode,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	if (is_atomic(operation)) {
		wr.wr.atomic.remote_addr = round->remote.buffer + offset;
		wr.wr.atomic.rkey = round->remote.rkey;
	} else if (operation->service == IBV_QPT_UD) {
		wr.wr.ud.ah = round->ah;
		wr.wr.ud.remote_qpn = round->remote.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = round->remote.buffer + offset;
		wr.wr.rdma.rkey = round->remote.rkey;
	}
	MUST(ibv_post_send(round->qp, &wr, &bad));
	round->posted++;
}

/* Takes a completion if there is one; `expected` are the errors that may come first. */
static bool take(struct round *round, const enum ibv_wc_status expected[2])
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(round->cq, 1, &wc);

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	if (count == 0)
		return false;
	round->completed++;
	if (wc.status == IBV_WC_SUCCESS) {
		if (round->first_error != IBV_WC_SUCCESS)
			fail("%s: a success after an error", round->side->doing);
		round->successes++;
		return true;
	}
	if (round->first_error == IBV_WC_SUCCESS) {
		if (wc.status != expected[0] && wc.status != expected[1])
			fail("%s: a request of the %s ends with \"%s\"", round->side->doing,
			     round->side->requester ? "requester" : "responder", ibv_wc_status_str(wc.status));
		round->first_error = wc.status;
	} else if (wc.status != IBV_WC_WR_FLUSH_ERR) {
		fail("%s: a second error: %s", round->side->doing, ibv_wc_status_str(wc.status));
	}
	return true;
}

static void *vanish_later(void *argument)
{
	struct round *round = argument;

	usleep(round->delay_us);
	vanish(&round->memory);
	return NULL;
}

/* A crash handler of a program that knows nothing of an adapter: it calls none before it. */
static void crashed(int signal)
{
	_exit(100 + signal);
}

static void install_crash_handler(void)
{
	struct sigaction action = {.sa_handler = crashed};

	MUST(sigaction(SIGSEGV, &action, NULL));
	MUST(sigaction(SIGBUS, &action, NULL));
}

/* Lets the memory go, now or from another thread in a moment; the thread to be joined, if any, is in `thread`. */
static void let_go(struct round *round, pthread_t *thread)
{
	if (crash_handler) {
		install_crash_handler();
		/* The adapter looks once a millisecond whose handler is in front (docs/design/guard.md). */
		usleep(2000);
	}
	if (!round->during)
		vanish(&round->memory);
	else if (pthread_create(thread, NULL, vanish_later, round))
		fail("pthread_create: %s", strerror(errno));
}

static void run_requester(struct round *round)
{
	const struct operation *operation = round->operation;
	struct side *side = round->side;
	bool fails = operation->requester[0] != 0, gone = false, over = false;
	uint64_t end = now_ms() + 15000;
	pthread_t thread;

	while (round->first_error == IBV_WC_SUCCESS && !over) {
		/* Two requests while all is well; then either nothing is in flight when the memory goes, or much. */
		uint64_t most = gone || round->during ? DEPTH : round->successes < 2 ? 1 : 0;

		while (round->posted - round->completed < most && round->first_error == IBV_WC_SUCCESS)
			post_request(round);
		take(round, operation->requester);
		if (!gone && round->successes >= 2 && (round->during || round->posted == round->completed)) {
			tell(side, 'g');
			must_be_told(side, 'v');
			if (operation->own)
				let_go(round, &thread);
			gone = true;
		}
		if (gone && !fails) {
			over = told(side, 's', 0);
			usleep(200);
		}
		if (now_ms() > end)
			fail("%s: nothing fails: %llu posted, %llu completed", side->doing,
			     (unsigned long long)round->posted, (unsigned long long)round->completed);
	}
	while (round->completed < round->posted) {
		take(round, operation->requester);
		if (now_ms() > end)
			fail("%s: %llu of %llu requests complete", side->doing, (unsigned long long)round->completed,
			     (unsigned long long)round->posted);
	}
	if (fails && qp_state(round->qp) != (operation->service == IBV_QPT_RC ? IBV_QPS_ERR : IBV_QPS_SQE))
		fail("%s: the QP is in state %d", side->doing, qp_state(round->qp));
	if (operation->own && round->during)
		pthread_join(thread, NULL);
	tell(side, 'e');
	if (fails)
		must_be_told(side, 's');
}

static void run_responder(struct round *round)
{
	static const enum ibv_wc_status none[2] = {IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR};
	const struct operation *operation = round->operation;
	const enum ibv_wc_status both[2] = {operation->receiver, operation->receiver};
	const enum ibv_wc_status *expected = operation->receiver ? both : none;
	struct side *side = round->side;
	bool receives = operation->opcode == IBV_WR_SEND, threaded = round->during && !operation->own;
	bool gone = false, satisfied = false, ended = false;
	uint64_t end = now_ms() + 15000;
	pthread_t thread;

	while (!ended || !satisfied) {
		if (receives && take(round, expected) && round->first_error == IBV_WC_SUCCESS)
			post_receive(round);
		if (!gone && told(side, 'g', receives ? 0 : 20)) {
			gone = true;
			if (!operation->own)
				let_go(round, &thread);
			tell(side, 'v');
		} else if (gone && !ended) {
			ended = told(side, 'e', satisfied ? 20 : 0);
		}
		if (gone && !satisfied && (!operation->receiver || round->first_error != IBV_WC_SUCCESS)) {
			if (threaded)
				pthread_join(thread, NULL);
			/* No completion reports that an unreliable WRITE has failed: 2 ms are enough for that. */
			if (!operation->requester[0] && !operation->receiver)
				usleep(2000);
			satisfied = true;
			tell(side, 's');
		}
		if (now_ms() > end)
			fail("%s: no end: %llu receives, first error %s", side->doing,
			     (unsigned long long)round->completed, ibv_wc_status_str(round->first_error));
	}
}

static void run_round(struct side *side, const struct operation *operation, enum how how, bool during, unsigned int seed)
{
	struct round round = {.operation = operation, .side = side, .during = during, .delay_us = seed * 7919 % 2500};
	bool mine = operation->own == side->requester;

	snprintf(side->doing, sizeof side->doing, "%s, %s memory %s %s", operation->name,
		 operation->own ? "requester's" : "responder's", how_names[how],
		 during ? "during requests" : "before a request");
	round.memory = make_memory(side, mine ? how : UNMAP, side->requester ? 0x11 : 0x22);
	if (is_atomic(operation))
		memset(round.memory.area, 0, AREA);
	round.cq = make_cq(&side->device, 64, NULL);
	round.qp = side->qp = make_qp(&side->device, operation->service, round.cq, NULL, 2 * DEPTH);
	MUST(to_init(round.qp, ALL_ACCESS));
	if (operation->opcode == IBV_WR_SEND && !side->requester)
		for (int i = 0; i < DEPTH; i++)
			post_receive(&round);
	connect_to(side, round.qp, &round.memory, &round.remote);
	if (operation->service == IBV_QPT_UD) {
		struct ibv_ah_attr attr;

		fill_ah(&attr, &side->device, &round.remote.gid);
		round.ah = MAKE(ibv_create_ah(side->device.pd, &attr));
	}
	if (side->requester)
		run_requester(&round);
	else
		run_responder(&round);
	/* The bytes that the owner wrote after it had deregistered its memory must not reach the other side. */
	if (how == DEREGISTER && !mine && !is_atomic(operation) && memchr(round.memory.area, AFTERWARDS, AREA))
		fail("%s: bytes written after ibv_dereg_mr have crossed", side->doing);
	if (mine) {
		check_and_free(side, &round.memory);
	} else {
		MUST(ibv_dereg_mr(round.memory.mr));
		check_bytes(side, round.memory.mapping, GUARD, GUARD_BYTE, "the guard before the other memory");
		check_bytes(side, round.memory.area + AREA, GUARD, GUARD_BYTE, "the guard behind the other memory");
		munmap(round.memory.mapping, AREA + 2 * GUARD);
	}
	bear_witness(side);
	if (round.ah)
		MUST(ibv_destroy_ah(round.ah));
	MUST(ibv_destroy_qp(round.qp));
	side->qp = NULL;
	MUST(ibv_destroy_cq(round.cq));
}

static void run_side(struct side *side, int gid_index, const struct operation *operation, bool during)
{
	struct address remote;
	unsigned int seed = 1;

	snprintf(side->doing, sizeof side->doing, "setting up");
	side->device = open_device(gid_index);
	side->witness_cq = make_cq(&side->device, 16, NULL);
	side->witness = make_qp(&side->device, IBV_QPT_RC, side->witness_cq, NULL, 4);
	side->witness_mr = MAKE(ibv_reg_mr(side->device.pd, MAKE(calloc(2, PAGE)), 2 * PAGE, ALL_ACCESS));
	MUST(to_init(side->witness, ALL_ACCESS));
	MUST(post_recv(side->witness, side->witness_mr, PAGE, PAGE, 0));
	connect_to(side, side->witness, NULL, &remote);
	for (int how = 0; how < HOWS; how++) {
		if (how == READ_ONLY && !operation->written)
			continue;
		run_round(side, operation, how, false, 0);
		for (int repeat = 0; during && repeat < REPEATS; repeat++)
			run_round(side, operation, how, true, seed++);
	}
}

struct thread_start {
	struct side side;
	int gid_index;
	const struct operation *operation;
	bool during;
};

static void *run_thread(void *argument)
{
	struct thread_start *start = argument;

	run_side(&start->side, start->gid_index, start->operation, start->during);
	return NULL;
}

static const struct operation *find_operation(const char *name)
{
	for (size_t i = 0; i < OPERATIONS; i++)
		if (!strcmp(operations[i].name, name))
			return &operations[i];
	fail("no operation is named %s", name);
}

static void block_all_signals(void)
{
	sigset_t all;

	sigfillset(&all);
	sigdelset(&all, SIGALRM);
	MUST(pthread_sigmask(SIG_SETMASK, &all, NULL));
}

int main(int argc, char **argv)
{
	int port = 18515, gid_index = 1, option;
	bool local = false, during = true;

	if (argc == 1) {
		for (size_t i = 0; i < OPERATIONS; i++)
			puts(operations[i].name);
		return 0;
	}
	while ((option = getopt(argc, argv, "bclsp:g:")) != -1) {
		switch (option) {
		case 'b': during = false; break;
		case 'c': crash_handler = true; break;
		case 's': block_all_signals(); break;
		case 'l': local = true; break;
		case 'p': port = atoi(optarg); break;
		case 'g': gid_index = atoi(optarg); break;
		default: optind = argc;
		}
	}
	if (argc - optind < 1 || argc - optind > 2 - local)
		fail("usage: vanishing [-bcs] [-p PORT] [-g GID_INDEX] OPERATION [SERVER] | vanishing [-bcs] -l OPERATION\n"
		     "  -b  only before requests, not during them   -l  two threads of one process\n"
		     "  -c  a crash handler is installed before memory goes   -s  all signals are blocked");
	alarm(ALARM_SECONDS);
	const struct operation *operation = find_operation(argv[optind]);

	if (local) {
		struct thread_start starts[2];
		pthread_t threads[2];
		int pair[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			fail("socketpair: %s", strerror(errno));
		for (int i = 0; i < 2; i++) {
			starts[i] = (struct thread_start){.gid_index = gid_index, .operation = operation, .during = during,
							  .side = {.requester = i == 1, .fd = pair[i]}};
			if (pthread_create(&threads[i], NULL, run_thread, &starts[i]))
				fail("pthread_create: %s", strerror(errno));
		}
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	} else {
		const char *host = argv[optind + 1];
		struct side side = {.requester = host != NULL, .fd = meet(host, port)};
		int one = 1;

		setsockopt(side.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		run_side(&side, gid_index, operation, during);
	}
	puts("ok");
	return 0;
}
