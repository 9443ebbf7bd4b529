/* A responder that its peer, QP 0x123 at ADDRESS, may write to: `one_responder ADDRESS`. It prints its queue pair's number and the first PSN
 * that it expects, and goes on until it is killed.
 */
#include "../common.h"
#include <arpa/inet.h>

int main(int argc, char **argv)
{
	struct address peer = {.qpn = 0x123, .psn = 0x1000};

	alarm(ALARM_SECONDS);
	memset(peer.gid.raw + 10, 0xff, 2);
	if (argc != 2 || inet_pton(AF_INET, argv[1], peer.gid.raw + 12) != 1)
		fail("usage: %s ADDRESS", argv[0]);
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, make_cq(&device, 16, NULL), NULL, 16);

	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, &device, &path, &peer));
	MUST(to_rts(qp, &path, 0));
	printf("responds %u %u\n", qp->qp_num, peer.psn);
	fflush(stdout);
	for (;;)
		pause();
}
