/* What the programs of "RDMA in an hour without hardware" share. The book explains each part where it is first needed. */
#ifndef HOUR_H
#define HOUR_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ANCHOR: must */
/* Most verbs return 0, or the value of errno. */
#define MUST(call)                                        \
	do {                                              \
		int result = (call);                      \
		if (result)                               \
			failed(#call, result);            \
	} while (0)

/* The others return a pointer, or NULL and set errno. */
#define MAKE(call)                                        \
	({                                                \
		__typeof__(call) made = (call);           \
		if (!made)                                \
			failed(#call, errno);             \
		made;                                     \
	})

__attribute__((noreturn)) static inline void failed(const char *call, int error)
{
	fprintf(stderr, "%s: %s\n", call, strerror(error > 0 ? error : errno));
	exit(1);
}
/* ANCHOR_END: must */

/* ANCHOR: open */
#define PORT 1
/* Index 0 is the link-local address, 1 the first IPv4 address. */
#define GID_INDEX 1

static inline struct ibv_context *open_first_device(void)
{
	struct ibv_device **list = MAKE(ibv_get_device_list(NULL));
	struct ibv_context *context;

	if (!list[0]) {
		fprintf(stderr, "no device: start the program with `ferroce run`\n");
		exit(1);
	}
	context = MAKE(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	return context;
}
/* ANCHOR_END: open */

/* ANCHOR: pause */
/* Waits a hundredth of a second. Returns 0 when the program has waited for ten seconds in all. */
static inline int pause_a_little(void)
{
	static int pauses;
	struct timespec time = {.tv_nsec = 10 * 1000 * 1000};

	nanosleep(&time, NULL);
	return ++pauses < 1000;
}
/* ANCHOR_END: pause */

/* ANCHOR: meet */
#define TCP_PORT 18515

/* A TCP connection between the two sides. Without an address this side is the server. */
static inline int meet(const char *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
	int one = 1, listener, peer;

	if (server) {
		inet_pton(AF_INET, server, &address.sin_addr);
		for (;;) {
			peer = socket(AF_INET, SOCK_STREAM, 0);
			if (!connect(peer, (struct sockaddr *)&address, sizeof address))
				return peer;
			if (!pause_a_little())
				failed("connect", errno);
			close(peer);
		}
	}
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
		failed("listen", errno);
	peer = accept(listener, NULL, NULL);
	if (peer < 0)
		failed("accept", errno);
	close(listener);
	return peer;
}

/* Sends our data to the other side, and waits for the same data of theirs. */
static inline void exchange(int peer, const void *ours, void *theirs, size_t size)
{
	if (send(peer, ours, size, 0) != (ssize_t)size || recv(peer, theirs, size, MSG_WAITALL) != (ssize_t)size) {
		fprintf(stderr, "the other side has gone\n");
		exit(1);
	}
}

/* Returns when both sides have got here. */
static inline void wait_for_each_other(int peer)
{
	char ours = 0, theirs;

	exchange(peer, &ours, &theirs, 1);
}
/* ANCHOR_END: meet */

/* ANCHOR: card */
/* What the other side needs to know to reach a queue pair and, later, memory. */
struct card {
	uint32_t qpn;
	uint32_t psn;
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey;
	uint32_t unused;
};
/* ANCHOR_END: card */

/* ANCHOR: make_qp */
static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = type,
	};

	return MAKE(ibv_create_qp(pd, &init));
}
/* ANCHOR_END: make_qp */

/* ANCHOR: to_init */
static inline void to_init(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = access};

	MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}
/* ANCHOR_END: to_init */

/* ANCHOR: to_rts */
static inline void to_rts(struct ibv_qp *qp, const struct card *ours, const struct card *theirs)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = theirs->qpn,
		.rq_psn = theirs->psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = PORT},
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = ours->psn,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	rtr.ah_attr.grh.dgid = theirs->gid;
	rtr.ah_attr.grh.sgid_index = GID_INDEX;
	rtr.ah_attr.grh.hop_limit = 64;
	MUST(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	MUST(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}
/* ANCHOR_END: to_rts */

/* ANCHOR: receive */
static inline void post_receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = mr->length, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	MUST(ibv_post_recv(qp, &wr, &bad));
}
/* ANCHOR_END: receive */

/* ANCHOR: completion */
/* The next completion, which must be a success. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (count < 0)
		failed("ibv_poll_cq", errno);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s (vendor_err 0x%x)\n", ibv_wc_status_str(wc.status), wc.vendor_err);
		exit(1);
	}
	return wc;
}
/* ANCHOR_END: completion */

/* ANCHOR: send */
/* Carries out one request and waits until it is done. */
static inline void carry_out(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	MUST(ibv_post_send(qp, wr, &bad));
	next_completion(qp->send_cq);
}
/* ANCHOR_END: send */

#endif
