/* Memory regions: ibv_reg_mr, ibv_reg_mr_iova, ibv_dereg_mr, ibv_rereg_mr. Rights are checked by real traffic. */
#include "conform.h"
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { SIZE = 8192 };

static struct buffer local;

static void registering(void)
{
	struct buffer buffer = make_buffer(SIZE, ALL), second;
	void *hole, *constant;
	struct ibv_mr *mr;

	check(buffer.mr->addr == buffer.mem && buffer.mr->length == SIZE, "ibv_reg_mr(3): address and length are those asked for");
	check(buffer.mr->pd == pd && buffer.mr->context == ctx, "ibv_reg_mr(3): the MR is of its PD");
	second.mr = MAKE(ibv_reg_mr(pd, buffer.mem, SIZE, IBV_ACCESS_LOCAL_WRITE));
	check(second.mr->lkey != buffer.mr->lkey && second.mr->rkey != buffer.mr->rkey,
	      "ibv_reg_mr(3): the same memory can be registered again, under other keys");
	is(ibv_dereg_mr(second.mr), 0, "ibv_dereg_mr(3): 0 on success");
	free_buffer(&buffer);

	unsigned char *odd = MAKE(malloc(100));

	mr = ibv_reg_mr(pd, odd + 1, 13, 0);
	check(mr && mr->addr == odd + 1 && mr->length == 13, "ibv_reg_mr(3): any address and length will do");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	is_null(ibv_reg_mr(pd, odd, 100, IBV_ACCESS_REMOTE_WRITE), EINVAL,
		"ibv_reg_mr(3): REMOTE_WRITE without LOCAL_WRITE: EINVAL");
	is_null(ibv_reg_mr(pd, odd, 100, IBV_ACCESS_REMOTE_ATOMIC), EINVAL,
		"ibv_reg_mr(3): REMOTE_ATOMIC without LOCAL_WRITE: EINVAL");
	mr = ibv_reg_mr(pd, odd, 100, IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "ibv_reg_mr(3): REMOTE_READ needs no LOCAL_WRITE");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	is_null(ibv_reg_mr(pd, odd, 100, 1 << 19), EINVAL, "ibv_reg_mr(3): an access flag that doesn't exist: EINVAL");
	mr = ibv_reg_mr(pd, odd, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	check(mr != NULL, "ibv_reg_mr(3): RELAXED_ORDERING is only advice");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	free(odd);

	hole = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(munmap((char *)hole + 4096, 4096));
	is_null(ibv_reg_mr(pd, hole, 3 * 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT,
		"ibv_reg_mr(3): a range with a hole: EFAULT");
	constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	is_null(ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT,
		"ibv_reg_mr(3): LOCAL_WRITE to memory that can't be written: EFAULT");
	mr = ibv_reg_mr(pd, constant, 4096, 0);
	check(mr != NULL, "ibv_reg_mr(3): memory that can only be read can be registered to be read");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	check(ibv_reg_mr(pd, (void *)(UINTPTR_MAX - 100), 4096, 0) == NULL, "ibv_reg_mr(3): a range that wraps fails");
	munmap(hole, 3 * 4096);
	munmap(constant, 4096);
}

/* A pair of QPs for one request, since a failure ends them. */
static int try(enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t length)
{
	struct pair pair = make_pair(IBV_QPT_RC);
	int status = one_sided(&pair, opcode, piece(&local, 0, length), address, rkey);

	free_pair(&pair);
	return status;
}

static void rights(void)
{
	static const struct {
		const char *name;
		int access;
	} rights[] = {
		{"LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE},
		{"REMOTE_WRITE", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE},
		{"REMOTE_READ", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ},
		{"REMOTE_ATOMIC", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC},
	};
	static const struct {
		const char *name;
		enum ibv_wr_opcode opcode;
		int needed;
	} operations[] = {
		{"WRITE", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE},
		{"READ", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ},
		{"FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC},
	};

	for (size_t r = 0; r < sizeof rights / sizeof *rights; r++) {
		struct buffer remote = make_buffer(SIZE, rights[r].access);

		for (size_t o = 0; o < sizeof operations / sizeof *operations; o++) {
			bool permitted = rights[r].access & operations[o].needed;

			is_status(try(operations[o].opcode, (uintptr_t)remote.mem, remote.mr->rkey, 8),
				  permitted ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR,
				  "ibv_reg_mr(3): an MR with %s %s a remote %s", rights[r].name,
				  permitted ? "permits" : "refuses", operations[o].name);
		}
		free_buffer(&remote);
	}
}

static void bounds(void)
{
	struct buffer remote = make_buffer(SIZE, ALL);
	uint64_t base = (uintptr_t)remote.mem;
	uint32_t rkey = remote.mr->rkey;

	fill(local.mem, SIZE, 5);
	is_status(try(IBV_WR_RDMA_WRITE, base, rkey, SIZE), IBV_WC_SUCCESS, "ibv_reg_mr(3): all of the MR can be written");
	check(filled(remote.mem, SIZE, 5), "ibv_reg_mr(3): what was written is there");
	is_status(try(IBV_WR_RDMA_WRITE, base + 1, rkey, SIZE), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): one byte beyond the end: REM_ACCESS_ERR");
	is_status(try(IBV_WR_RDMA_WRITE, base - 1, rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): one byte before the start: REM_ACCESS_ERR");
	is_status(try(IBV_WR_RDMA_READ, base + SIZE, rkey, 1), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): the byte after the last can't be read: REM_ACCESS_ERR");
	is_status(try(IBV_WR_RDMA_WRITE, UINT64_MAX - 3, rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): an address that wraps: REM_ACCESS_ERR");
	is_status(try(IBV_WR_RDMA_WRITE, base, rkey ^ 0x80, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): another tag in the R_Key: REM_ACCESS_ERR");
	MUST(ibv_dereg_mr(remote.mr));
	is_status(try(IBV_WR_RDMA_WRITE, base, rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_dereg_mr(3): afterwards the R_Key is void: REM_ACCESS_ERR");
	free(remote.mem);
}

static void other_pd(void)
{
	struct ibv_pd *mine = pd;

	pd = MAKE(ibv_alloc_pd(ctx));
	struct buffer stranger = make_buffer(SIZE, ALL);

	struct ibv_pd *others = pd;

	pd = mine;
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)stranger.mem, stranger.mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_mr(3): an R_Key of a PD other than the QP's: REM_ACCESS_ERR");

	struct pair pair = make_pair(IBV_QPT_RC);

	MUST(post_send(pair.a, &stranger, 0, 8));
	is_status(next(pair.cq_a), IBV_WC_LOC_PROT_ERR, "ibv_reg_mr(3): an L_Key of a PD other than the QP's: LOC_PROT_ERR");
	free_pair(&pair);
	free_buffer(&stranger);
	MUST(ibv_dealloc_pd(others));
}

static void local_keys(void)
{
	struct buffer constant = make_buffer(SIZE, 0), target = make_buffer(SIZE, ALL);
	struct pair pair = make_pair(IBV_QPT_RC);

	fill(constant.mem, 64, 9);
	MUST(post_recv(pair.b, &target, 0, 64, 1));
	MUST(post_send(pair.a, &constant, 0, 64));
	is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_reg_mr(3): local read access is always enabled");
	is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_reg_mr(3): LOCAL_WRITE permits to receive");
	check(filled(target.mem, 64, 9), "ibv_reg_mr(3): what was received is there");
	MUST(post_recv(pair.b, &constant, 0, 64, 2));
	MUST(post_send(pair.a, &target, 0, 64));
	is_status(next(pair.cq_b), IBV_WC_LOC_PROT_ERR, "ibv_reg_mr(3): to receive without LOCAL_WRITE: LOC_PROT_ERR");
	is_status(next(pair.cq_a), IBV_WC_REM_OP_ERR, "ibv_reg_mr(3): and the sender learns of it: REM_OP_ERR");
	free_pair(&pair);

	struct ibv_sge sge = piece(&constant, 0, 8);

	pair = make_pair(IBV_QPT_RC);
	is_status(one_sided(&pair, IBV_WR_RDMA_READ, sge, (uintptr_t)target.mem, target.mr->rkey), IBV_WC_LOC_PROT_ERR,
		  "ibv_reg_mr(3): to READ into memory without LOCAL_WRITE: LOC_PROT_ERR");
	free_pair(&pair);
	pair = make_pair(IBV_QPT_RC);
	MUST(post_recv(pair.b, &target, 0, 64, 1));
	sge = piece(&constant, SIZE - 4, 8);

	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

	MUST(post(pair.a, &wr));
	is_status(next(pair.cq_a), IBV_WC_LOC_PROT_ERR, "ibv_reg_mr(3): to send from beyond the MR: LOC_PROT_ERR");
	free_pair(&pair);
	free_buffer(&constant);
	free_buffer(&target);
}

static void other_addresses(void)
{
	struct buffer remote = make_buffer(SIZE, ALL);
	uint64_t iova = 0x7000000 + ((uintptr_t)remote.mem & 4095);
	struct ibv_mr *mr = ibv_reg_mr_iova(pd, remote.mem, SIZE, iova, ALL);

	check(mr != NULL, "ibv_reg_mr_iova(3): a pointer to the MR");
	if (mr) {
		fill(local.mem, 64, 3);
		is_status(try(IBV_WR_RDMA_WRITE, iova + 128, mr->rkey, 64), IBV_WC_SUCCESS,
			  "ibv_reg_mr_iova(3): the MR is accessed under the address asked for");
		check(filled(remote.mem + 128, 64, 3), "ibv_reg_mr_iova(3): the offset from that address is the offset in the MR");
		is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)remote.mem, mr->rkey, 64), IBV_WC_REM_ACCESS_ERR,
			  "ibv_reg_mr_iova(3): the memory's own address is outside: REM_ACCESS_ERR");

		struct pair pair = make_pair(IBV_QPT_RC);
		struct ibv_sge sge = {iova + 128, 64, mr->lkey};
		struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);

		MUST(post_recv(pair.b, &local, 1024, 64, 1));
		MUST(post(pair.a, &wr));
		is_status(next(pair.cq_a), IBV_WC_SUCCESS, "ibv_reg_mr_iova(3): the L_Key takes that address too");
		is_status(next(pair.cq_b), IBV_WC_SUCCESS, "ibv_reg_mr_iova(3): and the message arrives");
		check(filled(local.mem + 1024, 64, 3), "ibv_reg_mr_iova(3): with the right bytes");
		free_pair(&pair);
		MUST(ibv_dereg_mr(mr));
	}
	mr = ibv_reg_mr_iova(pd, remote.mem, SIZE, 0, ALL);
	check(mr && try(IBV_WR_RDMA_WRITE, 256, mr->rkey, 64) == IBV_WC_SUCCESS && filled(remote.mem + 256, 64, 3),
	      "ibv_reg_mr_iova(3): with 0 addresses are offsets");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	mr = ibv_reg_mr(pd, remote.mem, SIZE, ALL | IBV_ACCESS_ZERO_BASED);
	check(mr && try(IBV_WR_RDMA_WRITE, 512, mr->rkey, 64) == IBV_WC_SUCCESS && filled(remote.mem + 512, 64, 3),
	      "ibv_reg_mr(3): with ZERO_BASED addresses are offsets");
	if (mr)
		MUST(ibv_dereg_mr(mr));
	free_buffer(&remote);
}

static void reregistering(void)
{
	struct buffer one = make_buffer(SIZE, ALL), two = make_buffer(SIZE, ALL);
	struct ibv_mr *mr = one.mr;
	struct ibv_pd *other = MAKE(ibv_alloc_pd(ctx));
	int result = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);

	if (result == IBV_REREG_MR_ERR_CMD && errno == EOPNOTSUPP) {
		skip("not supported by the device", "ibv_rereg_mr(3): access can be changed");
		goto over;
	}
	is(result, 0, "ibv_rereg_mr(3): access can be changed");
	fill(local.mem, 64, 7);
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)one.mem, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_rereg_mr(3): what the new access refuses is refused");
	is_status(try(IBV_WR_RDMA_READ, (uintptr_t)one.mem, mr->rkey, 8), IBV_WC_SUCCESS,
		  "ibv_rereg_mr(3): what the new access permits is permitted");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, two.mem, SIZE / 2, ALL), 0,
	   "ibv_rereg_mr(3): location and length can be changed");
	check(mr->addr == two.mem && mr->length == SIZE / 2, "ibv_rereg_mr(3): the MR contains the new location and length");
	fill(local.mem, 64, 7);
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)two.mem, mr->rkey, 64), IBV_WC_SUCCESS,
		  "ibv_rereg_mr(3): the new place can be written");
	check(filled(two.mem, 64, 7), "ibv_rereg_mr(3): and what was written is there");
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)one.mem, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_rereg_mr(3): the old place is out of reach: REM_ACCESS_ERR");
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)two.mem + SIZE / 2, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_rereg_mr(3): beyond the new length: REM_ACCESS_ERR");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0, "ibv_rereg_mr(3): the PD can be changed");
	check(mr->pd == other, "ibv_rereg_mr(3): the MR contains the new PD");
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)two.mem, mr->rkey, 8), IBV_WC_REM_ACCESS_ERR,
		  "ibv_rereg_mr(3): QPs of the old PD can't use it any more: REM_ACCESS_ERR");
	is(ibv_dealloc_pd(other), EBUSY, "ibv_rereg_mr(3): the MR belongs to the new PD");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0, "ibv_rereg_mr(3): and back");
	is(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, "ibv_rereg_mr(3): no flag at all: ERR_INPUT");
	is(ibv_rereg_mr(mr, 1 << 7, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, "ibv_rereg_mr(3): a flag that doesn't exist: ERR_INPUT");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT,
	   "ibv_rereg_mr(3): a new place without address and length: ERR_INPUT");
	is_status(try(IBV_WR_RDMA_WRITE, (uintptr_t)two.mem, mr->rkey, 8), IBV_WC_SUCCESS,
		  "ibv_rereg_mr(3): after ERR_INPUT the old MR is valid");
