/* two_threads: two threads with a queue pair each send messages to each other and compare the bytes. One of them polls, the other
 * waits for events.
 *
 * The program is right and frees all that it has made, so none of valgrind's tools has anything to report.
 */
#include "common.h"
#include <pthread.h>

#define ROUNDS 30
#define SIZE 3000

struct side {
	unsigned int number;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* What is sent, and what comes. */
	char *memory;
	unsigned int sent, received;
};

static void wait_for_event(const struct side *side)
{
	struct ibv_cq *cq;
	void *context;

	MUST(ibv_get_cq_event(side->channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

static void take(struct side *side, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS)
		fail("thread %u: %s", side->number, ibv_wc_status_str(wc->status));
	if (wc->opcode == IBV_WC_RECV)
		side->received++;
	else
		side->sent++;
}

/* Takes completions until so many messages have been sent and received. */
static void wait_until(struct side *side, unsigned int sent, unsigned int received)
{
	bool armed = false;
	struct ibv_wc wc;

	while (side->sent < sent || side->received < received) {
		int count = ibv_poll_cq(side->cq, 1, &wc);

		if (count < 0)
			fail("ibv_poll_cq returned %d", count);
		if (count) {
			take(side, &wc);
		} else if (side->channel) {
			if (armed)
				wait_for_event(side);
			else
				MUST(ibv_req_notify_cq(side->cq, 0));
			armed = !armed;
		}
	}
}

static void send_round(struct side *side, unsigned int round)
{
	fill(side->memory, SIZE, 2 * round + side->number);
	MUST(post_send(side->qp, side->mr, 0, SIZE, 1));
	wait_until(side, round + 1, 0);
}

static void receive_round(struct side *side, unsigned int round)
{
	wait_until(side, 0, round + 1);
	check(side->memory + SIZE, SIZE, 2 * round + 1 - side->number, "message");
	MUST(post_recv(side->qp, side->mr, SIZE, SIZE, 2));
}

static void *play(void *argument)
{
	struct side *side = argument;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		if (side->number)
			receive_round(side, round);
		send_round(side, round);
		if (!side->number)
			receive_round(side, round);
	}
	return NULL;
}

static void make(struct side *side, const struct device *device, unsigned int number)
{
	*side = (struct side){.number = number};
	side->channel = number ? MAKE(ibv_create_comp_channel(device->context)) : NULL;
	side->cq = make_cq(device, 4, side->channel);
	side->qp = make_qp(device, IBV_QPT_RC, side->cq, NULL, 2);
	side->memory = MAKE(calloc(2, SIZE));
	side->mr = MAKE(ibv_reg_mr(device->pd, side->memory, 2 * SIZE, ALL_ACCESS));
	MUST(to_init(side->qp, ALL_ACCESS));
	MUST(post_recv(side->qp, side->mr, SIZE, SIZE, 2));
}

static void unmake(struct side *side)
{
	MUST(ibv_destroy_qp(side->qp));
	MUST(ibv_destroy_cq(side->cq));
	if (side->channel)
		MUST(ibv_destroy_comp_channel(side->channel));
	MUST(ibv_dereg_mr(side->mr));
	free(side->memory);
}

int main(void)
{
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct side sides[2];
	pthread_t threads[2];

	for (unsigned int i = 0; i < 2; i++)
		make(&sides[i], &device, i);
	connect_qps(&device, &path, sides[0].qp, sides[1].qp);
	for (unsigned int i = 0; i < 2; i++)
		MUST(pthread_create(&threads[i], NULL, play, &sides[i]));
	for (unsigned int i = 0; i < 2; i++)
		MUST(pthread_join(threads[i], NULL));
	for (unsigned int i = 0; i < 2; i++)
		unmake(&sides[i]);
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	puts("ok");
	return 0;
}
