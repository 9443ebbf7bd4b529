/* A loop whose completions raise events on a channel. */
#ifndef CHANNEL_H
#define CHANNEL_H

#include "loop.h"

struct fixture {
	struct device device;
	struct loop loop;
};

static char memory[4096];

static struct fixture make_fixture(void)
{
	struct fixture f = {.device = open_device(1)};

	f.loop = make_loop_on(&f.device, MAKE(ibv_create_comp_channel(f.device.context)), 32, memory, sizeof memory);
	return f;
}

/* Those of one message. */
UNUSED static void take_completions(const struct fixture *f)
{
	struct ibv_wc wc;

	complete_message(&f->loop);
	if (ibv_poll_cq(f->loop.cq, 1, &wc) != 0)
		fail("more completions than requests");
}

UNUSED static void take_event(const struct fixture *f)
{
	struct ibv_cq *cq = NULL;
	void *cq_context;

	MUST(ibv_get_cq_event(f->loop.channel, &cq, &cq_context));
	if (cq != f->loop.cq)
		fail("the event names another CQ");
	ibv_ack_cq_events(cq, 1);
}

static void tear_down(struct fixture *f)
{
	destroy_loop(&f->loop);
	MUST(ibv_destroy_comp_channel(f->loop.channel));
	MUST(ibv_dealloc_pd(f->device.pd));
	MUST(ibv_close_device(f->device.context));
}

#endif
