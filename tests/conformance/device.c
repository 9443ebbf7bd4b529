/* Devices, ports, GIDs and P_Keys: ibv_get_device_list … ibv_get_pkey_index. */
#include "conform.h"
#include "../c/newer.h"
#include <sys/resource.h>

static void list_of_devices(void)
{
	int count = -1, entries = 0;
	struct ibv_device **list = MAKE(ibv_get_device_list(&count)), **again;
	struct ibv_device *device = pick(list);

	while (list[entries])
		entries++;
	is(count, entries, "ibv_get_device_list(3): the count is that of the NULL-terminated array");
	again = ibv_get_device_list(NULL);
	check(again && again[0], "ibv_get_device_list(3): the count is optional");
	ibv_free_device_list(again);
	check(!strncmp(ibv_get_device_name(device), device->name, sizeof device->name),
	      "ibv_get_device_name(3): the name of the device");
	check(ibv_get_device_guid(device) != 0, "ibv_get_device_guid(3): the GUID of the device");
	check(ibv_get_device_index(device) >= -1, "ibv_get_device_index(3): an index, or -1");
	is(ibv_get_device_index(device), ibv_get_device_index(device), "ibv_get_device_index(3): the index is stable");
	is(device->node_type, IBV_NODE_CA, "ibv_get_device_list(3): a RoCE device is a channel adapter");
	is(device->transport_type, IBV_TRANSPORT_IB, "ibv_get_device_list(3): a RoCE device speaks the IB transport");

	struct ibv_context *first = MAKE(ibv_open_device(device)), *second = MAKE(ibv_open_device(device));

	ibv_free_device_list(list);
	check(first != second, "ibv_open_device(3): each open makes a context of its own");
	check(first->device && !strcmp(ibv_get_device_name(first->device), ibv_get_device_name(second->device)),
	      "ibv_free_device_list(3): an open device outlives the list");
	check(first->async_fd >= 0, "ibv_open_device(3): a context has a descriptor for asynchronous events");
	check(first->num_comp_vectors >= 1, "ibv_open_device(3): a context has a completion vector");
	is(ibv_close_device(first), 0, "ibv_close_device(3): 0 on success");
	check(ibv_query_device(second, &caps) == 0, "ibv_close_device(3): another context of the device stays open");
	is(ibv_close_device(second), 0, "ibv_close_device(3): the last context closes");
}

static void device_attributes(void)
{
	struct ibv_device_attr_ex ex = {.comp_mask = ~0u};

	memset(&caps, 0xff, sizeof caps);
	is(ibv_query_device(ctx, &caps), 0, "ibv_query_device(3): 0 on success");
	check(memchr(caps.fw_ver, 0, sizeof caps.fw_ver) != NULL, "ibv_query_device(3): the firmware's version is a string");
	check(caps.node_guid == ibv_get_device_guid(ctx->device), "ibv_query_device(3): the GUID is that of ibv_get_device_guid");
	check(caps.max_mr_size >= 1 << 20, "ibv_query_device(3): max_mr_size is returned");
	check(caps.page_size_cap & 4096, "ibv_query_device(3): pages of 4096 bytes are supported");
	check(caps.max_qp > 0 && caps.max_qp_wr > 0 && caps.max_sge > 0, "ibv_query_device(3): limits of QPs are returned");
	check(caps.max_sge_rd > 0, "ibv_query_device(3): the limit of s/g elements of a READ is returned");
	check(caps.max_cq > 0 && caps.max_cqe > 0, "ibv_query_device(3): limits of CQs are returned");
	check(caps.max_mr > 0 && caps.max_pd > 0, "ibv_query_device(3): limits of MRs and PDs are returned");
	check(caps.max_ah > 0, "ibv_query_device(3): the limit of AHs is returned");
	check(caps.max_qp_rd_atom > 0 && caps.max_qp_init_rd_atom > 0,
	      "ibv_query_device(3): limits of outstanding READs and atomics are returned");
	check(caps.max_srq >= 0 && (caps.max_srq == 0) == (caps.max_srq_wr == 0),
	      "ibv_query_device(3): limits of SRQs belong together");
	check(caps.phys_port_cnt >= 1, "ibv_query_device(3): there is a port");
	check(caps.max_pkeys >= 1, "ibv_query_device(3): there is a P_Key");
	check(caps.local_ca_ack_delay < 32, "ibv_query_device(3): local_ca_ack_delay has five bits");
	check(caps.atomic_cap <= IBV_ATOMIC_GLOB, "ibv_query_device(3): atomic_cap is one of its levels");

	is(ibv_query_device_ex(ctx, NULL, &ex), 0, "ibv_query_device_ex(3): the input may be NULL");
	check(!memcmp(&ex.orig_attr.node_guid, &caps.node_guid, sizeof caps.node_guid) &&
		      ex.orig_attr.max_qp == caps.max_qp && ex.orig_attr.max_cqe == caps.max_cqe &&
		      ex.orig_attr.device_cap_flags == caps.device_cap_flags,
	      "ibv_query_device_ex(3): orig_attr is what ibv_query_device returns");
	is(ex.phys_port_cnt_ex, caps.phys_port_cnt, "ibv_query_device_ex(3): phys_port_cnt_ex counts the same ports");
	is((uint32_t)ex.device_cap_flags_ex, caps.device_cap_flags,
	   "ibv_query_device_ex(3): the extended flags begin with the others");
	struct ibv_query_device_ex_input input = {.comp_mask = 1};

	is(ibv_query_device_ex(ctx, &input, &ex), EINVAL, "ibv_query_device_ex(3): an unknown input mask: EINVAL");
}

