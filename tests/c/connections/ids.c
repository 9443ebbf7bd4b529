/* Promises of librdmacm's calls, one by one, within one process: bad input, ports, states, events, and what both sides
 * of a connection receive from each other.
 */
#include "connections/cm.h"
#include <pthread.h>

static void bad_input_is_refused(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id, *udp = new_id(channel, RDMA_PS_UDP);
	struct sockaddr_storage odd = {.ss_family = AF_UNIX};
	struct rdma_cm_event *event;
	struct rdma_addrinfo *info;
	uint8_t tos = 8;
	int on = 1;

	REFUSED(EINVAL, rdma_create_id(channel, &id, NULL, 0x1234));
	REFUSED(EINVAL, rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP));
	id = new_id(channel, RDMA_PS_TCP);
	REFUSED(EINVAL, rdma_bind_addr(id, NULL));
	REFUSED(EINVAL, rdma_bind_addr(id, (struct sockaddr *)&odd));
	REFUSED(EINVAL, rdma_resolve_addr(id, NULL, NULL, 1000));
	REFUSED(EADDRNOTAVAIL, bind_to(id, "10.77.0.200", 0));
	REFUSED(EINVAL, bind_to(id, "fe80::1", 0));
	REFUSED(ENETUNREACH, resolve(id, "255.255.255.255", 1));
	REFUSED(EINVAL, rdma_get_cm_event(channel, NULL));
	REFUSED(EINVAL, rdma_get_cm_event(NULL, &event));
	REFUSED(EINVAL, rdma_ack_cm_event(NULL));
	REFUSED(EINVAL, rdma_listen(NULL, 1));
	REFUSED(EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &info));
	REFUSED(ENOSYS, rdma_set_option(id, 9, 0, &on, sizeof on));
	REFUSED(ENOSYS, rdma_set_option(id, RDMA_OPTION_ID, 77, &on, sizeof on));
	REFUSED(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on));
	REFUSED(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1));
	REFUSED(EINVAL, rdma_set_option(udp, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &tos, 1));
	REFUSED(EINVAL, rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, 5));
	MUST(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
	REFUSED(EINVAL, rdma_notify(id, IBV_EVENT_CQ_ERR));
	REFUSED(EINVAL, rdma_get_request(id, &id));
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(udp));
	REFUSED(EINVAL, rdma_destroy_id(NULL));
	rdma_destroy_event_channel(channel);
}

