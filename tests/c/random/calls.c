/* calls [-S seed] [-t seconds] [-T threads] [-f]: two processes whose threads make, use and destroy verbs objects in an
 * order drawn from a seed, and hold every completion against a model (model.h). With -f no process forks meanwhile.
 *
 * In gentle rounds everything is right and must succeed. In rude ones keys, regions, states and queues are pulled away
 * under the traffic; nothing may be lost, reported twice or written to memory that was taken back, and every wait ends.
 *
 * The time is divided into parts. At the end of each, when all threads have destroyed what they made, the process must
 * have as many threads and descriptors as before, and about as much memory.
 */
#define _GNU_SOURCE
#include "disturbances.h"
#include "watch.h"
#include <signal.h>

/* Longer than the time of a forked child (`fork_in_the_middle`): if that hangs, its own report comes first. */
#define WAIT_MS 40000
#define PARTS 3

/* Where threads of the two processes with the same number meet. */
struct meeting {
	atomic_uint arrived[2];
	struct end end[2];
	atomic_bool done[2], blur[2], over;
};

static struct meeting *meetings;
static int side;
static unsigned int threads = 4;
static uint64_t end_ms;
static atomic_ulong total_succeeded, total_failed, total_rounds;

/* Waits for the same thread of the other process. */
static void meet_peer(struct worker *worker)
{
	struct meeting *meeting = &meetings[worker->number];
	unsigned int mine = atomic_fetch_add(&meeting->arrived[side], 1) + 1;
	uint64_t limit = now_ms() + WAIT_MS;

	while ((int)(atomic_load(&meeting->arrived[!side]) - mine) < 0) {
		if (now_ms() > limit)
			fail("seed %lu: thread %u waits for the other process", the_seed, worker->number);
		if (worker->cq)
			poll_own(worker);
		sched_yield();
	}
}

/* Until every request is accounted for. */
static void drain(struct worker *worker, struct half *half)
{
	uint64_t limit = now_ms() + WAIT_MS;
	unsigned int left;

	do {
		poll_own(worker);
		/* What waits in an SRQ isn't flushed, and an unsignaled success isn't reported. */
		left = sends_outstanding(half);
		pthread_mutex_lock(&half->lock);
		left += half->srq ? 0 : half->receive.length;
		pthread_mutex_unlock(&half->lock);
		if (now_ms() > limit)
			fail("seed %lu: %u requests never completed (%s, %s)", the_seed, left,
			     worker->gentle ? "gentle" : "rude", worker->across ? "two processes" : "one process");
	} while (left);
}

/* The peer needs our receives until its requests are done. */
static void finish_gently(struct worker *worker, struct half **all, unsigned int count)
{
	struct meeting *meeting = &meetings[worker->number];
	uint64_t limit = now_ms() + WAIT_MS;
	unsigned int left;

	do {
		left = 0;
		for (unsigned int i = 0; i < count; i++) {
			receive(worker, all[i]);
			left += sends_outstanding(all[i]);
		}
		if (left == 0)
			atomic_store(&meeting->done[side], true);
		poll_own(worker);
		if (now_ms() > limit)
			fail("seed %lu: %u requests of a gentle round never completed (%s, QP type %d)", the_seed,
			     left, worker->across ? "two processes" : "one process", worker->type);
	} while (left || (worker->across && !atomic_load(&meeting->done[!side])));
}

static void make_cq_of(struct worker *worker)
{
	worker->extended = NULL;
	if (worker->common) {
		worker->cq = common_cq;
	} else if (draw(&worker->own, 2)) {
		worker->cq = make_cq(&device, 2 * MAX_DEPTH * HALVES_PER_THREAD, NULL);
	} else {
		struct ibv_cq_init_attr_ex init = {.cqe = 2 * MAX_DEPTH * HALVES_PER_THREAD,
						   .wc_flags = IBV_WC_STANDARD_FLAGS};

		worker->extended = MAKE(ibv_create_cq_ex(device.context, &init));
		worker->cq = ibv_cq_ex_to_cq(worker->extended);
	}
}

