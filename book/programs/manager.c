/* The connection manager: connections by IP address and port, without a TCP connection of one's own.
 *
 *   manager            the server
 *   manager ADDRESS    the client
 */
#include "hour.h"
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static char memory[64];

/* ANCHOR: next */
/* Waits for the next event, and returns its type and its id. */
static enum rdma_cm_event_type next_event(struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	MUST(rdma_get_cm_event(channel, &event));
	type = event->event;
	*id = event->id;
	MUST(rdma_ack_cm_event(event));
	return type;
}

/* The next event must be this one. */
static void expect(enum rdma_cm_event_type expected)
{
	struct rdma_cm_id *id;
	enum rdma_cm_event_type type = next_event(&id);

	if (type != expected) {
		fprintf(stderr, "%s, not %s\n", rdma_event_str(type), rdma_event_str(expected));
		exit(1);
	}
}
/* ANCHOR_END: next */

/* ANCHOR: prepare */
/* Gives an id a queue pair with a receive; the connection manager takes it through its states. */
static void prepare(struct rdma_cm_id *id)
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
	id->context = mr;
}

static void dispose(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = id->context;
	struct ibv_pd *pd = id->qp->pd;
	struct ibv_cq *cq = id->qp->recv_cq;

	rdma_destroy_qp(id);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	rdma_destroy_id(id);
}
/* ANCHOR_END: prepare */

/* ANCHOR: connect */
static struct rdma_cm_id *connect_to(const char *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id;

	inet_pton(AF_INET, server, &address.sin_addr);
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(id);
	MUST(rdma_connect(id, &parameters));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	return id;
}
/* ANCHOR_END: connect */

/* ANCHOR: accept */
static struct rdma_cm_id *wait_for_a_client(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	struct rdma_conn_param parameters = {.rnr_retry_count = 7};
	struct rdma_cm_id *listener, *id;

	MUST(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(rdma_bind_addr(listener, (struct sockaddr *)&address));
	MUST(rdma_listen(listener, 1));
	printf("server: listening\n");
	fflush(stdout);
	for (;;) {
		enum rdma_cm_event_type type = next_event(&id);

		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			prepare(id);
			if (rdma_accept(id, &parameters) == 0)
				continue;
		} else if (type == RDMA_CM_EVENT_ESTABLISHED) {
			rdma_destroy_id(listener);
			return id;
		}
		/* This client has given up; another may come. */
		dispose(id);
	}
}
/* ANCHOR_END: accept */

int main(int argc, char **argv)
{
	const char *server = argc > 1 ? argv[1] : NULL;
	struct rdma_cm_id *id;

	/* ANCHOR: talk */
	channel = MAKE(rdma_create_event_channel());
	id = server ? connect_to(server) : wait_for_a_client();
	if (server) {
		struct ibv_mr *mr = id->context;
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

	dispose(id);
	rdma_destroy_event_channel(channel);
	return 0;
}
