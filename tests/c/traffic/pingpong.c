/* pingpong: the smallest two-process verbs program that prints a result, for machines without ibverbs-utils.
 *
 * It takes the options of ibv_rc_pingpong that the demo uses, prints the same closing lines, and compiles against
 * the installed headers or against minimal/infiniband/verbs.h.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct address {
	uint32_t qpn;
	uint32_t psn;
	union ibv_gid gid;
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static int meet(const char *host, const char *service)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE};
	struct addrinfo *found;
	int one = 1, fd;

	if (getaddrinfo(host, service, &hints, &found))
		fail("getaddrinfo");
	int listener = socket(found->ai_family, SOCK_STREAM, 0);

	if (listener < 0)
		fail("socket");
	if (host) {
		if (connect(listener, found->ai_addr, found->ai_addrlen))
			fail("connect");
		return listener;
	}
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 1))
		fail("listen");
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		fail("accept");
	close(listener);
	return fd;
}

static void exchange(int fd, const void *mine, void *theirs, size_t size)
{
	if (write(fd, mine, size) != (ssize_t)size || recv(fd, theirs, size, MSG_WAITALL) != (ssize_t)size)
		fail("the other side is gone");
}

static void connect_qp(struct ibv_qp *qp, int gid_index, const struct address *mine, const struct address *theirs)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs->qpn,
				  .rq_psn = theirs->psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				  .ah_attr = {.is_global = 1, .port_num = 1}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = mine->psn, .timeout = 14, .retry_cnt = 7,
				  .rnr_retry = 7, .max_rd_atomic = 1};

	rtr.ah_attr.grh.dgid = theirs->gid;
	rtr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
	rtr.ah_attr.grh.hop_limit = 1;
	if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("ibv_modify_qp to RTR");
	if (ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("ibv_modify_qp to RTS");
}

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *outgoing, *incoming;
static uint32_t size = 4096;
static bool sent = true, received;

static void post_recv(void)
{
	struct ibv_sge sge = {(uintptr_t)incoming->addr, size, incoming->lkey};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv");
}

static void post_send(void)
{
	struct ibv_sge sge = {(uintptr_t)outgoing->addr, size, outgoing->lkey};
	struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	sent = false;
	if (ibv_post_send(qp, &wr, &bad))
		fail("ibv_post_send");
}

static void poll_until(const bool *done)
{
	struct ibv_wc wc;

	while (!*done) {
		int count = ibv_poll_cq(cq, 1, &wc);

		if (count < 0)
			fail("ibv_poll_cq");
		if (count == 0)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "a request failed: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.wr_id == 1)
			received = true;
		else
			sent = true;
	}
}

/* Every message differs from the one before it, so that an old one isn't taken for a new one. */
static void fill(unsigned char *buffer, unsigned int message)
{
	for (uint32_t i = 0; i < size; i++)
		buffer[i] = (unsigned char)(i + message);
}

static void check(const unsigned char *buffer, unsigned int message)
{
	for (uint32_t i = 0; i < size; i++)
		if (buffer[i] != (unsigned char)(i + message)) {
			fprintf(stderr, "invalid data in message %u at byte %u\n", message, i);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	const char *port = "18515";
	unsigned int iterations = 1000;
	int gid_index = 1, option, one;
	struct address mine = {.psn = 0x123456}, theirs;
	struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 2, .max_send_sge = 1,
						.max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct timespec start, end;

	while ((option = getopt(argc, argv, "cg:n:s:p:")) != -1) {
		if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'n')
			iterations = (unsigned int)strtoul(optarg, NULL, 0);
		else if (option == 's')
			size = (uint32_t)strtoul(optarg, NULL, 0);
		else if (option == 'p')
			port = optarg;
		else if (option != 'c') {
			fprintf(stderr, "usage: pingpong [-g GID_INDEX] [-n ITERATIONS] [-s SIZE] [-p PORT] [SERVER]\n");
			return 1;
		}
	}
	alarm(120);
	struct ibv_device **devices = ibv_get_device_list(&one);

	if (!devices || !devices[0])
		fail("there is no verbs device");
	struct ibv_context *context = ibv_open_device(devices[0]);
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;

	if (!pd || ibv_query_gid(context, 1, gid_index, &mine.gid))
		fail("opening the device");
	unsigned char *out = calloc(1, size), *in = calloc(1, size);

	outgoing = ibv_reg_mr(pd, out, size, IBV_ACCESS_LOCAL_WRITE);
	incoming = ibv_reg_mr(pd, in, size, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	if (!outgoing || !incoming || !cq || !qp)
		fail("making a queue pair");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("ibv_modify_qp to INIT");
	mine.qpn = qp->qp_num;
	post_recv();
	bool client = optind < argc;
	int fd = meet(client ? argv[optind] : NULL, port);

	exchange(fd, &mine, &theirs, sizeof mine);
	connect_qp(qp, gid_index, &mine, &theirs);
	exchange(fd, &mine.psn, &theirs.psn, sizeof mine.psn);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned int i = 0; i < iterations; i++) {
		if (client) {
			fill(out, i);
			post_send();
		}
		poll_until(&received);
		received = false;
		check(in, i);
		if (i + 1 < iterations)
			post_recv();
		poll_until(&sent);
		if (!client) {
			fill(out, i);
			post_send();
		}
	}
	poll_until(&sent);
	clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
	double bytes = 2.0 * size * iterations;

	printf("%.0f bytes in %.2f seconds = %.2f Mbit/sec\n", bytes, seconds, bytes * 8 / seconds / 1e6);
	printf("%u iters in %.2f seconds = %.2f usec/iter\n", iterations, seconds, seconds * 1e6 / iterations);
	return 0;
}
