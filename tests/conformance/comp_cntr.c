/* Completion counters, calls of newer headers: ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_qp_attach_comp_cntr. */
#include "conform.h"
#include "../c/newer.h"

static int (*query)(struct ibv_context *, struct counter_caps *, size_t);
static void *(*create)(struct ibv_context *, struct counter_attr *);
static int (*destroy)(void *);
static int (*attach)(struct ibv_qp *, void *, struct attach_attr *);
static int (*set)(void *, uint64_t), (*set_err)(void *, uint64_t), (*add)(void *, uint64_t), (*add_err)(void *, uint64_t);
static int (*read_good)(void *, uint64_t *), (*read_bad)(void *, uint64_t *);
static struct buffer buffer;

static bool look_up(void)
{
	query = newer("_ibv_query_comp_cntr_caps");
	create = newer("ibv_create_comp_cntr");
	destroy = newer("ibv_destroy_comp_cntr");
	attach = newer("ibv_qp_attach_comp_cntr");
	set = newer("ibv_set_comp_cntr");
	set_err = newer("ibv_set_err_comp_cntr");
	add = newer("ibv_inc_comp_cntr");
	add_err = newer("ibv_inc_err_comp_cntr");
	read_good = newer("ibv_read_comp_cntr");
	read_bad = newer("ibv_read_err_comp_cntr");
	return query && create;
}

/* Waits until a counter has a value; updates may be seen a little later. */
static bool reaches(void *counter, uint64_t good, uint64_t bad)
{
	uint64_t deadline = now_ms() + PATIENCE_MS, values[2] = {0};

	do {
		MUST(read_good(counter, &values[0]));
		MUST(read_bad(counter, &values[1]));
	} while ((values[0] != good || values[1] != bad) && now_ms() < deadline);
	if (values[0] != good || values[1] != bad)
		printf("# at %llu and %llu\n", (unsigned long long)values[0], (unsigned long long)values[1]);
	return values[0] == good && values[1] == bad;
}

static void values(const struct counter_caps *caps)
{
	struct counter_attr attr = {0};
	void *counter = create(ctx, &attr);
	uint64_t value = 99;

	if (!check(counter != NULL, "ibv_create_comp_cntr(3): a pointer to the counter"))
		return;
	check(*(struct ibv_context **)counter == ctx, "ibv_create_comp_cntr(3): the counter contains its context");
	is(read_good(counter, &value), 0, "ibv_read_comp_cntr(3): 0 on success");
	is((long)value, 0, "ibv_read_comp_cntr(3): a new counter is at 0");
	is(read_bad(counter, &value), 0, "ibv_read_err_comp_cntr(3): 0 on success");
	is((long)value, 0, "ibv_read_err_comp_cntr(3): a new counter is at 0");
	is(set(counter, 40), 0, "ibv_set_comp_cntr(3): 0 on success");
	is(set_err(counter, 50), 0, "ibv_set_err_comp_cntr(3): 0 on success");
	check(reaches(counter, 40, 50), "ibv_set_comp_cntr(3): the two values are set each for itself");
	is(add(counter, 2), 0, "ibv_inc_comp_cntr(3): 0 on success");
	is(add_err(counter, 3), 0, "ibv_inc_err_comp_cntr(3): 0 on success");
	check(reaches(counter, 42, 53), "ibv_inc_comp_cntr(3): the two values are counted up by the amount");
	MUST(set(counter, caps->max_value));
	MUST(add(counter, 1));
	check(reaches(counter, 0, 53), "ibv_query_comp_cntr_caps(3): beyond max_value a counter goes on at 0");
	is(destroy(counter), 0, "ibv_destroy_comp_cntr(3): 0 on success");
	attr.type = 2;
	is_null(create(ctx, &attr), ENOTSUP, "ibv_create_comp_cntr(3): a type that doesn't exist: ENOTSUP");
	attr = (struct counter_attr){.flags = 1};
	is_null(create(ctx, &attr), EINVAL, "ibv_create_comp_cntr(3): flags other than 0: EINVAL");
	attr = (struct counter_attr){.comp_mask = 1};
	is_null(create(ctx, &attr), EINVAL, "ibv_create_comp_cntr(3): an unknown comp_mask: EINVAL");
}

