/* Two sides that connect, each a process, and what each receives from the other: man rdma_connect, rdma_accept, rdma_reject,
 * rdma_establish, rdma_disconnect, rdma_notify, rdma_init_qp_attr, rdma_set_local_ece, rdma_get_remote_ece, rdma_get_cm_event.
 *
 * Alone the program is both: its child is the passive side. `-l`: the passive side of another host. `-s ADDRESS`: the active
 * side, with the passive side at that address. Both follow the same list of steps.
 */
#include "cm.h"
#include <sys/wait.h>

#define AT 7471

/* A side's own values, which it sends in its private data. */
struct self {
	char greeting[8];
	uint32_t qpn;
	uint16_t src_port;
} __attribute__((packed));

/* One side. */
static struct rdma_event_channel *channel;
static struct rdma_cm_id *tcp, *udp;
/* Of the active side: where the other is. */
static const char *peer;

static struct self self_of(struct rdma_cm_id *id, const char *greeting)
{
	struct self self = {.qpn = id->qp ? id->qp->qp_num : 0, .src_port = rdma_get_src_port(id)};

	strncpy(self.greeting, greeting, sizeof self.greeting);
	return self;
}

static struct ibv_qp_attr asked(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr;
}

static void forget(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));
}

/* A request of the next step may come before the last event of a step. */
static struct heard early;

static struct heard hear_answer(void)
{
	struct heard heard = hear(channel);

	if (heard.came && heard.event.event == RDMA_CM_EVENT_CONNECT_REQUEST && !early.came) {
		early = heard;
		heard = hear(channel);
	}
	return heard;
}

static struct heard hear_request(void)
{
	struct heard heard = early.came ? early : hear(channel);

	early.came = false;
	return heard;
}

/* The next request of a listener. */
static struct heard request_at(struct rdma_cm_id *at)
{
	struct heard heard = hear_request();

	if (!heard.came || heard.event.event != RDMA_CM_EVENT_CONNECT_REQUEST || heard.event.listen_id != at)
		fail("%s came, not a request", heard.came ? rdma_event_str(heard.event.event) : "nothing");
	return heard;
}

static struct rdma_cm_id *active(enum rdma_port_space space, uint16_t port_number)
{
	return routed(channel, space, peer, port_number);
}

static void receive(struct rdma_cm_id *id, struct ibv_mr **mr, unsigned char *bytes, size_t size)
{
	*mr = MAKE(rdma_reg_msgs(id, bytes, size));
	MUST(rdma_post_recv(id, bytes, bytes, size, *mr));
}

/* A whole connection, with all values that each side sends. */
static unsigned char inbox[256];

