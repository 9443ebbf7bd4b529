/* Corners of ibv_post_send, ibv_post_recv and ibv_post_srq_recv: lists, lengths, flags and opcodes that few programs use. */
#include "conform.h"

static struct buffer buffer;

/* What is posted to neither queue must not be executed. */
static void lists(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = piece(&buffer, 0, 64);
	struct ibv_send_wr first = request(IBV_WR_SEND, &sge), middle = first, last = first, *bad = NULL;
	struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = &sge, .num_sge = -1}, *bad_recv = NULL;
	struct ibv_wc wc;

	int sent = ibv_post_send(pair.a, NULL, &bad), received = ibv_post_recv(pair.a, NULL, &bad_recv);

	check(sent == 0 || sent == EINVAL, "ibv_post_send(3): an empty list is nothing to do");
	check(received == 0 || received == EINVAL, "ibv_post_recv(3): an empty list is nothing to do");
	is(ibv_post_recv(pair.b, &recv, &bad_recv), EINVAL, "ibv_post_recv(3): a negative number of s/g elements: EINVAL");
	check(bad_recv == &recv, "ibv_post_recv(3): and bad_wr is that request");
	first.num_sge = -1;
	is(ibv_post_send(pair.a, &first, &bad), EINVAL, "ibv_post_send(3): a negative number of s/g elements: EINVAL");
	check(bad == &first, "ibv_post_send(3): and bad_wr is that request");
	first.num_sge = 1;
	first.wr_id = 1;
	middle.wr_id = 2;
	last.wr_id = 3;
	first.next = &middle;
	middle.next = &last;
	middle.sg_list = too_many;
	middle.num_sge = TOO_MANY;
	MUST(post_recv(pair.b, &buffer, 4096, 64, 9));
	MUST(post_recv(pair.b, &buffer, 4096, 64, 10));
	bad = NULL;
	is(ibv_post_send(pair.a, &first, &bad), EINVAL, "ibv_post_send(3): too many s/g elements in the middle: EINVAL");
	check(bad == &middle, "ibv_post_send(3): bad_wr is the request in the middle with too many");
	is_status(poll_for(pair.cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): the request before it is executed");
	is((long)wc.wr_id, 1, "ibv_post_send(3): that one");
	check(silent(pair.cq_a), "ibv_post_send(3): the requests behind it aren't");
	check(next(pair.cq_b) == IBV_WC_SUCCESS && silent(pair.cq_b), "ibv_post_send(3): one message arrives");
	free_pair(&pair);
}

static void lengths(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge none = {(uintptr_t)buffer.mem, 0, buffer.mr->lkey}, parts[3] = {none, piece(&buffer, 0, 16), none};
	struct ibv_send_wr wr = request(IBV_WR_SEND, parts);
	struct ibv_sge into[2] = {none, piece(&buffer, 4096, 64)};
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = into, .num_sge = 2}, *bad;
	struct ibv_wc wc = {0};

	fill(buffer.mem, 16, 3);
	wr.num_sge = 3;
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): s/g elements of no bytes among others");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_recv(3): s/g elements of no bytes among others");
	check(wc.byte_len == 16 && filled(buffer.mem + 4096, 16, 3), "ibv_post_recv(3): the bytes go to the next element");
	wr = request(IBV_WR_SEND, NULL);
	wr.num_sge = 0;
	wr.send_flags |= IBV_SEND_INLINE;
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	is(post(pair.a, &wr), 0, "ibv_post_send(3): an inline message of no bytes");
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): an inline message of no bytes completes");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): an inline message of no bytes arrives");
	is_status(one_sided(&pair, IBV_WR_RDMA_READ, none, 0, 0), IBV_WC_SUCCESS, "ibv_post_send(3): a READ of no bytes needs no R_Key");
	wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, NULL);
	wr.num_sge = 0;
	wr.imm_data = htonl(0xabcd);
	MUST(ibv_post_recv(pair.b, &recv, &bad));
	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_post_send(3): a WRITE_WITH_IMM of no bytes completes");
	is_status(poll_for(pair.cq_b, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_send(3): a WRITE_WITH_IMM of no bytes takes a receive request");
	check(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(0xabcd) && wc.byte_len == 0,
	      "ibv_poll_cq(3): of a WRITE_WITH_IMM of no bytes: imm_data, and byte_len is 0");
	free_pair(&pair);

	uint64_t *result = (uint64_t *)(buffer.mem + 64);

	pair = make_pair(IBV_QPT_RC);
	*(uint64_t *)buffer.mem = 40;
	MUST(one_sided(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, piece(&buffer, 64, 8), (uintptr_t)buffer.mem, buffer.mr->rkey));
	is((long)*result, 40, "ibv_post_send(3): an atomic's result is eight bytes");
	free_pair(&pair);
}

static void flags(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_comp_channel *channel = MAKE(ibv_create_comp_channel(ctx));
	struct ibv_sge sge = piece(&buffer, 0, 64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge);

	wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 4096;
	wr.wr.rdma.rkey = buffer.mr->rkey;
	wr.send_flags |= IBV_SEND_INLINE;
	check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): a READ can't be inline");
	free_pair(&pair);
	pair = make_pair(IBV_QPT_RC);
	wr = request(IBV_WR_DRIVER1, &sge);
	check(fails(pair.a, pair.cq_a, &wr), "ibv_post_send(3): DRIVER1 fails where the driver has no operation of its own");
	free_pair(&pair);

	/* SOLICITED, for what it is valid for. */
	struct ibv_cq *cq = MAKE(ibv_create_cq(ctx, 16, NULL, channel, 0)), *sends = make_cq(16);
	struct ibv_qp *a = make_qp(IBV_QPT_RC, sends), *b;
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, cq);
	struct path path = PATH;
	struct ibv_cq *told;
	void *context;
	struct ibv_wc wc;

	no_block(channel->fd);
	b = MAKE(ibv_create_qp(pd, &init));
	bring(a, IBV_QPS_RTS, &path, b->qp_num);
	bring(b, IBV_QPS_RTS, &path, a->qp_num);
	MUST(ibv_req_notify_cq(cq, 1));
	for (int i = 0; i < 2; i++) {
		MUST(post_recv(b, &buffer, 4096, 64, 1));
		wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, &sge);
		wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 4096;
		wr.wr.rdma.rkey = buffer.mr->rkey;
		wr.send_flags |= i ? IBV_SEND_SOLICITED : 0;
		MUST(post(a, &wr));
		MUST(next(sends));
		MUST(poll_for(cq, &wc, PATIENCE_MS));
		if (i)
			check(readable(channel->fd, PATIENCE_MS), "ibv_post_send(3): SOLICITED with WRITE_WITH_IMM makes a solicited event");
		else
			check(!readable(channel->fd, QUIET_MS), "ibv_post_send(3): without SOLICITED there is none");
	}
	if (!ibv_get_cq_event(channel, &told, &context))
		ibv_ack_cq_events(told, 1);
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(sends));
	MUST(ibv_destroy_comp_channel(channel));
}