static void too_many_counters(const struct counter_caps *caps)
{
	struct counter_attr attr = {0};
	void **all;
	uint32_t made = 0;

	if (caps->max_counters > 100000) {
		skip("there are too many", "ibv_create_comp_cntr(3): more than max_counters: ENOMEM");
		return;
	}
	all = MAKE(calloc(caps->max_counters + 1, sizeof *all));
	errno = 0;
	while (made <= caps->max_counters && (all[made] = create(ctx, &attr)))
		made++;
	is(made, caps->max_counters, "ibv_query_comp_cntr_caps(3): max_counters can be created");
	is(errno, ENOMEM, "ibv_create_comp_cntr(3): more than max_counters: ENOMEM");
	while (made)
		MUST(destroy(all[--made]));
	free(all);
}

static void attaching(const struct counter_caps *caps)
{
	struct pair pair = {.cq_a = make_cq(64), .cq_b = make_cq(64)};
	struct counter_attr requests = {0}, in_bytes = {.type = COUNTS_BYTES};
	struct attach_attr of_a = {0, OP_SEND | OP_WRITE}, of_b = {0, OP_RECV | OP_REMOTE_WRITE}, unknown = {0, 1 << 9};
	void *sent = MAKE(create(ctx, &requests)), *arrived = MAKE(create(ctx, &in_bytes));
	struct path path = PATH;
	struct attach_attr wrong = {1, OP_READ}, none = {0, 0}, of_both = {0, OP_WRITE};
	void *remote = MAKE(create(ctx, &requests));

	pair.a = make_qp(IBV_QPT_RC, pair.cq_a);
	pair.b = make_qp(IBV_QPT_RC, pair.cq_b);
	is(attach(pair.a, sent, &unknown), ENOTSUP, "ibv_qp_attach_comp_cntr(3): an operation that doesn't exist: ENOTSUP");
	is(attach(pair.a, sent, &wrong), EINVAL, "ibv_qp_attach_comp_cntr(3): a comp_mask other than 0: EINVAL");
	is(attach(pair.a, sent, &none), EINVAL, "ibv_qp_attach_comp_cntr(3): no operation at all: EINVAL");
	is(attach(pair.a, sent, &of_a), 0, "ibv_qp_attach_comp_cntr(3): 0 on success in RESET");
	bring(pair.b, IBV_QPS_INIT, &path, 0);
	is(attach(pair.b, arrived, &of_b), 0, "ibv_qp_attach_comp_cntr(3): 0 on success in INIT");
	is(attach(pair.a, arrived, &of_a), EBUSY, "ibv_qp_attach_comp_cntr(3): operations that another counter counts: EBUSY");
	is(attach(pair.a, remote, &of_both), EBUSY, "ibv_qp_attach_comp_cntr(3): of several operations one is enough: EBUSY");
	of_both.op_mask = OP_READ;
	is(attach(pair.a, remote, &of_both), 0, "ibv_qp_attach_comp_cntr(3): several counters of one QP, of different operations");
	is(destroy(sent), EBUSY, "ibv_destroy_comp_cntr(3): a counter of a QP isn't destroyed: EBUSY");
	MUST(ibv_destroy_qp(pair.b));
	pair.b = make_qp(IBV_QPT_RC, pair.cq_b);
	is(attach(pair.b, arrived, &of_b), 0, "ibv_qp_attach_comp_cntr(3): a destroyed QP's counter can be attached to another");
	bring(pair.a, IBV_QPS_RTS, &path, pair.b->qp_num);
	bring(pair.b, IBV_QPS_RTS, &path, pair.a->qp_num);
	of_b.op_mask = OP_SEND;
	is(attach(pair.b, arrived, &of_b), EINVAL, "ibv_qp_attach_comp_cntr(3): in RTS: EINVAL");

	struct ibv_sge sge = piece(&buffer, 0, 100);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	wr.send_flags = 0;
	for (int i = 0; i < 3; i++) {
		MUST(post_recv(pair.b, &buffer, 2048, 100, 2));
		MUST(post(pair.a, &wr));
		MUST(next(pair.cq_b));
	}
	check(reaches(sent, 3, 0), "ibv_qp_attach_comp_cntr(3): SEND counts requests, also those without a completion");
	check(reaches(arrived, 300, 0), "ibv_qp_attach_comp_cntr(3): RECV counts bytes where the counter does");
	MUST(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 50), (uintptr_t)buffer.mem + 2048, buffer.mr->rkey));
	check(reaches(sent, 4, 0), "ibv_qp_attach_comp_cntr(3): RDMA_WRITE counts too, into one counter");
	if (caps->operations & OP_REMOTE_WRITE)
		check(reaches(arrived, 350, 0), "ibv_qp_attach_comp_cntr(3): REMOTE_RDMA_WRITE counts what the other side writes");
	MUST(one_sided(&pair, IBV_WR_RDMA_READ, piece(&buffer, 0, 50), (uintptr_t)buffer.mem + 2048, buffer.mr->rkey));
	check(reaches(remote, 1, 0), "ibv_qp_attach_comp_cntr(3): RDMA_READ counts");
	check(reaches(sent, 4, 0), "ibv_qp_attach_comp_cntr(3): an operation that isn't in op_mask isn't counted");
	MUST(post_recv(pair.b, &buffer, 2048, 100, 2));
	one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 50), 16, buffer.mr->rkey);
	check(reaches(sent, 4, 1), "ibv_create_comp_cntr(3): a failure is counted as an error");
	MUST(ibv_destroy_qp(pair.a));
	MUST(ibv_destroy_qp(pair.b));
	is(destroy(sent), 0, "ibv_qp_attach_comp_cntr(3): with its QPs gone the counter can be destroyed");
	MUST(destroy(arrived));
	MUST(destroy(remote));
	MUST(ibv_destroy_cq(pair.cq_a));
	MUST(ibv_destroy_cq(pair.cq_b));
}

