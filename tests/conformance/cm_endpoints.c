/* man rdma_getaddrinfo, rdma_create_ep, rdma_destroy_ep, rdma_get_request, rdma_create_qp, rdma_destroy_qp, rdma_create_srq,
 * rdma_destroy_srq, and what rdma_client and rdma_server do with them.
 */
#include "cm.h"
#include <malloc.h>
#include <netdb.h>
#include <pthread.h>

static struct rdma_event_channel *channel;

static struct rdma_addrinfo *info_of(const char *node, const char *service, int flags, int space)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = space}, *info = NULL;

	if (rdma_getaddrinfo(node, service, &hints, &info))
		fail("rdma_getaddrinfo: %s", strerror(errno));
	return info;
}

static void names(void)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info = NULL;
	struct sockaddr_storage expected = address(here, 7471);

	is_done(rdma_getaddrinfo(here, "7471", &hints, &info), "rdma_getaddrinfo(3): 0 on success");
	check(info->ai_family == AF_INET && info->ai_dst_len == sizeof(struct sockaddr_in) &&
	      !memcmp(info->ai_dst_addr, &expected, sizeof(struct sockaddr_in)),
	      "rdma_getaddrinfo(3): ai_dst_addr is the address of node and service");
	check(info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP,
	      "rdma_getaddrinfo(3): RDMA_PS_TCP: IBV_QPT_RC");
	check(!info->ai_src_len && !info->ai_src_addr, "rdma_getaddrinfo(3): ai_src_len is 0 without a source");
	check(!info->ai_route_len && !info->ai_connect_len, "rdma_getaddrinfo(3): no data for route and connection where none are needed");
	check(!info->ai_next, "rdma_getaddrinfo(3): ai_next is NULL at the end of the list");
	rdma_freeaddrinfo(info);

	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_UDP, .ai_qp_type = IBV_QPT_UD, .ai_flags = RAI_NUMERICHOST};
	MUST(rdma_getaddrinfo(here, "7471", &hints, &info));
	check(info->ai_qp_type == IBV_QPT_UD && info->ai_port_space == RDMA_PS_UDP, "rdma_getaddrinfo(3): RDMA_PS_UDP: IBV_QPT_UD");
	rdma_freeaddrinfo(info);
	struct sockaddr_storage from = address(here, 0);

	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_TCP, .ai_src_addr = (struct sockaddr *)&from,
				       .ai_src_len = sizeof(struct sockaddr_in)};
	MUST(rdma_getaddrinfo(here, "7471", &hints, &info));
	check(info->ai_src_len == sizeof(struct sockaddr_in) && !memcmp(info->ai_src_addr, &from, sizeof(struct sockaddr_in)),
	      "rdma_getaddrinfo(3): ai_src_addr is that of the hints");
	rdma_freeaddrinfo(info);

	hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE};
	MUST(rdma_getaddrinfo(NULL, "7471", &hints, &info));
	check(info->ai_flags == RAI_PASSIVE && info->ai_src_len && info->ai_src_addr, "rdma_getaddrinfo(3): RAI_PASSIVE: an address to listen at");
	check(!info->ai_dst_len && !info->ai_dst_addr, "rdma_getaddrinfo(3): RAI_PASSIVE: ai_dst_len is 0");
	rdma_freeaddrinfo(info);
	hints.ai_flags = RAI_FAMILY;
	hints.ai_family = AF_INET6;
	MUST(rdma_getaddrinfo("::1", "7471", &hints, &info));
	check(info->ai_family == AF_INET6 && info->ai_dst_len == sizeof(struct sockaddr_in6), "rdma_getaddrinfo(3): RAI_FAMILY: AF_INET6");
	rdma_freeaddrinfo(info);
	hints.ai_flags = RAI_NOROUTE;
	hints.ai_family = 0;
	is_done(rdma_getaddrinfo(here, "7471", &hints, &info), "rdma_getaddrinfo(3): RAI_NOROUTE: 0");
	rdma_freeaddrinfo(info);

	info = NULL;
	hints = (struct rdma_addrinfo){.ai_dst_addr = (struct sockaddr *)&expected, .ai_dst_len = sizeof(struct sockaddr_in),
				       .ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP};
	MUST(rdma_getaddrinfo(NULL, NULL, &hints, &info));
	check(info->ai_dst_addr && !memcmp(info->ai_dst_addr, &expected, sizeof(struct sockaddr_in)),
	      "rdma_getaddrinfo(3): without a node the addresses are those of the hints");
	rdma_freeaddrinfo(info);

	hints = (struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};
	is(rdma_getaddrinfo("not a number", NULL, &hints, &info), EAI_NONAME, "rdma_getaddrinfo(3): RAI_NUMERICHOST: a name: EAI_NONAME");
	is(rdma_getaddrinfo(here, "no-such-service", &hints, &info), EAI_SERVICE,
	   "rdma_getaddrinfo(3): a service that doesn't exist: EAI_SERVICE");
	hints.ai_flags |= RAI_FAMILY;
	hints.ai_family = AF_INET6;
	is(rdma_getaddrinfo(here, NULL, &hints, &info), EAI_ADDRFAMILY,
	   "rdma_getaddrinfo(3): an address of another family: EAI_ADDRFAMILY");
	hints.ai_family = 77;
	is(rdma_getaddrinfo(here, NULL, &hints, &info), EAI_FAMILY, "rdma_getaddrinfo(3): a family that doesn't exist: EAI_FAMILY");
	is_refused(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL, "rdma_getaddrinfo(3): neither node, service nor hints: EINVAL");
}

