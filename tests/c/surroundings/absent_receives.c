/* absent_receives: messages wait for the memory of their receives. A receive of a shared queue is its message's meanwhile, and comes back when
 * the queue pair ends without a completion; messages of the unreliable services keep their order; everything can be ended.
 */
#define _GNU_SOURCE
#include "surroundings/held_up.h"

#define MOST_ENDS 20
#define MESSAGES 64
/* Between two messages in the sender's memory. */
#define APART 64ul
#define LENGTH 8
#define GRH 40

/* What both sides connect. */
static enum ibv_qp_type type = IBV_QPT_RC;
static int ends_of_each = 2;

/* The other side: sends a message by the queue pair that it is asked for, the first one with the pattern 0, the next with 1. */
static void send_on_request(int fd)
{
	struct end ends[MOST_ENDS];
	struct ibv_ah *addresses[MOST_ENDS];
	struct ibv_wc wc;
	unsigned char by;

	begin();
	struct ibv_mr *mr = register_new(map_apart(MESSAGES * APART), MESSAGES * APART);

	for (size_t i = 0; i < MESSAGES; i++)
		fill((char *)mr->addr + i * APART, LENGTH, i);
	for (int i = 0; i < ends_of_each; i++) {
		struct ibv_ah_attr attr;

		ends[i] = connect_as(fd, mr, type, NULL);
		fill_ah(&attr, &device, &ends[i].theirs.gid);
		addresses[i] = MAKE(ibv_create_ah(device.pd, &attr));
	}
	for (size_t sent = 0;;) {
		/* The completions are of no interest: queue pairs of the receiver end in the middle. */
		for (int i = 0; i < ends_of_each; i++)
			ibv_poll_cq(ends[i].cq, 1, &wc);
		if (!is_readable(fd, 10))
			continue;
		if (read(fd, &by, 1) != 1 || sent == MESSAGES)
			fail("no request, or too many");
		struct ibv_sge sge = {(uintptr_t)mr->addr + sent++ * APART, LENGTH, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED}, *bad;

		if (type == IBV_QPT_UD) {
			wr.wr.ud.ah = addresses[by];
			wr.wr.ud.remote_qpn = ends[by].theirs.qpn;
			wr.wr.ud.remote_qkey = QKEY;
		}
		MUST(ibv_post_send(ends[by].qp, &wr, &bad));
	}
}

static void ask_for_message(int fd, unsigned char by)
{
	if (write(fd, &by, 1) != 1)
		fail("the other side is gone");
}

static struct ibv_srq *make_srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};

	return MAKE(ibv_create_srq(device.pd, &init));
}

/* Posts a page as a receive. */
static void post_to(struct ibv_srq *srq, const struct ibv_mr *mr, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, PAGE, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
}

/* The next completion is of this receive, which has the message of this number. */
static void expect_message(const struct end *end, uint64_t wr_id, const void *page, uint64_t message)
{
	struct ibv_wc wc;
	uint32_t grh = type == IBV_QPT_UD ? GRH : 0;

	MUST_COMPLETE(end->cq, &wc);
	if (wc.wr_id != wr_id || wc.byte_len != LENGTH + grh)
		fail("receive %llu of %u bytes, not %llu", (unsigned long long)wc.wr_id, wc.byte_len,
		     (unsigned long long)wr_id);
	check((const char *)page + grh, LENGTH, message, "message");
}

static void expect_nothing(const struct end *end)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(end->cq, 1, &wc))
		fail("receive %llu has ended without its memory: %s", (unsigned long long)wc.wr_id,
		     ibv_wc_status_str(wc.status));
}

