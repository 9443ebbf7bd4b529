/* Mistakes, each with its correct twin: a requester and a responder, in one process or in two, of which one does something
 * wrong. Called as PROGRAM CASE wrong|right one|two, or on two hosts as PROGRAM CASE wrong|right server and PROGRAM CASE wrong|right
 * ADDRESS of the server; without arguments the program lists its cases. A wrong run prints the vendor_err of the request that fails.
 */
#ifndef MISUSE_H
#define MISUSE_H

#include "../cases.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define BYTES 4096
#define FIRST_PSN 0x1000

/* How the two sides are set up. */
struct config {
	enum ibv_qp_type type;
	struct path path;
	enum ibv_mtu responder_mtu;
	unsigned int responder_access;
	uint8_t max_rd_atomic, max_dest_rd_atomic;
	/* What the requester gets wrong of QPN, PSN and address. */
	uint32_t qpn_change;
	int32_t psn_change;
	bool address_without_route;
	bool responder_stays_in_init;
};

struct side {
	const struct device *device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* Of an XRC target. */
	struct ibv_xrcd *domain;
};

/* The process of the responder, where it has its own on this host and lives. */
static pid_t other;
/* The connection to the responder, where that has a process of its own and lives. */
static int to_other = -1;

#define PORT 18515
/* What the requester sends the responder in the end. */
#define ENOUGH 'e'
#define VANISH 'v'

/* What the responder lets the requester use. */
struct offer {
	uint64_t address;
	uint32_t rkey;
	/* Where an XRC initiator sends to. */
	uint32_t srqn;
	struct address qp;
};

struct misuse {
	const char *name;
	/* Of the wrong request; IBV_WC_SUCCESS where it is the responder that drops the message, or where it works. */
	enum ibv_wc_status status;
	/* The wrong request works here: no message is dropped. */
	bool works;
	void (*configure)(struct config *config, bool wrong);
	/* The responder, in INIT. */
	void (*prepare)(struct side *side, struct offer *offer, bool wrong);
	/* The requester, in RTS: posts what ends with `status`. */
	void (*request)(struct side *side, const struct offer *offer, bool wrong);
	/* The requester, after that. */
	void (*after)(struct side *side, bool wrong);
};

/* XRC domains are those of this file. */
UNUSED static struct ibv_xrcd *open_domain(const struct device *device)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = open("/proc/self/exe", O_RDONLY),
		.oflags = O_CREAT,
	};

	return MAKE(ibv_open_xrcd(device->context, &attr));
}

/* Turns a side into an XRC target. */
static void become_target(struct side *side)
{
	struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};

	side->domain = open_domain(side->device);
	init.xrcd = side->domain;
	MUST(ibv_destroy_qp(side->qp));
	side->qp = MAKE(ibv_create_qp_ex(side->device->context, &init));
}

static struct side make_side(const struct device *device, const struct config *config)
{
	struct side side = {.device = device, .cq = make_cq(device, 64, NULL)};
	void *memory;

	if (posix_memalign(&memory, 4096, BYTES))
		fail("no memory");
	memset(memory, 0, BYTES);
	side.mr = MAKE(ibv_reg_mr(device->pd, memory, BYTES, ALL_ACCESS));
	side.qp = make_qp(device, config->type, side.cq, NULL, 16);
	return side;
}

static void connect_side(const struct side *side, const struct config *config, struct address remote, uint32_t psn,
			 bool responder)
{
	struct path path = config->path;

	path.rd_atomic = responder ? config->max_dest_rd_atomic : 4;
	path.mtu = responder ? config->responder_mtu : path.mtu;
	MUST(to_rtr(side->qp, side->device, &path, &remote));
	path.rd_atomic = responder ? 4 : config->max_rd_atomic;
	MUST(to_rts(side->qp, &path, psn));
}

static struct offer start_responder(const struct misuse *misuse, struct side *side, const struct config *config,
				    bool wrong)
{
	struct offer offer = {.address = (uintptr_t)side->mr->addr, .rkey = side->mr->rkey};

	if (config->type == IBV_QPT_XRC_SEND)
		become_target(side);
	MUST(to_init(side->qp, config->responder_access));
	if (misuse->prepare)
		misuse->prepare(side, &offer, wrong);
	offer.qp = (struct address){.qpn = side->qp->qp_num, .psn = 7, .gid = side->device->gid};
	return offer;
}

