/* queues: extended completion queues, moderated events, sizes; clocks; shared receive queues; events of the device.
 */
#include "cases.h"
#include <dlfcn.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>

#define EVERY_FIELD                                                                    \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | \
	 IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

/* Two QPs of this process with one extended CQ. */
struct extended {
	struct fixture f;
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;
};

static struct extended extended(struct ibv_cq_init_attr_ex attr)
{
	struct extended x = {.f = unconnected(IBV_QPT_RC)};

	x.cq = MAKE(ibv_create_cq_ex(x.f.device.context, &attr));
	EXPECT(x.cq->cqe >= (int)attr.cqe && x.cq->cq_context == attr.cq_context && x.cq->channel == attr.channel);
	x.a = make_qp(&x.f.device, IBV_QPT_RC, ibv_cq_ex_to_cq(x.cq), NULL, DEPTH);
	x.b = make_qp(&x.f.device, IBV_QPT_RC, ibv_cq_ex_to_cq(x.cq), NULL, DEPTH);
	MUST(to_init(x.a, ALL_ACCESS));
	MUST(to_init(x.b, ALL_ACCESS));
	connect_qps(&x.f.device, &x.f.path, x.a, x.b);
	return x;
}

static int send_imm(const struct extended *x, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)x->f.memory, length, x->f.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				 .imm_data = htobe32(0x01020304), .send_flags = IBV_SEND_SIGNALED}, *bad;

	return ibv_post_send(x->a, &wr, &bad);
}

static void start_polling(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {};
	uint64_t end = now_ms() + 10000;
	int result;

	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		EXPECT(now_ms() < end);
	EXPECT(result == 0);
}

static uint64_t realtime_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t raw_clock(struct ibv_context *context)
{
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};

	MUST(ibv_query_rt_values_ex(context, &values));
	EXPECT(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec == 0);
	return (uint64_t)values.raw_clock.tv_nsec;
}

static void every_field_of_a_completion_can_be_read(void)
{
	int cookie;
	struct extended x = extended(
		(struct ibv_cq_init_attr_ex){.cqe = 64, .wc_flags = EVERY_FIELD, .cq_context = &cookie});
	struct ibv_context *context = x.f.device.context;
	uint64_t wall = realtime_ns(), raw = raw_clock(context), last = raw;
	bool sent = false, received = false;

	for (uint64_t round = 0; round < 3; round++, sent = received = false) {
		MUST(post_recv(x.b, x.f.mr, 4096, 4096, 2));
		MUST(send_imm(&x, 100, 1));
		while (!sent || !received) {
			start_polling(x.cq);
			do {
				struct ibv_wc_tm_info info = {.tag = 1, .priv = 1};
				uint64_t at = ibv_wc_read_completion_ts(x.cq);
				uint64_t at_wall = ibv_wc_read_completion_wallclock_ns(x.cq);

				EXPECT(x.cq->status == IBV_WC_SUCCESS && ibv_wc_read_vendor_err(x.cq) == 0);
				EXPECT(ibv_wc_read_slid(x.cq) == 0 && ibv_wc_read_dlid_path_bits(x.cq) == 0);
				EXPECT(ibv_wc_read_sl(x.cq) == 0);
				EXPECT(ibv_wc_read_cvlan(x.cq) == 0 && ibv_wc_read_flow_tag(x.cq) == 0);
				ibv_wc_read_tm_info(x.cq, &info);
				EXPECT(info.tag == 0 && info.priv == 0);
				EXPECT(at >= last && at <= raw_clock(context));
				/* Both clocks tell the same moment. */
				EXPECT(at_wall >= wall && at_wall <= realtime_ns());
				last = at;
				if (x.cq->wr_id == 2) {
					received = true;
					EXPECT(ibv_wc_read_opcode(x.cq) == IBV_WC_RECV && ibv_wc_read_byte_len(x.cq) == 100);
					EXPECT(ibv_wc_read_imm_data(x.cq) == htobe32(0x01020304));
					EXPECT(ibv_wc_read_wc_flags(x.cq) == IBV_WC_WITH_IMM);
					EXPECT(ibv_wc_read_qp_num(x.cq) == x.b->qp_num);
					EXPECT(ibv_wc_read_src_qp(x.cq) == x.a->qp_num);
				} else {
					sent = true;
					EXPECT(x.cq->wr_id == 1 && ibv_wc_read_opcode(x.cq) == IBV_WC_SEND);
					EXPECT(ibv_wc_read_qp_num(x.cq) == x.a->qp_num);
				}
			} while (ibv_next_poll(x.cq) == 0);
			ibv_end_poll(x.cq);
		}
	}
}

