/* What the calls that make objects refuse, with which errno. */
#include "conform.h"
#include <sys/mman.h>

static struct ibv_cq *cq;

static void address_handles(void)
{
	struct ibv_ah_attr attr = ah_attr();
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH, .src_qp = 1};
	struct ibv_grh grh = {.sgid = gid, .dgid = gid, .version_tclass_flow = htonl(6u << 28)};

	attr.is_global = 0;
	is_null(ibv_create_ah(pd, &attr), EINVAL, "ibv_create_ah(3): without a GRH on a port that requires one: EINVAL");
	attr = ah_attr();
	attr.port_num = 0;
	is_null(ibv_create_ah(pd, &attr), EINVAL, "ibv_create_ah(3): port 0: EINVAL");
	attr = ah_attr();
	attr.grh.sgid_index = 255;
	check(ibv_create_ah(pd, &attr) == NULL, "ibv_create_ah(3): a GID index beyond the table fails");
	is(ibv_init_ah_from_wc(ctx, (uint8_t)(caps.phys_port_cnt + 1), &wc, &grh, &attr), -1,
	   "ibv_init_ah_from_wc(3): -1 for a port beyond the last");
	memset(&grh.dgid, 0x5a, sizeof grh.dgid);
	is(ibv_init_ah_from_wc(ctx, PORT_NUM, &wc, &grh, &attr), -1, "ibv_init_ah_from_wc(3): -1 for a GID that isn't the port's");
	check(ibv_create_ah_from_wc(pd, &wc, &grh, PORT_NUM) == NULL, "ibv_create_ah_from_wc(3): a GID that isn't the port's: NULL");
	grh.dgid = gid;
	errno = 0;
	check(ibv_create_ah_from_wc(pd, &wc, &grh, (uint8_t)(caps.phys_port_cnt + 1)) == NULL && errno,
	      "ibv_create_ah_from_wc(3): a port beyond the last: NULL, and errno");
	wc.wc_flags = 0;
	check(ibv_create_ah_from_wc(pd, &wc, &grh, PORT_NUM) == NULL,
	      "ibv_create_ah_from_wc(3): a completion without a GRH, on a port that requires one: NULL");
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr init = qp_attr(IBV_QPT_UC, cq);
	struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = caps.max_srq ? MAKE(ibv_create_srq(pd, &srq_attr)) : NULL;
	struct ibv_qp *qp;

	if (srq) {
		init.srq = srq;
		qp = is_null(ibv_create_qp(pd, &init), EINVAL, "ibv_create_qp(3): a UC QP with an SRQ: EINVAL");
		if (qp)
			MUST(ibv_destroy_qp(qp));
		MUST(ibv_destroy_srq(srq));
	}
	init = qp_attr(IBV_QPT_DRIVER, cq);
	is_null(ibv_create_qp(pd, &init), EOPNOTSUPP, "ibv_create_qp(3): DRIVER where the driver has no QPs of its own: EOPNOTSUPP");
	init = qp_attr(IBV_QPT_RC, cq);
	init.cap = (struct ibv_qp_cap){.max_send_wr = UINT32_MAX, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
	is_null(ibv_create_qp(pd, &init), EINVAL, "ibv_create_qp(3): UINT32_MAX WRs: EINVAL");
	init.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = UINT32_MAX, .max_recv_sge = 1};
	is_null(ibv_create_qp(pd, &init), EINVAL, "ibv_create_qp(3): UINT32_MAX s/g elements: EINVAL");
	init.cap = (struct ibv_qp_cap){0};
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp(3): capabilities of 0 are taken");
	if (qp)
		MUST(ibv_destroy_qp(qp));
}

