/* The device goes while a program uses it: `removal events` binds an id, which gets an event and can be destroyed;
 * `removal calls` waits in a call of a synchronous id, which fails. "ready" is printed when the device may go.
 */
#include "connections/cm.h"
#include <pthread.h>

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void hear_by_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct ibv_async_event event;

	MUST(bind_to(id, HERE, 0));
	ready();
	pass(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	/* Verbs report it as well, perhaps after other events of the port. */
	do {
		MUST(ibv_get_async_event(id->verbs, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	REFUSED(EINVAL, rdma_listen(id, 1));
	MUST(rdma_destroy_id(id));
}

/* No side accepts the request. */
static void *wait_for_request(void *channel)
{
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

	ready();
	return event;
}

static void hear_by_call(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *asked = listener(channel, RDMA_PS_TCP, 1), *id = new_id(NULL, RDMA_PS_TCP), *child;
	struct rdma_conn_param param = {0};
	struct rdma_cm_event *event;
	pthread_t thread;
	void *request;

	MUST(resolve(id, HERE, ntohs(rdma_get_src_port(asked))));
	MUST(rdma_resolve_route(id, 2000));
	add_qp(id);
	if (pthread_create(&thread, NULL, wait_for_request, channel))
		fail("no thread");
	REFUSED(ENODEV, rdma_connect(id, &param));
	if (id->event->event != RDMA_CM_EVENT_DEVICE_REMOVAL)
		fail("%s ended the call", rdma_event_str(id->event->event));
	pthread_join(thread, &request);
	event = request;
	child = event->id;
	MUST(rdma_ack_cm_event(event));
	rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));
	MUST(rdma_destroy_id(child));
	MUST(rdma_destroy_id(asked));
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());

	alarm(ALARM_SECONDS);
	if (argc == 2 && !strcmp(argv[1], "events"))
		hear_by_event(channel);
	else if (argc == 2 && !strcmp(argv[1], "calls"))
		hear_by_call(channel);
	else
		fail("usage: removal events|calls");
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