static void whole_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct rdma_conn_param param = {.responder_resources = 8, .initiator_depth = 4, .flow_control = 1, .retry_count = 6,
					.rnr_retry_count = 5, .qp_num = 0x777777, .srq = 1};
	struct ibv_mr *mr, *outbox;
	uint8_t timeout = 14;
	struct heard heard;
	struct ibv_wc wc;

	MUST(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout));
	add_qp(id);
	receive(id, &mr, inbox, sizeof inbox);
	struct self self = self_of(id, "question"), far;

	param.private_data = &self;
	param.private_data_len = 57;
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): 57 bytes of private data: EINVAL");
	param.private_data_len = sizeof self;
	param.responder_resources = 254;
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): more responder resources than the device has: EINVAL");
	param.responder_resources = 8;
	param.initiator_depth = 254;
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): more initiator depth than the device has: EINVAL");
	param.initiator_depth = 4;
	is_done(rdma_connect(id, &param), "rdma_connect(3): 0 on success");
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): an id that is connecting: EINVAL");

	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_get_cm_event(3): ESTABLISHED on the active side, when the peer has accepted");
	memcpy(&far, heard.data, sizeof far);
	struct rdma_conn_param *said_to_us = &heard.event.param.conn;

	check(said(&heard, &far, sizeof far) && !memcmp(far.greeting, "answer", 7),
	      "rdma_accept(3): the private data comes to the active side, zeros behind it");
	is(said_to_us->responder_resources, 2, "rdma_get_cm_event(3): ESTABLISHED: responder_resources is the peer's initiator_depth");
	is(said_to_us->initiator_depth, 4, "rdma_get_cm_event(3): ESTABLISHED: initiator_depth is the peer's responder_resources");
	is(said_to_us->rnr_retry_count, 3, "rdma_get_cm_event(3): ESTABLISHED: rnr_retry_count is the peer's");
	is(said_to_us->flow_control, 1, "rdma_get_cm_event(3): ESTABLISHED: flow_control is the peer's");
	is(said_to_us->srq, 0, "rdma_accept(3): srq is that of the id's QP");
	is(said_to_us->qp_num, far.qpn, "rdma_get_cm_event(3): ESTABLISHED: qp_num is the peer's");
	struct ibv_qp_attr attr = asked(id->qp);

	is(attr.qp_state, IBV_QPS_RTS, "rdma_create_qp(3): the active side's QP is led to RTS");
	is(attr.dest_qp_num, far.qpn, "rdma_create_qp(3): the active side's QP has the peer's number");
	is(attr.retry_cnt, 6, "rdma_connect(3): retry_count is the QP's");
	is(attr.rnr_retry, 3, "rdma_accept(3): rnr_retry_count is that of the peer's QP");
	is(attr.max_rd_atomic, 4, "rdma_accept(3): responder_resources bound what the peer's QP has under way");
	is(attr.max_dest_rd_atomic, 2, "rdma_accept(3): initiator_depth bounds what the peer's QP takes");
	is(attr.min_rnr_timer, 0, "rdma_connect(3): the minimum RNR NAK timer is 0");
	is(attr.timeout, 14, "rdma_set_option(3): ID_ACK_TIMEOUT is the QP's timeout");

	unsigned char text[16] = "hello";

	outbox = MAKE(rdma_reg_msgs(id, text, sizeof text));
	MUST(rdma_post_send(id, NULL, text, sizeof text, outbox, IBV_SEND_SIGNALED));
	is_status(next(id->send_cq), IBV_WC_SUCCESS, "rdma_connect(3): afterwards messages can be sent");
	is_status(next(id->recv_cq), IBV_WC_SUCCESS, "rdma_accept(3): afterwards messages can be sent");
	MUST(rdma_post_recv(id, NULL, inbox, sizeof inbox, mr));
	is_done(rdma_disconnect(id), "rdma_disconnect(3): 0 on success");
	is(asked(id->qp).qp_state, IBV_QPS_ERR, "rdma_disconnect(3): the QP is in ERR");
	is_status(poll_for(id->recv_cq, &wc, PATIENCE_MS), IBV_WC_WR_FLUSH_ERR, "rdma_disconnect(3): posted requests are flushed");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_DISCONNECTED, 0, "rdma_disconnect(3): DISCONNECTED on the side that disconnects");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, "rdma_get_cm_event(3): TIMEWAIT_EXIT on the active side");
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): an id that was connected: EINVAL");
	is_done(rdma_dereg_mr(mr), "rdma_dereg_mr(3): 0 on success");
	MUST(rdma_dereg_mr(outbox));
	forget(id);
}

