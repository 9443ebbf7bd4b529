/* offered_sends: large SENDs that are outstanding while the receiver is stopped. The bytes of one that is read from the sender's memory
 * are those that are there when the receiver goes on. The bytes of one that goes through the ring are those of the time when it was posted.
 *
 * A program must not write to the memory of an outstanding SEND. This one does, to see which way its bytes take.
 */
#include "common.h"
#include "cases.h"
#include "refused_copies.h"

#define LARGE 65536u
#define LARGEST (1u << 20)
/* Elements of a receive. */
#define ELEMENTS 16
#define WAITING 8
/* What the sender's program becomes. */
#define OTHER_PROGRAM "other-program"

/* How both sides of a case end, as wait(2) reports it. */
struct ends {
	void (*send)(void);
	void (*receive)(void);
	int sent, received;
};

/* Of this side. */
static struct device device;
static struct path path;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
/* To the other side, and from the sender to the process that stops the receiver. */
static int peer, director;
static pid_t receiver;

static void meet_again(void)
{
	char ready = 1, other;

	if (!exchange(peer, &ready, &other, 1))
		fail("the other side is gone");
}

static void stop_receiver(void)
{
	char word = 1;

	if (!exchange(director, &word, &word, 1))
		fail("the receiver can't be stopped");
}

static void receiver_goes_on(void)
{
	kill(receiver, SIGCONT);
}

/* Posts a receive of `length` bytes in so many elements, of which the last is the longest. */
static void post_elements(uint32_t elements, uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sges[ELEMENTS];
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sges, .num_sge = (int)elements}, *bad;
	uint32_t each = length / elements;

	for (uint32_t i = 0; i < elements; i++)
		sges[i] = (struct ibv_sge){(uintptr_t)memory + (size_t)i * each, each, mr->lkey};
	sges[elements - 1].length += length % elements;
	if (srq)
		MUST(ibv_post_srq_recv(srq, &wr, &bad));
	else
		MUST(ibv_post_recv(qp, &wr, &bad));
}

/* As post_elements; then has the other side send, and returns the end of the receive. */
static struct ibv_wc receive_in(uint32_t elements, uint32_t length, uint64_t wr_id)
{
	struct ibv_wc wc;

	memset(memory, 0xee, length);
	post_elements(elements, length, wr_id);
	meet_again();
	if (!wait_wc(cq, &wc, 10000))
		fail("receive %llu doesn't complete", (unsigned long long)wr_id);
	if (wc.wr_id != wr_id)
		fail("receive %llu completes, not %llu", (unsigned long long)wc.wr_id, (unsigned long long)wr_id);
	return wc;
}

static void receive_whole(uint32_t elements, uint32_t length, uint64_t index)
{
	struct ibv_wc wc = receive_in(elements, length, index);

	if (wc.status != IBV_WC_SUCCESS || wc.byte_len != length)
		fail("receive %llu: %s, %u bytes", (unsigned long long)index, ibv_wc_status_str(wc.status), wc.byte_len);
	check(memory, length, index, "message");
}

/* Posts message `index` when there is a receive for it and the receiver is stopped. */
static void post_to_stopped(uint32_t length, uint64_t index)
{
	meet_again();
	stop_receiver();
	fill(memory, length, index);
	MUST(post_send(qp, mr, 0, length, index));
}

static void expect_end(uint64_t index, enum ibv_wc_status status)
{
	EXPECT_STATUS(cq, index, status);
}