static void freed(void)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
	size_t before = 0;

	for (int i = 0; i < 600; i++) {
		if (i == 100)
			before = mallinfo2().uordblks;
		MUST(rdma_getaddrinfo(here, "7471", &hints, &info));
		rdma_freeaddrinfo(info);
	}
	check(mallinfo2().uordblks < before + 16 * 500, "rdma_freeaddrinfo(3): the memory is given back");
}

static struct ibv_qp_init_attr small(void)
{
	return (struct ibv_qp_init_attr){.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
						 .max_inline_data = 16},
					 .sq_sig_all = 1};
}

static void queue_pairs(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *udp = bound(channel, RDMA_PS_UDP);
	struct ibv_qp_init_attr init = small();

	init.qp_type = IBV_QPT_RC;
	is_refused(rdma_create_qp(id, pd, &init), EINVAL, "rdma_create_qp(3): an id without a device: EINVAL");
	MUST(bind_to(id, here, 0));
	is_refused(rdma_create_qp(id, pd, &init), EINVAL, "rdma_create_qp(3): a PD of another context: EINVAL");
	is_done(rdma_create_qp(id, NULL, &init), "rdma_create_qp(3): without a PD: 0");
	check(id->qp && id->qp->pd == id->pd, "rdma_create_qp(3): the QP is in the default PD");
	check(init.cap.max_send_wr >= 4 && init.cap.max_recv_wr >= 4, "rdma_create_qp(3): the actual capabilities are returned");
	check(id->send_cq && id->recv_cq && id->send_cq != id->recv_cq, "rdma_create_qp(3): CQs that aren't given are made");
	check(id->send_cq_channel && id->send_cq->channel == id->send_cq_channel && id->recv_cq->channel == id->recv_cq_channel,
	      "rdma_create_qp(3): with completion channels, shown in the id");
	is(qp_state(id->qp), IBV_QPS_INIT, "rdma_create_qp(3): a QP of a connection begins in INIT");
	is_refused(rdma_create_qp(id, NULL, &init), EINVAL, "rdma_create_qp(3): a second QP: EINVAL");
	rdma_destroy_qp(id);
	check(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel, "rdma_destroy_qp(3): QP, CQs and channels are gone");

	struct ibv_pd *own_pd = MAKE(ibv_alloc_pd(id->verbs));
	struct ibv_cq *cq = MAKE(ibv_create_cq(id->verbs, 8, NULL, NULL, 0));

	init = small();
	init.qp_type = IBV_QPT_RC;
	init.send_cq = init.recv_cq = cq;
	is_done(rdma_create_qp(id, own_pd, &init), "rdma_create_qp(3): with a PD and CQs: 0");
	check(id->qp && id->qp->pd == own_pd && id->qp->send_cq == cq && id->qp->recv_cq == cq, "rdma_create_qp(3): it uses those that are given");
	rdma_destroy_qp(id);
	is(ibv_destroy_cq(cq), 0, "rdma_destroy_qp(3): CQs that were given stay");
	is(ibv_dealloc_pd(own_pd), 0, "rdma_destroy_qp(3): nothing is left in the PD");

	struct ibv_qp_init_attr_ex extended = {.cap = small().cap, .qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD};

	/* The id's PD is that of its last QP. */
	MUST(rdma_destroy_id(id));
	id = bound(channel, RDMA_PS_TCP);
	extended.pd = id->pd;
	is_done(rdma_create_qp_ex(id, &extended), "rdma_create_qp_ex(3): 0 on success");
	rdma_destroy_qp(id);
	init = small();
	init.qp_type = IBV_QPT_UD;
	MUST(rdma_create_qp(udp, NULL, &init));
	is(qp_state(udp->qp), IBV_QPS_RTS, "rdma_create_qp(3): a QP of datagrams begins in RTS");
	rdma_destroy_qp(udp);
	MUST(rdma_destroy_id(udp));
	MUST(rdma_destroy_id(id));
}

