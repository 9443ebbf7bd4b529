//! What both sides of a connection announced about their queue pairs, and the attributes that follow from it.

use std::collections::hash_map::RandomState;
use std::ffi::c_int;
use std::hash::{BuildHasher as _, Hasher as _};
use std::mem::zeroed;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroce_abi::verbs::*;
use ferroce_connect::{ConnectionQp, Reply, Request};
use ferroce_entry::call::{Outcome, Refusal};

use crate::abi::*;
use crate::place::IdPlace;

/// Life of a packet in a network of IP as librdmacm sees it: 4.096 µs · 2^18.
pub(crate) const PACKET_LIFE: u8 = 18;
/// The delay of an ACK that the adapter announces to peers: 4.096 µs · 2^15, as rdma_rxe does.
pub(crate) const ACK_DELAY: u8 = 15;

/// The PSN at which the peer of a new connection begins, 24 bits.
pub(crate) fn starting_psn() -> u32 {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut hasher = SEED.get_or_init(RandomState::new).build_hasher();
    hasher.write_u32(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish() as u32 & 0xff_ffff
}

/// What is known of the two queue pairs.
pub(crate) enum Agreed {
    /// Nothing yet.
    Nothing,
    /// This side has asked.
    Asked(ConnectionQp),
    /// The peer has answered.
    Answered(ConnectionQp, Box<Reply>),
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

/// The life of a packet by the path, or by the timeout that the program has set.
pub(crate) fn packet_life(ack_timeout: Option<u8>) -> u8 {
    ack_timeout.map_or(PACKET_LIFE, |timeout| timeout.saturating_sub(1))
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

/// Everything from which the attributes of an id's queue pair follow.
pub(crate) struct Negotiated<'a> {
    pub(crate) place: &'a IdPlace,
    pub(crate) agreed: &'a Agreed,
    /// The local ACK timeout that the program has set.
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) qp_type: c_int,
}

/// The attributes with which a queue pair goes to `asked`, and their mask.
pub(crate) fn attributes(known: &Negotiated<'_>, asked: c_int) -> Outcome<(ibv_qp_attr, c_int)> {
    // SAFETY: numbers only.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = asked;
    attr.port_num = 1;
    if known.qp_type == IBV_QPT_UD {
        attr.qkey = RDMA_UDP_QKEY;
        return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    }
    let not_now =
        || Refusal::invalid("the connection isn't in a state in which queue pairs are prepared for it");
    if asked == IBV_QPS_INIT || matches!(known.agreed, Agreed::Nothing) {
        let answers_reads = match known.agreed {
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
        IBV_QPS_RTR => receiving(&mut attr, known),
        IBV_QPS_RTS => sending(&mut attr, known),
        other => return Err(Refusal::invalid(format!("qp_state {other}: INIT, RTR and RTS"))),
    };
    Ok((attr, mask.ok_or_else(not_now)?))
}

/// What a queue pair has to know to receive.
fn receiving(attr: &mut ibv_qp_attr, known: &Negotiated<'_>) -> Option<c_int> {
    let IdPlace { way: Some(way), .. } = known.place else { return None };
    attr.ah_attr = way.ah_attr();
    let mut mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    match known.agreed {
        Agreed::Answered(own, reply) => {
            attr.path_mtu = own.path_mtu.into();
            attr.dest_qp_num = if known.qp_type == IBV_QPT_XRC_SEND { reply.eecn } else { reply.qpn };
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
    if matches!(known.qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    Some(mask)
}

/// What it has to know to send.
fn sending(attr: &mut ibv_qp_attr, known: &Negotiated<'_>) -> Option<c_int> {
    let timeout = match known.agreed {
        Agreed::Answered(own, reply) => {
            attr.sq_psn = reply.starting_psn;
            attr.max_rd_atomic = reply.responder_resources;
            attr.retry_cnt = own.retry_count;
            attr.rnr_retry = reply.rnr_retry_count;
            ack_timeout(reply.target_ack_delay, packet_life(known.ack_timeout))
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
    attr.timeout = known.ack_timeout.unwrap_or(timeout);
    let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if matches!(known.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT;
    } else if known.qp_type == IBV_QPT_XRC_RECV {
        mask |= IBV_QP_TIMEOUT;
    }
    Some(mask)
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