static void begin(int fd, int to_director, bool shared, bool sends)
{
	struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = WAITING, .max_sge = ELEMENTS}};
	struct address mine, theirs;
	struct ibv_qp_init_attr init;

	peer = fd;
	director = to_director;
	device = open_device(1);
	path = default_path(&device);
	/* A peer that is gone is noticed within some seconds. */
	path.timeout = 15;
	cq = make_cq(&device, 2 * WAITING, NULL);
	srq = shared ? MAKE(ibv_create_srq(device.pd, &of_srq)) : NULL;
	init = (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
					 .cap = {WAITING, WAITING, 1, ELEMENTS, 0}};
	qp = MAKE(ibv_create_qp(device.pd, &init));
	memory = map_apart(LARGEST);
	mr = MAKE(ibv_reg_mr(device.pd, memory, LARGEST, ALL_ACCESS));
	mine = (struct address){.qpn = qp->qp_num, .reserved = (uint32_t)getpid(), .gid = device.gid};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	receiver = (pid_t)theirs.reserved;
	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	/* From the first message on each side knows that the other has shared memory. */
	if (sends) {
		meet_again();
		MUST(post_send(qp, mr, 0, 8, 0));
		expect_end(0, IBV_WC_SUCCESS);
	} else {
		receive_in(1, 8, 0);
	}
	meet_again();
}

/* The bytes are those of the time when the receiver goes on. */
static void send_and_change(uint32_t length, uint64_t posted, uint64_t then)
{
	post_to_stopped(length, posted);
	fill(memory, length, then);
	receiver_goes_on();
	expect_end(posted, IBV_WC_SUCCESS);
}

static void send_until_refused(void)
{
	send_and_change(LARGE, 1, 2);
	send_and_change(LARGEST, 3, 4);
	/* The first one that is refused is sent once more, those behind it aren't offered. */
	post_to_stopped(LARGE, 5);
	receiver_goes_on();
	expect_end(5, IBV_WC_SUCCESS);
	send_and_change(LARGE, 6, 7);
	post_to_stopped(LARGEST, 8);
	receiver_goes_on();
	expect_end(8, IBV_WC_SUCCESS);
}

static void receive_and_refuse(void)
{
	receive_whole(1, LARGE, 2);
	receive_whole(1, LARGEST, 4);
	refuse_copies(ALL_COPIES);
	receive_whole(1, LARGE, 5);
	receive_whole(1, LARGE, 6);
	receive_whole(1, LARGEST, 8);
}

static const uint32_t lengths[] = {16384, LARGE}, elements[] = {2, 7, ELEMENTS};

#define LENGTHS (sizeof lengths / sizeof *lengths)
#define IN_ELEMENTS (LENGTHS * sizeof elements / sizeof *elements)

static void send_to_elements(void)
{
	for (uint64_t i = 0; i < IN_ELEMENTS; i++)
		send_and_change(lengths[i % LENGTHS], i, i + 1);
}

/* Each copy fills a word of the library's and at least two elements. */
static void receive_in_elements(void)
{
	refuse_copies(3);
	for (uint64_t i = 0; i < IN_ELEMENTS; i++)
		receive_whole(elements[i / LENGTHS], lengths[i % LENGTHS], i + 1);
}

/* The receive has fewer bytes than the message. */
static void send_too_much(void)
{
	post_to_stopped(LARGE, 1);
	receiver_goes_on();
	expect_end(1, IBV_WC_REM_INV_REQ_ERR);
}

static void receive_too_little(void)
{
	for (uint32_t at = LARGE - 1; at < LARGE + 4096; at++)
		memory[at] = 0x11;
	struct ibv_wc wc = receive_in(ELEMENTS, LARGE - 1, 1);

	if (wc.status != IBV_WC_LOC_LEN_ERR)
		fail("a receive that is too short ends with %s", ibv_wc_status_str(wc.status));
	for (uint32_t at = LARGE - 1; at < LARGE + 4096; at++)
		if (memory[at] != 0x11)
			fail("byte %u behind the receive has changed", at);
}

/* There is no receive when the message is posted. */
static void send_too_early(void)
{
	for (uint64_t index = 1; index <= 2 * WAITING; index++) {
		fill(memory, LARGE, index);
		MUST(post_send(qp, mr, 0, LARGE, index));
		usleep(3000);
		meet_again();
		expect_end(index, IBV_WC_SUCCESS);
	}
}

static void receive_late(void)
{
	for (uint64_t index = 1; index <= 2 * WAITING; index++)
		receive_whole(1 + index % 3, LARGE, index);
}

