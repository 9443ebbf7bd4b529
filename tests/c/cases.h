/* What programs of many small cases share: what a case expects of a call, and two QPs to call it on. */
#ifndef CASES_H
#define CASES_H

#include "common.h"

/* The call must return this errno value (verbs return it; some set errno too). */
#define EXPECT_ERRNO(expected, call)                                                   \
	do {                                                                           \
		int expect_result = (call);                                            \
		if (expect_result != (expected))                                       \
			fail("%s:%d: %s: returned %d (%s), not %s", __FILE__,          \
			     __LINE__, #call, expect_result,                           \
			     strerror(expect_result < 0 ? errno : expect_result),      \
			     #expected);                                               \
	} while (0)

/* The call must return NULL and set errno to this value. */
#define EXPECT_NULL(expected, call)                                                    \
	do {                                                                           \
		errno = 0;                                                             \
		if ((call) != NULL)                                                    \
			fail("%s:%d: %s: succeeded", __FILE__, __LINE__, #call);       \
		if (errno != (expected))                                               \
			fail("%s:%d: %s: errno is %d (%s), not %s", __FILE__,          \
			     __LINE__, #call, errno, strerror(errno), #expected);      \
	} while (0)

#define EXPECT(condition)                                                              \
	do {                                                                           \
		if (!(condition))                                                      \
			fail("%s:%d: not so: %s", __FILE__, __LINE__, #condition);     \
	} while (0)

/* The next completion must be this request's, with this status. */
#define EXPECT_STATUS(cq, id, expected)                                                \
	do {                                                                           \
		struct ibv_wc status_wc;                                               \
		if (!wait_wc(cq, &status_wc, 10000))                                   \
			fail("%s:%d: no completion in 10 s", __FILE__, __LINE__);      \
		if (status_wc.status != (expected) || status_wc.wr_id != (id))         \
			fail("%s:%d: request %llu completed with %s, not request %llu with %s", \
			     __FILE__, __LINE__, (unsigned long long)status_wc.wr_id,  \
			     ibv_wc_status_str(status_wc.status),                      \
			     (unsigned long long)(id), ibv_wc_status_str(expected));   \
	} while (0)

#define EXPECT_NOTHING(cq)                                                             \
	do {                                                                           \
		struct ibv_wc nothing_wc;                                              \
		if (wait_wc(cq, &nothing_wc, 150))                                     \
			fail("%s:%d: an unexpected completion: request %llu, %s",      \
			     __FILE__, __LINE__, (unsigned long long)nothing_wc.wr_id, \
			     ibv_wc_status_str(nothing_wc.status));                    \
	} while (0)

#define MEMORY_SIZE 65536
#define DEPTH 8

/* Two QPs of this process, each with a CQ of its own, over one page-aligned memory. */
struct fixture {
	struct device device;
	struct path path;
	struct ibv_cq *cq_a, *cq_b;
	struct ibv_qp *a, *b;
	char *memory;
	struct ibv_mr *mr;
};

/* QPs in RESET. */
UNUSED static struct fixture unconnected(enum ibv_qp_type type)
{
	struct fixture f = {.device = open_device(1)};
	void *memory;

	f.path = default_path(&f.device);
	f.cq_a = make_cq(&f.device, 64, NULL);
	f.cq_b = make_cq(&f.device, 64, NULL);
	f.a = make_qp(&f.device, type, f.cq_a, NULL, DEPTH);
	f.b = make_qp(&f.device, type, f.cq_b, NULL, DEPTH);
	if (posix_memalign(&memory, 4096, MEMORY_SIZE))
		fail("no memory");
	f.memory = memory;
	memset(f.memory, 0, MEMORY_SIZE);
	f.mr = MAKE(ibv_reg_mr(f.device.pd, f.memory, MEMORY_SIZE, ALL_ACCESS));
	return f;
}

/* QPs in RTS. */
UNUSED static struct fixture connected_with(enum ibv_qp_type type, struct path change)
{
	struct fixture f = unconnected(type);

	if (change.access)
		f.path.access = change.access;
	f.path.rnr_retry = change.rnr_retry;
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, f.path.access));
	connect_qps(&f.device, &f.path, f.a, f.b);
	return f;
}

UNUSED static struct fixture connected(enum ibv_qp_type type)
{
	return connected_with(type, (struct path){.rnr_retry = 7});
}

/* A one-sided request of 8 bytes and more to `remote`; what it leaves out is filled in by the case. */
UNUSED static int post_remote(struct ibv_qp *qp, enum ibv_wr_opcode opcode, const struct ibv_mr *local,
					       uint32_t length, uint64_t remote, uint32_t rkey, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)local->addr, length, local->lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	set_remote(&wr, remote, rkey);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		wr.wr.atomic.compare_add = 1;
	return ibv_post_send(qp, &wr, &bad);
}

#endif