static void port_attributes(void)
{
	struct ibv_port_attr attr;

	memset(&attr, 0xff, sizeof attr);
	is(ibv_query_port(ctx, PORT_NUM, &attr), 0, "ibv_query_port(3): 0 on success");
	is(attr.state, IBV_PORT_ACTIVE, "ibv_query_port(3): a port with its link up is ACTIVE");
	is(attr.link_layer, IBV_LINK_LAYER_ETHERNET, "ibv_query_port(3): a RoCE port's link layer is Ethernet");
	check(attr.max_mtu >= attr.active_mtu && attr.active_mtu >= IBV_MTU_256 && attr.max_mtu <= IBV_MTU_4096,
	      "ibv_query_port(3): the active MTU is at most the largest");
	check(attr.gid_tbl_len > gid_index, "ibv_query_port(3): the GID table has our index");
	check(attr.pkey_tbl_len >= 1, "ibv_query_port(3): the P_Key table has an entry");
	check(attr.max_msg_sz >= 1 << 20, "ibv_query_port(3): the largest message is returned");
	is(attr.lid, 0, "ibv_query_port(3): a RoCE port has no LID");
	check(attr.flags & IBV_QPF_GRH_REQUIRED, "ibv_query_port(3): a RoCE port requires a GRH");
	check(attr.active_width != 0 && attr.active_speed != 0, "ibv_query_port(3): width and speed are returned");
	is(attr.phys_state, 5, "ibv_query_port(3): an active port's physical state is LinkUp");
	is(ibv_query_port(ctx, 0, &attr), EINVAL, "ibv_query_port(3): port 0: EINVAL");
	is(ibv_query_port(ctx, (uint8_t)(caps.phys_port_cnt + 1), &attr), EINVAL,
	   "ibv_query_port(3): a port beyond the last: EINVAL");
}

/* The speed is in units of 100 Mbit/s. */
static void port_speed(void)
{
	int (*query)(struct ibv_context *, uint32_t, uint64_t *) = newer("ibv_query_port_speed");
	uint64_t speed = 0;
	int result = query ? query(ctx, PORT_NUM, &speed) : EOPNOTSUPP;

	if (result == EOPNOTSUPP) {
		skip("the library has no such call, or the device", "ibv_query_port_speed(3): 0 on success");
		return;
	}
	is(result, 0, "ibv_query_port_speed(3): 0 on success");
	check(speed > 0 && speed < 100000, "ibv_query_port_speed(3): a speed in units of 100 Mbit/s");
	is(query(ctx, 0, &speed), EINVAL, "ibv_query_port_speed(3): port 0: EINVAL");
	is(query(ctx, caps.phys_port_cnt + 1u, &speed), EINVAL, "ibv_query_port_speed(3): a port beyond the last: EINVAL");
}