static void whole_passive(void)
{
	struct heard heard = hear_request();

	is_event(&heard, RDMA_CM_EVENT_CONNECT_REQUEST, 0, "rdma_get_cm_event(3): CONNECT_REQUEST on the passive side");
	if (!heard.came)
		fail("no request came");
	struct rdma_cm_id *id = heard.event.id;
	struct rdma_conn_param *asked_of_us = &heard.event.param.conn;
	struct self far, self;
	struct ibv_mr *mr, *outbox;

	check(heard.event.listen_id == tcp, "rdma_get_cm_event(3): CONNECT_REQUEST: listen_id is the listener");
	check(id != tcp && id->verbs && id->pd && id->channel == channel,
	      "rdma_get_cm_event(3): CONNECT_REQUEST: id is a new one, of a device");
	memcpy(&far, heard.data, sizeof far);
	check(said(&heard, &far, sizeof far) && !memcmp(far.greeting, "question", 8),
	      "rdma_connect(3): the private data comes to the passive side, zeros behind it");
	is(asked_of_us->responder_resources, 4, "rdma_get_cm_event(3): CONNECT_REQUEST: responder_resources is the peer's initiator_depth");
	is(asked_of_us->initiator_depth, 8, "rdma_get_cm_event(3): CONNECT_REQUEST: initiator_depth is the peer's responder_resources");
	is(asked_of_us->retry_count, 6, "rdma_get_cm_event(3): CONNECT_REQUEST: retry_count is the peer's");
	is(asked_of_us->rnr_retry_count, 5, "rdma_get_cm_event(3): CONNECT_REQUEST: rnr_retry_count is the peer's");
	is(asked_of_us->flow_control, 1, "rdma_get_cm_event(3): CONNECT_REQUEST: flow_control is the peer's");
	is(asked_of_us->qp_num, far.qpn, "rdma_connect(3): qp_num is that of the id's QP, conn_param's is ignored");
	is(asked_of_us->srq, 0, "rdma_connect(3): srq is that of the id's QP, conn_param's is ignored");
	is(rdma_get_dst_port(id), far.src_port, "rdma_get_dst_port(3): of a request: the peer's port");
	is(ntohs(rdma_get_src_port(id)), AT, "rdma_get_src_port(3): of a request: the listener's port");
	check(rdma_get_peer_addr(id)->sa_family == AF_INET, "rdma_get_peer_addr(3): of a request: the peer's address");
	add_qp(id);
	is(asked(id->qp).qp_state, IBV_QPS_INIT, "rdma_create_qp(3): a QP that isn't connected takes receives: INIT");
	receive(id, &mr, inbox, sizeof inbox);
	self = self_of(id, "answer");
	struct rdma_conn_param param = {.private_data = &self, .private_data_len = sizeof self, .responder_resources = 4,
					.initiator_depth = 2, .flow_control = 1, .retry_count = 1, .rnr_retry_count = 3, .srq = 1,
					.qp_num = 0x777777};

	is_done(rdma_accept(id, &param), "rdma_accept(3): 0 on success");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_get_cm_event(3): ESTABLISHED on the passive side");
	check(heard.event.id == id && !heard.had_data && !heard.length,
	      "rdma_get_cm_event(3): no private data: NULL");
	struct ibv_qp_attr attr = asked(id->qp);

	is(attr.qp_state, IBV_QPS_RTS, "rdma_create_qp(3): the passive side's QP is led to RTS");
	is(attr.dest_qp_num, far.qpn, "rdma_create_qp(3): the passive side's QP has the peer's number");
	is(attr.retry_cnt, 6, "rdma_accept(3): retry_count is ignored: the peer's counts");
	is(attr.rnr_retry, 5, "rdma_connect(3): rnr_retry_count is that of the peer's QP");
	is(attr.max_rd_atomic, 2, "rdma_accept(3): initiator_depth is what the QP has under way");
	is(attr.max_dest_rd_atomic, 4, "rdma_accept(3): responder_resources is what the QP takes");
	is(attr.min_rnr_timer, 0, "rdma_accept(3): the minimum RNR NAK timer is 0");
	check(attr.timeout > 0, "rdma_accept(3): there is a local ACK timeout");
	is_status(next(id->recv_cq), IBV_WC_SUCCESS, "rdma_post_recv(3): a message comes into the buffer that was posted");
	check(!strcmp((char *)inbox, "hello"), "rdma_post_send(3): the bytes are the sender's");
	outbox = MAKE(rdma_reg_msgs(id, &self, sizeof self));
	MUST(rdma_post_send(id, NULL, &self, sizeof self, outbox, IBV_SEND_SIGNALED));
	next(id->send_cq);
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_DISCONNECTED, 0, "rdma_disconnect(3): DISCONNECTED on the other side");
	is_done(rdma_disconnect(id), "rdma_disconnect(3): 0 after the peer has disconnected");
	is(asked(id->qp).qp_state, IBV_QPS_ERR, "rdma_disconnect(3): the QP of the other side is in ERR when it disconnects, too");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, "rdma_get_cm_event(3): TIMEWAIT_EXIT on the passive side");
	MUST(rdma_dereg_mr(mr));
	MUST(rdma_dereg_mr(outbox));
	forget(id);
}

/* conn_param may be NULL. A side that is destroyed has disconnected. */
static void silent_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct heard heard;

	is_refused(rdma_connect(id, NULL), EINVAL, "rdma_connect(3): neither conn_param nor a QP: EINVAL");
	add_qp(id);
	is_done(rdma_connect(id, NULL), "rdma_connect(3): conn_param NULL: 0");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_accept(3): conn_param NULL: the peer is connected");
	struct ibv_qp_attr attr = asked(id->qp);

	check(attr.max_rd_atomic > 0 && attr.max_dest_rd_atomic > 0, "rdma_accept(3): conn_param NULL: the request's values are used");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_DISCONNECTED, 0, "rdma_destroy_id(3): the peer receives DISCONNECTED");
	forget(id);
}

