/* Multicast groups: ibv_attach_mcast, ibv_detach_mcast. */
#include "conform.h"

static struct buffer buffer;

int main(int argc, char **argv)
{
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 7, 8, 9}}, single;
	struct ibv_cq *cq, *other_cq;
	struct ibv_qp *one, *two, *rc, *sender;
	struct path path = PATH;
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	struct ibv_wc wc = {0};
	int result;

	begin(argc, argv);
	buffer = make_buffer(16384, ALL);
	cq = make_cq(32);
	other_cq = make_cq(32);
	one = make_qp(IBV_QPT_UD, cq);
	two = make_qp(IBV_QPT_UD, other_cq);
	sender = make_qp(IBV_QPT_UD, cq);
	rc = make_qp(IBV_QPT_RC, cq);
	bring(one, IBV_QPS_RTS, &path, 0);
	bring(two, IBV_QPS_RTS, &path, 0);
	bring(sender, IBV_QPS_RTS, &path, 0);
	/* IPv4 groups are sent from IPv4 addresses, and IPv6 groups from those. */
	if (gid.raw[10] != 0xff || gid.raw[11] != 0xff)
		group = (union ibv_gid){.raw = {0xff, 0x0e, [15] = 77}};
	single = gid;
	result = ibv_attach_mcast(one, &group, 0);
	if (result == EOPNOTSUPP || result == ENOSYS || !caps.max_mcast_grp) {
		skip("the device has no multicast groups", "ibv_attach_mcast(3): 0 on success");
		return end();
	}
	is(result, 0, "ibv_attach_mcast(3): 0 on success");
	is(ibv_attach_mcast(rc, &group, 0), EINVAL, "ibv_attach_mcast(3): a QP other than UD: EINVAL");
	is(ibv_attach_mcast(one, &single, 0), EINVAL, "ibv_attach_mcast(3): a GID that isn't a multicast GID: EINVAL");
	is(ibv_attach_mcast(one, &group, 0), 0, "ibv_attach_mcast(3): a QP can be attached again");

	attr = ah_attr();
	attr.grh.dgid = group;
	ah = ibv_create_ah(pd, &attr);
	check(ah != NULL, "ibv_create_ah(3): an AH that leads to a group");
	if (!ah)
		return end();
	fill(buffer.mem, 100, 4);
	sge = piece(&buffer, 0, 100);
	wr = request(IBV_WR_SEND, &sge);
	wr.send_flags = 0;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = QKEY;
	for (int i = 0; i < 2; i++)
		MUST(post_recv(one, &buffer, 4096, 1000, 1));
	MUST(post_recv(two, &buffer, 8192, 1000, 2));
	MUST(post(sender, &wr));
	is_status(poll_for(cq, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_attach_mcast(3): a QP attached receives what is sent to the group");
	check(wc.qp_num == one->qp_num && wc.src_qp == sender->qp_num && wc.byte_len == 140 && filled(buffer.mem + 4136, 100, 4),
	      "ibv_attach_mcast(3): with its bytes, behind a GRH");
	check(wc.wc_flags & IBV_WC_GRH, "ibv_attach_mcast(3): IBV_WC_GRH is set");
	check(silent(cq), "ibv_attach_mcast(3): a QP attached twice receives a single copy");
	check(silent(other_cq), "ibv_attach_mcast(3): a QP that isn't attached receives nothing");
	is(ibv_attach_mcast(two, &group, 0), 0, "ibv_attach_mcast(3): a group can have several QPs");
	MUST(post_recv(one, &buffer, 4096, 1000, 1));
	MUST(post(sender, &wr));
	is_status(next(cq), IBV_WC_SUCCESS, "ibv_attach_mcast(3): the first of two QPs receives a copy");
	is_status(next(other_cq), IBV_WC_SUCCESS, "ibv_attach_mcast(3): the second of two QPs receives a copy");
	is(ibv_destroy_qp(two), EBUSY, "ibv_destroy_qp(3): a QP attached to a group isn't destroyed: EBUSY");
	is(ibv_detach_mcast(two, &group, 0), 0, "ibv_detach_mcast(3): 0 on success");
	is(ibv_detach_mcast(two, &group, 0), EINVAL, "ibv_detach_mcast(3): a QP that isn't attached: EINVAL");
	MUST(post_recv(two, &buffer, 8192, 1000, 2));
	MUST(post(sender, &wr));
	next(cq);
	check(silent(other_cq), "ibv_detach_mcast(3): a QP that is detached receives nothing more");
	is(ibv_destroy_qp(two), 0, "ibv_detach_mcast(3): it can be destroyed");
	while (ibv_detach_mcast(one, &group, 0) == 0)
		;
	is(ibv_destroy_qp(one), 0, "ibv_detach_mcast(3): a QP attached twice is free at last");

	struct ibv_qp_init_attr_ex silent_attr = {
		.send_cq = cq,
		.recv_cq = other_cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	struct ibv_qp *deaf = ibv_create_qp_ex(ctx, &silent_attr);

	if (deaf) {
		bring(deaf, IBV_QPS_RTS, &path, 0);
		MUST(ibv_attach_mcast(deaf, &group, 0));
		MUST(post_recv(deaf, &buffer, 4096, 1000, 1));
		wr.send_flags = IBV_SEND_SIGNALED;
		MUST(post(deaf, &wr));
		next(cq);
		check(silent(other_cq), "ibv_create_qp_ex(3): BLOCK_SELF_MCAST_LB: a QP doesn't receive what it sends to its group");
		MUST(ibv_detach_mcast(deaf, &group, 0));
		MUST(ibv_destroy_qp(deaf));
	} else {
		skip("the device has no such flag", "ibv_create_qp_ex(3): BLOCK_SELF_MCAST_LB: a QP doesn't receive what it sends to its group");
	}
	MUST(ibv_destroy_qp(sender));
	MUST(ibv_destroy_qp(rc));
	MUST(ibv_destroy_ah(ah));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(other_cq));
	free_buffer(&buffer);
	return end();
}