static void calls_in_the_wrong_state_are_refused(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *other;
	struct rdma_conn_param param = {.qp_num = 1};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	struct sockaddr_storage group = address("239.1.1.1", 0);
	int mask;

	REFUSED(EINVAL, rdma_connect(id, &param));
	REFUSED(EINVAL, rdma_accept(id, &param));
	REFUSED(EINVAL, rdma_reject(id, NULL, 0));
	REFUSED(EINVAL, rdma_establish(id));
	REFUSED(EINVAL, rdma_disconnect(id));
	REFUSED(EINVAL, rdma_resolve_route(id, 1000));
	REFUSED(EINVAL, rdma_init_qp_attr(id, &attr, &mask));
	REFUSED(EINVAL, rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	MUST(bind_to(id, HERE, 0));
	REFUSED(EINVAL, bind_to(id, HERE, 0));
	REFUSED(EINVAL, rdma_disconnect(id));
	REFUSED(EINVAL, rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	MUST(rdma_listen(id, 1));
	REFUSED(EINVAL, rdma_listen(id, 1));
	REFUSED(EINVAL, resolve(id, HERE, 1));

	other = new_id(channel, RDMA_PS_TCP);
	MUST(resolve(other, HERE, 1));
	REFUSED(EINVAL, resolve(other, HERE, 1));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	REFUSED(EINVAL, resolve(other, HERE, 1));
	REFUSED(EINVAL, rdma_listen(other, 1));
	REFUSED(EINVAL, rdma_connect(other, &param));
	REFUSED(EINVAL, rdma_resolve_route(other, 0));
	MUST(rdma_resolve_route(other, 1000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSED(EINVAL, rdma_connect(other, NULL));
	MUST(rdma_destroy_id(other));
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void ports_are_exclusive(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *a = new_id(channel, RDMA_PS_TCP), *b = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_id *udp = new_id(channel, RDMA_PS_UDP);
	int on = 1;

	MUST(bind_to(a, HERE, 7801));
	REFUSED(EADDRINUSE, bind_to(b, HERE, 7801));
	REFUSED(EADDRNOTAVAIL, bind_to(b, "0.0.0.0", 7801));
	MUST(bind_to(udp, HERE, 7801));
	if (ntohs(rdma_get_src_port(a)) != 7801 || !a->verbs || !a->pd || a->port_num != 1)
		fail("the id doesn't show what it is bound to");
	MUST(rdma_destroy_id(a));
	/* An id whose bind was refused may try again. */
	MUST(bind_to(b, "0.0.0.0", 7801));
	if (b->verbs)
		fail("no device has all addresses");
	MUST(rdma_destroy_id(b));

	a = new_id(channel, RDMA_PS_TCP);
	b = new_id(channel, RDMA_PS_TCP);
	MUST(bind_to(a, HERE, 0));
	MUST(bind_to(b, HERE, 0));
	if (!rdma_get_src_port(a) || rdma_get_src_port(a) == rdma_get_src_port(b))
		fail("ports that were chosen: %d and %d", rdma_get_src_port(a), rdma_get_src_port(b));
	MUST(rdma_destroy_id(a));
	MUST(rdma_destroy_id(b));

	a = new_id(channel, RDMA_PS_TCP);
	b = new_id(channel, RDMA_PS_TCP);
	MUST(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	MUST(rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	MUST(bind_to(a, HERE, 7802));
	MUST(bind_to(b, HERE, 7802));
	REFUSED(EADDRINUSE, rdma_listen(a, 1));
	MUST(rdma_destroy_id(b));
	MUST(rdma_listen(a, 1));
	MUST(rdma_destroy_id(a));
	MUST(rdma_destroy_id(udp));
	rdma_destroy_event_channel(channel);
}

/* Each side receives what the other has sent: private data in full room, and the depths the other way round. */
static void both_sides_hear_what_the_other_says(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_event_channel *of_client = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP, 4), *client, *server;
	struct rdma_conn_param param = {
		.private_data = "question", .private_data_len = 8, .responder_resources = 7, .initiator_depth = 5,
		.retry_count = 6, .rnr_retry_count = 5,
	};
	struct rdma_conn_param answer = {
		.private_data = "answer", .private_data_len = 6, .responder_resources = 3, .initiator_depth = 2,
		.rnr_retry_count = 4,
	};
	char long_data[200] = "";
	struct rdma_cm_event *event;
	struct rdma_conn_param *heard;
	struct ibv_qp_attr attr, of_server;
	struct ibv_qp_init_attr init;

	client = resolved(of_client, RDMA_PS_TCP, ntohs(rdma_get_src_port(listening)));
	add_qp(client);
	param.private_data = long_data;
	param.private_data_len = 57;
	REFUSED(EINVAL, rdma_connect(client, &param));
	param.private_data = "question";
	param.private_data_len = 8;
	param.responder_resources = 254;
	REFUSED(EINVAL, rdma_connect(client, &param));
	param.responder_resources = 7;
	MUST(rdma_connect(client, &param));
	REFUSED(EINVAL, rdma_connect(client, &param));

	event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	heard = &event->param.conn;
	if (event->listen_id != listening || heard->private_data_len != 56 ||
	    memcmp(heard->private_data, "question\0", 9) || heard->responder_resources != 5 ||
	    heard->initiator_depth != 7 || heard->retry_count != 6 || heard->rnr_retry_count != 5 ||
	    heard->qp_num != client->qp->qp_num)
		fail("the request isn't what was asked");
	server = event->id;
	if (server->verbs != client->verbs || !server->route.path_rec || server->route.num_paths != 1 ||
	    rdma_get_dst_port(server) != rdma_get_src_port(client))
		fail("the id of the request doesn't show where it is");
	add_qp(server);
	MUST(rdma_accept(server, &answer));
	MUST(rdma_ack_cm_event(event));

	event = expect(of_client, RDMA_CM_EVENT_ESTABLISHED, 0);
	heard = &event->param.conn;
	if (heard->private_data_len != 196 || memcmp(heard->private_data, "answer\0", 7) ||
	    heard->responder_resources != 2 || heard->initiator_depth != 3 || heard->rnr_retry_count != 4)
		fail("the answer isn't what was sent");
	MUST(rdma_ack_cm_event(event));
	event = expect(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	if (event->id != server || event->param.conn.private_data_len)
		fail("being established brings no data");
	MUST(rdma_ack_cm_event(event));

	MUST(ibv_query_qp(client->qp, &attr, IBV_QP_STATE, &init));
	MUST(ibv_query_qp(server->qp, &of_server, IBV_QP_STATE, &init));
	if (attr.qp_state != IBV_QPS_RTS || of_server.qp_state != IBV_QPS_RTS || attr.rq_psn != of_server.sq_psn ||
	    attr.sq_psn != of_server.rq_psn || attr.retry_cnt != 6 || of_server.rnr_retry != 5 ||
	    attr.timeout != 19 || of_server.timeout != 19 || attr.max_rd_atomic != 3 || of_server.max_rd_atomic != 2)
		fail("the queue pairs aren't what was agreed");

	MUST(rdma_disconnect(client));
	MUST(rdma_disconnect(client));
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(server));
	pass(of_client, RDMA_CM_EVENT_DISCONNECTED);
	pass(of_client, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	REFUSED(EINVAL, rdma_connect(client, &param));
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	MUST(rdma_destroy_id(client));
	MUST(rdma_destroy_id(server));
	MUST(rdma_destroy_id(listening));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(of_client);
}

static void a_rejection_says_why(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_event_channel *of_client = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP, 4);
	struct rdma_cm_id *client = resolved(of_client, RDMA_PS_TCP, ntohs(rdma_get_src_port(listening)));
	struct rdma_conn_param param = {.qp_num = 0x1234};
	struct rdma_cm_event *event;

	MUST(rdma_connect(client, &param));
	event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	MUST(rdma_reject(event->id, "no", 2));
	REFUSED(EINVAL, rdma_accept(event->id, &param));
	MUST(rdma_destroy_id(event->id));
	MUST(rdma_ack_cm_event(event));
	event = expect(of_client, RDMA_CM_EVENT_REJECTED, 28);
	if (event->param.conn.private_data_len != 148 || memcmp(event->param.conn.private_data, "no\0", 3))
		fail("the rejection's private data");
	MUST(rdma_ack_cm_event(event));
	MUST(rdma_destroy_id(client));

	/* A client without an answer is rejected when the listener goes. */
	client = resolved(of_client, RDMA_PS_TCP, ntohs(rdma_get_src_port(listening)));
	MUST(rdma_connect(client, &param));
	while (poll(&(struct pollfd){.fd = channel->fd, .events = POLLIN}, 1, 20000) != 1)
		fail("no request");
	MUST(rdma_destroy_id(listening));
	MUST(rdma_ack_cm_event(expect(of_client, RDMA_CM_EVENT_REJECTED, 28)));
	MUST(rdma_destroy_id(client));
	client = resolved(of_client, RDMA_PS_TCP, 7999);
	MUST(rdma_connect(client, &param));
	MUST(rdma_ack_cm_event(expect(of_client, RDMA_CM_EVENT_REJECTED, 8)));
	MUST(rdma_destroy_id(client));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(of_client);
}

/* No request comes to a listener that begins to listen now. */
static void expect_no_request(const char *after)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *udp = new_id(channel, RDMA_PS_UDP);

	MUST(bind_to(id, HERE, 7999));
	MUST(bind_to(udp, HERE, 7999));
	MUST(rdma_listen(id, 4));
	MUST(rdma_listen(udp, 4));
	if (is_readable(channel->fd, 500))
		fail("a request comes after %s", after);
	MUST(rdma_destroy_id(udp));
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* A request to a port that no process has is made again for 100 ms, but not after the program has ended the id. */
static void an_id_that_was_ended_asks_for_no_connection_again(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_conn_param param = {.qp_num = 17};
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	int pause;

	for (pause = 0; pause < 60000; pause += 20000) {
		id = resolved(channel, RDMA_PS_TCP, 7999);
		MUST(rdma_connect(id, &param));
		usleep(pause);
		MUST(rdma_disconnect(id));
		expect_no_request("rdma_disconnect");
		/* The refusal stands, once. */
		MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_REJECTED, 8)));
		MUST(rdma_disconnect(id));
		if (is_readable(channel->fd, 0))
			fail("a second event of one refusal");
		MUST(rdma_destroy_id(id));

		id = resolved(channel, RDMA_PS_UDP, 7999);
		add_qp(id);
		MUST(rdma_connect(id, &param));
		usleep(pause);
		MUST(rdma_disconnect(id));
		expect_no_request("rdma_disconnect of a datagram id");
		event = expect(channel, RDMA_CM_EVENT_UNREACHABLE, 1);
		MUST(rdma_ack_cm_event(event));
		rdma_destroy_qp(id);
		MUST(rdma_destroy_id(id));

		id = resolved(channel, RDMA_PS_TCP, 7999);
		MUST(rdma_connect(id, &param));
		usleep(pause);
		MUST(rdma_destroy_id(id));
		expect_no_request("rdma_destroy_id");
	}
	rdma_destroy_event_channel(channel);
}

static void a_process_that_has_ended_asks_for_no_connection_again(void)
{
	struct rdma_conn_param param = {.qp_num = 17};
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());

		MUST(rdma_connect(resolved(channel, RDMA_PS_TCP, 7999), &param));
		exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("the child's status: %d", status);
	expect_no_request("exit");
}

/* Nothing follows the end of what was rejected: a synchronous id doesn't wait for it. */
static void a_synchronous_id_that_was_rejected_does_not_wait_for_its_end(void)
{
	struct rdma_conn_param param = {.qp_num = 17};
	struct rdma_cm_id *id;

	MUST(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	MUST(resolve(id, HERE, 7999));
	MUST(rdma_resolve_route(id, 2000));
	REFUSED(ECONNREFUSED, rdma_connect(id, &param));
	MUST(rdma_disconnect(id));
	MUST(rdma_disconnect(id));
	MUST(rdma_destroy_id(id));
}

static void a_group_that_was_left_is_not_joined(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_UDP, 7999);
	struct sockaddr_in group = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xefc0c0c0)};
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 0xef, [13] = 0xc0, [14] = 0xc0, [15] = 0xc0}};

	add_qp(id);
	MUST(rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	MUST(rdma_leave_multicast(id, (struct sockaddr *)&group));
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(channel, &event) == 0 || errno != EAGAIN)
		fail("an event came for the group that was left");
	if (ibv_detach_mcast(id->qp, &gid, 0) == 0)
		fail("the queue pair is attached to the group that was left");
	rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void a_datagram_service_is_looked_up(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_event_channel *of_client = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_UDP, 4), *client, *server;
	struct rdma_conn_param param = {.private_data = "who", .private_data_len = 3}, answer = param;
	struct rdma_cm_event *event;
	char long_data[200] = "";

	client = resolved(of_client, RDMA_PS_UDP, ntohs(rdma_get_src_port(listening)));
	add_qp(client);
	if (qp_state(client->qp) != IBV_QPS_RTS)
		fail("a datagram queue pair can send at once");
	param.private_data = long_data;
	param.private_data_len = 181;
	REFUSED(EINVAL, rdma_connect(client, &param));
	param.private_data = "who";
	param.private_data_len = 3;
	MUST(rdma_connect(client, &param));
	event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (event->param.ud.private_data_len != 180 || memcmp(event->param.ud.private_data, "who\0", 4))
		fail("the lookup's private data");
	server = event->id;
	add_qp(server);
	answer.private_data = "me";
	answer.private_data_len = 2;
	MUST(rdma_accept(server, &answer));
	MUST(rdma_ack_cm_event(event));
	event = expect(of_client, RDMA_CM_EVENT_ESTABLISHED, 0);
	if (event->param.ud.qp_num != server->qp->qp_num || event->param.ud.qkey != RDMA_UDP_QKEY ||
	    event->param.ud.private_data_len != 136 || memcmp(event->param.ud.private_data, "me\0", 3) ||
	    !event->param.ud.ah_attr.is_global)
		fail("the answer to the lookup");
	ibv_destroy_ah(MAKE(ibv_create_ah(client->pd, &event->param.ud.ah_attr)));
	MUST(rdma_ack_cm_event(event));
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	MUST(rdma_destroy_id(client));
	MUST(rdma_destroy_id(server));

	/* A lookup can be rejected, with a word. */
	client = resolved(of_client, RDMA_PS_UDP, ntohs(rdma_get_src_port(listening)));
	MUST(rdma_connect(client, &param));
	event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	MUST(rdma_reject(event->id, "full", 4));
	MUST(rdma_destroy_id(event->id));
	MUST(rdma_ack_cm_event(event));
	event = expect(of_client, RDMA_CM_EVENT_UNREACHABLE, 2);
	MUST(rdma_ack_cm_event(event));
	MUST(rdma_destroy_id(client));

	MUST(rdma_destroy_id(listening));
	client = resolved(of_client, RDMA_PS_UDP, 7999);
	MUST(rdma_connect(client, &param));
	MUST(rdma_ack_cm_event(expect(of_client, RDMA_CM_EVENT_UNREACHABLE, 1)));
	MUST(rdma_destroy_id(client));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(of_client);
}

