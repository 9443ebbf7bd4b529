/* newer_verbs: calls of rdma-core v65 and what dma-bufs are for. Older headers and libraries lack most of it: the names
 * are looked up when the program runs.
 */
#define _GNU_SOURCE
#include "newer.h"
#include "cases.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

static void *named(const char *name)
{
	return MAKE(newer(name));
}

static struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct mr_init attr)
{
	struct ibv_mr *(*call)(struct ibv_pd *, struct mr_init *) = named("ibv_reg_mr_ex");

	return call(pd, &attr);
}

static struct ibv_dm *alloc_dm(const struct device *device, size_t length)
{
	struct ibv_alloc_dm_attr attr = {.length = length};

	return MAKE(ibv_alloc_dm(device->context, &attr));
}

static void a_region_has_an_address_or_a_descriptor(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	struct mr_init attr = {.length = 4096, .access = ALL_ACCESS, .addr = f.memory + 4096, .iova = 0x10000,
				 .comp_mask = MASK_ADDR};
	struct ibv_mr *mr = MAKE(reg_mr_ex(f.device.pd, attr));

	EXPECT(mr->addr == attr.addr && mr->length == 4096 && mr->pd == f.device.pd);
	MUST(ibv_dereg_mr(mr));
	attr.comp_mask |= MASK_IOVA;
	mr = MAKE(reg_mr_ex(f.device.pd, attr));
	fill(f.memory, 64, 1);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 64, 0x10000 + 16, mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(f.memory + 4096 + 16, 64, 1, "an RDMA WRITE by iova");
	attr.comp_mask = 0;
	EXPECT_NULL(EINVAL, reg_mr_ex(f.device.pd, attr));
	attr.comp_mask = MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_IOVA;
	EXPECT_NULL(EINVAL, reg_mr_ex(f.device.pd, attr));
	attr.comp_mask = MASK_FD | MASK_IOVA;
	EXPECT_NULL(EINVAL, reg_mr_ex(f.device.pd, attr));
	attr.comp_mask = MASK_ADDR | 1 << 20;
	EXPECT_NULL(EOPNOTSUPP, reg_mr_ex(f.device.pd, attr));
	attr.comp_mask = MASK_FD | MASK_FD_OFFSET | MASK_IOVA;
	attr.fd = -1;
	attr.iova = 0;
	EXPECT_NULL(EOPNOTSUPP, reg_mr_ex(f.device.pd, attr));
	attr.fd = STDIN_FILENO;
	EXPECT_NULL(EINVAL, reg_mr_ex(f.device.pd, attr));
}

static void dma_handles_are_checked_and_go_with_regions(void)
{
	struct device device = open_device(1);
	void *(*alloc)(struct ibv_context *, struct dmah_attr *) = named("ibv_alloc_dmah");
	int (*dealloc)(void *) = named("ibv_dealloc_dmah");
	struct dmah_attr attr = {.comp_mask = 7, .cpu_id = (uint32_t)sched_getcpu(), .ph = 3};
	struct mr_init region = {.length = 4096, .access = ALL_ACCESS, .comp_mask = MASK_ADDR | MASK_DMAH};
	static char memory[4096];

	region.dmah = MAKE(alloc(device.context, &attr));
	region.addr = memory;
	MUST(ibv_dereg_mr(MAKE(reg_mr_ex(device.pd, region))));
	region.access |= IBV_ACCESS_ON_DEMAND;
	EXPECT_NULL(EINVAL, reg_mr_ex(device.pd, region));
	MUST(dealloc(region.dmah));
	attr.tph_mem_type = 0xfe;
	EXPECT_NULL(EINVAL, alloc(device.context, &attr));
	attr.tph_mem_type = 0;
	attr.cpu_id = 0xffff;
	EXPECT_NULL(EINVAL, alloc(device.context, &attr));
}

