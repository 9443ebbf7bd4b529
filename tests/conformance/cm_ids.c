/* man rdma_create_event_channel, rdma_create_id, rdma_get_cm_event, rdma_ack_cm_event, rdma_event_str, rdma_get_devices,
 * rdma_migrate_id, rdma_set_option.
 */
#include "cm.h"
#include <pthread.h>

static void channels(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;

	check(channel && fcntl(channel->fd, F_GETFD) >= 0, "rdma_create_event_channel(3): a pointer to a channel with a descriptor");
	check(!readable(channel->fd, 0), "rdma_create_event_channel(3): a channel without events can't be read");
	no_block(channel->fd);
	is_refused(rdma_get_cm_event(channel, &event), EAGAIN,
		   "rdma_get_cm_event(3): no event on a descriptor that doesn't block: EAGAIN");
	is_refused(rdma_get_cm_event(channel, NULL), EINVAL, "rdma_get_cm_event(3): no place for the event: EINVAL");
	is_refused(rdma_ack_cm_event(NULL), EINVAL, "rdma_ack_cm_event(3): no event: EINVAL");
	int fd = channel->fd;

	rdma_destroy_event_channel(channel);
	is(fcntl(fd, F_GETFD), -1, "rdma_destroy_event_channel(3): the descriptor is closed");
}

static void of_each_port_space(struct rdma_event_channel *channel)
{
	static const struct {
		enum rdma_port_space space;
		enum ibv_qp_type type;
		const char *name;
	} spaces[] = {
		{RDMA_PS_TCP, IBV_QPT_RC, "TCP"},
		{RDMA_PS_UDP, IBV_QPT_UD, "UDP"},
		{RDMA_PS_IB, IBV_QPT_RC, "IB"},
	};
	struct rdma_cm_id *id;
	int context;

	for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
		is_done(rdma_create_id(channel, &id, &context, spaces[i].space), "rdma_create_id(3): RDMA_PS_%s: 0", spaces[i].name);
		check(id->ps == spaces[i].space && id->qp_type == spaces[i].type,
		      "rdma_create_id(3): RDMA_PS_%s: the id has the space and its type of QP", spaces[i].name);
		check(id->context == &context && id->channel == channel && !id->verbs && !id->qp,
		      "rdma_create_id(3): RDMA_PS_%s: context and channel are the caller's, and no device's", spaces[i].name);
		is(rdma_get_src_port(id), 0, "rdma_get_src_port(3): RDMA_PS_%s: 0 without a port", spaces[i].name);
		is(rdma_get_dst_port(id), 0, "rdma_get_dst_port(3): RDMA_PS_%s: 0 without a peer", spaces[i].name);
		is_done(rdma_destroy_id(id), "rdma_destroy_id(3): RDMA_PS_%s: 0", spaces[i].name);
	}
	is_refused(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)0x1234), EINVAL,
		   "rdma_create_id(3): a port space that doesn't exist: EINVAL");
}

