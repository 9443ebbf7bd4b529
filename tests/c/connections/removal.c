/* Binds an id, says so, and waits until its device goes: the id hears of it once, and can be destroyed. */
#include "connections/cm.h"

int main(void)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	alarm(ALARM_SECONDS);
	MUST(bind_to(id, HERE, 0));
	puts("bound");
	fflush(stdout);
	pass(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	REFUSED(EINVAL, rdma_listen(id, 1));
	MUST(rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
