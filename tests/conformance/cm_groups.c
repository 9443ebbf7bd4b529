/* man rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast. */
#include "cm.h"

static struct rdma_event_channel *channel;
static unsigned char letter[40 + 64];

static struct sockaddr_storage group_of(int number)
{
	char ip[INET6_ADDRSTRLEN];

	snprintf(ip, sizeof ip, "239.7.7.%d", number);
	return address(ip, 0);
}

static int join(struct rdma_cm_id *id, int number, void *context)
{
	struct sockaddr_storage group = group_of(number);

	return rdma_join_multicast(id, (struct sockaddr *)&group, context);
}

static int join_ex(struct rdma_cm_id *id, int number, uint32_t mask, uint32_t flags)
{
	struct sockaddr_storage group = group_of(number);
	struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = mask, .join_flags = flags, .addr = (struct sockaddr *)&group};

	return rdma_join_multicast_ex(id, &attr, NULL);
}

static int leave(struct rdma_cm_id *id, int number)
{
	struct sockaddr_storage group = group_of(number);

	return rdma_leave_multicast(id, (struct sockaddr *)&group);
}

/* Whether a QP is attached to a group: detaching succeeds once. */
static bool was_attached(struct rdma_cm_id *id, const struct heard *joined)
{
	return ibv_detach_mcast(id->qp, &joined->event.param.ud.ah_attr.grh.dgid, 0) == 0;
}

/* A datagram to the group from another QP of the device. */
static void send_to(struct rdma_cm_id *id, const struct heard *joined, const char *text)
{
	struct ibv_ah_attr attr = joined->event.param.ud.ah_attr;
	struct ibv_ah *ah = MAKE(ibv_create_ah(id->pd, &attr));
	char bytes[16];

	strncpy(bytes, text, sizeof bytes);
	struct ibv_mr *mr = MAKE(rdma_reg_msgs(id, bytes, sizeof bytes));

	MUST(rdma_post_ud_send(id, NULL, bytes, sizeof bytes, mr, IBV_SEND_SIGNALED, ah, joined->event.param.ud.qp_num));
	next(id->send_cq);
	MUST(rdma_dereg_mr(mr));
	MUST(ibv_destroy_ah(ah));
}

static void refused(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP), *tcp = bound(channel, RDMA_PS_TCP);

	is_refused(join(id, 1, NULL), EINVAL, "rdma_join_multicast(3): an id without a device: EINVAL");
	is_refused(join(tcp, 1, NULL), EINVAL, "rdma_join_multicast(3): an id of connections: EINVAL");
	MUST(bind_to(id, here, 0));
	is_refused(join_ex(id, 1, RDMA_CM_JOIN_MC_ATTR_ADDRESS, 0), EINVAL, "rdma_join_multicast_ex(3): join_flags that comp_mask doesn't name: EINVAL");
	is_refused(join_ex(id, 1, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, 0), EINVAL, "rdma_join_multicast_ex(3): an address that comp_mask doesn't name: EINVAL");
	is_refused(join_ex(id, 1, RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS | RDMA_CM_JOIN_MC_ATTR_RESERVED, 0), EOPNOTSUPP,
		   "rdma_join_multicast_ex(3): a comp_mask that doesn't exist: EOPNOTSUPP");
	is_refused(join_ex(id, 1, RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_RESERVED), EINVAL,
		   "rdma_join_multicast_ex(3): join_flags that don't exist: EINVAL");
	is_refused(leave(id, 1), EADDRNOTAVAIL, "rdma_leave_multicast(3): a group that wasn't joined: EADDRNOTAVAIL");
	MUST(rdma_destroy_id(tcp));
	MUST(rdma_destroy_id(id));
}