static void shared_receive_queues(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	static char bytes[64];

	is_refused(rdma_create_srq(id, pd, &attr), EINVAL, "rdma_create_srq(3): an id without a device: EINVAL");
	MUST(bind_to(id, here, 0));
	is_refused(rdma_create_srq(id, pd, &attr), EINVAL, "rdma_create_srq(3): a PD of another context: EINVAL");
	is_done(rdma_create_srq(id, NULL, &attr), "rdma_create_srq(3): without a PD: 0");
	check(id->srq && id->srq->pd == id->pd, "rdma_create_srq(3): the SRQ is in the default PD, shown in the id");
	check(attr.attr.max_wr >= 4 && attr.attr.max_sge >= 1, "rdma_create_srq(3): the actual capabilities are returned");
	struct ibv_mr *mr = MAKE(rdma_reg_msgs(id, bytes, sizeof bytes));

	is_done(rdma_post_recv(id, NULL, bytes, sizeof bytes, mr), "rdma_create_srq(3): receives can be posted");
	is_refused(rdma_create_srq(id, NULL, &attr), EINVAL, "rdma_create_srq(3): a second SRQ: EINVAL");
	struct ibv_qp_init_attr init = small();

	init.qp_type = IBV_QPT_RC;
	MUST(rdma_create_qp(id, NULL, &init));
	check(id->qp->srq == id->srq, "rdma_create_qp(3): a QP of an id with an SRQ uses it");
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	check(!id->srq, "rdma_destroy_srq(3): the SRQ is gone");
	struct ibv_srq_init_attr_ex extended = {.attr = {.max_wr = 4, .max_sge = 1},
						.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
						.srq_type = IBV_SRQT_BASIC, .pd = id->pd};

	is_done(rdma_create_srq_ex(id, &extended), "rdma_create_srq_ex(3): 0 on success");
	rdma_destroy_srq(id);
	MUST(rdma_dereg_mr(mr));
	MUST(rdma_destroy_id(id));
}

