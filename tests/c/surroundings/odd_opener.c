/* odd_opener: what the thread that opens the device has and the adapter's threads mustn't depend on.
 *
 *   odd_opener thread_locals   8 MiB of thread-local variables, which the C library puts on each thread's stack
 *   odd_opener no_descriptor   no descriptor left, while another process starts
 */
#include "common.h"
#include <fcntl.h>
#include <sys/wait.h>

static __thread char variables[8 << 20];

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
	bool full = argc == 2 && !strcmp(argv[1], "no_descriptor");

	alarm(ALARM_SECONDS);
	if (argc != 2 || (!full && strcmp(argv[1], "thread_locals")))
		fail("usage: odd_opener thread_locals|no_descriptor");
	variables[0] = 1;

	struct device device = open_device(1);
	/* The background thread starts with the first queue pair at the latest. */
	struct ibv_cq *cq = make_cq(&device, 1, NULL);
	struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, cq, NULL, 1);

	MUST(to_init(qp, ALL_ACCESS));
	if (full)
		start_another(argv);
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_destroy_cq(cq));
	puts("ok");
	return variables[1];
}
