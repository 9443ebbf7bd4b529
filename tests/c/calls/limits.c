/* limits: what ibv_query_device(3) and ibv_query_port(3) promise is there to the last object, request, element and
 * byte, and one more is refused as documented.
 *
 * usage: limits [messages]: of messages only, which fabrics carry
 */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

#define PIECE (32u << 20)

static struct device device;

static void at_least(const char *what, uint64_t value, uint64_t least)
{
	if (value < least)
		fail("%s is %llu, less than %llu", what, (unsigned long long)value, (unsigned long long)least);
	printf("%s: %llu\n", what, (unsigned long long)value);
}

/* What was made is more than is allowed, or it was refused for another reason. */
#define MUST_REFUSE(call, error)                                                                           \
	do {                                                                                               \
		errno = 0;                                                                                 \
		if (call)                                                                                  \
			fail("%s:%d: %s: made", __FILE__, __LINE__, #call);                                \
		if (errno != (error))                                                                      \
			fail("%s:%d: %s: %s", __FILE__, __LINE__, #call, strerror(errno));                 \
	} while (0)

static void domains(void)
{
	/* One is open already. */
	int count = device.attr.max_pd - 1;
	struct ibv_pd **pds = calloc((size_t)count, sizeof *pds);

	for (int i = 0; i < count; i++)
		pds[i] = MAKE(ibv_alloc_pd(device.context));
	MUST_REFUSE(ibv_alloc_pd(device.context), ENOMEM);
	for (int i = 0; i < count; i++)
		MUST(ibv_dealloc_pd(pds[i]));
	free(pds);
}

static void regions(void)
{
	static char memory[64];
	int count = device.attr.max_mr;
	struct ibv_mr **mrs = calloc((size_t)count, sizeof *mrs);

	for (int i = 0; i < count; i++)
		mrs[i] = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	MUST_REFUSE(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE), ENOMEM);
	for (int i = 0; i < count; i++)
		MUST(ibv_dereg_mr(mrs[i]));
	free(mrs);
}

static struct ibv_qp *try_qp(struct ibv_cq *cq, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC};

	return ibv_create_qp(device.pd, &init);
}

static void queue_pairs(void)
{
	int count = device.attr.max_qp;
	struct ibv_qp **qps = calloc((size_t)count, sizeof *qps);
	struct ibv_qp_cap small = {1, 1, 1, 1, 0};
	struct ibv_cq *cq = make_cq(&device, 1, NULL);

	for (int i = 0; i < count; i++)
		qps[i] = MAKE(try_qp(cq, small));
	MUST_REFUSE(try_qp(cq, small), ENOMEM);
	for (int i = 0; i < count; i++)
		MUST(ibv_destroy_qp(qps[i]));
	MUST(ibv_destroy_cq(cq));
	free(qps);
}

static void sizes_of_queues(void)
{
	uint32_t depth = (uint32_t)device.attr.max_qp_wr, sges = (uint32_t)device.attr.max_sge;
	struct ibv_cq *cq = make_cq(&device, device.attr.max_cqe, NULL);
	struct ibv_qp_cap cap = {depth, depth, sges, sges, 0};
	struct ibv_qp *a = MAKE(try_qp(cq, cap)), *b = MAKE(try_qp(cq, cap));
	struct path path = default_path(&device);
	struct ibv_recv_wr receive = {0}, *bad_receive;
	struct ibv_send_wr send = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
	struct ibv_wc wc;

	cap.max_send_wr++;
	MUST_REFUSE(try_qp(cq, cap), EINVAL);
	cap = (struct ibv_qp_cap){depth, depth + 1, sges, sges, 0};
	MUST_REFUSE(try_qp(cq, cap), EINVAL);
	cap = (struct ibv_qp_cap){depth, depth, sges + 1, sges, 0};
	MUST_REFUSE(try_qp(cq, cap), EINVAL);
	cap = (struct ibv_qp_cap){depth, depth, sges, sges + 1, 0};
	MUST_REFUSE(try_qp(cq, cap), EINVAL);
	MUST_REFUSE(ibv_create_cq(device.context, device.attr.max_cqe + 1, NULL, NULL, 0), EINVAL);
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&device, &path, a, b);
	/* The peer has nothing to receive into: all of them wait. */
	for (uint32_t i = 0; i < depth; i++) {
		send.wr_id = i;
		MUST(ibv_post_send(a, &send, &bad_send));
	}
	if (ibv_post_send(a, &send, &bad_send) != ENOMEM || bad_send != &send)
		fail("one send request too many was taken");
	for (uint32_t i = 0; i < depth; i++) {
		receive.wr_id = depth + i;
		/* Those that are there are used meanwhile, so the queue is filled below. */
		MUST(ibv_post_recv(b, &receive, &bad_receive));
	}
	for (uint32_t sent = 0, received = 0; sent < depth || received < depth;) {
		MUST_COMPLETE(cq, &wc);
		if (wc.wr_id != (wc.qp_num == a->qp_num ? sent++ : depth + received++))
			fail("request %llu out of order", (unsigned long long)wc.wr_id);
	}
	for (uint32_t i = 0; i < depth; i++)
		MUST(ibv_post_recv(b, &receive, &bad_receive));
	if (ibv_post_recv(b, &receive, &bad_receive) != ENOMEM || bad_receive != &receive)
		fail("one receive request too many was taken");
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	MUST(ibv_destroy_cq(cq));
}