static void finish_responder(const struct side *side, const struct config *config, struct address requester)
{
	requester.psn = FIRST_PSN;
	if (!config->responder_stays_in_init)
		connect_side(side, config, requester, 7, true);
}

static void start_requester(struct side *side, const struct config *config, struct offer offer)
{
	/* Of a network for examples (RFC 5737): a host without a route to it is needed. */
	static const uint8_t nobody[] = {203, 0, 113, 9};

	MUST(to_init(side->qp, ALL_ACCESS));
	offer.qp.qpn ^= config->qpn_change;
	if (config->address_without_route)
		memcpy(offer.qp.gid.raw + 12, nobody, sizeof nobody);
	connect_side(side, config, offer.qp, (uint32_t)(FIRST_PSN + config->psn_change), false);
}

static void run_requester(const struct misuse *misuse, struct side *side, const struct offer *offer, bool wrong)
{
	struct ibv_wc wc;

	misuse->request(side, offer, wrong);
	if (!wait_wc(side->cq, &wc, 20000))
		fail("no completion in 20 s");
	if (wc.status != (wrong ? misuse->status : IBV_WC_SUCCESS))
		fail("request %llu ended with %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	if (wc.status != IBV_WC_SUCCESS)
		printf("vendor_err %X\n", wc.vendor_err);
	if (wc.status == IBV_WC_SUCCESS && wc.vendor_err)
		fail("vendor_err %x of a request that has succeeded", wc.vendor_err);
	if (misuse->after)
		misuse->after(side, wrong);
}

/* A message that the responder drops hasn't come when the request ends. */
static void await_message(const struct misuse *misuse, const struct side *responder, bool wrong)
{
	struct ibv_wc wc;

	if (misuse->status == IBV_WC_SUCCESS && !misuse->works && wait_wc(responder->cq, &wc, wrong ? 300 : 20000) == wrong)
		fail("a message has %s", wrong ? "come" : "not come");
}

static void run_in_one(const struct misuse *misuse, const struct config *config, bool wrong)
{
	struct device device = open_device(1);
	struct side responder = make_side(&device, config), requester = make_side(&device, config);
	struct offer offer = start_responder(misuse, &responder, config, wrong);

	finish_responder(&responder, config,
			 (struct address){.qpn = requester.qp->qp_num, .gid = device.gid});
	start_requester(&requester, config, offer);
	run_requester(misuse, &requester, &offer, wrong);
	await_message(misuse, &responder, wrong);
}

/* The responder, in a process of its own. */
static void respond(const struct misuse *misuse, const struct config *config, bool wrong, int fd)
{
	struct device device = open_device(1);
	struct side side = make_side(&device, config);
	struct offer offer = start_responder(misuse, &side, config, wrong);
	struct address address;
	char word = 0;

	if (send(fd, &offer, sizeof offer, MSG_NOSIGNAL) != sizeof offer ||
	    recv(fd, &address, sizeof address, MSG_WAITALL) != sizeof address)
		fail("the requester has gone");
	finish_responder(&side, config, address);
	if (!exchange(fd, &word, &word, 1) || recv(fd, &word, 1, MSG_WAITALL) != 1)
		fail("the requester has gone");
	if (word == VANISH)
		_exit(0);
	await_message(misuse, &side, wrong);
}

/* The requester, likewise. */
static void ask(const struct misuse *misuse, const struct config *config, bool wrong)
{
	struct device device = open_device(1);
	struct side side = make_side(&device, config);
	struct address address = {.qpn = side.qp->qp_num, .gid = device.gid};
	struct offer offer;
	char word = ENOUGH;

	if (recv(to_other, &offer, sizeof offer, MSG_WAITALL) != sizeof offer ||
	    send(to_other, &address, sizeof address, MSG_NOSIGNAL) != sizeof address)
		fail("the responder has gone");
	/* The responder may have reached this process by then, at its right address. */
	bool is_late = config->address_without_route;
	if (!is_late)
		start_requester(&side, config, offer);
	if (!exchange(to_other, &word, &word, 1))
		fail("the responder has gone");
	if (is_late)
		start_requester(&side, config, offer);
	run_requester(misuse, &side, &offer, wrong);
	word = ENOUGH;
	if (to_other >= 0 && send(to_other, &word, 1, MSG_NOSIGNAL) != 1)
		fail("the responder has gone");
}

static void run_in_two(const struct misuse *misuse, const struct config *config, bool wrong)
{
	int ends[2], status;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	other = fork();
	if (other < 0)
		fail("fork: %s", strerror(errno));
	close(ends[other ? 1 : 0]);
	if (!other) {
		alarm(ALARM_SECONDS);
		respond(misuse, config, wrong, ends[1]);
		exit(0);
	}
	to_other = ends[0];
	ask(misuse, config, wrong);
	if (other && (waitpid(other, &status, 0) != other || status))
		fail("the responder has failed");
}

static void run_on_hosts(const struct misuse *misuse, const struct config *config, bool wrong, const char *host)
{
	int fd = meet(host, PORT);

	if (host) {
		to_other = fd;
		ask(misuse, config, wrong);
	} else {
		respond(misuse, config, wrong, fd);
	}
}

UNUSED static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t address, uint32_t rkey)
{
	struct ibv_send_wr wr = {.wr_id = 42, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED}, *bad;

	set_remote(&wr, address, rkey);
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;
	MUST(ibv_post_send(qp, &wr, &bad));
}

