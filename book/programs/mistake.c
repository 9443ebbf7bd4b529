/* The client writes a byte too far, and its request fails.
 *
 *   mistake            the server
 *   mistake ADDRESS    the client
 */
#include "hour.h"

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	static char memory[64];
	/* ANCHOR: access */
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	/* ANCHOR_END: access */

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, NULL, 0));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, access));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	int peer = meet(server);
	struct card theirs, ours = {
		.qpn = qp->qp_num,
		.psn = server ? 100 : 200,
		.address = (uintptr_t)memory,
		.rkey = mr->rkey,
	};

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	to_init(qp, IBV_ACCESS_REMOTE_WRITE);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);

	/* ANCHOR: mistake */
	if (server) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
		struct ibv_send_wr *bad, wr = {
			.wr_id = 5,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = theirs.address + 1, .rkey = theirs.rkey},
		};
		struct ibv_wc wc;

		MUST(ibv_post_send(qp, &wr, &bad));
		while (ibv_poll_cq(cq, 1, &wc) == 0)
			;
		printf("client: %s, vendor_err 0x%x\n", ibv_wc_status_str(wc.status), wc.vendor_err);
	}
	/* ANCHOR_END: mistake */

	wait_for_each_other(peer);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