static void a_channel_is_readable_while_an_event_is_unread(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_event_channel *other = MAKE(rdma_create_event_channel());
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	REFUSED(EAGAIN, rdma_get_cm_event(channel, &event));
	MUST(resolve(id, HERE, 1));
	if (poll(&readable, 1, 20000) != 1)
		fail("nothing to read");
	/* An event that hasn't been fetched moves along. */
	MUST(rdma_migrate_id(id, other));
	if (poll(&readable, 1, 0) || id->channel != other)
		fail("the id has left the channel");
	pass(other, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
}

static void a_destroyed_channel_is_told_from_one_that_lives(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct timespec began, ended;

	rdma_destroy_event_channel(channel);
	/* What the allocator hands out next is as likely as anything in the place of the channel. */
	void *other = MAKE(malloc(sizeof *channel));
	memset(other, 1, sizeof *channel);

	clock_gettime(CLOCK_MONOTONIC, &began);
	REFUSED(EBADF, rdma_get_cm_event(channel, &event));
	clock_gettime(CLOCK_MONOTONIC, &ended);
	if (ended.tv_sec - began.tv_sec > 10)
		fail("the wait took %ld s", (long)(ended.tv_sec - began.tv_sec));
	REFUSED(EBADF, rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	rdma_destroy_event_channel(channel);
	free(other);
}

static void *acknowledge_later(void *event)
{
	usleep(200000);
	MUST(rdma_ack_cm_event(event));
	return NULL;
}

static void destruction_waits_for_events_that_were_fetched(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	uint64_t start = now_ms();
	pthread_t thread;

	MUST(resolve(id, HERE, 1));
	MUST(pthread_create(&thread, NULL, acknowledge_later,
			    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0)));
	MUST(rdma_destroy_id(id));
	if (now_ms() - start < 190)
		fail("the id was destroyed before its event was acknowledged");
	pthread_join(thread, NULL);
	rdma_destroy_event_channel(channel);
}

/* All ids of a device have its one context, and the library's queues are what inline functions take them for. */
static void ids_share_their_devices(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *other = new_id(channel, RDMA_PS_UDP);
	struct ibv_context **devices;
	int count;

	devices = MAKE(rdma_get_devices(&count));
	MUST(bind_to(id, HERE, 0));
	MUST(bind_to(other, HERE, 0));
	if (count < 1 || devices[count] || id->verbs != devices[0] || other->verbs != id->verbs || other->pd != id->pd)
		fail("ids of one device differ");
	rdma_free_devices(devices);
	add_qp(id);
	if (id->send_cq->cq_context != id || id->recv_cq->cq_context != id || !id->recv_cq_channel ||
	    id->send_cq->channel != id->send_cq_channel || id->qp->pd != id->pd)
		fail("the queues aren't the id's");
	if (qp_state(id->qp) != IBV_QPS_INIT)
		fail("a new queue pair takes receives");
	REFUSED(EINVAL, ({
			struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
			rdma_create_qp(id, NULL, &attr);
		}));
	rdma_destroy_qp(id);
	if (id->qp || id->send_cq || id->recv_cq)
		fail("the queues are left");
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(other));
	rdma_destroy_event_channel(channel);
}

