/* held_up: a page of memory whose fault isn't answered, a page that takes 50 ms, a process that is stopped, an array of completions that
 * isn't there, lines that aren't read. Whatever a thread waits for then, calls on other objects return, and calls on the same object return within their bound.
 */
#define _GNU_SOURCE
#include <setjmp.h>

#include "surroundings/held_up.h"

/* Writes large messages without end. */
static void write_without_end(int fd)
{
	const size_t length = 1 << 18;
	struct ibv_wc wc;

	begin();
	struct ibv_mr *mr = register_new(map_apart(length), length);
	struct end end = connect_to(fd, mr);

	meet_again(fd);
	for (;;) {
		for (int i = 0; i < 8; i++) {
			struct ibv_sge sge = {(uintptr_t)mr->addr, length, mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
						 .send_flags = IBV_SEND_SIGNALED}, *bad;

			set_remote(&wr, end.theirs.buffer, end.theirs.rkey);
			MUST(ibv_post_send(end.qp, &wr, &bad));
		}
		for (int i = 0; i < 8; i++)
			MUST_COMPLETE(end.cq, &wc);
	}
}

/* A peer that is stopped anywhere holds up no object but those that it uses. */
static void stopped_peer(void)
{
	const size_t length = 1 << 18;
	pid_t peer;
	int fd = start_side(write_without_end, &peer), status;

	begin();
	struct end end = connect_to(fd, register_new(map_apart(length), length));
	struct ibv_cq *cq = make_cq(&device, 4, NULL);

	meet_again(fd);
	for (int stop = 0; stop < 25; stop++) {
		struct ibv_mr *other = register_new(map_apart(PAGE), PAGE);
		struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);

		usleep(10000 + 1370 * (unsigned int)stop);
		kill(peer, SIGSTOP);
		if (waitpid(peer, &status, WUNTRACED) != peer || !WIFSTOPPED(status))
			fail("the peer isn't stopped");
		MUST(to_init(qp, ALL_ACCESS));
		MUST(ibv_dereg_mr(other));
		MUST(ibv_destroy_qp(qp));
		kill(peer, SIGCONT);
	}
	end_side(peer);
	(void)end;
}

/* The owner of a page that isn't there: the other side writes or sends to it. */
static void write_to_page(int fd)
{
	begin();
	struct end end = connect_new(fd);

	meet_again(fd);
	MUST(write_to(&end, 0));
	for (;;)
		pause();
}

static void send_to_page(int fd)
{
	struct ibv_wc wc;

	begin();
	struct end end = connect_new(fd);

	meet_again(fd);
	MUST(post_send(end.qp, end.mr, 0, 8, 1));
	while (!wait_wc(end.cq, &wc, 1000))
		;
	for (;;)
		pause();
}

static void owner(void (*play)(int), bool receives)
{
	pid_t peer;
	int fd = start_side(play, &peer);

	begin();
	char *page = map_without_pages(PAGE);
	struct ibv_mr *mr = register_new(page, PAGE), *other = register_new(map_apart(PAGE), PAGE);
	struct end end = connect_to(fd, mr);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);

	if (receives)
		MUST(post_recv(end.qp, mr, 0, 64, 1));
	meet_again(fd);
	wait_for_fault();
	RETURNS(0, dereg, other);
	RETURNS(0, destroy, qp);
	RETURNS(0, dereg, mr);
	RETURNS(0, destroy, end.qp);
	give_pages(page, PAGE);
	end_side(peer);
}

static void page_that_is_written(void)
{
	owner(write_to_page, false);
}

static void page_that_receives(void)
{
	owner(send_to_page, true);
}

static struct end held_up;
static struct ibv_mr *page_of_sender;

static int send_page(void *unused)
{
	(void)unused;
	return post_send(held_up.qp, page_of_sender, 0, 8, 1);
}

static int write_page(void *unused)
{
	(void)unused;
	return write_to(&held_up, 1);
}

