/* man rdma_resolve_addrinfo, rdma_query_addrinfo, rdma_write_cm_event: calls that the library of older distributions lacks. */
#include "cm.h"
#include <dlfcn.h>

/* Of newer headers. */
#define ADDRINFO_RESOLVED ((enum rdma_cm_event_type)16)
#define ADDRINFO_ERROR ((enum rdma_cm_event_type)17)
#define USER ((enum rdma_cm_event_type)18)

static struct {
	int (*resolve_addrinfo)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
	int (*query_addrinfo)(struct rdma_cm_id *, struct rdma_addrinfo **);
	int (*write_cm_event)(struct rdma_cm_id *, enum rdma_cm_event_type, int, uint64_t);
} newer;

static void names(struct rdma_event_channel *channel)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info = NULL;
	struct sockaddr_storage expected = address(here, 7471);
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct heard heard;

	is_refused(newer.resolve_addrinfo(id, NULL, NULL, &hints), EINVAL, "rdma_resolve_addrinfo(3): neither node nor service: EINVAL");
	is_refused(newer.query_addrinfo(id, &info), ENOENT, "rdma_query_addrinfo(3): before a name is resolved: ENOENT");
	is_done(newer.resolve_addrinfo(id, here, "7471", &hints), "rdma_resolve_addrinfo(3): 0 on success");
	heard = hear(channel);
	is_event(&heard, ADDRINFO_RESOLVED, 0, "rdma_resolve_addrinfo(3): ADDRINFO_RESOLVED when the name is resolved");
	is_done(newer.query_addrinfo(id, &info), "rdma_query_addrinfo(3): 0 on success");
	check(info && !memcmp(info->ai_dst_addr, &expected, sizeof(struct sockaddr_in)), "rdma_query_addrinfo(3): the address of node and service");
	rdma_freeaddrinfo(info);
	is_refused(newer.query_addrinfo(id, &info), ENOENT, "rdma_query_addrinfo(3): a second time: ENOENT");
	hints.ai_flags = RAI_NUMERICHOST;
	is_done(newer.resolve_addrinfo(id, "no number", NULL, &hints), "rdma_resolve_addrinfo(3): a name that isn't known: 0");
	heard = hear(channel);
	check(heard.came && heard.event.event == ADDRINFO_ERROR && heard.event.status,
	      "rdma_resolve_addrinfo(3): a name that isn't known: ADDRINFO_ERROR, status contains the error");
	MUST(rdma_destroy_id(id));
}

static void events(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	uint64_t arg = 0;
	struct heard heard;

	is_refused(newer.write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL, "rdma_write_cm_event(3): another event than USER: EINVAL");
	is_done(newer.write_cm_event(id, USER, 77, 0x1122334455667788), "rdma_write_cm_event(3): 0 on success");
	heard = hear(channel);
	is_event(&heard, USER, 77, "rdma_write_cm_event(3): the channel has the event, with its status");
	/* The argument has the place of the parameters. */
	memcpy(&arg, &heard.event.param, sizeof arg);
	check(arg == 0x1122334455667788 && heard.event.id == id, "rdma_write_cm_event(3): and its argument and id");
	MUST(rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	begin_cm(argc, argv);
	struct rdma_event_channel *channel = MAKE(rdma_create_event_channel());

	newer.resolve_addrinfo = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	newer.query_addrinfo = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	newer.write_cm_event = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	if (newer.resolve_addrinfo && newer.query_addrinfo && newer.write_cm_event) {
		names(channel);
		events(channel);
	} else {
		skip("the library lacks it", "rdma_write_cm_event(3): 0 on success");
	}
	rdma_destroy_event_channel(channel);
	return end();
}
