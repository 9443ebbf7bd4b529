/* The inline functions of <rdma/rdma_verbs.h>: man rdma_reg_msgs, rdma_reg_read, rdma_reg_write, rdma_dereg_mr, rdma_post_recv,
 * rdma_post_send, rdma_post_read, rdma_post_write, theirs for several pieces, rdma_get_send_comp, rdma_get_recv_comp.
 */
#include "cm.h"
#include <pthread.h>

#define SIZE 4096
#define HALF (SIZE / 2)

static void give_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32},
		.qp_type = IBV_QPT_RC,
	};

	MUST(rdma_create_qp(id, NULL, &init));
}

static unsigned char *page(unsigned int seed)
{
	void *bytes;

	MUST(posix_memalign(&bytes, SIZE, SIZE));
	fill(bytes, SIZE, seed);
	return bytes;
}

static struct ibv_sge part(const unsigned char *bytes, size_t length, const struct ibv_mr *mr)
{
	return (struct ibv_sge){(uintptr_t)bytes, (uint32_t)length, mr->lkey};
}

/* The next completion of a send queue must be this. */
static void is_sent(struct rdma_cm_id *id, const void *context, int status, const char *of)
{
	struct ibv_wc wc = {0};

	is(rdma_get_send_comp(id, &wc), 1, "rdma_get_send_comp(3): of %s: 1", of);
	is_status(wc.status, status, "%s: its completion's status", of);
	check(wc.wr_id == (uintptr_t)context, "%s: the context is the wr_id", of);
}

static void is_received(struct rdma_cm_id *id, const void *context, size_t length, const char *of)
{
	struct ibv_wc wc = {0};

	is(rdma_get_recv_comp(id, &wc), 1, "rdma_get_recv_comp(3): of %s: 1", of);
	is_status(wc.status, IBV_WC_SUCCESS, "%s: the receive's status", of);
	check(wc.wr_id == (uintptr_t)context && wc.byte_len == length, "%s: the receive's context is the wr_id", of);
}

static struct connected both;
static unsigned char *ours, *theirs;
static struct ibv_mr *our_mr, *their_mr;

static void registration(void)
{
	struct ibv_mr *mr = rdma_reg_msgs(both.client, ours, SIZE);

	check(mr && mr->pd == both.client->pd && mr->addr == ours && mr->length == SIZE,
	      "rdma_reg_msgs(3): a pointer to a region in the id's PD");
	is_done(rdma_dereg_mr(mr), "rdma_dereg_mr(3): of rdma_reg_msgs: 0");
	is_null(rdma_reg_msgs(both.client, (void *)8, SIZE), EFAULT, "rdma_reg_msgs(3): memory that isn't there: EFAULT");
	mr = rdma_reg_read(both.client, ours, SIZE);
	check(mr && mr->pd == both.client->pd, "rdma_reg_read(3): a pointer to a region in the id's PD");
	is_done(rdma_dereg_mr(mr), "rdma_dereg_mr(3): of rdma_reg_read: 0");
	is_null(rdma_reg_read(both.client, (void *)8, SIZE), EFAULT, "rdma_reg_read(3): memory that isn't there: EFAULT");
	mr = rdma_reg_write(both.client, ours, SIZE);
	check(mr && mr->pd == both.client->pd, "rdma_reg_write(3): a pointer to a region in the id's PD");
	is_done(rdma_dereg_mr(mr), "rdma_dereg_mr(3): of rdma_reg_write: 0");
	is_null(rdma_reg_write(both.client, (void *)8, SIZE), EFAULT, "rdma_reg_write(3): memory that isn't there: EFAULT");
}

