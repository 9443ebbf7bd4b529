/* The memory of a half of `calls`: what it sends from and receives into, what it opens to its peer and how, and how
 * that is taken back.
 */
#ifndef RANDOM_MEMORY_H
#define RANDOM_MEMORY_H

#include "requests.h"
#include <sys/mman.h>

/* Device memory is scarce: slots in it are small. */
#define MAX_DM_SLOT 1000

static size_t whole_pages(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (size + page - 1) / page * page;
}

static void give_memory(struct half *half)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = whole_pages(2 * (size_t)half->depth * half->slot_size + SHARED_SIZE);
	char *at;

	/* A page that must not be touched on either side. */
	at = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + page, size, PROT_READ | PROT_WRITE))
		fail("mmap: %s", strerror(errno));
	half->memory = at + page;
	half->memory_size = size;
}

static void take_memory(struct half *half)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	munmap(half->memory - page, half->memory_size + 2 * page);
	half->memory = NULL;
}

static struct ibv_dm *make_dm(size_t size)
{
	struct ibv_alloc_dm_attr attr = {.length = (size + 3) & ~(size_t)3};

	return MAKE(ibv_alloc_dm(device.context, &attr));
}

/* Until the half's requests have ended; its lock isn't held. */
static void await_requests(struct worker *worker, struct half *half)
{
	uint64_t limit = now_ms() + 40000;

	while (sends_outstanding(half)) {
		poll_own(worker);
		if (now_ms() > limit)
			fail("seed %lu: a bind never completed", the_seed);
	}
}

