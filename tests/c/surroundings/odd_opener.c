/* odd_opener: what the thread that opens the device has and the adapter's threads mustn't depend on.
 *
 *   odd_opener thread_locals   8 MiB of thread-local variables, which the C library puts on each thread's stack
 *   odd_opener timer_slack     naps that may take a second more, as of a service with TimerSlackNSec=1s
 *   odd_opener no_descriptor   no descriptor left, while another process starts
 */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static __thread char variables[8 << 20];

/* Reads /proc/TASK/NAME. */
static bool read_of(const char *task, const char *name, char *text, size_t size)
{
	char path[300];

	snprintf(path, sizeof path, "/proc/%s/%s", task, name);

	FILE *file = fopen(path, "r");
	bool read = file && fgets(text, (int)size, file);

	if (file)
		fclose(file);
	return read;
}

static void look_at_slack(void)
{
	DIR *tasks = MAKE(opendir("/proc/self/task"));
	char name[64], slack[64];
	int threads = 0;

	for (struct dirent *task; (task = readdir(tasks));) {
		if (!read_of(task->d_name, "comm", name, sizeof name) || strncmp(name, "ferroce", 7))
			continue;
		if (!read_of(task->d_name, "timerslack_ns", slack, sizeof slack))
			fail("%s has no timerslack_ns", task->d_name);
		if (atol(slack) > 50000)
			fail("a thread of the adapter sleeps %ld ns longer than it wants to", atol(slack));
		threads++;
	}
	closedir(tasks);
	if (!threads)
		fail("no thread of the adapter");
}

/* The other process asks this one for the sockets of UDP port 4791. */
static void start_another(char **argv)
{
	int status;
	pid_t child;

	while (fcntl(2, F_DUPFD_CLOEXEC, 0) >= 0)
		;
	if (errno != EMFILE)
		fail("fcntl: %s", strerror(errno));
	child = fork();
	if (!child) {
		execl("/proc/self/exe", argv[0], "thread_locals", NULL);
		_exit(127);
	}
	if (waitpid(child, &status, 0) != child || status)
		fail("the other process ended with status %x", status);
}

int main(int argc, char **argv)
{
	bool slack = argc == 2 && !strcmp(argv[1], "timer_slack");

	alarm(ALARM_SECONDS);
	bool full = argc == 2 && !strcmp(argv[1], "no_descriptor");

	if (argc != 2 || (!slack && !full && strcmp(argv[1], "thread_locals")))
		fail("usage: odd_opener thread_locals|timer_slack|no_descriptor");
	if (slack && prctl(PR_SET_TIMERSLACK, 1000000000))
		fail("prctl: %s", strerror(errno));
	variables[0] = 1;

	struct device device = open_device(1);
	/* The background thread starts with the first queue pair at the latest. */
	struct ibv_cq *cq = make_cq(&device, 1, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 1);

	MUST(to_init(qp, ALL_ACCESS));
	if (slack)
		look_at_slack();
	if (full)
		start_another(argv);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	puts("ok");
	return variables[1];
}
