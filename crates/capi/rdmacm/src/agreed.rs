//! What both sides of a connection have said of their queue pairs, and the attributes that follow: rdma_init_qp_attr(3).

use std::ffi::c_int;
use std::mem::zeroed;

use ferroce_connect::{QpParams, Reply, Request};
use ferroce_ibverbs::abi::*;
use ferroce_ibverbs::call::{Outcome, Refusal, at_mut};
use ferroce_ibverbs::entry;

use crate::abi::*;
use crate::bind::{self, Place, Way};
use crate::id::{IdBlock, State};
use crate::option::Options;

/// Life of a packet in a network of IP as librdmacm sees it: 4.096 µs · 2^18.
pub(crate) const PACKET_LIFE: u8 = 18;
/// How long the adapter may take for an ACK, as it tells peers: 4.096 µs · 2^15. That of rdma_rxe.
pub(crate) const ACK_DELAY: u8 = 15;

/// What is known of the two queue pairs.
pub(crate) enum Agreed {
    /// Nothing yet.
    Nothing,
    /// This side has asked.
    Asked(QpParams),
    /// The peer has answered.
    Answered(QpParams, Box<Reply>),
    /// The peer has asked.
    Wanted(Box<Request>, Own),
    /// The connection has ended.
    Over,
}

/// What the side that is asked adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    /// Where the peer shall begin.
    pub(crate) starting_psn: u32,
    /// RDMA READs and atomics that this side answers at a time, and those that it asks.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

/// The timeout of a queue pair: there and back, and what the peer's adapter takes (IBTA 12.7.34, as the kernel rounds it).
pub(crate) fn ack_timeout(delay: u8, life: u8) -> u8 {
    let there_and_back = life + 1;
    let timeout = if there_and_back >= delay {
        there_and_back + u8::from(delay >= there_and_back - 1)
    } else {
        delay + u8::from(there_and_back >= delay - 1)
    };
    timeout.min(31)
}

/// The life of a packet by the path, or by the program's wish for a timeout.
pub(crate) fn packet_life(options: &Options) -> u8 {
    options.ack_timeout.map_or(PACKET_LIFE, |timeout| timeout.saturating_sub(1))
}

/// The peer as a queue pair is told of it: by its LID where ports have LIDs and both ends have one, else by its GID.
pub(crate) fn address_of(way: &Way) -> ibv_ah_attr {
    let lids = way.lids();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: bind::gid(way.route.to.ip()),
            flow_label: way.route.flow_label,
            sgid_index: way.sgid_index,
            hop_limit: way.route.hop_limit,
            traffic_class: way.route.traffic_class,
        },
        dlid: lids.map_or(0, |lids| lids.to),
        sl: way.route.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: lids.is_none().into(),
        port_num: 1,
    }
}

impl Agreed {
    /// Whether the peer may read from this side, and do atomics.
    fn answers_reads(&self) -> Option<bool> {
        match self {
            Self::Asked(qp) | Self::Answered(qp, _) => Some(qp.responder_resources != 0),
            Self::Wanted(_, own) => Some(own.responder_resources != 0),
            Self::Nothing | Self::Over => None,
        }
    }
}

const INIT: c_int = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

/// The attributes with which a queue pair goes to `asked`, and their mask.
pub(crate) fn attributes(state: &State, qp_type: c_int, asked: c_int) -> Outcome<(ibv_qp_attr, c_int)> {
    // SAFETY: numbers only.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = asked;
    attr.port_num = 1;
    if qp_type == IBV_QPT_UD {
        attr.qkey = RDMA_UDP_QKEY;
        return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    }
    let not_now =
        || Refusal::invalid("the connection isn't in a state in which queue pairs are prepared for it");
    if asked == IBV_QPS_INIT || matches!(state.agreed, Agreed::Nothing) {
        let answers_reads = match &state.agreed {
            Agreed::Over => return Err(not_now()),
            agreed => agreed.answers_reads(),
        };
        attr.qp_access_flags = match answers_reads {
            None => 0,
            Some(false) => IBV_ACCESS_REMOTE_WRITE,
            Some(true) => IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
        };
        return Ok((attr, INIT));
    }
    let mask = match asked {
        IBV_QPS_RTR => receiving(&mut attr, state, qp_type),
        IBV_QPS_RTS => sending(&mut attr, state, qp_type),
        other => return Err(Refusal::invalid(format!("qp_state {other}: INIT, RTR and RTS"))),
    };
    Ok((attr, mask.ok_or_else(not_now)?))
}