/* Requests beyond the backlog aren't refused: they come again. */
static void a_backlog_is_a_bound(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_event_channel *of_client = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP, 2), *clients[4];
	struct rdma_conn_param param = {.qp_num = 0x1234};
	struct rdma_cm_event *event;

	for (int i = 0; i < 4; i++) {
		clients[i] = resolved(of_client, RDMA_PS_TCP, ntohs(rdma_get_src_port(listening)));
		param.qp_num++;
		MUST(rdma_connect(clients[i], &param));
	}
	usleep(300000);
	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	for (int i = 0; i < 2; i++) {
		MUST(rdma_get_cm_event(channel, &event));
		MUST(rdma_reject(event->id, NULL, 0));
		MUST(rdma_destroy_id(event->id));
		MUST(rdma_ack_cm_event(event));
	}
	REFUSED(EAGAIN, rdma_get_cm_event(channel, &event));
	for (int i = 0; i < 2; i++) {
		event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		MUST(rdma_reject(event->id, NULL, 0));
		MUST(rdma_destroy_id(event->id));
		MUST(rdma_ack_cm_event(event));
	}
	for (int i = 0; i < 4; i++)
		MUST(rdma_ack_cm_event(expect(of_client, RDMA_CM_EVENT_REJECTED, 28)));
	for (int i = 0; i < 4; i++)
		MUST(rdma_destroy_id(clients[i]));
	MUST(rdma_destroy_id(listening));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(of_client);
}

