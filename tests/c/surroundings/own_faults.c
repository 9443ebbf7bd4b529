/* own_faults: a program with a fault of its own, which has, or hasn't, been the target of requests before. Its
 * handler is called as it is without them, and the program ends as it does without them.
 *
 * usage: own_faults KIND never|before|after|around    the requests: before the handler is installed, after, both
 */
#define _GNU_SOURCE
#include "common.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/auxv.h>

/* Unmapped in every process. */
#define NOWHERE ((volatile int *)16)

static volatile sig_atomic_t calls;
static struct sigaction action_before;
static char *alternate;
static size_t alternate_size;
static sigjmp_buf recovery;

static void say(const char *text)
{
	if (write(STDOUT_FILENO, text, strlen(text)) < 0)
		_exit(90);
}

/* A handler that is called for ever is the error these tests are about. */
static void called(void)
{
	if (++calls > 4) {
		say("called for ever\n");
		_exit(91);
	}
	say("[crash report]\n");
}

static void returns(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	called();
	say(info->si_addr == NOWHERE ? "the address\n" : "another address\n");
}

static void raises(int signal, siginfo_t *info, void *context)
{
	returns(signal, info, context);
	raise(signal);
	say("after the signal\n");
	_exit(92);
}

static void faults(int signal)
{
	(void)signal;
	called();
	*NOWHERE = 1;
}

static void leaves(int signal)
{
	called();
	_exit(signal);
}

static void jumps(int signal)
{
	called();
	siglongjmp(recovery, signal);
}

static void chains(int signal, siginfo_t *info, void *context)
{
	called();
	if (action_before.sa_flags & SA_SIGINFO)
		action_before.sa_sigaction(signal, info, context);
	else
		sigaction(signal, &action_before, NULL);
}

static void tells_circumstances(int signal, siginfo_t *info, void *context)
{
	char here, text[128];
	sigset_t blocked;
	int errno_before = errno;

	(void)context;
	sigprocmask(SIG_BLOCK, NULL, &blocked);
	snprintf(text, sizeof text, "blocked %d %d %d, %s stack, code %d, errno %d\n", sigismember(&blocked, signal),
		 sigismember(&blocked, SIGUSR1), sigismember(&blocked, SIGUSR2),
		 (size_t)(&here - alternate) < alternate_size ? "alternate" : "own", info->si_code, errno_before);
	say(text);
	_exit(5);
}

/* What to install, and whether the signal is sent or is a fault. */
static const struct kind {
	const char *name;
	void (*handler)(int);
	void (*long_handler)(int, siginfo_t *, void *);
	int flags;
	int masked;
	bool sent;
	/* The handler that is there (a sanitizer's) stays. */
	bool nothing;
	/* All threads of the program block the signal, which is sent to the process, and one fetches it. */
	bool blocked;
} kinds[] = {
	{"default", SIG_DFL, NULL, 0, 0, false, false, false},
	{"nothing", NULL, NULL, 0, 0, false, true, false},
	{"blocked_segv", NULL, NULL, 0, SIGSEGV, true, true, true},
	{"blocked_bus", NULL, NULL, 0, SIGBUS, true, true, true},
	{"default_sent", SIG_DFL, NULL, 0, 0, true, false, false},
	{"ignored", SIG_IGN, NULL, 0, 0, false, false, false},
	{"ignored_sent", SIG_IGN, NULL, 0, 0, true, false, false},
	{"returns", NULL, returns, SA_RESETHAND, 0, false, false, false},
	{"raises", NULL, raises, SA_RESETHAND | SA_NODEFER | SA_ONSTACK, 0, false, false, false},
	{"raises_later", NULL, raises, SA_RESETHAND, 0, false, false, false},
	{"faults", faults, NULL, 0, 0, false, false, false},
	{"faults_within", faults, NULL, SA_NODEFER, 0, false, false, false},
	{"leaves", leaves, NULL, 0, 0, false, false, false},
	{"jumps", jumps, NULL, SA_NODEFER, 0, false, false, false},
	{"chains", NULL, chains, 0, 0, false, false, false},
	{"circumstances", NULL, tells_circumstances, 0, SIGUSR1, false, false, false},
	{"circumstances_else", NULL, tells_circumstances, SA_NODEFER | SA_ONSTACK, SIGUSR2, false, false, false},
	{"circumstances_sent", NULL, tells_circumstances, SA_ONSTACK, SIGUSR2, true, false, false},
};

