/* A library of verbs whose completions are lies. HOSTILE names the lie. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* The requests of the only queue pair, in order. */
static struct {
	uint64_t wr_id;
	enum ibv_wc_opcode opcode;
} posted[64];
static int count, reported;

static int is(const char *lie)
{
	return !strcmp(getenv("HOSTILE"), lie);
}

static void note(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	posted[count].wr_id = wr_id;
	posted[count++].opcode = opcode;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	static int sends;

	if (is("refuses") || (is("refuses the first") && sends++ == 0))
		return ENOMEM;
	note(wr->wr_id, IBV_WC_SEND);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	note(wr->wr_id, IBV_WC_RECV);
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	if (is("negative"))
		return -7;
	if (is("many"))
		return entries + 1;
	if (reported == count)
		return 0;
	int i = reported++;
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = posted[i].wr_id;
	wc->opcode = posted[i].opcode;
	wc->qp_num = 7;
	wc->byte_len = 4;
	if (is("long"))
		wc->byte_len = UINT32_MAX;
	if (is("status"))
		wc->status = 12345;
	if (is("stranger"))
		wc->wr_id = ~wc->wr_id;
	if (is("order"))
		wc->wr_id = posted[count - 1 - i].wr_id;
	if (is("opcode"))
		wc->opcode = posted[i].opcode == IBV_WC_RECV ? IBV_WC_SEND : IBV_WC_RECV_RDMA_WITH_IMM;
	if (is("flags") || is("failed")) {
		wc->wc_flags = ~0;
		wc->imm_data = 7;
	}
	if (is("failed")) {
		wc->wr_id = posted[count - 1].wr_id;
		wc->byte_len = UINT32_MAX;
		wc->status = IBV_WC_WR_FLUSH_ERR;
		reported = count;
	}
	if (is("twice")) {
		wc[1] = wc[0];
		return 2;
	}
	return 1;
}

static int notify(struct ibv_cq *cq, int solicited_only)
{
	return 0;
}

static struct ibv_device device = {.name = "hostile0"};
static struct verbs_context whole;
static struct ibv_device *list[] = {&device, NULL};

struct ibv_device **ibv_get_device_list(int *n)
{
	*n = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **devices)
{
}

const char *ibv_get_device_name(struct ibv_device *which)
{
	return which->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	whole.context.device = which;
	whole.context.ops.post_send = post_send;
	whole.context.ops.post_recv = post_recv;
	whole.context.ops.poll_cq = poll_cq;
	whole.context.ops.req_notify_cq = notify;
	return &whole.context;
}

int ibv_close_device(struct ibv_context *context)
{
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;
	attr->state = IBV_PORT_ACTIVE;
	attr->active_mtu = IBV_MTU_1024;
	attr->gid_tbl_len = 1;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	memset(gid, 1, sizeof(*gid));
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
			     size_t size)
{
	memset(entries, 0, sizeof(*entries));
	entries->port_num = 1;
	entries->gid_type = IBV_GID_TYPE_ROCE_V2;
	return 1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	return calloc(1, sizeof(struct ibv_pd));
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return calloc(1, sizeof(struct ibv_mr));
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
	channel->fd = eventfd(0, 0);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *own, struct ibv_comp_channel *channel,
			     int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof(*cq));
	cq->context = context;
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **own)
{
	errno = EAGAIN;
	return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp = calloc(1, sizeof(*qp));
	qp->qp_num = 7;
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (is("aborts for two seconds") && attr->qp_state == IBV_QPS_ERR)
		sleep(2);
	return is("refuses") && attr->qp_state == IBV_QPS_ERR ? EIO : 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	errno = EAGAIN;
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	errno = EOPNOTSUPP;
	return NULL;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	return EOPNOTSUPP;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	errno = EOPNOTSUPP;
	return NULL;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}
