/* The two sides of vanishing, and the memory that goes. */
#ifndef VANISHING_H
#define VANISHING_H

#include "common.h"
#include <poll.h>

#define GUARD 65536u
#define AREA 262144u
/* Requests in flight, and receives posted. */
#define DEPTH 4
#define PAGE 4096u
#define REPEATS 3
#define GUARD_BYTE 0x5c
#define AFTERWARDS 0xa5
#define GRH 40u

enum how { UNMAP, HOLE, PROTECT, READ_ONLY, TRUNCATE, DEREGISTER, HOWS };

struct memory {
	enum how how;
	/* Guard, area, guard in one mapping. */
	char *mapping, *area;
	int file;
	struct ibv_mr *mr;
};

struct side {
	bool requester;
	int fd;
	struct device device;
	/* The connection that must go on working, and its memory. */
	struct ibv_cq *witness_cq;
	struct ibv_qp *witness;
	struct ibv_mr *witness_mr;
	uint64_t witnessed;
	/* The connection at hand. */
	struct ibv_qp *qp;
	/* The step at hand, for messages about failures. */
	char doing[128];
};

static struct memory make_memory(const struct side *side, enum how how, unsigned char byte)
{
	struct memory memory = {.how = how, .file = -1};

	memory.mapping = map_apart(AREA + 2 * GUARD);
	memset(memory.mapping, GUARD_BYTE, AREA + 2 * GUARD);
	memory.area = memory.mapping + GUARD;
	if (how == TRUNCATE) {
		memory.file = memfd_create("vanish", MFD_CLOEXEC);
		if (memory.file < 0 || ftruncate(memory.file, AREA) ||
		    mmap(memory.area, AREA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.file, 0) == MAP_FAILED)
			fail("a mapped memfd: %s", strerror(errno));
	}
	memset(memory.area, byte, AREA);
	memory.mr = MAKE(ibv_reg_mr(side->device.pd, memory.area, AREA, ALL_ACCESS));
	return memory;
}

static void vanish(struct memory *memory)
{
	int result = 0;

	switch (memory->how) {
	case UNMAP: result = munmap(memory->area, AREA); break;
	case HOLE: result = munmap(memory->area + AREA / 2, PAGE); break;
	case PROTECT: result = mprotect(memory->area, AREA, PROT_NONE); break;
	case READ_ONLY: result = mprotect(memory->area, AREA, PROT_READ); break;
	case TRUNCATE: result = ftruncate(memory->file, 0); break;
	case DEREGISTER:
		MUST(ibv_dereg_mr(memory->mr));
		memset(memory->area, AFTERWARDS, AREA);
		break;
	default: break;
	}
	if (result)
		fail("the memory can't be taken away: %s", strerror(errno));
}

static void check_bytes(const struct side *side, const char *from, size_t length, unsigned char byte, const char *what)
{
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)from[i] != byte)
			fail("%s: %s: byte %zu is %02x", side->doing, what, i, (unsigned char)from[i]);
}

/* After everything: guards are whole, and a deregistered area is as its owner left it. */
static void check_and_free(struct side *side, struct memory *memory)
{
	if (memory->how == DEREGISTER) {
		usleep(3000);
		check_bytes(side, memory->area, AREA, AFTERWARDS, "deregistered memory was written to");
	} else {
		MUST(ibv_dereg_mr(memory->mr));
	}
	check_bytes(side, memory->mapping, GUARD, GUARD_BYTE, "the guard before the memory");
	check_bytes(side, memory->area + AREA, GUARD, GUARD_BYTE, "the guard behind the memory");
	munmap(memory->mapping, AREA + 2 * GUARD);
	if (memory->file >= 0)
		close(memory->file);
}

static void tell(struct side *side, char word)
{
	if (send(side->fd, &word, 1, MSG_NOSIGNAL) != 1)
		fail("%s: the other side is gone", side->doing);
}

/* Whether the other side has sent `word` by now; waits for it for `milliseconds` at most. */
static bool told(struct side *side, char word, int milliseconds)
{
	struct pollfd ready = {.fd = side->fd, .events = POLLIN};
	char said = 0;

	if (poll(&ready, 1, milliseconds) != 1)
		return false;
	if (recv(side->fd, &said, 1, 0) != 1)
		fail("%s: the other side is gone, and the QP in state %d", side->doing, side->qp ? (int)qp_state(side->qp) : -1);
	if (said != word)
		fail("%s: the other side sent '%c', not '%c'", side->doing, said, word);
	return true;
}

static void must_be_told(struct side *side, char word)
{
	if (!told(side, word, 20000))
		fail("%s: the other side doesn't send '%c'", side->doing, word);
}

/* The next message over the witness, from the requester's side and back. */
static void bear_witness(struct side *side)
{
	char *sent = side->witness_mr->addr, *received = sent + PAGE;
	struct ibv_wc wc;

	side->witnessed++;
	for (int turn = 0; turn < 2; turn++) {
		if ((turn == 0) == side->requester) {
			fill(sent, PAGE, side->witnessed);
			MUST(post_send(side->witness, side->witness_mr, 0, PAGE, side->witnessed));
		}
		if (!wait_wc(side->witness_cq, &wc, 10000))
			fail("%s: the other connection stands still", side->doing);
		if (wc.status != IBV_WC_SUCCESS)
			fail("%s: the other connection fails: %s", side->doing, ibv_wc_status_str(wc.status));
		if (wc.opcode & IBV_WC_RECV) {
			check(received, PAGE, side->witnessed, "a message of the other connection");
			MUST(post_recv(side->witness, side->witness_mr, PAGE, PAGE, 0));
		}
	}
}

static void connect_to(struct side *side, struct ibv_qp *qp, const struct memory *memory, struct address *remote)
{
	struct path path = default_path(&side->device);
	struct address mine = {.qpn = qp->qp_num, .psn = 0xfffff0, .gid = side->device.gid};

	if (memory) {
		mine.rkey = memory->mr->rkey;
		mine.buffer = (uintptr_t)memory->area;
	}
	if (!exchange(side->fd, &mine, remote, sizeof mine))
		fail("%s: the other side is gone", side->doing);
	MUST(to_rtr(qp, &side->device, &path, remote));
	MUST(to_rts(qp, &path, mine.psn));
	tell(side, 'c');
	must_be_told(side, 'c');
}

#endif
