/* import: one process makes a domain, regions and device memory; another imports them by a descriptor that came through
 * a UNIX socket, and uses them with QPs of its own.
 *
 * A provider must support ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3) and ibv_import_dm(3) as in their pages.
 */
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

#define SIZE 65536
#define DM_SIZE 4096

/* What the exporter sends the importer beside the descriptor. */
struct handles {
	uint32_t pd, mr, dm, dm_mr, ended;
	uint64_t buffer;
};

static void send_handles(int socket, int fd, const struct handles *handles)
{
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec data = {.iov_base = (void *)handles, .iov_len = sizeof *handles};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	if (sendmsg(socket, &message, 0) != sizeof *handles)
		fail("sendmsg: %s", strerror(errno));
}

static int receive_handles(int socket, struct handles *handles)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec data = {.iov_base = handles, .iov_len = sizeof *handles};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd;

	if (recvmsg(socket, &message, MSG_WAITALL) != sizeof *handles || !CMSG_FIRSTHDR(&message))
		fail("recvmsg: %s", strerror(errno));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static void tell(int socket)
{
	if (write(socket, "x", 1) != 1)
		fail("the other process is gone");
}

static void await_word(int socket)
{
	char byte;

	if (read(socket, &byte, 1) != 1)
		fail("the other process is gone");
}

static struct ibv_dm *make_dm(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr attr = {.length = DM_SIZE, .log_align_req = 6};

	return MAKE(ibv_alloc_dm(context, &attr));
}

static void run_exporter(int socket)
{
	struct device device = open_device(0);
	unsigned char *buffer = MAKE(malloc(SIZE));
	struct ibv_mr *mr = MAKE(ibv_reg_mr(device.pd, buffer, SIZE, ALL_ACCESS));
	struct ibv_mr *ended = MAKE(ibv_reg_mr(device.pd, buffer, SIZE, ALL_ACCESS));
	struct ibv_dm *dm = make_dm(device.context);
	struct ibv_mr *dm_mr =
		MAKE(ibv_reg_dm_mr(device.pd, dm, 0, DM_SIZE, ALL_ACCESS | IBV_ACCESS_ZERO_BASED));
	struct handles handles = {.pd = device.pd->handle,
				  .mr = mr->handle,
				  .dm = dm->handle,
				  .dm_mr = dm_mr->handle,
				  .ended = ended->handle,
				  .buffer = (uintptr_t)buffer};
	uint32_t words[DM_SIZE / 4];

	MUST(ibv_dereg_mr(ended));
	memset(buffer, 0, SIZE);
	fill((char *)buffer, SIZE / 2, 1);
	send_handles(socket, device.context->cmd_fd, &handles);
	await_word(socket);
	/* The importer has sent the first half to itself, into the second. */
	check((char *)buffer + SIZE / 2, SIZE / 2, 1, "the region after a message of the importer");
	tell(socket);
	await_word(socket);
	/* A peer has written by the key of the imported region. */
	check((char *)buffer, SIZE / 2, 7, "the region after a peer's RDMA WRITE");
	MUST(ibv_memcpy_from_dm(words, dm, 0, sizeof words));
	if (words[0] != 5 || words[1] != 0 || words[2] != 0x1234)
		fail("the device memory has %u %u %#x", words[0], words[1], words[2]);
	tell(socket);
	await_word(socket);
	raise(SIGKILL);
}

static void must_wc(struct ibv_cq *cq, enum ibv_wc_status status, const char *what)
{
	struct ibv_wc wc;

	if (!wait_wc(cq, &wc, 10000))
		fail("%s: no completion in 10 s", what);
	if (wc.status != status)
		fail("%s: %s", what, ibv_wc_status_str(wc.status));
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint32_t rkey,
		 uint64_t remote)
{
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	set_remote(&wr, remote, rkey);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		wr.wr.atomic.compare_add = 5;
	MUST(ibv_post_send(qp, &wr, &bad));
}

static void expect_enoent(const void *made, const char *what)
{
	if (made || errno != ENOENT)
		fail("%s: %p, %s", what, made, strerror(errno));
}

