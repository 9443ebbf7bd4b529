/* Tag matching: ibv_create_srq_ex with IBV_SRQT_TM, ibv_post_srq_ops, ibv_wc_read_tm_info. */
#include "conform.h"
#include <infiniband/tm_types.h>

#define ALL_BITS (~(uint64_t)0)
#define HEADER sizeof(struct ibv_tmh)
#define MATCHED (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID)
/* Where messages are put together, where tags have their buffers, where messages without a tag go, and FINs. */
#define OUT_AT 0
#define TAGGED_AT 8192
#define UNTAGGED_AT 16384
#define FIN_AT 20480
#define DATA_AT 24576
#define SIZE 65536

struct told {
	int status;
	uint64_t wr_id;
	enum ibv_wc_opcode opcode;
	unsigned int flags;
	uint32_t byte_len, qp_num;
	struct ibv_wc_tm_info info;
};

static struct buffer buffer;
static struct ibv_tm_caps tm;
static struct ibv_cq_ex *cq;
static struct ibv_cq *cq_a;
static struct ibv_srq *srq;
static struct ibv_qp *a, *b;
static uint32_t handled;

static struct ibv_srq_init_attr_ex tm_attr(uint32_t tags)
{
	return (struct ibv_srq_init_attr_ex){
		.attr = {.max_wr = 16, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.pd = pd,
		.cq = ibv_cq_ex_to_cq(cq),
		.tm_cap = {.max_num_tags = tags, .max_ops = 4},
	};
}

/* The next completion on the SRQ's queue; its status is -1 when none comes. */
static struct told next_told(unsigned int milliseconds)
{
	struct ibv_poll_cq_attr attr = {0};
	uint64_t deadline = now_ms() + milliseconds;
	struct told told = {.status = -1};

	while (ibv_start_poll(cq, &attr)) {
		if (now_ms() >= deadline)
			return told;
	}
	told = (struct told){.status = cq->status, .wr_id = cq->wr_id, .opcode = ibv_wc_read_opcode(cq)};
	told.flags = ibv_wc_read_wc_flags(cq);
	told.byte_len = ibv_wc_read_byte_len(cq);
	told.qp_num = ibv_wc_read_qp_num(cq);
	ibv_wc_read_tm_info(cq, &told.info);
	ibv_end_poll(cq);
	return told;
}

static bool is_told(struct told told, int status, enum ibv_wc_opcode opcode, uint64_t wr_id, unsigned int flags)
{
	bool good = told.status == status && told.wr_id == wr_id &&
		    (status || (told.opcode == opcode && told.flags == flags));

	if (!good)
		printf("# %s, opcode %d, wr_id %llu, flags %#x\n",
		       told.status < 0 ? "no completion" : ibv_wc_status_str(told.status), told.opcode,
		       (unsigned long long)told.wr_id, told.flags);
	return good;
}

static struct ibv_ops_wr operation(enum ibv_ops_wr_opcode opcode, int flags)
{
	return (struct ibv_ops_wr){.wr_id = 100u + opcode, .opcode = opcode, .flags = flags, .tm.unexpected_cnt = handled};
}

static int operate(struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad;

	return ibv_post_srq_ops(srq, wr, &bad);
}

/* Adds a tag with the number 10 and a buffer of `length` bytes. */
static uint32_t add(uint64_t tag, uint64_t mask, uint32_t length)
{
	struct ibv_sge sge = piece(&buffer, TAGGED_AT, length);
	struct ibv_ops_wr wr = operation(IBV_WR_TAG_ADD, IBV_OPS_TM_SYNC);

	wr.tm.add.recv_wr_id = 10;
	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = mask;
	MUST(operate(&wr));
	return wr.tm.handle;
}

/* Gives the SRQ a receive with the number 20. */
static void give(void)
{
	struct ibv_sge sge = piece(&buffer, UNTAGGED_AT, 4096);
	struct ibv_recv_wr wr = {.wr_id = 20, .sg_list = &sge, .num_sge = 1}, *bad;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
}

static struct ibv_tmh *header_of(enum ibv_tmh_op opcode, uint64_t tag)
{
	struct ibv_tmh *header = (struct ibv_tmh *)(buffer.mem + OUT_AT);