static void an_empty_extended_queue_stays_usable(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS});
	struct ibv_poll_cq_attr attr = {}, unknown = {.comp_mask = 1};
	struct ibv_wc wc;

	for (int i = 0; i < 3; i++) {
		EXPECT_ERRNO(ENOENT, ibv_start_poll(x.cq, &attr));
		EXPECT_ERRNO(EINVAL, ibv_start_poll(x.cq, &unknown));
	}
	MUST(post_recv(x.b, x.f.mr, 4096, 4096, 2));
	MUST(send_imm(&x, 100, 1));
	start_polling(x.cq);
	while (ibv_next_poll(x.cq) != ENOENT)
		;
	/* The end of a batch isn't the end of the queue, and both ways of polling mix. */
	ibv_end_poll(x.cq);
	for (int i = 0; i < 2; i++) {
		MUST(post_recv(x.b, x.f.mr, 4096, 4096, 2));
		MUST(send_imm(&x, 100, 1));
	}
	start_polling(x.cq);
	ibv_end_poll(x.cq);
	for (int left = wait_wc(ibv_cq_ex_to_cq(x.cq), &wc, 300); left; left = wait_wc(ibv_cq_ex_to_cq(x.cq), &wc, 300))
		EXPECT(wc.status == IBV_WC_SUCCESS);
	EXPECT_ERRNO(ENOENT, ibv_start_poll(x.cq, &attr));
}

#define POLLERS 4
#define MESSAGES 2000

static struct extended shared;
static uint64_t seen[POLLERS];
static volatile bool over;

static void *poll_shared(void *argument)
{
	uint64_t *mine = argument;
	struct ibv_poll_cq_attr attr = {};

	while (!over) {
		if (ibv_start_poll(shared.cq, &attr))
			continue;
		do {
			EXPECT(shared.cq->status == IBV_WC_SUCCESS);
			EXPECT(ibv_wc_read_opcode(shared.cq) == (shared.cq->wr_id == 1 ? IBV_WC_SEND : IBV_WC_RECV));
			__atomic_fetch_add(mine, 1, __ATOMIC_SEQ_CST);
		} while (ibv_next_poll(shared.cq) == 0);
		ibv_end_poll(shared.cq);
	}
	return NULL;
}

static uint64_t total(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < POLLERS; i++)
		sum += __atomic_load_n(&seen[i], __ATOMIC_SEQ_CST);
	return sum;
}

static void threads_share_an_extended_queue(void)
{
	pthread_t threads[POLLERS];

	shared = extended((struct ibv_cq_init_attr_ex){.cqe = 64, .wc_flags = EVERY_FIELD});
	for (int i = 0; i < POLLERS; i++)
		EXPECT(!pthread_create(&threads[i], NULL, poll_shared, &seen[i]));
	for (uint64_t i = 0; i < MESSAGES; i++) {
		uint64_t end = now_ms() + 10000;

		MUST(post_recv(shared.b, shared.f.mr, 4096, 4096, 2));
		MUST(send_imm(&shared, 8, 1));
		while (total() < 2 * (i + 1))
			EXPECT(now_ms() < end);
	}
	over = true;
	for (int i = 0; i < POLLERS; i++)
		pthread_join(threads[i], NULL);
	EXPECT(total() == 2 * MESSAGES);
}

