/* anything [-S seed] [-t seconds] [-T threads]: two processes whose threads make, use and destroy verbs objects in an
 * order drawn from a seed, and hold every completion against a model (anything.h).
 *
 * In gentle rounds everything is right and must succeed. In rude ones keys, regions, states and queues are pulled away
 * under the traffic; nothing may be lost, reported twice or written to memory that was taken back, and every wait ends.
 */
#include "anything_calls.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define WAIT_MS 20000

/* Where threads of the two processes with the same number meet. */
struct meeting {
	atomic_uint arrived[2];
	struct address address[2];
	atomic_bool done[2];
};

static struct meeting *meetings;
static struct device device;
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

static void give_memory(struct half *half)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = 2 * (size_t)half->depth * half->slot_size + SHARED_SIZE;
	char *at;

	size = (size + page - 1) / page * page;
	/* A page that must not be touched on either side. */
	at = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + page, size, PROT_READ | PROT_WRITE))
		fail("mmap: %s", strerror(errno));
	half->memory = at + page;
	half->memory_size = size;
}

static void take_memory(struct half *half)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	munmap(half->memory - page, half->memory_size + 2 * page);
	half->memory = NULL;
}

/* Takes the region back, and whatever comes after must not change the memory. */
static void take_region_back(struct half *half)
{
	struct ibv_mr *mr;

	pthread_mutex_lock(&half->lock);
	mr = half->mr;
	half->mr = NULL;
	pthread_mutex_unlock(&half->lock);
	if (mr) {
		MUST(ibv_dereg_mr(mr));
		fill(half->memory, half->memory_size, half->generation);
	}
}

static const uint64_t send_ops[] = {
	[IBV_QPT_RC] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
		       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	[IBV_QPT_UC] = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	[IBV_QPT_UD] = IBV_QP_EX_WITH_SEND,
};

static struct half *make_half(struct worker *worker, unsigned int index)
{
	struct half *half = &halves[worker->number * HALVES_PER_THREAD + index];

	pthread_mutex_lock(&half->lock);
	half->generation++;
	half->dead = false;
	half->gentle = worker->gentle;
	half->expected = half->messages = half->succeeded = half->failed = 0;
	half->send = half->receive = (struct queue){0};
	half->depth = 2 + (uint32_t)draw(&worker->own, MAX_DEPTH - 2);
	half->slot_size = worker->slot_size;
	half->srq = worker->srq;
	half->cq = worker->cq;
	give_memory(half);
	half->mr = MAKE(ibv_reg_mr(worker->pd, half->memory, half->memory_size, ALL_ACCESS));
	half->by_calls = draw(&worker->own, 2);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = worker->cq,
		.recv_cq = worker->cq,
		.srq = worker->srq,
		.cap = {half->depth, worker->srq ? 0 : half->depth, 3, worker->srq ? 0 : 3, 128},
		.qp_type = worker->type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (half->by_calls ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = worker->pd,
		.send_ops_flags = send_ops[worker->type],
	};
	half->qp = MAKE(ibv_create_qp_ex(device.context, &init));
	MUST(to_init(half->qp, ALL_ACCESS));
	pthread_mutex_unlock(&half->lock);
	return half;
}

static struct address address_of(const struct half *half)
{
	return (struct address){.qpn = half->qp->qp_num,
				.psn = half->generation * 977 & 0xffffff,
				.rkey = half->mr->rkey,
				.buffer = (uintptr_t)shared_area(half),
				.gid = device.gid};
}

static void connect_half(struct worker *worker, struct half *half, const struct address *remote)
{
	struct path path = default_path(&device);

	path.timeout = worker->gentle ? 16 : 8;
	half->remote = *remote;
	MUST(to_rtr(half->qp, &device, &path, remote));
	MUST(to_rts(half->qp, &path, address_of(half).psn));
	if (worker->type == IBV_QPT_UD) {
		struct ibv_ah_attr attr;

		fill_ah(&attr, &device, &remote->gid);
		half->ah = MAKE(ibv_create_ah(worker->pd, &attr));
	}
}

