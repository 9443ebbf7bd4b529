/* last_thread: programs whose main thread ends by pthread_exit. The process ends with the last of the program's threads, as by
 * exit(0), and not before. What the exit handler finds is checked there, and "ok" printed.
 */
#include "cases.h"
#include <pthread.h>
#include <sys/wait.h>

#define ROUNDS 15
#define PAUSE_US 100000
/* Enough for each way that a fabric has to copy. */
#define LENGTH (1 << 20)

static struct device device;
static bool is_open, works, has_worked;
static int other_side = -1;
static pid_t child;

static void at_exit(void)
{
	static int times;
	int status;

	if (times++)
		fail("the exit handler runs once more");
	if (works && !has_worked)
		fail("the process ends before its last thread");
	if (is_open) {
		/* Verbs work here as before. */
		MUST(ibv_dereg_mr(MAKE(ibv_reg_mr(device.pd, &device, sizeof device, ALL_ACCESS))));
		MUST(ibv_dealloc_pd(device.pd));
		MUST(ibv_close_device(device.context));
	}
	if (child && (waitpid(child, &status, 0) != child || status))
		fail("the child ended with status %x", status);
	puts("ok");
}

/* Writes, reads and registrations for longer than it takes to see that the main thread has ended. The two ends are two of
 * this process, or one of each of two processes.
 */
static void *work(void *unused)
{
	struct address mine, theirs;
	struct ibv_wc wc;
	char go = 0, *memory = MAKE(calloc(2, LENGTH));

	(void)unused;
	/* The main thread has ended before the first call. */
	usleep(PAUSE_US);
	if (!is_open)
		device = open_device(1);
	is_open = true;

	struct ibv_cq *cq = make_cq(&device, DEPTH, NULL);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, 2 * LENGTH, ALL_ACCESS));
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, DEPTH), *second = NULL;
	struct path path = default_path(&device);

	MUST(to_init(qp, ALL_ACCESS));
	mine = (struct address){
		.qpn = qp->qp_num, .rkey = mr->rkey, .buffer = (uintptr_t)memory + LENGTH, .gid = device.gid};
	if (other_side < 0) {
		second = make_qp(&device, IBV_QPT_RC, cq, NULL, DEPTH);
		MUST(to_init(second, ALL_ACCESS));
		connect_qps(&device, &path, qp, second);
		theirs = mine;
	} else {
		if (!exchange(other_side, &mine, &theirs, sizeof mine))
			fail("the other side has gone");
		MUST(to_rtr(qp, &device, &path, &theirs));
		MUST(to_rts(qp, &path, 0));
		if (!exchange(other_side, &go, &go, 1))
			fail("the other side has gone");
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *own = MAKE(ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS | IBV_ACCESS_ON_DEMAND * (round & 1)));

		fill(memory, LENGTH, (uint64_t)round);
		MUST(post_remote(qp, IBV_WR_RDMA_WRITE, own, LENGTH, theirs.buffer, theirs.rkey, 1));
		MUST_COMPLETE(cq, &wc);
		memset(memory, 0, LENGTH);
		MUST(post_remote(qp, IBV_WR_RDMA_READ, own, LENGTH, theirs.buffer, theirs.rkey, 2));
		MUST_COMPLETE(cq, &wc);
		check(memory, LENGTH, (uint64_t)round, "round");
		MUST(post_remote(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, own, 8, theirs.buffer, theirs.rkey, 3));
		MUST_COMPLETE(cq, &wc);
		MUST(ibv_dereg_mr(own));
		usleep(PAUSE_US);
	}
	if (other_side >= 0 && !exchange(other_side, &go, &go, 1))
		fail("the other side has gone");
	MUST(ibv_destroy_qp(qp));
	if (second)
		MUST(ibv_destroy_qp(second));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(cq));
	free(memory);
	__atomic_store_n(&has_worked, true, __ATOMIC_RELEASE);
	return NULL;
}

static void start_work(void)
{
	pthread_t thread;

	works = true;
	MUST(pthread_create(&thread, NULL, work, NULL));
	MUST(pthread_detach(thread));
}

static void end_main(void)
{
	atexit(at_exit);
	pthread_exit(NULL);
}

static void device_open(void)
{
	device = open_device(1);
	is_open = true;
	end_main();
}

static void device_closed(void)
{
	device = open_device(1);
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	end_main();
}

static void main_ends_first(void)
{
	device = open_device(1);
	is_open = true;
	start_work();
	end_main();
}

static void main_without_verbs_ends_first(void)
{
	start_work();
	end_main();
}

static void main_without_verbs_ends_last(void)
{
	start_work();
	while (!__atomic_load_n(&has_worked, __ATOMIC_ACQUIRE))
		usleep(PAUSE_US);
	usleep(PAUSE_US);
	end_main();
}

/* `after`: the main threads end when both are at work. */
static void in_two_processes(useconds_t after)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	child = fork();
	other_side = ends[child != 0];
	close(ends[!child]);
	alarm(ALARM_SECONDS);
	start_work();
	usleep(after);
	end_main();
}

static void two_processes(void)
{
	in_two_processes(0);
}

static void two_processes_at_work(void)
{
	in_two_processes(ROUNDS / 2 * PAUSE_US);
}

static void child_of_a_fork(void)
{
	device = open_device(1);
	is_open = true;
	child = fork();
	alarm(ALARM_SECONDS);
	if (!child) {
		start_work();
		end_main();
	}
	end_main();
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		CASE(device_open),
		CASE(device_closed),
		CASE(main_ends_first),
		CASE(main_without_verbs_ends_first),
		CASE(main_without_verbs_ends_last),
		CASE(two_processes),
		CASE(two_processes_at_work),
		CASE(child_of_a_fork),
	};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
