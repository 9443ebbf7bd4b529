/* exit_after_last_completion: a server that calls _exit right after its last receive completion, and a client that must
 * not notice.
 *
 * The acknowledgement of the last message has to leave before the completion is seen, since nothing can follow it.
 */
#include "common.h"

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4)
		fail("usage: exit_after_last_completion COUNT SIZE [SERVER]");

	uint64_t count = strtoull(argv[1], NULL, 0);
	uint32_t size = (uint32_t)strtoul(argv[2], NULL, 0);
	const char *host = argc == 4 ? argv[3] : NULL;
	char ready = 1, other;
	struct ibv_wc wc;

	alarm(ALARM_SECONDS);
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 64, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 16);
	struct path path = default_path(&device);
	char *memory = MAKE(calloc(1, size + 1));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, size + 1, ALL_ACCESS));
	struct address mine = {.qpn = qp->qp_num, .gid = device.gid}, theirs;

	MUST(to_init(qp, ALL_ACCESS));
	if (!host)
		for (int i = 0; i < 16; i++)
			MUST(post_recv(qp, mr, 0, size, 0));
	int fd = meet(host, 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	if (!host) {
		for (uint64_t i = 0; i < count; i++) {
			MUST_COMPLETE(cq, &wc);
			check(memory, wc.byte_len, 0, "message");
			if (i + 1 == count)
				_exit(0);
			MUST(post_recv(qp, mr, 0, size, 0));
		}
	}
	fill(memory, size, 0);
	for (uint64_t i = 0; i < count; i++) {
		MUST(post_send(qp, mr, 0, size, i));
		if (i >= 8)
			MUST_COMPLETE(cq, &wc);
	}
	for (uint64_t i = 0; i < (count < 8 ? count : 8); i++)
		MUST_COMPLETE(cq, &wc);
	puts("all sends completed");
	return 0;
}
