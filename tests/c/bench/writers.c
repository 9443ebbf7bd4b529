/* writers: threads that write to one peer, each with a queue pair, a completion queue and memory of its own. The server offers the memory,
 * and waits until the client has ended; the client prints what its threads have written.
 *
 * usage: writers THREADS BYTES SECONDS [HOST]
 */
#include "common.h"
#include <pthread.h>

#define MOST 16u
/* WRITEs of a thread that are outstanding. */
#define DEPTH 16u
#define PORT 18516

struct writer {
	pthread_t thread;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct address theirs;
	uint64_t writes;
};

static struct writer writers[MOST];
static uint32_t bytes;
static uint64_t end;

static void post_write(const struct writer *writer)
{
	struct ibv_sge sge = {(uintptr_t)writer->mr->addr, bytes, writer->mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;

	set_remote(&wr, writer->theirs.buffer, writer->theirs.rkey);
	MUST(ibv_post_send(writer->qp, &wr, &bad));
}

static void *write_all(void *argument)
{
	struct writer *writer = argument;
	unsigned int outstanding = 0;
	struct ibv_wc wc[DEPTH];

	do {
		for (; outstanding < DEPTH; outstanding++)
			post_write(writer);
		int count = ibv_poll_cq(writer->cq, DEPTH, wc);

		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		for (int i = 0; i < count; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				fail("%s", ibv_wc_status_str(wc[i].status));
		outstanding -= (unsigned int)count;
		writer->writes += (unsigned int)count;
	} while (now_ms() < end);
	for (; outstanding; outstanding--, writer->writes++)
		MUST_COMPLETE(writer->cq, wc);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *host = argc == 5 ? argv[4] : NULL;
	unsigned int threads = argc >= 4 ? (unsigned int)atoi(argv[1]) : 0;
	uint64_t seconds = argc >= 4 ? (uint64_t)atoi(argv[3]) : 0, writes = 0;
	struct device device;
	struct path path;
	struct timespec begun, ended;
	char word = 1;

	if (threads < 1 || threads > MOST || seconds < 1)
		fail("usage: writers THREADS BYTES SECONDS [HOST]");
	bytes = (uint32_t)atoi(argv[2]);
	alarm(ALARM_SECONDS);
	device = open_device(1);
	path = default_path(&device);
	int fd = meet(host, PORT);

	for (struct writer *writer = writers; writer < writers + threads; writer++) {
		char *memory = map_apart(bytes);

		memset(memory, 0x5a, bytes);
		writer->cq = make_cq(&device, 2 * DEPTH, NULL);
		writer->qp = make_qp(&device, IBV_QPT_RC, writer->cq, NULL, DEPTH);
		writer->mr = MAKE(ibv_reg_mr(device.pd, memory, bytes, ALL_ACCESS));
		struct address mine = {.qpn = writer->qp->qp_num,
				       .rkey = writer->mr->rkey,
				       .buffer = (uintptr_t)memory,
				       .gid = device.gid};

		if (!exchange(fd, &mine, &writer->theirs, sizeof mine))
			fail("the other side is gone");
		MUST(to_init(writer->qp, ALL_ACCESS));
		MUST(to_rtr(writer->qp, &device, &path, &writer->theirs));
		MUST(to_rts(writer->qp, &path, 0));
	}
	if (!exchange(fd, &word, &word, 1))
		fail("the other side is gone");
	if (!host)
		return recv(fd, &word, 1, 0) != 0;
	/* The first request has the processes share memory. */
	for (struct writer *writer = writers; writer < writers + threads; writer++) {
		struct ibv_wc wc;

		post_write(writer);
		MUST_COMPLETE(writer->cq, &wc);
	}
	end = now_ms() + 1000 * seconds;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (struct writer *writer = writers; writer < writers + threads; writer++)
		MUST(pthread_create(&writer->thread, NULL, write_all, writer));
	for (struct writer *writer = writers; writer < writers + threads; writer++) {
		MUST(pthread_join(writer->thread, NULL));
		writes += writer->writes;
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("wrote %llu bytes in %.6f seconds\n", (unsigned long long)writes * bytes,
	       (double)(ended.tv_sec - begun.tv_sec) + 1e-9 * (double)(ended.tv_nsec - begun.tv_nsec));
	return 0;
}
