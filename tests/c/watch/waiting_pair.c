/* waiting_pair: two processes whose queue pairs are connected and wait for ever, or talk.
 *
 * mutual: each has posted a receive and waits for a message of the other.
 * unposted: the client sends, and the server has no receive.
 * talking: the client sends a message each millisecond, which the server receives.
 * hasty: the same without a pause.
 */
#include "common.h"

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 3)
		fail("usage: waiting_pair mutual|unposted|talking|hasty [SERVER]");

	bool mutual = !strcmp(argv[1], "mutual"), hasty = !strcmp(argv[1], "hasty");
	bool talking = hasty || !strcmp(argv[1], "talking");
	const char *host = argc == 3 ? argv[2] : NULL;
	char ready = 1, other;
	bool told_so = false;

	alarm(ALARM_SECONDS);
	struct device device = open_device(1);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(device.context));
	struct ibv_cq *cq = make_cq(&device, 64, channel);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 16);
	struct path path = default_path(&device);
	char *memory = MAKE(calloc(1, 4096));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, 4096, ALL_ACCESS));
	struct address mine = {.qpn = qp->qp_num, .gid = device.gid}, theirs;
	struct ibv_cq *told;
	void *context;

	MUST(to_init(qp, ALL_ACCESS));
	for (int i = 0; i < (mutual ? 1 : talking ? 16 : 0); i++)
		MUST(post_recv(qp, mr, 0, 4096, 1));
	int fd = meet(host, 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
	while (talking) {
		struct ibv_wc wc;

		if (host)
			MUST(post_send(qp, mr, 0, 64, 42));
		if (!wait_wc(cq, &wc, 60000))
			fail("no message in a minute");
		/* After a failure, a tracer of this process may still read its messages. */
		while (wc.status)
			pause();
		if (!told_so) {
			printf("queue pair 0x%06x talks\n", qp->qp_num);
			fflush(stdout);
			told_so = true;
		}
		if (!host)
			MUST(post_recv(qp, mr, 0, 4096, 1));
		else if (!hasty)
			usleep(1000);
	}
	MUST(ibv_req_notify_cq(cq, 0));
	if (!mutual && host)
		MUST(post_send(qp, mr, 0, 64, 42));
	printf("queue pair 0x%06x waits\n", qp->qp_num);
	fflush(stdout);
	ibv_get_cq_event(channel, &told, &context);
	return 1;
}