static void to_error(struct half *half)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	MUST(ibv_modify_qp(half->qp, &attr, IBV_QP_STATE));
}

/* Something that has nothing to do with the traffic, or disturbs it. */
static void interfere(struct worker *worker, struct half *half)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	switch (draw(&worker->own, worker->gentle ? 6 : 9)) {
	case 0:
		MUST(ibv_query_qp(half->qp, &attr, IBV_QP_STATE, &init));
		break;
	case 1:
		cq = MAKE(ibv_create_cq(device.context, 1 + (int)draw(&worker->own, 300), NULL, NULL, 0));
		MUST(ibv_resize_cq(cq, 500));
		MUST(ibv_destroy_cq(cq));
		break;
	case 2:
		pd = MAKE(ibv_alloc_pd(device.context));
		mr = MAKE(ibv_reg_mr(pd, half->memory, half->memory_size, ALL_ACCESS));
		if (ibv_dealloc_pd(pd) != EBUSY)
			fail("seed %lu: a PD with a region was freed", the_seed);
		MUST(ibv_dereg_mr(mr));
		MUST(ibv_dealloc_pd(pd));
		break;
	case 3:
		if (ibv_destroy_cq(worker->cq) != EBUSY)
			fail("seed %lu: a CQ with a QP was destroyed", the_seed);
		break;
	case 4:
		if (worker->srq && ibv_destroy_srq(worker->srq) != EBUSY)
			fail("seed %lu: an SRQ with a QP was destroyed", the_seed);
		break;
	case 5:
		if (!worker->common)
			MUST(ibv_resize_cq(worker->cq, 2 * MAX_DEPTH * HALVES_PER_THREAD +
							      (int)draw(&worker->own, 1000)));
		break;
	case 6:
		take_region_back(half);
		break;
	case 7:
		to_error(half);
		break;
	case 8:
		MUST(ibv_req_notify_cq(worker->cq, (int)draw(&worker->own, 2)));
		break;
	}
}

/* Until every request is accounted for. */
static void drain(struct worker *worker, struct half *half)
{
	uint64_t limit = now_ms() + WAIT_MS;
	unsigned int left;

	do {
		poll_own(worker);
		pthread_mutex_lock(&half->lock);
		/* What waits in an SRQ isn't flushed, and an unsignaled success isn't reported. */
		left = half->srq ? 0 : half->receive.length;
		for (unsigned int i = 0; i < half->send.length; i++)
			left += half->send.signaled[(half->send.head + i) % MAX_DEPTH];
		pthread_mutex_unlock(&half->lock);
		if (now_ms() > limit)
			fail("seed %lu: %u requests never completed (%s, %s)", the_seed, left,
			     worker->gentle ? "gentle" : "rude", worker->across ? "two processes" : "one process");
	} while (left);
}

static void destroy_half(struct half *half)
{
	pthread_mutex_lock(&half->lock);
	half->dead = true;
	pthread_mutex_unlock(&half->lock);
	MUST(ibv_destroy_qp(half->qp));
	if (half->ah)
		MUST(ibv_destroy_ah(half->ah));
	half->ah = NULL;
	if (half->mr)
		take_region_back(half);
	check(half->memory, half->memory_size, half->generation, "memory that was taken back");
	take_memory(half);
	atomic_fetch_add(&total_succeeded, half->succeeded);
	atomic_fetch_add(&total_failed, half->failed);
}