static void flags_of_an_extended_queue_are_taken_or_refused(void)
{
	struct ibv_context *context = open_device(1).context;
	struct ibv_cq_init_attr_ex attr = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS};
	struct ibv_cq_ex *cq;

	for (attr.flags = 0; attr.flags < 4; attr.flags++)
		for (int bit = 0; bit < 12; bit++) {
			attr.wc_flags = 1ULL << bit;
			cq = MAKE(ibv_create_cq_ex(context, &attr));
			MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
		}
	attr.flags = 1 << 2;
	EXPECT_NULL(EOPNOTSUPP, ibv_create_cq_ex(context, &attr));
	attr.flags = 0;
	attr.wc_flags = 1ULL << 12;
	EXPECT_NULL(EOPNOTSUPP, ibv_create_cq_ex(context, &attr));
	attr.wc_flags = 0;
	attr.comp_mask = 1 << 5;
	EXPECT_NULL(EOPNOTSUPP, ibv_create_cq_ex(context, &attr));
	attr.comp_mask = 0;
	attr.cqe = 0;
	EXPECT_NULL(EINVAL, ibv_create_cq_ex(context, &attr));
	attr.cqe = 1;
	attr.comp_vector = (uint32_t)context->num_comp_vectors;
	EXPECT_NULL(EINVAL, ibv_create_cq_ex(context, &attr));
}

static void ignored_overrun_loses_the_oldest_completions_only(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 4,
								  .wc_flags = EVERY_FIELD,
								  .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
								  .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN |
									   IBV_CREATE_CQ_ATTR_SINGLE_THREADED});
	struct pollfd event = {.fd = x.f.device.context->async_fd, .events = POLLIN};
	uint64_t newest;
	int count = 0;

	for (uint64_t i = 0; i < 8; i++)
		MUST(post_recv(x.b, x.f.mr, 4096, 4096, 100 + i));
	for (uint64_t i = 0; i < 8; i++)
		MUST(send_imm(&x, 8, i));
	EXPECT(poll(&event, 1, 300) == 0);
	start_polling(x.cq);
	do {
		newest = x.cq->wr_id;
		count++;
	} while (ibv_next_poll(x.cq) == 0);
	ibv_end_poll(x.cq);
	EXPECT((newest == 7 || newest == 107) && count == x.cq->cqe);
	EXPECT(qp_state(x.a) == IBV_QPS_RTS && qp_state(x.b) == IBV_QPS_RTS);
}

/* Sends `count` messages of which each makes two completions. */
static void converse(const struct extended *x, int count)
{
	for (int i = 0; i < count; i++) {
		MUST(post_recv(x->b, x->f.mr, 4096, 4096, 2));
		MUST(send_imm(x, 8, 1));
	}
}

static void drain(const struct extended *x, int expected)
{
	struct ibv_wc wc;

	for (int i = 0; i < expected; i++)
		MUST_COMPLETE(ibv_cq_ex_to_cq(x->cq), &wc);
}

