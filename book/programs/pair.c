/* Two processes with a connected queue pair each: a message there, a message back.
 *
 *   pair            the server
 *   pair ADDRESS    the client
 */
#include "hour.h"

static void say(struct ibv_qp *qp, struct ibv_mr *mr, const char *text)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = strlen(text) + 1, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};

	strcpy(mr->addr, text);
	MUST(ibv_post_send(qp, &wr, &bad));
}

/* ANCHOR: both */
/* Waits for a send request and a receive, whose completions come in either order. Returns that of the receive. */
static struct ibv_wc both_completions(struct ibv_cq *cq)
{
	struct ibv_wc first = next_completion(cq), second = next_completion(cq);

	return first.opcode & IBV_WC_RECV ? first : second;
}
/* ANCHOR_END: both */

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	static char outgoing[64], incoming[64];
	struct ibv_wc wc;

	/* ANCHOR: objects */
	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, NULL, 0));
	struct ibv_mr *out = MAKE(ibv_reg_mr(pd, outgoing, sizeof outgoing, 0));
	struct ibv_mr *in = MAKE(ibv_reg_mr(pd, incoming, sizeof incoming, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	/* ANCHOR_END: objects */

	/* ANCHOR: connect */
	int peer = meet(server);
	struct card ours = {.qpn = qp->qp_num, .psn = server ? 100 : 200}, theirs;

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	to_init(qp, 0);
	post_receive(qp, in);
	exchange(peer, &ours, &theirs, sizeof ours);
	to_rts(qp, &ours, &theirs);
	wait_for_each_other(peer);
	/* ANCHOR_END: connect */

	/* ANCHOR: talk */
	if (server) {
		say(qp, out, "a ping from the client");
		wc = both_completions(cq);
		printf("client: received \"%s\" (%u bytes)\n", incoming, wc.byte_len);
	} else {
		wc = next_completion(cq);
		printf("server: received \"%s\" (%u bytes)\n", incoming, wc.byte_len);
		say(qp, out, "a pong from the server");
		next_completion(cq);
	}
	/* ANCHOR_END: talk */

	/* ANCHOR: end */
	wait_for_each_other(peer);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(in);
	ibv_dereg_mr(out);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
	/* ANCHOR_END: end */
}
