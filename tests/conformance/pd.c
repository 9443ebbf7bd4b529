/* Protection domains: ibv_alloc_pd, ibv_dealloc_pd. */
#include "conform.h"

int main(int argc, char **argv)
{
	struct ibv_pd *own, *other;

	begin(argc, argv);
	own = ibv_alloc_pd(ctx);
	check(own != NULL, "ibv_alloc_pd(3): a pointer to the PD");
	check(own->context == ctx, "ibv_alloc_pd(3): the PD is of its context");
	other = MAKE(ibv_alloc_pd(ctx));
	check(own != other && own->handle != other->handle, "ibv_alloc_pd(3): each PD is one of its own");
	is(ibv_dealloc_pd(other), 0, "ibv_dealloc_pd(3): 0 on success");

	struct ibv_pd *all = pd;

	pd = own;
	struct buffer buffer = make_buffer(4096, 0);

	is(ibv_dealloc_pd(own), EBUSY, "ibv_dealloc_pd(3): a PD with an MR isn't freed: EBUSY");
	free_buffer(&buffer);

	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(own, &srq_attr));

	is(ibv_dealloc_pd(own), EBUSY, "ibv_dealloc_pd(3): a PD with an SRQ isn't freed: EBUSY");
	MUST(ibv_destroy_srq(srq));

	struct ibv_cq *cq = make_cq(4);
	struct ibv_qp *qp = make_qp(IBV_QPT_RC, cq);

	is(ibv_dealloc_pd(own), EBUSY, "ibv_dealloc_pd(3): a PD with a QP isn't freed: EBUSY");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));

	struct ibv_ah_attr attr = ah_attr();
	struct ibv_ah *ah = MAKE(ibv_create_ah(own, &attr));

	is(ibv_dealloc_pd(own), EBUSY, "ibv_dealloc_pd(3): a PD with an AH isn't freed: EBUSY");
	MUST(ibv_destroy_ah(ah));

	struct ibv_mw *mw = ibv_alloc_mw(own, IBV_MW_TYPE_1);

	if (mw) {
		is(ibv_dealloc_pd(own), EBUSY, "ibv_dealloc_pd(3): a PD with an MW isn't freed: EBUSY");
		MUST(ibv_dealloc_mw(mw));
	} else {
		skip("no memory windows", "ibv_dealloc_pd(3): a PD with an MW isn't freed: EBUSY");
	}
	is(ibv_dealloc_pd(own), 0, "ibv_dealloc_pd(3): the PD is freed when all that was in it has gone");
	pd = all;
	return end();
}
