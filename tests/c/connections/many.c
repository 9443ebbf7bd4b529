/* Many connections between two processes, each with a queue pair and a message there and back: one after another at a rate, or all of
 * them at once. Each ends connected or by a documented event, and afterwards nothing of them is left.
 *
 * usage: many server IP PORT
 *        many client IP PORT CONNECTIONS RATE     RATE a second; 0: all at once
 *
 * SIGUSR1 means that no further client comes: the server ends when all connections have ended. At SIGUSR2 it gives up the connections
 * that are left.
 */
#include "connections/cm.h"
#include <signal.h>
#include <sys/resource.h>

/* So many at most, and so many of those that are all there at once are being made at a time. */
enum { MOST = 1 << 14, AT_A_TIME = 256 };
/* What is asked for once is asked for again for 98 s. */
enum { LONGEST_MS = 200000 };
/* What may be left of a whole run: the library's own descriptors (64 sockets an address), threads and memory, whatever it has served. */
enum { MORE_DESCRIPTORS = 300, MORE_THREADS = 6, MORE_KIB = 96 << 10 };

struct connection {
	struct rdma_cm_id *id;
	uint32_t number;
	bool made, answered, leaves;
};

static struct rdma_event_channel *channel;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
/* Of each connection: what it sends, and what it receives. */
static struct {
	uint64_t sent, received;
} words[MOST];
static struct connection connections[MOST];
static int live, begun, made, answered, ended, refused, failed;
static volatile sig_atomic_t no_more, gives_up;

static void stop(int signal)
{
	no_more = 1;
	gives_up = signal == SIGUSR2;
}

static int entries(const char *directory)
{
	DIR *open = MAKE(opendir(directory));
	int count = 0;

	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

static long resident_kib(void)
{
	FILE *file = MAKE(fopen("/proc/self/statm", "r"));
	long pages;

	if (fscanf(file, "%*s %ld", &pages) != 1)
		fail("/proc/self/statm");
	fclose(file);
	return pages * 4;
}

static void need_queue(struct ibv_context *verbs)
{
	if (cq)
		return;
	completions = MAKE(ibv_create_comp_channel(verbs));
	MUST(fcntl(completions->fd, F_SETFL, O_NONBLOCK));
	cq = MAKE(ibv_create_cq(verbs, 2 * MOST, NULL, completions, 0));
	pd = MAKE(ibv_alloc_pd(verbs));
	mr = MAKE(ibv_reg_mr(pd, words, sizeof(words), IBV_ACCESS_LOCAL_WRITE));
	MUST(ibv_req_notify_cq(cq, 0));
}

static void add_queue_pair(struct connection *c)
{
	struct ibv_sge sge = {.length = sizeof(words->received)};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0,
	};
	size_t place = c - connections;

	need_queue(c->id->verbs);
	attr.send_cq = attr.recv_cq = cq;
	MUST(rdma_create_qp(c->id, pd, &attr));
	wr.wr_id = place;
	sge.addr = (uintptr_t)&words[place].received;
	sge.lkey = mr->lkey;
	MUST(ibv_post_recv(c->id->qp, &wr, &bad));
}

static void send_word(struct connection *c, uint64_t word)
{
	size_t place = c - connections;
	struct ibv_sge sge = {(uintptr_t)&words[place].sent, sizeof(word), mr->lkey};
	struct ibv_send_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1,
				 .opcode = IBV_WR_SEND}, *bad;

	words[place].sent = word;
	MUST(ibv_post_send(c->id->qp, &wr, &bad));
}

static struct connection *free_place(struct rdma_cm_id *id)
{
	static size_t next;

	for (size_t tried = 0; tried < MOST; tried++) {
		struct connection *c = &connections[next++ % MOST];

		if (!c->id) {
			*c = (struct connection){.id = id};
			id->context = c;
			live++;
			return c;
		}
	}
	fail("more than %d connections", MOST);
}

static void forget(struct connection *c)
{
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	MUST(rdma_destroy_id(c->id));
	c->id = NULL;
	live--;
	ended++;
}

static void leave(struct connection *c)
{
	if (!c->leaves)
		MUST(rdma_disconnect(c->id));
	c->leaves = true;
}

/* What a word is answered with. */
static uint64_t answer(uint64_t word)
{
	return ~(word * 0x9e3779b97f4a7c15);
}

/* A word has come, or doesn't any more. */
static void completed(const struct ibv_wc *wc, bool serves, bool holds)
{
	struct connection *c = &connections[wc->wr_id];

	if (!c->id || c->leaves || wc->status == IBV_WC_WR_FLUSH_ERR)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		failed++;
		leave(c);
		return;
	}
	if (serves) {
		send_word(c, answer(words[wc->wr_id].received));
		return;
	}
	if (words[wc->wr_id].received != answer(c->number))
		fail("a wrong answer: %016llx", (unsigned long long)words[wc->wr_id].received);
	c->answered = true;
	answered++;
	if (!holds)
		leave(c);
}