static void synchronous(void)
{
	struct rdma_cm_id *id;

	is_done(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "rdma_create_id(3): without a channel: 0");
	is_done(resolve(id, here, 7000), "rdma_create_id(3): a synchronous call returns when it is done");
	check(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED && id->verbs,
	      "rdma_create_id(3): the id shows the event of a synchronous call");
	is_done(rdma_resolve_route(id, RESOLVE_MS), "rdma_create_id(3): the next synchronous call takes its place");
	check(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED, "rdma_create_id(3): the id shows the later event");
	MUST(rdma_destroy_id(id));
	MUST(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	is_refused(resolve(id, nowhere(), 7000), ETIMEDOUT, "rdma_create_id(3): a synchronous call that fails: -1 and errno");
	MUST(rdma_destroy_id(id));
}

static void *acknowledge_later(void *event)
{
	usleep(150000);
	MUST(rdma_ack_cm_event(event));
	return NULL;
}

static void events(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	uint64_t start;
	pthread_t thread;

	MUST(resolve(id, here, 7000));
	check(readable(channel->fd, PATIENCE_MS), "rdma_create_event_channel(3): a channel with an event can be read");
	is_done(rdma_get_cm_event(channel, &event), "rdma_get_cm_event(3): 0 on success");
	check(event->id == id && event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->status == 0,
	      "rdma_get_cm_event(3): the event has its id, its type, and status 0");
	start = now_ms();
	MUST(pthread_create(&thread, NULL, acknowledge_later, event));
	is_done(rdma_destroy_id(id), "rdma_destroy_id(3): 0 after an event was acknowledged");
	check(now_ms() - start >= 140, "rdma_get_cm_event(3): destruction waits for the acknowledgement");
	pthread_join(thread, NULL);

	/* Blocking is the default. */
	id = new_id(channel, RDMA_PS_TCP);
	MUST(resolve(id, here, 7000));
	MUST(rdma_get_cm_event(channel, &event));
	is_done(rdma_ack_cm_event(event), "rdma_ack_cm_event(3): 0 on success");
	struct sockaddr_storage to = address(nowhere(), 7000);
	struct rdma_cm_id *other = new_id(channel, RDMA_PS_TCP);

	MUST(rdma_resolve_addr(other, NULL, (struct sockaddr *)&to, 300));
	start = now_ms();
	is_done(rdma_get_cm_event(channel, &event), "rdma_get_cm_event(3): it waits for an event");
	check(now_ms() - start >= 100 && event->id == other, "rdma_get_cm_event(3): until the event comes");
	check(event->event == RDMA_CM_EVENT_ADDR_ERROR && event->status == -ETIMEDOUT,
	      "rdma_get_cm_event(3): ADDR_ERROR: a host that doesn't answer, status -ETIMEDOUT");
	MUST(rdma_ack_cm_event(event));
	check(!other->verbs, "rdma_get_cm_event(3): ADDR_ERROR leaves the id without a device");
	is_done(resolve(other, here, 7000), "rdma_resolve_addr(3): it may be tried again after ADDR_ERROR: 0");
	must_hear(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_destroy_id(other));

	/* Destruction cancels what is under way. */
	other = new_id(channel, RDMA_PS_TCP);
	MUST(rdma_resolve_addr(other, NULL, (struct sockaddr *)&to, 100));
	is_done(rdma_destroy_id(other), "rdma_destroy_id(3): 0 while an address is being resolved");
	check(!readable(channel->fd, 300), "rdma_destroy_id(3): the resolution is cancelled: no event comes");
	MUST(rdma_destroy_id(id));
}

static void migration(struct rdma_event_channel *channel)
{
	struct rdma_event_channel *other = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	pthread_t thread;

	MUST(resolve(id, here, 7000));
	check(readable(channel->fd, PATIENCE_MS), "rdma_migrate_id(3): the event is on the id's first channel");
	is_done(rdma_migrate_id(id, other), "rdma_migrate_id(3): 0 on success");
	check(id->channel == other, "rdma_migrate_id(3): the id shows its new channel");
	check(!readable(channel->fd, QUIET_MS), "rdma_migrate_id(3): the first channel has no event of the id");
	check(readable(other->fd, PATIENCE_MS), "rdma_migrate_id(3): the event has moved to the new channel");
	MUST(rdma_get_cm_event(other, &event));
	check(event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->id == id, "rdma_migrate_id(3): it is the event it was");
	uint64_t start = now_ms();

	MUST(pthread_create(&thread, NULL, acknowledge_later, event));
	is_done(rdma_migrate_id(id, channel), "rdma_migrate_id(3): 0 when the event has been acknowledged");
	check(now_ms() - start >= 140, "rdma_migrate_id(3): it waits for events that aren't acknowledged");
	pthread_join(thread, NULL);
	is_done(rdma_migrate_id(id, NULL), "rdma_migrate_id(3): to no channel: 0");
	is_done(rdma_resolve_route(id, RESOLVE_MS), "rdma_migrate_id(3): without a channel calls wait until they are done");
	check(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED, "rdma_migrate_id(3): and the id shows the event");
	is_done(rdma_migrate_id(id, other), "rdma_migrate_id(3): from synchronous operation to a channel: 0");
	check(!id->event && id->channel == other, "rdma_migrate_id(3): the id is asynchronous again");
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(other);
}

static void names(void)
{
	static const char *const names[] = {
		"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
		"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN",
		"MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
	};

	for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
		const char *name = rdma_event_str((enum rdma_cm_event_type)i);

		check(!strncmp(name, "RDMA_CM_EVENT_", 14) && !strcmp(name + 14, names[i]),
		      "rdma_event_str(3): the name of RDMA_CM_EVENT_%s", names[i]);
	}
	check(!strcmp(rdma_event_str((enum rdma_cm_event_type)99), "UNKNOWN EVENT"),
	      "rdma_event_str(3): a string for an event that doesn't exist, too");
}

