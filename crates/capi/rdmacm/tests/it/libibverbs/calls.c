/*
 * Calls of the C interface that ping-pongs don't make, one case a process: `calls CASE` prints "ok"; without a case it
 * lists them. Both queue pairs are in this process, so nothing goes over a network.
 */
#define _GNU_SOURCE
#include "calls.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static void extended_cq_iterates_over_completions(void)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS, .cq_context = &attr};
	struct ibv_poll_cq_attr poll = {};
	struct ibv_cq_ex *cq;
	int seen = 0;

	open_first();
	cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq && cq->cq_context == &attr && ibv_cq_ex_to_cq(cq)->cqe >= 16);
	CHECK(ibv_start_poll(cq, &poll) == ENOENT);
	struct pair p = connect_on(IBV_QPT_RC, ibv_cq_ex_to_cq(cq), NULL);

	CHECK(post_receive(&p, 2) == 0 && post_message(&p, IBV_WR_SEND_WITH_IMM, 100, NULL) == 0);
	for (time_t end = time(NULL) + 10; seen < 2;) {
		CHECK(time(NULL) < end);
		if (ibv_start_poll(cq, &poll) == ENOENT)
			continue;
		do {
			CHECK(cq->status == IBV_WC_SUCCESS);
			if (cq->wr_id == 2) {
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 100);
				CHECK(ibv_wc_read_imm_data(cq) == htobe32(77));
				CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
				CHECK(ibv_wc_read_qp_num(cq) == p.b->qp_num);
				CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0);
			} else {
				CHECK(cq->wr_id == 1 && ibv_wc_read_opcode(cq) == IBV_WC_SEND);
			}
			seen++;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	attr.wc_flags |= 1 << 12;
	CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	poll.comp_mask = 1;
	CHECK(ibv_start_poll(cq, &poll) == EINVAL);
}

static void changed_region_keeps_its_keys_and_loses_the_old_memory(void)
{
	static char other[4096];

	open_first();
	struct pair p = connected(IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, other, 64, IBV_ACCESS_LOCAL_WRITE);
	uint32_t key = mr->lkey;
	struct ibv_pd *second = ibv_alloc_pd(context);

	CHECK(mr && second);
	/* An error leaves the region as it was. */
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)16, 64, 0) == IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EFAULT && mr->addr == other && mr->length == 64);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other + 64, 128, 0) == 0);
	CHECK(mr->addr == other + 64 && mr->length == 128 && mr->lkey == key && mr->rkey == key && mr->pd == pd);

	strcpy(other + 64, "hello");
	struct ibv_sge sge = {.addr = (uintptr_t)other + 64, .length = 6, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = p.mr->rkey;
	CHECK(ibv_post_send(p.a, &wr, &bad) == 0 && completion(p.cq, 3).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(memory, "hello"));
	CHECK(ibv_rereg_mr(p.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(ibv_post_send(p.a, &wr, &bad) == 0 && completion(p.cq, 3).status == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0 && ibv_dereg_mr(p.mr) == 0);
	p = connect_on(IBV_QPT_RC, p.cq, NULL);
	/* What lay before the new range is out of reach. */
	sge.addr = (uintptr_t)other;
	CHECK(ibv_post_send(p.a, &wr, &bad) == 0 && completion(p.cq, 3).status == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0 && ibv_dereg_mr(p.mr) == 0);
	p = connect_on(IBV_QPT_RC, p.cq, NULL);
	wr.wr.rdma.rkey = p.mr->rkey;
	sge.addr = (uintptr_t)other + 64;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0) == 0 && mr->pd == second);
	CHECK(ibv_dealloc_pd(second) == EBUSY);
	/* The key is of another domain now. */
	CHECK(ibv_post_send(p.a, &wr, &bad) == 0 && completion(p.cq, 3).status == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(second) == 0);
}