static void look_for_completions(bool serves, bool holds)
{
	struct ibv_wc wc[64];
	struct ibv_cq *of_event;
	void *context;
	int count;

	if (!cq)
		return;
	while (!ibv_get_cq_event(completions, &of_event, &context)) {
		ibv_ack_cq_events(of_event, 1);
		MUST(ibv_req_notify_cq(cq, 0));
	}
	while ((count = ibv_poll_cq(cq, 64, wc)) > 0)
		for (int i = 0; i < count; i++)
			completed(&wc[i], serves, holds);
}

static void happened(struct rdma_cm_event *event)
{
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_id *id = event->id;
	struct connection *c = id->context;
	enum rdma_cm_event_type type = event->event;
	int status = event->status;
	bool serves = event->listen_id;

	MUST(rdma_ack_cm_event(event));
	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		MUST(rdma_resolve_route(id, 2000));
		return;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		add_queue_pair(c);
		MUST(rdma_connect(id, &param));
		return;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		begun++;
		c = free_place(id);
		add_queue_pair(c);
		if (!rdma_accept(id, &param))
			return;
		if (errno != EINVAL)
			fail("rdma_accept: %s", strerror(errno));
		refused++;
		forget(c);
		return;
	case RDMA_CM_EVENT_ESTABLISHED:
		made++;
		c->made = true;
		if (c->number)
			send_word(c, c->number);
		return;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		if (status && status != -ETIMEDOUT)
			fail("DISCONNECTED with status %d", status);
		forget(c);
		return;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		refused++;
		forget(c);
		return;
	default:
		fail("%s with status %d%s", rdma_event_str(type), status, serves ? " of the listener" : "");
	}
}

/* Takes what has happened, waiting for the first for a while. */
static void look_around(int milliseconds, bool serves, bool holds)
{
	struct pollfd readable[] = {{.fd = channel->fd, .events = POLLIN},
				    {.fd = completions ? completions->fd : -1, .events = POLLIN}};
	struct rdma_cm_event *event;

	poll(readable, 2, milliseconds);
	look_for_completions(serves, holds);
	while (!rdma_get_cm_event(channel, &event)) {
		happened(event);
		look_for_completions(serves, holds);
	}
	if (errno != EAGAIN)
		fail("rdma_get_cm_event: %s", strerror(errno));
}

static void begin_one(const char *ip, uint16_t port)
{
	struct connection *c = free_place(new_id(channel, RDMA_PS_TCP));

	c->number = ++begun;
	MUST(resolve(c->id, ip, port));
}

static void run_client(const char *ip, uint16_t port, int count, int rate)
{
	uint64_t since = now_ms();
	bool holds = !rate;

	while (ended < count) {
		uint64_t passed = now_ms() - since;
		uint64_t due = holds ? (uint64_t)made + refused + AT_A_TIME : passed * rate / 1000 + 1;

		while (begun < count && (uint64_t)begun < due)
			begin_one(ip, port);
		if (holds && answered + refused + failed == count) {
			printf("all %d at once after %d ms\n", live, (int)passed);
			for (int i = 0; i < MOST; i++)
				if (connections[i].id)
					leave(&connections[i]);
			holds = false;
		}
		look_around(begun < count ? 2 : 100, false, holds);
		if (passed > LONGEST_MS)
			fail("%d of %d haven't ended: %d begun, %d made, %d answered", count - ended, count, begun,
			     made, answered);
	}
	printf("%d connections in %d ms: %d answered, %d refused, %d failed\n", count, (int)(now_ms() - since),
	       answered, refused, failed);
}

static void run_server(const char *ip, uint16_t port)
{
	struct rdma_cm_id *listens = new_id(channel, RDMA_PS_TCP);
	uint64_t since = 0;

	MUST(bind_to(listens, ip, port));
	MUST(rdma_listen(listens, 0));
	puts("listening");
	fflush(stdout);
	while (!no_more || live) {
		look_around(50, true, false);
		if (no_more && !since)
			since = now_ms();
		for (int i = 0; gives_up && i < MOST; i++)
			if (connections[i].id)
				forget(&connections[i]);
		if (since && now_ms() - since > LONGEST_MS)
			fail("%d connections haven't ended", live);
	}
	printf("%d requests, %d made, %d refused, %d failed\n", begun, made, refused, failed);
	MUST(rdma_destroy_id(listens));
}

int main(int argc, char **argv)
{
	int descriptors, threads;
	long kib;

	if (argc < 4)
		fail("usage: many server IP PORT | many client IP PORT CONNECTIONS RATE");
	alarm(235);
	signal(SIGUSR1, stop);
	signal(SIGUSR2, stop);
	channel = MAKE(rdma_create_event_channel());
	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	descriptors = entries("/proc/self/fd");
	threads = entries("/proc/self/task");
	kib = resident_kib();
	if (!strcmp(argv[1], "server"))
		run_server(argv[2], atoi(argv[3]));
	else
		run_client(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
	descriptors = entries("/proc/self/fd") - descriptors;
	threads = entries("/proc/self/task") - threads;
	kib = resident_kib() - kib;
	printf("%d descriptors, %d threads, %ld KiB more than at the begin\n", descriptors, threads, kib);
	if (descriptors > MORE_DESCRIPTORS || threads > MORE_THREADS || kib > MORE_KIB)
		fail("something is left of %d connections", begun);
	puts("ok");
	return 0;
}
