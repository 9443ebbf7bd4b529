/* Extended reliable connections: ibv_open_xrcd, ibv_create_srq_ex, ibv_get_srq_num, ibv_open_qp, traffic to two SRQs. */
#include "conform.h"

static struct buffer buffer;

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};

	return ibv_open_xrcd(ctx, &attr);
}

static void domains(void)
{
	FILE *file = MAKE(tmpfile());
	struct ibv_xrcd *first, *second;
	int fd = fileno(file);

	check(open_domain(fd, 0) == NULL, "ibv_open_xrcd(3): without O_CREAT and without a domain of this inode it fails");
	first = open_domain(fd, O_CREAT);
	check(first && first->context == ctx, "ibv_open_xrcd(3): O_CREAT creates a domain for the inode");
	second = open_domain(fd, O_CREAT);
	check(second != NULL, "ibv_open_xrcd(3): O_CREAT opens the domain that exists");
	if (second)
		is(ibv_close_xrcd(second), 0, "ibv_close_xrcd(3): 0 on success");
	check(open_domain(fd, O_CREAT | O_EXCL) == NULL, "ibv_open_xrcd(3): O_CREAT and O_EXCL with a domain of this inode fail");
	second = open_domain(fd, 0);
	check(second != NULL, "ibv_open_xrcd(3): a domain that exists is opened without O_CREAT");
	if (second)
		MUST(ibv_close_xrcd(second));
	if (first)
		is(ibv_close_xrcd(first), 0, "ibv_close_xrcd(3): the last reference");
	check(open_domain(fd, 0) == NULL, "ibv_close_xrcd(3): with the last reference the domain is destroyed");
	is_null(open_domain(-1, O_CREAT | 1 << 29), EINVAL, "ibv_open_xrcd(3): an oflag that doesn't exist: EINVAL");
	is_null(open_domain(fd + 1000, O_CREAT), EBADF, "ibv_open_xrcd(3): a number that isn't a descriptor fails");

	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = fd, .oflags = O_CREAT};

	check(ibv_open_xrcd(ctx, &attr) == NULL, "ibv_open_xrcd(3): without the descriptor and its flags it fails");
	fclose(file);
}

static struct ibv_srq *make_srq(struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = {.max_wr = 8, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
		.cq = cq,
	};

	return MAKE(ibv_create_srq_ex(ctx, &attr));
}

/* Every operation that the page's table gives XRC_SEND, besides SEND. */
static void operations(struct ibv_qp *sender, struct ibv_cq *send_cq, struct ibv_srq *srq, struct ibv_cq *recv_cq)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		const char *name;
		bool receives;
	} list[] = {{IBV_WR_SEND_WITH_IMM, "SEND_WITH_IMM", true},
		    {IBV_WR_RDMA_WRITE, "RDMA_WRITE", false},
		    {IBV_WR_RDMA_WRITE_WITH_IMM, "RDMA_WRITE_WITH_IMM", true},
		    {IBV_WR_RDMA_READ, "RDMA_READ", false},
		    {IBV_WR_ATOMIC_CMP_AND_SWP, "ATOMIC_CMP_AND_SWP", false},
		    {IBV_WR_ATOMIC_FETCH_AND_ADD, "ATOMIC_FETCH_AND_ADD", false}};
	struct ibv_sge sge = piece(&buffer, 0, 8), into = piece(&buffer, 4096, 64);
	struct ibv_recv_wr recv = {.wr_id = 3, .sg_list = &into, .num_sge = 1}, *bad;
	struct ibv_send_wr wr;
	uint32_t number;

	MUST(ibv_get_srq_num(srq, &number));
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		wr = request(list[i].opcode, &sge);
		wr.qp_type.xrc.remote_srqn = number;
		set_remote(&wr, (uintptr_t)buffer.mem + 2048, buffer.mr->rkey);
		if (list[i].receives)
			MUST(ibv_post_srq_recv(srq, &recv, &bad));
		MUST(post(sender, &wr));
		is_status(next(send_cq), IBV_WC_SUCCESS, "ibv_post_send(3): XRC %s completes", list[i].name);
		if (list[i].receives)
			is_status(next(recv_cq), IBV_WC_SUCCESS, "ibv_post_send(3): XRC %s arrives", list[i].name);
	}

	struct buffer region = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	if (!mw) {
		skip("the device has no type 2 windows", "ibv_post_send(3): XRC BIND_MW and LOCAL_INV complete");
		free_buffer(&region);
		return;
	}
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	int bound, invalidated;

	wr = request(IBV_WR_BIND_MW, NULL);
	wr.num_sge = 0;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){region.mr, (uintptr_t)region.mem, 64, IBV_ACCESS_REMOTE_WRITE};
	MUST(post(sender, &wr));
	bound = next(send_cq);
	wr = request(IBV_WR_LOCAL_INV, NULL);
	wr.num_sge = 0;
	wr.invalidate_rkey = rkey;
	MUST(post(sender, &wr));
	invalidated = next(send_cq);
	check(!bound && !invalidated, "ibv_post_send(3): XRC BIND_MW and LOCAL_INV complete");
	free_buffer(&region);
	MUST(ibv_dealloc_mw(mw));
}