	*header = (struct ibv_tmh){.opcode = opcode, .app_ctx = htonl(0x12345678), .tag = htobe64(tag)};
	return header;
}

/* Sends a message with `length` bytes after the header, and returns how that ended. */
static int send_message(enum ibv_tmh_op opcode, uint64_t tag, uint32_t length)
{
	header_of(opcode, tag);
	fill(buffer.mem + OUT_AT + HEADER, length, (unsigned int)tag);
	MUST(post_send(a, &buffer, OUT_AT, HEADER + length));
	return next(cq_a);
}

static int send_rendezvous(uint64_t tag, uint32_t rkey, uint32_t length, uint32_t beyond)
{
	struct ibv_rvh *rvh = (struct ibv_rvh *)(header_of(IBV_TMH_RNDV, tag) + 1);

	*rvh = (struct ibv_rvh){.va = htobe64((uintptr_t)buffer.mem + DATA_AT), .rkey = htonl(rkey), .len = htonl(length)};
	MUST(post_send(a, &buffer, OUT_AT, HEADER + sizeof *rvh + beyond));
	return next(cq_a);
}

static void connect_both(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_RC, ibv_cq_ex_to_cq(cq));
	struct path path = PATH;

	init.cap = (struct ibv_qp_cap){0};
	init.srq = srq;
	a = make_qp(IBV_QPT_RC, cq_a);
	b = MAKE(ibv_create_qp(pd, &init));
	bring(a, IBV_QPS_RTS, &path, b->qp_num);
	bring(b, IBV_QPS_RTS, &path, a->qp_num);
}

static void connect_again(void)
{
	struct ibv_wc wc;

	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	while (poll_for(cq_a, &wc, 0) >= 0)
		;
	while (next_told(0).status >= 0)
		;
	connect_both();
}

static void creating(void)
{
	struct ibv_srq_init_attr_ex attr = tm_attr(4);
	struct ibv_srq *made = ibv_create_srq_ex(ctx, &attr);
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_UD, ibv_cq_ex_to_cq(cq));

	check(made != NULL, "ibv_create_srq_ex(3): a tag-matching SRQ");
	check(attr.attr.max_wr >= 16 && attr.attr.max_sge >= 1, "ibv_create_srq_ex(3): the attributes of a tag-matching SRQ are updated");
	check(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == EBUSY, "ibv_destroy_cq(3): the CQ of a tag-matching SRQ: EBUSY");
	init.srq = made;
	is_null(ibv_create_qp(pd, &init), EINVAL, "ibv_create_qp(3): a UD QP with a tag-matching SRQ: EINVAL");
	MUST(ibv_destroy_srq(made));
	attr = tm_attr(tm.max_num_tags);
	made = ibv_create_srq_ex(ctx, &attr);
	check(made != NULL, "ibv_query_device_ex(3): max_num_tags tags are possible");
	if (made)
		MUST(ibv_destroy_srq(made));
	attr = tm_attr(tm.max_num_tags + 1);
	is_null(ibv_create_srq_ex(ctx, &attr), EINVAL, "ibv_create_srq_ex(3): more tags than the device has: EINVAL");
	attr = tm_attr(4);
	attr.tm_cap.max_ops = tm.max_ops + 1;
	is_null(ibv_create_srq_ex(ctx, &attr), EINVAL, "ibv_create_srq_ex(3): more tag list operations than the device has: EINVAL");
	for (unsigned int bit = IBV_SRQ_INIT_ATTR_PD; bit <= IBV_SRQ_INIT_ATTR_TM; bit <<= 1) {
		attr = tm_attr(4);
		attr.comp_mask &= ~bit;
		if (bit != IBV_SRQ_INIT_ATTR_XRCD)
			is_null(ibv_create_srq_ex(ctx, &attr), EINVAL, "ibv_create_srq_ex(3): a tag-matching SRQ without attribute %#x: EINVAL", bit);
	}
}

