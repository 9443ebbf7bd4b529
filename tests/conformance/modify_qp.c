/* Transitions of a QP, every one, with every attribute: ibv_modify_qp. The tables are those of the InfiniBand specification
 * (10.3.1 and the Modify Queue Pair attributes of 11.2.5.2), for RC, UC and UD. */
#include "conform.h"

#define SQD_RC                                                                         \
	(IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER)

static const char *const state_names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};

static const struct {
	enum ibv_qp_type type;
	const char *name;
} types[] = {{IBV_QPT_RC, "RC"}, {IBV_QPT_UC, "UC"}, {IBV_QPT_UD, "UD"}};

static const struct {
	int bit;
	const char *name;
} attributes[] = {
	{IBV_QP_EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"},
	{IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"},
	{IBV_QP_PKEY_INDEX, "PKEY_INDEX"},
	{IBV_QP_PORT, "PORT"},
	{IBV_QP_QKEY, "QKEY"},
	{IBV_QP_AV, "AV"},
	{IBV_QP_PATH_MTU, "PATH_MTU"},
	{IBV_QP_TIMEOUT, "TIMEOUT"},
	{IBV_QP_RETRY_CNT, "RETRY_CNT"},
	{IBV_QP_RNR_RETRY, "RNR_RETRY"},
	{IBV_QP_RQ_PSN, "RQ_PSN"},
	{IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"},
	{IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"},
	{IBV_QP_SQ_PSN, "SQ_PSN"},
	{IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"},
	{IBV_QP_DEST_QPN, "DEST_QPN"},
};

static struct ibv_cq *cq;

static bool exists(enum ibv_qp_state from, enum ibv_qp_state to)
{
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return true;
	switch (from) {
	case IBV_QPS_RESET:
		return to == IBV_QPS_INIT;
	case IBV_QPS_INIT:
		return to == IBV_QPS_INIT || to == IBV_QPS_RTR;
	case IBV_QPS_RTR:
		return to == IBV_QPS_RTS;
	case IBV_QPS_RTS:
		return to == IBV_QPS_RTS || to == IBV_QPS_SQD;
	case IBV_QPS_SQD:
		return to == IBV_QPS_RTS || to == IBV_QPS_SQD;
	default:
		return false;
	}
}

/* What a transition requires besides the state. */
static int needed(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	bool setup = (from == IBV_QPS_RESET && to == IBV_QPS_INIT) || (from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
		     (from == IBV_QPS_RTR && to == IBV_QPS_RTS);

	return setup ? required(type, to) & ~IBV_QP_STATE : 0;
}

/* What it takes besides that, of the attributes tried. */
static int optional(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	int connected = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	int rc = type == IBV_QPT_RC ? IBV_QP_MIN_RNR_TIMER : 0;

	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return 0;
	if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
		return connected | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	if (from == IBV_QPS_INIT)
		return connected | IBV_QP_PKEY_INDEX;
	if (to == IBV_QPS_RTS)
		return connected | rc;
	if (from == IBV_QPS_RTS && to == IBV_QPS_SQD)
		return IBV_QP_EN_SQD_ASYNC_NOTIFY;
	if (from == IBV_QPS_SQD && to == IBV_QPS_SQD)
		return type == IBV_QPT_RC   ? SQD_RC
		       : type == IBV_QPT_UC ? IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX
					    : IBV_QP_QKEY | IBV_QP_PKEY_INDEX;
	return 0;
}

static struct ibv_qp *fresh(enum ibv_qp_type type, enum ibv_qp_state state)
{
	struct ibv_qp *qp = make_qp(type, cq);
	struct path path = PATH;

	bring(qp, state, &path, qp->qp_num);
	return qp;
}

/* Tries a transition on a QP of its own, and whether a refusal left it as it was. */
static int attempt(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	struct ibv_qp *qp = fresh(type, from);
	struct path path = PATH;
	struct ibv_qp_attr attr = all_attributes(&path, qp->qp_num);
	int result;

	attr.qp_state = to;
	result = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
	if (qp_state(qp) != (result ? from : to))
		result = -1;
	MUST(ibv_destroy_qp(qp));
	return result;
}

static void transitions(enum ibv_qp_type type, const char *name)
{
	for (int from = IBV_QPS_RESET; from <= IBV_QPS_ERR; from++) {
		if (from == IBV_QPS_SQE)
			continue;
		for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
			const char *f = state_names[from], *t = state_names[to];
			int least = needed(type, from, to), bad = 0, all;

			/* The specification's "any state" and the kernel's table disagree on this one. */
			if (from == IBV_QPS_RESET && to == IBV_QPS_ERR)
				continue;
			if (!exists(from, to)) {
				is(attempt(type, from, to, 0), EINVAL,
				   "ibv_modify_qp(3): %s: there is no transition from %s to %s: EINVAL, and the state stays", name, f, t);
				continue;
			}
			is(attempt(type, from, to, least), 0, "ibv_modify_qp(3): %s: %s to %s with what it requires", name, f, t);
			all = least | optional(type, from, to);
			if (all != least)
				is(attempt(type, from, to, all), 0, "ibv_modify_qp(3): %s: %s to %s with all that it takes", name, f, t);
			for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
				if (least & attributes[i].bit)
					is(attempt(type, from, to, least & ~attributes[i].bit), EINVAL,
					   "ibv_modify_qp(3): %s: %s to %s without %s: EINVAL, and the state stays", name, f, t,
					   attributes[i].name);
			for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
				if (!(all & attributes[i].bit) && attempt(type, from, to, least | attributes[i].bit) != EINVAL) {
					printf("# %s is taken\n", attributes[i].name);
					bad |= attributes[i].bit;
				}
			is(bad, 0, "ibv_modify_qp(3): %s: %s to %s with an attribute that it doesn't take: EINVAL", name, f, t);
		}
	}
}

static void values(void)
{
	static const struct {
		const char *name;
		int bit;
		enum ibv_qp_state to;
	} wrong[] = {
		{"a port that doesn't exist", IBV_QP_PORT, IBV_QPS_INIT},
		{"a P_Key index beyond the table", IBV_QP_PKEY_INDEX, IBV_QPS_INIT},
		{"an access flag that doesn't exist", IBV_QP_ACCESS_FLAGS, IBV_QPS_INIT},
		{"a path MTU that doesn't exist", IBV_QP_PATH_MTU, IBV_QPS_RTR},
		{"more responder resources than the device has", IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QPS_RTR},
		{"an RNR timer of more than five bits", IBV_QP_MIN_RNR_TIMER, IBV_QPS_RTR},
		{"a GID index beyond the table", IBV_QP_AV, IBV_QPS_RTR},
		{"a timeout of more than five bits", IBV_QP_TIMEOUT, IBV_QPS_RTS},
		{"a retry count above 7", IBV_QP_RETRY_CNT, IBV_QPS_RTS},
		{"an RNR retry count above 7", IBV_QP_RNR_RETRY, IBV_QPS_RTS},
		{"more outstanding READs than the device has", IBV_QP_MAX_QP_RD_ATOMIC, IBV_QPS_RTS},
	};

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct ibv_qp *qp = fresh(IBV_QPT_RC, wrong[i].to - 1);
		struct path path = PATH;
		struct ibv_qp_attr attr = all_attributes(&path, qp->qp_num);

		attr.qp_state = wrong[i].to;
		switch (wrong[i].bit) {
		case IBV_QP_PORT:
			attr.port_num = (uint8_t)(caps.phys_port_cnt + 1);
			break;
		case IBV_QP_PKEY_INDEX:
			attr.pkey_index = port.pkey_tbl_len;
			break;
		case IBV_QP_ACCESS_FLAGS:
			attr.qp_access_flags = 1u << 19;
			break;
		case IBV_QP_PATH_MTU:
			attr.path_mtu = 9;
			break;
		case IBV_QP_MAX_DEST_RD_ATOMIC:
			attr.max_dest_rd_atomic = 255;
			break;
		case IBV_QP_MIN_RNR_TIMER:
			attr.min_rnr_timer = 32;
			break;
		case IBV_QP_AV:
			attr.ah_attr.grh.sgid_index = 255;
			break;
		case IBV_QP_TIMEOUT:
			attr.timeout = 32;
			break;
		case IBV_QP_RETRY_CNT:
			attr.retry_cnt = 8;
			break;
		case IBV_QP_RNR_RETRY:
			attr.rnr_retry = 8;
			break;
		default:
			attr.max_rd_atomic = 255;
		}
		check(ibv_modify_qp(qp, &attr, required(IBV_QPT_RC, wrong[i].to)) > 0 && qp_state(qp) == wrong[i].to - 1,
		      "ibv_modify_qp(3): %s is refused, and nothing is modified", wrong[i].name);
		MUST(ibv_destroy_qp(qp));
	}
}

static void current_state(void)
{
	struct ibv_qp *qp = fresh(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS};

	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0, "ibv_modify_qp(3): the current state may be named");
	attr.cur_qp_state = IBV_QPS_INIT;
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL,
	   "ibv_modify_qp(3): a current state that isn't the current one: EINVAL");
	attr.qp_state = 99;
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL, "ibv_modify_qp(3): a state that doesn't exist: EINVAL");
	attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	is(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS), 0, "ibv_modify_qp(3): attributes can be changed without naming a state");
	is(ibv_modify_qp(qp, &attr, 0), 0, "ibv_modify_qp(3): a mask of 0 changes nothing");
	check(ibv_modify_qp(qp, &attr, 1 << 29) > 0, "ibv_modify_qp(3): an attribute that doesn't exist is refused");
	is(qp_state(qp), IBV_QPS_RTS, "ibv_modify_qp(3): refusals leave the QP in its state");
	MUST(ibv_destroy_qp(qp));
}

