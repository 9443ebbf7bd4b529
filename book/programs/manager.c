/* The connection manager: connections by IP address and port, without a TCP connection of one's own.
 *
 *   manager            the server
 *   manager ADDRESS    the client
 */
#include "hour.h"
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static char memory[64];

/* ANCHOR: expect */
/* Waits for the next event. */
static struct rdma_cm_event *next_event(void)
{
	struct rdma_cm_event *event;

	MUST(rdma_get_cm_event(channel, &event));
	return event;
}

/* The next event must be this one. */
static void expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_event();

	if (event->event != type) {
		fprintf(stderr, "%s (%d), not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	MUST(rdma_ack_cm_event(event));
}
/* ANCHOR_END: expect */

/* ANCHOR: prepare */
/* A queue pair with a receive; the connection manager takes it through its states. */
static struct ibv_mr *prepare(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = MAKE(ibv_create_cq(id->verbs, 32, NULL, NULL, 0));
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(id->verbs));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));

	MUST(rdma_create_qp(id, pd, &init));
	post_receive(id->qp, mr);
	return mr;
}
/* ANCHOR_END: prepare */

/* ANCHOR: connect */
/* Connects to a server that may still be starting. */
static struct rdma_cm_id *connect_to(const char *server, struct ibv_mr **mr)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id;

	inet_pton(AF_INET, server, &address.sin_addr);
	for (;;) {
		struct rdma_cm_event *event;
		enum rdma_cm_event_type type;

		MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
		MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
		expect(RDMA_CM_EVENT_ADDR_RESOLVED);
		MUST(rdma_resolve_route(id, 2000));
		expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
		*mr = prepare(id);
		MUST(rdma_connect(id, &parameters));
		event = next_event();
		type = event->event;
		MUST(rdma_ack_cm_event(event));
		if (type == RDMA_CM_EVENT_ESTABLISHED)
			return id;
		if (type != RDMA_CM_EVENT_REJECTED || !pause_a_little())
			failed(rdma_event_str(type), ECONNREFUSED);
		rdma_destroy_qp(id);
		rdma_destroy_id(id);
	}
}
/* ANCHOR_END: connect */

/* ANCHOR: accept */
static struct rdma_cm_id *wait_for_a_client(struct ibv_mr **mr)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	struct rdma_conn_param parameters = {.rnr_retry_count = 7};
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;

	MUST(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(rdma_bind_addr(listener, (struct sockaddr *)&address));
	MUST(rdma_listen(listener, 1));
	event = next_event();
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		failed(rdma_event_str(event->event), EPROTO);
	id = event->id;
	MUST(rdma_ack_cm_event(event));
	*mr = prepare(id);
	MUST(rdma_accept(id, &parameters));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	rdma_destroy_id(listener);
	return id;
}
/* ANCHOR_END: accept */

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	/* ANCHOR: talk */
	channel = MAKE(rdma_create_event_channel());
	id = server ? connect_to(server, &mr) : wait_for_a_client(&mr);
	if (server) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

		strcpy(memory, "hello from the client");
		carry_out(id->qp, &wr);
		printf("client: sent \"%s\"\n", memory);
		rdma_disconnect(id);
	} else {
		next_completion(id->qp->recv_cq);
		printf("server: received \"%s\"\n", memory);
	}
	expect(RDMA_CM_EVENT_DISCONNECTED);
	/* ANCHOR_END: talk */

	rdma_destroy_qp(id);
	ibv_dereg_mr(mr);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return 0;
}
