/* shared: one side has memory that processes can share, the other writes, reads and adds to it. The memory changes under one
 * address and with it what a key stands for; each time the bytes must arrive where the program sees them. What was shared is
 * given back by the other side once it isn't registered any more.
 *
 * Both sides draw from the same seed where the bytes are and what they are.
 */
#define _GNU_SOURCE
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include "common.h"

#define LENGTH (1u << 20)
#define OPERATIONS 300
/* Of the peer's memory that this process has mapped. */
#define NAME "shared-with-peers"

enum kind { MEMFD, PRIVATE, SEGMENT, OTHER_MEMFD, KINDS };

static const char *const names[KINDS] = {"a memfd", "private memory", "a SysV segment", "another memfd"};

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
	drawn = drawn * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(drawn >> 33) % below;
}

/* Makes memory of a kind, at `at` unless that is NULL. */
static char *make_memory(enum kind kind, char *at, int *file)
{
	int fixed = at ? MAP_FIXED : 0;
	char *memory = MAP_FAILED;

	switch (kind) {
	case MEMFD:
	case OTHER_MEMFD:
		*file = memfd_create(NAME, MFD_CLOEXEC);
		if (*file < 0 || ftruncate(*file, LENGTH))
			fail("memfd: %s", strerror(errno));
		memory = mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, *file, 0);
		break;
	case PRIVATE:
		memory = mmap(at, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
		break;
	default: {
		int segment = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);

		memory = shmat(segment, at, at ? SHM_REMAP : 0);
		shmctl(segment, IPC_RMID, NULL);
	}
	}
	if (memory == MAP_FAILED)
		fail("%s: %s", names[kind], strerror(errno));
	return memory;
}

static bool has_mapped(const char *name)
{
	FILE *maps = MAKE(fopen("/proc/self/maps", "r"));
	char line[512];
	bool found = false;

	while (!found && fgets(line, sizeof line, maps))
		found = strstr(line, name) != NULL;
	fclose(maps);
	return found;
}

struct side {
	struct device device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int fd;
};

static enum ibv_wc_status carry_out(struct side *side, struct ibv_send_wr *request)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	request->num_sge = 1;
	request->send_flags = IBV_SEND_SIGNALED;
	MUST(ibv_post_send(side->qp, request, &bad));
	if (!wait_wc(side->cq, &wc, 10000))
		fail("no completion in 10 s");
	return wc.status;
}

static void meet_again(struct side *side)
{
	char ready = 1, other;

	if (!exchange(side->fd, &ready, &other, 1))
		fail("the other side is gone");
}

/* The place and length of an operation. */
static uint32_t draw_range(uint32_t *length)
{
	*length = draw(4) ? 1 + draw(100) : 1 + draw(LENGTH / 4);
	return 64 + draw(LENGTH - 64 - *length);
}