/* The region of an outstanding message is deregistered. */
static void send_and_deregister(void)
{
	post_to_stopped(LARGE, 1);
	MUST(ibv_dereg_mr(mr));
	memset(memory, 0xaa, LARGE);
	receiver_goes_on();
	expect_end(1, IBV_WC_LOC_PROT_ERR);
	meet_again();
}

static void send_and_destroy(void)
{
	post_to_stopped(LARGE, 1);
	MUST(ibv_destroy_qp(qp));
	memset(memory, 0xaa, LARGE);
	receiver_goes_on();
	meet_again();
}

static void send_and_flush(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	post_to_stopped(LARGE, 1);
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	expect_end(1, IBV_WC_WR_FLUSH_ERR);
	memset(memory, 0xaa, LARGE);
	receiver_goes_on();
	meet_again();
}

/* The message must not come, nor any byte of the memory that the sender has reused. */
static void receive_nothing(void)
{
	memset(memory, 0xee, LARGE);
	post_elements(1, LARGE, 1);
	meet_again();
	/* The time of the repetitions. */
	EXPECT_NOTHING(cq);
	for (uint32_t at = 0; at < LARGE; at++)
		if ((unsigned char)memory[at] == 0xaa)
			fail("byte %u is one that was written later", at);
}

static void receive_nothing_of_a_living_process(void)
{
	receive_nothing();
	meet_again();
}

static void send_and_fork(void)
{
	int status;

	post_to_stopped(LARGE, 1);
	pid_t child = fork();

	if (!child) {
		memset(memory, 0xaa, LARGE);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		fail("the child ended with status %x", status);
	receiver_goes_on();
	expect_end(1, IBV_WC_SUCCESS);
	post_to_stopped(LARGEST, 2);
	receiver_goes_on();
	expect_end(2, IBV_WC_SUCCESS);
}

static void receive_two(void)
{
	receive_whole(1, LARGE, 1);
	receive_whole(1, LARGEST, 2);
}

static void send_and_execute(void)
{
	post_to_stopped(LARGE, 1);
	execl("/proc/self/exe", OTHER_PROGRAM, OTHER_PROGRAM, NULL);
	fail("exec: %s", strerror(errno));
}

static void send_and_die(void)
{
	post_to_stopped(LARGEST, 1);
	kill(getpid(), SIGKILL);
}

static void send_and_kill(void)
{
	post_to_stopped(LARGEST, 1);
	kill(receiver, SIGKILL);
	expect_end(1, IBV_WC_RETRY_EXC_ERR);
}

static void receive_until_killed(void)
{
	receive_in(1, LARGEST, 1);
	fail("it was stopped, and isn't killed");
}

/* The receiver's queue pair has no receive for a message, and ends. */
static void send_to_none(void)
{
	post_to_stopped(LARGE, 1);
	receiver_goes_on();
	meet_again();
	expect_end(1, IBV_WC_RETRY_EXC_ERR);
	meet_again();
}

static void destroy_receiver(void)
{
	meet_again();
	meet_again();
	MUST(ibv_destroy_qp(qp));
	meet_again();
}

/* The memory of the receive isn't registered any more. */
static void send_to_no_region(void)
{
	post_to_stopped(LARGE, 1);
	receiver_goes_on();
	expect_end(1, IBV_WC_REM_OP_ERR);
}

static void receive_in_no_region(void)
{
	post_elements(3, LARGE, 1);
	MUST(ibv_dereg_mr(mr));
	memset(memory, 0xee, LARGE);
	meet_again();
	expect_end(1, IBV_WC_LOC_PROT_ERR);
	for (uint32_t at = 0; at < LARGE; at++)
		if ((unsigned char)memory[at] != 0xee)
			fail("byte %u of memory that isn't registered has changed", at);
}

static pid_t start(const struct ends *ends, bool shared, const int fds[2], int to_director, bool sends)
{
	pid_t child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (!child) {
		/* Neither side outlives the program. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[sends]);
		begin(fds[!sends], to_director, shared && !sends, sends);
		(sends ? ends->send : ends->receive)();
		exit(0);
	}
	return child;
}

static void expect_status(pid_t child, int expected, const char *which)
{
	int status;

	if (waitpid(child, &status, 0) != child || status != expected)
		fail("the %s ended with status %x", which, status);
}

static void run_with(struct ends ends, bool shared)
{
	int fds[2], control[2], status;
	char word;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		fail("socketpair: %s", strerror(errno));
	pid_t receives = start(&ends, shared, fds, -1, false);

	/* The sender alone has the other end. */
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control))
		fail("socketpair: %s", strerror(errno));
	pid_t sends = start(&ends, shared, fds, control[1], true);

	close(fds[0]);
	close(fds[1]);
	close(control[1]);
	/* All threads of the receiver are stopped when that is reported. The sender has ended, or has become another program, when it has
	 * no socket any more.
	 */
	while (recv(control[0], &word, 1, 0) == 1) {
		kill(receives, SIGSTOP);
		if (waitpid(receives, &status, WUNTRACED) != receives || !WIFSTOPPED(status))
			fail("the receiver isn't stopped: status %x", status);
		send(control[0], &word, 1, MSG_NOSIGNAL);
	}
	kill(receives, SIGCONT);
	expect_status(receives, ends.received, "receiver");
	/* The other program. */
	if (ends.sent == SIGKILL)
		kill(sends, SIGKILL);
	expect_status(sends, ends.sent, "sender");
}