/* A UD QP whose request failed: only its send queue is in error. */
static void send_queue_error(void)
{
	struct path path = PATH;
	struct ibv_qp *qp = make_qp(IBV_QPT_UD, cq);
	struct ibv_ah_attr to = ah_attr();
	struct ibv_ah *ah = MAKE(ibv_create_ah(pd, &to));
	struct buffer buffer = make_buffer(4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = piece(&buffer, 0, 16);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE};

	bring(qp, IBV_QPS_RTS, &path, 0);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	sge.lkey ^= 0x5500;
	MUST(post(qp, &wr));
	is_status(next(cq), IBV_WC_LOC_PROT_ERR, "ibv_modify_qp(3): a UD request with a wrong L_Key: LOC_PROT_ERR");
	is(qp_state(qp), IBV_QPS_SQE, "ibv_modify_qp(3): a failed request of a UD QP leads to SQE");
	is(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0, "ibv_modify_qp(3): from SQE back to RTS");
	sge.lkey = buffer.mr->lkey;
	MUST(post_recv(qp, &buffer, 1024, 256, 1));
	is(post(qp, &wr), 0, "ibv_modify_qp(3): after SQE to RTS the send queue takes requests");
	is_status(next(cq), IBV_WC_SUCCESS, "ibv_modify_qp(3): after SQE to RTS requests are executed");
	next(cq);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_ah(ah));
	free_buffer(&buffer);
}

