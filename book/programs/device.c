/* Lists the devices, opens the first and shows its port and its addresses. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_port_attr port;
	union ibv_gid gid;
	char text[INET6_ADDRSTRLEN];

	if (!list || !list[0]) {
		fprintf(stderr, "no device: start the program with `ferroce run`\n");
		return 1;
	}
	for (int i = 0; list[i]; i++)
		printf("device %s\n", ibv_get_device_name(list[i]));

	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	if (!context) {
		perror("ibv_open_device");
		return 1;
	}
	if (ibv_query_port(context, 1, &port)) {
		perror("ibv_query_port");
		return 1;
	}
	printf("port 1 is %s, its MTU is %d bytes\n", ibv_port_state_str(port.state), 128 << port.active_mtu);
	for (int i = 0; i < 2; i++)
		if (!ibv_query_gid(context, 1, i, &gid))
			printf("GID %d is %s\n", i, inet_ntop(AF_INET6, &gid, text, sizeof text));
	ibv_close_device(context);
	return 0;
}
