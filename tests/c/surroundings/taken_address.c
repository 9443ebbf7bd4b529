/* taken_address: the host gets an address whose UDP port 4791 a program has that shares it with no process. The adapter waits for that program
 * for seconds, and no queue pair, no address handle and no thread of the adapter's waits with it.
 */
#define _GNU_SOURCE
#include <fcntl.h>

#include "surroundings/held_up.h"

/* With pauses of 10 ms in between. */
#define ENOUGH 10

/* Standard error of the other side. */
static int lines[2];

/* Its adapter alone answers. */
static void listen_only(int fd)
{
	MUST(dup2(lines[1], STDERR_FILENO) != STDERR_FILENO);
	begin();
	connect_new(fd);
	meet_again(fd);
	for (;;)
		pause();
}

static bool has_gid(const char *address)
{
	uint8_t wanted[16] = {[10] = 0xff, 0xff};
	union ibv_gid gid;

	if (inet_pton(AF_INET, address, wanted + 12) != 1)
		fail("%s isn't an address", address);
	for (int index = 0; index < device.port.gid_tbl_len; index++)
		if (!ibv_query_gid(device.context, PORT_NUM, index, &gid) && !memcmp(&gid, wanted, sizeof wanted))
			return true;
	return false;
}

static bool has_left_it_out(void)
{
	static char text[4096];
	static size_t length;
	ssize_t got = read(lines[0], text + length, sizeof text - 1 - length);

	if (got > 0)
		length += (size_t)got;
	return strstr(text, "the address is left out");
}

int main(int argc, char **argv)
{
	pid_t other;
	int rounds = 0;

	alarm(ALARM_SECONDS);
	if (argc != 2)
		fail("usage: %s ADDRESS", argv[0]);
	MUST(pipe2(lines, O_NONBLOCK));
	int fd = start_side(listen_only, &other);

	begin();
	struct end end = connect_new(fd);
	struct ibv_ah_attr attr;

	meet_again(fd);
	fill_ah(&attr, &device, &device.gid);
	puts("ready");
	fflush(stdout);
	while (!has_gid(argv[1]))
		usleep(1000);
	while (!has_left_it_out()) {
		struct ibv_ah *ah = MAKE(ibv_create_ah(device.pd, &attr));
		struct ibv_qp *qp = make_qp(&device, IBV_QPT_RC, end.cq, NULL, 1);

		write_and_wait(&end, 0);
		MUST(ibv_destroy_qp(qp));
		MUST(ibv_destroy_ah(ah));
		rounds++;
		usleep(10000);
	}
	if (rounds < ENOUGH)
		fail("%d rounds while the adapter waited for the other program", rounds);
	end_side(other);
	puts("ok");
	return 0;
}