static void answer_reaches_the_sender_of_a_datagram(void)
{
	open_first();
	struct pair p = connected(IBV_QPT_UD);
	struct ibv_ah *ah = ibv_create_ah(pd, &p.address), *back;
	struct ibv_ah_attr attr;
	struct ibv_grh *grh = (struct ibv_grh *)(memory + ROOM / 2);

	CHECK(ah && ah->pd == pd && ah->context == context);
	CHECK(post_receive(&p, 2) == 0 && post_message(&p, IBV_WR_SEND, 100, ah) == 0);
	struct ibv_wc wc = completion(p.cq, 2);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 140 && wc.src_qp == p.a->qp_num);
	CHECK(wc.wc_flags & IBV_WC_GRH);
	/* RoCE v2 over IPv4, in the encoding of ConnectX adapters. */
	CHECK(wc.sl == 10);
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, grh, &attr) == 0);
	CHECK(attr.is_global == 1 && attr.port_num == 1 && attr.sl == wc.sl);
	CHECK(!memcmp(&attr.grh.dgid, &p.address.grh.dgid, 16));
	back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
	CHECK(back && ibv_destroy_ah(back) == 0);
	CHECK(ibv_init_ah_from_wc(context, 2, &wc, grh, &attr) == -1 && errno == EINVAL);
	/* Without a GRH there is an address, which RoCE can't use. */
	wc.wc_flags = 0;
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, grh, &attr) == 0 && attr.is_global == 0);
	CHECK(!ibv_create_ah_from_wc(pd, &wc, grh, 1) && errno == EINVAL);
	CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_ah(ah) == 0);
}

static void tables_end_where_the_port_says(void)
{
	struct ibv_gid_entry entry, entries[64];
	struct ibv_port_attr port;
	union ibv_gid gid, zero = {};
	__be16 pkey;
	ssize_t n;

	open_first();
	CHECK(ibv_query_port(context, 1, &port) == 0 && port.gid_tbl_len > 2 && port.pkey_tbl_len == 1);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.state == IBV_PORT_ACTIVE);
	n = ibv_query_gid_table(context, entries, 64, 0);
	CHECK(n >= 2 && n < port.gid_tbl_len);
	for (ssize_t i = 0; i < n; i++) {
		CHECK(ibv_query_gid_ex(context, 1, entries[i].gid_index, &entry, 0) == 0);
		CHECK(!memcmp(&entry, &entries[i], sizeof entry) && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
		CHECK(ibv_query_gid(context, 1, (int)entry.gid_index, &gid) == 0 && !memcmp(&gid, &entry.gid, 16));
	}
	CHECK(ibv_query_gid_table(context, entries, (size_t)n - 1, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, entries, (size_t)n, 0) == n);
	CHECK(ibv_query_gid_table(context, entries, 64, 1) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, entries, 64, 0, 0) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, entries, 64, 0, SIZE_MAX) == -EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 0, SIZE_MAX) == EINVAL);
	/* A hole isn't an error of ibv_query_gid. */
	CHECK(ibv_query_gid_ex(context, 1, (uint32_t)port.gid_tbl_len - 1, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid) == 0 && !memcmp(&gid, &zero, 16));
	CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid(context, 1, -1, &gid) == -1 && ibv_query_gid(context, 2, 0, &gid) == -1);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1 && errno == EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, htobe16(0xffff)) == 0);
	CHECK(ibv_get_pkey_index(context, 1, htobe16(0x7fff)) == -1);
}

/* Programs from before the slot have 48 bytes. */
static void symbol_query_port_writes_no_more_than_old_programs_have(void)
{
	uint8_t room[sizeof(struct ibv_port_attr)];
	int (*old)(struct ibv_context *, uint8_t, void *);

	open_first();
	old = (int (*)(struct ibv_context *, uint8_t, void *))dlvsym(RTLD_DEFAULT, "ibv_query_port", "IBVERBS_1.1");
	CHECK(old);
	memset(room, 0xa5, sizeof room);
	CHECK(old(context, 1, room) == 0 && room[46] == IBV_LINK_LAYER_ETHERNET);
	for (size_t i = 48; i < sizeof room; i++)
		CHECK(room[i] == 0xa5);
}

