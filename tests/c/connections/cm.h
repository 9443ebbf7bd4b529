/* What the programs of this folder share beside ids.h: events that must come, and two ids that connect within the process. */
#ifndef CM_H
#define CM_H

#include "common.h"
#include "connections/ids.h"
#include <fcntl.h>
#include <poll.h>

/* The call must fail with this errno. */
#define REFUSED(expected, call)                                                        \
	do {                                                                           \
		errno = 0;                                                             \
		if ((call) != -1 || errno != (expected))                               \
			fail("%s:%d: %s: errno %d, not %d", __FILE__, __LINE__, #call, \
			     errno, (expected));                                       \
	} while (0)

/* The next event, which must be this one with this status. */
UNUSED static struct rdma_cm_event *expect(struct rdma_event_channel *channel,
					   enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event;

	if (!is_readable(channel->fd, 20000))
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

#endif