static void refusing(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *basic = MAKE(ibv_create_srq(pd, &init));
	struct ibv_sge sge = piece(&buffer, TAGGED_AT, 8);
	struct ibv_ops_wr wrs[2], *bad = NULL;

	wrs[0] = operation(IBV_WR_TAG_SYNC, IBV_OPS_SIGNALED);
	is(ibv_post_srq_ops(basic, wrs, &bad), EINVAL, "ibv_post_srq_ops(3): an SRQ without tag matching: EINVAL");
	check(bad == wrs, "ibv_post_srq_ops(3): and bad_wr is the operation");
	MUST(ibv_destroy_srq(basic));
	wrs[0].next = wrs + 1;
	wrs[1] = operation((enum ibv_ops_wr_opcode)77, 0);
	is(ibv_post_srq_ops(srq, wrs, &bad), EINVAL, "ibv_post_srq_ops(3): an opcode that doesn't exist: EINVAL");
	check(bad == wrs + 1, "ibv_post_srq_ops(3): bad_wr is the operation that failed");
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_SYNC, wrs[0].wr_id, 0), "ibv_post_srq_ops(3): operations before it are carried out");
	wrs[0] = operation(IBV_WR_TAG_ADD, 0);
	wrs[0].tm.add.sg_list = too_many;
	wrs[0].tm.add.num_sge = (int)tm.max_sge + 1;
	if (tm.max_sge < TOO_MANY)
		is(operate(wrs), EINVAL, "ibv_post_srq_ops(3): more than max_sge elements: EINVAL");
	wrs[0] = operation(IBV_WR_TAG_DEL, IBV_OPS_SIGNALED);
	wrs[0].tm.handle = 123456;
	is(operate(wrs), EINVAL, "ibv_post_srq_ops(3): a handle that no tag has had: EINVAL");
	wrs[0] = operation(IBV_WR_TAG_ADD, 0);
	wrs[0].tm.add.sg_list = &sge;
	wrs[0].tm.add.num_sge = 1;
	for (int i = 0; i < 4; i++)
		MUST(operate(wrs));
	is(operate(wrs), ENOMEM, "ibv_post_srq_ops(3): more than max_num_tags tags: ENOMEM");
	wrs[1] = operation(IBV_WR_TAG_DEL, 0);
	for (uint32_t handle = wrs[0].tm.handle, i = 0; i < 4; i++) {
		wrs[1].tm.handle = handle - i;
		(void)operate(wrs + 1);
	}
	check(next_told(QUIET_MS).status < 0, "ibv_post_srq_ops(3): without IBV_OPS_SIGNALED no completion");
}

static void operations(void)
{
	struct ibv_sge sge = piece(&buffer, TAGGED_AT, 8);
	struct ibv_ops_wr wr = operation(IBV_WR_TAG_ADD, IBV_OPS_SIGNALED), del;
	uint32_t handle;

	wr.tm.add.sg_list = &sge;
	wr.tm.add.num_sge = 1;
	is(operate(&wr), 0, "ibv_post_srq_ops(3): 0 on success");
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_ADD, wr.wr_id, 0), "ibv_post_srq_ops(3): TAG_ADD completes with its wr_id on the SRQ's CQ");
	handle = wr.tm.handle;
	MUST(operate(&wr));
	next_told(PATIENCE_MS);
	check(wr.tm.handle != handle, "ibv_post_srq_ops(3): each tag has a handle of its own");
	del = operation(IBV_WR_TAG_DEL, IBV_OPS_SIGNALED);
	for (int i = 0; i < 2; i++) {
		del.tm.handle = i ? wr.tm.handle : handle;
		MUST(operate(&del));
		check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_DEL, del.wr_id, 0), "ibv_post_srq_ops(3): TAG_DEL removes tag %d of two", i + 1);
	}
	MUST(operate(&del));
	check(is_told(next_told(PATIENCE_MS), IBV_WC_TM_ERR, 0, del.wr_id, 0), "ibv_post_srq_ops(3): a tag that is gone can't be removed: IBV_WC_TM_ERR");
}

