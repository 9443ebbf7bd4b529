/* other_service: an RC queue pair and a UC one of two processes are connected to each other, by mistake. Neither takes what the
 * other sends, whoever was heard first.
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define LENGTH 8

static void expect_nothing(struct ibv_cq *cq, int milliseconds)
{
	struct ibv_wc wc;

	if (wait_wc(cq, &wc, milliseconds))
		fail("a completion: %s, opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
}

static void play(int fd, enum ibv_qp_type type)
{
	static char memory[LENGTH];
	char ready = 1, other;
	struct address mine, theirs;
	struct ibv_wc wc;
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_qp *qp = make_qp(&device, type, cq, NULL, 1);
	struct path path = default_path(&device);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS));
	unsigned int access = type == IBV_QPT_RC ? path.access : IBV_ACCESS_REMOTE_WRITE;

	/* The RC side asks again for half a minute. */
	path.timeout = 20;
	MUST(to_init(qp, access));
	MUST(post_recv(qp, mr, 0, LENGTH, 0));
	mine = (struct address){.qpn = qp->qp_num, .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	if (type == IBV_QPT_RC)
		MUST(post_send(qp, mr, 0, LENGTH, 0));
	else
		expect_nothing(cq, 300);
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	if (type == IBV_QPT_UC) {
		MUST(post_send(qp, mr, 0, LENGTH, 0));
		MUST_COMPLETE(cq, &wc);
	} else {
		expect_nothing(cq, 300);
	}
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side has gone");
	exit(0);
}

int main(void)
{
	static const enum ibv_qp_type types[2] = {IBV_QPT_RC, IBV_QPT_UC};
	int ends[2], status;

	alarm(ALARM_SECONDS);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	for (int side = 0; side < 2; side++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork: %s", strerror(errno));
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(ends[1 - side]);
			play(ends[side], types[side]);
		}
	}
	close(ends[0]);
	close(ends[1]);
	for (int side = 0; side < 2; side++)
		if (wait(&status) < 0 || status)
			fail("a side ended with status %x", status);
	puts("ok");
	return 0;
}