static void beyond_the_port(void)
{
	struct ibv_gid_entry entry;
	union ibv_gid other;
	__be16 pkey;

	is(ibv_query_gid(ctx, 0, 0, &other), -1, "ibv_query_gid(3): -1 for port 0");
	is(ibv_query_gid_ex(ctx, 0, 0, &entry, 0), EINVAL, "ibv_query_gid_ex(3): port 0: EINVAL");
	is(ibv_query_gid_ex(ctx, PORT_NUM, UINT32_MAX, &entry, 0), EINVAL, "ibv_query_gid_ex(3): the largest index: EINVAL");
	is(ibv_query_pkey(ctx, 0, 0, &pkey), -1, "ibv_query_pkey(3): -1 for port 0");
	is(ibv_query_pkey(ctx, PORT_NUM, -1, &pkey), -1, "ibv_query_pkey(3): -1 for a negative index");
	is(ibv_get_pkey_index(ctx, 0, htons(0xffff)), -1, "ibv_get_pkey_index(3): -1 for port 0");
	is(ibv_get_pkey_index(ctx, (uint8_t)(caps.phys_port_cnt + 1), htons(0xffff)), -1, "ibv_get_pkey_index(3): -1 for a port beyond the last");
}

/* Contexts and channels are made of descriptors. Threads of the library may give one back meanwhile: then once more. */
static void without_descriptors(void)
{
	struct ibv_device **list = MAKE(ibv_get_device_list(NULL));
	struct rlimit old, few;
	int held[64], opened = 0, made = 0;

	MUST(getrlimit(RLIMIT_NOFILE, &old));
	few = old;
	few.rlim_cur = (rlim_t)ctx->async_fd + 32;
	MUST(setrlimit(RLIMIT_NOFILE, &few));
	for (int attempt = 0; attempt < 20 && (!opened || !made); attempt++) {
		struct ibv_comp_channel *channel;
		struct ibv_context *context;
		int count = 0;

		while (count < 64 && (held[count] = dup(0)) >= 0)
			count++;
		errno = 0;
		context = ibv_open_device(pick(list));
		opened = context ? 0 : errno;
		errno = 0;
		channel = ibv_create_comp_channel(ctx);
		made = channel ? 0 : errno;
		while (count)
			close(held[--count]);
		if (context)
			MUST(ibv_close_device(context));
		if (channel)
			MUST(ibv_destroy_comp_channel(channel));
	}
	MUST(setrlimit(RLIMIT_NOFILE, &old));
	check(opened > 0, "ibv_open_device(3): without a descriptor left: NULL, and errno");
	is(made, EMFILE, "ibv_create_comp_channel(3): without a descriptor left: EMFILE");
	ibv_free_device_list(list);
}

