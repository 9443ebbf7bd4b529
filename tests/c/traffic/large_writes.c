/* large_writes: two sides write 8 MiB messages into each other's memory, until both get SIGUSR1 or one
 * is gone.
 *
 * Each word written contains its place, its writer and its message. However it ends, a side checks that its
 * targets hold such words and zeros only, and that not a byte before, between or behind them has changed. The
 * registered memory includes these guards: it is the addresses that protect them, not the key.
 */
#include "common.h"
#include <getopt.h>
#include <poll.h>
#include <signal.h>

#define GUARD (1u << 16)
#define AREA (8u << 20)
#define WORDS (AREA / 8)
#define GUARD_BYTE 0x5c
#define FIRST_TARGET GUARD
#define SECOND_TARGET (GUARD + AREA + GUARD)
#define FIRST_SOURCE (SECOND_TARGET + AREA + GUARD)
#define SIZE (FIRST_SOURCE + 2 * AREA)

struct greeting {
	struct address address;
	uint32_t salt, reserved;
};

static volatile sig_atomic_t told_to_stop;

static void stop(int signal)
{
	(void)signal;
	told_to_stop = 1;
}

static const size_t targets[2] = {FIRST_TARGET, SECOND_TARGET};

static void compose(char *source, uint32_t salt, uint64_t number)
{
	uint64_t *words = (uint64_t *)source;

	for (uint32_t i = 0; i < WORDS; i++)
		words[i] = (number + 1) << 32 | (i ^ salt);
}

static void check_memory(const char *memory, uint32_t salt)
{
	static const size_t guards[3] = {0, FIRST_TARGET + AREA, SECOND_TARGET + AREA};

	for (int guard = 0; guard < 3; guard++)
		for (size_t i = 0; i < GUARD; i++)
			if (memory[guards[guard] + i] != GUARD_BYTE)
				fail("byte %zu of guard %d has changed", i, guard);
	for (uint64_t target = 0; target < 2; target++) {
		const uint64_t *words = (const uint64_t *)(memory + targets[target]);

		for (uint32_t i = 0; i < WORDS; i++) {
			uint64_t number = words[i] >> 32;

			if (words[i] && ((uint32_t)words[i] != (i ^ salt) || (number - 1) % 2 != target))
				fail("word %u of target %llu is %llx", i, (unsigned long long)target,
				     (unsigned long long)words[i]);
		}
	}
}

static void post(struct ibv_qp *qp, const struct ibv_mr *mr, const struct address *remote, uint64_t number)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + FIRST_SOURCE + number % 2 * AREA, AREA, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	wr.wr.rdma.remote_addr = remote->buffer + targets[number % 2];
	wr.wr.rdma.rkey = remote->rkey;
	MUST(ibv_post_send(qp, &wr, &bad));
}

int main(int argc, char **argv)
{
	int port = 18515, gid_index = 1, option;
	unsigned int seconds = ALARM_SECONDS;
	bool patient = false;

	while ((option = getopt(argc, argv, "wp:g:t:")) != -1) {
		switch (option) {
		case 'p': port = atoi(optarg); break;
		case 'g': gid_index = atoi(optarg); break;
		case 'w': patient = true; break;
		case 't': seconds = (unsigned int)atoi(optarg); break;
		default: fail("usage: large_writes [-w] [-p PORT] [-g GID_INDEX] [-t SECONDS] [SERVER]\n"
			      "  -w  wait for the other for more than ten seconds, not for one");
		}
	}
	alarm(seconds);
	signal(SIGUSR1, stop);

	struct device device = open_device(gid_index);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(device.context));
	struct ibv_cq *cq = make_cq(&device, 16, channel);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);
	char *memory = MAKE(aligned_alloc(4096, SIZE));

	memset(memory, GUARD_BYTE, SIZE);
	memset(memory + FIRST_TARGET, 0, AREA);
	memset(memory + SECOND_TARGET, 0, AREA);

	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, SIZE, ALL_ACCESS));
	struct path path = default_path(&device);
	struct greeting mine = {.address = {.qpn = qp->qp_num, .psn = 0xfffff0, .rkey = mr->rkey,
					    .buffer = (uintptr_t)memory, .gid = device.gid},
				.salt = (uint32_t)getpid() * 2654435761u}, theirs;
	char word = 1, other;

	/* 4.096 µs × 2^14 × 4, or × 2^17 × 8; an adapter may take up to four times that. */
	path.timeout = patient ? 17 : 14;
	path.retry_count = patient ? 7 : 3;
	MUST(to_init(qp, ALL_ACCESS));

	int fd = meet(argv[optind], port);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_rtr(qp, &device, &path, &theirs.address));
	MUST(to_rts(qp, &path, mine.address.psn));
	if (!exchange(fd, &word, &other, 1))
		fail("the other side is gone");
	puts("connected");

	uint64_t posted = 0, written = 0, flushed = 0, report = now_ms();
	enum ibv_wc_status first_error = IBV_WC_SUCCESS;
	bool armed = false;

	while (first_error == IBV_WC_SUCCESS ? !told_to_stop || written < posted : written + flushed < posted) {
		struct ibv_wc wc;
		int count;

		while (!told_to_stop && first_error == IBV_WC_SUCCESS && posted - written < 2) {
			compose(memory + FIRST_SOURCE + posted % 2 * AREA, mine.salt, posted);
			post(qp, mr, &theirs.address, posted++);
		}
		while ((count = ibv_poll_cq(cq, 1, &wc)) == 1) {
			if (wc.status == IBV_WC_SUCCESS && first_error == IBV_WC_SUCCESS) {
				written++;
				continue;
			}
			if (first_error == IBV_WC_SUCCESS)
				first_error = wc.status;
			else if (wc.status != IBV_WC_WR_FLUSH_ERR)
				fail("after an error: %s", ibv_wc_status_str(wc.status));
			flushed++;
		}
		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		if (now_ms() >= report) {
			printf("written %llu\n", (unsigned long long)written);
			fflush(stdout);
			report = now_ms() + 50;
		}
		if (!armed) {
			MUST(ibv_req_notify_cq(cq, 0));
			armed = true;
			continue;
		}
		struct pollfd event = {.fd = channel->fd, .events = POLLIN};

		if (poll(&event, 1, 50) == 1) {
			struct ibv_cq *of;
			void *context;

			MUST(ibv_get_cq_event(channel, &of, &context));
			ibv_ack_cq_events(of, 1);
			armed = false;
		}
	}
	if (first_error == IBV_WC_SUCCESS) {
		/* The other may still be writing. */
		if (!exchange(fd, &word, &other, 1))
			fail("the other side is gone");
		printf("asked to stop after %llu\n", (unsigned long long)written);
	} else {
		printf("ended with %s after %llu\n", ibv_wc_status_str(first_error), (unsigned long long)written);
	}
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_dereg_mr(mr));
	check_memory(memory, theirs.salt);
	puts("memory ok");
	return 0;
}
