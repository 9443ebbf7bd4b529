/* What signals, jumps and cancellation do to calls that wait: part of behaviour.c. */
#include <setjmp.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

/* A thread waits in one of these. */
enum wait { IN_RECV, IN_SEND, IN_ACCEPT, IN_READ, IN_POLL, WAITS };

struct waiting {
	enum wait how;
	/* The waiting end, and the other. */
	int fds[2];
	/* What lets a listener accept. */
	struct sockaddr_in name;
	char *bytes;
	size_t size;
};

#define MUCH (8 << 20)

static void set_up(struct waiting *w, enum wait how)
{
	*w = (struct waiting){.how = how, .size = MUCH, .bytes = malloc(MUCH)};
	EXPECT(w->bytes);
	if (how == IN_ACCEPT) {
		w->fds[0] = listener(&w->name, 8);
		w->fds[1] = -1;
		return;
	}
	pair(w->fds);
	/* No byte has room, also when the peer's buffer has taken all that it can. */
	for (int times = 0; how == IN_SEND && times < 25; usleep(20000))
		times = send(w->fds[0], w->bytes, w->size, MSG_DONTWAIT) > 0 ? 0 : times + 1;
}

static ssize_t wait_in(struct waiting *w)
{
	struct pollfd polled = {.fd = w->fds[0], .events = POLLIN};

	switch (w->how) {
	case IN_RECV:
		return recv(w->fds[0], w->bytes, 1, 0);
	case IN_READ:
		return read(w->fds[0], w->bytes, 1);
	case IN_SEND:
		return send(w->fds[0], w->bytes, 1, 0);
	case IN_ACCEPT:
		return accept(w->fds[0], NULL, NULL);
	default:
		return poll(&polled, 1, 20000);
	}
}

/* Ends the wait as the call has it. */
static void end_wait(struct waiting *w)
{
	if (w->how == IN_ACCEPT) {
		w->fds[1] = make_socket(SOCK_STREAM);
		EXPECT(connect(w->fds[1], (struct sockaddr *)&w->name, sizeof w->name) == 0);
	} else if (w->how == IN_SEND) {
		EXPECT(recv(w->fds[1], w->bytes, MUCH, 0) > 0);
		/* What has room only a part of is announced later. */
		while (recv(w->fds[1], w->bytes, MUCH, MSG_DONTWAIT) > 0)
			;
	} else
		EXPECT(send(w->fds[1], "x", 1, 0) == 1);
}

static void tear_down(struct waiting *w)
{
	EXPECT(close(w->fds[0]) == 0);
	if (w->fds[1] >= 0)
		EXPECT(close(w->fds[1]) == 0);
	free(w->bytes);
}

static pthread_t waiter, disturber;
static _Atomic bool enough;
static _Atomic int wanted_signals;

/* Sends signals to the waiting thread until there were as many as wanted, and ends its wait then. */
static void *disturb(void *argument)
{
	struct waiting *w = argument;

	while (signals < wanted_signals && !enough) {
		usleep(500);
		EXPECT(pthread_kill(waiter, SIGUSR1) == 0);
	}
	if (!enough && w)
		end_wait(w);
	return NULL;
}

