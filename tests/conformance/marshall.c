/* What librdmacm and providers call, without a man page: the kernel's structures become those of verbs, and sysfs. */
#include "conform.h"
#include <rdma/ib_user_verbs.h>

void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *directory, const char *file, char *to, size_t size);

int main(void)
{
	struct ib_uverbs_qp_attr from = {
		.cur_qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = 0x123,
		.max_send_wr = 7,
		.min_rnr_timer = 12,
		.port_num = 1,
		.ah_attr = {.grh = {.flow_label = 5, .sgid_index = 3, .hop_limit = 64, .traffic_class = 8}, .sl = 2, .is_global = 1, .port_num = 1},
	};
	struct ibv_qp_attr qp;
	struct ibv_ah_attr ah;
	char text[64];

	alarm(ALARM_SECONDS);
	memset(from.ah_attr.grh.dgid, 0x5a, 16);
	memset(&ah, 0xff, sizeof ah);
	ibv_copy_ah_attr_from_kern(&ah, &from.ah_attr);
	check(ah.is_global == 1 && ah.sl == 2 && ah.port_num == 1, "ibv_copy_ah_attr_from_kern(3): the port's fields");
	check(ah.grh.dgid.raw[15] == 0x5a && ah.grh.sgid_index == 3 && ah.grh.flow_label == 5 && ah.grh.hop_limit == 64 && ah.grh.traffic_class == 8,
	      "ibv_copy_ah_attr_from_kern(3): the GRH");
	memset(&qp, 0xff, sizeof qp);
	ibv_copy_qp_attr_from_kern(&qp, &from);
	check(qp.cur_qp_state == IBV_QPS_RTR && qp.path_mtu == IBV_MTU_1024 && qp.dest_qp_num == 0x123 && qp.min_rnr_timer == 12 && qp.port_num == 1,
	      "ibv_copy_qp_attr_from_kern(3): the attributes");
	check(qp.cap.max_send_wr == 7 && qp.ah_attr.grh.sgid_index == 3, "ibv_copy_qp_attr_from_kern(3): capabilities and address");
	check(ibv_get_sysfs_path() && ibv_get_sysfs_path()[0] == '/', "ibv_get_sysfs_path(3): where sysfs is");
	memset(text, 0xff, sizeof text);
	is(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, sizeof text), 5, "ibv_read_sysfs_file(3): the length without the newline");
	check(!strcmp(text, "Linux"), "ibv_read_sysfs_file(3): the content");
	is(ibv_read_sysfs_file("/proc/sys/kernel", "nothing", text, sizeof text), -1, "ibv_read_sysfs_file(3): -1 for what isn't there");
	return end();
}
