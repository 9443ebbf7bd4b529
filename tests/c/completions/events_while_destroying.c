/* events_while_destroying: eight threads take and acknowledge completion events and asynchronous events, while others
 * make the objects that these are of, cause events, and destroy them. Nothing deadlocks, no event is of an object that
 * has gone, and an object isn't destroyed before its last event is acknowledged.
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define READERS 4
#define MAKERS 4
#define DURATION_MS 1500

static struct device device;
static struct ibv_comp_channel *channel;
static atomic_bool stop;
static atomic_ulong completions, asynchronous;

/* What an event's object leads to: while an event is unacknowledged, it isn't destroyed. */
struct life {
	atomic_int unacknowledged;
	atomic_bool destroyed;
};

static void hold(struct life *life)
{
	atomic_fetch_add(&life->unacknowledged, 1);
	if (atomic_load(&life->destroyed))
		fail("an event of an object that has gone");
	sched_yield();
	if (atomic_load(&life->destroyed))
		fail("an object was destroyed before its event was acknowledged");
	atomic_fetch_sub(&life->unacknowledged, 1);
}

static void *read_completions(void *argument)
{
	struct ibv_cq *cq;
	void *context;

	for (;;) {
		if (ibv_get_cq_event(channel, &cq, &context))
			fail("ibv_get_cq_event: %s", strerror(errno));
		hold(context);
		atomic_fetch_add(&completions, 1);
		ibv_ack_cq_events(cq, 1);
	}
	return argument;
}

static void *read_asynchronous(void *argument)
{
	struct ibv_async_event event;

	for (;;) {
		if (ibv_get_async_event(device.context, &event))
			fail("ibv_get_async_event: %s", strerror(errno));
		if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
			hold(event.element.srq->srq_context);
		else if (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
			hold(event.element.qp->qp_context);
		else
			fail("%s", ibv_event_type_str(event.event_type));
		atomic_fetch_add(&asynchronous, 1);
		ibv_ack_async_event(&event);
	}
	return argument;
}

/* One life of a CQ, an SRQ and two QPs, with events of each of them. */
static void make_and_destroy(void)
{
	/* Events that were got but not taken any further may still look here. */
	struct life *life = MAKE(calloc(3, sizeof *life));
	static char memory[64];
	struct path path = default_path(&device);
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(device.context));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS));
	struct ibv_cq *cq = MAKE(ibv_create_cq(device.context, 64, &life[0], channel, 0));
	struct ibv_srq_init_attr init = {.srq_context = &life[1], .attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(pd, &init));
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_qp_init_attr_ex qp_init = {
		.qp_context = &life[2], .send_cq = cq, .recv_cq = cq, .srq = srq,
		.cap = {.max_send_wr = 8, .max_send_sge = 1}, .qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	struct ibv_qp *a = MAKE(ibv_create_qp_ex(device.context, &qp_init));
	struct ibv_qp *b = MAKE(ibv_create_qp_ex(device.context, &qp_init));
	struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&device, &path, a, b);
	for (int i = 0; i < 3; i++)
		MUST(ibv_post_srq_recv(srq, &recv, &bad));
	MUST(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	for (int i = 0; i < 3; i++) {
		MUST(ibv_req_notify_cq(cq, 0));
		MUST(post_send(a, mr, 0, 8, 1));
		sched_yield();
	}
	/* At once, with events and requests on their way. */
	MUST(ibv_modify_qp(b, &attr, IBV_QP_STATE));
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	atomic_store(&life[2].destroyed, true);
	MUST(ibv_destroy_srq(srq));
	atomic_store(&life[1].destroyed, true);
	MUST(ibv_destroy_cq(cq));
	atomic_store(&life[0].destroyed, true);
	for (int i = 0; i < 3; i++)
		if (atomic_load(&life[i].unacknowledged))
			fail("object %d was destroyed with an unacknowledged event", i);
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_dealloc_pd(pd));
	free(life);
}

static void *make(void *argument)
{
	while (!atomic_load(&stop))
		make_and_destroy();
	return argument;
}

int main(void)
{
	pthread_t readers[READERS], makers[MAKERS];

	alarm(ALARM_SECONDS);
	device = open_device(1);
	channel = MAKE(ibv_create_comp_channel(device.context));
	for (int i = 0; i < READERS; i++)
		if (pthread_create(&readers[i], NULL, i % 2 ? read_completions : read_asynchronous, NULL))
			fail("pthread_create");
	for (int i = 0; i < MAKERS; i++)
		if (pthread_create(&makers[i], NULL, make, NULL))
			fail("pthread_create");
	usleep(DURATION_MS * 1000);
	for (uint64_t end = now_ms() + 20000; !atomic_load(&completions) || !atomic_load(&asynchronous);)
		if (now_ms() > end)
			fail("%lu completion events and %lu asynchronous ones", completions, asynchronous);
	atomic_store(&stop, true);
	for (int i = 0; i < MAKERS; i++)
		pthread_join(makers[i], NULL);
	for (int i = 0; i < READERS; i++) {
		pthread_cancel(readers[i]);
		pthread_join(readers[i], NULL);
	}
	MUST(ibv_destroy_comp_channel(channel));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	puts("ok");
	return 0;
}
