/* A process that is stopped and continued, as by a shell's job control, while one thread posts and polls, and another queries the
 * same queue pair: the time of the stop doesn't count, so no query fails.
 */
#include "loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { STOPS = 12, LENGTH = 2 << 20 };

static struct loop loop;
static atomic_bool is_over;

/* Stops and continues its parent. */
static pid_t start_stopper(void)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	for (int stop = 0; stop < STOPS; stop++) {
		usleep(40000 + 1370 * (unsigned int)stop);
		kill(getppid(), SIGSTOP);
		/* A call that waits for the queue pair gives up after a second. */
		usleep(1200000);
		kill(getppid(), SIGCONT);
	}
	_exit(0);
}

static void *write_always(void *unused)
{
	struct ibv_sge sge = {.addr = (uintptr_t)loop.mr->addr, .length = LENGTH / 2, .lkey = loop.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;

	(void)unused;
	wr.wr.rdma.remote_addr = sge.addr + LENGTH / 2;
	wr.wr.rdma.rkey = loop.mr->rkey;
	while (!is_over) {
		MUST(ibv_post_send(loop.a, &wr, &bad));
		MUST_COMPLETE(loop.cq, &wc);
	}
	return NULL;
}

int main(void)
{
	static _Alignas(4096) char memory[LENGTH];
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct device device = open_device(0);
	pthread_t writer;
	int status;

	loop = make_loop(&device, 16, memory, LENGTH);
	pid_t stopper = start_stopper();

	MUST(pthread_create(&writer, NULL, write_always, NULL));
	while (waitpid(stopper, &status, WNOHANG) == 0)
		MUST(ibv_query_qp(loop.a, &attr, IBV_QP_STATE, &init));
	is_over = true;
	MUST(pthread_join(writer, NULL));
	destroy_loop(&loop);
	puts("ok");
	return 0;
}
