/* Objects that are left when their device is closed, or when the program exits: `leftovers close|exit|full|broken|none`. "full" closes the
 * device with output that isn't written yet, to a full pipe that has no reader, "broken" to one that has no other end.
 */
#include "../common.h"
#include <fcntl.h>

static void spoil_output(bool breaks)
{
	int fds[2];

	if (pipe(fds) || dup2(fds[1], STDOUT_FILENO) < 0)
		fail("pipe: %s", strerror(errno));
	if (breaks)
		close(fds[0]);
	fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
	while (!breaks && write(STDOUT_FILENO, "x", 1) == 1)
		;
	fcntl(STDOUT_FILENO, F_SETFL, 0);
	printf("more");
}

static struct ibv_mr *register_buffer(const struct device *device)
{
	static char buffer[4096];

	return MAKE(ibv_reg_mr(device->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE));
}

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	if (argc != 2)
		fail("usage: %s close|exit|full|broken|none", argv[0]);
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_mr *mr = register_buffer(&device);

	if (!strcmp(argv[1], "full") || !strcmp(argv[1], "broken"))
		spoil_output(!strcmp(argv[1], "broken"));
	if (!strcmp(argv[1], "none")) {
		MUST(ibv_dereg_mr(mr));
		MUST(ibv_destroy_cq(cq));
		MUST(ibv_dealloc_pd(device.pd));
	}
	if (strcmp(argv[1], "exit"))
		MUST(ibv_close_device(device.context));
	puts("ok");
	return 0;
}