static void silent_passive(void)
{
	struct rdma_cm_id *id = request_at(tcp).event.id;
	struct heard heard;

	add_qp(id);
	is_done(rdma_accept(id, NULL), "rdma_accept(3): conn_param NULL: 0");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_accept(3): conn_param NULL: ESTABLISHED");
	forget(id);
}

/* A queue pair that the library doesn't know, led by the attributes that it gives. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = MAKE(ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};

	return MAKE(ibv_create_qp(id->pd, &init));
}

static void free_own(struct ibv_qp *qp)
{
	struct ibv_cq *cq = qp->send_cq;

	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

static bool lead(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask = 0;

	return rdma_init_qp_attr(id, &attr, &mask) == 0 && mask && ibv_modify_qp(qp, &attr, mask) == 0;
}

/* Any vendor's: the library passes them on. */
#define ACTIVE_ECE ((struct ibv_ece){.vendor_id = 0x15b3, .options = 0x11223344})
#define PASSIVE_ECE ((struct ibv_ece){.vendor_id = 0x15b3, .options = 0x55667788})

static void external_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct ibv_qp *qp = own_qp(id);
	struct rdma_conn_param param = {.qp_num = qp->qp_num, .srq = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct ibv_ece ece = ACTIVE_ECE;
	struct heard heard;

	check(lead(id, qp, IBV_QPS_INIT), "rdma_init_qp_attr(3): attributes for INIT lead there");
	is_refused(rdma_establish(id), EINVAL, "rdma_establish(3): before a response: EINVAL");
	is_done(rdma_set_local_ece(id, &ece), "rdma_set_local_ece(3): 0 on success");
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, "rdma_get_cm_event(3): CONNECT_RESPONSE on an id without a QP");
	check(said(&heard, "fine", 4), "rdma_get_cm_event(3): CONNECT_RESPONSE has the peer's private data");
	is(heard.event.param.conn.qp_num, 0x123456, "rdma_accept(3): qp_num without a QP is conn_param's");
	is(heard.event.param.conn.srq, 1, "rdma_accept(3): srq without a QP is conn_param's");
	is_done(rdma_get_remote_ece(id, &ece), "rdma_get_remote_ece(3): on the active side: 0");
	check(ece.vendor_id == PASSIVE_ECE.vendor_id && ece.options == PASSIVE_ECE.options,
	      "rdma_set_local_ece(3): the passive side's options come to the active side");
	check(lead(id, qp, IBV_QPS_RTR), "rdma_init_qp_attr(3): attributes for RTR lead there");
	check(lead(id, qp, IBV_QPS_RTS), "rdma_init_qp_attr(3): attributes for RTS lead there");
	is_done(rdma_establish(id), "rdma_establish(3): 0 on success");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_DISCONNECTED, 0, "rdma_establish(3): the connection is there, and ends");
	MUST(rdma_disconnect(id));
	free_own(qp);
	MUST(rdma_destroy_id(id));
}

static void external_passive(void)
{
	struct heard heard = request_at(tcp);
	struct rdma_cm_id *id = heard.event.id;
	struct rdma_conn_param param = {.private_data = "fine", .private_data_len = 4, .qp_num = 0x123456, .srq = 1};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	struct ibv_ece ece = {0};
	int mask = 0;

	is(heard.event.param.conn.srq, 1, "rdma_connect(3): srq without a QP is conn_param's");
	check(heard.event.param.conn.qp_num != 0, "rdma_connect(3): qp_num without a QP is conn_param's");
	is_done(rdma_init_qp_attr(id, &attr, &mask), "rdma_init_qp_attr(3): of a request: 0");
	check(attr.dest_qp_num == heard.event.param.conn.qp_num && (mask & IBV_QP_DEST_QPN),
	      "rdma_init_qp_attr(3): the mask names what the structure has");
	is_done(rdma_get_remote_ece(id, &ece), "rdma_get_remote_ece(3): on the passive side: 0");
	check(ece.vendor_id == ACTIVE_ECE.vendor_id && ece.options == ACTIVE_ECE.options,
	      "rdma_get_remote_ece(3): the active side's options come to the passive side");
	ece = PASSIVE_ECE;
	MUST(rdma_set_local_ece(id, &ece));
	MUST(rdma_accept(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_establish(3): ESTABLISHED on the passive side");
	is_refused(rdma_notify(id, IBV_EVENT_COMM_EST), EISCONN, "rdma_notify(3): a connection that is established: EISCONN");
	MUST(rdma_disconnect(id));
	hear_answer();
	MUST(rdma_destroy_id(id));
}

/* Data may come before the peer's last word: here the peer leaves it out for a while. */
#define SILENCE_MS 1200

static void notified_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct rdma_conn_param param = {.qp_num = 0x234567};
	struct heard heard;

	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	usleep(SILENCE_MS * 1000);
	MUST(rdma_establish(id));
	MUST(rdma_disconnect(id));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_DISCONNECTED, 0, "rdma_notify(3): the connection goes on as any");
	MUST(rdma_destroy_id(id));
}

