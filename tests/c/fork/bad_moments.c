/* bad_moments: single forks at moments that are bad for the library: with locks of the program's own, with events that
 * haven't been read or acknowledged, and in the middle of another fork.
 */
#include "children.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* What a child ends with that is refused verbs. */
#define REFUSED 77

static struct device device;
static struct loop loop;
static char memory[64];

static void make_objects(void)
{
	device = open_device(1);
	loop = make_loop_on(&device, MAKE(ibv_create_comp_channel(device.context)), 32, memory, sizeof memory);
}

/* Runs `f` in a child and returns what the child ends with. */
static int in_child(void (*f)(void))
{
	int status;
	pid_t child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0) {
		alarm(CHILD_SECONDS);
		f();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		fail("the child failed (status %x)", status);
	return WEXITSTATUS(status);
}

static void ask(void)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(loop.cq, 1, &wc) < 0)
		_exit(REFUSED);
}

static void expect_child(void (*f)(void), int expected)
{
	int ended_with = in_child(f);

	if (ended_with != expected)
		fail("the child ended with %d instead of %d", ended_with, expected);
}

/* A lock of the program's, which its handlers hold over forks. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool held, forking;

static void take_lock(void)
{
	forking = true;
	pthread_mutex_lock(&lock);
}

static void free_lock(void)
{
	pthread_mutex_unlock(&lock);
}

/* Uses verbs under the lock, once another thread forks. */
static void *poll_under_lock(void *unused)
{
	struct ibv_wc wc;

	pthread_mutex_lock(&lock);
	held = true;
	while (!forking)
		usleep(100);
	if (ibv_poll_cq(loop.cq, 1, &wc) < 0)
		fail("ibv_poll_cq beside a fork");
	pthread_mutex_unlock(&lock);
	return unused;
}

static void fork_with_lock(int expected)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, poll_under_lock, NULL))
		fail("pthread_create");
	while (!held)
		usleep(100);
	expect_child(ask, expected);
	if (pthread_join(thread, NULL))
		fail("pthread_join");
	pass_message(&loop);
	expect_child(ask, 0);
}

/* Handlers that come to know of a fork after the library's: the library can't know what they wait for. */
static void lock_registered_before(void)
{
	make_objects();
	fork_with_lock(REFUSED);
}

/* Registered before the first verbs call or after it: these handlers are called before the library's. */
static void lock_registered_first(void)
{
	pthread_atfork(take_lock, free_lock, free_lock);
	make_objects();
	fork_with_lock(0);
}

static void lock_registered_later(void)
{
	make_objects();
	pthread_atfork(take_lock, free_lock, free_lock);
	fork_with_lock(0);
}

static void drain(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};

	MUST(ibv_modify_qp(loop.a, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	while (!is_readable(device.context->async_fd, 0))
		usleep(1000);
}

static void destroy(void)
{
	MUST(ibv_destroy_qp(loop.a));
	MUST(ibv_destroy_qp(loop.b));
	MUST(ibv_destroy_cq(loop.cq));
}

/* The child ends the object of an event that the parent hasn't read. */
static void unread(void)
{
	struct ibv_async_event event;

	make_objects();
	drain();
	expect_child(destroy, 0);
	if (!is_readable(device.context->async_fd, 0))
		fail("the parent's event isn't announced any more");
	MUST(ibv_get_async_event(device.context, &event));
	if (event.event_type != IBV_EVENT_SQ_DRAINED || event.element.qp != loop.a)
		fail("event %d", event.event_type);
	ibv_ack_async_event(&event);
	if (is_readable(device.context->async_fd, 0))
		fail("an event is announced that isn't there");
}

static void have_event(void)
{
	MUST(post_send(loop.a, loop.mr, 0, 8, 3));
	if (!is_readable(loop.channel->fd, 0))
		fail("the child's event isn't announced");
}

static void take_event(void)
{
	struct ibv_cq *of;
	void *context;

	have_event();
	MUST(ibv_get_cq_event(loop.channel, &of, &context));
	if (of != loop.cq || is_readable(loop.channel->fd, 0))
		fail("the child's event is of another queue, or announced for ever");
	ibv_ack_cq_events(of, 1);
}

/* The child has an event on a channel that the parent waits on. */
static void announced(void)
{
	make_objects();
	MUST(ibv_req_notify_cq(loop.cq, 0));
	expect_child(have_event, 0);
	if (is_readable(loop.channel->fd, 0))
		fail("the child's event is announced to the parent");
	expect_child(take_event, 0);
	pass_message(&loop);
	if (!is_readable(loop.channel->fd, 0))
		fail("the parent's event isn't announced");
}

/* The parent has got events that it acknowledges after the fork. */
static void unacknowledged(void)
{
	struct ibv_async_event event;
	struct ibv_cq *of;
	void *context;

	make_objects();
	MUST(ibv_req_notify_cq(loop.cq, 0));
	pass_message(&loop);
	MUST(ibv_get_cq_event(loop.channel, &of, &context));
	drain();
	MUST(ibv_get_async_event(device.context, &event));
	expect_child(destroy, 0);
	ibv_ack_cq_events(of, 1);
	ibv_ack_async_event(&event);
	destroy();
}

/* A thread is in a verbs call for long: here where the library asks for the time. Another one that forks waits for it, and the
 * handler of a signal forks, or calls verbs, in this very fork: where the fork asks for the time.
 */
static _Thread_local bool stays;
static _Thread_local void (*in_fork)(void);
static atomic_bool is_in, may_leave;

static void fork_in_fork(void)
{
	expect_child(ask, REFUSED);
	may_leave = true;
}

static void call_in_fork(void)
{
	time_t began = time(NULL);

	MUST(ibv_dealloc_pd(MAKE(ibv_alloc_pd(device.context))));
	if (time(NULL) - began > 5)
		fail("the call waits for the fork that it is called in");
	may_leave = true;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	if (stays) {
		stays = false;
		is_in = true;
		while (!may_leave)
			usleep(100);
	}
	if (in_fork) {
		void (*f)(void) = in_fork;

		in_fork = NULL;
		f();
	}
	return (int)syscall(SYS_clock_gettime, clock, time);
}

static void *stay_in_call(void *unused)
{
	stays = true;
	pass_message(&loop);
	if (stays)
		fail("no call has asked for the time");
	return unused;
}

static void interrupt_fork(void (*f)(void))
{
	pthread_t thread;

	make_objects();
	if (pthread_create(&thread, NULL, stay_in_call, NULL))
		fail("pthread_create");
	while (!is_in)
		usleep(100);
	in_fork = f;
	expect_child(ask, 0);
	if (in_fork)
		fail("the fork hasn't asked for the time");
	if (pthread_join(thread, NULL))
		fail("pthread_join");
	pass_message(&loop);
}

static void nested(void)
{
	interrupt_fork(fork_in_fork);
}

static void called(void)
{
	interrupt_fork(call_in_fork);
}

/* Runs before any library has been initialised. */
static void register_first(int argc, char **argv, char **unused)
{
	(void)unused;
	if (argc == 2 && !strcmp(argv[1], "lock_registered_before"))
		pthread_atfork(take_lock, free_lock, free_lock);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **, char **) = register_first;

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {CASE(lock_registered_before), CASE(lock_registered_first),
						 CASE(lock_registered_later), CASE(unread), CASE(announced),
						 CASE(unacknowledged), CASE(nested), CASE(called)};

	return run_cases(cases, sizeof cases / sizeof cases[0], argc, argv);
}
