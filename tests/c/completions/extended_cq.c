/* extended_cq: completions read field by field (man ibv_create_cq_ex), and the clocks behind their time stamps. */
#include "extended_cq.h"
#include <poll.h>
#include <pthread.h>

#define EVERY_FIELD                                                                    \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | \
	 IBV_WC_EX_WITH_TM_INFO | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

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
				/* Both clocks show the same moment. */
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

static void the_clock_runs_at_the_frequency_the_device_names(void)
{
	struct ibv_context *context = open_device(1).context;
	struct ibv_values_ex nothing = {}, unknown = {.comp_mask = 1U << 31};
	struct ibv_device_attr_ex attr;
	uint64_t before, ticks, ms, outer, inner;

	MUST(ibv_query_device_ex(context, NULL, &attr));
	EXPECT(attr.hca_core_clock > 0 && attr.completion_timestamp_mask == UINT64_MAX);
	outer = now_ms();
	before = raw_clock(context);
	inner = now_ms();
	usleep(100000);
	inner = now_ms() - inner;
	ticks = raw_clock(context) - before;
	outer = now_ms() - outer;
	/* Kilohertz: ticks in a millisecond. The processor may have been another's between any two looks. */
	ms = ticks / attr.hca_core_clock;
	EXPECT(ms + 2 >= inner && ms <= outer + 2);
	MUST(ibv_query_rt_values_ex(context, &nothing));
	EXPECT(nothing.comp_mask == 0);
	MUST(ibv_query_rt_values_ex(context, &unknown));
	EXPECT(unknown.comp_mask == 0);
}

static const struct test_case cases[] = {
	CASE(every_field_of_a_completion_can_be_read),
	CASE(an_empty_extended_queue_stays_usable),
	CASE(threads_share_an_extended_queue),
	CASE(flags_of_an_extended_queue_are_taken_or_refused),
	CASE(ignored_overrun_loses_the_oldest_completions_only),
	CASE(the_clock_runs_at_the_frequency_the_device_names),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