/* What the other side reads and writes, of two QPs, by one counter. */
static void remote_operations(const struct counter_caps *caps)
{
	struct counter_attr requests = {0};
	struct attach_attr reads = {0, OP_REMOTE_READ}, writes = {0, OP_REMOTE_WRITE};
	struct pair pair[2];
	struct path path = PATH;
	void *written = MAKE(create(ctx, &requests)), *read = MAKE(create(ctx, &requests));

	for (int i = 0; i < 2; i++) {
		pair[i] = (struct pair){.cq_a = make_cq(8), .cq_b = make_cq(8)};
		pair[i].a = make_qp(IBV_QPT_RC, pair[i].cq_a);
		pair[i].b = make_qp(IBV_QPT_RC, pair[i].cq_b);
		if (caps->operations & OP_REMOTE_WRITE)
			MUST(attach(pair[i].b, written, &writes));
		if (caps->operations & OP_REMOTE_READ)
			MUST(attach(pair[i].b, read, &reads));
		bring(pair[i].a, IBV_QPS_RTS, &path, pair[i].b->qp_num);
		bring(pair[i].b, IBV_QPS_RTS, &path, pair[i].a->qp_num);
		MUST(one_sided(&pair[i], IBV_WR_RDMA_WRITE, piece(&buffer, 0, 50), (uintptr_t)buffer.mem + 2048, buffer.mr->rkey));
		MUST(one_sided(&pair[i], IBV_WR_RDMA_READ, piece(&buffer, 0, 50), (uintptr_t)buffer.mem + 2048, buffer.mr->rkey));
	}
	if (caps->operations & OP_REMOTE_WRITE)
		check(reaches(written, 2, 0), "ibv_qp_attach_comp_cntr(3): a counter of two QPs counts for both");
	if (caps->operations & OP_REMOTE_READ)
		check(reaches(read, 2, 0), "ibv_qp_attach_comp_cntr(3): REMOTE_RDMA_READ counts what the other side reads");
	for (int i = 0; i < 2; i++)
		free_pair(&pair[i]);
	MUST(destroy(written));
	MUST(destroy(read));
}

int main(int argc, char **argv)
{
	struct counter_caps caps = {0};

	begin(argc, argv);
	if (!look_up()) {
		skip("the library has no such call", "ibv_query_comp_cntr_caps(3): 0 on success");
		return end();
	}
	int result = query(ctx, &caps, sizeof caps);

	if (result == ENOTSUP) {
		skip("the device has no completion counters", "ibv_query_comp_cntr_caps(3): 0 on success");
		return end();
	}
	is(result, 0, "ibv_query_comp_cntr_caps(3): 0 on success");
	check(caps.max_counters > 0 && caps.max_value > 0, "ibv_query_comp_cntr_caps(3): the limits are returned");
	check(caps.operations & (OP_SEND | OP_RECV | OP_READ | OP_WRITE), "ibv_query_comp_cntr_caps(3): the operations are returned");
	buffer = make_buffer(4096, ALL);
	values(&caps);
	too_many_counters(&caps);
	attaching(&caps);
	remote_operations(&caps);
	free_buffer(&buffer);
	return end();
}