/* What SQD holds back, and that RTS lets it go. */
static void send_queue_drained(void)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	struct buffer buffer = make_buffer(4096, ALL);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
	struct ibv_qp_init_attr init;
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};

	MUST(post_recv(pair.b, &buffer, 0, 64, 1));
	no_block(ctx->async_fd);
	MUST(ibv_modify_qp(pair.a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	bool told = readable(ctx->async_fd, 1000) && ibv_get_async_event(ctx, &event) == 0;

	is(event.event_type, IBV_EVENT_SQ_DRAINED, "ibv_modify_qp(3): with EN_SQD_ASYNC_NOTIFY the event SQ_DRAINED comes");
	if (told)
		ibv_ack_async_event(&event);
	MUST(ibv_query_qp(pair.a, &attr, IBV_QP_STATE, &init));
	is(attr.qp_state, IBV_QPS_SQD, "ibv_query_qp(3): the state is SQD");
	is(attr.sq_draining, 0, "ibv_query_qp(3): a send queue without requests isn't draining");
	is(post_send(pair.a, &buffer, 1024, 64), 0, "ibv_post_send(3): in SQD requests are taken");
	check(silent(pair.cq_a), "ibv_modify_qp(3): in SQD requests posted are held back");
	attr.qp_state = IBV_QPS_RTS;
	MUST(ibv_modify_qp(pair.a, &attr, IBV_QP_STATE));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_modify_qp(3): from SQD to RTS they are executed");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_modify_qp(3): and arrive");
	free_pair(&pair);
	free_buffer(&buffer);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	cq = make_cq(64);
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		transitions(types[i].type, types[i].name);
	values();
	current_state();
	send_queue_error();
	send_queue_drained();
	MUST(ibv_destroy_cq(cq));
	return end();
}
