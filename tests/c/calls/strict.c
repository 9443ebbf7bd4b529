/* What only some adapters forgive: each case prints what it finds, "strict" or "usual". */
#include "../cases.h"
#include <pthread.h>
#include <sched.h>

static void found(bool strict)
{
	puts(strict ? "strict" : "usual");
}

static enum ibv_wc_status status_of_write(struct fixture *f, uint32_t length, uint32_t lkey, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)f->memory, length, lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;

	set_remote(&wr, (uintptr_t)f->memory + 4096, rkey);
	MUST(ibv_post_send(f->a, &wr, &bad));
	if (!wait_wc(f->cq_a, &wc, 10000))
		fail("no completion in 10 s");
	return wc.status;
}

/* Either key in the place of the other. */
static void keys(void)
{
	struct fixture first = connected(IBV_QPT_RC), second = connected(IBV_QPT_RC), third = connected(IBV_QPT_RC);
	bool strict = first.mr->lkey != first.mr->rkey;

	EXPECT(status_of_write(&first, 64, first.mr->lkey, first.mr->rkey) == IBV_WC_SUCCESS);
	EXPECT(status_of_write(&second, 64, second.mr->lkey, second.mr->lkey) ==
	       (strict ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
	EXPECT(status_of_write(&third, 64, third.mr->rkey, third.mr->rkey) ==
	       (strict ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS));
	/* Gone is gone, and the same keys don't come again. */
	struct ibv_mr before = *third.mr;
	MUST(ibv_dereg_mr(third.mr));
	third.mr = MAKE(ibv_reg_mr(third.device.pd, third.memory, MEMORY_SIZE, ALL_ACCESS));
	EXPECT(third.mr->lkey != before.lkey && third.mr->rkey != before.rkey);
	EXPECT(third.mr->lkey != before.rkey && third.mr->rkey != before.lkey);
	EXPECT((third.mr->lkey != third.mr->rkey) == strict);
	found(strict);
}

/* A completion from before the queue was armed. */
static void event_of_old_completion(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(f.device.context));
	struct ibv_cq *cq = make_cq(&f.device, 16, channel), *event;
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, cq, NULL, DEPTH);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	void *context;
	bool strict;

	MUST(to_init(qp, 0));
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	MUST(post_recv(qp, f.mr, 0, 64, 1));
	MUST(ibv_req_notify_cq(cq, 0));
	strict = !is_readable(channel->fd, 100);
	MUST(post_recv(qp, f.mr, 0, 64, 2));
	EXPECT(is_readable(channel->fd, 10000));
	MUST(ibv_get_cq_event(channel, &event, &context));
	ibv_ack_cq_events(cq, 1);
	EXPECT_STATUS(cq, 1, IBV_WC_WR_FLUSH_ERR);
	EXPECT_STATUS(cq, 2, IBV_WC_WR_FLUSH_ERR);
	/* Nothing more was asked for. */
	EXPECT(!is_readable(channel->fd, 0));
	found(strict);
}

static int write_8(struct fixture *f, unsigned int flags)
{
	struct ibv_sge sge = {(uintptr_t)f->memory, 8, f->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = flags, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = flags}, *bad = NULL;
	int result;

	set_remote(&wr, (uintptr_t)f->memory + 4096, f->mr->rkey);
	result = ibv_post_send(f->a, &wr, &bad);
	EXPECT(!result || bad == &wr);
	return result;
}

/* Requests that have ended, of which no completion was polled. */
static void full_send_queue(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_send_wr wr[DEPTH + 2], *bad = NULL;
	uint64_t end = now_ms() + 300;
	int result;

	for (int i = 1; i < DEPTH; i++)
		MUST(write_8(&f, 0));
	MUST(write_8(&f, IBV_SEND_SIGNALED));
	while ((result = write_8(&f, 0)) == ENOMEM && now_ms() < end)
		;
	EXPECT(!result || result == ENOMEM);
	EXPECT_STATUS(f.cq_a, IBV_SEND_SIGNALED, IBV_WC_SUCCESS);
	/* All of the queue is free again, but for what was taken above. */
	for (int i = result ? 0 : 1; i < DEPTH - 1; i++)
		MUST(write_8(&f, 0));
	MUST(write_8(&f, IBV_SEND_SIGNALED));
	EXPECT_STATUS(f.cq_a, IBV_SEND_SIGNALED, IBV_WC_SUCCESS);
	/* Of a list, what there is room for. */
	struct ibv_sge sge = {(uintptr_t)f.memory, 8, f.mr->lkey};
	for (int i = 0; i < DEPTH + 2; i++) {
		wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i, .next = i < DEPTH + 1 ? &wr[i + 1] : NULL,
					     .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					     .send_flags = IBV_SEND_SIGNALED};
	}
	EXPECT_ERRNO(ENOMEM, ibv_post_send(f.a, wr, &bad));
	EXPECT(bad == &wr[DEPTH] && wr[0].next == &wr[1]);
	for (int i = 0; i < DEPTH; i++)
		MUST(post_recv(f.b, f.mr, 8192, 64, 7));
	for (uint64_t i = 0; i < DEPTH; i++)
		EXPECT_STATUS(f.cq_a, i, IBV_WC_SUCCESS);
	found(result == ENOMEM);
}

