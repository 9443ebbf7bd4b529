/* Requests that are posted by calls, and completions that are read in batches, field by field.
 *
 *   polling            the server
 *   polling ADDRESS    the client
 */
#include "hour.h"

#define MESSAGES 4

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	static char memory[64];

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	/* ANCHOR: create */
	struct ibv_cq_init_attr_ex fields = {.cqe = 32, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM};
	struct ibv_cq_ex *cq = MAKE(ibv_create_cq_ex(context, &fields));
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *qp = MAKE(ibv_create_qp_ex(context, &init));
	/* ANCHOR_END: create */

	int peer = meet(server);
	struct card ours = {.qpn = qp->qp_num, .psn = server ? 100 : 200}, theirs;

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	to_init(qp, 0);
	for (int i = 0; i < MESSAGES; i++)
		post_receive(qp, mr);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);

	/* ANCHOR: post */
	if (server) {
		struct ibv_qp_ex *poster = ibv_qp_to_qp_ex(qp);

		ibv_wr_start(poster);
		for (int i = 0; i < MESSAGES; i++) {
			poster->wr_id = i;
			poster->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send_imm(poster, htonl(i));
			ibv_wr_set_sge(poster, mr->lkey, (uintptr_t)memory, 8 * (i + 1));
		}
		MUST(ibv_wr_complete(poster));
	}
	/* ANCHOR_END: post */

	/* ANCHOR: poll */
	for (int seen = 0; seen < MESSAGES;) {
		struct ibv_poll_cq_attr attr = {0};
		int result = ibv_start_poll(cq, &attr);

		if (result == ENOENT)
			continue;
		if (result)
			failed("ibv_start_poll", result);
		do {
			if (cq->status != IBV_WC_SUCCESS)
				failed(ibv_wc_status_str(cq->status), EIO);
			if (ibv_wc_read_opcode(cq) == IBV_WC_RECV)
				printf("server: message %u has %u bytes\n", ntohl(ibv_wc_read_imm_data(cq)),
					ibv_wc_read_byte_len(cq));
			else
				printf("client: request %lu is done\n", (unsigned long)cq->wr_id);
			seen++;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	/* ANCHOR_END: poll */

	wait_for_each_other(peer);
	ibv_destroy_qp(qp);
	ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
