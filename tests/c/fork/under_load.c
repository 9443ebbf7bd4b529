/* under_load: forks while other threads are in the middle of verbs calls of all kinds. A child never hangs, whatever it
 * does with what it inherited, and can make objects of its own; the parent's traffic goes on.
 *
 * usage: under_load all|handlers FORKS
 */
#include "children.h"
#include <pthread.h>
#include <stdatomic.h>

/* The size of the message that goes through the region which children deregister. */
#define LARGE (256 * 1024)

static struct device device;
static atomic_bool stop;

/* Messages of `size` bytes. */
static struct loop make_traffic(size_t size, bool with_channel)
{
	struct ibv_comp_channel *channel = with_channel ? MAKE(ibv_create_comp_channel(device.context)) : NULL;

	return make_loop_on(&device, channel, 32, MAKE(malloc(2 * size)), 2 * size);
}

/* Posts and polls. */
static void *post(void *loop)
{
	while (!stop)
		pass_message(loop);
	return NULL;
}

/* Registers and deregisters memory of its own. */
static void *reg(void *unused)
{
	char memory[4096];

	while (!stop)
		MUST(ibv_dereg_mr(MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS))));
	return unused;
}

/* Makes objects and ends them. */
static void *make(void *unused)
{
	while (!stop) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
		struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &init));
		struct ibv_cq *cq = make_cq(&device, 4, NULL);
		struct ibv_qp *qp = make_qp(&device, IBV_QPT_UD, cq, srq, 4);
		struct ibv_ah_attr to;
		struct ibv_mw *mw = MAKE(ibv_alloc_mw(device.pd, IBV_MW_TYPE_1));

		fill_ah(&to, &device, &device.gid);
		MUST(to_init(qp, 0));
		MUST(ibv_destroy_ah(MAKE(ibv_create_ah(device.pd, &to))));
		MUST(ibv_dealloc_mw(mw));
		MUST(ibv_destroy_qp(qp));
		MUST(ibv_destroy_cq(cq));
		MUST(ibv_destroy_srq(srq));
	}
	return unused;
}

/* Sleeps on a channel. */
static void *wait_for_events(void *of)
{
	struct loop *loop = of;
	struct ibv_cq *cq;
	void *context;

	while (!stop) {
		MUST(ibv_req_notify_cq(loop->cq, 0));
		post_message(loop);
		MUST(ibv_get_cq_event(loop->channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		complete_message(loop);
	}
	return NULL;
}

/* Opens and closes the device, and asks for its addresses, which the test may be changing. */
static void *look(void *unused)
{
	while (!stop) {
		struct device other = open_device(device.gid_index);
		union ibv_gid gid;

		for (int index = 0; index < 8; index++)
			ibv_query_gid(other.context, PORT_NUM, index, &gid);
		MUST(ibv_dealloc_pd(other.pd));
		MUST(ibv_close_device(other.context));
		usleep(1000);
	}
	return unused;
}

/* What a queue pair that is posted to by critical regions is made of. */
static struct ibv_qp_ex *make_extended(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_UD,
		.pd = device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	return ibv_qp_to_qp_ex(MAKE(ibv_create_qp_ex(device.context, &init)));
}

/* The program's code runs within a critical region: here for longer than a fork takes. */
static void *enter_region(void *of)
{
	while (!stop) {
		ibv_wr_start(of);
		usleep(500);
		ibv_wr_abort(of);
	}
	return NULL;
}

/* The threads, what they use, and one of each kind that only children use. */
static struct loop traffic[4], spare;
static struct ibv_qp_ex *extended;
static pthread_t threads[16];
static int thread_count;

static void start(void *(*run)(void *), void *argument)
{
	if (pthread_create(&threads[thread_count++], NULL, run, argument))
		fail("pthread_create");
}

/* What a child does with what it inherited: no result is asked of it, but that it comes to an end. */
static void use_inherited(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;

	for (int i = 0; i < 4; i++) {
		post_send(traffic[i].a, traffic[i].mr, 0, 8, 3);
		post_recv(traffic[i].b, traffic[i].mr, 0, 8, 3);
		ibv_poll_cq(traffic[i].cq, 1, &wc);
		ibv_req_notify_cq(traffic[i].cq, 0);
		ibv_query_qp(traffic[i].a, &attr, IBV_QP_STATE, &init);
		attr.qp_state = IBV_QPS_ERR;
		ibv_modify_qp(traffic[i].a, &attr, IBV_QP_STATE);
		while (ibv_poll_cq(traffic[i].cq, 1, &wc) > 0)
			if (wc.status == IBV_WC_SUCCESS && wc.wr_id == 3)
				fail("a request on an inherited QP succeeded");
	}
	ibv_wr_start(extended);
	ibv_wr_abort(extended);
}

static void destroy_inherited(void)
{
	MUST(ibv_destroy_qp((struct ibv_qp *)extended));
	for (int i = 0; i < 4; i++)
		destroy_loop(&traffic[i]);
}

static void run_child(unsigned int number)
{
	union ibv_gid gid;
	char memory[64];

	signal(SIGALRM, SIG_DFL);
	alarm(CHILD_SECONDS);
	stop = true;
	if (number % 2)
		use_inherited();
	if (number % 4 < 2) {
		MUST(ibv_query_gid(device.context, PORT_NUM, device.gid_index, &gid));
		MUST(ibv_dereg_mr(MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS))));
	}
	if (number % 8 == 0)
		destroy_inherited();
	if (number % 32 == 0) {
		struct loop own = make_traffic(64, false);

		pass_message(&own);
	}
	_exit(0);
}

