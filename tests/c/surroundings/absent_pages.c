/* absent_pages: each operation needs memory whose pages aren't there, on this side. Nothing of its queue pair goes on, another queue pair of the
 * same two processes does, and when the pages are there, the operation ends with success and the right bytes.
 */
#define _GNU_SOURCE
#include "surroundings/held_up.h"

#define LONG (16 * PAGE)
/* Messages of the other queue pair for each operation. */
#define BESIDE 3
#define IMMEDIATE 0x11223344

enum operation {
	OP_SEND, OP_SEND_LONG, OP_SEND_IN_TWO, OP_WRITE, OP_WRITE_LONG, OP_WRITE_IMM, OP_READ, OP_READ_LONG, OP_ADD,
	/* Of this side, from here on. */
	OP_OWN_SEND, OP_OWN_SEND_LONG, OP_OWN_WRITE, OP_OWN_WRITE_LONG, OP_OWN_READ, OP_OWN_READ_LONG, OP_OWN_ADD,
	OPERATIONS
};

static bool is_long(enum operation op)
{
	return op == OP_SEND_LONG || op == OP_WRITE_LONG || op == OP_READ_LONG || op == OP_OWN_SEND_LONG ||
	       op == OP_OWN_WRITE_LONG || op == OP_OWN_READ_LONG;
}

static uint32_t length_of(enum operation op)
{
	return is_long(op) ? LONG : op == OP_SEND_IN_TWO ? 64 : 8;
}

/* Posts `op`, of which `own` is the memory on this side and `theirs` that on the other. */
static void post(enum operation op, const struct end *end, const struct ibv_mr *own, uint64_t theirs, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)own->addr, length_of(op), own->lkey};
	struct ibv_send_wr wr = {.wr_id = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;

	switch (op) {
	case OP_SEND: case OP_SEND_LONG: case OP_SEND_IN_TWO: case OP_OWN_SEND: case OP_OWN_SEND_LONG:
		wr.opcode = IBV_WR_SEND;
		break;
	case OP_WRITE: case OP_WRITE_LONG: case OP_OWN_WRITE: case OP_OWN_WRITE_LONG:
		wr.opcode = IBV_WR_RDMA_WRITE;
		break;
	case OP_WRITE_IMM:
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = IMMEDIATE;
		break;
	case OP_READ: case OP_READ_LONG: case OP_OWN_READ: case OP_OWN_READ_LONG:
		wr.opcode = IBV_WR_RDMA_READ;
		break;
	default:
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.compare_add = 5;
	}
	if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = theirs;
		wr.wr.atomic.rkey = rkey;
	} else {
		set_remote(&wr, theirs, rkey);
	}
	MUST(ibv_post_send(end->qp, &wr, &bad));
}

struct memory {
	uint64_t addr;
	uint32_t rkey;
};

/* The other side: its memory contains the pattern of the operation. */
static void other_side(int fd)
{
	struct memory mine, theirs;
	struct ibv_wc wc;

	begin();
	struct ibv_mr *mr = register_new(map_apart(LONG), LONG);
	struct end end = connect_to(fd, mr), beside = connect_new(fd);

	mine = (struct memory){(uintptr_t)mr->addr, mr->rkey};
	for (int op = 0; op < OPERATIONS; op++) {
		fill(mr->addr, LONG, (uint64_t)op);
		for (int i = 0; i < BESIDE; i++)
			MUST(post_recv(beside.qp, beside.mr, 0, 64, 0));
		if (op == OP_OWN_SEND || op == OP_OWN_SEND_LONG)
			MUST(post_recv(end.qp, mr, 0, length_of(op), (uint64_t)op));
		if (!exchange(fd, &mine, &theirs, sizeof mine))
			fail("the other side is gone");
		if (op < OP_OWN_SEND) {
			post(op, &end, mr, theirs.addr, theirs.rkey);
			MUST_COMPLETE(end.cq, &wc);
		} else if (op == OP_OWN_SEND || op == OP_OWN_SEND_LONG) {
			MUST_COMPLETE(end.cq, &wc);
		}
		/* Its adapter answers what else comes. */
		meet_again(fd);
		bool zeros = op == OP_READ || op == OP_READ_LONG || op == OP_OWN_SEND || op == OP_OWN_SEND_LONG ||
			     op == OP_OWN_WRITE || op == OP_OWN_WRITE_LONG || op == OP_ADD;

		for (uint32_t at = 0; zeros && at < length_of(op); at++)
			if (((char *)mr->addr)[at])
				fail("operation %d: byte %u isn't 0", op, at);
	}
	meet_again(fd);
	for (;;)
		pause();
}