static struct device device;
static struct ibv_cq *cq;
static struct ibv_qp *requester;
static struct ibv_mr *mr;

static void set_up(void)
{
	struct path path;

	device = open_device(1);
	path = default_path(&device);
	cq = make_cq(&device, 16, NULL);
	requester = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);
	struct ibv_qp *responder = make_qp(&device, IBV_QPT_RC, cq, NULL, 4);

	mr = MAKE(ibv_reg_mr(device.pd, MAKE(calloc(2, 8)), 16, ALL_ACCESS));
	MUST(to_init(requester, ALL_ACCESS));
	MUST(to_init(responder, ALL_ACCESS));
	connect_qps(&device, &path, requester, responder);
}

/* Atomics and WRITEs for some milliseconds: an adapter may look at the program's handlers only now and then. */
static void do_requests(void)
{
	uint64_t end = now_ms() + 5;

	do {
		struct ibv_sge sge = {(uintptr_t)mr->addr + 8, 8, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
					 .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_wc wc;

		wr.wr.atomic = (typeof(wr.wr.atomic)){.remote_addr = (uintptr_t)mr->addr, .compare_add = 1, .rkey = mr->rkey};
		MUST(ibv_post_send(requester, &wr, &bad));
		MUST_COMPLETE(cq, &wc);
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma = (typeof(wr.wr.rdma)){.remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey};
		MUST(ibv_post_send(requester, &wr, &bad));
		MUST_COMPLETE(cq, &wc);
	} while (now_ms() < end);
}

static void install(const struct kind *kind)
{
	struct sigaction action = {.sa_flags = kind->flags};

	alternate_size = getauxval(AT_MINSIGSTKSZ) + 4096;
	alternate = MAKE(malloc(alternate_size));
	MUST(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = alternate_size}, NULL));
	if (kind->long_handler) {
		action.sa_sigaction = kind->long_handler;
		action.sa_flags |= SA_SIGINFO;
	} else {
		action.sa_handler = kind->handler;
	}
	if (kind->masked)
		sigaddset(&action.sa_mask, kind->masked);
	MUST(sigaction(SIGSEGV, &action, &action_before));
}

/* To the process: any thread that doesn't block it would take it. */
static void send_and_fetch(int signal, const sigset_t *set)
{
	struct timespec limit = {.tv_sec = 10};

	MUST(kill(getpid(), signal));
	usleep(20000);
	if (sigtimedwait(set, NULL, &limit) != signal)
		fail("signal %d is gone", signal);
	say("fetched\n");
}

int main(int argc, char **argv)
{
	static const struct kind *kind;

	for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof kinds[0]; i++)
		if (!strcmp(kinds[i].name, argv[1]))
			kind = &kinds[i];
	if (!kind)
		fail("usage: own_faults KIND never|before|after|around");
	bool before = !strcmp(argv[2], "before"), after = !strcmp(argv[2], "after"), around = !strcmp(argv[2], "around");

	sigset_t blocked;

	alarm(ALARM_SECONDS);
	sigemptyset(&blocked);
	if (kind->blocked)
		sigaddset(&blocked, kind->masked);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	set_up();
	if (before || around)
		do_requests();
	if (!kind->nothing)
		install(kind);
	if (after || around)
		do_requests();
	sigsetjmp(recovery, 1);
	if (calls == 3)
		return 6;
	errno = ENOTTY;
	if (kind->blocked)
		send_and_fetch(kind->masked, &blocked);
	else if (kind->sent)
		raise(SIGSEGV);
	else
		*NOWHERE = 1;
	say("goes on\n");
	return 0;
}
