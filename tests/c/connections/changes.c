/* Ids whose interface changes. A thread waits in rdma_get_cm_event and prints what happens to each of them, until the device of all
 * has gone; "ready" is printed when the interface may change. They are
 *
 *   listening   bound to HERE, and listens
 *   everywhere  listens at all addresses, and so is bound to no device
 *   second      bound to HERE's neighbour SECOND, which the caller has given the interface
 *   client, server   a connection by HERE
 */
#include "connections/cm.h"
#include <pthread.h>

#define SECOND "10.77.0.7"

/* Of the five, those that are bound to the device. */
#define BOUND 4

struct named {
	struct rdma_cm_id *id;
	const char *name;
};

static struct named ids[5];

static const char *name_of(struct rdma_cm_id *id)
{
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
		if (ids[i].id == id)
			return ids[i].name;
	fail("an event of an unknown id");
}

static void *print_events(void *channel)
{
	int removed = 0;

	while (removed < BOUND) {
		struct rdma_cm_event *event;

		MUST(rdma_get_cm_event(channel, &event));
		printf("%s of %s\n", rdma_event_str(event->event), name_of(event->id));
		fflush(stdout);
		if (event->status)
			fail("status %d", event->status);
		removed += event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
		MUST(rdma_ack_cm_event(event));
	}
	return NULL;
}

int main(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP, 4), *everywhere = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_id *second = new_id(channel, RDMA_PS_TCP), *client, *server;
	struct rdma_conn_param param = {0};
	struct rdma_cm_event *request;
	pthread_t thread;

	alarm(ALARM_SECONDS);
	MUST(bind_to(everywhere, "0.0.0.0", 0));
	MUST(rdma_listen(everywhere, 1));
	MUST(bind_to(second, SECOND, 0));
	client = resolved(channel, RDMA_PS_TCP, ntohs(rdma_get_src_port(listening)));
	add_qp(client);
	MUST(rdma_connect(client, &param));
	request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	server = request->id;
	MUST(rdma_ack_cm_event(request));
	add_qp(server);
	MUST(rdma_accept(server, &param));
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);

	ids[0] = (struct named){listening, "listening"};
	ids[1] = (struct named){everywhere, "everywhere"};
	ids[2] = (struct named){second, "second"};
	ids[3] = (struct named){client, "client"};
	ids[4] = (struct named){server, "server"};
	if (pthread_create(&thread, NULL, print_events, channel))
		fail("no thread");
	puts("ready");
	fflush(stdout);
	pthread_join(thread, NULL);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
		MUST(rdma_destroy_id(ids[i].id));
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
