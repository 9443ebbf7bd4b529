/* One side of a connection that stops on its way, for the test to kill or stop either side there. SIGUSR1 makes it go on: it does
 * what a program does until the connection has ended, and prints the event that ended it. A server then serves one more client.
 * SIGUSR2 makes it exit.
 *
 * usage: states server|client IP PORT STATE
 */
#include "connections/cm.h"
#include <signal.h>

/* Where the connection is when both sides stop: */
static const char *const STATES[] = {
	"unfetched",     /* the server hasn't fetched the request, */
	"fetched",       /* or hasn't answered it, */
	"accepted",      /* the client hasn't fetched the reply, */
	"established",   /* all is well, */
	"disconnecting", /* the server hasn't fetched the client's wish to end, */
	"ending",        /* or the client the server's. */
};
enum { UNFETCHED, FETCHED, ACCEPTED, ESTABLISHED, DISCONNECTING, ENDING, COUNT };

/* An established connection that nothing happens to is ended by this side after this. */
enum { PATIENCE_MS = 1000 };
/* No state lasts longer: all repetitions of a message take 98 s. */
enum { LONGEST_MS = 150000 };

static struct rdma_event_channel *channel;
static struct rdma_cm_event *request;

static void there(void)
{
	sigset_t set;
	int signal;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	puts("there");
	fflush(stdout);
	MUST(sigwait(&set, &signal));
	if (signal == SIGUSR2)
		exit(0);
}

static void wait_for_event(void)
{
	if (!is_readable(channel->fd, 20000))
		fail("nothing has come");
}

/* False: the peer has gone meanwhile. */
static bool accept_request(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
	bool accepted;

	add_qp(id);
	accepted = !rdma_accept(id, &param);
	if (!accepted && errno != EINVAL)
		fail("rdma_accept: %s", strerror(errno));
	MUST(rdma_ack_cm_event(request));
	return accepted;
}

static void connect_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};

	MUST(resolve(id, ip, port));
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, 2000));
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	add_qp(id);
	MUST(rdma_connect(id, &param));
}

static struct rdma_cm_id *serve_until(int state)
{
	struct rdma_cm_id *id = NULL;

	wait_for_event();
	if (state >= FETCHED) {
		request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
		id = request->id;
	}
	if (state >= ACCEPTED && !accept_request(id))
		fail("rdma_accept: %s", strerror(errno));
	/* The client's wish may overtake its word that it is ready: all that comes lies unfetched. */
	if (state == DISCONNECTING)
		wait_for_event();
	else if (state >= ESTABLISHED)
		pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	if (state == ENDING)
		MUST(rdma_disconnect(id));
	return id;
}

static void ask_until(struct rdma_cm_id *id, int state)
{
	if (state == ACCEPTED)
		wait_for_event();
	if (state >= ESTABLISHED)
		pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	if (state == DISCONNECTING)
		MUST(rdma_disconnect(id));
	if (state == ENDING)
		wait_for_event();
}

static void ended(const char *how, int status, uint64_t since)
{
	printf("ended by %s %d after %d ms\n", how, status, (int)(now_ms() - since));
	fflush(stdout);
}

static void forget(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id));
}

/* Goes on as a program does until the connection has ended. */
static void finish(struct rdma_cm_id *id, bool serves, int state)
{
	bool established = state == ESTABLISHED;
	uint64_t since = now_ms();

	if (serves && state == FETCHED && !accept_request(id)) {
		ended("refusal", -EINVAL, since);
		forget(id);
		return;
	}
	for (;;) {
		struct rdma_cm_event *event;
		enum rdma_cm_event_type type;
		int status;

		if (!is_readable(channel->fd, established ? PATIENCE_MS : LONGEST_MS)) {
			if (!established)
				fail("nothing has come in %d s", LONGEST_MS / 1000);
			established = false;
			MUST(rdma_disconnect(id));
			continue;
		}
		MUST(rdma_get_cm_event(channel, &event));
		type = event->event;
		status = event->status;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			/* One who has died. */
			if (id) {
				struct rdma_cm_id *another = event->id;

				MUST(rdma_ack_cm_event(event));
				MUST(rdma_destroy_id(another));
				continue;
			}
			request = event;
			id = event->id;
			if (accept_request(id))
				continue;
			ended("refusal", -EINVAL, since);
			break;
		}
		MUST(rdma_ack_cm_event(event));
		if (type == RDMA_CM_EVENT_ESTABLISHED) {
			established = serves;
			if (!serves)
				MUST(rdma_disconnect(id));
		} else if (type != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
			ended(rdma_event_str(type), status, since);
			break;
		}
	}
	forget(id);
}

int main(int argc, char **argv)
{
	int state = 0;
	sigset_t set;
	bool serves;
	uint16_t port;
	struct rdma_cm_id *id;

	while (argc == 5 && state < COUNT && strcmp(argv[4], STATES[state]))
		state++;
	if (argc != 5 || state == COUNT)
		fail("usage: states server|client IP PORT STATE");
	serves = !strcmp(argv[1], "server");
	port = atoi(argv[3]);
	alarm(230);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	channel = MAKE(rdma_create_event_channel());
	id = new_id(channel, RDMA_PS_TCP);
	if (serves) {
		struct rdma_cm_id *listens = id;

		MUST(bind_to(listens, argv[2], port));
		MUST(rdma_listen(listens, 0));
		puts("listening");
		fflush(stdout);
		id = serve_until(state);
		there();
		finish(id, true, state);
		finish(NULL, true, UNFETCHED);
		MUST(rdma_destroy_id(listens));
	} else {
		connect_to(id, argv[2], port);
		ask_until(id, state);
		there();
		finish(id, false, state);
	}
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