/* Receives that have ended, of which no completion was polled. */
static void full_receive_queue(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	int result;

	for (int i = 0; i < DEPTH; i++)
		MUST(post_recv(f.b, f.mr, 4096, 64, 7));
	MUST(post_send(f.a, f.mr, 0, 64, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	result = post_recv(f.b, f.mr, 4096, 64, 8);
	EXPECT(!result || result == ENOMEM);
	EXPECT_STATUS(f.cq_b, 7, IBV_WC_SUCCESS);
	if (result)
		MUST(post_recv(f.b, f.mr, 4096, 64, 8));
	found(result == ENOMEM);
}

/* A message of more bytes than the smaller path MTU. */
static void path_mtu(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct address of_a = {.qpn = f.a->qp_num, .psn = 1, .gid = f.device.gid};
	struct address of_b = {.qpn = f.b->qp_num, .psn = 2, .gid = f.device.gid};
	enum ibv_wc_status status;

	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	f.path.mtu = IBV_MTU_1024;
	MUST(to_rtr(f.a, &f.device, &f.path, &of_b));
	MUST(to_rts(f.a, &f.path, of_a.psn));
	f.path.mtu = IBV_MTU_256;
	MUST(to_rtr(f.b, &f.device, &f.path, &of_a));
	EXPECT(status_of_write(&f, 256, f.mr->lkey, f.mr->rkey) == IBV_WC_SUCCESS);
	status = status_of_write(&f, 512, f.mr->lkey, f.mr->rkey);
	EXPECT(status == IBV_WC_SUCCESS || status == IBV_WC_REM_INV_REQ_ERR);
	found(status != IBV_WC_SUCCESS);
}

/* What stands in a failed completion besides wr_id, status, qp_num and vendor_err. */
static void failed_completion(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct ibv_cq_init_attr_ex init = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cq = MAKE(ibv_create_cq_ex(f.device.context, &init));
	struct ibv_qp *qp = make_qp(&f.device, IBV_QPT_RC, ibv_cq_ex_to_cq(cq), NULL, DEPTH);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_poll_cq_attr none = {0};
	struct ibv_wc wc;
	bool strict;

	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, 0, f.mr->rkey, 42));
	if (!wait_wc(f.cq_a, &wc, 10000))
		fail("no completion in 10 s");
	EXPECT(wc.wr_id == 42 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == f.a->qp_num && wc.vendor_err);
	strict = wc.opcode != IBV_WC_RDMA_WRITE;
	EXPECT(!strict || wc.byte_len == 0xa5a5a5a5);
	MUST(to_init(qp, 0));
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	MUST(post_recv(qp, f.mr, 0, 64, 3));
	MUST(ibv_start_poll(cq, &none));
	EXPECT(cq->wr_id == 3 && cq->status == IBV_WC_WR_FLUSH_ERR && ibv_wc_read_qp_num(cq) == qp->qp_num);
	EXPECT((ibv_wc_read_opcode(cq) != IBV_WC_RECV) == strict);
	ibv_end_poll(cq);
	found(strict);
}

/* Of a strict adapter at most, where the first partial one is enough; of the usual one. */
#define MOST_WRITES 100000
#define WRITES 50

static volatile unsigned int partial, sent = MOST_WRITES;

/* Counts messages of which the last byte has come, and not the first. */
static void *watch(void *memory)
{
	volatile unsigned char *bytes = memory;

	for (unsigned int i = 1; i <= sent; i++) {
		unsigned char value = (unsigned char)(i % 251 + 1);

		for (unsigned int spins = 1; bytes[63] != value; spins++)
			if (spins % 256 == 0)
				sched_yield();
		partial += bytes[0] != value;
		/* The next one may come. */
		bytes[4032] = value;
	}
	return NULL;
}

/* A program that waits for the last byte of an RDMA WRITE. */
static void last_byte(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	volatile unsigned char *target = (unsigned char *)f.memory + 4096;
	unsigned int most = f.mr->lkey == f.mr->rkey ? WRITES : MOST_WRITES;
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, watch, f.memory + 4096));
	for (unsigned int i = 1; i <= most; i++) {
		unsigned char value = (unsigned char)(i % 251 + 1);

		if (i == most || partial)
			most = sent = i;
		memset(f.memory, value, 64);
		EXPECT(status_of_write(&f, 64, f.mr->lkey, f.mr->rkey) == IBV_WC_SUCCESS);
		while (target[4032] != value)
			sched_yield();
	}
	MUST(pthread_join(thread, NULL));
	found(partial);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		CASE(keys), CASE(event_of_old_completion), CASE(full_send_queue), CASE(full_receive_queue),
		CASE(path_mtu), CASE(failed_completion), CASE(last_byte),
	};

	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