static void an_event_stands_for_as_many_completions_as_asked(void)
{
	struct ibv_context *context = open_device(1).context;
	struct ibv_device_attr_ex attr;
	struct extended x = {};
	struct ibv_comp_channel *channel;
	struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 6, .cq_period = 60000}};
	struct ibv_modify_cq_attr unknown = {.attr_mask = 1 << 1};
	struct ibv_cq_init_attr_ex init = {.cqe = 64};
	struct ibv_cq *cq;
	void *cookie;
	struct pollfd readable = {.events = POLLIN};
	uint64_t start;

	MUST(ibv_query_device_ex(context, NULL, &attr));
	EXPECT(attr.cq_mod_caps.max_cq_count >= 6 && attr.cq_mod_caps.max_cq_period >= 60000);
	x.f = unconnected(IBV_QPT_RC);
	channel = MAKE(ibv_create_comp_channel(x.f.device.context));
	readable.fd = channel->fd;
	init.channel = channel;
	x.cq = MAKE(ibv_create_cq_ex(x.f.device.context, &init));
	cq = ibv_cq_ex_to_cq(x.cq);
	x.a = make_qp(&x.f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	x.b = make_qp(&x.f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	MUST(to_init(x.a, ALL_ACCESS));
	MUST(to_init(x.b, ALL_ACCESS));
	connect_qps(&x.f.device, &x.f.path, x.a, x.b);

	EXPECT_ERRNO(EOPNOTSUPP, ibv_modify_cq(cq, &unknown));
	/* 65 ms at most: six completions come sooner, and four have to wait. */
	MUST(ibv_modify_cq(cq, &moderate));
	MUST(ibv_req_notify_cq(cq, 0));
	start = now_ms();
	converse(&x, 2);
	drain(&x, 4);
	if (now_ms() - start < 50)
		EXPECT(poll(&readable, 1, 0) == 0);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	EXPECT(now_ms() - start >= 59);
	EXPECT(poll(&readable, 1, 0) == 0);
	MUST(ibv_req_notify_cq(cq, 0));
	start = now_ms();
	converse(&x, 3);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	drain(&x, 6);
	moderate.moderate = (struct ibv_moderate_cq){};
	MUST(ibv_modify_cq(cq, &moderate));
	MUST(ibv_req_notify_cq(cq, 0));
	converse(&x, 1);
	MUST(ibv_get_cq_event(channel, &cq, &cookie));
	ibv_ack_cq_events(cq, 3);
	MUST(ibv_destroy_qp(x.a));
	MUST(ibv_destroy_qp(x.b));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
}

static void a_queue_is_resized_around_what_it_holds(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 16});
	struct ibv_cq *cq = ibv_cq_ex_to_cq(x.cq);

	converse(&x, 4);
	usleep(300000);
	MUST(post_recv(x.b, x.f.mr, 4096, 4096, 2));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, 5));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, 0));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, -1));
	EXPECT_ERRNO(EINVAL, ibv_resize_cq(cq, x.f.device.attr.max_cqe + 1));
	EXPECT(cq->cqe >= 16);
	MUST(ibv_resize_cq(cq, 1000));
	EXPECT(cq->cqe >= 1000);
	drain(&x, 8);
	MUST(ibv_resize_cq(cq, x.f.device.attr.max_cqe));
	EXPECT(cq->cqe == x.f.device.attr.max_cqe);
	MUST(ibv_resize_cq(cq, 4));
	converse(&x, 1);
	drain(&x, 2);
}

static void a_queue_that_overruns_stops_its_queue_pairs(void)
{
	struct extended x = extended((struct ibv_cq_init_attr_ex){.cqe = 4});
	struct ibv_async_event event;
	struct pollfd readable = {.fd = x.f.device.context->async_fd, .events = POLLIN};
	struct ibv_wc wc;
	int cq_errors = 0, fatal_a = 0, fatal_b = 0, left;

	for (int i = 0; i < DEPTH && qp_state(x.a) == IBV_QPS_RTS && qp_state(x.b) == IBV_QPS_RTS; i++) {
		converse(&x, 1);
		usleep(20000);
	}
	while (poll(&readable, 1, 500) == 1) {
		MUST(ibv_get_async_event(x.f.device.context, &event));
		cq_errors += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == ibv_cq_ex_to_cq(x.cq);
		fatal_a += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == x.a;
		fatal_b += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == x.b;
		ibv_ack_async_event(&event);
	}
	EXPECT(cq_errors == 1 && fatal_a <= 1 && fatal_b <= 1 && fatal_a + fatal_b >= 1);
	EXPECT(qp_state(x.a) == IBV_QPS_ERR || qp_state(x.b) == IBV_QPS_ERR);
	/* What was saved can be had, and then the error. */
	for (left = 0; ibv_poll_cq(ibv_cq_ex_to_cq(x.cq), 1, &wc) == 1;)
		left++;
	EXPECT(left == x.cq->cqe);
	EXPECT(ibv_poll_cq(ibv_cq_ex_to_cq(x.cq), 1, &wc) < 0);
	MUST(ibv_destroy_qp(x.a));
	MUST(ibv_destroy_qp(x.b));
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(x.cq)));
}

