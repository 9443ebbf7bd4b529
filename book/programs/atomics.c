/* The client counts in the server's memory, with atomic operations.
 *
 *   atomics            the server
 *   atomics ADDRESS    the client
 */
#include "hour.h"

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	/* ANCHOR: word */
	static uint64_t word;
	/* ANCHOR_END: word */

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, NULL, 0));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, &word, sizeof word, access));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	int peer = meet(server);
	struct card theirs, ours = {
		.qpn = qp->qp_num,
		.psn = server ? 100 : 200,
		.address = (uintptr_t)&word,
		.rkey = mr->rkey,
	};

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	if (!server)
		word = 40;
	to_init(qp, IBV_ACCESS_REMOTE_ATOMIC);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);

	/* ANCHOR: requests */
	if (server) {
		struct ibv_sge sge = {.addr = (uintptr_t)&word, .length = sizeof word, .lkey = mr->lkey};
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.wr.atomic = {.remote_addr = theirs.address, .rkey = theirs.rkey},
		};

		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.compare_add = 2;
		carry_out(qp, &wr);
		printf("client: added 2 to %lu\n", (unsigned long)word);

		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = 42;
		wr.wr.atomic.swap = 100;
		carry_out(qp, &wr);
		printf("client: found %lu, so it is 100 now\n", (unsigned long)word);

		carry_out(qp, &wr);
		printf("client: found %lu, so nothing was swapped\n", (unsigned long)word);
	}
	wait_for_each_other(peer);
	if (!server)
		printf("server: the word is %lu\n", (unsigned long)word);
	/* ANCHOR_END: requests */

	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