/// What a queue pair has to know to receive.
fn receiving(attr: &mut ibv_qp_attr, state: &State, qp_type: c_int) -> Option<c_int> {
    let Place { way: Some(way), .. } = &state.place else { return None };
    attr.ah_attr = address_of(way);
    let mut mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    match &state.agreed {
        Agreed::Answered(own, reply) => {
            attr.path_mtu = own.path_mtu.into();
            attr.dest_qp_num = if qp_type == IBV_QPT_XRC_SEND { reply.eecn } else { reply.qpn };
            attr.rq_psn = own.starting_psn;
            attr.max_dest_rd_atomic = reply.initiator_depth;
        }
        Agreed::Wanted(request, own) => {
            attr.path_mtu = request.path_mtu.into();
            attr.dest_qp_num = request.qpn;
            attr.rq_psn = own.starting_psn;
            attr.max_dest_rd_atomic = own.responder_resources;
        }
        _ => return None,
    }
    if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    Some(mask)
}

/// What it has to know to send.
fn sending(attr: &mut ibv_qp_attr, state: &State, qp_type: c_int) -> Option<c_int> {
    let timeout = match &state.agreed {
        Agreed::Answered(own, reply) => {
            attr.sq_psn = reply.starting_psn;
            attr.max_rd_atomic = reply.responder_resources;
            attr.retry_cnt = own.retry_count;
            attr.rnr_retry = reply.rnr_retry_count;
            ack_timeout(reply.target_ack_delay, packet_life(&state.options))
        }
        Agreed::Wanted(request, own) => {
            attr.sq_psn = request.starting_psn;
            attr.max_rd_atomic = own.initiator_depth;
            attr.retry_cnt = request.retry_count;
            attr.rnr_retry = request.rnr_retry_count;
            ack_timeout(ACK_DELAY, request.primary.ack_timeout.saturating_sub(1))
        }
        _ => return None,
    };
    attr.timeout = state.options.ack_timeout.unwrap_or(timeout);
    let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT;
    } else if qp_type == IBV_QPT_XRC_RECV {
        mask |= IBV_QP_TIMEOUT;
    }
    Some(mask)
}

entry! {
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> minus_one {
        // SAFETY: by the man page an id and the caller's variables.
        unsafe {
            let shared = IdBlock::of(id)?;
            IdBlock::block(id)?.device()?;
            let (to, mask) = (at_mut(qp_attr, "qp_attr")?, at_mut(qp_attr_mask, "qp_attr_mask")?);
            let (attr, bits) = attributes(&shared.state.lock(), (*id).qp_type, to.qp_state)?;
            (*to, *mask) = (attr, bits);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::{ACK_DELAY, PACKET_LIFE, ack_timeout};

    #[test]
    fn timeouts_are_those_that_the_kernel_computes() {
        // Measured: rdma_rxe on both sides, and with RDMA_OPTION_ID_ACK_TIMEOUT 16.
        assert_eq!(ack_timeout(ACK_DELAY, PACKET_LIFE), 19);
        assert_eq!(ack_timeout(ACK_DELAY, 15), 17);
        assert_eq!([ack_timeout(0, 0), ack_timeout(31, 31), ack_timeout(20, 3)], [2, 31, 20]);
    }
}
