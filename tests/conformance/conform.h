/* What the programs of the conformance suite share: a device, memory, QPs connected in loopback.
 *
 * Usage of every program: PROGRAM [-d DEVICE] [-g GIDINDEX]. Plain verbs, right against any conforming provider.
 * Output is like TAP: a line `ok N - ibv_…(3): …`, `not ok …` or `ok … # skip WHY` a check; exit code 1 when one fails.
 * A name contains the man page and, in our words, the sentence that is checked. Names are unique in a program.
 */
#ifndef CONFORM_H
#define CONFORM_H

#include "tap.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

/* No program outlives this, whatever happens. */
#define ALARM_SECONDS 50
/* For what must come; an emulated machine takes its time. What once hasn't come is waited for less after that. */
#define PATIENCE_MS patience
/* For what mustn't. */
#define QUIET_MS 60
#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define ALL (IBV_ACCESS_LOCAL_WRITE | REMOTE)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_device_attr caps;
static struct ibv_port_attr port;
static union ibv_gid gid;
static uint8_t gid_index;
static const char *device_name;
static unsigned int patience = 5000;

/* Reads the options; the program opens the device itself. */
UNUSED static void read_options(int argc, char **argv)
{
	int option;

	alarm(ALARM_SECONDS);
	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "d:g:")) != -1) {
		if (option == 'd')
			device_name = optarg;
		else if (option == 'g')
			gid_index = (uint8_t)atoi(optarg);
		else
			fail("usage: %s [-d DEVICE] [-g GIDINDEX]", argv[0]);
	}
}

/* The device of `-d`, or the first one. */
UNUSED static struct ibv_device *pick(struct ibv_device **list)
{
	for (int i = 0; list[i]; i++)
		if (!device_name || !strcmp(ibv_get_device_name(list[i]), device_name))
			return list[i];
	fail("there is no device %s", device_name ? device_name : "at all");
}

UNUSED static struct ibv_context *open_context(void)
{
	struct ibv_device **list = MAKE(ibv_get_device_list(NULL));
	struct ibv_context *context = MAKE(ibv_open_device(pick(list)));

	ibv_free_device_list(list);
	return context;
}

UNUSED static void begin(int argc, char **argv)
{
	read_options(argc, argv);
	ctx = open_context();
	pd = MAKE(ibv_alloc_pd(ctx));
	MUST(ibv_query_device(ctx, &caps));
	MUST(ibv_query_port(ctx, PORT_NUM, &port));
	MUST(ibv_query_gid(ctx, PORT_NUM, gid_index, &gid));
}

UNUSED static int end(void)
{
	printf("1..%d\n", checks);
	return failures ? 1 : 0;
}

/* Memory with a region of the given rights. */
struct buffer {
	unsigned char *mem;
	size_t size;
	struct ibv_mr *mr;
};

UNUSED static struct buffer make_buffer(size_t size, int access)
{
	struct buffer buffer = {.size = size};

	MUST(posix_memalign((void **)&buffer.mem, 4096, size));
	memset(buffer.mem, 0, size);
	buffer.mr = MAKE(ibv_reg_mr(pd, buffer.mem, size, access));
	return buffer;
}

UNUSED static void free_buffer(struct buffer *buffer)
{
	MUST(ibv_dereg_mr(buffer->mr));
	free(buffer->mem);
}

UNUSED static bool filled(const unsigned char *bytes, size_t length, unsigned int seed)
{
	return first_wrong(bytes, length, seed) == length;
}

UNUSED static struct ibv_cq *make_cq(int entries)
{
	return MAKE(ibv_create_cq(ctx, entries, NULL, NULL, 0));
}

UNUSED static struct ibv_qp_init_attr qp_attr(enum ibv_qp_type type, struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16,
			.max_recv_wr = 16,
			.max_send_sge = 3,
			.max_recv_sge = 3,
			.max_inline_data = 64},
		.qp_type = type,
	};
}

UNUSED static struct ibv_qp *make_qp(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = qp_attr(type, cq);

	return MAKE(ibv_create_qp(pd, &init));
}

UNUSED static struct ibv_ah_attr ah_attr(void)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = PORT_NUM};

	attr.grh.dgid = gid;
	attr.grh.sgid_index = gid_index;
	attr.grh.hop_limit = 64;
	return attr;
}

/* How a connection behaves, and the defaults that suit all but tests of these very fields. */
struct path {
	uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer, rd_atomic;
	unsigned int access;
};

#define PATH ((struct path){.timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 1, .access = ALL})

/* All attributes that any transition may need. */
UNUSED static struct ibv_qp_attr all_attributes(const struct path *path, uint32_t dest_qpn)
{
	return (struct ibv_qp_attr){
		.path_mtu = port.active_mtu < IBV_MTU_1024 ? port.active_mtu : IBV_MTU_1024,
		.qkey = QKEY,
		.rq_psn = 0xfffffe,
		.sq_psn = 0xfffffe,
		.dest_qp_num = dest_qpn,
		.qp_access_flags = path->access,
		.ah_attr = ah_attr(),
		.max_rd_atomic = path->rd_atomic,
		.max_dest_rd_atomic = path->rd_atomic,
		.min_rnr_timer = path->min_rnr_timer,
		.port_num = PORT_NUM,
		.timeout = path->timeout,
		.retry_cnt = path->retry_cnt,
		.rnr_retry = path->rnr_retry,
		.path_mig_state = IBV_MIG_MIGRATED,
	};
}

