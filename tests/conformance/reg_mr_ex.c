/* Calls of newer headers about regions: ibv_reg_mr_ex, ibv_alloc_dmah, ibv_alloc_buf, ibv_reg_buf_mr, ibv_dm_export_dmabuf_fd,
 * and the refusals of ibv_reg_dmabuf_mr. */
#include "conform.h"
#include "../c/newer.h"
#include <sched.h>

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init *);
static struct ibv_pd *other_pd;
static struct buffer buffer;
static struct pair pair;

static int written(struct ibv_mr *mr, uint64_t address, uint32_t length)
{
	fill(buffer.mem, length, 3);
	return one_sided(&pair, IBV_WR_RDMA_WRITE, piece(&buffer, 0, length), address, mr->rkey);
}

static void addresses(void)
{
	struct mr_init attr = {.length = 4096, .access = ALL, .addr = buffer.mem + 4096, .iova = 0x10000, .comp_mask = MASK_ADDR};
	struct ibv_mr *mr = reg_mr_ex(pd, &attr);

	if (!check(mr != NULL, "ibv_reg_mr_ex(3): with ADDR: a pointer to the MR"))
		return;
	check(mr->addr == attr.addr && mr->length == 4096 && mr->pd == pd, "ibv_reg_mr_ex(3): the MR is what was asked for");
	is_status(written(mr, (uintptr_t)attr.addr, 64), IBV_WC_SUCCESS, "ibv_reg_mr_ex(3): without IOVA it is accessed under its address");
	MUST(ibv_dereg_mr(mr));
	attr.comp_mask |= MASK_IOVA;
	mr = MAKE(reg_mr_ex(pd, &attr));
	is_status(written(mr, 0x10000 + 16, 64), IBV_WC_SUCCESS, "ibv_reg_mr_ex(3): with IOVA it is accessed under that address");
	check(filled(buffer.mem + 4096 + 16, 64, 3), "ibv_reg_mr_ex(3): at the right place");
	MUST(ibv_dereg_mr(mr));
	attr.comp_mask = MASK_IOVA;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): neither ADDR nor FD: EINVAL");
	attr.comp_mask = MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_IOVA;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): both ADDR and FD: EINVAL");
	attr.comp_mask = MASK_FD | MASK_IOVA;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): FD without FD_OFFSET: EINVAL");
	attr.comp_mask = MASK_ADDR | MASK_FD_OFFSET;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): FD_OFFSET without FD: EINVAL");
	attr.comp_mask = MASK_FD | MASK_FD_OFFSET;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): FD without IOVA: EINVAL");
	attr.comp_mask = MASK_ADDR | 1 << 20;
	is_null(reg_mr_ex(pd, &attr), EOPNOTSUPP, "ibv_reg_mr_ex(3): an unknown comp_mask: EOPNOTSUPP");
	attr.comp_mask = MASK_ADDR;
	attr.access = IBV_ACCESS_REMOTE_WRITE;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): REMOTE_WRITE without LOCAL_WRITE: EINVAL");
}