static void joined(void)
{
	struct rdma_cm_id *id = bound(channel, RDMA_PS_UDP), *sender = bound(channel, RDMA_PS_UDP);
	struct heard heard;
	int context;

	add_qp(id);
	add_qp(sender);
	struct ibv_mr *mr = MAKE(rdma_reg_msgs(id, letter, sizeof letter));

	MUST(rdma_post_recv(id, NULL, letter, sizeof letter, mr));
	is_done(join(id, 2, &context), "rdma_join_multicast(3): 0 on success");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_MULTICAST_JOIN, 0, "rdma_get_cm_event(3): MULTICAST_JOIN: the group is joined");
	check(heard.event.param.ud.private_data == &context, "rdma_join_multicast(3): the event's private_data is the context");
	is(heard.event.param.ud.qp_num, 0xffffff, "rdma_get_cm_event(3): MULTICAST_JOIN: qp_num is that of groups");
	is(heard.event.param.ud.qkey, RDMA_UDP_QKEY, "rdma_get_cm_event(3): MULTICAST_JOIN: qkey is what to send with");
	send_to(sender, &heard, "to the group");
	is_status(next(id->recv_cq), IBV_WC_SUCCESS, "rdma_join_multicast(3): the QP is attached: what is sent to the group comes");
	check(!strcmp((char *)letter + 40, "to the group"), "rdma_get_cm_event(3): MULTICAST_JOIN: ah_attr leads to the group");
	is_done(leave(id, 2), "rdma_leave_multicast(3): 0 on success");
	check(!was_attached(id, &heard), "rdma_leave_multicast(3): the QP is detached");
	is_refused(leave(id, 2), EADDRNOTAVAIL, "rdma_leave_multicast(3): a group that was left: EADDRNOTAVAIL");

	is_done(join_ex(id, 3, RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER),
		"rdma_join_multicast_ex(3): SENDONLY_FULLMEMBER: 0");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_MULTICAST_JOIN, 0, "rdma_join_multicast_ex(3): SENDONLY_FULLMEMBER: MULTICAST_JOIN");
	check(!was_attached(id, &heard), "rdma_join_multicast_ex(3): SENDONLY_FULLMEMBER: the QP isn't attached");
	is_done(leave(id, 3), "rdma_leave_multicast(3): a group that is sent to only: 0");
	is_done(join_ex(id, 4, RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_MC_JOIN_FLAG_FULLMEMBER),
		"rdma_join_multicast_ex(3): FULLMEMBER: 0");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_MULTICAST_JOIN, 0, "rdma_join_multicast_ex(3): FULLMEMBER: MULTICAST_JOIN");
	check(was_attached(id, &heard), "rdma_join_multicast_ex(3): FULLMEMBER: the QP is attached");

	/* Before the event is fetched the join isn't done. */
	MUST(join(id, 5, NULL));
	is_done(leave(id, 5), "rdma_leave_multicast(3): before the group is joined: 0");
	check(!readable(channel->fd, QUIET_MS), "rdma_leave_multicast(3): the join is cancelled: no event comes");
	MUST(rdma_dereg_mr(mr));
	rdma_destroy_qp(sender);
	MUST(rdma_destroy_id(sender));
	rdma_destroy_qp(id);
	is_done(rdma_destroy_id(id), "rdma_leave_multicast(3): destruction leaves the groups");
}

/* Without a QP the program attaches its own; and with one that can't be attached the join fails. */
static void without_and_with_a_wrong_qp(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP);
	struct sockaddr_storage group = group_of(6), from = address(here, 0);
	struct heard heard;

	is_done(rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&group, RESOLVE_MS),
		"rdma_resolve_addr(3): the address of a group, with a source: 0");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_ADDR_RESOLVED, 0, "rdma_resolve_addr(3): the address of a group: ADDR_RESOLVED");
	is_done(join(id, 6, NULL), "rdma_join_multicast(3): an id with a resolved address: 0");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_MULTICAST_JOIN, 0, "rdma_join_multicast(3): an id without a QP: MULTICAST_JOIN");
	add_qp(id);
	is(ibv_attach_mcast(id->qp, &heard.event.param.ud.ah_attr.grh.dgid, 0), 0,
	   "rdma_join_multicast(3): without a QP the program attaches its own");
	MUST(ibv_detach_mcast(id->qp, &heard.event.param.ud.ah_attr.grh.dgid, 0));
	rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));

	id = bound(channel, RDMA_PS_UDP);
	struct ibv_cq *cq = MAKE(ibv_create_cq(id->verbs, 4, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *wrong = MAKE(ibv_create_qp(id->pd, &init));

	id->qp = wrong;
	MUST(join(id, 7, NULL));
	heard = hear(channel);
	check(heard.came && heard.event.event == RDMA_CM_EVENT_MULTICAST_ERROR && heard.event.status,
	      "rdma_get_cm_event(3): MULTICAST_ERROR: the QP can't be attached, status contains the error");
	id->qp = NULL;
	MUST(rdma_destroy_id(id));
	MUST(ibv_destroy_qp(wrong));
	MUST(ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	channel = MAKE(rdma_create_event_channel());
	refused();
	joined();
	without_and_with_a_wrong_qp();
	rdma_destroy_event_channel(channel);
	return end();
}
