/* user_ids: two processes with the given user ids send each other messages.
 *
 *   user_ids RUID EUID           the server
 *   user_ids RUID EUID HOST      the client
 */
#include "common.h"

#define PORT 18515
#define MESSAGES 200
#define LENGTH 3000
#define DEPTH 4

int main(int argc, char **argv)
{
	static char memory[2 * LENGTH];
	struct ibv_wc wc;
	bool sent = false, received = false;

	alarm(ALARM_SECONDS);
	if (argc < 3)
		fail("usage: user_ids RUID EUID [HOST]");
	if (setreuid((uid_t)atoi(argv[1]), (uid_t)atoi(argv[2])))
		fail("setreuid: %s", strerror(errno));

	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4 * DEPTH, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, DEPTH);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	struct path path = default_path(&device);
	struct address mine = {.qpn = qp->qp_num, .psn = 7, .gid = device.gid}, theirs;
	int fd = meet(argc > 3 ? argv[3] : NULL, PORT);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, mine.psn));
	MUST(post_recv(qp, mr, LENGTH, LENGTH, 0));
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side has gone");
	for (uint64_t i = 0; i < MESSAGES; i++) {
		fill(memory, LENGTH, i);
		MUST(post_send(qp, mr, 0, LENGTH, 1));
		for (sent = received = false; !sent || !received;) {
			MUST_COMPLETE(cq, &wc);
			if (wc.wr_id == 1)
				sent = true;
			else
				received = true;
		}
		check(memory + LENGTH, LENGTH, i, "message");
		MUST(post_recv(qp, mr, LENGTH, LENGTH, 0));
		/* Only now may the other send the next one. */
		if (!exchange(fd, &mine, &theirs, sizeof mine))
			fail("the other side has gone");
	}
	puts("all messages were right");
	return 0;
}