static void begin_round(struct worker *worker)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_RC,       IBV_QPT_RC,
						 IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_UD};
	static const size_t sizes[] = {64, 512, 5000, 70000};
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0100 /* O_CREAT */};

	worker->across = draw(&worker->both, 2);
	worker->gentle = draw(&worker->both, 2);
	worker->type = types[draw(&worker->both, sizeof types / sizeof *types)];
	worker->slot_size = worker->type == IBV_QPT_UD ? 1000 : sizes[draw(&worker->both, 4)];
	worker->common = draw(&worker->own, 2);
	worker->pd = draw(&worker->own, 2) ? device.pd : MAKE(ibv_alloc_pd(device.context));
	make_cq_of(worker);
	worker->domain = worker->type == IBV_QPT_XRC_SEND ? MAKE(ibv_open_xrcd(device.context, &domain)) : NULL;
	worker->srq = NULL;
}

/* Exchanges the ends' addresses: first of the QPs, then of the memory that is opened. */
static void connect_all(struct worker *worker, struct half **all)
{
	struct meeting *meeting = &meetings[worker->number];

	for (int i = 0; i < (worker->across ? 1 : 2); i++) {
		all[i]->blurs = worker->across ? &meeting->blur[side] : &all[i]->own_blur;
		all[i]->blurred = worker->across ? &meeting->blur[!side] : &all[!i]->own_blur;
		atomic_store(all[i]->blurs, false);
	}
	if (worker->across) {
		meeting->end[side] = end_of(all[0]);
		atomic_store(&meeting->done[side], false);
		meet_peer(worker);
		connect_half(worker, all[0], &meeting->end[!side]);
		open_memory(worker, all[0]);
		meet_peer(worker);
		meeting->end[side] = end_of(all[0]);
		meet_peer(worker);
		all[0]->remote = meeting->end[!side];
	} else {
		struct end ends[2] = {end_of(all[0]), end_of(all[1])};

		connect_half(worker, all[0], &ends[1]);
		connect_half(worker, all[1], &ends[0]);
		for (int i = 0; i < 2; i++)
			open_memory(worker, all[i]);
		for (int i = 0; i < 2; i++)
			all[i]->remote = end_of(all[!i]);
	}
}

static void end_round(struct worker *worker, struct half **all, unsigned int count)
{
	if (worker->gentle)
		finish_gently(worker, all, count);
	/* Now and then a queue goes with requests in it. */
	for (unsigned int i = 0; i < count; i++) {
		pthread_mutex_lock(&all[i]->lock);
		all[i]->gentle = false;
		pthread_mutex_unlock(&all[i]->lock);
		if (worker->gentle || draw(&worker->own, 4)) {
			to_error(all[i]);
			drain(worker, all[i]);
		}
	}
	for (unsigned int i = 0; i < count; i++) {
		destroy_half(worker, all[i]);
		atomic_fetch_add(&total_succeeded, all[i]->succeeded);
		atomic_fetch_add(&total_failed, all[i]->failed);
	}
	if (worker->srq)
		MUST(ibv_destroy_srq(worker->srq));
	if (!worker->common)
		MUST(ibv_destroy_cq(worker->cq));
	if (worker->domain)
		MUST(ibv_close_xrcd(worker->domain));
	if (worker->pd != device.pd)
		MUST(ibv_dealloc_pd(worker->pd));
	worker->cq = NULL;
}