static void run_importer(int socket)
{
	struct handles handles;
	int fd = receive_handles(socket, &handles);
	struct device device = open_device(0);
	struct device imported = device;
	struct path path = default_path(&device);
	struct ibv_cq *cq, *peer_cq;
	struct ibv_qp *a, *b, *peer, *target;
	struct ibv_mr *mr, *dm_mr, *own;
	struct ibv_dm *dm;
	struct ibv_recv_wr recv = {.num_sge = 1}, *bad;
	struct ibv_sge sge;
	static char memory[SIZE];
	uint32_t word = 0x1234;

	if (ibv_import_device(STDIN_FILENO) || errno != EINVAL)
		fail("a descriptor that isn't a device's: %s", strerror(errno));
	imported.context = MAKE(ibv_import_device(fd));
	expect_enoent(ibv_import_pd(imported.context, handles.mr), "a region's handle for a domain");
	imported.pd = MAKE(ibv_import_pd(imported.context, handles.pd));
	expect_enoent(ibv_import_mr(imported.pd, handles.ended), "a region that has ended");
	expect_enoent(ibv_import_dm(imported.context, handles.pd), "a domain's handle for device memory");
	mr = MAKE(ibv_import_mr(imported.pd, handles.mr));
	if (mr->addr || mr->length != SIZE)
		fail("the imported region has address %p and %zu bytes", mr->addr, mr->length);
	dm = MAKE(ibv_import_dm(imported.context, handles.dm));
	dm_mr = MAKE(ibv_import_mr(imported.pd, handles.dm_mr));
	MUST(ibv_memcpy_to_dm(dm, 8, &word, sizeof word));

	/* A message out of and into the other process's memory. */
	cq = make_cq(&imported, 16, NULL);
	a = make_qp(&imported, IBV_QPT_RC, cq, NULL, 8);
	b = make_qp(&imported, IBV_QPT_RC, cq, NULL, 8);
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&imported, &path, a, b);
	sge = (struct ibv_sge){.addr = handles.buffer + SIZE / 2, .length = SIZE / 2, .lkey = mr->lkey};
	recv.sg_list = &sge;
	MUST(ibv_post_recv(b, &recv, &bad));
	post(a, IBV_WR_SEND,
	     (struct ibv_sge){.addr = handles.buffer, .length = SIZE / 2, .lkey = mr->lkey}, 0, 0);
	must_wc(cq, IBV_WC_SUCCESS, "a message of the imported region");
	must_wc(cq, IBV_WC_SUCCESS, "a message of the imported region");
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	tell(socket);
	await_word(socket);

	/* A peer that has imported nothing. */
	peer_cq = make_cq(&device, 16, NULL);
	own = MAKE(ibv_reg_mr(device.pd, memory, sizeof memory, ALL_ACCESS));
	peer = make_qp(&device, IBV_QPT_RC, peer_cq, NULL, 8);
	target = make_qp(&imported, IBV_QPT_RC, cq, NULL, 8);
	MUST(to_init(peer, ALL_ACCESS));
	MUST(to_init(target, ALL_ACCESS));
	connect_qps(&device, &path, peer, target);
	fill(memory, SIZE / 2, 7);
	sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = SIZE / 2, .lkey = own->lkey};
	post(peer, IBV_WR_RDMA_WRITE, sge, mr->rkey, handles.buffer);
	must_wc(peer_cq, IBV_WC_SUCCESS, "an RDMA WRITE to the imported region");
	sge.addr += SIZE / 2;
	post(peer, IBV_WR_RDMA_READ, sge, mr->rkey, handles.buffer);
	must_wc(peer_cq, IBV_WC_SUCCESS, "an RDMA READ of the imported region");
	check(memory + SIZE / 2, SIZE / 2, 7, "what an RDMA READ of the imported region brings");
	sge.length = 8;
	post(peer, IBV_WR_ATOMIC_FETCH_AND_ADD, sge, dm_mr->rkey, 0);
	must_wc(peer_cq, IBV_WC_SUCCESS, "an atomic on imported device memory");
	/* It couldn't be atomic with those of the other process's queue pairs: it is refused, and changes nothing. */
	a = make_qp(&device, IBV_QPT_RC, peer_cq, NULL, 8);
	b = make_qp(&imported, IBV_QPT_RC, cq, NULL, 8);
	MUST(to_init(a, ALL_ACCESS));
	MUST(to_init(b, ALL_ACCESS));
	connect_qps(&device, &path, a, b);
	post(a, IBV_WR_ATOMIC_FETCH_AND_ADD, sge, mr->rkey, handles.buffer);
	must_wc(peer_cq, IBV_WC_REM_OP_ERR, "an atomic on the imported region");
	MUST(ibv_destroy_qp(a));
	MUST(ibv_destroy_qp(b));
	tell(socket);
	await_word(socket);

	/* The death of the other process is an error, nothing worse; its device memory is here. */
	tell(socket);
	if (wait(NULL) < 0)
		fail("wait: %s", strerror(errno));
	post(peer, IBV_WR_ATOMIC_FETCH_AND_ADD, sge, dm_mr->rkey, 0);
	must_wc(peer_cq, IBV_WC_SUCCESS, "an atomic on device memory of a process that has died");
	sge.length = SIZE / 2;
	post(peer, IBV_WR_RDMA_READ, sge, mr->rkey, handles.buffer);
	must_wc(peer_cq, IBV_WC_REM_OP_ERR, "an RDMA READ of a process that has died");

	MUST(ibv_destroy_qp(peer));
	MUST(ibv_destroy_qp(target));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_cq(peer_cq));
	ibv_unimport_mr(mr);
	ibv_unimport_mr(dm_mr);
	ibv_unimport_dm(dm);
	ibv_unimport_pd(imported.pd);
	MUST(ibv_close_device(imported.context));
	MUST(ibv_dereg_mr(own));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	puts("ok");
}

int main(void)
{
	int sockets[2];

	alarm(ALARM_SECONDS);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		fail("socketpair: %s", strerror(errno));
	switch (fork()) {
	case -1:
		fail("fork: %s", strerror(errno));
	case 0:
		alarm(ALARM_SECONDS);
		close(sockets[0]);
		run_exporter(sockets[1]);
		return 1;
	default:
		close(sockets[1]);
		run_importer(sockets[0]);
		return 0;
	}
}
