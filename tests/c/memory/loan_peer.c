/* loan_peer: the peer of a Rust program that lends memory. Both write lines of hexadecimal digits to each other.
 *
 *   loan_peer ROUNDS
 *
 * It exchanges endpoints of the crate `ferroce` (64 bytes). In each round a message contains a token (24 bytes). The peer writes the
 * round's number into all of the memory, and returns it by a SEND with invalidate. In the last round it returns nothing. It
 * waits for a line and writes again: the memory was recalled, so that fails.
 */
#include "common.h"

#define ENDPOINT 64
#define TOKEN 24
#define LARGEST (1 << 16)

static char line[2 * ENDPOINT + 2];

static void tell(const unsigned char *bytes, size_t len)
{
	for (size_t at = 0; at < len; at++)
		printf("%02x", bytes[at]);
	printf("\n");
	fflush(stdout);
}

static void hear(unsigned char *bytes, size_t len)
{
	if (!fgets(line, sizeof(line), stdin) || strlen(line) != 2 * len + 1)
		fail("the Rust program has gone");
	for (size_t at = 0; at < len; at++)
		sscanf(line + 2 * at, "%2hhx", &bytes[at]);
}

static uint32_t big_endian(const unsigned char *bytes)
{
	uint32_t number;

	memcpy(&number, bytes, sizeof(number));
	return be32toh(number);
}

static struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	do
		count = ibv_poll_cq(cq, 1, &wc);
	while (count == 0);
	if (count < 0)
		fail("ibv_poll_cq");
	return wc;
}

/* Connects the queue pair with the endpoint of the Rust program, which gets this one's. Both have the same address. */
static void connect_to(struct ibv_qp *qp, const struct device *device)
{
	unsigned char mine[ENDPOINT] = {1, 4}, theirs[ENDPOINT];
	uint32_t numbers[3] = {htobe32(qp->qp_num), htobe32(123), htobe32(1024)};
	union ibv_gid gid;
	int gid_index = -1;

	hear(theirs, ENDPOINT);
	do
		MUST(ibv_query_gid(device->context, 1, ++gid_index, &gid));
	while (memcmp(gid.raw, theirs + 16, 16));
	memcpy(mine + 4, numbers, sizeof(numbers));
	memcpy(mine + 16, gid.raw, 16);
	tell(mine, ENDPOINT);

	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = big_endian(theirs + 4),
		.rq_psn = big_endian(theirs + 8),
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = (uint8_t)gid_index, .hop_limit = 64}},
	};
	memcpy(attr.ah_attr.grh.dgid.raw, theirs + 16, 16);
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = 123, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
	if (ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		fail("RTS");
}

int main(int argc, char **argv)
{
	int rounds = argc == 2 ? atoi(argv[1]) : 0;
	struct device device = open_device(0);
	struct ibv_cq *send_cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_cq *recv_cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	static char memory[LARGEST];
	struct ibv_mr *mr = ibv_reg_mr(device.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = send_cq,
		.recv_cq = recv_cq,
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(device.pd, &init);

	if (!send_cq || !recv_cq || !mr || !qp)
		fail("making objects");
	connect_to(qp, &device);
	for (int round = 1; round <= rounds; round++) {
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = TOKEN, .lkey = mr->lkey};
		struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad_recv;
		unsigned char word[1] = {0};

		if (ibv_post_recv(qp, &recv, &bad_recv))
			fail("ibv_post_recv");
		tell(word, 1);
		struct ibv_wc wc = next_completion(recv_cq);

		if (wc.status || wc.byte_len != TOKEN)
			fail("no token");
		const unsigned char *token = (unsigned char *)memory;
		uint32_t rkey = big_endian(token + 4), length = big_endian(token + 20);
		uint64_t address = (uint64_t)big_endian(token + 8) << 32 | big_endian(token + 12);

		memset(memory, round, sizeof(memory));
		sge.length = length;
		struct ibv_send_wr back = {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED,
					   .invalidate_rkey = rkey};
		struct ibv_send_wr write = {
			.wr_id = 1,
			.next = round < rounds ? &back : NULL,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = address, .rkey = rkey},
		};
		struct ibv_send_wr *bad;

		for (int again = 0; again < (round == rounds ? 2 : 1); again++) {
			if (ibv_post_send(qp, &write, &bad))
				fail("ibv_post_send");
			for (int ends = 0; ends < (write.next ? 2 : 1); ends++) {
				wc = next_completion(send_cq);
				/* The second WRITE of the last round is refused. */
				if (wc.status != (again ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS))
					fail("%s", ibv_wc_status_str(wc.status));
			}
			tell(word, 1);
			if (round == rounds)
				hear(word, 1);
		}
	}
	return 0;
}