static void handles(void)
{
	void *(*alloc)(struct ibv_context *, struct dmah_attr *) = newer("ibv_alloc_dmah");
	int (*dealloc)(void *) = newer("ibv_dealloc_dmah");
	struct dmah_attr attr = {.comp_mask = DMAH_CPU_ID | DMAH_PH | DMAH_MEM_TYPE, .cpu_id = (uint32_t)sched_getcpu(), .ph = 3};
	struct mr_init region = {.length = 4096, .access = ALL, .comp_mask = MASK_ADDR | MASK_DMAH, .addr = buffer.mem};
	struct ibv_mr *mr;

	region.dmah = alloc(ctx, &attr);
	if (!region.dmah && errno == EOPNOTSUPP) {
		skip("the device has no DMA handles", "ibv_alloc_dmah(3): a pointer to the handle");
		return;
	}
	check(region.dmah != NULL, "ibv_alloc_dmah(3): a pointer to the handle");
	mr = reg_mr_ex(pd, &region);
	check(mr != NULL, "ibv_reg_mr_ex(3): with DMAH: a pointer to the MR");
	if (mr) {
		is_status(written(mr, (uintptr_t)buffer.mem + 2048, 64), IBV_WC_SUCCESS, "ibv_reg_mr_ex(3): an MR with a DMA handle is accessed as any other");
		is(dealloc(region.dmah), EBUSY, "ibv_dealloc_dmah(3): a handle with an MR isn't deallocated: EBUSY");
		MUST(ibv_dereg_mr(mr));
	}
	region.access |= IBV_ACCESS_ON_DEMAND;
	is_null(reg_mr_ex(pd, &region), EINVAL, "ibv_reg_mr_ex(3): a DMA handle with ON_DEMAND: EINVAL");
	is(dealloc(region.dmah), 0, "ibv_dealloc_dmah(3): 0 on success");
	attr.comp_mask = DMAH_PH;
	region.dmah = alloc(ctx, &attr);
	check(region.dmah != NULL, "ibv_alloc_dmah(3): fields that comp_mask doesn't name aren't needed");
	if (region.dmah)
		MUST(dealloc(region.dmah));
	attr.comp_mask = 1u << 20 | DMAH_PH;
	is_null(alloc(ctx, &attr), EOPNOTSUPP, "ibv_alloc_dmah(3): an unknown comp_mask: EOPNOTSUPP");
	attr.comp_mask = DMAH_PH;
	attr.ph = 4;
	is_null(alloc(ctx, &attr), EINVAL, "ibv_alloc_dmah(3): a processing hint of more than two bits: EINVAL");
	attr = (struct dmah_attr){.comp_mask = DMAH_CPU_ID | DMAH_PH | DMAH_MEM_TYPE, .cpu_id = (uint32_t)sched_getcpu(), .tph_mem_type = 2};
	is_null(alloc(ctx, &attr), EINVAL, "ibv_alloc_dmah(3): a type of memory that doesn't exist: EINVAL");
	attr.tph_mem_type = 1;
	attr.cpu_id = 0xffff;
	is_null(alloc(ctx, &attr), EINVAL, "ibv_alloc_dmah(3): a CPU that doesn't exist: EINVAL");
}