static void run_round(struct worker *worker)
{
	struct half *all[2];
	unsigned int count;

	begin_round(worker);
	count = worker->across ? 1 : 2;
	/* One QP each: receives of an SRQ complete in the order of posting only then. */
	if (count == 1 && once_in(worker, 4) && (worker->type == IBV_QPT_RC || worker->type == IBV_QPT_UD)) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = MAX_DEPTH, .max_sge = 2}};

		worker->srq = MAKE(ibv_create_srq(worker->pd, &init));
	}
	for (unsigned int i = 0; i < count; i++)
		all[i] = make_half(worker, i);
	connect_all(worker, all);
	for (uint64_t steps = 20 + draw(&worker->own, 400); steps > 0; steps--) {
		struct half *half = all[draw(&worker->own, count)];
		uint64_t what = draw(&worker->own, 100);

		if (what < 35)
			receive(worker, half);
		else if (what < 70)
			request(worker, half);
		else if (what < 97)
			poll_own(worker);
		else
			interfere(worker, half);
	}
	end_round(worker, all, count);
	atomic_fetch_add(&total_rounds, 1);
	/* Both see the same end. */
	meet_peer(worker);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct meeting *meeting = &meetings[worker->number];

	for (;;) {
		/* One side decides for both whether the time is over. */
		if (side == 0)
			atomic_store(&meeting->over, now_ms() >= end_ms);
		meet_peer(worker);
		bool over = atomic_load(&meeting->over);
		meet_peer(worker);
		if (over)
			return NULL;
		run_round(worker);
	}
}

/* A part of the time: the threads work, and end. */
static void run_part(struct worker *workers)
{
	pthread_t ids[MAX_THREADS];

	for (unsigned int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, &workers[i]))
			fail("pthread_create");
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
}

static void run_process(uint64_t milliseconds)
{
	static struct worker workers[MAX_THREADS];
	uint64_t start = now_ms();
	struct quiet quiet[PARTS];
	pthread_t watcher;

	prepare_to_tell_where();
	device = open_device(1);
	common_cq = make_cq(&device, 4 * MAX_DEPTH * HALVES_PER_THREAD * MAX_THREADS, NULL);
	for (unsigned int i = 0; i < MAX_THREADS * HALVES_PER_THREAD; i++) {
		pthread_mutex_init(&halves[i].lock, NULL);
		halves[i].number = i;
		halves[i].dead = true;
	}
	for (unsigned int i = 0; i < threads; i++) {
		workers[i] = (struct worker){.number = i, .both = the_seed * 64 + i};
		workers[i].own = ~workers[i].both + (unsigned int)side;
		pthread_mutex_init(&workers[i].cq_lock, NULL);
	}
	if (pthread_create(&watcher, NULL, watch, NULL))
		fail("pthread_create");
	for (unsigned int part = 0; part < PARTS; part++) {
		end_ms = start + milliseconds * (part + 1) / PARTS;
		run_part(workers);
		quiet[part] = look_around();
	}
	compare(&quiet[PARTS - 2], quiet[PARTS - 1]);
	pthread_cancel(watcher);
	pthread_join(watcher, NULL);
	MUST(ibv_destroy_cq(common_cq));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	printf("side %d: %lu rounds, %lu requests succeeded, %lu failed, %lu compared, %lu events\n", side, total_rounds,
	       total_succeeded, total_failed, total_compared, total_events);
	if (total_rounds == 0 || total_succeeded == 0)
		fail("seed %lu: nothing was done", the_seed);
}

int main(int argc, char **argv)
{
	unsigned int seconds = 5;
	int option, status;
	pid_t child;

	while ((option = getopt(argc, argv, "S:t:T:f")) != -1)
		switch (option) {
		case 'S':
			the_seed = strtoull(optarg, NULL, 0);
			break;
		case 't':
			seconds = (unsigned int)atoi(optarg);
			break;
		case 'T':
			threads = (unsigned int)atoi(optarg);
			break;
		case 'f':
			with_forks = false;
			break;
		default:
			fail("usage: calls [-S seed] [-t seconds] [-T threads] [-f]");
		}
	if (threads < 1 || threads > MAX_THREADS)
		fail("1 to %d threads", MAX_THREADS);
	alarm(seconds + ALARM_SECONDS);
	meetings = mmap(NULL, sizeof *meetings * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meetings == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	side = child == 0;
	if (side == 1)
		alarm(seconds + ALARM_SECONDS);
	run_process(seconds * 1000ull);
	if (side == 1)
		return 0;
	if (waitpid(child, &status, 0) != child || status != 0)
		fail("seed %lu: the other process ended with %x", the_seed, status);
	return 0;
}