/* The active side of rdma_client: sends a message, receives the server's answer, and disconnects. */
static void *client(void *service)
{
	struct rdma_addrinfo *info = info_of(here, service, 0, RDMA_PS_TCP);
	struct ibv_qp_init_attr init = small();
	struct rdma_conn_param param = {.private_data = "client", .private_data_len = 6, .responder_resources = 1,
					.initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	static char sent[16] = "to the server", received[16];
	struct rdma_cm_id *id;
	struct ibv_wc wc;

	is_done(rdma_create_ep(&id, info, NULL, &init), "rdma_create_ep(3): active: 0");
	check(id->qp && id->route.num_paths == 1 && id->qp->pd == id->pd, "rdma_create_ep(3): active: with a QP, and a route is resolved");
	check(init.qp_type == IBV_QPT_RC && init.cap.max_send_wr >= 4, "rdma_create_ep(3): active: the actual capabilities are returned");
	struct ibv_mr *out = MAKE(rdma_reg_msgs(id, sent, sizeof sent)), *in = MAKE(rdma_reg_msgs(id, received, sizeof received));

	MUST(rdma_post_recv(id, NULL, received, sizeof received, in));
	is_done(rdma_connect(id, &param), "rdma_create_ep(3): active: calls wait until they are done");
	check(id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED, "rdma_create_ep(3): active: the id shows ESTABLISHED");
	MUST(rdma_post_send(id, NULL, sent, sizeof sent, out, 0));
	while (rdma_get_send_comp(id, &wc) == 0)
		continue;
	while (rdma_get_recv_comp(id, &wc) == 0)
		continue;
	check(wc.status == IBV_WC_SUCCESS && !strcmp(received, "to the client"), "rdma_get_request(3): the flow of rdma_client: an answer comes");
	is_done(rdma_disconnect(id), "rdma_create_ep(3): active: rdma_disconnect waits for DISCONNECTED");
	MUST(rdma_dereg_mr(in));
	MUST(rdma_dereg_mr(out));
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	return NULL;
}

/* Checks of the server's side are printed when the client has ended, so that the order of names is fixed. */
static void endpoints(void)
{
	struct rdma_addrinfo *info = info_of(here, "7472", RAI_PASSIVE, RDMA_PS_TCP);
	struct ibv_qp_init_attr init = small();
	static char sent[16] = "to the client", received[16];
	struct rdma_cm_id *listening, *id = NULL;
	pthread_t thread;
	struct ibv_wc wc;

	is_done(rdma_create_ep(&listening, info, NULL, &init), "rdma_create_ep(3): passive: 0");
	check(!listening->qp, "rdma_create_ep(3): passive: the listener has no QP");
	is_done(rdma_listen(listening, 0), "rdma_create_ep(3): passive: it can listen at once");
	MUST(pthread_create(&thread, NULL, client, "7472"));
	int got = rdma_get_request(listening, &id);

	if (got)
		fail("rdma_get_request: %s", strerror(errno));
	bool has_event = id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST &&
			 !memcmp(id->event->param.conn.private_data, "client", 7);
	bool has_qp = id->qp && id->qp->pd == id->pd && id->channel != listening->channel;
	struct ibv_mr *out = MAKE(rdma_reg_msgs(id, sent, sizeof sent)), *in = MAKE(rdma_reg_msgs(id, received, sizeof received));

	MUST(rdma_post_recv(id, NULL, received, sizeof received, in));
	int accepted = rdma_accept(id, NULL);
	bool established = id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED;

	while (rdma_get_recv_comp(id, &wc) == 0)
		continue;
	bool right = wc.status == IBV_WC_SUCCESS && !strcmp(received, "to the server");

	MUST(rdma_post_send(id, NULL, sent, sizeof sent, out, 0));
	while (rdma_get_send_comp(id, &wc) == 0)
		continue;
	int disconnected = rdma_disconnect(id);

	pthread_join(thread, NULL);
	is(got, 0, "rdma_get_request(3): 0 when there is a request");
	check(has_event, "rdma_get_request(3): the new id has the event of the request, with its private data");
	check(has_qp, "rdma_get_request(3): the new id has a QP with the listener's attributes");
	is(accepted, 0, "rdma_get_request(3): the new id is synchronous: rdma_accept waits");
	check(established, "rdma_get_request(3): until ESTABLISHED");
	check(right, "rdma_get_request(3): the flow of rdma_server: a message comes");
	is(disconnected, 0, "rdma_get_request(3): the flow of rdma_server: rdma_disconnect: 0");
	MUST(rdma_dereg_mr(in));
	MUST(rdma_dereg_mr(out));
	rdma_destroy_ep(id);
	rdma_destroy_ep(listening);
	rdma_freeaddrinfo(info);

	struct rdma_cm_id *other;

	MUST(rdma_create_id(NULL, &other, NULL, RDMA_PS_TCP));
	MUST(bind_to(other, here, 0));
	no_block(other->channel->fd);
	is_refused(rdma_get_request(other, &id), EINVAL, "rdma_get_request(3): an id that doesn't listen: EINVAL");
	MUST(rdma_destroy_id(other));
	other = listener(channel, RDMA_PS_TCP, 7472);

	check(other != NULL, "rdma_destroy_ep(3): the port is free");
	is_refused(rdma_get_request(other, &id), EINVAL, "rdma_get_request(3): a listener with a channel: EINVAL");
	MUST(rdma_destroy_id(other));
}

static void refused_endpoints(void)
{
	struct rdma_addrinfo *info = info_of(here, "7473", 0, RDMA_PS_TCP);
	struct ibv_qp_init_attr init = small();
	struct rdma_cm_id *id;

	is_done(rdma_create_ep(&id, info, NULL, NULL), "rdma_create_ep(3): active, without attributes: 0");
	check(!id->qp && id->verbs, "rdma_create_ep(3): active, without attributes: no QP is made");
	MUST(rdma_create_qp(id, NULL, (init.qp_type = IBV_QPT_RC, &init)));
	is_refused(rdma_connect(id, NULL), ECONNREFUSED, "rdma_create_id(3): a synchronous rdma_connect that is rejected: ECONNREFUSED");
	rdma_destroy_ep(id);
	struct ibv_pd *own = NULL;

	MUST(rdma_create_ep(&id, info, NULL, NULL));
	own = MAKE(ibv_alloc_pd(id->verbs));
	rdma_destroy_ep(id);
	init = small();
	is_done(rdma_create_ep(&id, info, own, &init), "rdma_create_ep(3): active, with a PD: 0");
	check(id->qp && id->qp->pd == own, "rdma_create_ep(3): active, with a PD: the QP is in it");
	is_done(rdma_migrate_id(id, channel), "rdma_create_ep(3): an endpoint can become asynchronous");
	check(id->channel == channel, "rdma_create_ep(3): its events come by the channel then");
	rdma_destroy_ep(id);
	is(ibv_dealloc_pd(own), 0, "rdma_destroy_ep(3): the QP is destroyed, too");
	rdma_freeaddrinfo(info);
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	channel = MAKE(rdma_create_event_channel());
	names();
	freed();
	queue_pairs();
	shared_receive_queues();
	endpoints();
	refused_endpoints();
	rdma_destroy_event_channel(channel);
	return end();
}