static void messages(void)
{
	struct ibv_sge two_out[2] = {part(ours, HALF, our_mr), part(ours + HALF, HALF, our_mr)};
	struct ibv_sge two_in[2] = {part(theirs + HALF, HALF, their_mr), part(theirs, HALF, their_mr)};
	struct ibv_sge many[TOO_MANY] = {{0}};
	char text[16] = "inline";

	is_done(rdma_post_recv(both.server, &two_in, theirs, SIZE, their_mr), "rdma_post_recv(3): 0 on success");
	is_done(rdma_post_send(both.client, ours, ours, SIZE, our_mr, IBV_SEND_SIGNALED), "rdma_post_send(3): 0 on success");
	is_sent(both.client, ours, IBV_WC_SUCCESS, "rdma_post_send(3)");
	is_received(both.server, &two_in, SIZE, "rdma_post_recv(3)");
	check(filled(theirs, SIZE, 1), "rdma_post_send(3): the peer has the bytes");

	is_done(rdma_post_recvv(both.server, two_in, two_in, 2), "rdma_post_recvv(3): 0 on success");
	is_done(rdma_post_sendv(both.client, two_out, two_out, 2, IBV_SEND_SIGNALED), "rdma_post_sendv(3): 0 on success");
	is_sent(both.client, two_out, IBV_WC_SUCCESS, "rdma_post_sendv(3)");
	is_received(both.server, two_in, SIZE, "rdma_post_recvv(3)");
	check(!memcmp(theirs + HALF, ours, HALF) && !memcmp(theirs, ours + HALF, HALF), "rdma_post_sendv(3): the pieces are one message");
	check(!memcmp(theirs + HALF, ours, HALF), "rdma_post_recvv(3): the message fills the pieces in their order");

	is_done(rdma_post_recv(both.server, NULL, theirs, SIZE, their_mr), "rdma_post_recv(3): without a context: 0");
	is_done(rdma_post_send(both.client, NULL, text, sizeof text, NULL, IBV_SEND_SIGNALED | IBV_SEND_INLINE),
		"rdma_post_send(3): inline data needs no region");
	struct ibv_wc wc = {0};

	MUST(rdma_get_send_comp(both.client, &wc) != 1);
	MUST(rdma_get_recv_comp(both.server, &wc) != 1);
	check(!strcmp((char *)theirs, text), "rdma_post_send(3): inline data comes");

	is_refused(rdma_post_recvv(both.server, NULL, many, TOO_MANY), EINVAL, "rdma_post_recvv(3): more pieces than the QP has: EINVAL");
	is_refused(rdma_post_sendv(both.client, NULL, many, TOO_MANY, 0), EINVAL, "rdma_post_sendv(3): more pieces than the QP has: EINVAL");
	int result = 0, posted = 0;

	while (posted < 1000 && (result = rdma_post_recv(both.client, NULL, ours, SIZE, our_mr)) == 0)
		posted++;
	is(result == -1 ? errno : 0, ENOMEM, "rdma_post_recv(3): more receives than the queue has: ENOMEM");
}

static void one_sided_requests(void)
{
	struct ibv_mr *readable_mr = MAKE(rdma_reg_read(both.server, theirs, SIZE));
	struct ibv_mr *writable_mr = MAKE(rdma_reg_write(both.server, theirs, SIZE));
	struct ibv_sge two[2] = {part(ours + HALF, HALF, our_mr), part(ours, HALF, our_mr)};
	struct ibv_sge many[TOO_MANY] = {{0}};
	char text[16] = "written inline";
	uint64_t there = (uintptr_t)theirs;

	fill(theirs, SIZE, 5);
	is_done(rdma_post_read(both.client, ours, ours, SIZE, our_mr, IBV_SEND_SIGNALED, there, readable_mr->rkey),
		"rdma_post_read(3): 0 on success");
	is_sent(both.client, ours, IBV_WC_SUCCESS, "rdma_post_read(3)");
	check(filled(ours, SIZE, 5), "rdma_post_read(3): the peer's bytes are here");
	check(filled(ours, SIZE, 5), "rdma_reg_read(3): the region can be read by the peer");
	fill(theirs, SIZE, 6);
	is_done(rdma_post_readv(both.client, two, two, 2, IBV_SEND_SIGNALED, there, readable_mr->rkey), "rdma_post_readv(3): 0 on success");
	is_sent(both.client, two, IBV_WC_SUCCESS, "rdma_post_readv(3)");
	check(!memcmp(ours + HALF, theirs, HALF) && !memcmp(ours, theirs + HALF, HALF), "rdma_post_readv(3): the pieces are filled in their order");

	fill(ours, SIZE, 7);
	is_done(rdma_post_write(both.client, ours, ours, SIZE, our_mr, IBV_SEND_SIGNALED, there, writable_mr->rkey),
		"rdma_post_write(3): 0 on success");
	is_sent(both.client, ours, IBV_WC_SUCCESS, "rdma_post_write(3)");
	check(filled(theirs, SIZE, 7), "rdma_post_write(3): the peer has the bytes");
	check(filled(theirs, SIZE, 7), "rdma_reg_write(3): the region can be written by the peer");
	is_done(rdma_post_writev(both.client, two, two, 2, IBV_SEND_SIGNALED, there, writable_mr->rkey), "rdma_post_writev(3): 0 on success");
	is_sent(both.client, two, IBV_WC_SUCCESS, "rdma_post_writev(3)");
	check(!memcmp(theirs, ours + HALF, HALF) && !memcmp(theirs + HALF, ours, HALF), "rdma_post_writev(3): the pieces follow each other there");
	is_done(rdma_post_write(both.client, NULL, text, sizeof text, NULL, IBV_SEND_SIGNALED | IBV_SEND_INLINE, there, writable_mr->rkey),
		"rdma_post_write(3): inline data needs no region");
	struct ibv_wc wc = {0};

	MUST(rdma_get_send_comp(both.client, &wc) != 1);
	check(!strcmp((char *)theirs, text), "rdma_post_write(3): inline data comes");
	is_refused(rdma_post_readv(both.client, NULL, many, TOO_MANY, 0, there, readable_mr->rkey), EINVAL,
		   "rdma_post_readv(3): more pieces than the QP has: EINVAL");
	is_refused(rdma_post_writev(both.client, NULL, many, TOO_MANY, 0, there, writable_mr->rkey), EINVAL,
		   "rdma_post_writev(3): more pieces than the QP has: EINVAL");
	MUST(rdma_dereg_mr(readable_mr));
	MUST(rdma_dereg_mr(writable_mr));
}