over:
	is(ibv_dereg_mr(mr), 0, "ibv_rereg_mr(3): the MR is deregistered as any other");
	free(one.mem);
	free_buffer(&two);
	is(ibv_dealloc_pd(other), 0, "ibv_rereg_mr(3): the other PD is free again");
}

/* A dma-buf of the kernel's udmabuf driver, -1 where there is none. */
static int make_dmabuf(size_t size)
{
	struct udmabuf_create create = {.size = size};
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), memory = memfd_create("conform", MFD_ALLOW_SEALING | MFD_CLOEXEC), fd = -1;

	if (device >= 0 && memory >= 0 && !ftruncate(memory, (off_t)size) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)) {
		create.memfd = (uint32_t)memory;
		fd = ioctl(device, UDMABUF_CREATE, &create);
	}
	if (device >= 0)
		close(device);
	if (memory >= 0)
		close(memory);
	return fd;
}

static void dma_buffers(void)
{
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, ALL);
	int fd;

	check(mr == NULL, "ibv_reg_dmabuf_mr(3): a number that isn't a descriptor fails");
	fd = make_dmabuf(SIZE);
	mr = fd < 0 ? NULL : ibv_reg_dmabuf_mr(pd, 4096, 4096, 0x10000, fd, ALL);
	if (!mr) {
		skip(fd < 0 ? "the machine has no dma-bufs" : strerror(errno), "ibv_reg_dmabuf_mr(3): a pointer to the MR");
		if (fd >= 0)
			close(fd);
		return;
	}
	check((long)mr->length == 4096, "ibv_reg_dmabuf_mr(3): a pointer to the MR");
	unsigned char *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	fill(local.mem, 256, 11);
	is_status(try(IBV_WR_RDMA_WRITE, 0x10000 + 64, mr->rkey, 256), IBV_WC_SUCCESS, "ibv_reg_dmabuf_mr(3): the MR is accessed under iova");
	check(mapped != MAP_FAILED && filled(mapped + 4096 + 64, 256, 11), "ibv_reg_dmabuf_mr(3): it starts at the offset of the dma-buf");
	is_status(try(IBV_WR_RDMA_WRITE, 0x10000 + 4090, mr->rkey, 16), IBV_WC_REM_ACCESS_ERR,
		  "ibv_reg_dmabuf_mr(3): beyond its length: REM_ACCESS_ERR");
	is(ibv_dereg_mr(mr), 0, "ibv_reg_dmabuf_mr(3): it is deregistered with ibv_dereg_mr");
	check(ibv_reg_dmabuf_mr(pd, 0, 4096, 1, fd, ALL) == NULL, "ibv_reg_dmabuf_mr(3): an iova of another page offset fails");
	check(ibv_reg_dmabuf_mr(pd, 4096, SIZE, 0, fd, ALL) == NULL, "ibv_reg_dmabuf_mr(3): beyond the dma-buf fails");
	check(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, fd, ALL | IBV_ACCESS_ON_DEMAND) == NULL, "ibv_reg_dmabuf_mr(3): flags other than the five fail");
	if (mapped != MAP_FAILED)
		munmap(mapped, SIZE);
	close(fd);
}

int main(int argc, char **argv)
{
	begin(argc, argv);
	local = make_buffer(SIZE, ALL);
	registering();
	rights();
	bounds();
	other_pd();
	local_keys();
	other_addresses();
	reregistering();
	dma_buffers();
	free_buffer(&local);
	return end();
}
