/* Two RC queue pairs of one process, connected to each other. */
#ifndef LOOP_H
#define LOOP_H

#include "common.h"

struct loop {
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
};

static struct loop make_loop(const struct device *device, int depth, void *memory, size_t length)
{
	struct path path = default_path(device);
	struct loop loop = {.cq = make_cq(device, depth, NULL)};

	loop.mr = MAKE(ibv_reg_mr(device->pd, memory, length, ALL_ACCESS));
	loop.a = make_qp(device, IBV_QPT_RC, loop.cq, NULL, 8);
	loop.b = make_qp(device, IBV_QPT_RC, loop.cq, NULL, 8);
	MUST(to_init(loop.a, ALL_ACCESS));
	MUST(to_init(loop.b, ALL_ACCESS));
	connect_qps(device, &path, loop.a, loop.b);
	return loop;
}

#endif