static void device_attributes_fit_the_room_of_the_caller(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;
	struct verbs_context *slots;
	uint8_t *bytes = (uint8_t *)&attr;

	open_first();
	slots = verbs_get_ctx(context);
	CHECK(slots && slots->sz >= sizeof *slots);
	CHECK(ibv_query_device(context, &plain) == 0 && ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(!memcmp(&attr.orig_attr, &plain, sizeof plain) && attr.phys_port_cnt_ex == 1);
	CHECK(plain.vendor_id != 0 && plain.vendor_id != 0xffffff && plain.node_guid != 0);
	CHECK(ibv_get_device_guid(context->device) == plain.node_guid);
	memset(&attr, 0xa5, sizeof attr);
	CHECK(slots->query_device_ex(context, NULL, &attr, sizeof plain + 8) == 0);
	CHECK(bytes[sizeof plain + 7] == 0 && bytes[sizeof plain + 8] == 0xa5);
	CHECK(slots->query_device_ex(context, NULL, &attr, 8) == EINVAL);
	CHECK(ibv_query_device_ex(context, &(struct ibv_query_device_ex_input){.comp_mask = 1}, &attr) == EINVAL);
}

static void queues_change_their_size(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 2}};
	struct ibv_srq_init_attr_ex init_ex = {.attr = {.max_wr = 4, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE};
	struct ibv_srq_attr attr;

	open_first();
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	CHECK(cq && ibv_resize_cq(cq, 100) == 0 && cq->cqe >= 100 && ibv_resize_cq(cq, 0) == EINVAL);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 4, NULL, NULL, -1) && errno == EINVAL);
	CHECK(srq && init.attr.max_wr >= 8 && srq->pd == pd && ibv_query_srq(srq, &attr) == 0);
	CHECK(attr.max_wr == init.attr.max_wr && attr.srq_limit == 0);
	attr = (struct ibv_srq_attr){.max_wr = 32, .srq_limit = 5};
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == 0 && ibv_query_srq(srq, &attr) == 0);
	CHECK(attr.max_wr >= 32 && attr.srq_limit == 5);
	attr.srq_limit = 1000;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL && ibv_modify_srq(srq, &attr, 8) == EINVAL);
	CHECK(!ibv_create_srq_ex(context, &init_ex) && errno == EINVAL);
	init_ex.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	init_ex.pd = pd;
	CHECK(ibv_create_srq_ex(context, &init_ex));
	init_ex.srq_type = IBV_SRQT_TM;
	CHECK(!ibv_create_srq_ex(context, &init_ex) && errno == EINVAL);
}

static void what_is_not_there_says_eopnotsupp(void)
{
	struct ibv_qp_init_attr_ex qp_ex = {.qp_type = IBV_QPT_RC};
	struct ibv_flow_action_esp_attr action = {};
	struct ibv_modify_cq_attr unknown = {.attr_mask = 1 << 1};
	struct ibv_ece ece = {.options = 1};
	struct ibv_sge sge = {};

	open_first();
	struct pair p = connected(IBV_QPT_RC);

#define NOT_THERE(call) CHECK((errno = 0, !(call)) && errno == EOPNOTSUPP)
	NOT_THERE(ibv_create_flow_action_esp(context, &action));
	NOT_THERE(ibv_qp_to_qp_ex(p.a));
	qp_ex.send_cq = qp_ex.recv_cq = p.cq;
	qp_ex.pd = pd;
	qp_ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qp_ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	NOT_THERE(ibv_create_qp_ex(context, &qp_ex));
	qp_ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	qp_ex.qp_type = IBV_QPT_DRIVER;
	NOT_THERE(ibv_create_qp_ex(context, &qp_ex));
	qp_ex.qp_type = IBV_QPT_UC;
	CHECK(ibv_create_qp_ex(context, &qp_ex));
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT + 1, 0, &sge, 1) == EOPNOTSUPP);
	CHECK(ibv_modify_cq(p.cq, &unknown) == EOPNOTSUPP);
	CHECK(ibv_set_ece(p.a, &ece) == EOPNOTSUPP);
	CHECK(ibv_query_qp_data_in_order(p.a, IBV_WR_RDMA_WRITE, 0) == 0);
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

static void *acknowledge_later(void *argument)
{
	struct ibv_cq *cq = argument;

	usleep(200000);
	strcpy(memory, "acknowledged");
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void destroying_a_cq_waits_for_its_unacknowledged_event(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq, *got;
	void *cookie;
	pthread_t thread;

	open_first();
	channel = ibv_create_comp_channel(context);
	CHECK(channel && channel->context == context);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &got, &cookie) == -1 && errno == EAGAIN);
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
	cq = ibv_create_cq(context, 16, &thread, channel, 0);
	CHECK(cq && ibv_destroy_comp_channel(channel) == EBUSY && ibv_req_notify_cq(cq, 0) == 0);
	struct pair p = connect_on(IBV_QPT_RC, cq, NULL);

	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(post_message(&p, IBV_WR_RDMA_WRITE, 8, NULL) == 0);
	CHECK(ibv_get_cq_event(channel, &got, &cookie) == 0 && got == cq && cookie == &thread);
	completion(cq, 1);
	CHECK(ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0);
	CHECK(pthread_create(&thread, NULL, acknowledge_later, cq) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && !strcmp(memory, "acknowledged"));
	CHECK(pthread_join(thread, NULL) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

static void async_event_names_its_object_and_is_acknowledged(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}, .srq_context = memory};
	struct ibv_srq_attr limit = {.srq_limit = 2};
	struct ibv_async_event event;

	open_first();
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	CHECK(srq && srq->srq_context == memory && cq);
	CHECK(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	struct pair p = connect_on(IBV_QPT_RC, cq, srq);

	CHECK(post_receive(&p, 2) == 0 && post_receive(&p, 3) == 0);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	CHECK(post_message(&p, IBV_WR_SEND, 8, NULL) == 0);
	completion(cq, 2);
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_device(context) == 0);
}