static void buffers(void)
{
	void *(*alloc)(struct ibv_pd *, size_t, void **) = newer("ibv_alloc_buf");
	void (*release)(void *) = newer("ibv_free_buf");
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) = newer("ibv_reg_buf_mr");
	int (*export)(void *) = newer("ibv_export_buf_dmabuf_fd");
	void *buf = NULL;
	unsigned char *memory = alloc(pd, 8192, &buf);

	if (!check(memory && buf, "ibv_alloc_buf(3): the buffer's address, and its handle"))
		return;
	memset(memory, 1, 8192);

	struct mr_init attr = {.length = 4096, .access = ALL, .addr = memory + 4096, .buf = buf, .comp_mask = MASK_ADDR | MASK_BUF};
	struct ibv_mr *mr = reg(pd, buf, memory, 4096, ALL), *second = reg_mr_ex(pd, &attr);

	check(mr && mr->pd == pd && mr->length == 4096, "ibv_reg_buf_mr(3): a pointer to the MR");
	check(second && second->addr == memory + 4096, "ibv_reg_mr_ex(3): with BUF and ADDR: a range of the buffer");
	if (mr && second) {
		is_status(written(mr, (uintptr_t)memory, 64), IBV_WC_SUCCESS, "ibv_reg_buf_mr(3): it is accessed as any other");
		check(filled(memory, 64, 3), "ibv_reg_buf_mr(3): and is the buffer's memory");
		is_status(written(second, (uintptr_t)memory + 4096, 64), IBV_WC_SUCCESS, "ibv_reg_mr_ex(3): a range of a buffer is accessed");
		MUST(ibv_dereg_mr(mr));
		MUST(ibv_dereg_mr(second));
	}
	is_null(reg(other_pd, buf, memory, 4096, ALL), EINVAL, "ibv_reg_buf_mr(3): a PD other than the buffer's: EINVAL");
	is_null(reg_mr_ex(other_pd, &attr), EINVAL, "ibv_reg_mr_ex(3): a PD other than the buffer's: EINVAL");
	is_null(reg(pd, buf, memory, 8193, ALL), EINVAL, "ibv_reg_buf_mr(3): beyond the buffer: EINVAL");
	is_null(reg(pd, buf, memory - 1, 16, ALL), EINVAL, "ibv_reg_buf_mr(3): before the buffer: EINVAL");
	is_null(reg(pd, buf, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL, "ibv_reg_buf_mr(3): REMOTE_WRITE without LOCAL_WRITE: EINVAL");
	attr.length = 4097;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): beyond the buffer: EINVAL");
	attr.length = 4096;
	attr.comp_mask = MASK_BUF;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): BUF without ADDR: EINVAL");
	attr.comp_mask = MASK_BUF | MASK_FD | MASK_FD_OFFSET | MASK_IOVA;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): BUF with FD: EINVAL");
	attr.comp_mask = MASK_BUF | MASK_ADDR | MASK_FD_OFFSET;
	is_null(reg_mr_ex(pd, &attr), EINVAL, "ibv_reg_mr_ex(3): BUF with FD_OFFSET: EINVAL");
	errno = 0;

	int fd = export(buf);

	if (fd >= 0) {
		check(close(fd) == 0, "ibv_export_buf_dmabuf_fd(3): a descriptor of the caller's");
	} else {
		is(fd, -1, "ibv_export_buf_dmabuf_fd(3): -1 when it fails");
		is(errno, ENODATA, "ibv_export_buf_dmabuf_fd(3): a buffer without a dma-buf: ENODATA");
	}
	release(buf);

	int pages[2];

	/* The kernel refuses to read memory that isn't there. */
	MUST(pipe(pages));
	check(write(pages[1], memory, 1) < 0 && errno == EFAULT, "ibv_free_buf(3): the memory is gone");
	close(pages[0]);
	close(pages[1]);
	is_null(alloc(pd, 0, &buf), EINVAL, "ibv_alloc_buf(3): a buffer of no bytes: EINVAL");
	is_null(alloc(pd, SIZE_MAX / 2, &buf), ENOMEM, "ibv_alloc_buf(3): more memory than there is: ENOMEM");
	memory = MAKE(alloc(other_pd, 4096, &buf));
	is(ibv_dealloc_pd(other_pd), EBUSY, "ibv_alloc_buf(3): its PD can't be deallocated before: EBUSY");
	release(buf);
}

