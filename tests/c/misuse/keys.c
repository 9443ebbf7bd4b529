/* Keys, rights and ranges that are wrong. */
#include "misuse.h"
#include <endian.h>

static void with_unknown_key(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 64), offer->address,
	     wrong ? offer->rkey + 0x500000 : offer->rkey);
}

static void offer_deregistered(struct side *side, struct offer *offer, bool wrong)
{
	if (wrong) {
		MUST(ibv_dereg_mr(side->mr));
		side->mr = NULL;
	}
	(void)offer;
}

static void offer_of_other_domain(struct side *side, struct offer *offer, bool wrong)
{
	struct ibv_pd *pd = wrong ? MAKE(ibv_alloc_pd(side->device->context)) : side->device->pd;

	offer->rkey = MAKE(ibv_reg_mr(pd, side->mr->addr, BYTES, ALL_ACCESS))->rkey;
}

static void offer_without_right(struct side *side, struct offer *offer, bool wrong)
{
	int access = wrong ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ : ALL_ACCESS;

	offer->rkey = MAKE(ibv_reg_mr(side->device->pd, side->mr->addr, BYTES, access))->rkey;
}

static void offer_unbound_window(struct side *side, struct offer *offer, bool wrong)
{
	if (wrong)
		offer->rkey = MAKE(ibv_alloc_mw(side->device->pd, IBV_MW_TYPE_2))->rkey;
}

static void offer_unmapped(struct side *side, struct offer *offer, bool wrong)
{
	char *memory = map_apart(BYTES);

	offer->address = (uintptr_t)memory;
	offer->rkey = MAKE(ibv_reg_mr(side->device->pd, memory, BYTES, ALL_ACCESS))->rkey;
	if (wrong)
		MUST(munmap(memory, BYTES));
}

static void beyond_the_end(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 64), offer->address + (wrong ? BYTES - 8 : 0), offer->rkey);
}

static void to_swapped_address(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 64), wrong ? htobe64(offer->address) : offer->address,
	     offer->rkey);
}

static void permit_nothing(struct config *config, bool wrong)
{
	if (wrong)
		config->responder_access = IBV_ACCESS_LOCAL_WRITE;
}

static void post_receive(struct side *side, struct offer *offer, bool wrong)
{
	(void)wrong, (void)offer;
	MUST(post_recv(side->qp, side->mr, 0, 64, 7));
}

static void invalidate_a_region(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, wrong ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND, element(side->mr, 64), offer->address, offer->rkey);
}

static void from_unknown_lkey(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_sge sge = element(side->mr, 64);

	sge.lkey += wrong ? 0x500000 : 0;
	post(side->qp, IBV_WR_RDMA_WRITE, sge, offer->address, offer->rkey);
}

static void from_beyond_the_end(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_sge sge = element(side->mr, 64);

	sge.addr += wrong ? BYTES - 8 : 0;
	post(side->qp, IBV_WR_RDMA_WRITE, sge, offer->address, offer->rkey);
}

static void into_memory_without_local_write(struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_mr *mr = MAKE(ibv_reg_mr(side->device->pd, side->mr->addr, BYTES,
					    wrong ? 0 : IBV_ACCESS_LOCAL_WRITE));

	post(side->qp, IBV_WR_RDMA_READ, element(mr, 64), offer->address, offer->rkey);
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		MISUSE(unknown_rkey, IBV_WC_REM_ACCESS_ERR, .request = with_unknown_key),
		MISUSE(deregistered, IBV_WC_REM_ACCESS_ERR, .prepare = offer_deregistered, .request = request_write),
		MISUSE(other_domain, IBV_WC_REM_ACCESS_ERR, .prepare = offer_of_other_domain, .request = request_write),
		MISUSE(region_without_right, IBV_WC_REM_ACCESS_ERR, .prepare = offer_without_right, .request = request_write),
		MISUSE(unbound_window, IBV_WC_REM_ACCESS_ERR, .prepare = offer_unbound_window, .request = request_write),
		MISUSE(unmapped, IBV_WC_REM_OP_ERR, .prepare = offer_unmapped, .request = request_write),
		MISUSE(outside, IBV_WC_REM_ACCESS_ERR, .request = beyond_the_end),
		MISUSE(swapped_address, IBV_WC_REM_ACCESS_ERR, .request = to_swapped_address),
		MISUSE(queue_pair_without_right, IBV_WC_REM_INV_REQ_ERR, .configure = permit_nothing, .request = request_write),
		MISUSE(invalidation, IBV_WC_REM_ACCESS_ERR, .prepare = post_receive, .request = invalidate_a_region),
		MISUSE(unknown_lkey, IBV_WC_LOC_PROT_ERR, .request = from_unknown_lkey),
		MISUSE(local_range, IBV_WC_LOC_PROT_ERR, .request = from_beyond_the_end),
		MISUSE(no_local_write, IBV_WC_LOC_PROT_ERR, .request = into_memory_without_local_write),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
