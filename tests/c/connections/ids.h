/* Addresses and ids of librdmacm, for the programs of this folder and for those of tests/conformance. */
#ifndef IDS_H
#define IDS_H

#include "../basics.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

UNUSED static struct sockaddr_storage address(const char *ip, uint16_t port)
{
	struct sockaddr_storage storage = {0};
	struct sockaddr_in *v4 = (void *)&storage;
	struct sockaddr_in6 *v6 = (void *)&storage;

	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	} else {
		fail("%s isn't an address", ip);
	}
	return storage;
}

UNUSED static int bind_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage to = address(ip, port);

	return rdma_bind_addr(id, (struct sockaddr *)&to);
}

UNUSED static int resolve(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage to = address(ip, port);

	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000);
}

UNUSED static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	MUST(rdma_create_id(channel, &id, NULL, space));
	return id;
}

UNUSED static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->qp_type,
	};

	MUST(rdma_create_qp(id, NULL, &attr));
}

#endif