static void matching(void)
{
	struct told told;
	struct ibv_ops_wr del = operation(IBV_WR_TAG_DEL, IBV_OPS_SIGNALED);

	del.tm.handle = add(0xabc0, 0xfff0, 100);
	is_status(send_message(IBV_TMH_EAGER, 0x5abc7, 100), IBV_WC_SUCCESS, "ibv_post_srq_ops(3): a message with a tag is sent as any other");
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_RECV, 10, MATCHED), "ibv_post_srq_ops(3): TMH.tag & mask == tag takes the tag, with recv_wr_id");
	check(told.byte_len == 100 && filled(buffer.mem + TAGGED_AT, 100, 0x5abc7), "ibv_post_srq_ops(3): its buffer has the data without the header");
	check(told.info.tag == 0x5abc7, "ibv_wc_read_tm_info(3): the message's tag");
	check(told.info.priv == 0x12345678, "ibv_wc_read_tm_info(3): the sender's app_ctx");
	is(told.qp_num, b->qp_num, "ibv_wc_read_qp_num(3): of a tag's message the QP that it came to");
	MUST(operate(&del));
	check(is_told(next_told(PATIENCE_MS), IBV_WC_TM_ERR, 0, del.wr_id, 0), "ibv_post_srq_ops(3): a tag is consumed by its message: IBV_WC_TM_ERR for TAG_DEL");
	give();
	del.tm.handle = add(7, ALL_BITS, 100);
	send_message(IBV_TMH_NO_TAG, 7, 50);
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_NO_TAG, 20, 0) && told.byte_len == HEADER + 50 && filled(buffer.mem + UNTAGGED_AT + HEADER, 50, 7),
	      "ibv_post_srq_ops(3): a message of IBV_TMH_NO_TAG goes to a receive, whole");
	MUST(operate(&del));
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_DEL, del.wr_id, 0), "ibv_post_srq_ops(3): and asks for no synchronization");
}

static void synchronizing(void)
{
	struct ibv_sge sge = piece(&buffer, TAGGED_AT, 100);
	struct ibv_ops_wr sync;
	struct told told;

	give();
	send_message(IBV_TMH_EAGER, 40, 30);
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_RECV, 20, 0), "ibv_post_srq_ops(3): an unexpected message goes to a receive: neither MATCH nor DATA_VALID");
	check(told.byte_len == HEADER + 30 && !memcmp(buffer.mem + UNTAGGED_AT, buffer.mem + OUT_AT, HEADER + 30), "ibv_post_srq_ops(3): with its header");
	sync = operation(IBV_WR_TAG_SYNC, IBV_OPS_SIGNALED);
	MUST(operate(&sync));
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_SYNC, sync.wr_id, IBV_WC_TM_SYNC_REQ), "ibv_post_srq_ops(3): SYNC_REQ while an unexpected message isn't handled");
	sync = operation(IBV_WR_TAG_ADD, 0);
	sync.tm.add.tag = 41;
	sync.tm.add.mask = ALL_BITS;
	sync.tm.add.recv_wr_id = 10;
	sync.tm.add.sg_list = &sge;
	sync.tm.add.num_sge = 1;
	MUST(operate(&sync));
	give();
	send_message(IBV_TMH_EAGER, 41, 30);
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_RECV, 20, 0), "ibv_post_srq_ops(3): a tag added meanwhile doesn't match");
	handled += 2;
	sync = operation(IBV_WR_TAG_SYNC, IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC);
	MUST(operate(&sync));
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_SYNC, sync.wr_id, 0), "ibv_post_srq_ops(3): TAG_SYNC with the number of handled messages: no SYNC_REQ");
	send_message(IBV_TMH_EAGER, 41, 30);
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_RECV, 10, MATCHED), "ibv_post_srq_ops(3): from then on the tag matches");
	give();
	send_message(IBV_TMH_EAGER, 42, 30);
	next_told(PATIENCE_MS);
	handled++;
	add(42, ALL_BITS, 100);
	send_message(IBV_TMH_EAGER, 42, 30);
	check(is_told(next_told(PATIENCE_MS), 0, IBV_WC_TM_RECV, 10, MATCHED), "ibv_post_srq_ops(3): TAG_ADD with IBV_OPS_TM_SYNC synchronizes too");
}

