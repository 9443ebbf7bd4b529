/* One process's objects under a second context: ibv_import_device, ibv_import_pd, ibv_import_mr, ibv_import_dm. */
#include "conform.h"

int main(int argc, char **argv)
{
	struct ibv_context *other;
	struct ibv_pd *domain, *own;
	struct ibv_mr *region;
	struct buffer buffer, local;
	struct pair pair;

	begin(argc, argv);
	other = ibv_import_device(dup(ctx->cmd_fd));
	if (!other) {
		skip("the device can't be imported", "ibv_import_device(3): a pointer to the context");
		return end();
	}
	check(other != ctx, "ibv_import_device(3): a pointer to the context");
	check(!strcmp(ibv_get_device_name(other->device), ibv_get_device_name(ctx->device)), "ibv_import_device(3): of the same device");
	is(ibv_query_port(other, PORT_NUM, &port), 0, "ibv_import_device(3): the context can be used");
	check(ibv_import_device(-1) == NULL, "ibv_import_device(3): a number that isn't a descriptor fails");
	buffer = make_buffer(8192, ALL);
	domain = ibv_import_pd(other, pd->handle);
	if (check(domain != NULL, "ibv_import_pd(3): a pointer to the PD")) {
		check(domain->context == other && domain->handle == pd->handle, "ibv_import_pd(3): of the context, with its handle");
		check(ibv_import_pd(other, pd->handle + 10000) == NULL, "ibv_import_pd(3): a handle of nothing fails");
		region = ibv_import_mr(domain, buffer.mr->handle);
		if (check(region != NULL, "ibv_import_mr(3): a pointer to the MR")) {
			check(region->lkey == buffer.mr->lkey && region->rkey == buffer.mr->rkey, "ibv_import_mr(3): with the MR's keys");
			check(region->addr == NULL, "ibv_import_mr(3): its address isn't applicable: NULL");
			is((long)region->length, 8192, "ibv_import_mr(3): with the MR's length");
			check(ibv_import_mr(domain, buffer.mr->handle + 10000) == NULL, "ibv_import_mr(3): a handle of nothing fails");
			own = pd;
			pd = domain;
			struct ibv_context *mine = ctx;

			ctx = other;
			local = make_buffer(4096, ALL);
			pair = make_pair(IBV_QPT_RC);
			fill(local.mem, 100, 3);
			is_status(one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&local, 0, 100), (uintptr_t)buffer.mem, region->rkey),
				  IBV_WC_SUCCESS, "ibv_import_pd(3): QPs of the imported PD reach the PD's regions");
			check(filled(buffer.mem, 100, 3), "ibv_import_pd(3): and what they write is there");
			free_pair(&pair);
			free_buffer(&local);
			ctx = mine;
			pd = own;
			ibv_unimport_mr(region);
			pair = make_pair(IBV_QPT_RC);
			is_status(one_sided(&pair, IBV_WR_RDMA_READ, piece(&buffer, 4096, 100), (uintptr_t)buffer.mem, buffer.mr->rkey),
				  IBV_WC_SUCCESS, "ibv_unimport_mr(3): the MR itself stays");
			free_pair(&pair);
		}
		ibv_unimport_pd(domain);
	}
	struct buffer again = make_buffer(4096, ALL);

	check(again.mr->pd == pd, "ibv_unimport_pd(3): the PD itself stays");
	free_buffer(&again);

	struct ibv_alloc_dm_attr attr = {.length = 4096};
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr), *same;
	uint64_t word = 0x1122334455667788, back = 0;

	if (dm) {
		MUST(ibv_memcpy_to_dm(dm, 8, &word, sizeof word));
		same = ibv_import_dm(other, dm->handle);
		if (check(same != NULL, "ibv_import_dm(3): a pointer to the device memory")) {
			check(!ibv_memcpy_from_dm(&back, same, 8, sizeof back) && back == word, "ibv_import_dm(3): it is the same memory");
			ibv_unimport_dm(same);
			check(!ibv_memcpy_from_dm(&back, dm, 8, sizeof back), "ibv_unimport_dm(3): the device memory itself stays");
		}
		check(ibv_import_dm(other, dm->handle + 10000) == NULL, "ibv_import_dm(3): a handle of nothing fails");
		MUST(ibv_free_dm(dm));
	} else {
		skip("the device has no memory", "ibv_import_dm(3): a pointer to the device memory");
	}
	is(ibv_close_device(other), 0, "ibv_import_device(3): it is closed with ibv_close_device");
	is(ibv_query_port(ctx, PORT_NUM, &port), 0, "ibv_import_device(3): the context it was imported from stays");
	free_buffer(&buffer);
	return end();
}
