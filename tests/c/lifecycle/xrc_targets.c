/* xrc_targets: ibv_open_qp(3) of a target queue pair that another process has created, and the end of that process. */
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

static struct ibv_xrcd *open_domain(const struct device *device, const char *path)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = open(path, O_RDONLY),
		.oflags = O_CREAT,
	};

	if (attr.fd < 0)
		fail("%s: %s", path, strerror(errno));
	return MAKE(ibv_open_xrcd(device->context, &attr));
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	if (init.qp_type != IBV_QPT_XRC_RECV || attr.qp_state != qp->state)
		fail("type %d, state %d and %d", init.qp_type, attr.qp_state, qp->state);
	return attr.qp_state;
}

static int set_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state, .port_num = PORT_NUM};
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	return ibv_modify_qp(qp, &attr, mask);
}

/* Makes a target, and writes its state to `out` for each number read from `in`. */
static void create(int gid_index, int in, int out)
{
	struct device device = open_device(gid_index);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = open_domain(&device, "/proc/self/exe"),
	};
	struct ibv_qp *qp = MAKE(ibv_create_qp_ex(device.context, &init));
	uint32_t number = qp->qp_num;

	while (write(out, &number, sizeof number) == sizeof number && read(in, &number, sizeof number) > 0)
		number = state_of(qp);
	exit(0);
}

static uint32_t hear(int in)
{
	uint32_t number;

	if (read(in, &number, sizeof number) != sizeof number)
		fail("the creator has ended");
	return number;
}

int main(int argc, char **argv)
{
	int gid_index = argc > 1 ? atoi(argv[1]) : 1;
	int questions[2], answers[2];

	alarm(ALARM_SECONDS);
	MUST(pipe(questions));
	MUST(pipe(answers));
	pid_t creator = fork();
	if (creator == 0) {
		alarm(ALARM_SECONDS);
		close(questions[1]);
		create(gid_index, questions[0], answers[1]);
	}
	close(answers[1]);

	struct device device = open_device(gid_index);
	struct ibv_xrcd *domain = open_domain(&device, "/proc/self/exe");
	struct ibv_xrcd *other = open_domain(&device, "/");
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
			     IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = hear(answers[0]),
		.xrcd = other,
		.qp_type = IBV_QPT_XRC_RECV,
		.qp_context = &device,
	};

	if (ibv_open_qp(device.context, &attr) || errno != EINVAL)
		fail("opened by another domain, or not EINVAL");
	attr.xrcd = domain;
	struct ibv_qp *qp = MAKE(ibv_open_qp(device.context, &attr));
	if (qp->qp_num != attr.qp_num || qp->qp_context != &device || state_of(qp) != IBV_QPS_RESET)
		fail("number %#x, state %d", qp->qp_num, qp->state);
	if (set_state(qp, IBV_QPS_RTS) != EINVAL)
		fail("from RESET to RTS");
	MUST(set_state(qp, IBV_QPS_INIT));
	if (write(questions[1], &attr.qp_num, 4) != 4 || hear(answers[0]) != IBV_QPS_INIT)
		fail("the creator hasn't noticed");
	if (ibv_close_xrcd(domain) != EBUSY)
		fail("the domain of a queue pair was closed");

	MUST(kill(creator, SIGKILL));
	struct pollfd readable = {.fd = device.context->async_fd, .events = POLLIN};
	if (poll(&readable, 1, 1000) != 1)
		fail("no event within a second");
	struct ibv_async_event event;
	MUST(ibv_get_async_event(device.context, &event));
	if (event.event_type != IBV_EVENT_QP_FATAL || event.element.qp != qp)
		fail("%s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
	if (set_state(qp, IBV_QPS_RESET) != EIO || state_of(qp) != IBV_QPS_ERR)
		fail("state %d of a target whose process has ended", qp->state);
	if (poll(&readable, 1, 50) != 0)
		fail("another event");
	MUST(ibv_destroy_qp(qp));
	MUST(ibv_close_xrcd(domain));
	MUST(ibv_close_xrcd(other));
	MUST(ibv_dealloc_pd(device.pd));
	MUST(ibv_close_device(device.context));
	waitpid(creator, NULL, 0);
	puts("ok");
	return 0;
}
