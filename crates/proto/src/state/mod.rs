//! The state of a queue pair, as plain data. The modules above have the functions, one for each subject.

mod answers;
mod delegated;
mod kept;
mod message;
mod recovery;
mod refusal;
mod report;
mod requester;
mod responder;
mod tagged;

pub(crate) use answers::{Answer, Answers, Owed, Range, Read};
pub(crate) use delegated::{Delegated, DelegatedRequest};
pub(crate) use kept::{KEPT_RANGE, KeptNumbers, PsnSet};
pub(crate) use message::{MessageProgress, begins, ends};
pub(crate) use recovery::{LastRepeat, Recovery};
pub(crate) use refusal::NakReason;
pub(crate) use report::GapReport;
pub(crate) use requester::{Requester, SMALLEST_CHARGE, Sample, charge};
pub(crate) use responder::Responder;
pub(crate) use tagged::Tagged;

use crate::sendq::SendQueue;
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