/* A message keeps the receive of a shared queue that it waits for, and the message of another queue pair gets the next one. */
static void another_takes_the_next(enum ibv_qp_type of)
{
	pid_t peer;

	type = of;
	int fd = start_side(send_on_request, &peer);

	begin();
	struct ibv_srq *srq = make_srq();
	struct end ends[2];

	for (int i = 0; i < 2; i++)
		ends[i] = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, srq);
	char *pages = map_without_pages(PAGE);
	struct ibv_mr *absent = register_new(pages, PAGE), *there = ends[1].mr;

	post_to(srq, absent, 1);
	post_to(srq, there, 2);
	ask_for_message(fd, 0);
	wait_for_fault();
	ask_for_message(fd, 1);
	expect_message(&ends[1], 2, there->addr, 1);
	post_to(srq, there, 3);
	ask_for_message(fd, 1);
	expect_message(&ends[1], 3, there->addr, 2);
	expect_nothing(&ends[0]);
	give_pages(pages, PAGE);
	expect_message(&ends[0], 1, pages, 0);
	for (int i = 0; i < 2; i++)
		MUST(ibv_destroy_qp(ends[i].qp));
	MUST(ibv_destroy_srq(srq));
	end_side(peer);
}

static void next_of_a_shared_queue(void)
{
	another_takes_the_next(IBV_QPT_RC);
}

static void next_datagram_of_a_shared_queue(void)
{
	another_takes_the_next(IBV_QPT_UD);
}

enum { BY_ERROR, BY_RESET, BY_DESTRUCTION, WAYS };

/* The receive of a message that waits is flushed in ERR, and goes back to its queue when the queue pair is reset or destroyed. */
static void shared_receive_of_an_end(void)
{
	pid_t peer;

	ends_of_each = WAYS + 1;
	int fd = start_side(send_on_request, &peer);
	struct ibv_wc wc = {0};
	uint64_t message = 0;

	begin();
	struct ibv_srq *srq = make_srq();
	struct end ends[WAYS + 1];

	for (int i = 0; i <= WAYS; i++)
		ends[i] = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, srq);
	const struct end *other = &ends[WAYS];

	for (int way = 0; way < WAYS; way++) {
		const struct end *end = &ends[way];
		char *pages = map_without_pages(PAGE);
		struct ibv_mr *absent = register_new(pages, PAGE);
		struct ibv_qp_attr attr = {.qp_state = way == BY_ERROR ? IBV_QPS_ERR : IBV_QPS_RESET};

		post_to(srq, absent, 1);
		post_to(srq, other->mr, 2);
		ask_for_message(fd, (unsigned char)way);
		message++;
		wait_for_fault();
		if (way == BY_DESTRUCTION)
			RETURNS(0, destroy, end->qp);
		else
			MUST(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
		if (way == BY_ERROR) {
			if (!wait_wc(end->cq, &wc, STANDS_MS) || wc.wr_id != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
				fail("receive %llu isn't flushed: %s", (unsigned long long)wc.wr_id,
				     ibv_wc_status_str(wc.status));
		} else {
			expect_nothing(end);
			ask_for_message(fd, WAYS);
			wait_for_fault();
			give_pages(pages, PAGE);
			expect_message(other, 1, pages, message++);
		}
		ask_for_message(fd, WAYS);
		expect_message(other, 2, other->mr->addr, message++);
		if (way != BY_DESTRUCTION)
			MUST(ibv_destroy_qp(end->qp));
		RETURNS(0, dereg, absent);
		if (way == BY_ERROR)
			give_pages(pages, PAGE);
	}
	expect_nothing(other);
	MUST(ibv_destroy_qp(other->qp));
	MUST(ibv_destroy_srq(srq));
	end_side(peer);
}

/* Messages of the unreliable services wait, hold up no other queue pair and keep their order. */
static void unreliable(enum ibv_qp_type of)
{
	pid_t peer;

	type = of;
	int fd = start_side(send_on_request, &peer);

	begin();
	struct end end = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, NULL);
	struct end beside = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, NULL);

	for (int ends = 0; ends < 2; ends++) {
		char *pages = map_without_pages(3 * PAGE);
		struct ibv_mr *absent = register_new(pages, 3 * PAGE);
		uint64_t message = ends ? 4 : 0;

		for (size_t i = 0; i < 3; i++)
			MUST(post_recv(end.qp, absent, i * PAGE, PAGE, i));
		MUST(post_recv(beside.qp, beside.mr, 0, PAGE, 9));
		for (int i = 0; i < 3; i++)
			ask_for_message(fd, 0);
		wait_for_fault();
		ask_for_message(fd, 1);
		expect_message(&beside, 9, beside.mr->addr, message + 3);
		expect_nothing(&end);
		if (ends) {
			RETURNS(0, dereg, absent);
			RETURNS(0, destroy, end.qp);
		}
		give_pages(pages, 3 * PAGE);
		for (size_t i = 0; i < 3 && !ends; i++)
			expect_message(&end, i, pages + i * PAGE, message + i);
	}
	end_side(peer);
}