static void run(void (*send)(void), void (*receive)(void))
{
	run_with((struct ends){send, receive, 0, 0}, false);
}

static void bytes_are_read_from_the_sender_until_copies_are_refused(void)
{
	run(send_until_refused, receive_and_refuse);
}

static void elements_of_a_receive_are_filled_by_one_copy(void)
{
	run(send_to_elements, receive_in_elements);
}

static void shared_receives(void)
{
	run_with((struct ends){send_to_elements, receive_in_elements, 0, 0}, true);
}

static void receive_that_is_too_short(void)
{
	run(send_too_much, receive_too_little);
}

static void receives_that_come_late(void)
{
	run(send_too_early, receive_late);
}

static void sender_deregisters(void)
{
	run(send_and_deregister, receive_nothing_of_a_living_process);
}

static void sender_destroys_its_queue_pair(void)
{
	run(send_and_destroy, receive_nothing_of_a_living_process);
}

static void sender_flushes_its_queue_pair(void)
{
	run(send_and_flush, receive_nothing_of_a_living_process);
}

static void sender_forks(void)
{
	run(send_and_fork, receive_two);
}

static void sender_executes_another_program(void)
{
	run_with((struct ends){send_and_execute, receive_nothing, SIGKILL, 0}, false);
}

static void sender_is_killed(void)
{
	run_with((struct ends){send_and_die, receive_nothing, SIGKILL, 0}, false);
}

static void receiver_is_killed(void)
{
	run_with((struct ends){send_and_kill, receive_until_killed, 0, SIGKILL}, false);
}

static void receiver_destroys_its_queue_pair(void)
{
	run(send_to_none, destroy_receiver);
}

static void receiver_deregisters(void)
{
	run(send_to_no_region, receive_in_no_region);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		CASE(bytes_are_read_from_the_sender_until_copies_are_refused),
		CASE(elements_of_a_receive_are_filled_by_one_copy),
		CASE(shared_receives),
		CASE(receive_that_is_too_short),
		CASE(receives_that_come_late),
		CASE(sender_deregisters),
		CASE(sender_destroys_its_queue_pair),
		CASE(sender_flushes_its_queue_pair),
		CASE(sender_forks),
		CASE(sender_executes_another_program),
		CASE(sender_is_killed),
		CASE(receiver_is_killed),
		CASE(receiver_destroys_its_queue_pair),
		CASE(receiver_deregisters),
	};

	if (!strcmp(argv[0], OTHER_PROGRAM))
		for (;;)
			pause();
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