static void each_operation(void)
{
	struct memory mine, theirs;
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(other_side, &peer);

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);

	/* Both know that the other side shares memory, if it does. */
	for (int op = 0; op < OPERATIONS; op++) {
		uint32_t length = length_of(op), in_first = op == OP_SEND_IN_TWO ? 8 : 0;
		char *pages = map_without_pages(LONG), *there = map_apart(PAGE);
		struct ibv_mr *mr = register_new(pages, LONG), *first = register_new(there, PAGE);
		struct ibv_sge sges[2] = {{(uintptr_t)there, in_first, first->lkey},
					  {(uintptr_t)pages, length - in_first, mr->lkey}};
		struct ibv_recv_wr wr = {.sg_list = in_first ? sges : sges + 1, .num_sge = in_first ? 2 : 1}, *bad;
		bool receives = op <= OP_SEND_IN_TWO || op == OP_WRITE_IMM;
		/* The others are found absent in the middle of the message. */
		size_t given = is_long(op) ? PAGE : 0;

		if (given)
			give_pages(pages, given);

		if (op == OP_WRITE_IMM)
			wr.num_sge = 0;
		if (receives)
			MUST(ibv_post_recv(end.qp, &wr, &bad));
		mine = (struct memory){(uintptr_t)pages, mr->rkey};
		if (!exchange(fd, &mine, &theirs, sizeof mine))
			fail("the other side is gone");
		if (op >= OP_OWN_SEND)
			post(op, &end, mr, theirs.addr, theirs.rkey);
		wait_for_fault();
		for (int i = 0; i < BESIDE; i++)
			send_and_wait(&beside);
		if (ibv_poll_cq(end.cq, 1, &wc))
			fail("operation %d has ended without its memory", op);
		give_pages(pages + given, LONG - given);
		if (receives || op >= OP_OWN_SEND)
			MUST_COMPLETE(end.cq, &wc);
		if (receives && op != OP_WRITE_IMM && wc.byte_len != length)
			fail("operation %d: %u bytes", op, wc.byte_len);
		if (op == OP_WRITE_IMM && wc.imm_data != IMMEDIATE)
			fail("another immediate");
		meet_again(fd);
		switch (op) {
		case OP_SEND: case OP_SEND_LONG: case OP_WRITE: case OP_WRITE_LONG: case OP_WRITE_IMM:
		case OP_OWN_READ: case OP_OWN_READ_LONG: case OP_OWN_ADD:
			check(pages, length, (uint64_t)op, "operation");
			break;
		case OP_SEND_IN_TWO:
			memmove(there + in_first, pages, length - in_first);
			check(there, length, (uint64_t)op, "operation");
			break;
		case OP_ADD:
			if (*(uint64_t *)pages != 5)
				fail("the sum is %llu", (unsigned long long)*(uint64_t *)pages);
			break;
		default:
			break;
		}
		MUST(ibv_dereg_mr(mr));
		MUST(ibv_dereg_mr(first));
	}
	meet_again(fd);
	end_side(peer);
}