/* A thread that sends from a page that isn't there holds up no call on other objects. */
static void sender_of_a_page(void)
{
	pid_t first, second;
	int to_first = start_side(answer_six, &first), to_second = start_side(answer_two, &second);
	struct end ends[6];
	uint64_t began;

	begin();
	/* Queue pairs that packets have come for. */
	for (int i = 0; i < 6; i++)
		ends[i] = connect_new(to_first);
	meet_again(to_first);
	for (int i = 0; i < 6; i++)
		send_and_wait(&ends[i]);
	held_up = connect_new(to_second);
	struct end beside = connect_new(to_second);

	meet_again(to_second);
	send_and_wait(&beside);
	char *page = map_without_pages(PAGE);
	struct ibv_mr *other = register_new(map_apart(PAGE), PAGE);

	page_of_sender = register_new(page, PAGE);
	struct call *send = start(send_page, NULL);

	wait_for_fault();
	if (!returns(send, STANDS_MS))
		fail("the post of a SEND whose page isn't there stands");
	RETURNS(0, dereg, other);
	began = now_ms();
	for (int i = 0; i < 5; i++) {
		RETURNS(0, destroy, ends[i].qp);
		RETURNS(0, dereg, ends[i].mr);
	}
	if (now_ms() - began >= 5000)
		fail("5 queue pairs are destroyed in %llu ms", (unsigned long long)(now_ms() - began));
	send_and_wait(&ends[5]);
	/* The same peer's. */
	RETURNS(0, destroy, beside.qp);
	give_pages(page, PAGE);
	struct ibv_wc wc;

	MUST_COMPLETE(held_up.cq, &wc);
	RETURNS(0, dereg, page_of_sender);
	end_side(first);
	end_side(second);
}

/* The other side of `record_for_a_sender_of_a_page`. */
static void send_to_both(int fd)
{
	begin();
	struct end first = connect_new(fd), second = connect_new(fd);

	meet_again(fd);
	send_and_wait(&first);
	send_and_wait(&second);
	meet_again(fd);
	MUST(post_send(first.qp, first.mr, 0, 8, 1));
	send_and_wait(&second);
	for (;;)
		pause();
}

/* Posts two requests as a list, which sends the page inline. */
static int send_page_in_a_list(void *unused)
{
	struct ibv_sge sge = {(uintptr_t)page_of_sender->addr, 8, 0};
	struct ibv_send_wr second = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				     .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
	struct ibv_send_wr first = {.next = &second, .opcode = IBV_WR_SEND};

	(void)unused;
	return ibv_post_send(held_up.qp, &first, &bad);
}

/* A message for a queue pair that sends from a page that isn't there holds up no other queue pair of the same peer. */
static void record_for_a_sender(int (*post)(void *))
{
	pid_t peer;
	int fd = start_side(send_to_both, &peer);
	struct ibv_wc wc;

	begin();
	held_up = connect_new(fd);
	struct end second = connect_new(fd);
	char *page = map_without_pages(PAGE);

	page_of_sender = register_new(page, PAGE);
	for (int i = 0; i < 2; i++) {
		MUST(post_recv(held_up.qp, held_up.mr, 0, 64, 1));
		MUST(post_recv(second.qp, second.mr, 0, 64, 1));
	}
	meet_again(fd);
	MUST_COMPLETE(held_up.cq, &wc);
	MUST_COMPLETE(second.cq, &wc);
	struct call *send = start(post, NULL);

	wait_for_fault();
	meet_again(fd);
	MUST_COMPLETE(second.cq, &wc);
	give_pages(page, PAGE);
	if (!returns(send, STANDS_MS))
		fail("the sender stands");
	MUST_COMPLETE(held_up.cq, &wc);
	end_side(peer);
}

static void record_for_a_sender_of_a_page(void)
{
	record_for_a_sender(send_page);
}

static void record_for_a_sender_of_a_list(void)
{
	record_for_a_sender(send_page_in_a_list);
}