/* The fields that are valid in a failed completion: wr_id, status, qp_num and vendor_err. */
static void failed_completion(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_sge sge = {(uintptr_t)buffer.mem, 64, buffer.mr->lkey ^ 0x5500};
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	struct ibv_wc wc;

	memset(&wc, 0xee, sizeof wc);
	wr.wr_id = 0x1234567890;
	MUST(post(pair.a, &wr));
	check(poll_for(pair.cq_a, &wc, PATIENCE_MS) > 0, "ibv_poll_cq(3): a failed request has a status");
	check(wc.wr_id == 0x1234567890 && wc.qp_num == pair.a->qp_num, "ibv_poll_cq(3): wr_id and qp_num are valid with a failure");
	check(wc.vendor_err != 0xeeeeeeee, "ibv_poll_cq(3): vendor_err is set with a failure");
	free_pair(&pair);
}

/* Requests of an unreliable connection that only its own page's table allows. */
static void unreliable(void)
{
	struct buffer region = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct pair pair;
	uint32_t rkey;
	struct ibv_send_wr wr;

	if (!mw) {
		skip("the device has no type 2 windows", "ibv_post_send(3): UC takes BIND_MW");
		free_buffer(&region);
		return;
	}
	pair = make_pair(IBV_QPT_UC);
	rkey = ibv_inc_rkey(mw->rkey);
	wr = request(IBV_WR_BIND_MW, NULL);
	wr.num_sge = 0;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){region.mr, (uintptr_t)region.mem, 4096, IBV_ACCESS_REMOTE_WRITE};
	is(post(pair.b, &wr), 0, "ibv_post_send(3): UC takes BIND_MW");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): UC BIND_MW completes");
	mw->rkey = rkey;
	fill(buffer.mem, 64, 8);
	MUST(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, 64), (uintptr_t)region.mem, rkey));

	uint64_t deadline = now_ms() + PATIENCE_MS;

	/* The sender's completion only shows that the WRITE has been sent. */
	while (!filled(region.mem, 64, 8) && now_ms() < deadline)
		usleep(1000);
	check(filled(region.mem, 64, 8), "ibv_post_send(3): UC writes through a window");
	wr = request(IBV_WR_LOCAL_INV, NULL);
	wr.num_sge = 0;
	wr.invalidate_rkey = rkey;
	is(post(pair.b, &wr), 0, "ibv_post_send(3): UC takes LOCAL_INV");
	/* A device that fails here may have the window bound for good: what it is bound to stays. */
	if (!is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_post_send(3): UC LOCAL_INV completes"))
		return;
	free_pair(&pair);
	MUST(ibv_dealloc_mw(mw));
	free_buffer(&region);
}

static void shared(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(pd, &init));
	struct ibv_sge sge = piece(&buffer, 0, 64);
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = -1}, *bad = NULL;

	int empty = ibv_post_srq_recv(srq, NULL, &bad);

	check(empty == 0 || empty == EINVAL, "ibv_post_srq_recv(3): an empty list is nothing to do");
	is(ibv_post_srq_recv(srq, &wr, &bad), EINVAL, "ibv_post_srq_recv(3): a negative number of s/g elements: EINVAL");
	check(bad == &wr, "ibv_post_srq_recv(3): and bad_wr is that request");
	MUST(ibv_destroy_srq(srq));
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(8192, ALL);
	lists();
	lengths();
	flags();
	failed_completion();
	unreliable();
	if (caps.max_srq)
		shared();
	free_buffer(&buffer);
	return end();
}