/* `pieces` times the same memory, one after the other. */
static char *repeated(int fd, uint32_t pieces)
{
	char *at = mmap(NULL, (size_t)pieces * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	for (uint32_t i = 0; at != MAP_FAILED && i < pieces; i++)
		if (mmap(at + (size_t)i * PIECE, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
		    MAP_FAILED)
			at = MAP_FAILED;
	if (at == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return at;
}

/* Messages of the greatest length, of as many pieces as there may be, and as many READs at once as there may be. */
static void long_messages(void)
{
	uint32_t length = device.port.max_msg_sz, sges = (uint32_t)device.attr.max_sge, pieces = length / PIECE;
	int fds[2] = {memfd_create("source", 0), memfd_create("destination", 0)};
	struct ibv_cq *cq = make_cq(&device, 1024, NULL);
	struct ibv_qp_cap cap = {256, 4, sges, sges, 0};
	struct ibv_qp *a = MAKE(try_qp(cq, cap)), *b = MAKE(try_qp(cq, cap));
	struct path path = default_path(&device);
	struct ibv_sge list[64];
	struct ibv_mr *mrs[2];
	struct ibv_wc wc;
	char *memory[2];

	if (sges > 64)
		sges = 64;
	for (int i = 0; i < 2; i++) {
		if (fds[i] < 0 || ftruncate(fds[i], PIECE))
			fail("memfd: %s", strerror(errno));
		memory[i] = repeated(fds[i], pieces);
		mrs[i] = MAKE(ibv_reg_mr(device.pd, memory[i], (size_t)pieces * PIECE, ALL_ACCESS));
	}
	fill(memory[0], PIECE, 1);
	path.rd_atomic = (uint8_t)device.attr.max_qp_rd_atom;
	path.timeout = 18;
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&device, &path, a, b);

	struct ibv_send_wr *bad, wr = {.sg_list = list,
				       .num_sge = 1,
				       .opcode = IBV_WR_RDMA_WRITE,
				       .send_flags = IBV_SEND_SIGNALED};
	wr.wr.rdma.remote_addr = (uintptr_t)memory[1];
	wr.wr.rdma.rkey = mrs[1]->rkey;
	list[0] = (struct ibv_sge){(uintptr_t)memory[0], length, mrs[0]->lkey};
	MUST(ibv_post_send(a, &wr, &bad));
	if (!wait_wc(cq, &wc, 100000))
		fail("a WRITE of %u bytes doesn't end", length);
	if (wc.status != IBV_WC_SUCCESS)
		fail("a WRITE of %u bytes: %s", length, ibv_wc_status_str(wc.status));
	check(memory[1], PIECE, 1, "the longest WRITE");

	/* A SEND, gathered and scattered by as many elements as there may be. */
	memset(memory[1], 0, PIECE);
	for (uint32_t i = 0; i < sges; i++)
		list[i] = (struct ibv_sge){(uintptr_t)memory[1] + i * 1000, 1000, mrs[1]->lkey};
	struct ibv_recv_wr *bad_receive, receive = {.sg_list = list, .num_sge = (int)sges};
	MUST(ibv_post_recv(b, &receive, &bad_receive));
	for (uint32_t i = 0; i < sges; i++)
		list[i] = (struct ibv_sge){(uintptr_t)memory[0] + i * 1000, 1000, mrs[0]->lkey};
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = (int)sges;
	MUST(ibv_post_send(a, &wr, &bad));
	MUST_COMPLETE(cq, &wc);
	MUST_COMPLETE(cq, &wc);
	check(memory[1], (size_t)sges * 1000, 1, "the message of most elements");
	wr.num_sge = (int)sges + 1;
	if (ibv_post_send(a, &wr, &bad) != EINVAL || bad != &wr)
		fail("one element too many was taken");

	/* READs, all at once. */
	memset(memory[0], 0, PIECE);
	fill(memory[1], PIECE, 2);
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_READ;
	for (uint32_t i = 0; i < 2u * path.rd_atomic && i < 256; i++) {
		list[0] = (struct ibv_sge){(uintptr_t)memory[0] + i * 5000, 5000, mrs[0]->lkey};
		wr.wr.rdma.remote_addr = (uintptr_t)memory[1] + i * 5000;
		wr.wr_id = i;
		MUST(ibv_post_send(a, &wr, &bad));
	}
	for (uint32_t i = 0; i < 2u * path.rd_atomic && i < 256; i++) {
		MUST_COMPLETE(cq, &wc);
		if (wc.wr_id != i)
			fail("READ %llu before READ %u", (unsigned long long)wc.wr_id, i);
	}
	check(memory[0], 2 * (size_t)path.rd_atomic * 5000, 2, "what was read");

	/* One byte too long. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.num_sge = 2;
	list[0] = (struct ibv_sge){(uintptr_t)memory[0], length, mrs[0]->lkey};
	list[1] = (struct ibv_sge){(uintptr_t)memory[0], 1, mrs[0]->lkey};
	int refused = ibv_post_send(a, &wr, &bad);
	if (refused != EINVAL && (refused || !wait_wc(cq, &wc, 10000) || wc.status != IBV_WC_LOC_LEN_ERR))
		fail("a message of %u + 1 bytes: returned %d", length, refused);
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	for (int i = 0; i < 2; i++) {
		MUST(ibv_dereg_mr(mrs[i]));
		munmap(memory[i], (size_t)pieces * PIECE);
		close(fds[i]);
	}
	MUST(ibv_destroy_cq(cq));
}

static void too_many_reads_at_once(void)
{
	struct ibv_cq *cq = make_cq(&device, 1, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 1);
	struct path path = default_path(&device);
	struct address remote = {.qpn = qp->qp_num, .gid = device.gid};

	MUST(to_init(qp, ALL_ACCESS));
	path.rd_atomic = (uint8_t)(device.attr.max_qp_rd_atom + 1);
	if (to_rtr(qp, &device, &path, &remote) != EINVAL)
		fail("max_dest_rd_atomic %u was taken", path.rd_atomic);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	bool all = argc < 2;

	/* There is much to make and to send, which takes a while on a busy machine. */
	alarm(3 * ALARM_SECONDS);
	device = open_device(1);
	at_least("max_qp", (uint64_t)device.attr.max_qp, 65536);
	at_least("max_qp_wr", (uint64_t)device.attr.max_qp_wr, 32768);
	at_least("max_sge", (uint64_t)device.attr.max_sge, 32);
	at_least("max_cqe", (uint64_t)device.attr.max_cqe, 4 << 20);
	at_least("max_mr", (uint64_t)device.attr.max_mr, 1 << 20);
	at_least("max_qp_rd_atom", (uint64_t)device.attr.max_qp_rd_atom, 16);
	at_least("max_qp_init_rd_atom", (uint64_t)device.attr.max_qp_init_rd_atom, 16);
	at_least("max_msg_sz", device.port.max_msg_sz, 1u << 30);
	if (device.attr.vendor_id == 0 || device.attr.vendor_id == 0xffffff)
		fail("vendor_id %x is that of a software device of the kernel", device.attr.vendor_id);
	sizes_of_queues();
	long_messages();
	too_many_reads_at_once();
	if (all) {
		domains();
		regions();
		queue_pairs();
	} else if (strcmp(argv[1], "messages")) {
		fail("usage: limits [messages]");
	}
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	return 0;
}