/* The other side: a page that is there, one that isn't, and two queue pairs. Gives the second page when it is asked. */
static void own_page_and_memory(int fd)
{
	begin();
	char *pages = map_without_pages(2 * PAGE);
	struct end end = connect_to(fd, register_new(pages, 2 * PAGE)), second = connect_new(fd);

	give_pages(pages, PAGE);
	meet_again(fd);
	meet_again(fd);
	wait_for_fault();
	meet_again(fd);
	meet_again(fd);
	give_pages(pages + PAGE, PAGE);
	(void)end;
	(void)second;
	for (;;)
		pause();
}

/* A WRITE to a page of the peer that isn't there: `post` is whether the post itself has to return. */
static void writer(bool post)
{
	pid_t peer;
	int fd = start_side(own_page_and_memory, &peer);
	struct ibv_wc wc;

	begin();
	held_up = connect_new(fd);
	struct end second = connect_new(fd);
	struct ibv_mr *other = register_new(map_apart(PAGE), PAGE);

	meet_again(fd);
	/* Until the queue pairs know that the other side shares memory, and its background thread sleeps again. */
	for (int i = 0; i < 20; i++) {
		write_and_wait(&held_up, 0);
		write_and_wait(&second, 0);
	}
	usleep(300000);
	meet_again(fd);
	struct call *write = start(write_page, NULL);

	meet_again(fd);
	if (post && !returns(write, STANDS_MS))
		fail("the WRITE's post stands");
	RETURNS(0, dereg, other);
	write_and_wait(&second, 0);
	meet_again(fd);
	if (!returns(write, STANDS_MS))
		fail("the WRITE's post stands when the page is there");
	MUST_COMPLETE(held_up.cq, &wc);
	end_side(peer);
}

static void write_beside_a_page(void)
{
	writer(false);
}

static void post_to_a_page(void)
{
	writer(true);
}

static sigjmp_buf out_of_poll;

static void leave_poll(int number)
{
	(void)number;
	siglongjmp(out_of_poll, 1);
}

/* The other side of `nowhere`: sends by the first queue pair, then by both. */
static void send_by_two(int fd)
{
	begin();
	struct end first = connect_new(fd), second = connect_new(fd);

	meet_again(fd);
	send_and_wait(&first);
	send_and_wait(&second);
	meet_again(fd);
	/* The other side polls by now. */
	usleep(100000);
	MUST(post_send(first.qp, first.mr, 0, 8, 1));
	meet_again(fd);
	MUST(post_send(first.qp, first.mr, 0, 8, 1));
	usleep(100000);
	for (int i = 0; i < 5; i++)
		send_and_wait(&second);
	meet_again(fd);
	for (;;)
		pause();
}

/* A thread that leaves a poll by siglongjmp, from the handler of its own fault, keeps no other queue from working. */
static void nowhere(void)
{
	struct sigaction action = {.sa_handler = leave_poll, .sa_flags = SA_NODEFER};
	pid_t peer;
	int fd = start_side(send_by_two, &peer);
	struct ibv_wc wc, *array = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	begin();
	struct end first = connect_new(fd), second = connect_new(fd);

	for (int i = 0; i < 8; i++) {
		MUST(post_recv(first.qp, first.mr, 0, 64, 1));
		MUST(post_recv(second.qp, second.mr, 0, 64, 1));
	}
	sigaction(SIGSEGV, &action, NULL);
	meet_again(fd);
	MUST_COMPLETE(first.cq, &wc);
	MUST_COMPLETE(second.cq, &wc);
	meet_again(fd);
	if (!sigsetjmp(out_of_poll, 1)) {
		uint64_t end = now_ms() + 10000;

		while (now_ms() < end)
			if (ibv_poll_cq(first.cq, 1, array) != 0)
				fail("a completion is in memory that isn't there");
		fail("no fault in 10 s");
	}
	meet_again(fd);
	for (int i = 0; i < 5; i++)
		MUST_COMPLETE(second.cq, &wc);
	meet_again(fd);
	end_side(peer);
}