static void unreliable_connection(void)
{
	unreliable(IBV_QPT_UC);
}

static void datagrams(void)
{
	unreliable(IBV_QPT_UD);
}

static int close_device(void *context)
{
	return ibv_close_device(context);
}

static int destroy_srq(void *srq)
{
	return ibv_destroy_srq(srq);
}

/* All that a message needs which waits can be ended, one after the other, or with the device. */
static void ends_of_all(void)
{
	for (int with_device = 0; with_device < 2; with_device++) {
		pid_t peer;
		int fd = start_side(send_on_request, &peer);

		begin();
		struct ibv_srq *srq = make_srq();
		char *pages = map_without_pages(PAGE);
		struct ibv_mr *absent = register_new(pages, PAGE);
		struct end end = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, srq);
		struct end beside = connect_as(fd, register_new(map_apart(PAGE), PAGE), type, NULL);

		post_to(srq, absent, 1);
		MUST(post_recv(beside.qp, beside.mr, 0, PAGE, 2));
		ask_for_message(fd, 0);
		wait_for_fault();
		ask_for_message(fd, 1);
		expect_message(&beside, 2, beside.mr->addr, 1);
		if (with_device) {
			RETURNS(0, close_device, device.context);
		} else {
			RETURNS(EBUSY, destroy_srq, srq);
			RETURNS(0, dereg, absent);
			RETURNS(0, destroy, end.qp);
			RETURNS(0, destroy_srq, srq);
		}
		give_pages(pages, PAGE);
		end_side(peer);
	}
}

/* As many queue pairs as fill what a process keeps, each with more than its queue pair keeps. */
#define FULL_ENDS 17
#define FULL_MESSAGES 17
#define FULL_LENGTH (1ul << 20)
#define FULL_BYTES (FULL_MESSAGES * FULL_LENGTH)

static void send_to_all(int fd)
{
	struct end ends[FULL_ENDS];
	struct ibv_wc wc;

	begin();
	struct ibv_mr *mr = register_new(map_apart(FULL_BYTES), FULL_BYTES);

	for (size_t i = 0; i < FULL_MESSAGES; i++)
		fill((char *)mr->addr + i * FULL_LENGTH, FULL_LENGTH, i);
	for (int i = 0; i < FULL_ENDS; i++)
		ends[i] = connect_to(fd, mr);
	meet_again(fd);
	for (size_t message = 0; message < FULL_MESSAGES; message++)
		for (int i = 0; i < FULL_ENDS; i++)
			MUST(post_send(ends[i].qp, mr, message * FULL_LENGTH, FULL_LENGTH, message));
	for (size_t message = 0; message < FULL_MESSAGES; message++)
		for (int i = 0; i < FULL_ENDS; i++) {
			if (!wait_wc(ends[i].cq, &wc, 40000) || wc.status != IBV_WC_SUCCESS || wc.wr_id != message)
				fail("queue pair %d: message %zu isn't the next that succeeds", i, message);
		}
	meet_again(fd);
	for (;;)
		pause();
}

