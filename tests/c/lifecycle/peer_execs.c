/* peer_execs: a peer that executes its program again and again, at the same addresses, while this side writes to its
 * memory: the new program finds its own memory as a program begins, all zeros.
 *
 * usage: peer_execs writer
 */
#include "common.h"
#include <poll.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/wait.h>

#define SIZE 65536
#define DEPTH 8
#define SECONDS 4
/* How long the new program looks at its memory before it gives others access to it. */
#define LOOK_MS 3

/* In the program itself, so that it is there from the first moment on. */
static _Alignas(4096) volatile uint64_t target[SIZE / 8];
static char source[SIZE];

static void look(void)
{
	uint64_t end = now_ms() + LOOK_MS;

	do {
		for (size_t i = 0; i < SIZE / 8; i++)
			if (target[i])
				fail("a new program finds %016llx in its memory", (unsigned long long)target[i]);
	} while (now_ms() < end);
}

/* One life: its memory is written to until it executes itself, in the middle of it. */
static void peer(const char *self, int fd, const char *word)
{
	struct address mine, theirs;

	look();

	struct device device = open_device(1);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, make_cq(&device, DEPTH, NULL), NULL, DEPTH);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, (void *)target, SIZE, ALL_ACCESS));
	struct path path = default_path(&device);
	struct pollfd asked = {.fd = fd, .events = POLLIN};

	mine = (struct address){
		.qpn = qp->qp_num, .rkey = mr->rkey, .buffer = (uintptr_t)target, .gid = device.gid};
	MUST(to_init(qp, path.access));
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the writer has gone");
	/* The last life. */
	if (theirs.reserved)
		exit(0);
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, 0));
	/* Ready. */
	if (send(fd, "", 1, MSG_NOSIGNAL) != 1)
		fail("the writer has gone");
	/* The writer's retries end soon: on a busy machine they may have before anything came, and it asks for the next life. */
	while (!target[SIZE / 8 - 1] && poll(&asked, 1, 0) == 0)
		;
	execl(self, self, "peer", word, NULL);
	fail("%s: %s", self, strerror(errno));
}

static void post_write(struct ibv_qp *qp, const struct ibv_mr *mr, const struct address *to, uint64_t number)
{
	/* Writes of 4 KiB, one beside the other. */
	uint64_t offset = number % (SIZE / 4096) * 4096;
	struct ibv_sge sge = {(uintptr_t)source + offset, 4096, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = number,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.rdma = {to->buffer + offset, to->rkey}},
			   *bad;

	MUST(ibv_post_send(qp, &wr, &bad));
}

/* Writes to one life of the peer until that has ended. */
static void write_to(const struct device *device, const struct ibv_mr *mr, int fd, struct ibv_cq *cq, bool last)
{
	struct ibv_qp *qp = make_qp(device, IBV_QPT_RC, cq, NULL, DEPTH);
	struct path path = default_path(device);
	struct address mine = {.qpn = qp->qp_num, .reserved = last, .gid = device->gid}, theirs;
	uint64_t posted = 0, done = 0;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
	char ready;

	path.timeout = 10;
	path.retry_count = 1;
	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the peer has gone");
	if (!last) {
		MUST(to_init(qp, path.access));
		MUST(to_rtr(qp, device, &path, &theirs));
		MUST(to_rts(qp, &path, 0));
		if (recv(fd, &ready, 1, MSG_WAITALL) != 1)
			fail("the peer has gone");
		while (wc.status == IBV_WC_SUCCESS) {
			while (posted < done + DEPTH)
				post_write(qp, mr, &theirs, posted++);
			if (!wait_wc(cq, &wc, 10000))
				fail("a write never completes");
			done++;
		}
		while (done < posted && wait_wc(cq, &wc, 10000))
			done++;
	}
	MUST(ibv_destroy_qp(qp));
}

static void writer(const char *self)
{
	int ends[2], status;
	char word[16];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		fail("socketpair: %s", strerror(errno));
	snprintf(word, sizeof word, "%d", ends[1]);
	child = fork();
	if (!child) {
		close(ends[0]);
		/* All its programs are at the same addresses. */
		if (personality(ADDR_NO_RANDOMIZE) < 0)
			fail("personality: %s", strerror(errno));
		execl(self, self, "peer", word, NULL);
		fail("%s: %s", self, strerror(errno));
	}
	close(ends[1]);
	memset(source, 0xaa, SIZE);

	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 2 * DEPTH, NULL);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, source, SIZE, ALL_ACCESS));
	uint64_t end = now_ms() + 1000 * SECONDS;
	bool last;
	int lives = 0;

	do {
		last = now_ms() >= end;
		write_to(&device, mr, ends[0], cq, last);
		lives++;
	} while (!last);
	if (waitpid(child, &status, 0) != child || status)
		fail("the peer ended with status %x", status);
	printf("%d lives, ok\n", lives);
}

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	/* The peer prints what it has found before it goes. */
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && !strcmp(argv[1], "writer"))
		writer(argv[0]);
	else if (argc == 3 && !strcmp(argv[1], "peer"))
		peer(argv[0], atoi(argv[2]), argv[2]);
	else
		fail("usage: peer_execs writer");
	return 0;
}