static void the_clock_runs_at_the_frequency_the_device_names(void)
{
	struct ibv_context *context = open_device(1).context;
	struct ibv_values_ex nothing = {}, unknown = {.comp_mask = 1U << 31};
	struct ibv_device_attr_ex attr;
	uint64_t before, ticks, ms;

	MUST(ibv_query_device_ex(context, NULL, &attr));
	EXPECT(attr.hca_core_clock > 0 && attr.completion_timestamp_mask == UINT64_MAX);
	before = raw_clock(context);
	ms = now_ms();
	usleep(100000);
	ticks = raw_clock(context) - before;
	ms = now_ms() - ms;
	/* Kilohertz: ticks in a millisecond. */
	EXPECT(ticks / attr.hca_core_clock + 2 >= ms && ticks / attr.hca_core_clock <= ms + 20);
	MUST(ibv_query_rt_values_ex(context, &nothing));
	EXPECT(nothing.comp_mask == 0);
	MUST(ibv_query_rt_values_ex(context, &unknown));
	EXPECT(unknown.comp_mask == 0);
}

static void the_port_tells_its_speed(void)
{
	struct device device = open_device(1);
	int (*query)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	uint64_t hundreds = 0;

	EXPECT(query != NULL);
	MUST(query(device.context, PORT_NUM, &hundreds));
	/* A veth says 10 Gbit/s: one lane of QDR. */
	EXPECT(hundreds == 100 && device.port.active_width == 1 && device.port.active_speed == 4);
	EXPECT_ERRNO(EINVAL, query(device.context, PORT_NUM + 1, &hundreds));
	EXPECT_ERRNO(EINVAL, query(device.context, PORT_NUM, NULL));
}

static void a_shared_receive_queue_changes_with_requests_in_it(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 7}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(f.device.pd, &init));
	struct ibv_srq_attr now, attr = {};
	struct ibv_sge sges[3] = {{(uintptr_t)f.memory, 64, f.mr->lkey}};
	struct ibv_recv_wr second = {.wr_id = 2, .sg_list = sges, .num_sge = INT_MAX};
	struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = sges, .num_sge = 1}, *bad = NULL;
	uint32_t full;

	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr >= 8 && now.max_sge >= 1 && now.srq_limit == 0);
	EXPECT(ibv_post_srq_recv(srq, &first, &bad) != 0 && bad == &second);
	second.num_sge = -1;
	EXPECT_ERRNO(EINVAL, ibv_post_srq_recv(srq, &second, &bad));
	EXPECT(bad == &second);
	first.next = NULL;
	for (full = 1; ibv_post_srq_recv(srq, &first, &bad) == 0; full++)
		EXPECT(full <= now.max_wr);
	EXPECT(full == now.max_wr && bad == &first);
	EXPECT_ERRNO(ENOMEM, ibv_post_srq_recv(srq, &first, &bad));

	attr.max_wr = full - 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = (uint32_t)f.device.attr.max_srq_wr + 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.srq_limit = full + 1;
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	EXPECT_ERRNO(EINVAL, ibv_modify_srq(srq, &attr, 1 << 5));
	attr = (struct ibv_srq_attr){.max_wr = 2 * full, .srq_limit = full};
	MUST(ibv_modify_srq(srq, &attr, 0));
	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr == full && now.srq_limit == 0);
	MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	MUST(ibv_query_srq(srq, &now));
	EXPECT(now.max_wr >= 2 * full && now.srq_limit == full && now.max_sge >= 1);
	MUST(ibv_post_srq_recv(srq, &first, &bad));
	MUST(ibv_destroy_srq(srq));
}

static const struct test_case cases[] = {
	CASE(every_field_of_a_completion_can_be_read),
	CASE(an_empty_extended_queue_stays_usable),
	CASE(threads_share_an_extended_queue),
	CASE(flags_of_an_extended_queue_are_taken_or_refused),
	CASE(ignored_overrun_loses_the_oldest_completions_only),
	CASE(an_event_stands_for_as_many_completions_as_asked),
	CASE(a_queue_is_resized_around_what_it_holds),
	CASE(a_queue_that_overruns_stops_its_queue_pairs),
	CASE(the_clock_runs_at_the_frequency_the_device_names),
	CASE(the_port_tells_its_speed),
	CASE(a_shared_receive_queue_changes_with_requests_in_it),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