UNUSED static struct ibv_sge element(const struct ibv_mr *mr, uint32_t length)
{
	return (struct ibv_sge){(uintptr_t)mr->addr, length, mr->lkey};
}

UNUSED static void request_write(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong;
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 64), offer->address, offer->rkey);
}

UNUSED static void end_responder(void)
{
	char word = VANISH;

	if (to_other < 0)
		return;
	if (!other && (send(to_other, &word, 1, MSG_NOSIGNAL) != 1 || recv(to_other, &word, 1, 0) > 0))
		fail("the responder doesn't go");
	if (other) {
		MUST(kill(other, SIGKILL));
		if (waitpid(other, NULL, 0) != other)
			fail("waitpid: %s", strerror(errno));
	}
	other = 0;
	to_other = -1;
}

UNUSED static void stop_responder(void)
{
	MUST(kill(other, SIGSTOP));
	if (waitpid(other, NULL, WUNTRACED) != other)
		fail("waitpid: %s", strerror(errno));
}

UNUSED static void continue_responder(struct side *side, bool wrong)
{
	(void)side;
	if (wrong)
		MUST(kill(other, SIGCONT));
}

UNUSED static void request_send(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong, (void)offer;
	MUST(post_send(side->qp, side->mr, 0, 64, 42));
}

/* Gives up soon: what is asked gets no answer. */
UNUSED static void be_impatient(struct config *config, bool wrong)
{
	if (wrong) {
		config->path.timeout = 10;
		config->path.retry_count = 3;
		config->path.rnr_retry = 1;
	}
}

static int run_misuse(const struct misuse *all, size_t count, int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	if (argc == 1) {
		for (size_t i = 0; i < count; i++)
			puts(all[i].name);
		return 0;
	}
	if (argc != 4)
		fail("usage: %s CASE wrong|right one|two|server|ADDRESS", argv[0]);
	for (size_t i = 0; i < count; i++) {
		bool wrong = !strcmp(argv[2], "wrong");
		struct config config = {
			.type = IBV_QPT_RC,
			.path = {.mtu = IBV_MTU_1024, .timeout = 16, .retry_count = 7, .rnr_retry = 7,
				 .min_rnr_timer = 1, .access = ALL_ACCESS},
			.responder_mtu = IBV_MTU_1024,
			.responder_access = ALL_ACCESS,
			.max_rd_atomic = 4,
			.max_dest_rd_atomic = 4,
		};

		if (strcmp(argv[1], all[i].name))
			continue;
		if (all[i].configure)
			all[i].configure(&config, wrong);
		if (!strcmp(argv[3], "one"))
			run_in_one(&all[i], &config, wrong);
		else if (!strcmp(argv[3], "two"))
			run_in_two(&all[i], &config, wrong);
		else
			run_on_hosts(&all[i], &config, wrong, strcmp(argv[3], "server") ? argv[3] : NULL);
		puts("ok");
		return 0;
	}
	fail("no case is named %s", argv[1]);
}

#define MISUSE(function, status, ...) {#function, status, false, __VA_ARGS__}
/* What works here, and wouldn't on an adapter. */
#define WORKS(function, ...) {#function, IBV_WC_SUCCESS, true, __VA_ARGS__}

#endif
