/* Datagrams: one queue pair reaches any other, and the receiver answers the sender.
 *
 *   datagrams            the server
 *   datagrams ADDRESS    the client
 */
#include "hour.h"

#define QKEY 0x1234

/* ANCHOR: ready */
static void make_ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}
/* ANCHOR_END: ready */

/* ANCHOR: send */
static void send_datagram(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_ah *ah, uint32_t qpn, const char *text)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = strlen(text) + 1, .lkey = mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY},
	};

	strcpy(mr->addr, text);
	carry_out(qp, &wr);
}
/* ANCHOR_END: send */

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	/* ANCHOR: grh */
	static char outgoing[64];
	static struct {
		struct ibv_grh grh;
		char text[64];
	} incoming;
	/* ANCHOR_END: grh */

	struct ibv_context *context = open_first_device();
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(context));
	struct ibv_cq *cq = MAKE(ibv_create_cq(context, 32, NULL, NULL, 0));
	struct ibv_mr *out = MAKE(ibv_reg_mr(pd, outgoing, sizeof outgoing, 0));
	struct ibv_mr *in = MAKE(ibv_reg_mr(pd, &incoming, sizeof incoming, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_UD);
	struct ibv_ah *ah;

	make_ready(qp);
	post_receive(qp, in);

	int peer = meet(server);
	struct card ours = {.qpn = qp->qp_num}, theirs;

	MUST(ibv_query_gid(context, PORT, GID_INDEX, &ours.gid));
	exchange(peer, &ours, &theirs, sizeof ours);

	/* ANCHOR: talk */
	if (server) {
		struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT};

		attr.grh.dgid = theirs.gid;
		attr.grh.sgid_index = GID_INDEX;
		attr.grh.hop_limit = 64;
		ah = MAKE(ibv_create_ah(pd, &attr));
		send_datagram(qp, out, ah, theirs.qpn, "is anybody there?");
		next_completion(cq);
		printf("client: received \"%s\"\n", incoming.text);
	} else {
		struct ibv_wc wc = next_completion(cq);

		printf("server: received \"%s\", %u bytes with the header\n", incoming.text, wc.byte_len);
		ah = MAKE(ibv_create_ah_from_wc(pd, &wc, &incoming.grh, PORT));
		send_datagram(qp, out, ah, wc.src_qp, "yes");
	}
	/* ANCHOR_END: talk */

	wait_for_each_other(peer);
	ibv_destroy_ah(ah);
	ibv_destroy_qp(qp);
	ibv_dereg_mr(in);
	ibv_dereg_mr(out);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
