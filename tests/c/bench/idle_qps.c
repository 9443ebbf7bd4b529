/* idle_qps [COUNT]: the costs of unused queue pairs. Makes COUNT connected RC queue pairs, and prints the costs of one
 * of them:
 *
 *   memory      bytes of the process beyond what it had
 *   descriptors file descriptors of the process beyond what it had, of all together
 *   create      µs of ibv_create_qp and ibv_destroy_qp, one after the other
 *   connect     µs of the three calls of ibv_modify_qp
 *   message     µs of a message and its completions between the last two, among all the others
 */
#include "cases.h"

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* Bytes of memory that are the process's own: what it shares with others, or has from files, isn't the QPs'. */
static long memory(void)
{
	char line[256];
	long kib = 0;
	FILE *file = fopen("/proc/self/smaps_rollup", "r");

	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "Private_Dirty:", 14))
			kib += strtol(line + 14, NULL, 10);
	if (file)
		fclose(file);
	return kib * 1024;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 20000;
	enum { TIMED = 2000 };

	alarm(ALARM_SECONDS);
	if (count < 2 || count % 2)
		fail("COUNT is an even number");
	/* One pair works first: what the process needs once isn't the others'. */
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_qp **qps = MAKE(calloc((size_t)count, sizeof *qps));
	struct ibv_qp_init_attr init = {.send_cq = f.cq_a, .recv_cq = f.cq_a, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
						.max_recv_sge = 1}};
	struct ibv_wc wc;
	double start, create = 0, connect;

	memset(qps, 1, (size_t)count * sizeof *qps);
	for (int round = 0; round < 2; round++) {
		start = now_us();
		for (int i = 0; i < TIMED; i++)
			MUST(ibv_destroy_qp(MAKE(ibv_create_qp(f.device.pd, &init))));
		create = (now_us() - start) / TIMED;
	}
	long memory_before = memory();
	int descriptors_before = (int)entries_of("/proc/self/fd");

	for (int i = 0; i < count; i++) {
		qps[i] = MAKE(ibv_create_qp(f.device.pd, &init));
		MUST(to_init(qps[i], ALL_ACCESS));
	}
	start = now_us();
	for (int i = 0; i < count; i += 2)
		connect_qps(&f.device, &f.path, qps[i], qps[i + 1]);
	connect = (now_us() - start) / count;
	printf("memory %ld\n", (memory() - memory_before) / count);
	printf("descriptors %d\n", (int)entries_of("/proc/self/fd") - descriptors_before);
	printf("create %.2f\n", create);
	printf("connect %.2f\n", connect);
	start = now_us();
	for (int i = 0; i < TIMED; i++) {
		MUST(post_recv(qps[count - 1], f.mr, 4096, 8, 1));
		MUST(post_send(qps[count - 2], f.mr, 0, 8, 2));
		MUST_COMPLETE(f.cq_a, &wc);
		MUST_COMPLETE(f.cq_a, &wc);
	}
	printf("message %.2f\n", (now_us() - start) / TIMED);
	start = now_us();
	for (int i = 0; i < count; i++)
		MUST(ibv_destroy_qp(qps[i]));
	printf("destroy %.2f\n", (now_us() - start) / count);
	return 0;
}
