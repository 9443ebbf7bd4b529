/* Objects that are left when their device is closed, or when the program exits: `leftovers close|exit|none`. */
#include "../common.h"

static struct ibv_mr *register_buffer(const struct device *device)
{
	static char buffer[4096];

	return MAKE(ibv_reg_mr(device->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE));
}

int main(int argc, char **argv)
{
	alarm(ALARM_SECONDS);
	if (argc != 2)
		fail("usage: %s close|exit|none", argv[0]);
	struct device device = open_device(1);
	struct ibv_cq *cq = make_cq(&device, 4, NULL);
	struct ibv_mr *mr = register_buffer(&device);

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