static void devices(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = bound(channel, RDMA_PS_TCP);
	int count = -1, found = 0;
	struct ibv_context **list = rdma_get_devices(&count), **again;

	check(list && count > 0 && !list[count], "rdma_get_devices(3): an array that ends with NULL");
	for (int i = 0; list && i < count; i++)
		found += list[i] == id->verbs;
	is(found, 1, "rdma_get_devices(3): it has the device of an id, opened");
	again = rdma_get_devices(NULL);
	check(again && again[0] == list[0], "rdma_get_devices(3): devices stay open, and their number needn't be asked for");
	rdma_free_devices(again);
	rdma_free_devices(list);
	struct ibv_device_attr attr;

	is(ibv_query_device(id->verbs, &attr), 0, "rdma_free_devices(3): the devices stay open");
	MUST(rdma_destroy_id(id));
}

static void options(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *other = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_id *udp = new_id(channel, RDMA_PS_UDP);
	uint8_t tos = 0x20, timeout = 14;
	int on = 1;

	is_done(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos), "rdma_set_option(3): ID_TOS: 0");
	is_refused(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on), EINVAL,
		   "rdma_set_option(3): ID_TOS of another length: EINVAL");
	is_done(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), "rdma_set_option(3): ID_REUSEADDR: 0");
	is_refused(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1), EINVAL,
		   "rdma_set_option(3): ID_REUSEADDR of another length: EINVAL");
	MUST(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	MUST(bind_to(id, here, 7811));
	is_done(bind_to(other, here, 7811), "rdma_set_option(3): with ID_REUSEADDR a second id has the port: 0");
	is_refused(rdma_listen(id, 1), EADDRINUSE, "rdma_listen(3): on a port that another id has, too: EADDRINUSE");
	MUST(rdma_destroy_id(other));
	MUST(rdma_destroy_id(id));

	id = new_id(channel, RDMA_PS_TCP);
	other = new_id(channel, RDMA_PS_TCP);
	MUST(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	MUST(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	MUST(bind_to(id, "0.0.0.0", 7813));
	is_done(bind_to(other, here, 7813), "rdma_set_option(3): with ID_REUSEADDR a second id has the wildcard's port: 0");
	is_refused(rdma_listen(id, 1), EADDRNOTAVAIL, "rdma_listen(3): at the wildcard, on a port that another id has, too: EADDRNOTAVAIL");
	MUST(rdma_destroy_id(other));
	MUST(rdma_destroy_id(id));

	id = new_id(channel, RDMA_PS_TCP);
	other = new_id(channel, RDMA_PS_TCP);
	is_done(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on), "rdma_set_option(3): ID_AFONLY: 0");
	is_refused(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 1), EINVAL,
		   "rdma_set_option(3): ID_AFONLY of another length: EINVAL");
	MUST(bind_to(id, "::", 7812));
	is_done(bind_to(other, "0.0.0.0", 7812), "rdma_set_option(3): with ID_AFONLY :: leaves the port of 0.0.0.0 free: 0");
	MUST(rdma_destroy_id(other));
	MUST(rdma_destroy_id(id));

	id = new_id(channel, RDMA_PS_TCP);
	is_done(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout),
		"rdma_set_option(3): ID_ACK_TIMEOUT: 0");
	is_refused(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &on, sizeof on), EINVAL,
		   "rdma_set_option(3): ID_ACK_TIMEOUT of another length: EINVAL");
	is_refused(rdma_set_option(udp, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout), EINVAL,
		   "rdma_set_option(3): ID_ACK_TIMEOUT of an id for datagrams: EINVAL");
	is_refused(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, 5), EINVAL,
		   "rdma_set_option(3): IB_PATH of another length than whole records: EINVAL");
	is_refused(rdma_set_option(id, RDMA_OPTION_ID, 77, &on, sizeof on), ENOSYS, "rdma_set_option(3): an option that doesn't exist: ENOSYS");
	is_refused(rdma_set_option(id, 9, RDMA_OPTION_ID_TOS, &tos, sizeof tos), ENOSYS,
		   "rdma_set_option(3): a level that doesn't exist: ENOSYS");
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(udp));
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());

	channels();
	of_each_port_space(channel);
	synchronous();
	events(channel);
	migration(channel);
	names();
	devices(channel);
	options(channel);
	rdma_destroy_event_channel(channel);
	return end();
}
