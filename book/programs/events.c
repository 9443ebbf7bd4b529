/* The server sleeps until messages come, instead of polling.
 *
 *   events            the server
 *   events ADDRESS    the client
 */
#include "hour.h"
#include <poll.h>

#define MESSAGES 3

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	static char memory[16];

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	/* ANCHOR: channel */
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, channel, 0));

	MUST(ibv_req_notify_cq(cq, 0));
	/* ANCHOR_END: channel */
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	int peer = meet(server);
	struct card ours = {.qpn = qp->qp_num, .psn = server ? 100 : 200}, theirs;

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	to_init(qp, 0);
	for (int i = 0; i < MESSAGES; i++)
		post_receive(qp, mr);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);

	if (server) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

		for (int i = 0; i < MESSAGES; i++)
			carry_out(qp, &wr);
	} else {
		/* ANCHOR: sleep */
		int received = 0;

		while (received < MESSAGES) {
			struct pollfd sleeper = {.fd = channel->fd, .events = POLLIN};
			struct ibv_cq *which;
			void *context_of_cq;
			struct ibv_wc wc;

			if (poll(&sleeper, 1, 10000) != 1)
				failed("poll", ETIMEDOUT);
			MUST(ibv_get_cq_event(channel, &which, &context_of_cq));
			ibv_ack_cq_events(which, 1);
			MUST(ibv_req_notify_cq(which, 0));
			while (ibv_poll_cq(which, 1, &wc) > 0) {
				if (wc.status != IBV_WC_SUCCESS)
					failed(ibv_wc_status_str(wc.status), EIO);
				received++;
			}
		}
		printf("server: woken, and received %d messages\n", received);
		/* ANCHOR_END: sleep */
	}

	wait_for_each_other(peer);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(channel);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