#define MANY 128

/* The same where only the end of the array isn't there: the thread isn't in the library, so a fork of another waits for nothing. */
static void *fork_soon(void *unused)
{
	uint64_t begun = now_ms();
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	(void)unused;
	if (child < 0 || waitpid(child, NULL, 0) != child)
		fail("fork: %s", strerror(errno));
	if (now_ms() - begun > 5000)
		fail("a fork has taken %d ms", (int)(now_ms() - begun));
	return NULL;
}

static void nowhere_at_the_end(void)
{
	struct sigaction action = {.sa_handler = leave_poll, .sa_flags = SA_NODEFER};
	char *array = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	pthread_t thread;

	begin();
	struct ibv_cq *cq = make_cq(&device, MANY, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, MANY);
	struct ibv_mr *mr = register_new(map_apart(PAGE), PAGE);

	MUST(to_init(qp, ALL_ACCESS));
	for (int i = 0; i < MANY; i++)
		MUST(post_recv(qp, mr, 0, 64, 1));
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	MUST(mprotect(array + PAGE, PAGE, PROT_NONE));
	sigaction(SIGSEGV, &action, NULL);
	if (!sigsetjmp(out_of_poll, 1))
		fail("%d completions, and no fault", ibv_poll_cq(cq, MANY, (struct ibv_wc *)array));
	MUST(pthread_create(&thread, NULL, fork_soon, NULL));
	MUST(pthread_join(thread, NULL));
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

/* Gives each page 50 ms after it was touched. */
static void *give_slowly(void *unused)
{
	struct uffd_msg message;

	(void)unused;
	for (;;)
		if (is_readable(faults, 1000) && read(faults, &message, sizeof message) == sizeof message) {
			usleep(50000);
			give_pages((char *)(message.arg.pagefault.address & ~(PAGE - 1)), PAGE);
		}
	return NULL;
}

#define SLOW_PAGES 512

/* The other side of `slow_pages`: one queue pair receives into pages that come slowly, the other answers. */
static void receive_slowly(int fd)
{
	pthread_t thread;
	struct ibv_wc wc;

	begin();
	char *pages = map_without_pages(SLOW_PAGES * PAGE);

	MUST(pthread_create(&thread, NULL, give_slowly, NULL));
	struct end slow = connect_to(fd, register_new(pages, SLOW_PAGES * PAGE)), fast = connect_new(fd);

	MUST(post_recv(fast.qp, fast.mr, 0, 64, 1));
	meet_again(fd);
	for (;;) {
		ibv_poll_cq(slow.cq, 1, &wc);
		if (ibv_poll_cq(fast.cq, 1, &wc) == 1 && wc.opcode == IBV_WC_RECV) {
			MUST(post_recv(fast.qp, fast.mr, 0, 64, 1));
			MUST(post_send(fast.qp, fast.mr, 0, 8, 2));
		}
	}
}

/* A queue pair whose buffers are slow slows down no other. */
static void slow_pages(void)
{
	pid_t peer;
	int fd = start_side(receive_slowly, &peer), rounds = 0;
	size_t page = 0;
	struct ibv_wc wc;

	begin();
	struct end slow = connect_new(fd), fast = connect_new(fd);

	MUST(post_recv(fast.qp, fast.mr, 0, 64, 1));
	meet_again(fd);
	MUST(write_to(&slow, page++));
	for (uint64_t end = now_ms() + 4000; now_ms() < end; rounds++) {
		MUST(post_send(fast.qp, fast.mr, 0, 8, 2));
		for (int done = 0; done < 2; done++) {
			MUST_COMPLETE(fast.cq, &wc);
			if (wc.opcode == IBV_WC_RECV)
				MUST(post_recv(fast.qp, fast.mr, 0, 64, 1));
		}
		if (page < SLOW_PAGES && ibv_poll_cq(slow.cq, 1, &wc) == 1)
			MUST(write_to(&slow, page++));
	}
	/* Of 50 ms each, there is time for 80. */
	if (rounds < 400)
		fail("%d rounds in 4 s", rounds);
	end_side(peer);
}

static atomic_bool goes_on = true;

/* Sends messages and returns the longest that one has taken, in milliseconds. */
static void *send_on(void *end)
{
	uintptr_t longest = 0;

	while (goes_on) {
		uint64_t begun = now_ms();

		send_and_wait(end);
		if (now_ms() - begun > longest)
			longest = now_ms() - begun;
	}
	return (void *)longest;
}

/* A fork beside a thread that sends from a page that isn't there returns within its bound, and holds up no other thread. */
static void fork_beside_a_page(void)
{
	pid_t first, second;
	int to_first = start_side(answer_one, &first), to_second = start_side(answer_one, &second);
	pthread_t thread;
	void *longest;

	begin();
	struct end other = connect_new(to_first);

	meet_again(to_first);
	held_up = connect_new(to_second);
	meet_again(to_second);
	char *page = map_without_pages(PAGE);

	page_of_sender = register_new(page, PAGE);
	struct call *send = start(send_page, NULL);

	wait_for_fault();
	MUST(pthread_create(&thread, NULL, send_on, &other));
	uint64_t begun = now_ms();
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	if (child < 0 || waitpid(child, NULL, 0) != child)
		fail("fork: %s", strerror(errno));
	if (now_ms() - begun > STANDS_MS)
		fail("a fork has taken %d ms", (int)(now_ms() - begun));
	goes_on = false;
	MUST(pthread_join(thread, &longest));
	if ((uintptr_t)longest > 2000)
		fail("a message has taken %d ms beside the fork", (int)(uintptr_t)longest);
	give_pages(page, PAGE);
	if (!returns(send, STANDS_MS))
		fail("the sender stands");
	end_side(first);
	end_side(second);
}

/* The other side of `unread_lines`: its standard error is a pipe without room, and its adapter alone answers. */
static void answer_unread(int fd)
{
	char bytes[4096] = {0};
	int ends[2];

	MUST(pipe2(ends, O_NONBLOCK));
	for (size_t size = sizeof bytes; size; size = size > 1 ? 1 : 0)
		while (write(ends[1], bytes, size) > 0)
			;
	MUST(fcntl(ends[1], F_SETFL, 0));
	MUST(dup2(ends[1], STDERR_FILENO) != STDERR_FILENO);
	begin();
	connect_new(fd);
	struct end other = connect_new(fd);

	for (int i = 0; i < 3; i++)
		MUST(post_recv(other.qp, other.mr, 0, 64, 1));
	meet_again(fd);
	for (;;)
		pause();
}

/* A line on standard error, which a peer can cause, waits for no reader for longer than a second. */
static void unread_lines(void)
{
	pid_t peer;
	int fd = start_side(answer_unread, &peer);
	struct ibv_wc wc;

	begin();
	struct end refused = connect_new(fd), other = connect_new(fd);

	meet_again(fd);
	write_and_wait(&other, 0);
	refused.theirs.rkey ^= 1;
	MUST(write_to(&refused, 0));
	if (!wait_wc(refused.cq, &wc, STANDS_MS) || wc.status != IBV_WC_REM_ACCESS_ERR)
		fail("a WRITE with a wrong key ends with %s", ibv_wc_status_str(wc.status));
	for (int i = 0; i < 3; i++)
		send_and_wait(&other);
	end_side(peer);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		CASE(stopped_peer),	    CASE(page_that_is_written), CASE(page_that_receives),
		CASE(sender_of_a_page),	    CASE(write_beside_a_page),	CASE(post_to_a_page),
		CASE(nowhere),		    CASE(nowhere_at_the_end),	CASE(slow_pages),
		CASE(record_for_a_sender_of_a_page), CASE(fork_beside_a_page), CASE(unread_lines),
		CASE(record_for_a_sender_of_a_list),
	};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