/* No id listens on the port, so the request is made again for a while; an id that is destroyed meanwhile gets no more events. */
static void an_id_may_go_while_its_request_is_made_again(void)
{
	enum { IDS = 32, ROUNDS = 12 };
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_conn_param param = {.qp_num = 0x1234};
	struct rdma_cm_id *ids[IDS];
	struct rdma_cm_event *event;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < IDS; i++)
			ids[i] = resolved(channel, RDMA_PS_TCP, 9999);
		for (int i = 0; i < IDS; i++)
			MUST(rdma_connect(ids[i], &param));
		for (int i = 0; i < IDS; i++) {
			usleep(2500);
			MUST(rdma_destroy_id(ids[i]));
		}
	}
	usleep(200000);
	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	REFUSED(EAGAIN, rdma_get_cm_event(channel, &event));
	rdma_destroy_event_channel(channel);
}

static const struct test_case cases[] = {
	CASE(bad_input_is_refused),
	CASE(calls_in_the_wrong_state_are_refused),
	CASE(ports_are_exclusive),
	CASE(both_sides_hear_what_the_other_says),
	CASE(a_rejection_says_why),
	CASE(a_synchronous_id_that_was_rejected_does_not_wait_for_its_end),
	CASE(an_id_that_was_ended_asks_for_no_connection_again),
	CASE(a_process_that_has_ended_asks_for_no_connection_again),
	CASE(a_group_that_was_left_is_not_joined),
	CASE(a_datagram_service_is_looked_up),
	CASE(a_channel_is_readable_while_an_event_is_unread),
	CASE(a_destroyed_channel_is_told_from_one_that_lives),
	CASE(destruction_waits_for_events_that_were_fetched),
	CASE(ids_share_their_devices),
	CASE(a_backlog_is_a_bound),
	CASE(an_id_may_go_while_its_request_is_made_again),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