static void extended_queue_pairs(void)
{
	static const struct {
		uint32_t flag;
		const char *name;
	} flags[] = {{IBV_QP_CREATE_SCATTER_FCS, "SCATTER_FCS"},
		     {IBV_QP_CREATE_CVLAN_STRIPPING, "CVLAN_STRIPPING"},
		     {IBV_QP_CREATE_SOURCE_QPN, "SOURCE_QPN"},
		     {IBV_QP_CREATE_PCI_WRITE_END_PADDING, "PCI_WRITE_END_PADDING"}};
	struct ibv_qp_init_attr plain = qp_attr(IBV_QPT_RC, cq);
	struct ibv_qp_init_attr_ex init = {.send_cq = cq,
					   .recv_cq = cq,
					   .cap = plain.cap,
					   .qp_type = IBV_QPT_RC,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
					   .pd = pd};
	struct ibv_device_attr_ex ex;

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		struct ibv_qp *qp;

		init.create_flags = flags[i].flag;
		init.source_qpn = 0x123;
		errno = 0;
		qp = ibv_create_qp_ex(ctx, &init);
		if (flags[i].flag == IBV_QP_CREATE_PCI_WRITE_END_PADDING && ex.device_cap_flags_ex & IBV_DEVICE_PCI_WRITE_END_PADDING)
			check(qp != NULL, "ibv_create_qp_ex(3): PCI_WRITE_END_PADDING, which the device reports");
		else
			check(qp == NULL && (errno == EINVAL || errno == EOPNOTSUPP),
			      "ibv_create_qp_ex(3): an RC QP has no %s: EINVAL or EOPNOTSUPP", flags[i].name);
		if (qp)
			MUST(ibv_destroy_qp(qp));
	}
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = UINT32_MAX, .max_sge = 1}};
	struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 4, .max_sge = 1},
					  .comp_mask = IBV_SRQ_INIT_ATTR_PD | 1u << 20,
					  .pd = pd};

	is_null(ibv_create_srq(pd, &init), EINVAL, "ibv_create_srq(3): UINT32_MAX WRs: EINVAL");
	check(ibv_create_srq_ex(ctx, &ex) == NULL, "ibv_create_srq_ex(3): an unknown comp_mask fails");
	ex.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	ex.srq_type = IBV_SRQT_XRC;
	check(ibv_create_srq_ex(ctx, &ex) == NULL, "ibv_create_srq_ex(3): an XRC SRQ without a domain and a CQ fails");
}

static void reregistering(struct ibv_mr *mr, struct ibv_pd *other, unsigned char *page)
{
	int result = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE);

	if (result == IBV_REREG_MR_ERR_CMD && errno == EOPNOTSUPP) {
		skip("not supported by the device", "ibv_rereg_mr(3): REMOTE_WRITE without LOCAL_WRITE: ERR_CMD");
		MUST(ibv_dereg_mr(mr));
		MUST(ibv_dealloc_pd(other));
		return;
	}
	is(result, IBV_REREG_MR_ERR_CMD, "ibv_rereg_mr(3): REMOTE_WRITE without LOCAL_WRITE: ERR_CMD");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, ALL), IBV_REREG_MR_ERR_INPUT,
	   "ibv_rereg_mr(3): access flags without CHANGE_ACCESS: ERR_INPUT");
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page + (1ul << 46), 4096, 0) != 0, "ibv_rereg_mr(3): a new place that isn't mapped fails");
	is(ibv_dereg_mr(mr), 0, "ibv_rereg_mr(3): after a failure the MR is still deregistered by the caller");
	is(ibv_dealloc_pd(other), 0, "ibv_rereg_mr(3): a failure leaves nothing in the new PD");
}

static void regions(void)
{
	unsigned char *page = MAKE(aligned_alloc(4096, 4096));
	struct ibv_device_attr_ex ex;
	struct ibv_mr *mr;
	struct ibv_pd *other = MAKE(ibv_alloc_pd(ctx));

	MUST(ibv_query_device_ex(ctx, NULL, &ex));
	is_null(ibv_reg_mr(pd, page, 0, ALL), EINVAL, "ibv_reg_mr(3): no bytes: EINVAL");
	is_null(ibv_reg_mr(pd, (void *)(UINTPTR_MAX - 10), 100, ALL), EINVAL, "ibv_reg_mr(3): a range that wraps: EINVAL");
	is_null(ibv_reg_mr_iova(pd, page, 4096, 0x1000, IBV_ACCESS_REMOTE_ATOMIC), EINVAL, "ibv_reg_mr_iova(3): REMOTE_ATOMIC without LOCAL_WRITE: EINVAL");
	mr = MAKE(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE));
	reregistering(mr, other, page);
	if (ex.odp_caps.general_caps & IBV_ODP_SUPPORT) {
		mr = ibv_reg_mr(pd, page, 4096, ALL | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB);
		if (mr)
			MUST(ibv_dereg_mr(mr));
		is_null(ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB), EINVAL,
			"ibv_reg_mr(3): HUGETLB in implicit mode: EINVAL");
	}
	is_null(ibv_reg_mr(pd, NULL, SIZE_MAX, ALL), EINVAL, "ibv_reg_mr(3): address 0 and SIZE_MAX without ON_DEMAND: EINVAL");
	free(page);
}

