/* man rdma_bind_addr, rdma_listen, rdma_resolve_addr, rdma_resolve_route, rdma_get_src_port, rdma_get_local_addr and theirs of the
 * peer.
 */
#include "cm.h"

static struct rdma_event_channel *channel;

static struct sockaddr_in *v4_of(struct sockaddr *at)
{
	return (struct sockaddr_in *)at;
}

static bool is_here(struct sockaddr *at)
{
	struct sockaddr_storage expected = address(here, 0);

	return at->sa_family == AF_INET && v4_of(at)->sin_addr.s_addr == v4_of((struct sockaddr *)&expected)->sin_addr.s_addr;
}

static bool is_zero(const struct sockaddr *at)
{
	static const struct sockaddr_storage zeros;

	return !memcmp(at, &zeros, sizeof(struct sockaddr_in6));
}

static void binding(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *other = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_id *udp = new_id(channel, RDMA_PS_UDP);
	struct sockaddr_storage odd = {.ss_family = AF_UNIX};

	check(is_zero(rdma_get_local_addr(id)), "rdma_get_local_addr(3): all zeros before the id is bound");
	check(is_zero(rdma_get_peer_addr(id)), "rdma_get_peer_addr(3): all zeros before there is a peer");
	is_refused(rdma_bind_addr(id, (struct sockaddr *)&odd), EINVAL, "rdma_bind_addr(3): a family that isn't an address': EINVAL");
	is_refused(bind_to(id, nowhere(), 0), EADDRNOTAVAIL, "rdma_bind_addr(3): an address that isn't the host's: EADDRNOTAVAIL");
	is_refused(bind_to(id, "fe80::1", 0), EINVAL, "rdma_bind_addr(3): an address of a link without the link: EINVAL");
	is_done(bind_to(id, here, 7801), "rdma_bind_addr(3): 0, also after it was refused");
	check(id->verbs && !strcmp(ibv_get_device_name(id->verbs->device), ibv_get_device_name(ctx->device)),
	      "rdma_bind_addr(3): an address binds the id to its device");
	check(id->pd && id->port_num == PORT_NUM, "rdma_bind_addr(3): the id has the device's default PD and port");
	is(ntohs(rdma_get_src_port(id)), 7801, "rdma_get_src_port(3): the port that was bound");
	check(is_here(rdma_get_local_addr(id)), "rdma_get_local_addr(3): the address that was bound");
	is_refused(bind_to(id, here, 7801), EINVAL, "rdma_bind_addr(3): an id that is bound: EINVAL");
	is_refused(bind_to(other, here, 7801), EADDRINUSE, "rdma_bind_addr(3): a port that another id has: EADDRINUSE");
	is_refused(bind_to(other, "0.0.0.0", 7801), EADDRNOTAVAIL,
		   "rdma_bind_addr(3): the wildcard and a port that another id has: EADDRNOTAVAIL");
	is_done(bind_to(udp, here, 7801), "rdma_bind_addr(3): each port space has its own ports: 0");
	is_done(bind_to(other, "0.0.0.0", 7802), "rdma_bind_addr(3): the wildcard: 0");
	check(!other->verbs, "rdma_bind_addr(3): the wildcard binds the id to no device");
	struct rdma_cm_id *third = new_id(channel, RDMA_PS_TCP);

	is_refused(bind_to(third, "0.0.0.0", 7802), EADDRNOTAVAIL,
		   "rdma_bind_addr(3): the wildcard and a port that another id has at the wildcard: EADDRNOTAVAIL");
	is_refused(bind_to(third, here, 7802), EADDRNOTAVAIL,
		   "rdma_bind_addr(3): a port that another id has at the wildcard: EADDRNOTAVAIL");
	is_refused(bind_to(third, "::", 7802), EADDRNOTAVAIL,
		   "rdma_bind_addr(3): :: and a port that another id has at 0.0.0.0: EADDRNOTAVAIL");
	is_refused(bind_to(third, "127.0.0.1", 7802), EADDRNOTAVAIL,
		   "rdma_bind_addr(3): a loopback address is a wildcard: EADDRNOTAVAIL");
	MUST(rdma_destroy_id(third));
	is(ntohs(rdma_get_src_port(other)), 7802, "rdma_get_src_port(3): the port beside the wildcard");
	MUST(rdma_destroy_id(other));
	other = new_id(channel, RDMA_PS_TCP);
	is_done(bind_to(other, here, 0), "rdma_bind_addr(3): port 0: 0");
	check(rdma_get_src_port(other) && ntohs(rdma_get_src_port(other)) != 7801, "rdma_bind_addr(3): port 0 is an available port");
	MUST(rdma_destroy_id(other));
	MUST(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_TCP);
	is_done(bind_to(id, here, 7801), "rdma_destroy_id(3): the port is free afterwards");
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(udp));
}