/* Maps pages of zeros for it, at its address if it has one. */
static void map_area(struct opened *opened, int protection)
{
	int fixed = opened->area ? MAP_FIXED : 0;

	opened->area = mmap(opened->area, SHARED_SIZE, protection, fixed | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (opened->area == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
}

static uint32_t bind_opened(struct worker *worker, struct half *half, struct ibv_mw *mw)
{
	bool zero_based = draw(&worker->own, 2);
	struct opened *opened = &half->opened;
	struct ibv_mw_bind_info info = {half->mr, (uintptr_t)opened->area, SHARED_SIZE,
					IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
						(zero_based ? IBV_ACCESS_ZERO_BASED : 0)};
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	uint64_t id;

	pthread_mutex_lock(&half->lock);
	id = id_of(half, false, half->send.next);
	push(&half->send, id, true)->opcode = IBV_WC_BIND_MW;
	if (opened->kind == WINDOW_1) {
		struct ibv_mw_bind bind = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};

		MUST(ibv_bind_mw(half->qp, mw, &bind));
		rkey = mw->rkey;
	} else {
		struct ibv_send_wr *bad, wr = {
			.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
			.bind_mw = {.mw = mw, .rkey = rkey, .bind_info = info}};

		MUST(half->by_calls ? post_by_calls(worker, half->qp, &wr) : ibv_post_send(half->qp, &wr, &bad));
	}
	pthread_mutex_unlock(&half->lock);
	await_requests(worker, half);
	opened->address = zero_based ? 0 : (uintptr_t)opened->area;
	return rkey;
}

/* Opens memory to the peer in one of the ways there are; the QP can send. */
static void open_memory(struct worker *worker, struct half *half)
{
	struct opened *opened = &half->opened;
	int access = ALL_ACCESS;

	*opened = (struct opened){.area = half->memory + 2 * (size_t)half->depth * half->slot_size};
	if (worker->type == IBV_QPT_RC)
		opened->kind = draw(&worker->own, OPENINGS);
	else if (worker->type == IBV_QPT_XRC_SEND)
		/* Windows of type 2 belong to the QP that binds them, which isn't the target. */
		opened->kind = (enum opening[]){REGION, WINDOW_1, DEVICE, PAGED}[draw(&worker->own, 4)];
	opened->rkey = half->mr->rkey;
	opened->address = (uintptr_t)opened->area;
	switch (opened->kind) {
	case WINDOW_1:
	case WINDOW_2:
		opened->mw = MAKE(ibv_alloc_mw(worker->pd, opened->kind == WINDOW_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2));
		opened->rkey = bind_opened(worker, half, opened->mw);
		break;
	case DEVICE:
		opened->dm = make_dm(SHARED_SIZE);
		opened->mr = MAKE(ibv_reg_dm_mr(worker->pd, opened->dm, 0, SHARED_SIZE, access | IBV_ACCESS_ZERO_BASED));
		opened->address = 0;
		break;
	case PAGED:
		access |= IBV_ACCESS_ON_DEMAND;
		opened->area = NULL;
		map_area(opened, PROT_READ | PROT_WRITE);
		opened->address = (uintptr_t)opened->area;
		/* Wrong addresses would be right in a region of everything. */
		opened->mr = worker->gentle && draw(&worker->own, 2)
						   ? MAKE(ibv_reg_mr(worker->pd, NULL, SIZE_MAX, access))
						   : MAKE(ibv_reg_mr(worker->pd, opened->area, SHARED_SIZE, access));
		break;
	default:
		break;
	}
	if (opened->mr)
		opened->rkey = opened->mr->rkey;
}

/* Only the program writes from here on. */
static void seal(struct half *half)
{
	struct opened *opened = &half->opened;

	if (opened->kind == DEVICE) {
		char *bytes = MAKE(malloc(SHARED_SIZE));

		fill(bytes, SHARED_SIZE, half->generation);
		MUST(ibv_memcpy_to_dm(opened->dm, 0, bytes, SHARED_SIZE));
		free(bytes);
	} else {
		fill(opened->area, SHARED_SIZE, half->generation);
	}
	opened->sealed = true;
}

static void check_seal(struct half *half)
{
	struct opened *opened = &half->opened;
	char *bytes;

	if (!opened->sealed)
		return;
	if (opened->kind == DEVICE) {
		bytes = MAKE(malloc(SHARED_SIZE));
		MUST(ibv_memcpy_from_dm(bytes, opened->dm, 0, SHARED_SIZE));
		check(bytes, SHARED_SIZE, half->generation, "device memory that was taken back");
		free(bytes);
	} else {
		check(opened->area, SHARED_SIZE, half->generation, "opened memory that was taken back");
	}
	opened->sealed = false;
}

/* Frees the spare windows, bound or not; requests for them may be on their way, and fail. */
static void free_spares(struct half *half)
{
	for (int i = 0; i < 2; i++)
		if (half->spare[i])
			MUST(ibv_dealloc_mw(half->spare[i]));
	half->spare[0] = half->spare[1] = NULL;
}

/* Takes back what is opened to the peer, which is using it. */
static void take_back_opened(struct worker *worker, struct half *half)
{
	struct opened *opened = &half->opened;

	if (opened->sealed || !half->mr || worker->type == IBV_QPT_UD)
		return;
	atomic_store(half->blurs, true);
	switch (opened->kind) {
	case REGION:
		/* A region with windows on it can't change. */
		pthread_mutex_lock(&half->lock);
		free_spares(half);
		pthread_mutex_unlock(&half->lock);
		MUST(ibv_rereg_mr(half->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
		break;
	case WINDOW_1:
	case WINDOW_2:
		MUST(ibv_dealloc_mw(opened->mw));
		opened->mw = NULL;
		break;
	case PAGED:
		if (draw(&worker->own, 2)) {
			/* The pages go, and others come; the address range stays reserved meanwhile. */
			map_area(opened, PROT_NONE);
			map_area(opened, PROT_READ | PROT_WRITE);
			return;
		}
		/* fall through */
	default:
		MUST(ibv_dereg_mr(opened->mr));
		opened->mr = NULL;
	}
	seal(half);
}

static void close_memory(struct half *half)
{
	struct opened *opened = &half->opened;

	check_seal(half);
	if (opened->mw)
		MUST(ibv_dealloc_mw(opened->mw));
	if (opened->mr)
		MUST(ibv_dereg_mr(opened->mr));
	if (opened->dm)
		MUST(ibv_free_dm(opened->dm));
	if (opened->kind == PAGED)
		munmap(opened->area, SHARED_SIZE);
	opened->mw = NULL;
	opened->mr = NULL;
	opened->dm = NULL;
	opened->kind = REGION;
}

/* Takes the region back with the windows on it, and whatever comes after must not change the memory. */
static void take_region_back(struct half *half)
{
	struct ibv_mr *mr;

	atomic_store(half->blurs, true);
	pthread_mutex_lock(&half->lock);
	mr = half->mr;
	half->mr = NULL;
	free_spares(half);
	pthread_mutex_unlock(&half->lock);
	if (!mr)
		return;
	if (half->opened.kind != PAGED && half->opened.kind != DEVICE)
		check_seal(half);
	if (half->opened.mw) {
		MUST(ibv_dealloc_mw(half->opened.mw));
		half->opened.mw = NULL;
	}
	MUST(ibv_dereg_mr(mr));
	fill(half->memory, half->memory_size, half->generation);
}

/* Pages are dropped, and come back as zeros, under the traffic. */
static void drop_pages(struct half *half)
{
	if (half->opened.kind != PAGED || half->opened.sealed)
		return;
	atomic_store(half->blurs, true);
	MUST(madvise(half->opened.area, SHARED_SIZE, MADV_DONTNEED));
}

/* Another region comes and goes, and changes all that can be changed, on memory that is in use. */
static void change_region(struct worker *worker, struct half *half)
{
	struct ibv_pd *pd = MAKE(ibv_alloc_pd(device.context));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(worker->pd, half->memory, half->memory_size, ALL_ACCESS));
	int flags = (int)draw(&worker->own, 8);
	int access = flags & IBV_REREG_MR_CHANGE_ACCESS ? IBV_ACCESS_LOCAL_WRITE : 0;

	int result = ibv_rereg_mr(mr, flags, pd, half->memory, half->memory_size / 2, access);
	if ((result == 0) != (flags != 0))
		fail("seed %lu: ibv_rereg_mr with flags %d: %d", the_seed, flags, result);
	if (ibv_dealloc_pd(pd) != (flags & IBV_REREG_MR_CHANGE_PD ? EBUSY : 0))
		fail("seed %lu: a PD after ibv_rereg_mr with flags %d", the_seed, flags);
	MUST(ibv_dereg_mr(mr));
	if (flags & IBV_REREG_MR_CHANGE_PD)
		MUST(ibv_dealloc_pd(pd));
}

#endif
