/* peers_pages: one-sided operations need memory of the other side whose pages aren't there. The post returns, another queue pair of the same two
 * processes goes on, and when the pages are there, the operation ends with success, in its order, and with the bytes that the pages came with.
 */
#define _GNU_SOURCE
#include "surroundings/held_up.h"

#define PAGES 256ul
#define LONG (PAGES * PAGE)
/* Messages of the other queue pair for each operation. */
#define BESIDE 3
#define ADDED 5

enum operation { OP_WRITE, OP_READ, OP_WRITE_LONG, OP_READ_LONG, OP_WRITE_IN_TWO, OP_ADD, OP_WRITES, OPERATIONS };

/* Where the absent page is, among others that are there. */
static size_t absent_of(enum operation op)
{
	return op == OP_WRITE_LONG || op == OP_READ_LONG ? 150 * PAGE : 0;
}

struct memory {
	uint64_t addr;
	uint32_t rkey;
};

/* Gives a page whose bytes are `byte`. */
static void give_filled(char *page, int byte)
{
	static char filled[PAGE];

	memset(filled, byte, PAGE);
	struct uffdio_copy copy = {.dst = (uintptr_t)page, .src = (uintptr_t)filled, .len = PAGE};

	if (ioctl(faults, UFFDIO_COPY, &copy))
		fail("UFFDIO_COPY: %s", strerror(errno));
}

/* The side with the pages. Each contains the number of the operation and 1. */
static void own_pages(int fd)
{
	struct memory mine, theirs;

	begin();
	struct end end = connect_new(fd), beside = connect_new(fd);

	for (int i = 0; i < OPERATIONS * BESIDE; i++)
		MUST(post_recv(beside.qp, beside.mr, 0, 64, 0));
	meet_again(fd);
	for (int op = 0; op < OPERATIONS; op++) {
		char *pages = map_without_pages(LONG);
		struct ibv_mr *mr = register_new(pages, LONG);
		size_t absent = absent_of(op);

		for (size_t at = 0; at < LONG; at += PAGE)
			if (at != absent)
				give_filled(pages + at, op + 1);
		mine = (struct memory){(uintptr_t)pages, mr->rkey};
		if (!exchange(fd, &mine, &theirs, sizeof mine))
			fail("the other side is gone");
		wait_for_fault();
		meet_again(fd);
		meet_again(fd);
		if (op == OP_WRITES && pages[PAGE] != op + 1)
			fail("a WRITE has overtaken the one before it");
		give_filled(pages + absent, op + 1);
		meet_again(fd);
		for (size_t at = 0; at < LONG; at++) {
			size_t length = op == OP_WRITE_LONG ? LONG : op == OP_WRITE || op == OP_WRITE_IN_TWO ? 16 : 0;
			bool written = at < length || (op == OP_WRITES && at % PAGE < 8 && at < 8 * PAGE);

			if (op != OP_ADD && pages[at] != (written ? 0x55 : op + 1))
				fail("operation %d: byte %zu is %d", op, at, pages[at]);
		}
		MUST(ibv_dereg_mr(mr));
	}
	(void)end;
	meet_again(fd);
	for (;;)
		pause();
}

static struct end first;
static struct ibv_mr *own;
static struct memory theirs;

/* Posts the operation that `argument` points to. */
static int post(void *argument)
{
	enum operation op = *(enum operation *)argument;
	struct ibv_sge sges[2] = {{(uintptr_t)own->addr, 16, own->lkey}, {(uintptr_t)own->addr + 8, 8, own->lkey}};
	struct ibv_send_wr wrs[8] = {{0}}, *bad;

	wrs[0] = (struct ibv_send_wr){.sg_list = sges, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				      .send_flags = IBV_SEND_SIGNALED};
	set_remote(&wrs[0], theirs.addr, theirs.rkey);
	switch (op) {
	case OP_READ_LONG:
		wrs[0].opcode = IBV_WR_RDMA_READ;
		sges[0].length = LONG;
		break;
	case OP_READ:
		wrs[0].opcode = IBV_WR_RDMA_READ;
		break;
	case OP_WRITE_LONG:
		sges[0].length = LONG;
		break;
	case OP_WRITE_IN_TWO:
		sges[0].length = 8;
		wrs[0].num_sge = 2;
		break;
	case OP_ADD:
		sges[0].length = 8;
		wrs[0].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wrs[0].wr.atomic.remote_addr = theirs.addr;
		wrs[0].wr.atomic.rkey = theirs.rkey;
		wrs[0].wr.atomic.compare_add = ADDED;
		break;
	case OP_WRITES:
		sges[0].length = 8;
		for (int i = 1; i < 8; i++) {
			wrs[i] = wrs[0];
			wrs[i].next = NULL;
			wrs[i].wr_id = (uint64_t)i;
			set_remote(&wrs[i], theirs.addr + (uint64_t)i * PAGE, theirs.rkey);
			wrs[i - 1].next = &wrs[i];
		}
		break;
	default:
		break;
	}
	return ibv_post_send(first.qp, wrs, &bad);
}