static void windows(void)
{
	struct buffer region = make_buffer(4096, ALL | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct pair pair = make_pair(IBV_QPT_RC);
	struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .bind_info = {region.mr, (uintptr_t)region.mem, 64, IBV_ACCESS_REMOTE_READ}};

	if (!mw) {
		skip("the device has no windows", "ibv_bind_mw(3): flags other than FENCE and SIGNALED fail");
		goto over;
	}
	errno = 0;
	check(ibv_alloc_mw(pd, 77) == NULL && errno == EINVAL, "ibv_alloc_mw(3): a type that doesn't exist: EINVAL");

	struct pair odd = make_pair(IBV_QPT_RC);
	struct ibv_mw *another = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));

	bind.bind_info.mw_access_flags = 1u << 12;
	is(ibv_bind_mw(odd.a, another, &bind), EINVAL, "ibv_bind_mw(3): an access flag that doesn't exist: EINVAL");
	free_pair(&odd);
	MUST(ibv_dealloc_mw(another));
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
	bind.bind_info.mr = NULL;
	is(ibv_bind_mw(pair.a, mw, &bind), EINVAL, "ibv_bind_mw(3): no MR: EINVAL");
	bind.bind_info.mr = region.mr;
	bind.send_flags = 0;
	is(ibv_bind_mw(pair.a, mw, &bind), 0, "ibv_bind_mw(3): without SIGNALED: 0");
	check(silent(pair.cq_a), "ibv_bind_mw(3): without SIGNALED there is no completion");
	bind.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	is(ibv_bind_mw(pair.a, mw, &bind), 0, "ibv_bind_mw(3): FENCE is taken");
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_bind_mw(3): a fenced bind completes");
	MUST(ibv_dealloc_mw(mw));

	struct buffer constant = make_buffer(4096, IBV_ACCESS_MW_BIND);

	mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	bind.send_flags = IBV_SEND_SIGNALED;
	bind.bind_info = (struct ibv_mw_bind_info){constant.mr, (uintptr_t)constant.mem, 64, IBV_ACCESS_REMOTE_ATOMIC};
	check(ibv_bind_mw(pair.a, mw, &bind) || next(pair.cq_a) > IBV_WC_SUCCESS, "ibv_bind_mw(3): REMOTE_ATOMIC to an MR without LOCAL_WRITE fails");
	bind.bind_info = (struct ibv_mw_bind_info){region.mr, (uintptr_t)region.mem, 64, IBV_ACCESS_REMOTE_READ};
	MUST(ibv_dealloc_mw(mw));
	free_buffer(&constant);
	free_pair(&pair);
	pair = make_pair(IBV_QPT_RC);

	struct pair uc = make_pair(IBV_QPT_UC);

	mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	is(ibv_bind_mw(uc.a, mw, &bind), 0, "ibv_bind_mw(3): a UC QP takes it");
	is_status(next(uc.cq_a), IBV_WC_SUCCESS, "ibv_bind_mw(3): and executes it");
	MUST(ibv_dealloc_mw(mw));
	free_pair(&uc);
	mw = MAKE(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	bind.bind_info.addr += 128;
	if (ibv_bind_mw(pair.a, mw, &bind) == 0 && next(pair.cq_a) == IBV_WC_SUCCESS) {
		struct buffer local = make_buffer(64, ALL);

		fill(region.mem + 128, 64, 4);
		is_status(one_sided(&pair, IBV_WR_RDMA_READ, piece(&local, 0, 64), 0, mw->rkey), IBV_WC_SUCCESS, "ibv_bind_mw(3): ZERO_BASED: addresses are offsets");
		check(filled(local.mem, 64, 4), "ibv_bind_mw(3): ZERO_BASED: from the window's start");
		free_buffer(&local);
	} else {
		skip("the device has no zero-based windows", "ibv_bind_mw(3): ZERO_BASED: addresses are offsets");
	}
	MUST(ibv_dealloc_mw(mw));
over:
	free_pair(&pair);
	free_buffer(&region);
}

static void null_region(void)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_mw *mw = null ? ibv_alloc_mw(pd, IBV_MW_TYPE_1) : NULL;
	struct pair pair = make_pair(IBV_QPT_RC);

	if (mw) {
		struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = {null, 0, 64, IBV_ACCESS_REMOTE_READ}};
		int result = ibv_bind_mw(pair.a, mw, &bind);

		check(result || next(pair.cq_a) > IBV_WC_SUCCESS, "ibv_alloc_null_mr(3): a window can't be bound to it");
		MUST(ibv_dealloc_mw(mw));
	}
	if (null)
		MUST(ibv_dereg_mr(null));
	free_pair(&pair);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	cq = make_cq(64);
	address_handles();
	queue_pairs();
	extended_queue_pairs();
	if (caps.max_srq)
		shared_queues();
	regions();
	windows();
	null_region();
	MUST(ibv_destroy_cq(cq));
	return end();
}