static void buffers_belong_to_their_domain(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	void *(*alloc)(struct ibv_pd *, size_t, void **) = named("ibv_alloc_buf");
	void (*release)(void *) = named("ibv_free_buf");
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) = named("ibv_reg_buf_mr");
	int (*export)(void *) = named("ibv_export_buf_dmabuf_fd");
	struct ibv_pd *other = MAKE(ibv_alloc_pd(f.device.context));
	void *buf;
	char *memory = MAKE(alloc(f.device.pd, 8192, &buf));
	struct mr_init attr = {.length = 4096, .access = ALL_ACCESS, .addr = memory + 4096, .buf = buf,
				 .comp_mask = MASK_ADDR | MASK_BUF};
	struct ibv_mr *first = MAKE(reg(f.device.pd, buf, memory, 4096, ALL_ACCESS));
	struct ibv_mr *second = MAKE(reg_mr_ex(f.device.pd, attr));

	EXPECT(first->lkey != second->lkey && second->addr == memory + 4096);
	fill(memory, 4096, 4);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, first, 4096, (uintptr_t)memory + 4096, second->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(memory + 4096, 4096, 4, "an RDMA WRITE within a buffer");
	EXPECT_NULL(EINVAL, reg(other, buf, memory, 4096, ALL_ACCESS));
	EXPECT_NULL(EINVAL, reg(f.device.pd, buf, memory, 8193, ALL_ACCESS));
	EXPECT_NULL(EINVAL, reg(f.device.pd, buf, memory + 4096, 8192, ALL_ACCESS));
	EXPECT_NULL(EINVAL, reg(f.device.pd, buf, memory - 1, 16, ALL_ACCESS));
	attr.comp_mask = MASK_BUF;
	EXPECT_NULL(EINVAL, reg_mr_ex(f.device.pd, attr));
	EXPECT(export(buf) == -1 && errno == ENODATA);
	MUST(ibv_dereg_mr(first));
	MUST(ibv_dereg_mr(second));
	EXPECT_NULL(EINVAL, alloc(other, 0, &buf));
	memory = MAKE(alloc(other, 4096, &buf));
	EXPECT_ERRNO(EBUSY, ibv_dealloc_pd(other));
	release(buf);
	MUST(ibv_dealloc_pd(other));
}

static void device_memory_is_exported_and_registered_again(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	int (*export)(struct ibv_dm *) = named("ibv_dm_export_dmabuf_fd");
	struct ibv_dm *dm = alloc_dm(&f.device, 16384);
	int fd = export(dm), other = open("/dev/null", O_RDWR);
	struct ibv_mr *mr;

	if (fd < 0)
		fail("ibv_dm_export_dmabuf_fd: %s", strerror(errno));
	EXPECT_NULL(EINVAL, ibv_reg_dmabuf_mr(f.device.pd, 0, 20000, 0, fd, ALL_ACCESS));
	EXPECT_NULL(EINVAL, ibv_reg_dmabuf_mr(f.device.pd, 16384, 1, 0, fd, ALL_ACCESS));
	EXPECT_NULL(EINVAL, ibv_reg_dmabuf_mr(f.device.pd, 100, 64, 0x1000, fd, ALL_ACCESS));
	EXPECT_NULL(EINVAL, ibv_reg_dmabuf_mr(f.device.pd, 0, 64, 0, fd, ALL_ACCESS | IBV_ACCESS_MW_BIND));
	EXPECT_NULL(EINVAL, ibv_reg_dmabuf_mr(f.device.pd, 0, 64, 0, other, ALL_ACCESS));
	EXPECT_NULL(EBADF, ibv_reg_dmabuf_mr(f.device.pd, 0, 64, 0, 12345, ALL_ACCESS));
	/* How NCCL and UCX ask whether the adapter takes the dma-bufs of GPUs. */
	EXPECT_NULL(EOPNOTSUPP, ibv_reg_dmabuf_mr(f.device.pd, 0, 0, 0, -1, 0));
	EXPECT_NULL(EOPNOTSUPP, ibv_reg_dmabuf_mr(f.device.pd, 0, 4096, 0, -1, ALL_ACCESS));
	mr = MAKE(ibv_reg_dmabuf_mr(f.device.pd, 4196, 10000, 0x20000 + 100, fd, ALL_ACCESS));
	close(fd);
	fill(f.memory, 10000, 5);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 10000, 0x20000 + 100, mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	MUST(ibv_memcpy_from_dm(f.memory + 16384, dm, 4196, 10000));
	check(f.memory + 16384, 10000, 5, "device memory, written by way of its dma-buf");
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 10000, 0x20000 + 101, mr->rkey, 2));
	EXPECT_STATUS(f.cq_a, 2, IBV_WC_REM_ACCESS_ERR);
}

/* As in <linux/udmabuf.h> and <drm/drm_mode.h>. */
struct udmabuf {
	uint32_t memfd, flags;
	uint64_t offset, size;
};

struct dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};

struct prime {
	uint32_t handle, flags;
	int32_t fd;
};

#define DMA_BUF_SIZE 65536