static void rendezvous(void)
{
	const struct ibv_tmh *fin = (const struct ibv_tmh *)(buffer.mem + FIN_AT);
	struct told told;
	struct ibv_wc wc = {0};

	add(5, ALL_BITS, 5000);
	fill(buffer.mem + DATA_AT, 5000, 6);
	MUST(post_recv(a, &buffer, FIN_AT, 64, 30));
	is_status(send_rendezvous(5, buffer.mr->rkey, 5000, tm.max_rndv_hdr_size - 32), IBV_WC_SUCCESS, "ibv_query_device_ex(3): a rendezvous request of max_rndv_hdr_size is taken");
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_RECV, 10, IBV_WC_TM_MATCH) && told.info.tag == 5, "ibv_post_srq_ops(3): a rendezvous that matches: TM_RECV with MATCH");
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_RECV, 10, IBV_WC_TM_DATA_VALID) && told.byte_len == 5000, "ibv_post_srq_ops(3): and with DATA_VALID when the data are there");
	check(filled(buffer.mem + TAGGED_AT, 5000, 6), "ibv_post_srq_ops(3): the adapter has read them");
	is_status(poll_for(cq_a, &wc, PATIENCE_MS), IBV_WC_SUCCESS, "ibv_post_srq_ops(3): the sender is notified");
	check(wc.byte_len == HEADER && fin->opcode == IBV_TMH_FIN && be64toh(fin->tag) == 5 && ntohl(fin->app_ctx) == 0x12345678,
	      "ibv_post_srq_ops(3): by IBV_TMH_FIN with tag and app_ctx of the request");
	give();
	send_rendezvous(6, buffer.mr->rkey, 5000, 0);
	told = next_told(PATIENCE_MS);
	check(is_told(told, 0, IBV_WC_TM_RECV, 20, 0) && told.byte_len == 32, "ibv_post_srq_ops(3): an unexpected rendezvous is left to the program");
	handled++;
	add(5, ALL_BITS, 5000);
	send_rendezvous(5, 0xbad, 5000, 0);
	next_told(PATIENCE_MS);
	told = next_told(PATIENCE_MS);
	is_status(told.status, IBV_WC_TM_RNDV_INCOMPLETE, "ibv_poll_cq(3): a rendezvous whose data can't be read: TM_RNDV_INCOMPLETE");
	check(told.wr_id == 10, "ibv_poll_cq(3): and wr_id is recv_wr_id");
	connect_again();
}

static void messages_that_fail(void)
{
	struct told told;

	add(8, ALL_BITS, 10);
	send_message(IBV_TMH_EAGER, 8, 11);
	told = next_told(PATIENCE_MS);
	check(told.status == IBV_WC_LOC_LEN_ERR && told.wr_id == 10, "ibv_poll_cq(3): a message longer than its tag's buffer: LOC_LEN_ERR");
	is(qp_state(b), IBV_QPS_ERR, "ibv_poll_cq(3): and the QP is in ERR");
	connect_again();
	give();
	is_status(send_message((enum ibv_tmh_op)9, 8, 8), IBV_WC_REM_INV_REQ_ERR, "ibv_post_srq_ops(3): a header with an opcode that doesn't exist is refused");
	connect_again();
	is_status(send_rendezvous(5, buffer.mr->rkey, 10, tm.max_rndv_hdr_size - 31), IBV_WC_REM_INV_REQ_ERR, "ibv_query_device_ex(3): a rendezvous request beyond max_rndv_hdr_size is refused");
	connect_again();
}

int main(int argc, char **argv)
{
	struct ibv_cq_init_attr_ex cq_attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO};
	struct ibv_device_attr_ex ex;
	struct ibv_srq_init_attr_ex attr;

	begin(argc, argv);
	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	tm = ex.tm_caps;
	if (!(tm.flags & IBV_TM_CAP_RC)) {
		is(tm.max_num_tags, 0, "ibv_query_device_ex(3): without tag matching max_num_tags is 0");
		skip("the device has no tag matching", "ibv_create_srq_ex(3): a tag-matching SRQ");
		return end();
	}
	cq = MAKE(ibv_create_cq_ex(ctx, &cq_attr));
	cq_a = make_cq(64);
	buffer = make_buffer(SIZE, ALL);
	creating();
	attr = tm_attr(4);
	srq = MAKE(ibv_create_srq_ex(ctx, &attr));
	refusing();
	operations();
	connect_both();
	matching();
	synchronizing();
	rendezvous();
	messages_that_fail();
	is(ibv_destroy_srq(srq), EBUSY, "ibv_destroy_srq(3): a QP is associated with a tag-matching SRQ: EBUSY");
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	add(1, 1, 1);
	is(ibv_destroy_srq(srq), 0, "ibv_destroy_srq(3): an SRQ with tags is destroyed");
	MUST(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	MUST(ibv_destroy_cq(cq_a));
	free_buffer(&buffer);
	return end();
}
