//! A queue pair: its parts are plain data. The modules above have the functions, one for each subject.

pub(crate) use ferroce_qp_context::{
    Answer, Answers, DelegatedRequest, GapReport, Issuer, KEPT_RANGE, LastRepeat, MessageProgress, NakReason,
    Owed, PsnSet, Range, Read, Recovery, Requester, Responder, SMALLEST_CHARGE, Sample, SendQueue, Tagged,
    Wqe, begins, charge, ends,
};

use crate::{Counters, QpParams};
use ferroce_types::QpState;
use ferroce_wire::Service;

/// A queue pair of service RC, XRC, UC or UD. `A` is the environment's address handle.
///
/// The caller serialises all calls. After [`QpProtocol::post_send`], [`QpProtocol::handle_packet`], [`QpProtocol::handle_timeout`] or a change
/// of state it calls [`QpProtocol::transmit`], and after a batch of packets [`QpProtocol::flush_acks`].
#[derive(Debug)]
pub struct QpProtocol<A> {
    pub(crate) service: Service,
    pub(crate) qpn: u32,
    pub(crate) state: QpState,
    pub(crate) params: QpParams,
    pub(crate) counters: Counters,
    pub(crate) sq: SendQueue<A>,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    pub(crate) answers: Answers,
    /// Why it has failed ([`QpProtocol::reason`]).
    pub(crate) reason: u16,
    pub(crate) told_posted_after: bool,
    /// The QP has been connected before.
    pub(crate) is_reconnected: bool,
}