/* What there is no room for comes again: nothing is lost, and the order is kept. */
static void full_lists(void)
{
	pid_t peer;
	int fd = start_side(send_to_all, &peer);
	struct end ends[FULL_ENDS];
	struct ibv_wc wc;

	begin();
	char *pages = map_without_pages(FULL_ENDS * FULL_BYTES);
	struct ibv_mr *mr = register_new(pages, FULL_ENDS * FULL_BYTES);

	for (size_t i = 0; i < FULL_ENDS; i++) {
		ends[i] = connect_to(fd, mr);
		for (size_t message = 0; message < FULL_MESSAGES; message++)
			MUST(post_recv(ends[i].qp, mr, i * FULL_BYTES + message * FULL_LENGTH, FULL_LENGTH, message));
	}
	meet_again(fd);
	for (int i = 0; i < FULL_ENDS; i++)
		wait_for_fault();
	/* By then all has come that can be kept. */
	usleep(700000);
	for (int i = 0; i < FULL_ENDS; i++)
		expect_nothing(&ends[i]);
	give_pages(pages, FULL_ENDS * FULL_BYTES);
	for (size_t message = 0; message < FULL_MESSAGES; message++)
		for (size_t i = 0; i < FULL_ENDS; i++) {
			if (!wait_wc(ends[i].cq, &wc, 40000) || wc.status != IBV_WC_SUCCESS || wc.wr_id != message)
				fail("queue pair %zu: receive %zu isn't the next that succeeds", i, message);
			check(pages + i * FULL_BYTES + message * FULL_LENGTH, FULL_LENGTH, message, "message");
		}
	meet_again(fd);
	end_side(peer);
}

#define LONG (64ul << 10)
#define ROUNDS 12

/* The other side of `beyond_gaps`: the network between loses packets. */
static void send_through_losses(int fd)
{
	struct ibv_wc wc;

	setenv("FERROCE_FAULT", "drop=5%,seed=7", 1);
	begin();
	struct end end = connect_to(fd, register_new(map_apart(LONG), LONG)), beside = connect_new(fd);

	fill(end.mr->addr, LONG, 1);
	send_and_wait(&end);
	for (int round = 0; round < ROUNDS; round++) {
		meet_again(fd);
		MUST(post_send(end.qp, end.mr, 0, LONG, 1));
		meet_again(fd);
		send_and_wait(&beside);
		meet_again(fd);
		MUST_COMPLETE(end.cq, &wc);
	}
	meet_again(fd);
	for (;;)
		pause();
}

/* Packets that have come before a lost one wait for their memory when that has come. */
static void beyond_gaps(void)
{
	pid_t peer;
	int fd = start_side(send_through_losses, &peer);
	struct ibv_wc wc;

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);

	MUST(post_recv(end.qp, end.mr, 0, LENGTH, 0));
	MUST_COMPLETE(end.cq, &wc);
	for (int round = 0; round < ROUNDS; round++) {
		char *pages = map_without_pages(LONG);
		struct ibv_mr *mr = register_new(pages, LONG);

		/* What is lost of these is a gap before pages that aren't there. */
		give_pages(pages, LONG / 4);
		MUST(post_recv(end.qp, mr, 0, LONG, 1));
		MUST(post_recv(beside.qp, beside.mr, 0, PAGE, 2));
		meet_again(fd);
		wait_for_fault();
		meet_again(fd);
		MUST_COMPLETE(beside.cq, &wc);
		expect_nothing(&end);
		meet_again(fd);
		give_pages(pages + LONG / 4, LONG - LONG / 4);
		MUST_COMPLETE(end.cq, &wc);
		check(pages, LONG, 1, "message");
		MUST(ibv_dereg_mr(mr));
	}
	meet_again(fd);
	end_side(peer);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		CASE(next_of_a_shared_queue), CASE(next_datagram_of_a_shared_queue), CASE(shared_receive_of_an_end),
		CASE(unreliable_connection), CASE(datagrams), CASE(ends_of_all), CASE(full_lists),
		CASE(beyond_gaps),
	};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