/* Makes the queue pairs know that the other side shares memory, and waits until its background thread sleeps: this side copies then. */
static void warm_up(void)
{
	for (int i = 0; i < 20; i++)
		write_and_wait(&first, 0);
	usleep(300000);
}

static void each_operation(void)
{
	struct memory mine = {0};
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(own_pages, &peer);

	begin();
	first = connect_new(fd);
	struct end beside = connect_new(fd);

	own = register_new(map_apart(LONG), LONG);
	meet_again(fd);
	for (int op = 0; op < OPERATIONS; op++) {
		bool reads = op == OP_READ || op == OP_READ_LONG;

		memset(own->addr, 0x55, LONG);
		warm_up();
		if (!exchange(fd, &mine, &theirs, sizeof mine))
			fail("the other side is gone");
		enum operation posted = (enum operation)op;
		struct call *call = start(post, &posted);

		if (!returns(call, STANDS_MS))
			fail("the post of operation %d stands", op);
		MUST(call->result);
		meet_again(fd);
		for (int i = 0; i < BESIDE; i++)
			send_and_wait(&beside);
		if (ibv_poll_cq(first.cq, 1, &wc))
			fail("operation %d has ended without its memory", op);
		meet_again(fd);
		for (int i = 0; i < (op == OP_WRITES ? 8 : 1); i++) {
			MUST_COMPLETE(first.cq, &wc);
			if (wc.wr_id != (uint64_t)i)
				fail("completion %d is of request %llu", i, (unsigned long long)wc.wr_id);
		}
		for (size_t at = 0; reads && at < (op == OP_READ ? 16 : LONG); at++)
			if (((char *)own->addr)[at] != op + 1)
				fail("operation %d: byte %zu is %d", op, at, ((char *)own->addr)[at]);
		if (op == OP_ADD && *(uint64_t *)own->addr != 0x0101010101010101 * (OP_ADD + 1))
			fail("the word was %llx", (unsigned long long)*(uint64_t *)own->addr);
		meet_again(fd);
	}
	meet_again(fd);
	end_side(peer);
}

/* The side of a page that was there, and has gone again. */
static void lose_page(int fd)
{
	begin();
	char *page = map_without_pages(PAGE);

	give_filled(page, 1);
	struct end end = connect_to(fd, register_new(page, PAGE));

	meet_again(fd);
	/* The other side has written to it. */
	meet_again(fd);
	MUST(madvise(page, PAGE, MADV_DONTNEED));
	meet_again(fd);
	wait_for_fault();
	meet_again(fd);
	give_filled(page, 2);
	meet_again(fd);
	if (page[8] != 2)
		fail("byte 8 is %d", page[8]);
	(void)end;
	meet_again(fd);
	for (;;)
		pause();
}

static int write_once(void *unused)
{
	(void)unused;
	return write_to(&first, 0);
}

/* A page that has gone is noticed when some time has passed since it was used. */
static void page_that_goes(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(lose_page, &peer);

	begin();
	first = connect_new(fd);
	meet_again(fd);
	warm_up();
	write_and_wait(&first, 0);
	meet_again(fd);
	meet_again(fd);
	usleep(3500000);
	struct call *call = start(write_once, NULL);

	if (!returns(call, STANDS_MS))
		fail("the post stands");
	meet_again(fd);
	MUST_COMPLETE(first.cq, &wc);
	meet_again(fd);
	meet_again(fd);
	end_side(peer);
}