static void of_ipv6(void)
{
	const char *ip = here6();

	if (!ip) {
		skip("the device has no IPv6 address", "rdma_bind_addr(3): an IPv6 address: 0");
		return;
	}
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct in6_addr expected;

	MUST(inet_pton(AF_INET6, ip, &expected) != 1);
	is_done(bind_to(id, ip, 7803), "rdma_bind_addr(3): an IPv6 address: 0");
	struct sockaddr_in6 *shown = (struct sockaddr_in6 *)rdma_get_local_addr(id);

	check(shown->sin6_family == AF_INET6 && !memcmp(&shown->sin6_addr, &expected, sizeof expected) && id->verbs,
	      "rdma_get_local_addr(3): the IPv6 address that was bound");
	is(ntohs(rdma_get_src_port(id)), 7803, "rdma_get_src_port(3): the port of an IPv6 address");
	MUST(rdma_listen(id, 1));
	struct rdma_cm_id *client = routed(channel, RDMA_PS_TCP, ip, 7803);

	is(ntohs(rdma_get_dst_port(client)), 7803, "rdma_get_dst_port(3): the peer's port of an IPv6 address");
	shown = (struct sockaddr_in6 *)rdma_get_peer_addr(client);
	check(!memcmp(&shown->sin6_addr, &expected, sizeof expected), "rdma_get_peer_addr(3): the peer's IPv6 address");
	MUST(rdma_destroy_id(client));
	MUST(rdma_destroy_id(id));
}

