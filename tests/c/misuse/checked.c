/* What works here, and would fail, hang or lose data on an adapter: `ferroce run --check` finds it. */
#include "misuse.h"
#include <endian.h>
#include <infiniband/tm_types.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define ROOM 16

/* Takes a completion, of whatever status. */
static void take(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (!wait_wc(cq, &wc, 10000))
		fail("no completion in 10 s");
}

/* Posts a WRITE, as soon as there is room for it. */
static void write_some(struct side *side, const struct offer *offer, bool signaled)
{
	struct ibv_sge sge = element(side->mr, 64);
	struct ibv_send_wr wr = {.wr_id = signaled, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = signaled ? IBV_SEND_SIGNALED : 0}, *bad;
	int result;

	set_remote(&wr, offer->address, offer->rkey);
	while ((result = ibv_post_send(side->qp, &wr, &bad)) == ENOMEM)
		usleep(1000);
	MUST(result);
}

static void fill_queue(struct side *side, const struct offer *offer, bool wrong)
{
	for (int i = 1; i <= 2 * ROOM; i++) {
		bool signaled = !wrong && i % (ROOM / 2) == 0;

		write_some(side, offer, signaled);
		if (signaled)
			take(side->cq);
	}
	write_some(side, offer, true);
}

static struct ibv_mr *second;

/* No receive is there for it yet: it stays under way. */
static void send_from_second(struct side *side, const struct offer *offer, bool wrong)
{
	void *memory = malloc(BYTES);

	(void)offer;
	second = MAKE(ibv_reg_mr(side->device->pd, memory, BYTES, ALL_ACCESS));
	MUST(post_send(side->qp, second, 0, 64, 42));
	if (wrong)
		MUST(ibv_dereg_mr(second));
}

static void deregister_second(struct side *side, bool wrong)
{
	(void)side;
	if (!wrong)
		MUST(ibv_dereg_mr(second));
}

static void receive_unless_wrong(struct side *side, struct offer *offer, bool wrong)
{
	(void)offer;
	if (!wrong)
		MUST(post_recv(side->qp, side->mr, 0, 64, 7));
}

/* A queue pair that flushes what is posted to it, and its queue. */
struct flushing {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct flushing make_flushing(const struct side *side, int entries)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct flushing made = {.channel = MAKE(ibv_create_comp_channel(side->device->context))};

	made.cq = make_cq(side->device, entries, made.channel);
	made.qp = make_qp(side->device, IBV_QPT_RC, made.cq, NULL, ROOM);
	MUST(to_init(made.qp, 0));
	MUST(ibv_modify_qp(made.qp, &attr, IBV_QP_STATE));
	return made;
}

static struct ibv_cq *take_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	MUST(ibv_get_cq_event(channel, &cq, &context));
	return cq;
}

static void feed_small_queue(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *cq = make_cq(side->device, wrong ? 4 : 8, NULL);
	struct ibv_qp *qp = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);

	MUST(to_init(qp, 0));
	for (int i = 0; i < 8; i++)
		MUST(post_recv(qp, side->mr, 0, 64, 7));
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

static void *acknowledge_late(void *cq)
{
	usleep(1300000);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void leave_event(struct side *side, const struct offer *offer, bool wrong)
{
	struct flushing flushing = make_flushing(side, ROOM);
	pthread_t thread;

	MUST(ibv_req_notify_cq(flushing.cq, 0));
	MUST(post_recv(flushing.qp, side->mr, 0, 64, 7));
	take_event(flushing.channel);
	take(flushing.cq);
	if (wrong)
		MUST(pthread_create(&thread, NULL, acknowledge_late, flushing.cq));
	else
		ibv_ack_cq_events(flushing.cq, 1);
	MUST(ibv_destroy_qp(flushing.qp));
	MUST(ibv_destroy_cq(flushing.cq));
	if (wrong)
		MUST(pthread_join(thread, NULL));
	request_write(side, offer, wrong);
}

static void arm_late(struct side *side, const struct offer *offer, bool wrong)
{
	struct flushing flushing = make_flushing(side, ROOM);

	MUST(post_recv(flushing.qp, side->mr, 0, 64, 7));
	MUST(ibv_req_notify_cq(flushing.cq, 0));
	if (!wrong) {
		take(flushing.cq);
		MUST(post_recv(flushing.qp, side->mr, 0, 64, 7));
	}
	take_event(flushing.channel);
	ibv_ack_cq_events(flushing.cq, 1);
	take(flushing.cq);
	request_write(side, offer, wrong);
}

/* A program that polls for it polls for ever. */
static void poll_unasked(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_wc wc;

	write_some(side, offer, !wrong);
	if (wait_wc(side->cq, &wc, 1500) == wrong)
		fail("a completion has %s", wrong ? "come" : "not come");
	write_some(side, offer, true);
}

/* Connects two queue pairs of this process, which are in RESET. */
static void join_qps(const struct side *side, struct ibv_qp *to, struct ibv_qp *from)
{
	struct path path = default_path(side->device);

	MUST(to_init(to, ALL_ACCESS));
	MUST(to_init(from, 0));
	connect_qps(side->device, &path, to, from);
}

/* Ends a wait that would have no end. */
static void *write_later(void *qp)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;

	usleep(1500000);
	MUST(ibv_post_send(qp, &wr, &bad));
	return NULL;
}