static void traffic(struct ibv_xrcd *xrcd)
{
	struct ibv_cq *send_cq = make_cq(16), *recv_cq[2] = {make_cq(16), make_cq(16)};
	struct ibv_srq *srq[2] = {make_srq(xrcd, recv_cq[0]), make_srq(xrcd, recv_cq[1])};
	struct ibv_srq_init_attr basic_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *basic = MAKE(ibv_create_srq(pd, &basic_attr));
	struct ibv_qp_init_attr_ex sender_attr = {
		.send_cq = send_cq,
		.cap = {.max_send_wr = 8, .max_send_sge = 1},
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp_init_attr_ex receiver_attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
	struct ibv_qp *sender = ibv_create_qp_ex(ctx, &sender_attr), *receiver = ibv_create_qp_ex(ctx, &receiver_attr);
	struct path path = PATH;
	uint32_t number[2] = {0, 0}, none;
	struct ibv_wc wc = {0};

	is(ibv_get_srq_num(srq[0], &number[0]), 0, "ibv_get_srq_num(3): 0 on success");
	MUST(ibv_get_srq_num(srq[1], &number[1]));
	check(number[0] != number[1], "ibv_get_srq_num(3): each SRQ has its own number");
	check(ibv_get_srq_num(basic, &none) != 0, "ibv_get_srq_num(3): a basic SRQ has no number");
	MUST(ibv_destroy_srq(basic));
	check(sender != NULL, "ibv_create_qp_ex(3): an XRC_SEND QP");
	check(receiver != NULL, "ibv_create_qp_ex(3): an XRC_RECV QP of an XRC domain");
	if (!sender || !receiver)
		return;
	is(ibv_close_xrcd(xrcd), EBUSY, "ibv_close_xrcd(3): a domain with SRQs and QPs isn't closed: EBUSY");
	bring(sender, IBV_QPS_RTS, &path, receiver->qp_num);
	bring(receiver, IBV_QPS_RTS, &path, sender->qp_num);
	for (size_t i = 0; i < 2; i++) {
		struct ibv_sge into = piece(&buffer, 1024 * (i + 1), 512), from = piece(&buffer, 0, 512);
		struct ibv_recv_wr recv = {.wr_id = 30 + i, .sg_list = &into, .num_sge = 1}, *bad;
		struct ibv_send_wr wr = request(IBV_WR_SEND, &from);

		MUST(ibv_post_srq_recv(srq[i], &recv, &bad));
		fill(buffer.mem, 512, (unsigned int)i + 1);
		wr.qp_type.xrc.remote_srqn = number[i];
		is(post(sender, &wr), 0, "ibv_post_send(3): an XRC SEND to SRQ %zu is taken", i);
		is_status(next(send_cq), IBV_WC_SUCCESS, "ibv_post_send(3): an XRC SEND to SRQ %zu completes", i);
		is_status(poll_for(recv_cq[i], &wc, PATIENCE_MS), IBV_WC_SUCCESS,
			  "ibv_create_srq_ex(3): a message to SRQ %zu completes in that SRQ's CQ", i);
		check(wc.wr_id == 30 + i && wc.byte_len == 512 && filled(buffer.mem + 1024 * (i + 1), 512, (unsigned int)i + 1),
		      "ibv_post_srq_recv(3): a request of SRQ %zu takes the message", i);
		is(wc.qp_num, receiver->qp_num, "ibv_poll_cq(3): qp_num of a message to SRQ %zu is the XRC_RECV QP's", i);
	}
	struct ibv_sge sge = piece(&buffer, 0, 64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);

	fill(buffer.mem, 64, 7);
	wr.wr.rdma.remote_addr = (uintptr_t)buffer.mem + 3000;
	wr.wr.rdma.rkey = buffer.mr->rkey;
	wr.qp_type.xrc.remote_srqn = number[0];
	MUST(post(sender, &wr));
	is_status(next(send_cq), IBV_WC_SUCCESS, "ibv_post_send(3): an XRC RDMA WRITE completes, in the PD of its SRQ");
	check(filled(buffer.mem + 3000, 64, 7), "ibv_post_send(3): and writes its bytes");

	struct ibv_qp_init_attr_ex caller_attr = sender_attr;

	caller_attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	caller_attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	struct ibv_qp *caller = ibv_create_qp_ex(ctx, &caller_attr), *target = ibv_create_qp_ex(ctx, &receiver_attr);

	if (caller && target) {
		struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(caller);
		struct ibv_sge into = piece(&buffer, 1024, 512);
		struct ibv_recv_wr give = {.wr_id = 44, .sg_list = &into, .num_sge = 1}, *bad_give;

		bring(caller, IBV_QPS_RTS, &path, target->qp_num);
		bring(target, IBV_QPS_RTS, &path, caller->qp_num);
		MUST(ibv_post_srq_recv(srq[1], &give, &bad_give));
		ibv_wr_start(qpx);
		qpx->wr_id = 45;
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qpx);
		ibv_wr_set_xrc_srqn(qpx, number[1]);
		ibv_wr_set_sge(qpx, buffer.mr->lkey, (uintptr_t)buffer.mem, 64);
		MUST(ibv_wr_complete(qpx));
		is_status(next(send_cq), IBV_WC_SUCCESS, "ibv_wr_set_xrc_srqn(3): a message by calls completes");
		is_status(poll_for(recv_cq[1], &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_wr_set_xrc_srqn(3): and goes to the SRQ of that number");
		is((long)wc.wr_id, 44, "ibv_wr_set_xrc_srqn(3): into its request");
	} else {
		skip("the device has no XRC by calls", "ibv_wr_set_xrc_srqn(3): a message by calls completes");
	}
	if (caller)
		MUST(ibv_destroy_qp(caller));
	if (target)
		MUST(ibv_destroy_qp(target));

	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = receiver->qp_num,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *again = ibv_open_qp(ctx, &open_attr);

	check(again && again->qp_num == receiver->qp_num, "ibv_open_qp(3): a QP of the domain, by its number");
	if (again) {
		is(ibv_destroy_qp(again), 0, "ibv_open_qp(3): it is closed with ibv_destroy_qp");
		is(qp_state(receiver), IBV_QPS_RTS, "ibv_open_qp(3): which doesn't touch the QP itself");
	}
	open_attr.qp_num ^= 1;
	check(ibv_open_qp(ctx, &open_attr) == NULL, "ibv_open_qp(3): a number that no QP of the domain has fails");
	open_attr.qp_num = receiver->qp_num;
	open_attr.qp_type = IBV_QPT_RC;
	check(ibv_open_qp(ctx, &open_attr) == NULL, "ibv_open_qp(3): another type than the QP's fails");
	open_attr.qp_type = IBV_QPT_XRC_RECV;
	open_attr.comp_mask &= ~IBV_QP_OPEN_ATTR_NUM;
	check(ibv_open_qp(ctx, &open_attr) == NULL, "ibv_open_qp(3): without all that a QP is found by it fails");
	operations(sender, send_cq, srq[0], recv_cq[0]);

	struct ibv_recv_wr recv = {0}, *bad = NULL;

	check(ibv_post_recv(receiver, &recv, &bad) != 0, "ibv_post_recv(3): an XRC_RECV QP has no receive queue");
	check(ibv_post_recv(sender, &recv, &bad) != 0, "ibv_post_recv(3): an XRC_SEND QP has no receive queue");
	MUST(ibv_destroy_qp(sender));
	MUST(ibv_destroy_qp(receiver));
	MUST(ibv_destroy_srq(srq[0]));
	MUST(ibv_destroy_srq(srq[1]));
	MUST(ibv_destroy_cq(send_cq));
	MUST(ibv_destroy_cq(recv_cq[0]));
	MUST(ibv_destroy_cq(recv_cq[1]));
}

int main(int argc, char **argv)
{
	struct ibv_xrcd *xrcd;

	begin(argc, argv);
	buffer = make_buffer(8192, ALL);
	xrcd = open_domain(-1, O_CREAT);
	if (!xrcd) {
		skip("the device has no XRC", "ibv_open_xrcd(3): fd -1 and O_CREAT make a domain without an inode");
		return end();
	}
	check(xrcd->context == ctx, "ibv_open_xrcd(3): fd -1 and O_CREAT make a domain without an inode");
	domains();
	traffic(xrcd);
	is(ibv_close_xrcd(xrcd), 0, "ibv_close_xrcd(3): a domain is closed once its SRQs and QPs are gone");
	free_buffer(&buffer);
	return end();
}
