/* Threads of one or two processes that make the calls which the coordinator (the main thread) asks for, one at a time. A call may block: the
 * coordinator goes on meanwhile. All that they share is in memory that both processes map.
 */
#ifndef AGENTS_H
#define AGENTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 2, AGENTS = 8, POLLED = 10, SEEN = 128 };

/* A call that an agent makes, with its arguments and results; what they mean depends on the call. */
struct command {
	long (*run)(struct command *);
	int fd, other, how;
	long size;
	uint32_t stream;
	uint64_t offset;
	struct pollfd polled[POLLED];
	int count;
	struct epoll_event events[SEEN];
	long result;
	int error;
	/* Bytes that aren't those of the stream. */
	bool wrong;
	/* Signals that this thread has handled since the command began. */
	int handled;
};

struct agent {
	sem_t go, done;
	struct command command;
	pid_t process, thread;
	/* The command has been started by the agent, and has ended. */
	_Atomic bool begun, ended;
	/* The coordinator's: it has given a command and hasn't taken the result. */
	bool busy;
};

struct shared {
	struct agent agents[PROCESSES][AGENTS];
	_Atomic int up;
	/* The first that goes wrong in a phase in which many agents act at once. */
	_Atomic int complaints;
	char complaint[200];
};

static struct shared *shared;
static int processes = 1;
static int limit_ms = 20000;
static _Thread_local volatile int handled_here;

static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fflush(stdout);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(1);
}

#define NEED(condition)                                                                                    \
	do {                                                                                               \
		if (!(condition))                                                                          \
			fail("%s:%d: not so: %s (errno %s)", __FILE__, __LINE__, #condition, strerror(errno)); \
	} while (0)

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nap(long microseconds)
{
	struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};

	nanosleep(&time, NULL);
}

static void count_signal(int number)
{
	(void)number;
	handled_here++;
}

static void *act(void *argument)
{
	struct agent *agent = argument;
	sigset_t blocked;

	/* SIGUSR1 interrupts a call. SIGUSR2 does so only in calls that unblock it. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	agent->process = getpid();
	agent->thread = syscall(SYS_gettid);
	shared->up++;
	for (;;) {
		struct timespec none = {0};

		while (sem_wait(&agent->go) != 0)
			;
		handled_here = 0;
		agent->begun = true;
		errno = 0;
		agent->command.result = agent->command.run(&agent->command);
		agent->command.error = agent->command.result < 0 ? errno : 0;
		agent->command.handled = handled_here;
		while (sigtimedwait(&blocked, NULL, &none) > 0)
			;
		agent->ended = true;
		sem_post(&agent->done);
	}
	return NULL;
}

static void start_threads(int process)
{
	struct sigaction action = {.sa_handler = count_signal};
	pthread_t thread;

	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGUSR2, &action, NULL);
	sigaction(SIGPIPE, &action, NULL);
	for (int i = 0; i < AGENTS; i++)
		NEED(pthread_create(&thread, NULL, act, &shared->agents[process][i]) == 0);
}

/* The second process is forked before there is a socket. */
static void start_agents(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	NEED(shared != MAP_FAILED);
	for (int p = 0; p < processes; p++)
		for (int i = 0; i < AGENTS; i++) {
			NEED(sem_init(&shared->agents[p][i].go, 1, 0) == 0);
			NEED(sem_init(&shared->agents[p][i].done, 1, 0) == 0);
		}
	if (processes == 2) {
		pid_t child = fork();

		NEED(child >= 0);
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			start_threads(1);
			for (;;)
				pause();
		}
	}
	start_threads(0);
	for (long start = now_ms(); shared->up < processes * AGENTS; nap(1000))
		if (now_ms() - start > limit_ms)
			fail("agents don't start");
}

/* An agent without a command; the first of each process is kept for `call`. */
static struct agent *free_agent(int process)
{
	for (int i = 1; i < AGENTS; i++)
		if (!shared->agents[process][i].busy)
			return &shared->agents[process][i];
	return NULL;
}

static void give(struct agent *agent, const struct command *command)
{
	agent->command = *command;
	agent->begun = agent->ended = false;
	agent->busy = true;
	sem_post(&agent->go);
}

/* Takes the result of an agent's command; false if there is none within the limit. */
static bool take(struct agent *agent)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += limit_ms / 1000 + 10;
	while (sem_timedwait(&agent->done, &until) != 0)
		if (errno != EINTR)
			return false;
	agent->busy = false;
	return true;
}

/* Whether a thread sleeps in a call: one that has been woken doesn't, even if it hasn't run yet. */
static bool sleeps(const struct agent *agent)
{
	char path[64], text[512], *end;
	ssize_t length;
	int file;

	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", agent->process, agent->thread);
	file = open(path, O_RDONLY | O_CLOEXEC);
	NEED(file >= 0);
	length = read(file, text, sizeof text - 1);
	close(file);
	NEED(length > 0);
	text[length] = 0;
	end = strrchr(text, ')');
	return end && end[2] == 'S';
}

static void interrupt(const struct agent *agent, int number)
{
	syscall(SYS_tgkill, agent->process, agent->thread, number);
}

/* Bytes of a stream, by their place in it; none is zero. */
static uint8_t byte_of(uint32_t stream, uint64_t at)
{
	uint64_t mixed = (at + 1) * 0x9e3779b97f4a7c15 + stream * 0xd1b54a32d192ed03ull;

	mixed ^= mixed >> 29;
	mixed *= 0xbf58476d1ce4e5b9;
	return 1 + (mixed >> 40) % 255;
}

static void fill(uint8_t *bytes, long size, uint32_t stream, uint64_t at)
{
	for (long i = 0; i < size; i++)
		bytes[i] = byte_of(stream, at + i);
}

static bool right(const uint8_t *bytes, long size, uint32_t stream, uint64_t at)
{
	for (long i = 0; i < size; i++)
		if (bytes[i] != byte_of(stream, at + i))
			return false;
	return true;
}

#endif