static void notified_passive(void)
{
	struct rdma_cm_id *id = request_at(tcp).event.id;
	struct rdma_conn_param param = {.qp_num = 0x234568};
	struct heard heard;

	MUST(rdma_accept(id, &param));
	is_refused(rdma_notify(id, IBV_EVENT_CQ_ERR), EINVAL, "rdma_notify(3): an event that isn't one of communication: EINVAL");
	is_done(rdma_notify(id, IBV_EVENT_COMM_EST), "rdma_notify(3): COMM_EST while the connection is being made: 0");
	heard = hear_for(channel, SILENCE_MS / 2);
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_notify(3): ESTABLISHED follows, without the active side's word");
	hear_answer();
	MUST(rdma_disconnect(id));
	MUST(rdma_destroy_id(id));
}

/* A request that is refused, with a word and by mistake. */
static void rejected_active(void)
{
	struct rdma_conn_param param = {.qp_num = 0x345678};
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct heard heard;

	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 28, "rdma_get_cm_event(3): REJECTED: the peer has rejected, status is its reason");
	check(said(&heard, "no", 2), "rdma_reject(3): the private data comes to the active side");
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): an id that was rejected: EINVAL");
	MUST(rdma_destroy_id(id));

	id = active(RDMA_PS_TCP, AT);
	param.qp_num++;
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 28, "rdma_accept(3): a request that can't be accepted is rejected");
	MUST(rdma_destroy_id(id));

	id = active(RDMA_PS_TCP, AT);
	param.qp_num++;
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 35, "rdma_reject_ece(3): the reason is the vendor's options");
	MUST(rdma_destroy_id(id));

	id = active(RDMA_PS_TCP, AT);
	param.qp_num++;
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 28, "rdma_destroy_id(3): an unanswered request is rejected");
	MUST(rdma_destroy_id(id));

	id = active(RDMA_PS_TCP, AT + 1);
	param.qp_num++;
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 8, "rdma_get_cm_event(3): REJECTED: no listener at the port");
	MUST(rdma_destroy_id(id));
}

static void rejected_passive(void)
{
	static char long_data[256];
	struct rdma_cm_id *id = request_at(tcp).event.id, *idle = bound(channel, RDMA_PS_TCP);
	struct rdma_conn_param param = {.qp_num = 0x456789};

	is_refused(rdma_reject(id, long_data, 149), EINVAL, "rdma_reject(3): 149 bytes of private data: EINVAL");
	is_done(rdma_reject(id, "no", 2), "rdma_reject(3): 0 on success");
	is_refused(rdma_accept(id, &param), EINVAL, "rdma_accept(3): a request that was rejected: EINVAL");
	is_refused(rdma_disconnect(idle), EINVAL, "rdma_disconnect(3): an id without a connection: EINVAL");
	MUST(rdma_destroy_id(idle));
	is_refused(rdma_accept(tcp, &param), EINVAL, "rdma_accept(3): a listener: EINVAL");
	is_refused(rdma_reject(tcp, NULL, 0), EINVAL, "rdma_reject(3): an id that isn't a request's: EINVAL");
	MUST(rdma_destroy_id(id));
	id = request_at(tcp).event.id;
	param.private_data = long_data;
	param.private_data_len = 197;
	is_refused(rdma_accept(id, &param), EINVAL, "rdma_accept(3): 197 bytes of private data: EINVAL");
	MUST(rdma_destroy_id(id));
	id = request_at(tcp).event.id;
	is_done(rdma_reject_ece(id, NULL, 0), "rdma_reject_ece(3): 0 on success");
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(request_at(tcp).event.id));
}

