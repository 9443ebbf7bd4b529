/* Flags and corners of requests by calls: wr_flags, ATOMIC_WRITE, several batches, mixed with ibv_post_send. */
#include "caller.h"
#include <pthread.h>

static struct buffer buffer;

static void flags(void)
{
	struct pair pair;
	struct ibv_qp_ex *qp = make_caller(&pair, IBV_QPT_RC, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ);
	uint64_t at = (uintptr_t)buffer.mem;
	uint32_t lkey = buffer.mr->lkey;
	struct ibv_wc wc = {0};

	if (!qp) {
		skip("the device takes no calls", "ibv_wr_post(3): without SIGNALED there is no completion");
		return;
	}
	MUST(post_recv(pair.b, &buffer, 4096, 64, 1));
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, at, 8);
	MUST(ibv_wr_complete(qp));
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_wr_post(3): a request without flags is executed");
	check(silent(pair.cq_a), "ibv_wr_post(3): without SIGNALED there is no completion");

	/* FENCE: the message carries what the READ before it has brought. */
	memset(buffer.mem, 0, 64);
	fill(buffer.mem + 2048, 64, 9);
	MUST(post_recv(pair.b, &buffer, 4096, 64, 2));
	ibv_wr_start(qp);
	qp->wr_id = 2;
	ibv_wr_rdma_read(qp, buffer.mr->rkey, at + 2048);
	ibv_wr_set_sge(qp, lkey, at, 64);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, at, 64);
	is(ibv_wr_complete(qp), 0, "ibv_wr_post(3): FENCE is taken");
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_post(3): a fenced request completes");
	is((long)wc.wr_id, 3, "ibv_wr_post(3): with its wr_id, each request having its own");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_wr_post(3): a fenced message arrives");
	check(filled(buffer.mem + 4096, 64, 9), "ibv_wr_post(3): a fenced request waits for those before it");

	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, TOO_MANY, too_many);
	check(ibv_wr_complete(qp) > 0, "ibv_wr_complete(3): more s/g elements than the QP has fail");
	check(silent(pair.cq_a), "ibv_wr_complete(3): and nothing is executed");
	free_pair(&pair);
}

static void solicited(void)
{
	struct pair pair;
	struct ibv_qp_ex *qp = make_caller(&pair, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(ctx));
	struct ibv_cq *cq = MAKE(ibv_create_cq(ctx, 8, NULL, channel, 0)), *told;
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_qp *receiver;
	void *context;

	if (!qp)
		goto over;
	no_block(channel->fd);
	receiver = MAKE(ibv_create_qp(pd, &init));
	MUST(move_to(pair.a, IBV_QPS_RESET));
	bring(pair.a, IBV_QPS_RTS, &path, receiver->qp_num);
	bring(receiver, IBV_QPS_RTS, &path, pair.a->qp_num);
	MUST(ibv_req_notify_cq(cq, 1));
	MUST(post_recv(receiver, &buffer, 4096, 64, 1));
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, buffer.mr->lkey, (uintptr_t)buffer.mem, 8);
	MUST(ibv_wr_complete(qp));
	check(readable(channel->fd, PATIENCE_MS), "ibv_wr_post(3): SOLICITED makes a solicited event at the other side");
	if (!ibv_get_cq_event(channel, &told, &context))
		ibv_ack_cq_events(told, 1);
	MUST(ibv_destroy_qp(receiver));
	free_pair(&pair);
over:
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
}

static void atomic_writes(void)
{
	struct pair pair;
	struct ibv_qp_ex *qp = make_caller(&pair, IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_WRITE);
	uint64_t value = 0x1122334455667788;
	struct ibv_wc wc = {0};

	if (!qp) {
		skip("the device has no atomic writes", "ibv_wr_atomic_write(3): it completes");
		return;
	}
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(qp, buffer.mr->rkey, (uintptr_t)buffer.mem, &value);
	MUST(ibv_wr_complete(qp));
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_atomic_write(3): it completes");
	is(wc.opcode, IBV_WC_ATOMIC_WRITE, "ibv_wr_atomic_write(3): with its opcode");
	check(*(uint64_t *)buffer.mem == value, "ibv_wr_atomic_write(3): the eight bytes are written");
	ibv_wr_start(qp);
	ibv_wr_atomic_write(qp, buffer.mr->rkey, (uintptr_t)buffer.mem + 4, &value);
	check(ibv_wr_complete(qp) > 0 || next(pair.cq_a) > IBV_WC_SUCCESS, "ibv_wr_atomic_write(3): an address that isn't a multiple of 8 fails");
	free_pair(&pair);
}

static void *batches(void *argument)
{
	struct ibv_qp_ex *qp = argument;

	for (int i = 0; i < 200; i++) {
		ibv_wr_start(qp);
		qp->wr_flags = i % 4 == 3 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_rdma_read(qp, buffer.mr->rkey, (uintptr_t)buffer.mem);
		ibv_wr_set_sge(qp, buffer.mr->lkey, (uintptr_t)buffer.mem + 4096, 8);
		if (i % 5 == 4)
			ibv_wr_abort(qp);
		else
			/* Refused while the send queue is full. */
			(void)ibv_wr_complete(qp);
	}
	return NULL;
}

/* Batches of two threads on one QP don't mix: each request has its own buffer, or the QP would fail. */
static void threads(void)
{
	struct pair pair;
	struct ibv_qp_ex *qp = make_caller(&pair, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_READ);
	pthread_t thread[2];
	struct ibv_wc wc;

	if (!qp)
		return;
	for (int i = 0; i < 2; i++)
		MUST(pthread_create(&thread[i], NULL, batches, qp));
	for (int i = 0; i < 2; i++)
		MUST(pthread_join(thread[i], NULL));
	while (poll_for(pair.cq_a, &wc, QUIET_MS) == IBV_WC_SUCCESS)
		;
	is(qp_state(pair.a), IBV_QPS_RTS, "ibv_wr_start(3): batches of two threads on one QP don't mix");
	free_pair(&pair);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(8192, ALL);
	flags();
	solicited();
	atomic_writes();
	threads();
	free_buffer(&buffer);
	return end();
}
