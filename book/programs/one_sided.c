/* The client reads and writes the server's memory; the server does nothing until it is notified.
 *
 *   one_sided            the server
 *   one_sided ADDRESS    the client
 */
#include "hour.h"

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	static char memory[64];
	struct ibv_wc wc;

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, NULL, 0));
	/* ANCHOR: permit */
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, access));
	/* ANCHOR_END: permit */
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);

	int peer = meet(server);
	/* ANCHOR: card */
	struct card theirs, ours = {
		.qpn = qp->qp_num,
		.psn = server ? 100 : 200,
		.address = (uintptr_t)memory,
		.rkey = mr->rkey,
	};
	/* ANCHOR_END: card */

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	if (!server)
		strcpy(memory, "what the server wrote");
	to_init(qp, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	post_receive(qp, mr);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);

	/* ANCHOR: requests */
	if (server) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.wr.rdma = {.remote_addr = theirs.address, .rkey = theirs.rkey},
		};

		wr.opcode = IBV_WR_RDMA_READ;
		carry_out(qp, &wr);
		printf("client: read \"%s\"\n", memory);

		strcpy(memory, "what the client wrote");
		wr.opcode = IBV_WR_RDMA_WRITE;
		carry_out(qp, &wr);

		sge.length = 0;
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htonl(7);
		carry_out(qp, &wr);
	} else {
		wc = next_completion(cq);
		printf("server: notified with %u, finds \"%s\"\n", ntohl(wc.imm_data), memory);
	}
	/* ANCHOR_END: requests */

	wait_for_each_other(peer);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
