/* An id is given up while another thread has an event of it: `acknowledged destroy|migrate|request|second
 * late|soon`. Prints the id that is waited for.
 */
#include "connections/cm.h"
#include <pthread.h>

static struct rdma_cm_event *event;
static unsigned int pause_ms;

static void *acknowledge(void *nothing)
{
	usleep(pause_ms * 1000);
	MUST(rdma_ack_cm_event(event));
	return nothing;
}

__attribute__((noinline)) static void take_first(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *first;

	MUST(rdma_get_cm_event(channel, &first));
	MUST(rdma_ack_cm_event(first));
}

__attribute__((noinline)) static void take_second(struct rdma_event_channel *channel)
{
	MUST(rdma_get_cm_event(channel, &event));
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *child = NULL, *client = NULL;
	pthread_t thread;
	bool migrates;

	alarm(ALARM_SECONDS);
	if (argc != 3)
		fail("usage: acknowledged destroy|migrate|request|second late|soon");
	migrates = !strcmp(argv[1], "migrate");
	pause_ms = strcmp(argv[2], "late") ? 100 : 1500;
	if (!strcmp(argv[1], "request")) {
		struct rdma_conn_param param = {0};

		MUST(bind_to(id, HERE, 0));
		MUST(rdma_listen(id, 1));
		client = resolved(channel, RDMA_PS_TCP, ntohs(rdma_get_src_port(id)));
		add_qp(client);
		MUST(rdma_connect(client, &param));
		event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		child = event->id;
	} else if (!strcmp(argv[1], "second")) {
		MUST(resolve(id, HERE, 7801));
		take_first(channel);
		MUST(rdma_resolve_route(id, 1000));
		take_second(channel);
	} else {
		MUST(resolve(id, HERE, 7801));
		event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	}
	printf("%p\n", (void *)id);
	fflush(stdout);
	if (pthread_create(&thread, NULL, acknowledge, NULL))
		fail("no thread");
	if (migrates) {
		struct rdma_event_channel *other = MAKE(rdma_create_event_channel());

		MUST(rdma_migrate_id(id, other));
		MUST(rdma_destroy_id(id));
		rdma_destroy_event_channel(other);
	} else {
		MUST(rdma_destroy_id(id));
	}
	pthread_join(thread, NULL);
	if (child) {
		MUST(rdma_destroy_id(child));
		rdma_destroy_qp(client);
		MUST(rdma_destroy_id(client));
	}
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