static void fork_once(unsigned int number)
{
	pid_t child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0)
		run_child(number);
	expect_end(child, "a child failed");
}

static unsigned int forks;

/* Forks as well, beside the first thread. */
static void *fork_too(void *unused)
{
	for (unsigned int i = 1; i < forks && !stop; i += 2)
		fork_once(i);
	return unused;
}

static void start_threads(void)
{
	/* Thousands of forks take longer than other cases. */
	alarm(0);
	for (int i = 0; i < 4; i++)
		traffic[i] = make_traffic(i == 2 ? LARGE : 64, i == 3);
	spare = make_traffic(64, false);
	extended = make_extended(spare.cq);
	for (int i = 0; i < 3; i++)
		start(post, &traffic[i]);
	start(wait_for_events, &traffic[3]);
	start(reg, NULL);
	start(make, NULL);
	start(look, NULL);
	start(enter_region, extended);
	start(enter_region, extended);
}

static void join_threads(void)
{
	stop = true;
	for (int i = 0; i < thread_count; i++)
		if (pthread_join(threads[i], NULL))
			fail("pthread_join");
}

/* Two threads fork, the others do everything else. */
static void all(void)
{
	start_threads();
	start(fork_too, NULL);
	for (unsigned int i = 0; i < forks; i += 2)
		fork_once(i);
	if (pthread_join(threads[--thread_count], NULL))
		fail("pthread_join");
	join_threads();
	pass_message(&spare);
}

/* Handlers of another library, which call verbs around each fork: `early` ones come to know of the fork after us. */
static void poll_in_handler(void)
{
	struct ibv_wc wc;

	if (spare.cq && ibv_poll_cq(spare.cq, 1, &wc) < 0)
		fail("ibv_poll_cq in a handler of a fork");
}

static void early(void)
{
	struct ibv_device_attr attr;

	if (device.context) {
		MUST(ibv_query_device(device.context, &attr));
		poll_in_handler();
	}
}

static void handlers(void)
{
	start_threads();
	pthread_atfork(poll_in_handler, poll_in_handler, poll_in_handler);
	for (unsigned int i = 0; i < forks; i++)
		fork_once(i);
	join_threads();
}

/* Runs before any library has been initialised. */
static void register_early(int argc, char **argv, char **unused)
{
	(void)unused;
	if (argc == 3 && !strcmp(argv[1], "handlers"))
		pthread_atfork(early, early, early);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **, char **) = register_early;

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(all), CASE(handlers)};

	if (argc == 3) {
		forks = (unsigned int)atoi(argv[2]);
		device = open_device(1);
	}
	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