/* A dma-buf of a memfd, or of a graphics driver (vgem has no device behind it); -1 where the kernel has neither. */
static int kernel_dma_buf(void)
{
	int device = open("/dev/udmabuf", O_RDWR), memfd = memfd_create("test", MFD_ALLOW_SEALING);
	struct udmabuf create = {.memfd = (uint32_t)memfd, .size = DMA_BUF_SIZE};
	struct dumb dumb = {.height = DMA_BUF_SIZE / 4096, .width = 1024, .bpp = 32};
	struct prime prime = {.flags = O_CLOEXEC | O_RDWR};

	if (device >= 0) {
		if (ftruncate(memfd, DMA_BUF_SIZE) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
			fail("a sealed memfd: %s", strerror(errno));
		prime.fd = ioctl(device, _IOW('u', 0x42, struct udmabuf), &create);
		if (prime.fd < 0)
			fail("UDMABUF_CREATE: %s", strerror(errno));
		return prime.fd;
	}
	device = open("/dev/dri/card0", O_RDWR);
	if (device < 0)
		return -1;
	if (ioctl(device, _IOWR('d', 0xb2, struct dumb), &dumb))
		fail("DRM_IOCTL_MODE_CREATE_DUMB: %s", strerror(errno));
	prime.handle = dumb.handle;
	if (ioctl(device, _IOWR('d', 0x2d, struct prime), &prime))
		fail("DRM_IOCTL_PRIME_HANDLE_TO_FD: %s", strerror(errno));
	return prime.fd;
}

static void dma_bufs_of_the_kernel_are_registered(void)
{
	struct fixture f = connected(IBV_QPT_RC);
	int fd = kernel_dma_buf();
	struct ibv_sge sge = {0x1000, 20000, 0};
	struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_mr *mr;
	char *mapped;

	if (fd < 0) {
		puts("skipped: the kernel has no /dev/udmabuf and no /dev/dri/card0");
		return;
	}
	mapped = mmap(NULL, DMA_BUF_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		fail("mapping a dma-buf: %s", strerror(errno));
	mr = MAKE(ibv_reg_dmabuf_mr(f.device.pd, 8192, 32768, 0x1000, fd, ALL_ACCESS));
	fill(f.memory, 20000, 8);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 20000, 0x1000, mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(mapped + 8192, 20000, 8, "an RDMA WRITE to a dma-buf");
	memset(f.memory, 0, 20000);
	MUST(post_remote(f.a, IBV_WR_RDMA_READ, f.mr, 20000, 0x1000, mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	check(f.memory, 20000, 8, "an RDMA READ of a dma-buf");
	memset(mapped, 0, DMA_BUF_SIZE);
	sge.lkey = mr->lkey;
	MUST(ibv_post_recv(f.b, &recv, &bad));
	MUST(post_send(f.a, f.mr, 0, 20000, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	check(mapped + 8192, 20000, 8, "a message received into a dma-buf");
	MUST(post_remote(f.a, IBV_WR_ATOMIC_FETCH_AND_ADD, f.mr, 8, 0x1000, mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT(mapped[8192] == (char)(pattern(8, 0) + 1));
	MUST(ibv_dereg_mr(mr));
}

static uint64_t value(void *counter, const char *name)
{
	int (*read_value)(void *, uint64_t *) = named(name);
	uint64_t value;

	MUST(read_value(counter, &value));
	return value;
}

#define EXPECT_COUNT(counter, completed, failed)                                       \
	do {                                                                           \
		uint64_t end = now_ms() + 5000;                                        \
		while ((value(counter, "ibv_read_comp_cntr") != (completed) ||         \
			value(counter, "ibv_read_err_comp_cntr") != (failed)) &&       \
		       now_ms() < end)                                                 \
			;                                                              \
		if (value(counter, "ibv_read_comp_cntr") != (completed) ||             \
		    value(counter, "ibv_read_err_comp_cntr") != (failed))              \
			fail("%s:%d: %s is at %llu and %llu, not %llu and %llu",       \
			     __FILE__, __LINE__, #counter,                             \
			     (unsigned long long)value(counter, "ibv_read_comp_cntr"), \
			     (unsigned long long)value(counter, "ibv_read_err_comp_cntr"), \
			     (unsigned long long)(completed), (unsigned long long)(failed)); \
	} while (0)

static void counters_count_what_they_are_attached_to(void)
{
	struct fixture f = unconnected(IBV_QPT_RC);
	int (*query)(struct ibv_context *, struct counter_caps *, size_t) = named("_ibv_query_comp_cntr_caps");
	void *(*create)(struct ibv_context *, struct counter_attr *) = named("ibv_create_comp_cntr");
	int (*destroy)(void *) = named("ibv_destroy_comp_cntr");
	int (*attach)(struct ibv_qp *, void *, struct attach_attr *) = named("ibv_qp_attach_comp_cntr");
	int (*set)(void *, uint64_t) = named("ibv_set_comp_cntr");
	int (*add)(void *, uint64_t) = named("ibv_inc_err_comp_cntr");
	struct counter_caps caps;
	struct counter_attr requests = {0}, bytes = {.type = 1}, wrong = {.type = 2};
	struct attach_attr of_a = {0, OP_SEND | OP_WRITE}, of_b = {0, OP_RECV | OP_REMOTE_WRITE}, unknown = {0, 1 << 9},
			   remote_reads = {0, OP_REMOTE_READ};
	void *sent = MAKE(create(f.device.context, &requests)), *arrived = MAKE(create(f.device.context, &bytes));
	void *was_read = MAKE(create(f.device.context, &requests));
	struct ibv_send_wr wr = {.sg_list = &(struct ibv_sge){(uintptr_t)f.memory, 100, f.mr->lkey}, .num_sge = 1,
				 .opcode = IBV_WR_SEND}, *bad;

	MUST(query(f.device.context, &caps, sizeof caps));
	EXPECT(caps.max_value == UINT64_MAX && caps.max_counters > 0);
	EXPECT((caps.operations & (OP_SEND | OP_RECV | OP_READ | OP_REMOTE_READ | OP_WRITE | OP_REMOTE_WRITE)) == caps.operations);
	EXPECT_NULL(EOPNOTSUPP, create(f.device.context, &wrong));
	EXPECT_ERRNO(EOPNOTSUPP, attach(f.a, sent, &unknown));
	MUST(attach(f.a, sent, &of_a));
	MUST(attach(f.b, arrived, &of_b));
	MUST(attach(f.b, was_read, &remote_reads));
	EXPECT_ERRNO(EBUSY, attach(f.a, arrived, &of_a));
	EXPECT_ERRNO(EBUSY, destroy(sent));
	MUST(to_init(f.a, ALL_ACCESS));
	MUST(to_init(f.b, ALL_ACCESS));
	connect_qps(&f.device, &f.path, f.a, f.b);
	of_a.op_mask = OP_READ;
	EXPECT_ERRNO(EINVAL, attach(f.a, sent, &of_a));
	EXPECT_COUNT(sent, 0, 0);
	/* Unsignaled: there is no completion, but the request completes. */
	for (int i = 0; i < 3; i++) {
		MUST(post_recv(f.b, f.mr, 4096, 100, 2));
		MUST(ibv_post_send(f.a, &wr, &bad));
		EXPECT_STATUS(f.cq_b, 2, IBV_WC_SUCCESS);
	}
	EXPECT_COUNT(sent, 3, 0);
	EXPECT_COUNT(arrived, 300, 0);
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 50, (uintptr_t)f.memory + 8192, f.mr->rkey, 1));
	MUST(post_remote(f.a, IBV_WR_RDMA_READ, f.mr, 50, (uintptr_t)f.memory + 8192, f.mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_COUNT(sent, 4, 0);
	EXPECT_COUNT(arrived, 350, 0);
	EXPECT_COUNT(was_read, 1, 0);
	/* However many OP_READ requests it goes out as. */
	static char big[2][1 << 20];
	struct ibv_mr *mr = MAKE(ibv_reg_mr(f.device.pd, big, sizeof big, ALL_ACCESS));
	memset(big[1], 7, sizeof big[1]);
	MUST(post_remote(f.a, IBV_WR_RDMA_READ, mr, sizeof big[1], (uintptr_t)big[1], mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_SUCCESS);
	EXPECT_COUNT(was_read, 2, 0);
	EXPECT(memcmp(big[0], big[1], sizeof big[0]) == 0);
	MUST(post_recv(f.b, f.mr, 4096, 100, 2));
	MUST(post_remote(f.a, IBV_WR_RDMA_WRITE, f.mr, 50, 16, f.mr->rkey, 1));
	EXPECT_STATUS(f.cq_a, 1, IBV_WC_REM_ACCESS_ERR);
	EXPECT_STATUS(f.cq_b, 2, IBV_WC_WR_FLUSH_ERR);
	EXPECT_COUNT(sent, 4, 1);
	EXPECT_COUNT(arrived, 350, 1);
	MUST(set(sent, UINT64_MAX));
	MUST(add(sent, 6));
	EXPECT_COUNT(sent, UINT64_MAX, 7);
	MUST(ibv_destroy_qp(f.a));
	MUST(ibv_destroy_qp(f.b));
	MUST(ibv_dereg_mr(mr));
	MUST(destroy(sent));
	MUST(destroy(arrived));
	MUST(destroy(was_read));
}

static const struct test_case cases[] = {
	CASE(a_region_has_an_address_or_a_descriptor),
	CASE(dma_handles_are_checked_and_go_with_regions),
	CASE(buffers_belong_to_their_domain),
	CASE(device_memory_is_exported_and_registered_again),
	CASE(dma_bufs_of_the_kernel_are_registered),
	CASE(counters_count_what_they_are_attached_to),
};

int main(int argc, char **argv)
{
	return run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