static void gids(void)
{
	struct ibv_gid_entry entry, *table = MAKE(calloc((size_t)port.gid_tbl_len, sizeof *table));
	union ibv_gid other;
	ssize_t count;
	int empty = -1, valid = 0;

	is(ibv_query_gid(ctx, PORT_NUM, gid_index, &gid), 0, "ibv_query_gid(3): 0 on success");
	check(gid.global.interface_id != 0, "ibv_query_gid(3): the GID of the index");
	is(ibv_query_gid(ctx, PORT_NUM, port.gid_tbl_len, &other), -1, "ibv_query_gid(3): -1 beyond the table");
	is(ibv_query_gid(ctx, PORT_NUM, -1, &other), -1, "ibv_query_gid(3): -1 for a negative index");
	is(ibv_query_gid(ctx, (uint8_t)(caps.phys_port_cnt + 1), 0, &other), -1, "ibv_query_gid(3): -1 for a port beyond the last");

	memset(&entry, 0xff, sizeof entry);
	is(ibv_query_gid_ex(ctx, PORT_NUM, gid_index, &entry, 0), 0, "ibv_query_gid_ex(3): 0 on success");
	check(!memcmp(&entry.gid, &gid, sizeof gid), "ibv_query_gid_ex(3): the GID that ibv_query_gid returns");
	is(entry.gid_index, gid_index, "ibv_query_gid_ex(3): the index of the entry");
	is(entry.port_num, PORT_NUM, "ibv_query_gid_ex(3): the port of the entry");
	is(entry.gid_type, IBV_GID_TYPE_ROCE_V2, "ibv_query_gid_ex(3): the type of the entry");
	check(entry.ndev_ifindex != 0, "ibv_query_gid_ex(3): the interface of the entry");
	is(ibv_query_gid_ex(ctx, PORT_NUM, gid_index, &entry, 1), EINVAL, "ibv_query_gid_ex(3): flags other than 0: EINVAL");
	is(ibv_query_gid_ex(ctx, PORT_NUM, (uint32_t)port.gid_tbl_len, &entry, 0), EINVAL,
	   "ibv_query_gid_ex(3): an index beyond the table: EINVAL");
	is(ibv_query_gid_ex(ctx, caps.phys_port_cnt + 1u, 0, &entry, 0), EINVAL,
	   "ibv_query_gid_ex(3): a port beyond the last: EINVAL");
	for (int i = 0; i < port.gid_tbl_len; i++) {
		int result = ibv_query_gid_ex(ctx, PORT_NUM, (uint32_t)i, &entry, 0);

		valid += result == 0;
		if (result == ENODATA && empty < 0)
			empty = i;
	}
	check(empty >= 0 || valid == port.gid_tbl_len, "ibv_query_gid_ex(3): an index in the table without data: ENODATA");
	if (empty >= 0)
		is(ibv_query_gid(ctx, PORT_NUM, empty, &other), 0, "ibv_query_gid(3): an empty entry is read as zeros");
	else
		skip("the table is full", "ibv_query_gid(3): an empty entry is read as zeros");

	count = ibv_query_gid_table(ctx, table, (size_t)port.gid_tbl_len, 0);
	is(count, valid, "ibv_query_gid_table(3): the number of valid entries");
	bool found = false;

	for (ssize_t i = 0; i < count; i++)
		found |= table[i].gid_index == gid_index && !memcmp(&table[i].gid, &gid, sizeof gid);
	check(found, "ibv_query_gid_table(3): our GID is among the entries");
	if (valid > 1)
		check(ibv_query_gid_table(ctx, table, (size_t)valid - 1, 0) < 0,
		      "ibv_query_gid_table(3): an array too small fails");
	else
		skip("there is one GID only", "ibv_query_gid_table(3): an array too small fails");
	is(ibv_query_gid_table(ctx, table, (size_t)valid, 1), -EINVAL, "ibv_query_gid_table(3): flags other than 0: -EINVAL");
	is(ibv_query_gid_table(ctx, table, 0, 0) < 0, 1, "ibv_query_gid_table(3): an array of no entries fails");
	free(table);
}

static void pkeys(void)
{
	__be16 pkey = 0, other;

	is(ibv_query_pkey(ctx, PORT_NUM, 0, &pkey), 0, "ibv_query_pkey(3): 0 on success");
	is(ntohs(pkey), 0xffff, "ibv_query_pkey(3): a RoCE port's first P_Key is the default one");
	is(ibv_query_pkey(ctx, PORT_NUM, port.pkey_tbl_len, &other), -1, "ibv_query_pkey(3): -1 beyond the table");
	is(ibv_query_pkey(ctx, (uint8_t)(caps.phys_port_cnt + 1), 0, &other), -1,
	   "ibv_query_pkey(3): -1 for a port beyond the last");
	is(ibv_get_pkey_index(ctx, PORT_NUM, pkey), 0, "ibv_get_pkey_index(3): the index of the P_Key");
	is(ibv_get_pkey_index(ctx, PORT_NUM, htons(0x1234)), -1, "ibv_get_pkey_index(3): -1 for a P_Key that isn't there");
}

int main(int argc, char **argv)
{
	read_options(argc, argv);
	list_of_devices();
	begin(argc, argv);
	device_attributes();
	port_attributes();
	gids();
	pkeys();
	port_speed();
	beyond_the_port();
	without_descriptors();
	return end();
}
