/* late_shared_memory: two processes of which one can't share memory with the other at the moment when it connects its
 * QP.
 *
 * The other one can, later. Both have to find the way that works, whichever sends first.
 */
#include "common.h"

#include <fcntl.h>
#include <sys/resource.h>

/* Leaves room for one more descriptor. */
static struct rlimit tighten(void)
{
	struct rlimit before, tight;
	int next = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (next < 0 || getrlimit(RLIMIT_NOFILE, &before))
		fail("looking for the next descriptor: %m");
	close(next);
	tight = before;
	tight.rlim_cur = (rlim_t)next + 1;
	if (setrlimit(RLIMIT_NOFILE, &tight))
		fail("setrlimit: %m");
	return before;
}

/* COUNT messages one way. */
static void one_way(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, char *memory, uint32_t size, bool send)
{
	struct ibv_wc wc;

	for (unsigned int i = 0; i < 50; i++) {
		if (send) {
			fill(memory, size, i);
			MUST(post_send(qp, mr, 0, size, i));
		}
		MUST_COMPLETE(cq, &wc);
		if (!send) {
			check(memory + size, wc.byte_len, i, "message");
			MUST(post_recv(qp, mr, size, size, 0));
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 4 || argc > 5)
		fail("usage: late_shared_memory SIZE tight-server|tight-client server-first|client-first [SERVER]");

	uint32_t size = (uint32_t)strtoul(argv[1], NULL, 0);
	const char *host = argc == 5 ? argv[4] : NULL;
	bool tight = !strcmp(argv[2], host ? "tight-client" : "tight-server");
	bool first = !strcmp(argv[3], host ? "client-first" : "server-first");
	char ready = 1, other;

	alarm(ALARM_SECONDS);
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 64, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 16);
	struct path path = default_path(&device);
	char *memory = MAKE(calloc(2, size));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, 2 * (size_t)size, ALL_ACCESS));
	struct address mine = {.qpn = qp->qp_num, .gid = device.gid}, theirs;

	MUST(to_init(qp, ALL_ACCESS));
	MUST(post_recv(qp, mr, size, size, 0));
	int fd = meet(host, 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	if (tight) {
		struct rlimit before = tighten();

		MUST(to_rtr(qp, &device, &path, &theirs));
		if (setrlimit(RLIMIT_NOFILE, &before))
			fail("setrlimit: %m");
	}
	/* The other connects when that limit is gone. */
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	if (!tight)
		MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	one_way(qp, cq, mr, memory, size, first);
	one_way(qp, cq, mr, memory, size, !first);
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	puts("both ways work");
	return 0;
}