/* What a region's rights don't allow ends the connection: one for each attempt. */
static int outcome_of(struct ibv_mr *(*register_as)(struct rdma_cm_id *, void *, size_t), bool is_write)
{
	struct connected pair = make_connected(give_qp);
	unsigned char *here_bytes = page(8), *there_bytes = page(9);
	struct ibv_mr *local = MAKE(rdma_reg_msgs(pair.client, here_bytes, SIZE));
	struct ibv_mr *remote = MAKE(register_as(pair.server, there_bytes, SIZE));
	struct ibv_wc wc = {.status = IBV_WC_GENERAL_ERR};
	int (*request_of)(struct rdma_cm_id *, void *, void *, size_t, struct ibv_mr *, int, uint64_t, uint32_t) =
		is_write ? rdma_post_write : rdma_post_read;

	MUST(request_of(pair.client, NULL, here_bytes, SIZE, local, IBV_SEND_SIGNALED, (uintptr_t)there_bytes, remote->rkey));
	MUST(rdma_get_send_comp(pair.client, &wc) != 1);
	MUST(rdma_dereg_mr(local));
	MUST(rdma_dereg_mr(remote));
	free_connected(&pair);
	free(here_bytes);
	free(there_bytes);
	return wc.status;
}

static void *send_later(void *unused)
{
	(void)unused;
	usleep(150000);
	MUST(rdma_post_send(both.server, NULL, theirs, 16, their_mr, IBV_SEND_SIGNALED));
	return NULL;
}

/* The calls sleep until there is a completion; they also return one that came before. */
static void waiting(void)
{
	struct ibv_wc wc = {0};
	pthread_t thread;
	uint64_t start = now_ms();

	MUST(pthread_create(&thread, NULL, send_later, NULL));
	is(rdma_get_recv_comp(both.client, &wc), 1, "rdma_get_recv_comp(3): 1 when a message comes");
	check(now_ms() - start >= 140, "rdma_get_recv_comp(3): it waits until then");
	check(wc.status == IBV_WC_SUCCESS && wc.byte_len == 16 && wc.opcode == IBV_WC_RECV, "rdma_get_recv_comp(3): wc contains the completion of the receive");
	pthread_join(thread, NULL);
	is(rdma_get_send_comp(both.server, &wc), 1, "rdma_get_send_comp(3): 1 when a request is done");
	check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND, "rdma_get_send_comp(3): wc contains the completion of the send");
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	both = make_connected(give_qp);
	ours = page(1);
	theirs = page(2);
	our_mr = MAKE(rdma_reg_msgs(both.client, ours, SIZE));
	their_mr = MAKE(rdma_reg_msgs(both.server, theirs, SIZE));
	registration();
	messages();
	one_sided_requests();
	waiting();
	is_status(outcome_of(rdma_reg_msgs, true), IBV_WC_REM_ACCESS_ERR, "rdma_reg_msgs(3): a peer can't write the region: REM_ACCESS_ERR");
	is_status(outcome_of(rdma_reg_msgs, false), IBV_WC_REM_ACCESS_ERR, "rdma_reg_msgs(3): a peer can't read the region: REM_ACCESS_ERR");
	is_status(outcome_of(rdma_reg_read, true), IBV_WC_REM_ACCESS_ERR, "rdma_reg_read(3): a peer can't write the region: REM_ACCESS_ERR");
	is_status(outcome_of(rdma_reg_write, false), IBV_WC_REM_ACCESS_ERR, "rdma_reg_write(3): a peer can't read the region: REM_ACCESS_ERR");
	MUST(rdma_dereg_mr(our_mr));
	MUST(rdma_dereg_mr(their_mr));
	free_connected(&both);
	return end();
}
