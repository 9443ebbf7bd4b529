/* ece: what two QPs agree to beyond the specification (man ibv_query_ece, ibv_set_ece), and what follows of it.
 *
 *	ece agreement        how options are set, and refused
 *	ece agreed           moves data both ways between QPs that have agreed to all they have
 *	ece declined         the same, where one has nothing to offer
 */
#include "cases.h"

#define BYTES (512 << 10)
/* Packets with data are ECN-capable. */
#define ECN 1u

static struct ibv_ece ece_of(struct ibv_qp *qp)
{
	struct ibv_ece ece = {.comp_mask = ~0u};

	MUST(ibv_query_ece(qp, &ece));
	EXPECT(ece.comp_mask == 0);
	return ece;
}

static void agreement(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_ece offer = ece_of(f.a), ece = offer;
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp *ud = make_qp(&f.device, IBV_QPT_UD, f.cq_a, NULL, 4);

	EXPECT(offer.vendor_id == f.device.attr.vendor_id && offer.options & ECN);
	/* The answering side clears the options that it doesn't know. */
	ece.options = ~0u;
	MUST(ibv_set_ece(f.b, &ece));
	EXPECT(ece.options == offer.options && ece_of(f.b).options == offer.options);
	ece.options = ~offer.options;
	MUST(ibv_set_ece(f.b, &ece));
	EXPECT(ece.options == 0 && ece_of(f.b).options == 0);

	ece = (struct ibv_ece){.vendor_id = offer.vendor_id ^ 1, .options = ECN};
	EXPECT_ERRNO(EINVAL, ibv_set_ece(f.a, &ece));
	ece = (struct ibv_ece){.vendor_id = offer.vendor_id, .options = ECN, .comp_mask = 1};
	EXPECT_ERRNO(EINVAL, ibv_set_ece(f.a, &ece));
	ece = (struct ibv_ece){.options = ECN};
	EXPECT_ERRNO(EOPNOTSUPP, ibv_set_ece(f.a, &ece));
	EXPECT(ece_of(f.a).options == offer.options);

	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, f.b);
	ece = offer;
	EXPECT_ERRNO(EINVAL, ibv_set_ece(f.b, &ece));
	EXPECT(ece_of(f.b).options == 0);
	MUST(ibv_modify_qp(f.b, &reset, IBV_QP_STATE));
	EXPECT(ece_of(f.b).options == offer.options);

	ece = offer;
	EXPECT(ece_of(ud).vendor_id == offer.vendor_id && ece_of(ud).options == 0);
	MUST(ibv_set_ece(ud, &ece));
	EXPECT(ece.options == 0);
	MUST(ibv_destroy_qp(ud));
}

static void move(struct fixture *f, struct ibv_mr *mr, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + (opcode == IBV_WR_RDMA_READ ? BYTES : 0), BYTES, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	uint64_t start = now_ms();

	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr + (opcode == IBV_WR_RDMA_READ ? 0 : BYTES);
	wr.wr.rdma.rkey = mr->rkey;
	memset((char *)mr->addr + BYTES, 0, BYTES);
	MUST(ibv_post_send(f->a, &wr, &bad));
	EXPECT_STATUS(f->cq_a, 1, IBV_WC_SUCCESS);
	check((char *)mr->addr + BYTES, BYTES, 7, "message");
	printf("%s %llu ms\n", opcode == IBV_WR_RDMA_READ ? "read" : "write", (unsigned long long)(now_ms() - start));
}

/* The handshake of a connection: one side asks, the other answers, and what it answers is in force. */
static void moves(uint32_t offered)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	struct ibv_ece asked = ece_of(f.a), answer = asked;
	struct ibv_mr *mr = MAKE(ibv_reg_mr(f.device.pd, MAKE(malloc(2 * BYTES)), 2 * BYTES, ALL_ACCESS));

	fill(mr->addr, BYTES, 7);
	answer.options &= offered;
	MUST(ibv_set_ece(f.b, &answer));
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	MUST(ibv_set_ece(f.a, &answer));
	EXPECT(ece_of(f.a).options == ece_of(f.b).options);
	connect_qps(&f.device, &f.path, f.a, f.b);
	move(&f, mr, IBV_WR_RDMA_WRITE);
	move(&f, mr, IBV_WR_RDMA_READ);
}

static void agreed(void)
{
	moves(~0u);
}

static void declined(void)
{
	moves(0);
}

static const struct test_case cases[] = {CASE(agreement), CASE(agreed), CASE(declined)};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