static void device_keeps_its_address_from_list_to_list(void)
{
	struct ibv_device **first = ibv_get_device_list(NULL), **second;
	struct ibv_device *device = first[0];
	const uint64_t *behind = (const uint64_t *)(device + 1);

	CHECK(device->node_type == IBV_NODE_CA && device->transport_type == IBV_TRANSPORT_IB);
	/* Vendor libraries look here whether it is one of theirs. */
	for (int i = 0; i < 6; i++)
		CHECK(behind[i] == 0);
	ibv_free_device_list(first);
	second = ibv_get_device_list(NULL);
	CHECK(second[0] == device && !strcmp(ibv_get_device_name(device), device->name));
	CHECK(ibv_get_device_index(device) == -1);
	ibv_free_device_list(second);
}

static void both_versions_of_a_name_lead_to_the_same_function(void)
{
	const char *names[] = {"ibv_create_qp", "ibv_get_cq_event", "ibv_dereg_mr"};

	open_first();
	for (int i = 0; i < 3; i++)
		CHECK(dlvsym(RTLD_DEFAULT, names[i], "IBVERBS_1.0") && dlvsym(RTLD_DEFAULT, names[i], "IBVERBS_1.1"));
	struct ibv_pd *(*old)(struct ibv_context *) =
		(struct ibv_pd * (*)(struct ibv_context *)) dlvsym(RTLD_DEFAULT, "ibv_alloc_pd", "IBVERBS_1.0");
	struct ibv_pd *made = old(context);

	CHECK(made && made->context == context && ibv_dealloc_pd(made) == 0);
}

/* How many entries of a directory begin with "prefix", or link to something that does. */
static int entries(const char *path, const char *prefix)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	char target[256];
	int n = 0;

	CHECK(directory);
	while ((entry = readdir(directory))) {
		ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);

		target[length < 0 ? 0 : length] = 0;
		n += !strncmp(length < 0 ? entry->d_name : target, prefix, strlen(prefix));
	}
	closedir(directory);
	return n;
}

/* Run before any verbs call: the library has been loaded with the program. */
static void loaded_library_has_no_thread_and_no_descriptor(void)
{
	/* ".", "..", and the one thread. */
	CHECK(entries("/proc/self/task", "") == 3);
	CHECK(entries("/proc/self/fd", "anon_inode:") == 0);
	CHECK(ibv_wc_status_str(IBV_WC_SUCCESS));
	open_first();
	CHECK(entries("/proc/self/fd", "anon_inode:") > 0);
}

static void refused_call(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	struct ibv_cq *cq;

	open_first();
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct pair p = {.cq = cq};
	struct ibv_qp *qp = make_qp(&p, IBV_QPT_RC);

	for (int i = 0; i < 3; i++)
		CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL && qp->state == IBV_QPS_RESET);
}

#define CASE(name) {#name, name}
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {

	CASE(extended_cq_iterates_over_completions),
	CASE(changed_region_keeps_its_keys_and_loses_the_old_memory),
	CASE(answer_reaches_the_sender_of_a_datagram),
	CASE(tables_end_where_the_port_says),
	CASE(symbol_query_port_writes_no_more_than_old_programs_have),
	CASE(device_attributes_fit_the_room_of_the_caller),
	CASE(queues_change_their_size),
	CASE(what_is_not_there_says_eopnotsupp),
	CASE(destroying_a_cq_waits_for_its_unacknowledged_event),
	CASE(async_event_names_its_object_and_is_acknowledged),
	CASE(device_keeps_its_address_from_list_to_list),
	CASE(both_versions_of_a_name_lead_to_the_same_function),
	CASE(loaded_library_has_no_thread_and_no_descriptor),
	CASE(refused_call),
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		if (argc == 1) {
			puts(cases[i].name);
		} else if (!strcmp(argv[1], cases[i].name)) {
			alarm(60);
			cases[i].run();
			puts("ok");
			return 0;
		}
	}
	return argc != 1;
}