static void use(struct side *side, enum kind kind, const struct address *theirs, char *own, struct ibv_mr *mr)
{
	uint64_t sum = 0;

	for (uint64_t index = 0; index < OPERATIONS; index++) {
		uint32_t length, at = draw_range(&length);
		struct ibv_sge sge = {(uintptr_t)own, length, mr->lkey};
		struct ibv_send_wr write = {.sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE};
		struct ibv_send_wr read = {.sg_list = &sge, .opcode = IBV_WR_RDMA_READ};
		struct ibv_send_wr add = {.sg_list = &sge, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
		enum ibv_wc_status status;

		fill(own, length, index);
		set_remote(&write, theirs->buffer + at, theirs->rkey);
		set_remote(&read, theirs->buffer + at, theirs->rkey);
		status = carry_out(side, &write);
		if (status != IBV_WC_SUCCESS)
			fail("%s: WRITE %llu: %s", names[kind], (unsigned long long)index, ibv_wc_status_str(status));
		memset(own, 0xee, length);
		status = carry_out(side, &read);
		if (status != IBV_WC_SUCCESS)
			fail("%s: READ %llu: %s", names[kind], (unsigned long long)index, ibv_wc_status_str(status));
		check(own, length, index, "READ");
		if (index % 8 == 0) {
			sge.length = 8;
			add.wr.atomic.remote_addr = theirs->buffer;
			add.wr.atomic.rkey = theirs->rkey;
			add.wr.atomic.compare_add = index;
			status = carry_out(side, &add);
			if (status != IBV_WC_SUCCESS)
				fail("%s: atomic %llu: %s", names[kind], (unsigned long long)index,
				     ibv_wc_status_str(status));
			if (*(uint64_t *)own != sum)
				fail("%s: the sum is %llu, not %llu", names[kind],
				     (unsigned long long)*(uint64_t *)own, (unsigned long long)sum);
			sum += index;
		}
	}
}

/* What `use` has left. */
static void look(const char *memory)
{
	static unsigned char expected[LENGTH];
	uint64_t sum = 0;

	memset(expected, 0, sizeof expected);
	for (uint64_t index = 0; index < OPERATIONS; index++) {
		uint32_t length, at = draw_range(&length);

		fill((char *)expected + at, length, index);
		sum += index % 8 ? 0 : index;
	}
	if (*(const uint64_t *)memory != sum)
		fail("the sum is %llu, not %llu", (unsigned long long)*(const uint64_t *)memory,
		     (unsigned long long)sum);
	for (uint32_t at = 64; at < LENGTH; at++)
		if ((unsigned char)memory[at] != expected[at])
			fail("byte %u is %02x, not %02x", at, (unsigned char)memory[at], expected[at]);
}

static void target(struct side *side)
{
	char *at = NULL;

	for (enum kind kind = 0; kind < KINDS; kind++) {
		struct address unused, mine = {.reserved = kind};
		int file = -1;
		/* The next one lies where the one before was. */
		char *memory = make_memory(kind, at, &file);
		struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device.pd, memory, LENGTH, ALL_ACCESS));

		at = memory;
		mine.rkey = mr->rkey;
		mine.buffer = (uintptr_t)memory;
		if (!exchange(side->fd, &mine, &unused, sizeof mine))
			fail("the other side is gone");
		meet_again(side);
		drawn = kind;
		look(memory);
		if (kind == OTHER_MEMFD && ftruncate(file, 0))
			fail("ftruncate: %s", strerror(errno));
		meet_again(side);
		meet_again(side);
		MUST(ibv_dereg_mr(mr));
		if (file >= 0)
			close(file);
		meet_again(side);
	}
}

static void initiator(struct side *side, bool expects_views)
{
	char *own = MAKE(malloc(LENGTH));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device.pd, own, LENGTH, ALL_ACCESS));

	for (enum kind kind = 0; kind < KINDS; kind++) {
		struct address theirs, unused = {0};
		struct ibv_sge sge = {(uintptr_t)own, 8, mr->lkey};
		struct ibv_send_wr write = {.sg_list = &sge, .opcode = IBV_WR_RDMA_WRITE};

		if (!exchange(side->fd, &unused, &theirs, sizeof theirs))
			fail("the other side is gone");
		drawn = kind;
		use(side, kind, &theirs, own, mr);
		if (expects_views && has_mapped(kind == SEGMENT ? "/SYSV" : NAME) != (kind != PRIVATE))
			fail("%s is%s mapped here", names[kind], kind == PRIVATE ? "" : "n't");
		meet_again(side);
		meet_again(side);
		if (kind == OTHER_MEMFD) {
			set_remote(&write, theirs.buffer + 4096, theirs.rkey);
			enum ibv_wc_status status = carry_out(side, &write);

			if (status != IBV_WC_REM_OP_ERR)
				fail("a WRITE to what was cut off ends with %s", ibv_wc_status_str(status));
		}
		meet_again(side);
		meet_again(side);
		for (int wait = 0; has_mapped(NAME) || has_mapped("/SYSV"); wait++) {
			if (wait > 1000)
				fail("%s is still mapped here", names[kind]);
			usleep(10000);
		}
	}
}

int main(int argc, char **argv)
{
	bool expects_views = argc > 1 && strcmp(argv[1], "views") == 0;
	const char *host = argc > 2 ? argv[2] : NULL;
	struct side side = {.device = open_device(1)};
	struct address mine, theirs;

	alarm(ALARM_SECONDS);
	struct path path = default_path(&side.device);
	side.cq = make_cq(&side.device, 16, NULL);
	side.qp = make_qp(&side.device, IBV_QPT_RC, side.cq, NULL, 16);
	mine = (struct address){.qpn = side.qp->qp_num, .psn = 7, .gid = side.device.gid};
	side.fd = meet(host, 18515);
	if (!exchange(side.fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_init(side.qp, ALL_ACCESS));
	MUST(to_rtr(side.qp, &side.device, &path, &theirs));
	MUST(to_rts(side.qp, &path, mine.psn));
	meet_again(&side);
	if (host)
		initiator(&side, expects_views);
	else
		target(&side);
	printf("memory of %d kinds was right\n", KINDS);
	return 0;
}
