/* both_sides: a program that opens a device, forks, and uses verbs on either side.
 *
 * What is asked of a provider: the parent notices nothing, and a child can go on with the context and PD that it
 * inherited, making its own CQs and QPs; inherited QPs are the parent's.
 */
#include "children.h"

static char memory[8192];

static void use(const struct loop *loop, unsigned int rounds)
{
	for (unsigned int i = 0; i < rounds; i++) {
		fill(memory, 4096, i);
		memset(memory + 4096, 0, 4096);
		pass_message(loop);
		check(memory + 4096, 4096, i, "message");
	}
}

static pid_t fork_or_fail(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0)
		alarm(ALARM_SECONDS);
	return pid;
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

/* Open, then become a daemon as many servers do, then start work. */
static void daemonise(void)
{
	struct device device = open_device(1);

	if (fork_or_fail())
		exit(0);
	setsid();
	if (fork_or_fail())
		_exit(0);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);

	use(&loop, 100);
	say("daemon ok");
	exit(0);
}

/* Both work at once, the parent on QPs that it had before the fork. */
static void both(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);

	use(&loop, 10);
	pid_t child = fork_or_fail();

	if (child == 0) {
		struct loop own = make_loop(&device, 32, memory, sizeof memory);

		use(&own, 500);
		exit(0);
	}
	use(&loop, 500);
	expect_end(child, "the child failed");
	use(&loop, 500);
	say("both ok");
}

/* The parent exits while the child is at work. */
static void outlive(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);
	int gone[2];
	char nothing;

	use(&loop, 10);
	if (pipe(gone))
		fail("pipe: %s", strerror(errno));
	if (fork_or_fail())
		exit(0);
	struct loop own = make_loop(&device, 32, memory, sizeof memory);

	use(&own, 50);
	/* The parent's end closes when it has exited. */
	close(gone[1]);
	if (read(gone[0], &nothing, 1) != 0)
		fail("read from the pipe: %s", strerror(errno));
	use(&own, 500);
	struct device again = open_device(1);
	struct loop fresh = make_loop(&again, 32, memory, sizeof memory);

	use(&fresh, 50);
	say("child ok");
	exit(0);
}

/* A child that dies, with or without using what it inherited, doesn't disturb its parent. */
static void dies(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);

	for (int i = 0; i < 8; i++) {
		pid_t child = fork_or_fail();

		if (child == 0) {
			if (i % 2) {
				struct loop own = make_loop(&device, 32, memory, sizeof memory);

				use(&own, 5);
			}
			raise(SIGKILL);
		}
		use(&loop, 50);
		waitpid(child, NULL, 0);
		use(&loop, 50);
	}
	say("parent ok");
}

/* A request on an inherited QP must not reach the wire as the parent's. */
static void inherited(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);

	use(&loop, 1);
	MUST(post_recv(loop.b, loop.mr, 4096, 4096, 7));
	pid_t child = fork_or_fail();

	if (child == 0) {
		struct ibv_wc wc;

		if (post_send(loop.a, loop.mr, 0, 16, 9) == 0)
			while (wait_wc(loop.cq, &wc, 1000))
				if (wc.status == IBV_WC_SUCCESS)
					fail("a request on an inherited QP succeeded");
		exit(0);
	}
	expect_end(child, "the child failed");
	struct ibv_wc wc;

	if (wait_wc(loop.cq, &wc, 200))
		fail("the child's request reached the parent's QP");
	fill(memory, 4096, 1);
	MUST(post_send(loop.a, loop.mr, 0, 4096, 8));
	MUST_COMPLETE(loop.cq, &wc);
	MUST_COMPLETE(loop.cq, &wc);
	check(memory + 4096, 4096, 1, "message");
	say("parent ok");
}

/* As before, where the peer is another process: the memory that the two share isn't in the child. */
static void inherited_link(void)
{
	enum { MESSAGES = 3 };
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		fail("socketpair: %s", strerror(errno));
	pid_t peer = fork_or_fail();
	int other = fds[peer != 0];

	close(fds[peer == 0]);
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_cq *cq = make_cq(&device, 32, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 8);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	struct address mine = {.qpn = qp->qp_num, .psn = 0x100, .gid = device.gid}, theirs;
	struct ibv_wc wc;

	MUST(to_init(qp, ALL_ACCESS));
	for (int i = 0; i <= MESSAGES; i++)
		MUST(post_recv(qp, mr, 4096, 4096, 7));
	if (!exchange(other, &mine, &theirs, sizeof mine))
		fail("the other process has gone");
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0x100));
	if (!exchange(other, &mine, &theirs, sizeof mine))
		fail("the other process has gone");
	for (int i = 0; i < MESSAGES; i++) {
		MUST(post_send(qp, mr, 0, 16, 8));
		MUST_COMPLETE(cq, &wc);
		MUST_COMPLETE(cq, &wc);
	}
	if (peer == 0) {
		MUST_COMPLETE(cq, &wc);
		exit(0);
	}
	pid_t child = fork_or_fail();

	if (child == 0) {
		if (post_send(qp, mr, 0, 16, 9) == 0)
			while (wait_wc(cq, &wc, 1000))
				if (wc.status == IBV_WC_SUCCESS)
					fail("a request on an inherited QP succeeded");
		exit(0);
	}
	expect_end(child, "the child failed");
	MUST(post_send(qp, mr, 0, 16, 8));
	MUST_COMPLETE(cq, &wc);
	expect_end(peer, "the peer failed");
	say("parent ok");
}

/* fork and exec at once, as a shell or a launcher does. */
static void execs(void)
{
	struct device device = open_device(1);
	struct loop loop = make_loop(&device, 32, memory, sizeof memory);

	for (int i = 0; i < 20; i++) {
		pid_t child = fork_or_fail();

		if (child == 0) {
			execl("/bin/true", "true", NULL);
			_exit(127);
		}
		use(&loop, 20);
		expect_end(child, "the child failed");
	}
	say("parent ok");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(daemonise), CASE(both), CASE(outlive),
						 CASE(dies), CASE(inherited), CASE(inherited_link),
						 CASE(execs)};

	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
