/* under_load: forks while other threads are in the middle of verbs calls of all kinds. A child never hangs, whatever it
 * does with what it inherited, and can make objects of its own; the parent's traffic goes on.
 */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* A child that is still there after this long hangs. */
#define CHILD_SECONDS 10
/* The size of the message that goes through the region which children deregister. */
#define LARGE (256 * 1024)

struct loop {
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	char *memory;
	size_t size;
};

static struct device device;
static atomic_bool stop;

static struct loop make_loop(size_t size, bool with_channel)
{
	struct path path = default_path(&device);
	struct loop loop = {.size = size, .memory = MAKE(malloc(2 * size))};

	if (with_channel)
		loop.channel = MAKE(ibv_create_comp_channel(device.context));
	loop.cq = make_cq(&device, 32, loop.channel);
	loop.mr = MAKE(ibv_reg_mr(device.pd, loop.memory, 2 * size, ALL_ACCESS));
	loop.a = make_qp(&device, IBV_QPT_RC, loop.cq, NULL, 8);
	loop.b = make_qp(&device, IBV_QPT_RC, loop.cq, NULL, 8);
	MUST(to_init(loop.a, ALL_ACCESS));
	MUST(to_init(loop.b, ALL_ACCESS));
	connect_qps(&device, &path, loop.a, loop.b);
	return loop;
}

static void use(const struct loop *loop)
{
	struct ibv_wc wc;

	MUST(post_recv(loop->b, loop->mr, loop->size, (uint32_t)loop->size, 1));
	MUST(post_send(loop->a, loop->mr, 0, (uint32_t)loop->size, 2));
	MUST_COMPLETE(loop->cq, &wc);
	MUST_COMPLETE(loop->cq, &wc);
}

/* Posts and polls. */
static void *post(void *loop)
{
	while (!stop)
		use(loop);
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
	struct ibv_wc wc;

	while (!stop) {
		MUST(ibv_req_notify_cq(loop->cq, 0));
		MUST(post_recv(loop->b, loop->mr, loop->size, (uint32_t)loop->size, 1));
		MUST(post_send(loop->a, loop->mr, 0, (uint32_t)loop->size, 2));
		MUST(ibv_get_cq_event(loop->channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		MUST_COMPLETE(loop->cq, &wc);
		MUST_COMPLETE(loop->cq, &wc);
	}
	return NULL;
}

/* Opens and closes the device, and asks for its addresses, which somebody may be changing. */
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
	for (int i = 0; i < 4; i++) {
		MUST(ibv_destroy_qp(traffic[i].a));
		MUST(ibv_destroy_qp(traffic[i].b));
		MUST(ibv_dereg_mr(traffic[i].mr));
		MUST(ibv_destroy_cq(traffic[i].cq));
	}
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
		struct loop own = make_loop(64, false);

		use(&own);
	}
	_exit(0);
}

static void expect_end(pid_t child, const char *what)
{
	int status;

	if (waitpid(child, &status, 0) != child || status)
		fail("%s (status %x)%s", what, status,
		     WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
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
	for (int i = 0; i < 4; i++)
		traffic[i] = make_loop(i == 2 ? LARGE : 64, i == 3);
	spare = make_loop(64, false);
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
	use(&spare);
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

/* A thread forks in the middle of a call, as the handler of a signal could: here where the library asks for the time. (The
 * C library's own fork doesn't bear a signal's handler that has interrupted malloc, so a timer wouldn't do.)
 */
static _Thread_local unsigned int clocks_until_fork;
static unsigned int refused;

static void fork_in_the_middle(void)
{
	int before = errno, status;
	pid_t child = fork();

	if (child == 0) {
		struct ibv_wc wc;

		/* Where no call was interrupted, verbs work. */
		alarm(CHILD_SECONDS);
		int polled = ibv_poll_cq(spare.cq, 1, &wc), posted = post_send(spare.a, spare.mr, 0, 8, 3);

		_exit(polled == -1 && posted == EIO ? 77 : polled < 0 || posted == EIO);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) % 77)
		fail("a child of the middle of a call failed (status %x)", status);
	if (status)
		refused++;
	errno = before;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (clocks_until_fork && --clocks_until_fork == 0)
		fork_in_the_middle();
	return (int)syscall(SYS_clock_gettime, clock, time);
}

static void middle(void)
{
	spare = make_loop(64, false);
	for (int i = 0; i < 2; i++)
		traffic[i] = make_loop(64, false);
	start(post, &traffic[0]);
	for (unsigned int i = 0; i < forks; i++) {
		clocks_until_fork = 1 + i % 4;
		use(&traffic[1]);
	}
	clocks_until_fork = 0;
	join_threads();
	if (!refused)
		fail("no call was interrupted");
	use(&spare);
}

/* A child that no handler of a fork has run in (a system call made it) is told so, and nothing is done as the parent. */
static void cloned(void)
{
	struct ibv_wc wc;

	spare = make_loop(4096, false);
	use(&spare);
	memset(spare.memory, 'P', 2 * spare.size);
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (child == 0) {
		struct ibv_sge sge = {(uintptr_t)spare.memory, 4096, spare.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_RDMA_WRITE,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {(uintptr_t)spare.memory + 4096, spare.mr->rkey}},
				   *bad;

		alarm(CHILD_SECONDS);
		memset(spare.memory, 'C', 2 * spare.size);
		if (ibv_post_send(spare.a, &wr, &bad) != EIO || ibv_poll_cq(spare.cq, 1, &wc) != -1)
			_exit(1);
		_exit(spare.memory[4096] != 'C');
	}
	expect_end(child, "verbs in a child of clone weren't refused");
	if (spare.memory[4096] != 'P')
		fail("the parent's memory has changed");
	use(&spare);
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
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"all", all}, {"handlers", handlers}, {"middle", middle}, {"cloned", cloned}};

	if (argc != 3)
		fail("usage: under_load all|handlers|middle|cloned FORKS");
	forks = (unsigned int)atoi(argv[2]);
	device = open_device(1);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			printf("%s ok\n", argv[1]);
			return 0;
		}
	fail("there is no case %s", argv[1]);
}
