/* large_sends: one side sends lists of messages from 16 KiB to 8 MiB, and the other receives each in two elements of a shared receive
 * queue and checks every byte. Halfway the kernel begins to refuse the receiver copies from other processes: from then on the
 * messages come another way, in the same order and once each. The last of all is longer than its receive, and fails at both sides.
 */
#include "common.h"
#include "cases.h"
#include "refused_copies.h"

#define LIST 4
#define LONGEST (8u << 20)
#define FIRST 3000u
#define ROUNDS 60

static const uint32_t lengths[] = {16384, 20000, 65536, 65537, 100000, 131072, 1u << 20, LONGEST, 16384, 4096};

#define LENGTHS (sizeof lengths / sizeof *lengths)

static void post_to_srq(struct ibv_srq *srq, const struct ibv_mr *mr, uint64_t place, uint32_t length, uint64_t wr_id)
{
	struct ibv_sge sges[2] = {{(uintptr_t)mr->addr + place, FIRST, mr->lkey},
				  {(uintptr_t)mr->addr + place + FIRST, length - FIRST, mr->lkey}};
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = sges, .num_sge = 2}, *bad;

	MUST(ibv_post_srq_recv(srq, &wr, &bad));
}

static void meet_again(int fd)
{
	char ready = 1, other;

	if (!exchange(fd, &ready, &other, 1))
		fail("the other side is gone");
}

int main(int argc, char **argv)
{
	bool sends = argc > 1;
	struct device device = open_device(1);
	struct path path = default_path(&device);
	struct ibv_cq *cq = make_cq(&device, 2 * LIST, NULL);
	struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = LIST, .max_sge = 2}};
	struct ibv_srq *srq = MAKE(ibv_create_srq(device.pd, &of_srq));
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, srq, LIST);
	size_t size = (size_t)LIST * LONGEST;
	char *memory = map_apart(size);
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, memory, size, IBV_ACCESS_LOCAL_WRITE));
	struct address theirs, mine = {.qpn = qp->qp_num, .psn = 0xfffff0, .gid = device.gid};
	struct ibv_wc wc;

	alarm(ALARM_SECONDS);
	int fd = meet(sends ? argv[1] : NULL, 18515);

	if (!exchange(fd, &mine, &theirs, sizeof mine))
		fail("the other side is gone");
	MUST(to_init(qp, ALL_ACCESS));
	MUST(to_rtr(qp, &device, &path, &theirs));
	MUST(to_rts(qp, &path, mine.psn));
	for (uint64_t round = 0; round <= ROUNDS; round++) {
		bool last = round == ROUNDS;
		uint32_t length = last ? 70000 : lengths[round % LENGTHS];
		int messages = last ? 1 : LIST;

		if (!sends && round == ROUNDS / 2)
			refuse_copies(ALL_COPIES);
		/* In every other round the receives come too late. */
		if (sends || round % 2 == 0)
			meet_again(fd);
		for (int i = 0; i < messages; i++) {
			uint64_t place = (uint64_t)i * LONGEST, index = round * LIST + (uint64_t)i;

			if (sends) {
				fill(memory + place, length, index);
				MUST(post_send(qp, mr, place, length, index));
			} else {
				memset(memory + place, 0xee, length);
				post_to_srq(srq, mr, place, last ? length - 1 : length, index);
			}
		}
		if (!sends && round % 2)
			meet_again(fd);
		for (int i = 0; i < messages; i++) {
			uint64_t index = round * LIST + (uint64_t)i;

			if (last) {
				EXPECT_STATUS(cq, index, sends ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_LOC_LEN_ERR);
				continue;
			}
			MUST_COMPLETE(cq, &wc);
			if (wc.wr_id != index || (!sends && wc.byte_len != length))
				fail("message %llu ends as %llu with %u bytes", (unsigned long long)index,
				     (unsigned long long)wc.wr_id, wc.byte_len);
			if (!sends)
				check(memory + (uint64_t)i * LONGEST, length, index, "message");
		}
		/* Nothing comes twice. */
		if (!last && ibv_poll_cq(cq, 1, &wc))
			fail("there is one completion too many");
		meet_again(fd);
	}
	printf("all messages were right\n");
	return 0;
}
