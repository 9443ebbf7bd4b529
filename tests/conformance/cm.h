/* What the conformance programs of librdmacm share: the device's own address, and events as they come.
 *
 * Usage as of conform.h. The address is that of the GID, which must be one of an IPv4 address.
 */
#ifndef CONFORM_CM_H
#define CONFORM_CM_H

#include "conform.h"
#include "../c/connections/ids.h"
#include <rdma/rdma_verbs.h>

/* For messages to hosts that aren't there, and for what two sides need to find each other. */
#define RESOLVE_MS 2000

static char here[INET6_ADDRSTRLEN];

UNUSED static void begin_cm(int argc, char **argv)
{
	begin(argc, argv);
	inet_ntop(AF_INET, gid.raw + 12, here, sizeof here);
}

/* Another address of the device's network, which no host has. */
UNUSED static const char *nowhere(void)
{
	static char ip[INET6_ADDRSTRLEN];
	uint8_t bytes[4];

	memcpy(bytes, gid.raw + 12, sizeof bytes);
	bytes[3] = 213;
	return inet_ntop(AF_INET, bytes, ip, sizeof ip);
}

/* The device's IPv6 address that isn't of the link; NULL when it has none. */
UNUSED static const char *here6(void)
{
	static char ip[INET6_ADDRSTRLEN];
	union ibv_gid other;

	for (int i = 0; i < port.gid_tbl_len && !ibv_query_gid(ctx, PORT_NUM, i, &other); i++)
		if (other.raw[0] == 0xfd)
			return inet_ntop(AF_INET6, other.raw, ip, sizeof ip);
	return NULL;
}

/* The call must return -1 and set errno. */
#define is_refused(call, expected, ...)                                                \
	({                                                                             \
		errno = 0;                                                             \
		int refused_result = (call);                                           \
		is(refused_result == -1 ? errno : 0, expected, __VA_ARGS__);           \
	})

/* The call must return 0. */
#define is_done(call, ...)                                                             \
	({                                                                             \
		errno = 0;                                                             \
		int done_result = (call);                                              \
		if (done_result)                                                       \
			printf("# errno: %s\n", strerror(errno));                      \
		is(done_result, 0, __VA_ARGS__);                                       \
	})

/* An event after its acknowledgement: its numbers, and a copy of its private data. */
struct heard {
	struct rdma_cm_event event;
	bool came;
	/* The event had private data. */
	bool had_data;
	uint8_t length;
	unsigned char data[256];
};

/* Takes the next event; `came` is false if there is none within the time. */
UNUSED static struct heard hear_for(struct rdma_event_channel *channel, unsigned int milliseconds)
{
	struct heard heard = {.event = {.event = (enum rdma_cm_event_type)-1}};
	struct rdma_cm_event *event;
	const void *data;

	if (!readable(channel->fd, milliseconds) || rdma_get_cm_event(channel, &event))
		return heard;
	heard.event = *event;
	heard.came = true;
	bool is_ud = event->id->ps == RDMA_PS_UDP;
	data = is_ud ? event->param.ud.private_data : event->param.conn.private_data;
	heard.length = is_ud ? event->param.ud.private_data_len : event->param.conn.private_data_len;
	/* Of other events it is a context, or a number. */
	heard.had_data = data && event->event != RDMA_CM_EVENT_MULTICAST_JOIN && event->event <= RDMA_CM_EVENT_TIMEWAIT_EXIT;
	if (heard.had_data && heard.length)
		memcpy(heard.data, data, heard.length);
	MUST(rdma_ack_cm_event(event));
	return heard;
}

UNUSED static struct heard hear(struct rdma_event_channel *channel)
{
	return hear_for(channel, PATIENCE_MS);
}

UNUSED static bool said(const struct heard *heard, const void *text, size_t length)
{
	static const unsigned char zeros[256];

	return heard->had_data && heard->length >= length && !memcmp(heard->data, text, length) &&
	       !memcmp(heard->data + length, zeros, heard->length - length);
}

/* The event must be this one with this status. */
UNUSED __attribute__((format(printf, 4, 5))) static bool is_event(const struct heard *heard, enum rdma_cm_event_type type,
								  int status, const char *name, ...)
{
	bool good = heard->came && heard->event.event == type && heard->event.status == status;
	va_list arguments;

	va_start(arguments, name);
	say(good, name, arguments);
	va_end(arguments);
	if (!good)
		printf("# got %s, status %d\n", heard->came ? rdma_event_str(heard->event.event) : "no event",
		       heard->event.status);
	return good;
}

/* Takes an event that has to come before what is checked. */
UNUSED static struct heard must_hear(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct heard heard = hear(channel);

	if (!heard.came || heard.event.event != type || heard.event.status)
		fail("%s with status %d came, not %s", heard.came ? rdma_event_str(heard.event.event) : "nothing",
		     heard.event.status, rdma_event_str(type));
	return heard;
}

UNUSED static struct rdma_cm_id *bound(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = new_id(channel, space);

	MUST(bind_to(id, here, 0));
	return id;
}

UNUSED static struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space space, uint16_t at)
{
	struct rdma_cm_id *id = new_id(channel, space);

	MUST(bind_to(id, here, at));
	MUST(rdma_listen(id, 8));
	return id;
}

/* An id with a route to a port of a host. */
UNUSED static struct rdma_cm_id *routed(struct rdma_event_channel *channel, enum rdma_port_space space, const char *ip,
					uint16_t to)
{
	struct rdma_cm_id *id = new_id(channel, space);

	MUST(resolve(id, ip, to));
	must_hear(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, RESOLVE_MS));
	must_hear(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* Two ids of this process that are connected, each with a channel of its own. */
struct connected {
	struct rdma_event_channel *of_client, *of_server;
	struct rdma_cm_id *listening, *client, *server;
};

UNUSED static struct connected make_connected(void (*give_qp)(struct rdma_cm_id *))
{
	struct connected both = {.of_client = MAKE(rdma_create_event_channel()),
				 .of_server = MAKE(rdma_create_event_channel())};
	struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};

	both.listening = listener(both.of_server, RDMA_PS_TCP, 0);
	both.client = routed(both.of_client, RDMA_PS_TCP, here, ntohs(rdma_get_src_port(both.listening)));
	give_qp(both.client);
	MUST(rdma_connect(both.client, &param));
	both.server = must_hear(both.of_server, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	give_qp(both.server);
	MUST(rdma_accept(both.server, &param));
	must_hear(both.of_client, RDMA_CM_EVENT_ESTABLISHED);
	must_hear(both.of_server, RDMA_CM_EVENT_ESTABLISHED);
	return both;
}

UNUSED static void free_connected(struct connected *both)
{
	rdma_destroy_qp(both->client);
	rdma_destroy_qp(both->server);
	MUST(rdma_destroy_id(both->client));
	MUST(rdma_destroy_id(both->server));
	MUST(rdma_destroy_id(both->listening));
	rdma_destroy_event_channel(both->of_client);
	rdma_destroy_event_channel(both->of_server);
}

#endif