static void sleep_unasked(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(side->device->context));
	struct ibv_cq *cq = make_cq(side->device, ROOM, channel);
	struct ibv_qp *to = make_qp(side->device, IBV_QPT_RC, side->cq, NULL, ROOM);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	struct side own = {.device = side->device, .cq = cq, .qp = from, .mr = side->mr};
	const struct offer of_own = {.address = (uintptr_t)side->mr->addr + 1024, .rkey = side->mr->rkey};
	pthread_t thread;

	join_qps(side, to, from);
	MUST(ibv_req_notify_cq(cq, 0));
	write_some(&own, &of_own, !wrong);
	if (wrong)
		MUST(pthread_create(&thread, NULL, write_later, from));
	ibv_ack_cq_events(take_event(channel), 1);
	if (wrong)
		MUST(pthread_join(thread, NULL));
	take(cq);
	MUST(ibv_destroy_qp(to));
	MUST(ibv_destroy_qp(from));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

/* From here on the limit counts. */
static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};

	MUST(syscall(SYS_capset, &header, none));
}

static void register_much(struct side *side, const struct offer *offer, bool wrong)
{
	struct rlimit limit = {.rlim_cur = 1 << 16, .rlim_max = 1 << 16};
	size_t length = wrong ? 1 << 20 : 1 << 15;
	void *memory = calloc(1, length);

	MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
	drop_capabilities();
	MUST(ibv_dereg_mr(MAKE(ibv_reg_mr(side->device->pd, memory, length, ALL_ACCESS))));
	request_write(side, offer, wrong);
}

/* The data stay in use until the completion has been polled, although the peer has them by then. */
static void change_sent(struct side *side, const struct offer *offer, bool wrong)
{
	char *bytes = side->mr->addr;

	post(side->qp, IBV_WR_RDMA_WRITE, (struct ibv_sge){(uintptr_t)bytes, 64, side->mr->lkey}, offer->address + 1024,
	     offer->rkey);
	if (wrong)
		bytes[40] ^= 1;
	take(side->cq);
	if (!wrong)
		bytes[40] ^= 1;
	post(side->qp, IBV_WR_RDMA_WRITE, (struct ibv_sge){(uintptr_t)bytes + 2048, 64, side->mr->lkey},
	     offer->address + 1024, offer->rkey);
}

/* The adapter fills the buffer of an RDMA READ, and the program's bytes are among those that have come. */
static void change_read(struct side *side, const struct offer *offer, bool wrong)
{
	char *bytes = side->mr->addr;

	post(side->qp, IBV_WR_RDMA_READ, (struct ibv_sge){(uintptr_t)bytes + 1024, 64, side->mr->lkey}, offer->address,
	     offer->rkey);
	if (wrong) {
		/* It has been filled by then. */
		usleep(300000);
		bytes[1024 + 40] ^= 1;
	}
	take(side->cq);
	bytes[1024 + 40] ^= 1;
	post(side->qp, IBV_WR_RDMA_READ, (struct ibv_sge){(uintptr_t)bytes + 2048, 64, side->mr->lkey}, offer->address,
	     offer->rkey);
}

