/* What the programs of this folder share: ids, their events, and two of them that connect within the process. */
#ifndef CM_H
#define CM_H

#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

/* The call must fail with this errno. */
#define REFUSED(expected, call)                                                        \
	do {                                                                           \
		errno = 0;                                                             \
		if ((call) != -1 || errno != (expected))                               \
			fail("%s:%d: %s: errno %d, not %d", __FILE__, __LINE__, #call, \
			     errno, (expected));                                       \
	} while (0)

UNUSED static struct sockaddr_storage address(const char *ip, uint16_t port)
{
	struct sockaddr_storage storage = {0};
	struct sockaddr_in *v4 = (void *)&storage;
	struct sockaddr_in6 *v6 = (void *)&storage;

	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	} else {
		fail("%s is no address", ip);
	}
	return storage;
}

UNUSED static int bind_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage to = address(ip, port);

	return rdma_bind_addr(id, (struct sockaddr *)&to);
}

UNUSED static int resolve(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage to = address(ip, port);

	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000);
}

UNUSED static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	MUST(rdma_create_id(channel, &id, NULL, space));
	return id;
}

/* The next event, which must be this one with this status. */
UNUSED static struct rdma_cm_event *expect(struct rdma_event_channel *channel,
					   enum rdma_cm_event_type type, int status)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&readable, 1, 20000) != 1)
		fail("%s didn't come", rdma_event_str(type));
	MUST(rdma_get_cm_event(channel, &event));
	if (event->event != type || event->status != status)
		fail("%s with status %d came, not %s with %d", rdma_event_str(event->event),
		     event->status, rdma_event_str(type), status);
	return event;
}

UNUSED static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	MUST(rdma_ack_cm_event(expect(channel, type, 0)));
}

/* The address of the host of the tests. */
#define HERE "10.77.0.1"

UNUSED static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space space,
					  uint16_t port)
{
	struct rdma_cm_id *id = new_id(channel, space);

	MUST(resolve(id, HERE, port));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, 2000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

UNUSED static struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space space,
					  int backlog)
{
	struct rdma_cm_id *id = new_id(channel, space);

	MUST(bind_to(id, HERE, 0));
	MUST(rdma_listen(id, backlog));
	return id;
}

UNUSED static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->qp_type,
	};

	MUST(rdma_create_qp(id, NULL, &attr));
}

#endif