/* Of `two_directions`: sends, receives, sends again for the queue pair after its reset. */
static void send_and_receive(int fd)
{
	struct ibv_wc wc;

	begin();
	struct end end = connect_new(fd);

	MUST(post_recv(end.qp, end.mr, 0, 64, 1));
	meet_again(fd);
	MUST(post_send(end.qp, end.mr, 0, 8, 2));
	MUST_COMPLETE(end.cq, &wc);
	if (wc.wr_id != 1)
		fail("the first completion is of request %llu", (unsigned long long)wc.wr_id);
	meet_again(fd);
	/* The other side's queue pair goes to ERR with the request, which ends. */
	for (int i = 0; i < 60; i++)
		if (wait_wc(end.cq, &wc, 1000)) {
			if (wc.wr_id != 2 || wc.status == IBV_WC_SUCCESS)
				fail("request %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
			meet_again(fd);
			for (;;)
				pause();
		}
	fail("a request for a queue pair in ERR doesn't end");
}

/* Requests of this side don't wait for those of the peer, and those of the peer end when the queue pair is in ERR. */
static void two_directions(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(send_and_receive, &peer);

	begin();
	struct end end = connect_new(fd);
	char *pages = map_without_pages(PAGE);
	struct ibv_mr *mr = register_new(pages, PAGE), *fresh = register_new(map_apart(PAGE), PAGE);

	MUST(post_recv(end.qp, mr, 0, 64, 1));
	meet_again(fd);
	wait_for_fault();
	MUST(post_send(end.qp, fresh, 0, 8, 2));
	MUST_COMPLETE(end.cq, &wc);
	meet_again(fd);
	MUST(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	if (!wait_wc(end.cq, &wc, STANDS_MS) || wc.status != IBV_WC_WR_FLUSH_ERR)
		fail("the receive: %s", ibv_wc_status_str(wc.status));
	meet_again(fd);
	give_pages(pages, PAGE);
	end_side(peer);
}

/* More than a queue pair keeps. */
#define VERY_LONG (24ul << 20)

/* The other side: sends its memory, which has the pattern 1, without a timer for acknowledgements. */
static void send_very_much(int fd)
{
	struct ibv_wc wc;

	begin();
	path.timeout = 0;
	struct ibv_mr *mr = register_new(map_apart(VERY_LONG), VERY_LONG);
	struct end end = connect_to(fd, mr);

	fill(mr->addr, VERY_LONG, 1);
	meet_again(fd);
	MUST(post_send(end.qp, mr, 0, VERY_LONG, 1));
	MUST_COMPLETE(end.cq, &wc);
	meet_again(fd);
	for (;;)
		pause();
}

/* Packets that a queue pair can't keep come again, also where no timer asks for them. */
static void more_than_waits(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(send_very_much, &peer);

	begin();
	path.timeout = 0;
	char *pages = map_without_pages(VERY_LONG);
	struct ibv_mr *mr = register_new(pages, VERY_LONG);
	struct end end = connect_to(fd, mr);

	MUST(post_recv(end.qp, mr, 0, VERY_LONG, 1));
	meet_again(fd);
	wait_for_fault();
	/* By then all that the other side can send has come. */
	usleep(500000);
	give_pages(pages, VERY_LONG);
	MUST_COMPLETE(end.cq, &wc);
	check(pages, VERY_LONG, 1, "message");
	meet_again(fd);
	end_side(peer);
}

/* Requests that wait end with their queue pair, and hold up neither its end nor that of their memory. */
static void ends(void)
{
	struct memory mine, theirs;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(other_side, &peer);

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);
	char *pages = map_without_pages(PAGE);
	struct ibv_mr *mr = register_new(pages, PAGE);

	MUST(post_recv(end.qp, mr, 0, 64, 1));
	mine = (struct memory){(uintptr_t)pages, mr->rkey};
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	wait_for_fault();
	post(OP_OWN_SEND, &end, mr, 0, 0);
	send_and_wait(&beside);
	MUST(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	for (int i = 0; i < 2; i++)
		if (!wait_wc(end.cq, &wc, STANDS_MS) || wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("completion %d: %s", i, ibv_wc_status_str(wc.status));
	RETURNS(0, dereg, mr);
	RETURNS(0, destroy, end.qp);
	give_pages(pages, PAGE);
	send_and_wait(&beside);
	end_side(peer);
}

/* The other side: its memory has the pattern 1. It receives messages, and answers what is asked of it. */
static void answer_reads(int fd)
{
	struct ibv_wc wc;

	begin();
	struct ibv_mr *mr = register_new(map_apart(PAGE), PAGE);
	struct end end = connect_to(fd, mr), beside = connect_new(fd);

	fill(mr->addr, PAGE, 1);
	for (int i = 0; i < 2; i++)
		MUST(post_recv(end.qp, beside.mr, 0, 64, 0));
	meet_again(fd);
	for (;;)
		ibv_poll_cq(end.cq, 1, &wc);
}

/* Posts READs of 8 bytes from the other side's memory to `mr`, each after a SEND: their numbers count from 1 on. */
static void post_sends_and_reads(const struct end *end, const struct ibv_mr *mr, int pairs)
{
	struct ibv_sge own = {(uintptr_t)end->mr->addr, 8, end->mr->lkey}, to = {(uintptr_t)mr->addr, 8, mr->lkey};
	struct ibv_send_wr wrs[4] = {0}, *bad;

	for (int i = 0; i < 2 * pairs; i++) {
		wrs[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i + 1, .sg_list = i % 2 ? &to : &own, .num_sge = 1,
					      .opcode = i % 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND,
					      .send_flags = IBV_SEND_SIGNALED};
		if (i % 2)
			set_remote(&wrs[i], end->theirs.buffer, end->theirs.rkey);
		if (i)
			wrs[i - 1].next = &wrs[i];
	}
	MUST(ibv_post_send(end->qp, wrs, &bad));
}

/* What the answer to a READ acknowledges ends when the answer comes, though the READ waits for its memory. */
static void acknowledged_by_an_answer(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(answer_reads, &peer);

	begin();
	struct end end = connect_new(fd);

	connect_new(fd);
	char *pages = map_without_pages(PAGE);
	struct ibv_mr *mr = register_new(pages, PAGE);

	meet_again(fd);
	post_sends_and_reads(&end, mr, 2);
	wait_for_fault();
	MUST(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	for (uint64_t number = 1; number <= 4; number++) {
		if (!wait_wc(end.cq, &wc, STANDS_MS) || wc.wr_id != number)
			fail("request %llu isn't the next that ends", (unsigned long long)number);
		if (wc.status != (number == 1 ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR))
			fail("request %llu: %s", (unsigned long long)number, ibv_wc_status_str(wc.status));
	}
	give_pages(pages, PAGE);
	end_side(peer);
}

/* The program maps other memory at the address of a page that is waited for. */
static void mapped_again(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(answer_reads, &peer);

	begin();
	struct end end = connect_new(fd);

	connect_new(fd);
	meet_again(fd);
	for (int has_handler = 0; has_handler < 2; has_handler++) {
		char *pages = map_without_pages(PAGE);
		struct ibv_mr *mr = register_new(pages, PAGE);
		struct uffdio_register range = {.range = {(uintptr_t)pages, PAGE},
						.mode = UFFDIO_REGISTER_MODE_MISSING};

		post(OP_OWN_READ, &end, mr, end.theirs.buffer, end.theirs.rkey);
		wait_for_fault();
		if (mmap(pages, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != pages)
			fail("mmap: %s", strerror(errno));
		if (has_handler) {
			if (ioctl(faults, UFFDIO_REGISTER, &range))
				fail("UFFDIO_REGISTER: %s", strerror(errno));
			wait_for_fault();
			give_pages(pages, PAGE);
		}
		MUST_COMPLETE(end.cq, &wc);
		check(pages, 8, 1, "answer");
		MUST(ibv_dereg_mr(mr));
	}
	end_side(peer);
}

/* Other memory at the address of a page that was there is registered, and its page isn't there. */
static void registered_again(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(answer_reads, &peer);

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);

	meet_again(fd);
	char *pages = map_without_pages(PAGE);

	for (int round = 0; round < 3; round++) {
		if (round)
			map_again_without_pages(pages, PAGE);
		struct ibv_mr *mr = register_new(pages, PAGE);

		post(OP_OWN_READ, &end, mr, end.theirs.buffer, end.theirs.rkey);
		wait_for_fault();
		/* A turn of each thread that may have the answer. */
		for (int i = 0; i < BESIDE; i++) {
			post(OP_OWN_READ, &beside, beside.mr, beside.theirs.buffer, beside.theirs.rkey);
			MUST_COMPLETE(beside.cq, &wc);
		}
		give_pages(pages, PAGE);
		MUST_COMPLETE(end.cq, &wc);
		check(pages, 8, 1, "answer");
		MUST(ibv_dereg_mr(mr));
	}
	end_side(peer);
}

/* A page that comes isn't held up by one that doesn't. */
static void one_of_two(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(answer_reads, &peer);

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);
	char *pages = map_without_pages(2 * PAGE);
	struct ibv_mr *mr = register_new(pages, PAGE), *other = register_new(pages + PAGE, PAGE);

	meet_again(fd);
	post(OP_OWN_READ, &end, mr, end.theirs.buffer, end.theirs.rkey);
	wait_for_fault();
	post(OP_OWN_READ, &beside, other, beside.theirs.buffer, beside.theirs.rkey);
	wait_for_fault();
	give_pages(pages + PAGE, PAGE);
	MUST_COMPLETE(beside.cq, &wc);
	if (ibv_poll_cq(end.cq, 1, &wc))
		fail("a READ has ended without its memory");
	give_pages(pages, PAGE);
	MUST_COMPLETE(end.cq, &wc);
	check(pages, 8, 1, "answer");
	end_side(peer);
}

/* The handler serves the faults of user mode alone, as any user's may. */
static void each_operation_of_user_mode(void)
{
	faults_of = UFFD_USER_MODE_ONLY;
	each_operation();
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		CASE(each_operation), CASE(ends), CASE(two_directions), CASE(more_than_waits),
		CASE(acknowledged_by_an_answer), CASE(mapped_again), CASE(registered_again), CASE(one_of_two),
		CASE(each_operation_of_user_mode),
	};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