static void device_memory(void)
{
	int (*export)(struct ibv_dm *) = newer("ibv_dm_export_dmabuf_fd");
	struct ibv_alloc_dm_attr attr = {.length = 16384};
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);
	int fd = dm ? export(dm) : -1, null = open("/dev/null", O_RDWR), closed = dup(null);
	struct mr_init init = {.length = 4096, .access = ALL, .comp_mask = MASK_FD | MASK_FD_OFFSET | MASK_IOVA, .fd = fd};
	struct ibv_mr *mr;

	close(closed);
	is_null(ibv_reg_dmabuf_mr(pd, 0, 64, 0, null, ALL), EINVAL, "ibv_reg_dmabuf_mr(3): a descriptor of no dma-buf: EINVAL");
	is_null(ibv_reg_dmabuf_mr(pd, 0, 64, 0, closed, ALL), EBADF, "ibv_reg_dmabuf_mr(3): a closed descriptor: EBADF");
	if (fd < 0) {
		skip("the device exports no memory", "ibv_dm_export_dmabuf_fd(3): a descriptor");
		goto over;
	}
	check(fd >= 0, "ibv_dm_export_dmabuf_fd(3): a descriptor");
	mr = ibv_reg_dmabuf_mr(pd, 4096 + 100, 8192, 0x20000 + 100, fd, ALL);
	check(mr != NULL, "ibv_reg_dmabuf_mr(3): a pointer to the MR of exported device memory");
	if (mr) {
		unsigned char bytes[64];

		is_status(written(mr, 0x20000 + 100, 64), IBV_WC_SUCCESS, "ibv_reg_dmabuf_mr(3): it is accessed under its iova");
		MUST(ibv_memcpy_from_dm(bytes, dm, 4096 + 100, 64));
		check(filled(bytes, 64, 3), "ibv_reg_dmabuf_mr(3): it starts at the offset of the dma-buf");
		is_status(written(mr, 0x20000 + 100 + 8192, 1), IBV_WC_REM_ACCESS_ERR, "ibv_reg_dmabuf_mr(3): beyond the MR: REM_ACCESS_ERR");
		MUST(ibv_dereg_mr(mr));
	}
	is_null(ibv_reg_dmabuf_mr(pd, 0, 16385, 0, fd, ALL), EINVAL, "ibv_reg_dmabuf_mr(3): beyond the dma-buf: EINVAL");
	is_null(ibv_reg_dmabuf_mr(pd, 100, 64, 0x1000, fd, ALL), EINVAL, "ibv_reg_dmabuf_mr(3): an iova with another page offset: EINVAL");
	is_null(ibv_reg_dmabuf_mr(pd, 0, 64, 0, fd, ALL | IBV_ACCESS_MW_BIND), EINVAL, "ibv_reg_dmabuf_mr(3): MW_BIND isn't supported: EINVAL");
	is_null(ibv_reg_dmabuf_mr(pd, 0, 64, 0, fd, ALL | IBV_ACCESS_ON_DEMAND), EINVAL, "ibv_reg_dmabuf_mr(3): ON_DEMAND isn't supported: EINVAL");
	is_null(ibv_reg_dmabuf_mr(pd, 0, 64, 0, fd, REMOTE), EINVAL, "ibv_reg_dmabuf_mr(3): REMOTE_WRITE without LOCAL_WRITE: EINVAL");
	mr = ibv_reg_dmabuf_mr(pd, 0, 64, 0, fd, ALL | IBV_ACCESS_RELAXED_ORDERING);
	check(mr != NULL, "ibv_reg_dmabuf_mr(3): RELAXED_ORDERING is supported");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	if (reg_mr_ex) {
		mr = reg_mr_ex(pd, &init);
		check(mr != NULL, "ibv_reg_mr_ex(3): with FD, FD_OFFSET and IOVA: a pointer to the MR");
		if (mr)
			MUST(ibv_dereg_mr(mr));
		init.fd = closed;
		is_null(reg_mr_ex(pd, &init), EBADF, "ibv_reg_mr_ex(3): a closed descriptor: EBADF");
	}
	is(close(fd), 0, "ibv_dm_export_dmabuf_fd(3): the descriptor is closed by the caller");
over:
	if (dm)
		MUST(ibv_free_dm(dm));
	close(null);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	buffer = make_buffer(3 * 4096, ALL);
	pair = make_pair(IBV_QPT_RC);
	other_pd = MAKE(ibv_alloc_pd(ctx));
	reg_mr_ex = newer("ibv_reg_mr_ex");
	if (reg_mr_ex) {
		addresses();
		handles();
	} else {
		skip("the library has no such call", "ibv_reg_mr_ex(3): with ADDR: a pointer to the MR");
	}
	if (newer("ibv_alloc_buf"))
		buffers();
	if (newer("ibv_dm_export_dmabuf_fd"))
		device_memory();
	MUST(ibv_dealloc_pd(other_pd));
	free_pair(&pair);
	free_buffer(&buffer);
	return end();
}
