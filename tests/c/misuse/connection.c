/* Sides that don't find each other, don't agree, or use a queue pair that has failed. */
#include "misuse.h"

static void wrong_qpn(struct config *config, bool wrong)
{
	be_impatient(config, wrong);
	config->qpn_change = wrong ? 0x800 : 0;
}

static void stay_in_init(struct config *config, bool wrong)
{
	be_impatient(config, wrong);
	config->responder_stays_in_init = wrong;
}

static void begin_too_early(struct config *config, bool wrong)
{
	be_impatient(config, wrong);
	config->psn_change = wrong ? -100 : 0;
}

static void begin_too_late(struct config *config, bool wrong)
{
	be_impatient(config, wrong);
	config->psn_change = wrong ? 100 : 0;
}

static void address_without_route(struct config *config, bool wrong)
{
	be_impatient(config, wrong);
	config->address_without_route = wrong;
}

/* One packet that comes late ends the wrong one. */
static void have_no_patience_with_losses(struct config *config, bool wrong)
{
	config->path.mtu = config->responder_mtu = IBV_MTU_256;
	if (wrong)
		config->path.timeout = config->path.retry_count = 0;
}

static void have_smaller_mtu(struct config *config, bool wrong)
{
	if (wrong)
		config->responder_mtu = IBV_MTU_256;
}

static void write_a_long_one(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong;
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 2048), offer->address, offer->rkey);
}

static void read_a_long_one(struct side *side, const struct offer *offer, bool wrong)
{
	(void)wrong;
	post(side->qp, IBV_WR_RDMA_READ, element(side->mr, 2048), offer->address, offer->rkey);
}

static void write_to_unknown(struct side *side, const struct offer *offer, bool wrong)
{
	post(side->qp, IBV_WR_RDMA_WRITE, element(side->mr, 64), offer->address, offer->rkey + (wrong ? 0x500000 : 0));
}

static void write_again(struct side *side, bool wrong)
{
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc;

		MUST(post_send(side->qp, side->mr, 0, 0, 43));
		if (!wrong)
			return;
		if (!wait_wc(side->cq, &wc, 20000) || wc.status != IBV_WC_WR_FLUSH_ERR || wc.wr_id != 43)
			fail("the request after the failure isn't flushed");
	}
}

/* Writes, and once more after what `between` does. */
static void write_around(struct side *side, const struct offer *offer, bool wrong, void (*between)(void))
{
	struct ibv_wc wc;

	request_write(side, offer, wrong);
	MUST_COMPLETE(side->cq, &wc);
	if (wrong)
		between();
	request_write(side, offer, wrong);
}

static void write_to_one_that_ends(struct side *side, const struct offer *offer, bool wrong)
{
	write_around(side, offer, wrong, end_responder);
}

static void write_to_one_that_is_stopped(struct side *side, const struct offer *offer, bool wrong)
{
	write_around(side, offer, wrong, stop_responder);
}

static void post_receive(struct side *side, struct offer *offer, bool wrong)
{
	(void)wrong, (void)offer;
	MUST(post_recv(side->qp, side->mr, 0, 64, 7));
}

int main(int argc, char **argv)
{
	static const struct misuse all[] = {
		MISUSE(unknown_qpn, IBV_WC_RETRY_EXC_ERR, .configure = wrong_qpn, .request = request_write),
		MISUSE(peer_in_init, IBV_WC_RETRY_EXC_ERR, .configure = stay_in_init, .request = request_write),
		MISUSE(psn_behind, IBV_WC_RETRY_EXC_ERR, .configure = begin_too_early, .request = request_write),
		MISUSE(psn_ahead, IBV_WC_RETRY_EXC_ERR, .configure = begin_too_late, .request = request_write),
		MISUSE(peer_ends, IBV_WC_RETRY_EXC_ERR, .configure = be_impatient, .request = write_to_one_that_ends),
		MISUSE(peer_stopped, IBV_WC_RETRY_EXC_ERR, .configure = be_impatient, .request = write_to_one_that_is_stopped,
		       .after = continue_responder),
		MISUSE(path_mtu, IBV_WC_REM_INV_REQ_ERR, .configure = have_smaller_mtu, .request = write_a_long_one),
		MISUSE(path_mtu_of_a_read, IBV_WC_BAD_RESP_ERR, .configure = have_smaller_mtu, .request = read_a_long_one),
		MISUSE(no_route, IBV_WC_RETRY_EXC_ERR, .configure = address_without_route, .request = request_write),
		MISUSE(packets_missing, IBV_WC_RETRY_EXC_ERR, .configure = have_no_patience_with_losses,
		       .request = write_a_long_one),
		MISUSE(posted_after, IBV_WC_REM_ACCESS_ERR, .prepare = post_receive, .request = write_to_unknown,
		       .after = write_again),
	};

	return run_misuse(all, sizeof all / sizeof *all, argc, argv);
}