UNUSED static int move_to(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Waits until a QP in SQD is done with what was under way: only then may it go on. */
UNUSED static void drained(struct ibv_qp *qp)
{
	uint64_t deadline = now_ms() + PATIENCE_MS;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	do
		MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	while (attr.sq_draining && now_ms() < deadline);
}

/* Brings a QP from RESET to a state, by way of INIT, RTR and RTS. */
UNUSED static void bring(struct ibv_qp *qp, enum ibv_qp_state state, const struct path *path, uint32_t dest_qpn)
{
	struct ibv_qp_attr attr = all_attributes(path, dest_qpn);

	for (attr.qp_state = IBV_QPS_INIT; attr.qp_state <= state && attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		MUST(ibv_modify_qp(qp, &attr, required(qp->qp_type, attr.qp_state)));
	if (state > IBV_QPS_RTS)
		MUST(move_to(qp, state));
	if (state == IBV_QPS_SQD)
		drained(qp);
}

/* Two QPs of this process that are connected to each other (UD: in RTS), each with a CQ of its own. */
struct pair {
	struct ibv_cq *cq_a, *cq_b;
	struct ibv_qp *a, *b;
};

UNUSED static struct pair make_pair_on(enum ibv_qp_type type, struct path path)
{
	struct pair pair = {.cq_a = make_cq(64), .cq_b = make_cq(64)};

	pair.a = make_qp(type, pair.cq_a);
	pair.b = make_qp(type, pair.cq_b);
	bring(pair.a, IBV_QPS_RTS, &path, pair.b->qp_num);
	bring(pair.b, IBV_QPS_RTS, &path, pair.a->qp_num);
	return pair;
}

UNUSED static struct pair make_pair(enum ibv_qp_type type)
{
	return make_pair_on(type, PATH);
}

UNUSED static void free_pair(struct pair *pair)
{
	MUST(ibv_destroy_qp(pair->a));
	MUST(ibv_destroy_qp(pair->b));
	MUST(ibv_destroy_cq(pair->cq_a));
	MUST(ibv_destroy_cq(pair->cq_b));
}

/* Polls until a completion comes (its status) or the time is over (-1). */
UNUSED static int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, unsigned int milliseconds)
{
	if (wait_wc(cq, wc, milliseconds))
		return wc->status;
	if (milliseconds == patience)
		patience = 1000;
	return -1;
}

/* The status of the next completion, -1 when none comes. */
UNUSED static int next(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return poll_for(cq, &wc, PATIENCE_MS);
}

UNUSED static bool silent(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	return poll_for(cq, &wc, QUIET_MS) < 0;
}

/* More elements than any request takes. All are valid memory, in case a device reads them before it checks their number. */
#define TOO_MANY 99
UNUSED static struct ibv_sge too_many[TOO_MANY];

UNUSED static struct ibv_sge piece(const struct buffer *buffer, size_t offset, uint32_t length)
{
	return (struct ibv_sge){(uintptr_t)buffer->mem + offset, length, buffer->mr->lkey};
}

UNUSED static int post_recv(struct ibv_qp *qp, const struct buffer *buffer, size_t offset, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = piece(buffer, offset, length);
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

/* A signaled request for the memory of `sge`; the caller sets the other fields that the opcode needs. */
UNUSED static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	return (struct ibv_send_wr){.wr_id = 1000u + opcode,
				    .sg_list = sge,
				    .num_sge = 1,
				    .opcode = opcode,
				    .send_flags = IBV_SEND_SIGNALED};
}

UNUSED static int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;

	return ibv_post_send(qp, wr, &bad);
}

UNUSED static int post_send(struct ibv_qp *qp, const struct buffer *buffer, size_t offset, uint32_t length)
{
	struct ibv_sge sge = piece(buffer, offset, length);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	return post(qp, &wr);
}

/* A one-sided request's outcome at its requester. */
UNUSED static int one_sided(struct pair *pair, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t remote_addr,
			     uint32_t rkey)
{
	struct ibv_send_wr wr = request(opcode, &sge);

	set_remote(&wr, remote_addr, rkey);
	int result = post(pair->a, &wr);

	if (result) {
		printf("# ibv_post_send: %s\n", strerror(result));
		return IBV_WC_GENERAL_ERR;
	}
	return next(pair->cq_a);
}

/* Whether a request fails: at once, or by its completion. */
UNUSED static bool fails(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_send_wr *wr)
{
	return post(qp, wr) != 0 || next(cq) > IBV_WC_SUCCESS;
}

/* Waits until a descriptor can be read. */
UNUSED static bool readable(int fd, unsigned int milliseconds)
{
	struct pollfd waiting = {.fd = fd, .events = POLLIN};

	return poll(&waiting, 1, (int)milliseconds) == 1 && (waiting.revents & POLLIN);
}

UNUSED static void no_block(int fd)
{
	MUST(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0);
}

#endif