static void begin_to_disturb(struct waiting *w, int count)
{
	sigset_t blocked, before;

	signals = 0;
	enough = false;
	wanted_signals = count;
	waiter = pthread_self();
	EXPECT(sigemptyset(&blocked) == 0 && sigaddset(&blocked, SIGUSR1) == 0);
	EXPECT(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
	EXPECT(pthread_create(&disturber, NULL, disturb, w) == 0);
	EXPECT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static void end_disturbance(void)
{
	enough = true;
	EXPECT(pthread_join(disturber, NULL) == 0);
}

static void handle(void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* A call goes on after a handler with SA_RESTART, unless it is poll or has a time limit; otherwise it ends with EINTR. */
static void restarts(void)
{
	for (enum wait how = 0; how < WAITS; how++)
		for (int kind = 0; kind < 3; kind++) {
			struct timeval limit = {.tv_sec = 30};
			struct waiting w;
			ssize_t result;

			set_up(&w, how);
			if (kind == 2) {
				int option = how == IN_SEND ? SO_SNDTIMEO : SO_RCVTIMEO;

				EXPECT(setsockopt(w.fds[0], SOL_SOCKET, option, &limit, sizeof limit) == 0);
			}
			handle(count_signal, kind ? SA_RESTART : 0);
			begin_to_disturb(&w, 30);
			errno = 0;
			result = wait_in(&w);
			if (kind == 1 && how != IN_POLL) {
				EXPECT(result >= 0 && signals >= 30 && errno == 0);
				if (how == IN_ACCEPT)
					EXPECT(close(result) == 0);
			} else {
				EXPECT(result == -1 && errno == EINTR && signals > 0);
			}
			end_disturbance();
			tear_down(&w);
		}
}

/* A call that succeeds leaves errno alone, whatever it is. */
static void errno_stays(void)
{
	static const int numbers[] = {0, EINTR, EAGAIN, ERESTART};
	char bytes[2];
	int fds[2];

	pair(fds);
	for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
		errno = numbers[at];
		EXPECT(send(fds[0], "x", 1, 0) == 1 && errno == numbers[at]);
		EXPECT(recv(fds[1], bytes, 1, 0) == 1 && errno == numbers[at]);
		EXPECT_ERRNO(EAGAIN, recv(fds[1], bytes, 1, MSG_DONTWAIT));
	}
	EXPECT(send(fds[0], "x", 1, 0) == 1 && close(fds[0]) == 0);
	EXPECT(recv(fds[1], bytes, 2, MSG_WAITALL) == 1);
	EXPECT(close(fds[1]) == 0);
}

/* A process that was stopped in a call finds the signals that have come meanwhile: they end the call. */
static void stops(void)
{
	sigset_t held, before;
	pid_t child;
	int status;

	handle(count_signal, 0);
	EXPECT(signal(SIGTSTP, SIG_DFL) != SIG_ERR);
	EXPECT(sigemptyset(&held) == 0 && sigaddset(&held, SIGUSR1) == 0 && sigaddset(&held, SIGTSTP) == 0);
	EXPECT(pthread_sigmask(SIG_BLOCK, &held, &before) == 0);
	child = fork();
	if (child == 0) {
		struct waiting w;

		alarm(ALARM_SECONDS / 2);
		set_up(&w, IN_RECV);
		EXPECT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
		EXPECT_ERRNO(EINTR, wait_in(&w));
		EXPECT(signals > 0);
		tear_down(&w);
		exit(0);
	}
	/* A group of its own, with its parent in the session: it isn't an orphan, which can't be stopped. */
	EXPECT(child > 0 && setpgid(child, child) == 0);
	for (;;) {
		usleep(20000);
		EXPECT(kill(child, SIGTSTP) == 0 && waitpid(child, &status, WUNTRACED) == child);
		if (!WIFSTOPPED(status))
			break;
		EXPECT(kill(child, SIGUSR1) == 0 && kill(child, SIGCONT) == 0);
	}
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int used[2];

/* Sends a byte by a socket that nothing else uses, and one by the socket in which the thread waits. */
static void send_two(int number)
{
	int before = errno;

	(void)number;
	if (send(used[0], "h", 1, MSG_DONTWAIT) == 1 && send(used[1], "h", 1, MSG_DONTWAIT) == 1)
		signals++;
	errno = before;
}

/* A handler may use sockets, also the one in which it interrupts a call. */
static void handlers_use_sockets(void)
{
	struct waiting w;
	int others[2];
	char bytes[200];

	set_up(&w, IN_RECV);
	pair(others);
	used[0] = others[0];
	used[1] = w.fds[0];
	handle(send_two, SA_RESTART);
	begin_to_disturb(&w, 100);
	EXPECT(wait_in(&w) == 1);
	end_disturbance();
	EXPECT(signals >= 100 && signals < (int)sizeof bytes);
	EXPECT(recv(others[1], bytes, signals, MSG_WAITALL) == signals);
	EXPECT(recv(w.fds[1], bytes, signals, MSG_WAITALL) == signals);
	EXPECT_ERRNO(EAGAIN, recv(w.fds[1], bytes, 1, MSG_DONTWAIT));
	tear_down(&w);
}

static sigjmp_buf back;
static int jumped;

static void jump(int number)
{
	/* Once. */
	signal(number, SIG_IGN);
	signals++;
	siglongjmp(back, 1);
}

/* The lowest number that is free. */
static int lowest_free(void)
{
	int fd = dup(0);

	EXPECT(fd >= 0 && close(fd) == 0);
	return fd;
}

/* A handler may leave a call by siglongjmp: the socket, the thread and its numbers are as if the call hadn't been made. */
static void jumps(void)
{
	/* What a jump leaves alone. */
	static enum wait how;
	static int free_number;

	for (how = 0; how < WAITS; how++) {
		static struct waiting w;
		ssize_t result;

		set_up(&w, how);
		free_number = lowest_free();
		for (jumped = 0; jumped < 60; jumped++) {
			handle(jump, 0);
			if (sigsetjmp(back, 1) == 0) {
				begin_to_disturb(NULL, 1);
				wait_in(&w);
				fail("%s:%d: the wait has ended", __FILE__, __LINE__);
			}
			EXPECT(signals == 1);
			end_disturbance();
			/* What a thread needs to wait is made once. */
			if (jumped == 1)
				free_number = lowest_free();
		}
		usleep(100000);
		EXPECT(lowest_free() == free_number);
		end_wait(&w);
		result = wait_in(&w);
		EXPECT(result >= 0);
		if (how == IN_ACCEPT) {
			EXPECT(send(result, "a", 1, 0) == 1 && recv(w.fds[1], w.bytes, 1, 0) == 1);
			EXPECT(close(result) == 0);
		}
		tear_down(&w);
	}
}

static void block_another(int number, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;

	(void)number;
	signals += info->si_code == SI_TKILL && !sigismember(&interrupted->uc_sigmask, SIGUSR2) &&
		   !sigismember(&interrupted->uc_sigmask, SIGTERM);
	sigaddset(&interrupted->uc_sigmask, SIGUSR2);
	/* A second one would make good for the first one's mask if that got lost. */
	sigaddset(&interrupted->uc_sigmask, number);
}

/* A handler finds the signals that the program blocks, and may change them for the code that it interrupts. */
static void handlers_change_the_mask(void)
{
	struct sigaction action = {.sa_sigaction = block_another, .sa_flags = SA_SIGINFO};
	sigset_t blocked, before;
	struct waiting w;
	ssize_t result;

	set_up(&w, IN_RECV);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
	do {
		/* Those that are pending are dropped. */
		handle(SIG_IGN, 0);
		EXPECT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
		EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
		begin_to_disturb(&w, 1);
		result = wait_in(&w);
		EXPECT(result == 1 || (result == -1 && errno == EINTR));
		end_disturbance();
		EXPECT(signals == 1 && pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0);
		EXPECT(sigismember(&blocked, SIGUSR2) && sigismember(&blocked, SIGUSR1) && !sigismember(&blocked, SIGTERM));
		/* A signal that came before the call has ended nothing. */
	} while (result == 1);
	tear_down(&w);
}

static void leave_thread(int number)
{
	pthread_exit((void *)(intptr_t)number);
}

static _Atomic int cleaned;

static void count_cleaned(void *argument)
{
	(void)argument;
	cleaned++;
}

static bool asynchronous;

static void *wait_for_the_end(void *argument)
{
	if (asynchronous)
		EXPECT(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	pthread_cleanup_push(count_cleaned, NULL);
	wait_in(argument);
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that waits can be cancelled, and can end in a handler. Its socket serves others. */
static void threads_end(void)
{
	handle(leave_thread, 0);
	for (enum wait how = 0; how < WAITS; how++)
		for (int kind = 0; kind < 3; kind++) {
			struct waiting w;
			ssize_t result;
			void *ended;

			set_up(&w, how);
			asynchronous = kind == 2;
			for (int round = 0; round < 20; round++) {
				pthread_t thread;

				EXPECT(pthread_create(&thread, NULL, wait_for_the_end, &w) == 0);
				usleep(round % 4 * 1000);
				/* It waits by then. */
				if (kind == 2)
					usleep(10000);
				if (kind != 1) {
					EXPECT(pthread_cancel(thread) == 0);
				} else {
					usleep(1000);
					EXPECT(pthread_kill(thread, SIGUSR1) == 0);
				}
				EXPECT(pthread_join(thread, &ended) == 0);
				EXPECT(ended == (kind != 1 ? PTHREAD_CANCELED : (void *)(intptr_t)SIGUSR1));
			}
			end_wait(&w);
			result = wait_in(&w);
			EXPECT(result >= 0);
			if (how == IN_ACCEPT)
				EXPECT(close(result) == 0);
			tear_down(&w);
		}
	EXPECT(cleaned > 0);
}

/* Signals and cancellation concern calls of sockets: a thread that sleeps elsewhere, and can't be cancelled just now, sleeps on. */
static void *sleep_on(void *sleeps)
{
	struct timespec nap = {.tv_nsec = 200 * 1000 * 1000};

	EXPECT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	*(_Atomic bool *)sleeps = true;
	EXPECT(nanosleep(&nap, NULL) == 0);
	EXPECT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	pthread_testcancel();
	return NULL;
}

static void cancelled_threads_sleep_on(void)
{
	struct waiting w;

	/* The library is in use. */
	set_up(&w, IN_RECV);
	for (int round = 0; round < 5; round++) {
		_Atomic bool sleeps = false;
		pthread_t thread;
		void *ended;

		EXPECT(pthread_create(&thread, NULL, sleep_on, &sleeps) == 0);
		while (!sleeps)
			usleep(1000);
		usleep(20 * 1000);
		EXPECT(pthread_cancel(thread) == 0);
		EXPECT(pthread_join(thread, &ended) == 0);
		EXPECT(ended == PTHREAD_CANCELED);
	}
	tear_down(&w);
}