static unsigned int sends_outstanding(struct half *half)
{
	unsigned int left = 0;

	pthread_mutex_lock(&half->lock);
	for (unsigned int i = 0; i < half->send.length; i++)
		left += half->send.signaled[(half->send.head + i) % MAX_DEPTH];
	pthread_mutex_unlock(&half->lock);
	return left;
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
			receive(all[i]);
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

static void run_round(struct worker *worker)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
	static const size_t sizes[] = {64, 512, 5000, 70000};
	struct meeting *meeting = &meetings[worker->number];
	struct half *all[2];
	unsigned int count;

	worker->across = draw(&worker->both, 2);
	worker->gentle = draw(&worker->both, 2);
	worker->type = types[draw(&worker->both, 4)];
	worker->slot_size = worker->type == IBV_QPT_UD ? 1000 : sizes[draw(&worker->both, 4)];
	worker->common = draw(&worker->own, 2);
	count = worker->across ? 1 : 2;
	worker->pd = draw(&worker->own, 2) ? device.pd : MAKE(ibv_alloc_pd(device.context));
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
	worker->srq = NULL;
	/* One QP each: receives of an SRQ complete in the order of posting only then. */
	if (count == 1 && draw(&worker->own, 4) == 0 && worker->type != IBV_QPT_UC) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = MAX_DEPTH, .max_sge = 2}};

		worker->srq = MAKE(ibv_create_srq(worker->pd, &init));
	}
	for (unsigned int i = 0; i < count; i++)
		all[i] = make_half(worker, i);
	if (worker->across) {
		meeting->address[side] = address_of(all[0]);
		atomic_store(&meeting->done[side], false);
		meet_peer(worker);
		connect_half(worker, all[0], &meeting->address[!side]);
		meet_peer(worker);
	} else {
		struct address addresses[2] = {address_of(all[0]), address_of(all[1])};

		connect_half(worker, all[0], &addresses[1]);
		connect_half(worker, all[1], &addresses[0]);
	}
	for (uint64_t steps = 20 + draw(&worker->own, 400); steps > 0; steps--) {
		struct half *half = all[draw(&worker->own, count)];
		uint64_t what = draw(&worker->own, 100);

		if (what < 35)
			receive(half);
		else if (what < 70)
			request(worker, half);
		else if (what < 97)
			poll_own(worker);
		else
			interfere(worker, half);
	}
	if (worker->gentle)
		finish_gently(worker, all, count);
	/* Now and then a queue goes with requests in it. */
	for (unsigned int i = 0; i < count; i++) {
		all[i]->gentle = false;
		if (worker->gentle || draw(&worker->own, 4)) {
			to_error(all[i]);
			drain(worker, all[i]);
		}
	}
	for (unsigned int i = 0; i < count; i++)
		destroy_half(all[i]);
	if (worker->srq)
		MUST(ibv_destroy_srq(worker->srq));
	if (!worker->common)
		MUST(ibv_destroy_cq(worker->cq));
	if (worker->pd != device.pd)
		MUST(ibv_dealloc_pd(worker->pd));
	worker->cq = NULL;
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
			meeting->address[0].reserved = now_ms() >= end_ms;
		meet_peer(worker);
		if (meeting->address[0].reserved)
			return NULL;
		meet_peer(worker);
		run_round(worker);
	}
}

static void run_process(void)
{
	struct worker workers[MAX_THREADS];
	pthread_t ids[MAX_THREADS];

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
		if (pthread_create(&ids[i], NULL, work, &workers[i]))
			fail("pthread_create");
	}
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	MUST(ibv_destroy_cq(common_cq));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	printf("side %d: %lu rounds, %lu requests succeeded, %lu failed\n", side, total_rounds, total_succeeded,
	       total_failed);
	if (total_rounds == 0 || total_succeeded == 0)
		fail("seed %lu: nothing was done", the_seed);
}

int main(int argc, char **argv)
{
	unsigned int seconds = 5;
	int option, status;
	pid_t child;

	while ((option = getopt(argc, argv, "S:t:T:")) != -1)
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
		default:
			fail("usage: anything [-S seed] [-t seconds] [-T threads]");
		}
	if (threads < 1 || threads > MAX_THREADS)
		fail("1 to %d threads", MAX_THREADS);
	alarm(seconds + ALARM_SECONDS);
	meetings = mmap(NULL, sizeof *meetings * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meetings == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	end_ms = now_ms() + seconds * 1000ull;
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	side = child == 0;
	if (side == 1)
		alarm(seconds + ALARM_SECONDS);
	run_process();
	if (side == 1)
		return 0;
	if (waitpid(child, &status, 0) != child || status != 0)
		fail("seed %lu: the other process ended with %x", the_seed, status);
	return 0;
}