static void change_receive(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *cq = make_cq(side->device, 8, NULL);
	struct ibv_qp *qp = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	MUST(to_init(qp, 0));
	MUST(post_recv(qp, side->mr, 1024, 512, 7));
	if (wrong)
		((char *)side->mr->addr)[1024 + 100] ^= 1;
	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	take(cq);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

/* Sends a message, and takes the completions of both queue pairs. */
static void exchange_message(const struct side *side, struct ibv_qp *from)
{
	MUST(post_send(from, side->mr, 0, 8, 42));
	take(from->send_cq);
	take(from->send_cq);
}

/* The second half of the first receive's buffer is the first half of the second one's. */
static void change_overlapping_receive(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *cq = make_cq(side->device, ROOM, NULL);
	struct ibv_qp *to = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	char *bytes = side->mr->addr;

	join_qps(side, to, from);
	MUST(post_recv(to, side->mr, 1024, 512, 1));
	MUST(post_recv(to, side->mr, 1280, 512, 2));
	exchange_message(side, from);
	bytes[wrong ? 1400 : 1200] ^= 1;
	exchange_message(side, from);
	bytes[1400] ^= 1;
	MUST(ibv_destroy_qp(to));
	MUST(ibv_destroy_qp(from));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

static void receive_shared(const struct side *side, struct ibv_srq *srq, size_t offset, uint64_t wr_id)
{
	struct ibv_sge sge = {(uintptr_t)side->mr->addr + offset, 64, side->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
}

/* Where the registration has ended, the memory is the program's, whatever names it. */
static void receive_freed(const struct side *side, struct ibv_srq *srq)
{
	char *memory = malloc(BYTES);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device->pd, memory, BYTES, ALL_ACCESS));
	struct side other = {.device = side->device, .mr = mr};

	receive_shared(&other, srq, 0, 7);
	MUST(ibv_dereg_mr(mr));
	memset(memory, 1, BYTES);
	free(memory);
}

/* A queue pair with a shared receive queue gets two messages. A third receive is still posted when the queue pair ends, and one region's
 * registration ends with its receive posted.
 */
static void change_shared_receive(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = ROOM, .max_sge = 1}};
	struct ibv_cq *cq = make_cq(side->device, ROOM, NULL);
	struct ibv_srq *srq = MAKE(ibv_create_srq(side->device->pd, &init));
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp *to = make_qp(side->device, IBV_QPT_RC, cq, srq, ROOM);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	char *bytes = side->mr->addr;

	join_qps(side, to, from);
	for (int i = 0; i < 3; i++)
		receive_shared(side, srq, 1024 + 128 * (size_t)i, (uint64_t)i);
	exchange_message(side, from);
	exchange_message(side, from);
	bytes[1024 + 10] ^= 1;
	bytes[1024 + 128 + 10] ^= 1;
	MUST(ibv_destroy_qp(to));
	to = make_qp(side->device, IBV_QPT_RC, cq, srq, ROOM);
	MUST(ibv_modify_qp(from, &reset, IBV_QP_STATE));
	join_qps(side, to, from);
	if (wrong)
		bytes[1024 + 256 + 10] ^= 1;
	exchange_message(side, from);
	receive_freed(side, srq);
	MUST(ibv_destroy_qp(to));
	MUST(ibv_destroy_qp(from));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

static struct ibv_srq *make_srq_ex(const struct side *side, struct ibv_cq *cq, enum ibv_srq_type type, struct ibv_xrcd *domain)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = {.max_wr = ROOM, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     (domain ? IBV_SRQ_INIT_ATTR_XRCD : IBV_SRQ_INIT_ATTR_TM),
		.srq_type = type,
		.pd = side->device->pd,
		.cq = cq,
		.xrcd = domain,
		.tm_cap = {.max_num_tags = ROOM, .max_ops = ROOM},
	};

	return MAKE(ibv_create_srq_ex(side->device->context, &init));
}

/* Two messages come to an XRC queue, and the program writes to the buffer of the one that has come, or of the other. */
static void change_xrc_receive(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *cq = make_cq(side->device, ROOM, NULL);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_XRC_SEND, cq, NULL, ROOM);
	struct side target = {.device = side->device, .qp = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM)};
	char *bytes = side->mr->addr;
	struct ibv_srq *srq;
	uint32_t number;

	become_target(&target);
	srq = make_srq_ex(side, cq, IBV_SRQT_XRC, target.domain);
	MUST(ibv_get_srq_num(srq, &number));
	join_qps(side, target.qp, from);
	for (int i = 0; i < 2; i++)
		receive_shared(side, srq, 1024 + 128 * (size_t)i, (uint64_t)i);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = {(uintptr_t)bytes, 8, side->mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SIGNALED}, *bad;

		wr.qp_type.xrc.remote_srqn = number;
		MUST(ibv_post_send(from, &wr, &bad));
		take(cq);
		take(cq);
		bytes[1024 + (wrong ? 128 : 0) + 10] ^= 1;
	}
	MUST(ibv_destroy_qp(from));
	MUST(ibv_destroy_qp(target.qp));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_close_xrcd(target.domain));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

