/* other_numbers: two processes in a PID namespace whose /proc is another namespace's, and there another program has the number of the one. What
 * is written to memory that can be shared must reach the peer, and not the program.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mount.h>

#include "surroundings/held_up.h"

#define NUMBER 50
/* More than it takes for the memory to be mapped by the peer. */
#define WRITES 40
/* Of the program. */
#define ITS_WORD 12345

static void skip(const char *what)
{
	printf("skipped: %s: %s\n", what, strerror(errno));
	exit(EXIT_SKIPPED);
}

/* The next process here has the number `NUMBER`. */
static void choose_number(void)
{
	FILE *file = fopen("/proc/sys/kernel/ns_last_pid", "w");

	if (!file || fprintf(file, "%d", NUMBER - 1) < 0 || fclose(file))
		skip("a number of a process can't be chosen");
}

/* A page at the same address in each process that asks for it. */
static volatile uint64_t *map_shared(void)
{
	void *place = (void *)(5ul << 44);
	int fd = memfd_create("page", MFD_CLOEXEC);

	MUST(ftruncate(fd, PAGE));
	if (mmap(place, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != place)
		fail("mmap: %s", strerror(errno));
	return place;
}

static void owner(int fd)
{
	volatile uint64_t *word = map_shared();

	begin();
	connect_to(fd, register_new((void *)word, PAGE));
	meet_again(fd);
	meet_again(fd);
	if (*word != WRITES)
		fail("the owner has %llu", (unsigned long long)*word);
	meet_again(fd);
}

/* In the inner namespace. */
static int writer(void)
{
	pid_t pid;

	choose_number();
	int fd = start_side(owner, &pid);

	if (pid != NUMBER)
		fail("the owner has the number %d", (int)pid);
	begin();
	struct end end = connect_new(fd);
	uint64_t *mine = end.mr->addr;

	meet_again(fd);
	for (*mine = 1; *mine <= WRITES; ++*mine)
		write_and_wait(&end, 0);
	meet_again(fd);
	meet_again(fd);
	return 0;
}

/* A process in a PID namespace of its own. */
static pid_t fork_inside(void)
{
	if (unshare(CLONE_NEWPID))
		skip("unshare");
	pid_t pid = fork();

	if (pid < 0)
		skip("fork");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static int status_of(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		fail("process %d ended with %x", (int)pid, status);
	return WEXITSTATUS(status);
}

int main(void)
{
	alarm(ALARM_SECONDS);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		skip("a mount namespace");
	pid_t outer = fork_inside();

	if (outer)
		return status_of(outer);
	if (mount("proc", "/proc", "proc", 0, NULL))
		skip("mounting /proc");
	volatile uint64_t *shown = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	choose_number();
	if (!fork()) {
		volatile uint64_t *word = map_shared();

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		*word = ITS_WORD;
		for (;;) {
			*shown = *word;
			usleep(1000);
		}
	}
	while (!*shown)
		usleep(1000);
	pid_t inner = fork_inside();

	if (!inner)
		return writer();
	int status = status_of(inner);

	usleep(100000);
	if (*shown != ITS_WORD)
		fail("another program has got %llu", (unsigned long long)*shown);
	if (!status)
		puts("ok");
	return status;
}
