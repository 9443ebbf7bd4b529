/* Threads exchange messages within this process, each over queue pairs of its own that have no retry to spare and the shortest timeout,
 * beside threads that only poll: `impatient SECONDS`. No request may fail because the process is stopped or gets no processor.
 */
#include "loop.h"
#include <pthread.h>

#define LOOPS 4
#define BYTES 8192

static atomic_bool ends;

static void *exchange_messages(void *loop)
{
	while (!ends)
		pass_message(loop);
	return NULL;
}

static void *poll_in_vain(void *cq)
{
	struct ibv_wc wc;

	while (!ends)
		if (ibv_poll_cq(cq, 1, &wc))
			fail("a completion in a queue that no queue pair uses");
	return NULL;
}

int main(int argc, char **argv)
{
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_cq *empty = make_cq(&device, 1, NULL);
	struct loop loops[LOOPS];
	pthread_t threads[LOOPS][2];

	alarm(ALARM_SECONDS);
	if (argc != 2)
		fail("usage: %s SECONDS", argv[0]);
	path.timeout = 1;
	path.retry_count = 0;
	for (int i = 0; i < LOOPS; i++)
		loops[i] = make_loop_by(&device, &path, NULL, 8, map_apart(BYTES), BYTES);
	for (int i = 0; i < LOOPS; i++) {
		MUST(pthread_create(&threads[i][0], NULL, exchange_messages, &loops[i]));
		MUST(pthread_create(&threads[i][1], NULL, poll_in_vain, empty));
	}
	puts("exchanging");
	fflush(stdout);
	for (uint64_t end = now_ms() + strtoull(argv[1], NULL, 0) * 1000; now_ms() < end;)
		poll(NULL, 0, 50);
	ends = true;
	for (int i = 0; i < LOOPS; i++)
		for (int k = 0; k < 2; k++)
			MUST(pthread_join(threads[i][k], NULL));
	for (int i = 0; i < LOOPS; i++)
		destroy_loop(&loops[i]);
	puts("no request failed");
	return 0;
}
