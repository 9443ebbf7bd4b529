/* Connects to a peer on another host while a thread of the same process polls an empty completion queue, or waits for an event of
 * one: neither keeps messages of the communication manager waiting, nor what comes to an address that no queue pair uses.
 *
 * usage: occupied polls|waits IP server|client */
#include "connections/cm.h"
#include <sys/resource.h>

enum { PORT = 7500, CONNECTIONS = 20 };

/* How long all connections may take: the first repetition of a lost message comes after 4 s. */
enum { LIMIT_MS = 3000 };

static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static volatile bool over;

static void *poll_all_the_time(void *unused)
{
	struct ibv_wc wc;

	while (!over)
		if (ibv_poll_cq(cq, 1, &wc))
			fail("there is a completion of nothing");
	return unused;
}

static void *wait_all_the_time(void *unused)
{
	struct ibv_cq *of_event;
	void *context;

	MUST(ibv_req_notify_cq(cq, 0));
	MUST(ibv_get_cq_event(completions, &of_event, &context));
	fail("there is an event of nothing");
	return unused;
}

/* A packet for no queue pair, to each socket that the server may have. */
static void send_strays(const char *ip)
{
	struct sockaddr_storage to = address(ip, 4791);
	int fd = socket(to.ss_family, SOCK_DGRAM, 0);

	if (fd < 0)
		fail("socket: %s", strerror(errno));
	for (uint32_t slot = 0; slot < 64; slot++) {
		/* SEND only, P_Key ffff, and a QPN of the slot. */
		unsigned char packet[20] = {4, 0, 0xff, 0xff, 0, slot >> 4, slot << 4, 1};

		if (sendto(fd, packet, sizeof(packet), 0, (void *)&to, sizeof(to)) != sizeof(packet))
			fail("sendto: %s", strerror(errno));
	}
	close(fd);
}

/* A client's connection, without a queue pair: no address of the host has one. */
static void connect_and_leave(struct rdma_event_channel *channel, const char *ip)
{
	struct rdma_conn_param param = {.qp_num = 17};
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	MUST(resolve(id, ip, PORT));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, 2000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	MUST(rdma_connect(id, &param));
	pass(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	MUST(rdma_establish(id));
	MUST(rdma_disconnect(id));
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_destroy_id(id));
}

static void accept_and_leave(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	struct rdma_conn_param param = {.qp_num = 18};
	struct rdma_cm_id *id = event->id;

	MUST(rdma_accept(id, &param));
	MUST(rdma_ack_cm_event(event));
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	MUST(rdma_disconnect(id));
	MUST(rdma_destroy_id(id));
}

static double used_seconds(void)
{
	struct rusage usage;

	MUST(getrusage(RUSAGE_SELF, &usage));
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());
	bool waits, serves;
	struct rdma_cm_id *id;
	pthread_t thread;
	double used;

	if (argc != 4)
		fail("usage: occupied polls|waits IP server|client");
	waits = !strcmp(argv[1], "waits");
	serves = !strcmp(argv[3], "server");
	alarm(ALARM_SECONDS);
	id = new_id(channel, RDMA_PS_TCP);
	if (serves) {
		MUST(bind_to(id, argv[2], PORT));
	} else {
		MUST(resolve(id, argv[2], PORT));
		pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	}
	completions = MAKE(ibv_create_comp_channel(id->verbs));
	cq = MAKE(ibv_create_cq(id->verbs, 4, NULL, completions, 0));
	MUST(pthread_create(&thread, NULL, waits ? wait_all_the_time : poll_all_the_time, NULL));
	if (serves) {
		MUST(rdma_listen(id, CONNECTIONS));
		puts("listening");
		fflush(stdout);
		for (int i = 0; i < CONNECTIONS; i++)
			accept_and_leave(channel);
	} else {
		uint64_t since;

		send_strays(argv[2]);
		since = now_ms();
		for (int i = 0; i < CONNECTIONS; i++)
			connect_and_leave(channel, argv[2]);
		if (now_ms() - since > LIMIT_MS)
			fail("%d connections took %d ms", CONNECTIONS, (int)(now_ms() - since));
	}
	/* Unread packets for no queue pair don't keep the thread awake. */
	used = used_seconds();
	usleep(500000);
	if (waits && used_seconds() - used > 0.25)
		fail("the thread that waits is at work all the time");
	over = true;
	if (!waits)
		MUST(pthread_join(thread, NULL));
	puts("ok");
	return 0;
}
