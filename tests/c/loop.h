/* Two RC queue pairs of one process, connected to each other. What goes over them is one half of their memory, into the
 * other.
 */
#ifndef LOOP_H
#define LOOP_H

#include "common.h"

struct loop {
	/* NULL where the program polls only. */
	struct ibv_comp_channel *channel;
	/* Of both queue pairs. */
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
};

UNUSED static struct loop make_loop_by(const struct device *device, const struct path *path, struct ibv_comp_channel *channel,
				       int completions, void *memory, size_t length)
{
	struct loop loop = {.channel = channel, .cq = make_cq(device, completions, channel)};

	loop.mr = MAKE(ibv_reg_mr(device->pd, memory, length, ALL_ACCESS));
	loop.a = make_qp(device, IBV_QPT_RC, loop.cq, NULL, 8);
	loop.b = make_qp(device, IBV_QPT_RC, loop.cq, NULL, 8);
	MUST(to_init(loop.a, ALL_ACCESS));
	MUST(to_init(loop.b, ALL_ACCESS));
	connect_qps(device, path, loop.a, loop.b);
	return loop;
}

UNUSED static struct loop make_loop_on(const struct device *device, struct ibv_comp_channel *channel, int completions,
				       void *memory, size_t length)
{
	struct path path = default_path(device);

	return make_loop_by(device, &path, channel, completions, memory, length);
}

UNUSED static struct loop make_loop(const struct device *device, int completions, void *memory, size_t length)
{
	return make_loop_on(device, NULL, completions, memory, length);
}

/* Sends the first half of the memory from `a` (request 2) to the second half at `b` (request 1). */
UNUSED static void post_message(const struct loop *loop)
{
	uint32_t half = (uint32_t)(loop->mr->length / 2);

	MUST(post_recv(loop->b, loop->mr, half, half, 1));
	MUST(post_send(loop->a, loop->mr, 0, half, 2));
}

UNUSED static void complete_message(const struct loop *loop)
{
	struct ibv_wc wc;

	MUST_COMPLETE(loop->cq, &wc);
	MUST_COMPLETE(loop->cq, &wc);
}

UNUSED static void pass_message(const struct loop *loop)
{
	post_message(loop);
	complete_message(loop);
}

/* All but the channel. */
UNUSED static void destroy_loop(const struct loop *loop)
{
	MUST(ibv_destroy_qp(loop->a));
	MUST(ibv_destroy_qp(loop->b));
	MUST(ibv_destroy_cq(loop->cq));
	MUST(ibv_dereg_mr(loop->mr));
}

#endif
