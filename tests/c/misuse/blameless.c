/* Correct programs that look wrong: `ferroce run --check` must report nothing. */
#include "../common.h"
#include <pthread.h>

#define DEPTH 8

static struct device device;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq, *other_cq;
static struct ibv_qp *qp, *other;
static struct ibv_mr *mr;
static char memory[4096] __attribute__((aligned(4096)));

static void connect_both(enum ibv_mtu mtu)
{
	struct path path = default_path(&device);

	path.mtu = mtu;
	MUST(to_init(qp, path.access));
	MUST(to_init(other, path.access));
	connect_qps(&device, &path, qp, other);
}

static void begin(void)
{
	device = open_device(1);
	channel = MAKE(ibv_create_comp_channel(device.context));
	cq = make_cq(&device, 4 * DEPTH, channel);
	other_cq = make_cq(&device, 4 * DEPTH, NULL);
	qp = make_qp(&device, IBV_QPT_RC, cq, NULL, DEPTH);
	other = make_qp(&device, IBV_QPT_RC, other_cq, NULL, DEPTH);
	mr = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	connect_both(IBV_MTU_1024);
}

static void end(void)
{
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_qp(other));
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(other_cq));
	MUST(ibv_destroy_comp_channel(channel));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
}

/* An RDMA operation on the second half of the memory. */
static void operate(enum ibv_wr_opcode opcode, size_t offset, uint64_t wr_id, uint32_t rkey, unsigned int flags)
{
	struct ibv_sge sge = {(uintptr_t)memory + offset, 8, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;

	set_remote(&wr, (uintptr_t)memory + 2048, rkey);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.compare_add = 1;
	MUST(ibv_post_send(qp, &wr, &bad));
}

static bool ends_late;

__attribute__((destructor)) static void clean_up(void)
{
	if (ends_late)
		end();
}

/* Everything is destroyed, after the handlers of exit. */
static void late_cleanup(void)
{
	begin();
	ends_late = true;
}

/* Both ends are connected anew, with another path MTU. */
static void other_path_mtu(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

	begin();
	MUST(ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	MUST(ibv_modify_qp(other, &reset, IBV_QP_STATE));
	connect_both(IBV_MTU_512);
	end();
}

static void *write_later(void *unused)
{
	usleep(50000);
	operate(IBV_WR_RDMA_WRITE, 0, 2, mr->rkey, IBV_SEND_SIGNALED);
	return unused;
}

/* A completion is in the queue when it is armed, and another one comes: an event is due for that one. */
static void old_and_new_completion(void)
{
	struct ibv_cq *found;
	struct ibv_wc wc;
	pthread_t later;
	void *context;

	begin();
	MUST(post_recv(other, mr, 1024, 64, 1));
	MUST(post_send(qp, mr, 0, 8, 1));
	MUST_COMPLETE(other_cq, &wc);
	usleep(20000);
	MUST(ibv_req_notify_cq(cq, 0));
	MUST(pthread_create(&later, NULL, write_later, NULL));
	MUST(ibv_get_cq_event(channel, &found, &context));
	ibv_ack_cq_events(found, 1);
	MUST_COMPLETE(cq, &wc);
	MUST_COMPLETE(cq, &wc);
	pthread_join(later, NULL);
	end();
}

/* All requests have one number and are unsignaled, and the last fails: its completion ends them all. */
static void one_number_for_all(void)
{
	struct ibv_wc wc;

	begin();
	for (int i = 1; i < DEPTH; i++)
		operate(IBV_WR_RDMA_WRITE, 0, 0, mr->rkey, 0);
	operate(IBV_WR_RDMA_WRITE, 0, 0, ~mr->rkey, 0);
	if (!wait_wc(cq, &wc, 10000) || wc.status != IBV_WC_REM_ACCESS_ERR)
		fail("no refusal");
	for (int i = 0; i < DEPTH; i++)
		operate(IBV_WR_RDMA_WRITE, 0, 0, mr->rkey, 0);
	for (int i = 0; i < DEPTH; i++)
		if (!wait_wc(cq, &wc, 10000) || wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("no flush");
	end();
}

/* The peer changes memory by an atomic operation, which requests name here. */
static void atomic_into_a_receive(void)
{
	struct ibv_wc wc;

	begin();
	MUST(post_recv(other, mr, 2040, 64, 1));
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, mr->rkey, IBV_SEND_SIGNALED);
	MUST_COMPLETE(cq, &wc);
	MUST(post_send(qp, mr, 1024, 4, 2));
	MUST_COMPLETE(cq, &wc);
	MUST_COMPLETE(other_cq, &wc);
	end();
}

static atomic_int ended[DEPTH], left;

static void *poll_all(void *unused)
{
	struct ibv_wc wc;

	while (atomic_load(&left) > 0) {
		if (ibv_poll_cq(cq, 1, &wc) != 1)
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			fail("%s", ibv_wc_status_str(wc.status));
		atomic_store(&ended[wc.wr_id], 1);
		atomic_fetch_sub(&left, 1);
	}
	return unused;
}

/* Two threads poll, and a buffer is written again as soon as its completion was polled by any. */
static void two_pollers(void)
{
	enum { ROUNDS = 1500 };
	pthread_t pollers[2];

	begin();
	atomic_store(&left, ROUNDS * DEPTH);
	for (int i = 0; i < DEPTH; i++)
		atomic_store(&ended[i], 1);
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&pollers[i], NULL, poll_all, NULL));
	for (int round = 0, at = 0; round < ROUNDS * DEPTH; at = (at + 1) % DEPTH) {
		if (!atomic_exchange(&ended[at], 0))
			continue;
		memset(memory + 64 * at, ++round, 8);
		operate(IBV_WR_RDMA_WRITE, 64 * (size_t)at, (uint64_t)at, mr->rkey, IBV_SEND_SIGNALED);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(pollers[i], NULL);
	end();
}

/* After unsignaled requests a program looks at all its queues, or waits for a message. */
static void unsignaled_and_others(void)
{
	struct ibv_wc wc;

	begin();
	operate(IBV_WR_RDMA_WRITE, 0, 1, mr->rkey, 0);
	for (uint64_t end = now_ms() + 1300; now_ms() < end;)
		if (ibv_poll_cq(cq, 1, &wc) || ibv_poll_cq(other_cq, 1, &wc))
			fail("a completion has come");
	MUST(post_recv(qp, mr, 1024, 64, 2));
	if (wait_wc(cq, &wc, 1300))
		fail("a completion has come");
	MUST(post_send(other, mr, 0, 8, 3));
	MUST_COMPLETE(cq, &wc);
	end();
}

static void *answer(void *unused)
{
	struct ibv_sge sge = {(uintptr_t)memory + 1024, 8, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	usleep(1500000);
	memory[1024 + 7] = 1;
	set_remote(&wr, (uintptr_t)memory + 3072, mr->rkey);
	MUST(ibv_post_send(other, &wr, &bad));
	return unused;
}

/* The peer answers an unsignaled WRITE by one of its own, for which the program waits in memory. It looks for errors meanwhile. */
static void answer_in_memory(void)
{
	struct ibv_wc wc;
	pthread_t peer;

	begin();
	MUST(pthread_create(&peer, NULL, answer, NULL));
	operate(IBV_WR_RDMA_WRITE, 0, 1, mr->rkey, 0);
	while (!*(volatile char *)(memory + 3072 + 7))
		if (ibv_poll_cq(cq, 1, &wc))
			fail("%s", ibv_wc_status_str(wc.status));
	pthread_join(peer, NULL);
	end();
}

int main(int argc, char **argv)
{
	static const struct test_case all[] = {
		CASE(late_cleanup),	  CASE(other_path_mtu),	       CASE(old_and_new_completion),
		CASE(one_number_for_all), CASE(atomic_into_a_receive), CASE(two_pollers),
		CASE(unsignaled_and_others), CASE(answer_in_memory),
	};

	return run_cases(all, sizeof all / sizeof *all, argc, argv);
}