static void listening(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	is_done(rdma_listen(id, 1), "rdma_listen(3): an id without an address listens at any: 0");
	check(rdma_get_src_port(id) != 0, "rdma_listen(3): it has a port then");
	MUST(rdma_destroy_id(id));
	id = bound(channel, RDMA_PS_TCP);
	is_done(rdma_listen(id, 0), "rdma_listen(3): a bound id: 0");
	is_refused(rdma_listen(id, 0), EINVAL, "rdma_listen(3): an id that listens already: EINVAL");
	is_refused(resolve(id, here, 7000), EINVAL, "rdma_resolve_addr(3): an id that listens: EINVAL");
	MUST(rdma_destroy_id(id));
	id = bound(channel, RDMA_PS_UDP);
	is_done(rdma_listen(id, -1), "rdma_listen(3): for datagram services, with the largest backlog: 0");
	MUST(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_TCP);
	MUST(resolve(id, here, 7000));
	must_hear(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	is_refused(rdma_listen(id, 1), EINVAL, "rdma_listen(3): an id with a peer: EINVAL");
	MUST(rdma_destroy_id(id));
}

/* At the wildcard requests to each address come, and at an address those to it alone. */
static void where_requests_come(void)
{
	const char *ip = here6();
	struct rdma_event_channel *of_client = MAKE(rdma_create_event_channel());
	struct rdma_conn_param param = {.qp_num = 0x123456};
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *client;
	struct heard heard;

	MUST(bind_to(id, "0.0.0.0", 7804));
	MUST(rdma_listen(id, 2));
	client = routed(of_client, RDMA_PS_TCP, here, 7804);
	MUST(rdma_connect(client, &param));
	heard = hear(channel);
	check(heard.came && heard.event.event == RDMA_CM_EVENT_CONNECT_REQUEST && heard.event.id->verbs,
	      "rdma_listen(3): at the wildcard requests come from all devices");
	if (heard.came)
		MUST(rdma_destroy_id(heard.event.id));
	MUST(rdma_destroy_id(client));
	MUST(rdma_destroy_id(id));
	if (!ip) {
		skip("the device has no IPv6 address", "rdma_listen(3): at an address no requests to another one come");
	} else {
		id = listener(channel, RDMA_PS_TCP, 7804);
		param.qp_num++;
		client = routed(of_client, RDMA_PS_TCP, ip, 7804);
		MUST(rdma_connect(client, &param));
		heard = hear(of_client);
		check(heard.came && heard.event.event == RDMA_CM_EVENT_REJECTED && !readable(channel->fd, 0),
		      "rdma_listen(3): at an address no requests to another one come");
		MUST(rdma_destroy_id(client));
		MUST(rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(of_client);
}

static void resolving(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_storage odd = {.ss_family = AF_UNIX}, to = address(here, 7000), from = address(here, 7805);
	struct sockaddr_storage not_ours = address(nowhere(), 0), v6 = address("::1", 0);
	struct rdma_conn_param param = {.qp_num = 1};
	struct heard heard;

	is_refused(rdma_resolve_addr(id, NULL, (struct sockaddr *)&odd, RESOLVE_MS), EINVAL,
		   "rdma_resolve_addr(3): a family that isn't an address': EINVAL");
	is_refused(rdma_resolve_addr(id, (struct sockaddr *)&not_ours, (struct sockaddr *)&to, RESOLVE_MS), EADDRNOTAVAIL,
		   "rdma_resolve_addr(3): a source that isn't the host's: EADDRNOTAVAIL");
	is_refused(rdma_resolve_addr(id, (struct sockaddr *)&v6, (struct sockaddr *)&to, RESOLVE_MS), EINVAL,
		   "rdma_resolve_addr(3): a source of another family than the destination: EINVAL");
	MUST(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_TCP);
	is_refused(resolve(id, "255.255.255.255", 1), ENETUNREACH, "rdma_resolve_addr(3): a destination without a route: ENETUNREACH");
	MUST(rdma_destroy_id(id));
	id = bound(channel, RDMA_PS_TCP);
	is_refused(rdma_resolve_route(id, RESOLVE_MS), EINVAL, "rdma_resolve_route(3): before the address is resolved: EINVAL");
	MUST(rdma_destroy_id(id));
	id = new_id(channel, RDMA_PS_TCP);
	is_done(rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, RESOLVE_MS),
		"rdma_resolve_addr(3): with a source: 0");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_ADDR_RESOLVED, 0, "rdma_get_cm_event(3): ADDR_RESOLVED: the address is resolved");
	check(heard.event.id == id, "rdma_get_cm_event(3): ADDR_RESOLVED names the id");
	is(ntohs(rdma_get_src_port(id)), 7805, "rdma_resolve_addr(3): the id is bound to the source");
	is_refused(resolve(id, here, 7000), EINVAL, "rdma_resolve_addr(3): an id whose address is resolved: EINVAL");
	is_refused(rdma_connect(id, &param), EINVAL, "rdma_connect(3): before the route is resolved: EINVAL");
	is_refused(rdma_resolve_route(id, 0), EINVAL, "rdma_resolve_route(3): no time at all: EINVAL");
	is_done(rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route(3): 0 on success");
	heard = hear(channel);
	is_event(&heard, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, "rdma_get_cm_event(3): ROUTE_RESOLVED: the route is resolved");
	check(id->route.path_rec && id->route.num_paths == 1, "rdma_resolve_route(3): the id has a path record");
	check(id->route.path_rec && !memcmp(&id->route.path_rec->dgid, &gid, sizeof gid) && id->route.path_rec->mtu > 0,
	      "rdma_resolve_route(3): it leads to the peer's GID");
	is_refused(rdma_resolve_route(id, RESOLVE_MS), EINVAL, "rdma_resolve_route(3): an id whose route is resolved: EINVAL");
	MUST(rdma_destroy_id(id));

	id = new_id(channel, RDMA_PS_TCP);
	is_done(resolve(id, here, 7000), "rdma_resolve_addr(3): without a source: 0");
	must_hear(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(id->verbs && id->pd && id->port_num == PORT_NUM, "rdma_resolve_addr(3): the id is bound to a device");
	check(is_here(rdma_get_local_addr(id)) && rdma_get_src_port(id), "rdma_resolve_addr(3): the routing table selects the source");
	check(is_here(rdma_get_peer_addr(id)), "rdma_get_peer_addr(3): the peer's address");
	is(ntohs(rdma_get_dst_port(id)), 7000, "rdma_get_dst_port(3): the peer's port");
	check(!memcmp(&id->route.addr.addr.ibaddr.sgid, &gid, sizeof gid) && !memcmp(&id->route.addr.addr.ibaddr.dgid, &gid, sizeof gid),
	      "rdma_resolve_addr(3): addresses have become GIDs");
	MUST(rdma_destroy_id(id));

	id = bound(channel, RDMA_PS_TCP);
	uint16_t port_before = rdma_get_src_port(id);

	is_done(resolve(id, here, 7000), "rdma_resolve_addr(3): an id that is bound already: 0");
	must_hear(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	is(rdma_get_src_port(id), port_before, "rdma_resolve_addr(3): it keeps what it is bound to");
	MUST(rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	channel = MAKE(rdma_create_event_channel());
	binding();
	of_ipv6();
	listening();
	where_requests_come();
	resolving();
	rdma_destroy_event_channel(channel);
	return end();
}
