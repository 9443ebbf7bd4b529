/* threads: eight threads post and poll at once, on QPs of their own and on one QP, with shared CQs.
 *
 * Every request must complete exactly once; on one QP receives complete in the order of posting.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define ROUNDS 2000
#define WINDOW 8
#define SIZE 512

struct worker {
	struct ibv_qp *a, *b;
	atomic_uint sent, received;
};

static struct device device;
static struct ibv_cq *cqs[2];
static struct ibv_mr *mr;
static char *memory;
static struct worker workers[THREADS];
static atomic_uint unfinished;

/* The work request id identifies the worker and the kind of request. */
static uint64_t id_of(unsigned int worker, bool receive)
{
	return worker * 2 + receive;
}

static size_t slot(unsigned int worker, bool receive, unsigned int index)
{
	return ((size_t)worker * 2 + receive) * WINDOW * SIZE + (size_t)(index % WINDOW) * SIZE;
}

static void poll_shared(struct ibv_cq *cq)
{
	struct ibv_wc wc[4];
	int count = ibv_poll_cq(cq, 4, wc);

	if (count < 0)
		fail("ibv_poll_cq returned %d", count);
	for (int i = 0; i < count; i++) {
		struct worker *worker = &workers[wc[i].wr_id / 2];

		if (wc[i].status != IBV_WC_SUCCESS)
			fail("%s", ibv_wc_status_str(wc[i].status));
		atomic_fetch_add(wc[i].wr_id % 2 ? &worker->received : &worker->sent, 1);
		atomic_fetch_sub(&unfinished, 1);
	}
}

static void *post_and_poll(void *argument)
{
	struct worker *own = argument;
	unsigned int number = (unsigned int)(own - workers);

	for (unsigned int i = 0; i < ROUNDS; i++) {
		/* A slot is used again when both its send and its receive have completed. */
		while (i >= atomic_load(&own->sent) + WINDOW || i >= atomic_load(&own->received) + WINDOW)
			poll_shared(cqs[i % 2]), poll_shared(cqs[(i + 1) % 2]);
		MUST(post_recv(own->b, mr, slot(number, true, i), SIZE, id_of(number, true)));
		MUST(post_send(own->a, mr, slot(number, false, i), SIZE, id_of(number, false)));
	}
	while (atomic_load(&unfinished))
		poll_shared(cqs[number % 2]), poll_shared(cqs[(number + 1) % 2]);
	return NULL;
}

static void make_pair(struct ibv_qp **a, struct ibv_qp **b, unsigned int depth)
{
	struct path path = default_path(&device);

	*a = make_qp(&device, IBV_QPT_RC, cqs[0], NULL, depth);
	*b = make_qp(&device, IBV_QPT_RC, cqs[1], NULL, depth);
	MUST(to_init(*a, ALL_ACCESS));
	MUST(to_init(*b, ALL_ACCESS));
	connect_qps(&device, &path, *a, *b);
}

int main(int argc, char **argv)
{
	bool one_qp = argc == 2 && !strcmp(argv[1], "one-qp");
	pthread_t threads[THREADS];
	size_t size = (size_t)THREADS * 2 * WINDOW * SIZE;

	if (!one_qp && !(argc == 2 && !strcmp(argv[1], "own-qps")))
		fail("usage: threads own-qps|one-qp");
	alarm(ALARM_SECONDS);
	device = open_device(1);
	for (int i = 0; i < 2; i++)
		cqs[i] = make_cq(&device, 4 * THREADS * WINDOW, NULL);
	memory = MAKE(calloc(1, size));
	mr = MAKE(ibv_reg_mr(device.pd, memory, size, ALL_ACCESS));
	for (unsigned int i = 0; i < THREADS; i++) {
		if (i == 0 || !one_qp)
			make_pair(&workers[i].a, &workers[i].b, one_qp ? 2 * THREADS * WINDOW : 2 * WINDOW);
		workers[i].a = workers[one_qp ? 0 : i].a;
		workers[i].b = workers[one_qp ? 0 : i].b;
	}
	atomic_store(&unfinished, THREADS * ROUNDS * 2);
	for (unsigned int i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, post_and_poll, &workers[i]));
	for (unsigned int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL));
	for (unsigned int i = 0; i < THREADS; i++)
		if (workers[i].sent != ROUNDS || workers[i].received != ROUNDS)
			fail("thread %u: %u sends and %u receives completed, not %d", i, workers[i].sent,
			     workers[i].received, ROUNDS);
	puts("ok");
	return 0;
}