/* The side of a page that was there. It registers other memory at its address, which has none. */
static void register_again(int fd)
{
	begin();
	char *page = map_without_pages(PAGE);

	give_filled(page, 1);
	struct end end = connect_to(fd, register_new(page, PAGE)), beside = connect_new(fd);

	meet_again(fd);
	/* The other side has written to it. */
	meet_again(fd);
	MUST(ibv_dereg_mr(end.mr));
	map_again_without_pages(page, PAGE);
	struct ibv_mr *mr = register_new(page, PAGE);
	struct memory mine = {(uintptr_t)page, mr->rkey}, none;

	if (!exchange(fd, &mine, &none, sizeof mine))
		fail("the other side is gone");
	wait_for_fault();
	meet_again(fd);
	meet_again(fd);
	give_filled(page, 2);
	meet_again(fd);
	if (page[8] != 2)
		fail("byte 8 is %d", page[8]);
	(void)beside;
	meet_again(fd);
	for (;;)
		pause();
}

static int write_once_more(void *unused)
{
	(void)unused;
	first.theirs.buffer = theirs.addr;
	first.theirs.rkey = theirs.rkey;
	return write_to(&first, 0);
}

/* What was seen of a page isn't believed of other memory that is registered at its address. */
static void page_registered_again(void)
{
	struct memory none = {0};
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(register_again, &peer);

	begin();
	first = connect_new(fd);
	struct end beside = connect_new(fd);

	meet_again(fd);
	warm_up();
	write_and_wait(&first, 0);
	meet_again(fd);
	if (!exchange(fd, &none, &theirs, sizeof none))
		fail("the other side is gone");
	struct call *call = start(write_once_more, NULL);

	if (!returns(call, STANDS_MS))
		fail("the post stands");
	meet_again(fd);
	write_and_wait(&beside, 0);
	meet_again(fd);
	MUST_COMPLETE(first.cq, &wc);
	meet_again(fd);
	meet_again(fd);
	end_side(peer);
}

/* Gives each page of `pages` when it is touched: its bytes are its number and 1. */
static void *give_numbered(void *pages)
{
	struct uffd_msg message;

	for (;;)
		if (is_readable(faults, 1000) && read(faults, &message, sizeof message) == sizeof message) {
			char *page = (char *)(message.arg.pagefault.address & ~(PAGE - 1));

			give_filled(page, (int)((page - (char *)pages) / (ptrdiff_t)PAGE) + 1);
		}
	return NULL;
}

#define NUMBERED 64

/* The side of memory that others can map, with a handler that gives its pages. */
static void own_mapped_pages(int fd)
{
	int memory = (int)syscall(SYS_memfd_create, "pages", 0);
	pthread_t thread;

	begin();
	if (memory < 0 || ftruncate(memory, NUMBERED * PAGE))
		fail("memfd: %s", strerror(errno));
	/* The handler of this mapping's faults is that of `map_without_pages`. */
	map_without_pages(PAGE);
	char *pages = mmap(NULL, NUMBERED * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	struct uffdio_register range = {.range = {(uintptr_t)pages, NUMBERED * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};

	if (pages == MAP_FAILED || ioctl(faults, UFFDIO_REGISTER, &range))
		fail("userfaultfd: %s", strerror(errno));
	MUST(pthread_create(&thread, NULL, give_numbered, pages));
	struct end end = connect_to(fd, register_new(pages, NUMBERED * PAGE));

	meet_again(fd);
	(void)end;
	meet_again(fd);
	for (;;)
		pause();
}

/* Memory of the other side that is mapped here has the bytes that its handler of faults gives, not the zeros of a hole. */
static void page_of_a_mapped_file(void)
{
	struct ibv_wc wc;
	pid_t peer;
	int fd = start_side(own_mapped_pages, &peer);

	begin();
	first = connect_new(fd);
	meet_again(fd);
	char *word = first.mr->addr;

	for (int page = 0; page < NUMBERED; page++) {
		struct ibv_sge sge = {(uintptr_t)word, 8, first.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
					 .send_flags = IBV_SEND_SIGNALED}, *bad;

		/* Of every other page, the beginning is written first. */
		if (page % 2)
			write_and_wait(&first, (size_t)page);
		memset(word, 0, 8);
		set_remote(&wr, first.theirs.buffer + (uint64_t)page * PAGE + 8, first.theirs.rkey);
		MUST(ibv_post_send(first.qp, &wr, &bad));
		MUST_COMPLETE(first.cq, &wc);
		for (int at = 0; at < 8; at++)
			if (word[at] != page + 1)
				fail("byte %d of page %d is %d", at, page, word[at]);
	}
	meet_again(fd);
	end_side(peer);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {CASE(each_operation), CASE(page_that_goes), CASE(page_registered_again),
					  CASE(page_of_a_mapped_file)};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