/* An active side that can't go on. */
static void broken_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_TCP, AT);
	struct heard heard;

	add_qp(id);
	MUST(rdma_connect(id, NULL));
	MUST(move_to(id->qp, IBV_QPS_ERR));
	heard = hear_answer();
	check(heard.came && heard.event.event == RDMA_CM_EVENT_CONNECT_ERROR && heard.event.status,
	      "rdma_get_cm_event(3): CONNECT_ERROR: the QP can't be modified, status contains the error");
	is_refused(rdma_establish(id), EINVAL, "rdma_establish(3): an id with a QP: EINVAL");
	forget(id);
}

static void broken_passive(void)
{
	struct rdma_cm_id *id = request_at(tcp).event.id;
	struct heard heard;

	add_qp(id);
	MUST(rdma_accept(id, NULL));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_REJECTED, 28, "rdma_get_cm_event(3): REJECTED: a response can be rejected, too");
	forget(id);
}

/* A service of datagrams. */
static void datagrams_active(void)
{
	struct rdma_cm_id *id = active(RDMA_PS_UDP, AT);
	static char long_data[256];
	struct rdma_conn_param param = {.private_data = long_data, .private_data_len = 181};
	struct heard heard;

	add_qp(id);
	is(asked(id->qp).qp_state, IBV_QPS_RTS, "rdma_create_qp(3): an unconnected QP is ready to send at once");
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): RDMA_PS_UDP: 181 bytes of private data: EINVAL");
	param.private_data = "who";
	param.private_data_len = 3;
	is_done(rdma_connect(id, &param), "rdma_connect(3): RDMA_PS_UDP: 0 on success");
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_ESTABLISHED, 0, "rdma_connect(3): RDMA_PS_UDP: ESTABLISHED when the QP has been found");
	struct self far;

	memcpy(&far, heard.data, sizeof far);
	check(said(&heard, &far, sizeof far) && !memcmp(far.greeting, "me", 3), "rdma_accept(3): RDMA_PS_UDP: the private data comes back");
	is(heard.event.param.ud.qp_num, far.qpn, "rdma_get_cm_event(3): UD: qp_num is the peer's");
	is(heard.event.param.ud.qkey, RDMA_UDP_QKEY, "rdma_get_cm_event(3): UD: qkey is the port space's");
	struct ibv_ah *ah = ibv_create_ah(id->pd, &heard.event.param.ud.ah_attr);

	check(ah != NULL, "rdma_get_cm_event(3): UD: ah_attr is what an address handle is made of");
	char text[16] = "datagram";
	struct ibv_mr *mr = MAKE(rdma_reg_msgs(id, text, sizeof text));

	if (ah) {
		is_done(rdma_post_ud_send(id, text, text, sizeof text, mr, IBV_SEND_SIGNALED, ah, far.qpn), "rdma_post_ud_send(3): 0 on success");
		struct ibv_wc wc = {0};

		is_status(poll_for(id->send_cq, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "rdma_post_ud_send(3): the datagram is sent");
		check(wc.wr_id == (uintptr_t)text, "rdma_post_ud_send(3): context is the wr_id");
		MUST(ibv_destroy_ah(ah));
	}
	MUST(rdma_dereg_mr(mr));
	forget(id);

	/* While the passive side is there: a host without anybody answers nothing. */
	id = active(RDMA_PS_UDP, AT + 1);
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_UNREACHABLE, 1, "rdma_get_cm_event(3): UNREACHABLE: a service without a listener, status of SIDR_REP");
	MUST(rdma_destroy_id(id));
	id = active(RDMA_PS_UDP, AT);
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_UNREACHABLE, 2, "rdma_get_cm_event(3): UNREACHABLE: a lookup that is rejected, status of SIDR_REP");
	MUST(rdma_destroy_id(id));
	id = active(RDMA_PS_UDP, AT);
	MUST(rdma_connect(id, &param));
	heard = hear_answer();
	is_event(&heard, RDMA_CM_EVENT_UNREACHABLE, 2, "rdma_accept(3): RDMA_PS_UDP: a lookup that can't be accepted is rejected");
	MUST(rdma_destroy_id(id));
}