/* A message comes to the buffer of a tag; another tag is taken away. */
static void change_tagged_receive(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_cq *cq = make_cq(side->device, ROOM, NULL);
	struct ibv_srq *srq = make_srq_ex(side, cq, IBV_SRQT_TM, NULL);
	struct ibv_qp *to = make_qp(side->device, IBV_QPT_RC, cq, srq, ROOM);
	struct ibv_qp *from = make_qp(side->device, IBV_QPT_RC, cq, NULL, ROOM);
	char *bytes = side->mr->addr;
	struct ibv_tmh header = {.opcode = IBV_TMH_EAGER, .tag = htobe64(1)};
	struct ibv_ops_wr *bad, remove = {.wr_id = 9, .opcode = IBV_WR_TAG_DEL, .flags = IBV_OPS_SIGNALED};

	join_qps(side, to, from);
	receive_shared(side, srq, 2048, 7);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = {(uintptr_t)bytes + 1024 + 128 * i, 64, side->mr->lkey};
		struct ibv_ops_wr add = {.wr_id = 8, .opcode = IBV_WR_TAG_ADD, .flags = IBV_OPS_SIGNALED};

		add.tm.add.recv_wr_id = (uint64_t)i;
		add.tm.add.sg_list = &sge;
		add.tm.add.num_sge = 1;
		add.tm.add.tag = (uint64_t)i + 1;
		add.tm.add.mask = ~0ull;
		MUST(ibv_post_srq_ops(srq, &add, &bad));
		take(cq);
		remove.tm.handle = add.tm.handle;
	}
	if (wrong)
		bytes[1024 + 50] ^= 1;
	memcpy(bytes, &header, sizeof header);
	MUST(post_send(from, side->mr, 0, sizeof header + 8, 42));
	take(cq);
	take(cq);
	bytes[1024 + 50] ^= 1;
	MUST(ibv_post_srq_ops(srq, &remove, &bad));
	take(cq);
	bytes[1024 + 128 + 50] ^= 1;
	/* A message that no tag expects, for the receive. */
	header.tag = htobe64(3);
	memcpy(bytes, &header, sizeof header);
	MUST(post_send(from, side->mr, 0, sizeof header + 8, 42));
	take(cq);
	take(cq);
	bytes[2048 + 50] ^= 1;
	MUST(ibv_destroy_qp(to));
	MUST(ibv_destroy_qp(from));
	MUST(ibv_destroy_srq(srq));
	MUST(ibv_destroy_cq(cq));
	request_write(side, offer, wrong);
}

static void limit_responder(struct config *config, bool wrong)
{
	config->responder_mtu = wrong ? IBV_MTU_256 : IBV_MTU_1024;
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		WORKS(queue_never_signaled, .request = fill_queue),
		MISUSE(region_in_use, IBV_WC_LOC_PROT_ERR, .prepare = receive_unless_wrong, .request = send_from_second,
		       .after = deregister_second),
		WORKS(path_mtu, .configure = limit_responder, .request = request_write),
		WORKS(never_asked_for, .request = poll_unasked),
		WORKS(small_queue, .request = feed_small_queue),
		WORKS(unacknowledged, .request = leave_event),
		WORKS(armed_late, .request = arm_late),
		WORKS(memlock, .request = register_much),
		WORKS(event_never_asked_for, .request = sleep_unasked),
		WORKS(sent_buffer, .request = change_sent),
		WORKS(read_buffer, .request = change_read),
		WORKS(receive_buffer, .request = change_receive),
		WORKS(overlapping_receives, .request = change_overlapping_receive),
		WORKS(shared_receive_buffer, .request = change_shared_receive),
		WORKS(xrc_receive_buffer, .request = change_xrc_receive),
		WORKS(tagged_receive_buffer, .request = change_tagged_receive),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