static void datagrams_passive(void)
{
	static char long_data[256];
	static unsigned char letter[40 + 64];
	struct heard heard = request_at(udp);
	struct rdma_cm_id *id = heard.event.id;
	struct ibv_mr *mr;

	check(said(&heard, "who", 3), "rdma_connect(3): RDMA_PS_UDP: the private data comes to the passive side");
	check(id->verbs && id->qp_type == IBV_QPT_UD, "rdma_get_cm_event(3): UD: the new id is of its device");
	add_qp(id);
	receive(id, &mr, letter, sizeof letter);
	struct self self = self_of(id, "me");
	struct rdma_conn_param param = {.private_data = &self, .private_data_len = sizeof self};

	is_done(rdma_accept(id, &param), "rdma_accept(3): RDMA_PS_UDP: 0 on success");
	is_status(next(id->recv_cq), IBV_WC_SUCCESS, "rdma_post_ud_send(3): the datagram comes to the QP that was looked up");
	check(!strcmp((char *)letter + 40, "datagram"), "rdma_post_ud_send(3): its bytes come behind a GRH");
	MUST(rdma_dereg_mr(mr));
	forget(id);
	id = request_at(udp).event.id;
	is_done(rdma_reject(id, NULL, 0), "rdma_reject(3): RDMA_PS_UDP: 0 on success");
	MUST(rdma_destroy_id(id));
	id = request_at(udp).event.id;
	param.private_data = long_data;
	param.private_data_len = 137;
	param.qp_num = 0x1111;
	is_refused(rdma_accept(id, &param), EINVAL, "rdma_accept(3): RDMA_PS_UDP: 137 bytes of private data: EINVAL");
	MUST(rdma_destroy_id(id));
}

static const struct {
	void (*active)(void), (*passive)(void);
} steps[] = {
	{whole_active, whole_passive},	     {silent_active, silent_passive},	  {external_active, external_passive},
	{notified_active, notified_passive}, {rejected_active, rejected_passive}, {broken_active, broken_passive},
	{datagrams_active, datagrams_passive},
};
#define STEPS (sizeof steps / sizeof steps[0])

static int be_passive(int argc, char **argv)
{
	begin_cm(argc, argv);
	channel = MAKE(rdma_create_event_channel());
	tcp = listener(channel, RDMA_PS_TCP, AT);
	udp = listener(channel, RDMA_PS_UDP, AT);
	puts("# listening");
	for (size_t i = 0; i < STEPS; i++)
		steps[i].passive();
	MUST(rdma_destroy_id(tcp));
	MUST(rdma_destroy_id(udp));
	rdma_destroy_event_channel(channel);
	return end();
}

static int be_active(int argc, char **argv, const char *address_of_peer)
{
	begin_cm(argc, argv);
	peer = address_of_peer ? address_of_peer : here;
	channel = MAKE(rdma_create_event_channel());
	for (size_t i = 0; i < STEPS; i++)
		steps[i].active();
	rdma_destroy_event_channel(channel);
	return 0;
}

/* Prints the checks of the child's lines as this process's own. */
static void adopt(FILE *lines)
{
	char line[512], *name;

	while (fgets(line, sizeof line, lines)) {
		line[strcspn(line, "\n")] = 0;
		bool good = !strncmp(line, "ok ", 3);

		if ((good || !strncmp(line, "not ok ", 7)) && (name = strstr(line, " - ")))
			check(good, "%s", name + 3);
		else if (strncmp(line, "1..", 3))
			puts(line);
	}
}

/* The passive side is a child, which begins before this process has used anything. */
static int be_both(int argc, char **argv)
{
	int pipes[2], status;
	char first[64];

	MUST(pipe(pipes));
	pid_t child = fork();

	if (child == 0) {
		dup2(pipes[1], STDOUT_FILENO);
		close(pipes[0]);
		close(pipes[1]);
		exit(be_passive(argc, argv));
	}
	close(pipes[1]);
	FILE *lines = MAKE(fdopen(pipes[0], "r"));

	if (!fgets(first, sizeof first, lines))
		fail("the passive side doesn't listen");
	be_active(argc, argv, NULL);
	adopt(lines);
	waitpid(child, &status, 0);
	return end() || !WIFEXITED(status);
}

int main(int argc, char **argv)
{
	/* This side's option comes before those of every program. */
	if (argc > 1 && !strcmp(argv[1], "-l"))
		return be_passive(argc - 1, argv + 1);
	if (argc > 2 && !strcmp(argv[1], "-s")) {
		be_active(argc - 2, argv + 2, argv[2]);
		return end();
	}
	return be_both(argc, argv);
}
